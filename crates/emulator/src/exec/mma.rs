//! mma.sync (ISA notes, async 5.7): one warp multiplies two small matrices held in registers.
//!
//! Fragments come from [`crate::layout::fragment`], sums from [`crate::numerics::dot`]. As recorded on Hopper: 16-bit and tf32
//! products are one aligned sum over k; FP8 operands are widened to f16 and multiplied in two steps, the lower and the upper
//! pair of every four k, from zero, and then C is added, rounded to nearest.

use crate::decode::{Decoder, Refusal};
use crate::exec::Op;
use crate::exec::moves::MoveOp;
use crate::exec::operand_tile::from_registers;
use crate::isa::table::Row;
use crate::layout::fragment;
use crate::layout::instruction_descriptor::Element;
use crate::machine::{Cluster, Outcome, R32, R64, Reg, WARP, Warp};
use crate::numerics::arith;
use crate::numerics::dot::{Accumulation, Output, Shape, accumulate, accumulate_i32};
use crate::numerics::format::{F16, Narrow, Rounding, decode_f16};
use crate::options::MatrixNumerics;
use crate::parse::ast::{Instruction, Operand};

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new(
        "mma sync aligned (m16n8k8|m16n8k16) row col (f16|f32) f16 f16 (f16|f32)",
        "d, a, b, c",
        decode,
        "async 5.7",
    ),
    Row::new("mma sync aligned (m16n8k8|m16n8k16) row col f32 bf16 bf16 f32", "d, a, b, c", decode, "async 5.7"),
    Row::new("mma sync aligned (m16n8k4|m16n8k8) row col f32 tf32 tf32 f32", "d, a, b, c", decode, "async 5.7"),
    Row::new(
        "mma sync aligned (m16n8k16|m16n8k32) row col (f16|f32) (e4m3|e5m2) (e4m3|e5m2) (f16|f32)",
        "d, a, b, c",
        decode,
        "async 5.7",
    ),
    Row::new(
        "mma sync aligned (m8n8k4|m16n8k4|m16n8k8|m16n8k16) row col f64 f64 f64 f64",
        "d, a, b, c",
        decode,
        "async 5.7",
    ),
    Row::new(
        "mma sync aligned (m8n8k16|m16n8k16|m16n8k32) row col {satfinite} s32 (s8|u8) (s8|u8) s32",
        "d, a, b, c",
        decode,
        "async 5.7",
    ),
    Row::new(
        "mma sync aligned (m8n8k32|m16n8k32|m16n8k64) row col {satfinite} s32 (s4|u4) (s4|u4) s32",
        "d, a, b, c",
        decode,
        "async 5.7",
    ),
    Row::new(
        "mma sync aligned (m8n8k128|m16n8k128|m16n8k256) row col s32 b1 b1 s32 (xor|and) popc",
        "d, a, b, c",
        decode,
        "9.7.14.5",
    ),
    Row::refused(
        "mma sync aligned m8n8k4 (row|col) (row|col) (f16|f32) f16 f16 (f16|f32)",
        "d, a, b, c",
        "the fragments of Volta's m8n8k4 are not modelled",
        "9.7.14.5.1",
    ),
    Row::refused(
        "mma (sp|sp::ordered_metadata) sync aligned (m16n8k8|m16n8k16|m16n8k32|m16n8k64|m16n8k128) row col {satfinite} (f16|f32|s32) (f16|bf16|tf32|s8|u8|s4|u4|e4m3|e5m2) (f16|bf16|tf32|s8|u8|s4|u4|e4m3|e5m2) (f16|f32|s32)",
        "d, a, b, c, e, f",
        "sparse matrices are not modelled",
        "async 5.7",
    ),
    Row::refused(
        "mma sync aligned (kind::f8f6f4|kind::mxf8f6f4|kind::mxf4|kind::mxf4nvf4) {block_scale} {scale_vec::1X|scale_vec::2X|scale_vec::4X} (m16n8k32|m16n8k64) row col (f16|f32) (e4m3|e5m2|e3m2|e2m3|e2m1) (e4m3|e5m2|e3m2|e2m3|e2m1) (f16|f32) {ue8m0|ue4m3}",
        "d, a, b, c{, sfa, ida, sfb, idb}",
        "only sm_120 has these kinds of mma.sync",
        "async 8.3",
    ),
];

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

