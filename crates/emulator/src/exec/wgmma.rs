//! wgmma (ISA notes, async 6), sm_90a.
//!
//! Each warp of the warpgroup computes its own 16 rows. The work is queued at issue and executed when its group
//! completes, at a time the engine picks: operands and accumulators are read then, so that a missing wait shows in the
//! results.

pub(crate) mod registers;

use std::collections::VecDeque;

use crate::check::{Event, ProxyFence};
use crate::decode::{Decoder, Refusal};
use crate::exec::Op;
use crate::exec::operand_tile::{Container, Issuer, from_registers};
use crate::finding::Kind;
use crate::isa::table::{HOPPER, Row};
use crate::layout::fragment;
use crate::layout::instruction_descriptor::Element;
use crate::layout::operand::{Major, Operand as Descriptor};
use crate::machine::{Block, Cluster, Fault, Outcome, P, R32, R64, WARP, Warp};
use crate::numerics::dot::{Accumulation, Output, Shape, accumulate, accumulate_i32};
use crate::numerics::format::{F16, Narrow, decode_f16};
use crate::options::MatrixNumerics;
use crate::parse::ast::{Instruction, Operand};

/// Shapes of every N, for one K.
macro_rules! shapes {
    ($k:literal) => {
        concat!(
            "(m64n8", $k, "|m64n16", $k, "|m64n24", $k, "|m64n32", $k, "|m64n40", $k, "|m64n48", $k, "|m64n56", $k,
            "|m64n64", $k, "|m64n72", $k, "|m64n80", $k, "|m64n88", $k, "|m64n96", $k, "|m64n104", $k, "|m64n112", $k,
            "|m64n120", $k, "|m64n128", $k, "|m64n136", $k, "|m64n144", $k, "|m64n152", $k, "|m64n160", $k, "|m64n168",
            $k, "|m64n176", $k, "|m64n184", $k, "|m64n192", $k, "|m64n200", $k, "|m64n208", $k, "|m64n216", $k,
            "|m64n224", $k, "|m64n232", $k, "|m64n240", $k, "|m64n248", $k, "|m64n256", $k, ")"
        )
    };
}

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new(
        concat!("wgmma mma_async sync aligned ", shapes!("k16"), " (f16|f32) f16 f16"),
        "d, a, b, p, negate_a, negate_b, trans_a{, trans_b}",
        decode_mma,
        "async 6.1",
    )
    .on(HOPPER, 80),
    Row::new(
        concat!("wgmma mma_async sync aligned ", shapes!("k16"), " f32 bf16 bf16"),
        "d, a, b, p, negate_a, negate_b, trans_a{, trans_b}",
        decode_mma,
        "async 6.1",
    )
    .on(HOPPER, 80),
    Row::new(
        concat!("wgmma mma_async sync aligned ", shapes!("k8"), " f32 tf32 tf32"),
        "d, a, b, p, negate_a, negate_b",
        decode_mma,
        "async 6.1",
    )
    .on(HOPPER, 80),
    Row::new(
        concat!("wgmma mma_async sync aligned ", shapes!("k32"), " (f16|f32) (e4m3|e5m2) (e4m3|e5m2)"),
        "d, a, b, p, negate_a, negate_b",
        decode_mma,
        "async 6.1",
    )
    .on(HOPPER, 80),
    Row::new(
        concat!("wgmma mma_async sync aligned ", shapes!("k32"), " {satfinite} s32 (s8|u8) (s8|u8)"),
        "d, a, b, p",
        decode_mma,
        "async 6.1",
    )
    .on(HOPPER, 80),
    Row::refused(
        "wgmma mma_async sp *",
        "d, a, b, e, i, p{, na, nb, ta, tb}",
        "sparse matrices are not modelled",
        "async 6.1",
    ),
    Row::new("wgmma fence sync aligned", "", decode_fence, "async 6.5").on(HOPPER, 80),
    Row::new("wgmma commit_group sync aligned", "", decode_commit, "async 6.5").on(HOPPER, 80),
    Row::new("wgmma wait_group sync aligned", "n", decode_wait, "async 6.5").on(HOPPER, 80),
];

/// Counter of [`Warp::pending`]: committed groups that are not complete.
pub const PENDING_GROUPS: u32 = 3;

