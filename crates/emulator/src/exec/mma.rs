//! mma.sync (ISA notes, async 5.7): one warp multiplies two small matrices held in registers.
//!
//! Fragments come from [`crate::layout::fragment`], sums from [`crate::numerics::dot`]. As recorded on Hopper: 16-bit
//! and tf32 products are one aligned sum over k; FP8 operands are widened to f16 and multiplied in two steps, the lower
//! and the upper pair of every four k, from zero, and then C is added, rounded to nearest.

mod decode;

use crate::decode::Decoder;
use crate::exec::Op;
use crate::exec::moves::MoveOp;
use crate::exec::operand_tile::from_registers;
use crate::layout::fragment;
use crate::layout::instruction_descriptor::Element;
use crate::machine::{Cluster, Outcome, R32, R64, Reg, WARP, Warp};
use crate::numerics::arith;
use crate::numerics::dot::{Accumulation, Output, Shape, accumulate, accumulate_i32};
use crate::numerics::format::{F16, Narrow, Rounding, decode_f16};
use crate::options::MatrixNumerics;

pub use decode::ROWS;
pub(super) use decode::decode_block;

/// Largest K of a shape whose operands are not bits.
const MOST_K: usize = 64;

/// Element type of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Floating point up to 32 bits.
    Float(Element),
    /// Integer of `bits`.
    Integer { bits: u32, signed: bool },
    /// `f64`
    F64,
    /// One bit: counts the bits set in the conjunction, or in the difference.
    Bit { and: bool },
}

impl Kind {
    pub(super) fn parse(word: &str) -> Option<Kind> {
        Some(match word {
            "f16" => Kind::Float(Element::F16),
            "bf16" => Kind::Float(Element::Bf16),
            "tf32" => Kind::Float(Element::Tf32),
            "e4m3" => Kind::Float(Element::E4m3),
            "e5m2" => Kind::Float(Element::E5m2),
            "f64" => Kind::F64,
            "b1" => Kind::Bit { and: false },
            "s8" => Kind::Integer { bits: 8, signed: true },
            "u8" => Kind::Integer { bits: 8, signed: false },
            "s4" => Kind::Integer { bits: 4, signed: true },
            "u4" => Kind::Integer { bits: 4, signed: false },
            _ => return None,
        })
    }

    fn bits(self) -> u32 {
        match self {
            Kind::Float(element) => element.bits(),
            Kind::Integer { bits, .. } => bits,
            Kind::F64 => 64,
            Kind::Bit { .. } => 1,
        }
    }
}

/// Registers of an operand.
#[derive(Debug, Clone)]
enum Fragment {
    W32(Box<[R32]>),
    W64(Box<[R64]>),
}

/// A decoded instruction of the family.
#[derive(Debug, Clone)]
pub struct MmaOp {
    m: u32,
    k: u32,
    a_kind: Kind,
    b_kind: Kind,
    /// D and C are f16.
    half_d: bool,
    half_c: bool,
    saturate: bool,
    d: Fragment,
    a: Fragment,
    b: Fragment,
    c: Fragment,
    /// Name in the counters.
    name: String,
}

impl MmaOp {
    /// Makes D new registers; the moves from them to those that it had.
    pub(super) fn redirect(&mut self, decoder: &mut Decoder<'_>) -> Vec<Op> {
        let moves: Vec<(Reg, Reg)> = match &mut self.d {
            Fragment::W32(regs) => {
                let renew = |reg: &mut R32| (Reg::R32(std::mem::replace(reg, decoder.fresh32())), Reg::R32(*reg));
                regs.iter_mut().map(renew).collect()
            }
            Fragment::W64(regs) => {
                let renew = |reg: &mut R64| (Reg::R64(std::mem::replace(reg, decoder.fresh64())), Reg::R64(*reg));
                regs.iter_mut().map(renew).collect()
            }
        };
        moves.into_iter().map(|(d, a)| Op::Move(MoveOp::Copy { d, a })).collect()
    }
}

/// Executes an instruction of the family.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &MmaOp) -> Outcome {
    if let Some(outcome) = machine.require_aligned(warp, mask) {
        return outcome;
    }
    match op.a_kind {
        Kind::Float(a) => {
            let Kind::Float(b) = op.b_kind else { return Outcome::Next };
            float(machine, warp, mask, op, (a, b));
        }
        Kind::Integer { .. } => integer(warp, mask, op),
        Kind::F64 => double(warp, mask, op),
        Kind::Bit { and } => bits(warp, mask, op, and),
    }
    machine.counters.add_matrix(&op.name, u64::from(op.m * 8 * op.k));
    Outcome::Next
}