fn fragment_of(
    decoder: &mut Decoder<'_>,
    operand: &Operand,
    (wide, count): (bool, usize),
    write: bool,
) -> Result<Fragment, Refusal> {
    let elements = decoder.elements(operand);
    if elements.len() != count {
        return Refusal::invalid(format!("expected {count} registers, got {}", elements.len()));
    }
    Ok(if wide {
        let regs = elements.iter().map(|e| if write { decoder.dst64(e) } else { decoder.src64(e) });
        Fragment::W64(regs.collect::<Result<_, _>>()?)
    } else {
        let regs = elements.iter().map(|e| if write { decoder.dst32(e) } else { decoder.src32(e) });
        Fragment::W32(regs.collect::<Result<_, _>>()?)
    })
}

fn decode(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let shape = instruction.modifiers.iter().find_map(|m| shape_of(m));
    let Some(shape) = shape else {
        return Refusal::invalid("expected a shape");
    };
    let is_type = |word: &&str| Kind::parse(word).is_some() || matches!(*word, "f32" | "s32");
    let words: Vec<&str> = instruction.modifiers.iter().map(String::as_str).filter(is_type).collect();
    let Ok(words) = <[&str; 4]>::try_from(words) else {
        return Refusal::invalid("expected four element types");
    };
    let [d, a, b, c] = &instruction.operands[..] else {
        return Refusal::invalid("expected four operands");
    };
    decode_block(decoder, instruction, shape, words, [d, a, b, c]).map(|op| Op::Mma(Box::new(op)))
}