/// Operand A.
#[derive(Debug, Clone)]
enum SourceA {
    /// Descriptor.
    Shared(R64),
    /// Four registers.
    Registers([R32; 4]),
}

/// A decoded `wgmma.mma_async`.
#[derive(Debug, Clone)]
pub struct MmaAsync {
    n: usize,
    k: usize,
    a_type: Element,
    b_type: Element,
    output: Output,
    /// Signed or unsigned bytes into `s32`.
    integer: bool,
    saturate: bool,
    d: Box<[R32]>,
    a: SourceA,
    b: R64,
    /// Whether D is added, and whether the predicate is negated.
    scale_d: (P, bool),
    negate: bool,
    a_major: Major,
    b_major: Major,
}

/// A decoded instruction of the family.
#[derive(Debug, Clone)]
pub enum WgmmaOp {
    /// `wgmma.mma_async`
    Mma(MmaAsync),
    /// `wgmma.fence`
    Fence,
    /// `wgmma.commit_group`
    Commit,
    /// `wgmma.wait_group`
    Wait(u32),
}

/// Work of one warp in program order.
#[derive(Debug, Clone)]
enum Step {
    /// One matrix operation.
    Mma { issuer: Issuer, a: u64, b: u64, add: bool },
    /// End of a group.
    Commit { operations: Vec<u64> },
}

/// The wgmma work of a warp that is not executed yet.
#[derive(Debug, Clone, Default)]
pub struct Queue {
    steps: VecDeque<Step>,
    /// Operations since the last commit, and where they were issued.
    open: Vec<(u64, u32)>,
    /// Operations of committed groups that no wait covered yet, oldest group first.
    committed: VecDeque<Vec<(u64, u32)>>,
    /// A `wgmma.fence` was executed.
    fenced: bool,
    /// Registers that other instructions used since the last one.
    touched: registers::Set,
    /// Those that they wrote.
    written: registers::Set,
}

fn decode_fence(_: &mut Decoder<'_>, _: &Instruction) -> Result<Op, Refusal> {
    Ok(Op::Wgmma(Box::new(WgmmaOp::Fence)))
}

fn decode_commit(_: &mut Decoder<'_>, _: &Instruction) -> Result<Op, Refusal> {
    Ok(Op::Wgmma(Box::new(WgmmaOp::Commit)))
}

fn decode_wait(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    match decoder.immediate(&instruction.operands[0])? {
        n @ 0..=7 => Ok(Op::Wgmma(Box::new(WgmmaOp::Wait(n as u32)))),
        n => Refusal::invalid(format!("expected 0 to 7 groups, got {n}")),
    }
}

fn element(word: &str) -> Option<Element> {
    Some(match word {
        "f16" => Element::F16,
        "bf16" => Element::Bf16,
        "tf32" => Element::Tf32,
        "e4m3" => Element::E4m3,
        "e5m2" => Element::E5m2,
        "s8" => Element::S8,
        "u8" => Element::U8,
        _ => return None,
    })
}