/// Calls `f(position, code)` for every element of A, then of B.
fn operands(warp: &Warp, op: &MmaOp, mut f_a: impl FnMut(usize, u32), mut f_b: impl FnMut(usize, u32)) {
    let k = op.k as usize;
    if let (Fragment::W32(a), Fragment::W32(b)) = (&op.a, &op.b) {
        let bits = op.a_kind.bits();
        each(
            warp,
            a,
            bits,
            |lane, register| {
                let position = if op.m == 8 { fragment::a8 } else { fragment::a };
                let (row, column) = position(bits, lane, register, 0);
                row as usize * k + column as usize
            },
            &mut f_a,
        );
        each(
            warp,
            b,
            bits,
            |lane, register| {
                let (row, column) = fragment::b(bits, lane, register, 0);
                column as usize * k + row as usize
            },
            &mut f_b,
        );
    }
}

/// Calls `f(position, code)` for the elements of registers; those of one register follow each other from
/// `position(lane, register)` on.
#[inline(always)]
fn each(warp: &Warp, regs: &[R32], bits: u32, position: impl Fn(u32, u32) -> usize, f: &mut impl FnMut(usize, u32)) {
    let field = u32::MAX >> (32 - bits);
    for (register, reg) in (0..).zip(regs) {
        for (lane, &value) in (0..).zip(warp.regs.get::<u32>(*reg)) {
            let first = position(lane, register);
            for element in 0..fragment::elements_per_register(bits) {
                f(first + element as usize, value >> (element * bits) & field);
            }
        }
    }
}

/// Index of accumulator element `i` of a lane in a row-major tile of 8 columns.
fn accumulator(lane: usize, i: usize) -> usize {
    let (row, column) = fragment::c(lane as u32, i as u32);
    (row * 8 + column) as usize
}

fn float(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &MmaOp, (a_type, b_type): (Element, Element)) {
    let (Fragment::W32(a_regs), Fragment::W32(b_regs)) = (&op.a, &op.b) else { return };
    let (Fragment::W32(c_regs), Fragment::W32(d_regs)) = (&op.c, &op.d) else { return };
    let (m, k) = (op.m as usize, op.k as usize);
    let (mut a, mut b, mut d) = ([0.0; 16 * MOST_K], [0.0; 8 * MOST_K], [0.0; 16 * 8]);
    let (a, b, d) = (&mut a[..m * k], &mut b[..8 * k], &mut d[..m * 8]);
    let a_place = if m == 8 { fragment::a8 } else { fragment::a };
    from_registers(warp, a_regs, a_type, k, |lane, register| a_place(a_type.bits(), lane, register, 0), a);
    let b_first = |lane, register| {
        let (k, column) = fragment::b(b_type.bits(), lane, register, 0);
        (column, k)
    };
    from_registers(warp, b_regs, b_type, k, b_first, b);
    // D is the transpose: there are fewer columns than rows, and sums are faster along rows.
    let at = |lane: usize, i: usize| {
        let (row, column) = fragment::c(lane as u32, i as u32);
        column as usize * m + row as usize
    };
    for (register, reg) in c_regs.iter().enumerate() {
        for (lane, &value) in warp.regs.get::<u32>(*reg).iter().enumerate() {
            if op.half_c {
                d[at(lane, 2 * register)] = decode_f16(value as u16);
                d[at(lane, 2 * register + 1)] = decode_f16((value >> 16) as u16);
            } else {
                d[at(lane, register)] = f32::from_bits(value);
            }
        }
    }
    let output = if op.half_d { Output::F16 } else { Output::F32 };
    multiply(machine, (b, a), d, Shape { m: 8, n: m, k }, ([b_type, a_type], output));
    for (register, reg) in d_regs.iter().enumerate() {
        let half = |lane: usize, i: usize| F16.narrow_f32(d[at(lane, i)], Narrow::RN);
        let mut values = [0; WARP];
        for (lane, value) in values.iter_mut().enumerate() {
            *value = if op.half_d {
                half(lane, 2 * register) | half(lane, 2 * register + 1) << 16
            } else {
                d[at(lane, register)].to_bits()
            };
        }
        warp.regs.set::<u32>(*reg, mask, &values);
    }
}

/// Adds the product to `d`.
fn multiply(
    machine: &mut Cluster,
    (a, b): (&[f32], &[f32]),
    d: &mut [f32],
    shape: Shape,
    (elements, output): ([Element; 2], Output),
) {
    let scratch = &mut machine.products;
    if machine.options.numerics == MatrixNumerics::Plain {
        return accumulate(a, b, d, shape, (Accumulation::Reference, output), scratch);
    }
    if elements[0].bits() != 8 {
        let least = elements.map(Element::least_exponent);
        return accumulate(a, b, d, shape, (Accumulation::Aligned { fraction: 25, least }, output), scratch);
    }
    let how = Accumulation::Aligned { fraction: 25, least: [Element::F16.least_exponent(); 2] };
    let mut product = [0.0; 16 * 8];
    let product = &mut product[..d.len()];
    for upper in [false, true] {
        let pairs = |tile: &[f32]| -> Vec<f32> {
            let pair = |four: &[f32; 4]| if upper { [four[2], four[3]] } else { [four[0], four[1]] };
            tile.as_chunks().0.iter().flat_map(pair).collect()
        };
        accumulate(&pairs(a), &pairs(b), product, Shape { k: shape.k / 2, ..shape }, (how, output), scratch);
    }
    for (d, &mut product) in d.iter_mut().zip(product) {
        *d = match output {
            Output::F32 => arith::add(*d, product, Rounding::NearestEven),
            Output::F16 => decode_f16(F16.narrow(f64::from(*d) + f64::from(product), Narrow::RN) as u16),
        };
    }
}