/// A product of `m` by 8 by `k`, with the element types and operands of D, A, B and C.
pub(super) fn decode_block(
    decoder: &mut Decoder<'_>,
    instruction: &Instruction,
    (m, k): (u32, u32),
    [d_word, a_word, b_word, c_word]: [&str; 4],
    [d, a, b, c]: [&Operand; 4],
) -> Result<MmaOp, Refusal> {
    let (Some(mut a_kind), Some(b_kind)) = (Kind::parse(a_word), Kind::parse(b_word)) else {
        return Refusal::invalid("expected element types of A and B");
    };
    if let Kind::Bit { and } = &mut a_kind {
        *and = instruction.has("and");
    }
    let e = fragment::elements_per_register(a_kind.bits());
    let wide = a_kind == Kind::F64;
    let b_registers = (k / (4 * e)) as usize;
    let a_registers = b_registers * (m / 8) as usize;
    let accumulators = |word: &str| (wide, (m / 4) as usize / if word == "f16" { 2 } else { 1 });
    Ok(MmaOp {
        m,
        k,
        a_kind,
        b_kind,
        half_d: d_word == "f16",
        half_c: c_word == "f16",
        saturate: instruction.has("satfinite"),
        a: fragment_of(decoder, a, (wide, a_registers), false)?,
        b: fragment_of(decoder, b, (wide, b_registers), false)?,
        c: fragment_of(decoder, c, accumulators(c_word), false)?,
        d: fragment_of(decoder, d, accumulators(d_word), true)?,
        name: format!("mma.{a_word}"),
    })
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

/// M and K of `m16n8k16`.
fn shape_of(word: &str) -> Option<(u32, u32)> {
    let (m, rest) = word.strip_prefix('m')?.split_once("n8k")?;
    Some((m.parse().ok()?, rest.parse().ok()?))
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

/// Calls `f(position, code)` for the elements of registers; those of one register follow each other from `position(lane, register)` on.
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
    from_registers(warp, a_regs, a_type, k, |lane, register| fragment::a(a_type.bits(), lane, register, 0), a);
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
        let values: [u32; WARP] = std::array::from_fn(|lane| {
            if op.half_d {
                half(lane, 2 * register) | half(lane, 2 * register + 1) << 16
            } else {
                d[at(lane, register)].to_bits()
            }
        });
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
mod tests {
    #![allow(clippy::needless_range_loop)] // lanes and registers index results and expectations alike

    use crate::isa::Target;
    use crate::testing::{run_on, run32};
    use half::{bf16, f16};

    /// Small integers of either sign, exact in every format.
    fn value(seed: usize, row: usize, column: usize) -> f64 {
        ((row * 7 + column * 3 + seed * 5 + row * column) % 7) as f64 - 3.0
    }

    fn product(m: usize, k: usize, unsigned: bool) -> Vec<Vec<f64>> {
        let v = |s, r, c| if unsigned { value(s, r, c) + 3.0 } else { value(s, r, c) };
        let cell = |i, j| (0..k).map(|t| v(1, i, t) * v(2, t, j)).sum::<f64>() + value(3, i, j);
        (0..m).map(|i| (0..8).map(|j| cell(i, j)).collect()).collect()
    }

    /// A and B of 16-row shapes from the table of the ISA notes, element index `i` as there.
    fn pack(count: usize, per: usize, code: impl Fn(usize, usize) -> u32) -> Vec<[u32; 32]> {
        let bits = 32 / per;
        (0..count)
            .map(|j| std::array::from_fn(|t| (0..per).fold(0, |word, x| word | code(t, j * per + x) << (bits * x))))
            .collect()
    }

    fn check(
        op: &str,
        (per, k): (usize, usize),
        unsigned: bool,
        code: impl Fn(f64) -> u32,
        result: impl Fn(f64) -> u32,
    ) {
        let v = |s, r, c| if unsigned { value(s, r, c) + 3.0 } else { value(s, r, c) };
        let registers = k / (4 * per);
        let a = pack(2 * registers, per, |t, i| {
            let (g, q) = (t / 4, t % 4);
            let (j, x) = (i / per, i % per);
            code(v(1, g + 8 * (j % 2), q * per + x + 4 * per * (j / 2)))
        });
        let b = pack(registers, per, |t, i| {
            let (j, x) = (i / per, i % per);
            code(v(2, (t % 4) * per + x + 4 * per * j, t / 4))
        });
        let c = pack(4, 1, |t, i| result(value(3, t / 4 + 8 * (i / 2), 2 * (t % 4) + i % 2)));
        let inputs: Vec<_> = a.iter().chain(&b).chain(&c).copied().collect();
        let list = |from: usize, n: usize| {
            let names: Vec<_> = (from..from + n).map(|i| format!("%r{i}")).collect();
            format!("{{{}}}", names.join(", "))
        };
        let body = format!(
            "mma.sync.aligned.{op} {{%o0, %o1, %o2, %o3}}, {}, {}, {};",
            list(0, 2 * registers),
            list(2 * registers, registers),
            list(3 * registers, 4)
        );
        let out = run32(&body, &inputs, 4);
        let expected = product(16, k, unsigned);
        for t in 0..32 {
            for i in 0..4 {
                let (row, column) = (t / 4 + 8 * (i / 2), 2 * (t % 4) + i % 2);
                assert_eq!(out[i][t], result(expected[row][column]), "{op} [{row}][{column}]");
            }
        }
    }

    #[test]
    fn float_shapes() {
        let f32_bits = |x: f64| (x as f32).to_bits();
        let half = |x: f64| u32::from(f16::from_f64(x).to_bits());
        let brain = |x: f64| u32::from(bf16::from_f64(x).to_bits());
        // Values -3..=3 in FP8: sign, exponent and fraction written out.
        let e4m3 = |x: f64| [0x00, 0x38, 0x40, 0x44][x.abs() as usize] | if x < 0.0 { 0x80 } else { 0 };
        let e5m2 = |x: f64| [0x00, 0x3c, 0x40, 0x42][x.abs() as usize] | if x < 0.0 { 0x80 } else { 0 };
        check("m16n8k8.row.col.f32.f16.f16.f32", (2, 8), false, half, f32_bits);
        check("m16n8k16.row.col.f32.f16.f16.f32", (2, 16), false, half, f32_bits);
        check("m16n8k16.row.col.f32.bf16.bf16.f32", (2, 16), false, brain, f32_bits);
        check("m16n8k8.row.col.f32.tf32.tf32.f32", (1, 8), false, f32_bits, f32_bits);
        check("m16n8k4.row.col.f32.tf32.tf32.f32", (1, 4), false, f32_bits, f32_bits);
        check("m16n8k32.row.col.f32.e4m3.e4m3.f32", (4, 32), false, e4m3, f32_bits);
        check("m16n8k16.row.col.f32.e5m2.e5m2.f32", (4, 16), false, e5m2, f32_bits);
    }

    #[test]
    fn integer_shapes() {
        let bits = |x: f64| x as i32 as u32;
        check("m16n8k32.row.col.s32.s8.s8.s32", (4, 32), false, |x| bits(x) & 0xff, bits);
        check("m16n8k16.row.col.satfinite.s32.u8.u8.s32", (4, 16), true, |x| bits(x) & 0xff, bits);
        check("m16n8k64.row.col.s32.s4.s4.s32", (8, 64), false, |x| bits(x) & 0xf, bits);
        check("m16n8k32.row.col.s32.u4.u4.s32", (8, 32), true, |x| bits(x) & 0xf, bits);
    }

    #[test]
    fn bits_are_counted() {
        // Word i of lane t of A, B and C.
        let word = |seed: u32, t: usize, i: usize| (t as u32 * 4 + i as u32 + seed).wrapping_mul(0x9e37_79b9);
        let inputs: Vec<[u32; 32]> = (0..4)
            .map(|i| std::array::from_fn(|t| word(1, t, i)))
            .chain((0..2).map(|i| std::array::from_fn(|t| word(2, t, i))))
            .chain((0..4).map(|i| std::array::from_fn(|t| (t + i) as u32)))
            .collect();
        for (op, and) in [("and", true), ("xor", false)] {
            let body = format!(
                "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.{op}.popc {{%o0, %o1, %o2, %o3}}, {{%r0, %r1, %r2, %r3}}, {{%r4, %r5}}, {{%r6, %r7, %r8, %r9}};
                 mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.{op}.popc {{%o4, %o5}}, {{%r0}}, {{%r4}}, {{%r6, %r7}};"
            );
            let out = run32(&body, &inputs, 6);
            for t in 0..32 {
                for i in 0..6 {
                    // The second instruction has one block of k, and the first two results.
                    let (blocks, i, result) = if i < 4 { (2, i, i) } else { (1, i - 4, i) };
                    let (row, column) = (t / 4 + 8 * (i / 2), 2 * (t % 4) + i % 2);
                    let mut sum = (t + i) as u32;
                    for block in 0..blocks {
                        for q in 0..4 {
                            let x = word(1, row % 8 * 4 + q, 2 * block + row / 8);
                            let y = word(2, column * 4 + q, block);
                            sum += if and { x & y } else { x ^ y }.count_ones();
                        }
                    }
                    assert_eq!(out[result][t], sum, "{op} lane {t} result {result}");
                }
            }
        }
    }

    #[test]
    fn f16_accumulators_are_packed() {
        // A is all ones, B all ones, C = lane number in every element: D = C + 16.
        let ones = [0x3c00_3c00; 32];
        let c = std::array::from_fn(|t| u32::from(f16::from_f32(t as f32).to_bits()) * 0x1_0001);
        let body = "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%o0, %o1}, {%r0, %r0, %r0, %r0}, {%r0, %r0}, {%r1, %r1};";
        let out = run32(body, &[ones, c], 2);
        for t in 0..32 {
            let expected = u32::from(f16::from_f32(t as f32 + 16.0).to_bits()) * 0x1_0001;
            assert_eq!((out[0][t], out[1][t]), (expected, expected));
        }
    }

    #[test]
    fn f64_m8n8k4_and_m16n8k8() {
        let wide = |f: &dyn Fn(usize) -> f64| -> [u64; 32] { std::array::from_fn(|t| f(t).to_bits()) };
        let inputs = [
            wide(&|t| value(1, t / 4, t % 4)),
            wide(&|t| value(1, t / 4 + 8, t % 4)),
            wide(&|t| value(1, t / 4, t % 4 + 4)),
            wide(&|t| value(1, t / 4 + 8, t % 4 + 4)),
            wide(&|t| value(2, t % 4, t / 4)),
            wide(&|t| value(2, t % 4 + 4, t / 4)),
            wide(&|t| value(3, t / 4, 2 * (t % 4))),
            wide(&|t| value(3, t / 4, 2 * (t % 4) + 1)),
            wide(&|t| value(3, t / 4 + 8, 2 * (t % 4))),
            wide(&|t| value(3, t / 4 + 8, 2 * (t % 4) + 1)),
        ];
        let body = "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%q0, %q1, %q2, %q3}, {%rd0, %rd1, %rd2, %rd3}, {%rd4, %rd5}, {%rd6, %rd7, %rd8, %rd9};
                    mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%q4, %q5}, {%rd0}, {%rd4}, {%rd6, %rd7};";
        let ran = run_on(Target::Sm90, body, (&[], &inputs), (0, 6));
        assert!(ran.report.findings.is_empty(), "{:?}", ran.report.findings);
        let (eight, four) = (product(16, 8, false), product(8, 4, false));
        for t in 0..32 {
            for i in 0..4 {
                let expected = eight[t / 4 + 8 * (i / 2)][2 * (t % 4) + i % 2];
                assert_eq!(f64::from_bits(ran.wide[i][t]), expected);
            }
            for i in 0..2 {
                assert_eq!(f64::from_bits(ran.wide[4 + i][t]), four[t / 4][2 * (t % 4) + i]);
            }
        }
    }
}