fn decode_mma(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let words: Vec<&str> = instruction.modifiers.iter().rev().take(3).map(String::as_str).collect();
    let [b_word, a_word, d_word] = words[..] else {
        return Refusal::invalid("expected three element types");
    };
    let (Some(a_type), Some(b_type)) = (element(a_word), element(b_word)) else {
        return Refusal::invalid("expected element types of A and B");
    };
    let shape = instruction.modifiers.iter().find_map(|m| m.strip_prefix("m64n")?.split_once('k'));
    let Some((Ok(n), Ok(k))) = shape.map(|(n, k)| (n.parse::<usize>(), k.parse::<usize>())) else {
        return Refusal::invalid("expected a shape");
    };
    let integer = d_word == "s32";
    if integer && !(matches!(n, 8 | 24) || n.is_multiple_of(16)) {
        return Refusal::invalid(format!("N of integer matrices is 8, 24 or a multiple of 16, got {n}"));
    }
    let o = &instruction.operands;
    let registers = if d_word == "f16" { n / 4 } else { n / 2 };
    let d = decoder.elements(&o[0]);
    if d.len() != registers {
        return Refusal::invalid(format!("expected {registers} registers of D, got {}", d.len()));
    }
    let d = d.iter().map(|e| decoder.dst32(e)).collect::<Result<Box<[R32]>, _>>()?;
    let from_registers = matches!(o[1], Operand::Vector(_));
    let a = if from_registers {
        let elements = decoder.elements(&o[1]);
        let regs = elements.iter().map(|e| decoder.src32(e)).collect::<Result<Vec<_>, _>>()?;
        let Ok(regs) = <[R32; 4]>::try_from(regs) else {
            return Refusal::invalid(format!("expected 4 registers of A, got {}", elements.len()));
        };
        SourceA::Registers(regs)
    } else {
        SourceA::Shared(decoder.src64(&o[1])?)
    };
    let b = decoder.src64(&o[2])?;
    let scale_d = decoder.pred(&o[3])?;
    let mut signs = [1; 2];
    for (sign, operand) in signs.iter_mut().zip(o.iter().skip(4)) {
        *sign = decoder.immediate(operand)?;
        if !matches!(sign, 1 | -1) {
            return Refusal::invalid(format!("expected 1 or -1 as sign of an operand, got {sign}"));
        }
    }
    let transposed = o.iter().skip(6).map(|t| decoder.immediate(t)).collect::<Result<Vec<_>, _>>()?;
    let wanted = if a_type.bits() == 16 { if from_registers { 1 } else { 2 } } else { 0 };
    if transposed.len() != wanted || transposed.iter().any(|t| !matches!(t, 0 | 1)) {
        return Refusal::invalid(format!("expected {wanted} transposition immediates of 0 or 1, got {transposed:?}"));
    }
    let major = |t: Option<&i64>| if t == Some(&1) { Major::Mn } else { Major::K };
    Ok(Op::Wgmma(Box::new(WgmmaOp::Mma(MmaAsync {
        n,
        k,
        a_type,
        b_type,
        output: if d_word == "f16" { Output::F16 } else { Output::F32 },
        integer,
        saturate: instruction.has("satfinite"),
        d,
        a,
        b,
        scale_d,
        negate: signs[0] != signs[1],
        a_major: if from_registers { Major::K } else { major(transposed.first()) },
        b_major: major(transposed.last()),
    }))))
}

/// Executes an instruction of the family.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &WgmmaOp) -> Outcome {
    if let Some(outcome) = machine.require_aligned(warp, mask) {
        return outcome;
    }
    match op {
        WgmmaOp::Mma(op) => issue(machine, warp, mask, op),
        WgmmaOp::Fence => {
            warp.wgmma.fenced = true;
            warp.wgmma.touched.clear();
            warp.wgmma.written.clear();
            machine.notify(warp, mask, &Event::ProxyFence { fence: ProxyFence::Wgmma });
            Outcome::Next
        }
        WgmmaOp::Commit => {
            let operations = std::mem::take(&mut warp.wgmma.open);
            warp.wgmma.committed.push_back(operations.clone());
            let operations = operations.into_iter().map(|(operation, _)| operation).collect();
            warp.wgmma.steps.push_back(Step::Commit { operations });
            warp.pending[PENDING_GROUPS as usize] += 1;
            let (cta, index) = (warp.cta as usize, warp.index as usize);
            machine.engine.push(machine.clock, Box::new(move |m| complete_group(m, cta, index)));
            Outcome::Next
        }
        WgmmaOp::Wait(most) => {
            if warp.pending[PENDING_GROUPS as usize] > *most {
                return Outcome::Retry(Block::Pending { counter: PENDING_GROUPS, most: *most });
            }
            while warp.wgmma.committed.len() > *most as usize {
                for (operation, _) in warp.wgmma.committed.pop_front().unwrap_or_default() {
                    machine.notify(warp, mask, &Event::Waited { operation, reads_only: false });
                }
            }
            Outcome::Yield
        }
    }
}