fn integer(warp: &mut Warp, mask: u32, op: &MmaOp) {
    let (m, k) = (op.m as usize, op.k as usize);
    let (mut a, mut b, mut d) = ([0; 16 * MOST_K], [0; 8 * MOST_K], [0; 16 * 8]);
    let value = |kind: Kind, code: u32| match kind {
        Kind::Integer { bits, signed: true } => (code << (32 - bits)) as i32 >> (32 - bits),
        _ => code as i32,
    };
    operands(warp, op, |at, code| a[at] = value(op.a_kind, code), |at, code| b[at] = value(op.b_kind, code));
    let (Fragment::W32(c), Fragment::W32(regs)) = (&op.c, &op.d) else { return };
    for (register, reg) in c.iter().enumerate() {
        for (lane, &value) in warp.regs.get::<u32>(*reg).iter().enumerate() {
            d[accumulator(lane, register)] = value as i32;
        }
    }
    accumulate_i32(&a, &b, &mut d, Shape { m, n: 8, k }, op.saturate);
    for (register, reg) in regs.iter().enumerate() {
        let values = std::array::from_fn(|lane| d[accumulator(lane, register)] as u32);
        warp.regs.set::<u32>(*reg, mask, &values);
    }
}

/// `b1`: counts bits of 128 or 256, word by word.
fn bits(warp: &mut Warp, mask: u32, op: &MmaOp, and: bool) {
    let (Fragment::W32(a), Fragment::W32(b), Fragment::W32(c), Fragment::W32(d)) = (&op.a, &op.b, &op.c, &op.d) else {
        return;
    };
    let word = |reg: R32, lane: u32| warp.regs.get::<u32>(reg)[lane as usize];
    let mut results = Vec::with_capacity(d.len());
    for (register, reg) in (0..).zip(c) {
        results.push(std::array::from_fn::<u32, WARP, _>(|lane| {
            let (row, column) = fragment::c(lane as u32, register);
            let count = |block: usize, q: u32| {
                let a_register = if op.m == 8 { block } else { 2 * block + row as usize / 8 };
                let (x, y) = (word(a[a_register], row % 8 * 4 + q), word(b[block], column * 4 + q));
                if and { (x & y).count_ones() } else { (x ^ y).count_ones() }
            };
            let sum: u32 =
                (0..b.len()).flat_map(|block| (0..4).map(move |q| (block, q))).map(|(block, q)| count(block, q)).sum();
            word(*reg, lane as u32).wrapping_add(sum)
        }));
    }
    for (reg, values) in d.iter().zip(&results) {
        warp.regs.set::<u32>(*reg, mask, values);
    }
}

/// `f64`: a chain of fused multiply-adds in the order of k.
fn double(warp: &mut Warp, mask: u32, op: &MmaOp) {
    let (Fragment::W64(a), Fragment::W64(b), Fragment::W64(c), Fragment::W64(d)) = (&op.a, &op.b, &op.c, &op.d) else {
        return;
    };
    let lane_value = |reg: R64, lane: u32| f64::from_bits(warp.regs.get::<u64>(reg)[lane as usize]);
    let mut results = Vec::with_capacity(d.len());
    for (register, reg) in c.iter().enumerate() {
        results.push(std::array::from_fn::<u64, WARP, _>(|lane| {
            let (row, column) = fragment::c(lane as u32, register as u32);
            let sum = (0..op.k).fold(lane_value(*reg, lane as u32), |sum, k| {
                // Register of A: rows 8..16 are odd registers where there are 16 rows; lane 4 * (row % 8) + k % 4.
                let a_register = if op.m == 8 { k / 4 } else { 2 * (k / 4) + row / 8 };
                let x = lane_value(a[a_register as usize], row % 8 * 4 + k % 4);
                let y = lane_value(b[(k / 4) as usize], column * 4 + k % 4);
                x.mul_add(y, sum)
            });
            crate::numerics::arith::canonical_f64(sum).to_bits()
        }));
    }
    for (reg, values) in d.iter().zip(&results) {
        warp.regs.set::<u64>(*reg, mask, values);
    }
}

#[cfg(test)]
mod tests;