/// Queues a matrix operation.
fn issue(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &MmaAsync) -> Outcome {
    let group = warp.index / 4 * 4;
    let whole = machine.ctas[warp.cta as usize].live_by_warp.len() as u32 >= group + 4;
    if !whole || warp.live != u32::MAX {
        let message = format!("warp {} is not in a complete warpgroup of 128 threads", warp.index);
        return machine.fault(Kind::Wgmma, warp, mask, message);
    }
    let mut descriptors = [0; 2];
    let regs = [if let SourceA::Shared(a) = op.a { Some(a) } else { None }, Some(op.b)];
    for (descriptor, reg) in descriptors.iter_mut().zip(regs) {
        if let Some(reg) = reg {
            let lanes = warp.regs.get::<u64>(reg);
            if lanes.iter().any(|d| *d != lanes[0]) {
                return machine.fault(Kind::Wgmma, warp, mask, "the descriptor differs between lanes");
            }
            *descriptor = lanes[0];
        }
    }
    let truth = warp.regs.pred[op.scale_d.0.0 as usize] ^ if op.scale_d.1 { u32::MAX } else { 0 };
    if truth != 0 && truth != u32::MAX {
        return machine.fault(Kind::Wgmma, warp, mask, "scale-d differs between lanes");
    }
    registers::check_fence(machine, warp, mask, op);
    let operation = machine.engine.operation();
    let issuer = Issuer { actor: Cluster::actor(warp, mask), operation };
    warp.wgmma.steps.push_back(Step::Mma { issuer, a: descriptors[0], b: descriptors[1], add: truth != 0 });
    warp.wgmma.open.push((operation, issuer.actor.pc));
    machine.notify(warp, mask, &Event::Issue { operation });
    let kind =
        if op.integer { "wgmma.i8" } else { ["wgmma.f8", "wgmma.f16", "wgmma.tf32"][op.a_type.bits() as usize / 16] };
    machine.counters.add_matrix(kind, (16 * op.n * op.k) as u64);
    Outcome::Next
}

/// Executes the oldest group of a warp.
fn complete_group(machine: &mut Cluster, cta: usize, index: usize) -> Result<(), Fault> {
    let Some(mut warp) = machine.ctas[cta].warps[index].take() else {
        return Ok(());
    };
    let result = run_steps(machine, &mut warp);
    machine.ctas[cta].warps[index] = Some(warp);
    result
}

/// Executes the steps of a warp up to the end of its oldest group.
fn run_steps(machine: &mut Cluster, warp: &mut Warp) -> Result<(), Fault> {
    let program = machine.program.clone();
    while let Some(step) = warp.wgmma.steps.pop_front() {
        match step {
            Step::Mma { issuer, a, b, add } => {
                if let Some(Op::Wgmma(op)) = program.instrs.get(issuer.actor.pc as usize).map(|i| &i.op)
                    && let WgmmaOp::Mma(op) = &**op
                {
                    compute(machine, warp, op, issuer, (a, b, add))?;
                }
            }
            Step::Commit { operations } => {
                warp.pending[PENDING_GROUPS as usize] -= 1;
                for operation in operations {
                    machine.notify(warp, warp.live, &Event::Complete { operation });
                }
                break;
            }
        }
    }
    Ok(())
}

/// One warp's 16 rows of D.
fn compute(
    machine: &mut Cluster,
    warp: &mut Warp,
    op: &MmaAsync,
    issuer: Issuer,
    (a_descriptor, b_descriptor, add): (u64, u64, bool),
) -> Result<(), Fault> {
    let fail = |machine: &Cluster, text: String| machine.finding_of(Kind::Wgmma, &issuer.actor, text);
    let quarter = warp.index % 4;
    let (a_type, b_type) =
        (Container { element: op.a_type, dense_fp4: false }, Container { element: op.b_type, dense_fp4: false });
    let mut tile_a = Vec::new();
    match &op.a {
        SourceA::Shared(_) => {
            let descriptor = descriptor(a_descriptor, op.a_major, a_type).map_err(|text| fail(machine, text))?;
            let rows = (16 * quarter as usize, 16, op.k);
            issuer.fetch(machine, (warp.cta, &descriptor, op.a_major), a_type, rows, &mut tile_a)?;
        }
        SourceA::Registers(regs) => {
            tile_a.resize(16 * op.k, 0.0);
            let first = |lane, register| fragment::a(op.a_type.bits(), lane, register, 0);
            from_registers(warp, regs, op.a_type, op.k, first, &mut tile_a);
        }
    }
    let descriptor = descriptor(b_descriptor, op.b_major, b_type).map_err(|text| fail(machine, text))?;
    let mut tile_b = Vec::new();
    issuer.fetch(machine, (warp.cta, &descriptor, op.b_major), b_type, (0, op.n, op.k), &mut tile_b)?;
    let shape = Shape { m: 16, n: op.n, k: op.k };
    if op.integer {
        integer(warp, op, shape, (&tile_a, &tile_b), add);
        return Ok(());
    }
    if op.negate {
        tile_a.iter_mut().for_each(|x| *x = -*x);
    }
    let half = op.output == Output::F16;
    let mut d = vec![0.0; 16 * op.n];
    if add {
        let input = |code: u32| if half { decode_f16(code as u16) } else { f32::from_bits(code) };
        read_d(warp, op, input, &mut d);
    }
    let how = (accumulation(machine, [op.a_type, op.b_type]), op.output);
    accumulate(&tile_a, &tile_b, &mut d, shape, how, &mut machine.products);
    let result = |x: f32| if half { F16.narrow_f32(x, Narrow::RN) } else { x.to_bits() };
    write_d(warp, op, &d, result);
    Ok(())
}

/// FP8 sums are cut at 13 fraction bits, all others keep 25.
fn accumulation(machine: &Cluster, elements: [Element; 2]) -> Accumulation {
    match machine.options.numerics {
        MatrixNumerics::Plain => Accumulation::Reference,
        MatrixNumerics::Hardware => Accumulation::Aligned {
            fraction: if elements[0].bits() == 8 { 13 } else { 25 },
            least: elements.map(Element::least_exponent),
        },
    }
}

fn descriptor(bits: u64, major: Major, container: Container) -> Result<Descriptor, String> {
    let operand = Descriptor::from_wgmma(bits).map_err(|error| error.to_string())?;
    operand.check(major, container.container_bits(), 32).map_err(|error| error.to_string())?;
    Ok(operand)
}

/// Calls `f(element, lane, index in the tile)` for accumulator elements of every fourth lane: those of the next three
/// lanes are two columns further each.
fn each_quad(n: usize, mut f: impl FnMut(usize, usize, usize)) {
    for i in 0..n / 2 {
        for lane in (0..WARP).step_by(4) {
            let (row, column) = fragment::wgmma_d(0, lane as u32, i as u32);
            f(i, lane, row as usize * n + column as usize);
        }
    }
}

/// The accumulator registers of a warp as a tile of 16 rows.
fn read_d<T>(warp: &Warp, op: &MmaAsync, input: impl Fn(u32) -> T, d: &mut [T]) {
    let half = op.output == Output::F16;
    each_quad(op.n, |i, lane, at| {
        let register = warp.regs.get::<u32>(op.d[if half { i / 2 } else { i }]);
        for (slot, &value) in d[at..at + 7].iter_mut().step_by(2).zip(&register[lane..lane + 4]) {
            *slot = input(if half { value >> (16 * (i % 2)) & 0xffff } else { value });
        }
    });
}

/// Writes a tile back; f16 results are in the low halves.
fn write_d<T: Copy>(warp: &mut Warp, op: &MmaAsync, d: &[T], result: impl Fn(T) -> u32) {
    let half = op.output == Output::F16;
    each_quad(op.n, |i, lane, at| {
        let register = warp.regs.get_mut::<u32>(op.d[if half { i / 2 } else { i }]);
        for (slot, &value) in register[lane..lane + 4].iter_mut().zip(d[at..at + 7].iter().step_by(2)) {
            let value = result(value);
            *slot = if half && i % 2 == 1 { *slot | value << 16 } else { value };
        }
    });
}

fn integer(warp: &mut Warp, op: &MmaAsync, shape: Shape, (a, b): (&[f32], &[f32]), add: bool) {
    let whole = |tile: &[f32]| tile.iter().map(|&x| x as i32).collect::<Vec<_>>();
    let mut d = vec![0; 16 * op.n];
    if add {
        read_d(warp, op, |x| x as i32, &mut d);
    }
    accumulate_i32(&whole(a), &whole(b), &mut d, shape, op.saturate);
    write_d(warp, op, &d, |x| x as u32);
}

#[cfg(test)]
pub(crate) mod tests;
