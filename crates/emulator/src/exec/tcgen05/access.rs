//! ld, ld.red, st and their waits (ISA notes, tcgen05 2).

use super::{Tcgen05Op, check_columns, check_lane, memory};
use crate::check::{Access, Bytes, Event, Order, Proxy, Use};
use crate::decode::{Addr, Decoder, Refusal};
use crate::exec::Op;
use crate::exec::memory as shared;
use crate::finding::Kind;
use crate::layout::tensor_memory::AccessShape;
use crate::machine::{Cluster, Fault, Outcome, R32, WARP, Warp};
use crate::memory::{COLUMNS, Space};
use crate::numerics::arith::{MinMax, min_max};
use crate::parse::ast::{Instruction, Operand};
use crate::trace::Path;

/// What `ld.red` computes over the registers of a thread.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reduction {
    Float(MinMax),
    Signed(bool),
    Unsigned(bool),
}

impl Reduction {
    fn combine(self, a: u32, b: u32) -> u32 {
        match self {
            Self::Float(how) => min_max(f32::from_bits(a), f32::from_bits(b), how).to_bits(),
            Self::Signed(true) => (a as i32).max(b as i32) as u32,
            Self::Signed(false) => (a as i32).min(b as i32) as u32,
            Self::Unsigned(true) => a.max(b),
            Self::Unsigned(false) => a.min(b),
        }
    }
}

/// A decoded load or store.
#[derive(Debug, Clone)]
pub struct AccessOp {
    pub(super) load: bool,
    shape: AccessShape,
    repeat: u32,
    /// `.pack::16b` or `.unpack::16b`
    packed: bool,
    /// Half-split offset of `.16x32bx2`.
    split: u32,
    pub(super) regs: Box<[R32]>,
    address: Addr,
    pub(super) reduction: Option<(Reduction, R32)>,
}

/// Which accesses a wait covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitOp {
    /// `wait::ld`
    Loads,
    /// `wait::st`
    Stores,
}

/// An access whose wait was not executed yet.
#[derive(Debug, Clone, Copy)]
struct Span {
    warp: u32,
    lane: u32,
    lanes: u32,
    column: u32,
    columns: u32,
    operation: u64,
}

impl Span {
    fn meets(&self, column: u32, columns: u32) -> bool {
        self.column < column + columns && column < self.column + self.columns
    }
}

/// Accesses of a CTA before their waits.
#[derive(Debug, Clone, Default)]
pub(super) struct Outstanding {
    loads: Vec<Span>,
    stores: Vec<Span>,
}

impl Outstanding {
    /// What an asynchronous operation that reads or writes these columns runs into, in words.
    pub(super) fn conflict(&self, column: u32, columns: u32, write: bool) -> Option<String> {
        let hit = |spans: &[Span]| spans.iter().find(|span| span.meets(column, columns)).map(|span| span.warp);
        if let Some(warp) = hit(&self.stores) {
            return Some(format!("columns {column}..{} while a st of warp {warp} has no wait::st", column + columns));
        }
        let warp = if write { hit(&self.loads)? } else { return None };
        Some(format!("overwrites columns {column}..{} while a ld of warp {warp} has no wait::ld", column + columns))
    }
}

fn decode(decoder: &mut Decoder<'_>, instruction: &Instruction, load: bool) -> Result<Op, Refusal> {
    let shape = instruction
        .choose(&[
            ("32x32b", AccessShape::X32b32),
            ("16x64b", AccessShape::X64b16),
            ("16x128b", AccessShape::X128b16),
            ("16x256b", AccessShape::X256b16),
        ])
        .unwrap_or(AccessShape::X32b2x16);
    let numbers = [("x1", 1), ("x2", 2), ("x4", 4), ("x8", 8), ("x16", 16), ("x32", 32), ("x64", 64), ("x128", 128)];
    let repeat = instruction.choose(&numbers).unwrap_or(1);
    if repeat > shape.max_repeat() {
        return Refusal::invalid(format!("expected at most .x{}, got .x{repeat}", shape.max_repeat()));
    }
    let reduces = instruction.has("red");
    let o = &instruction.operands;
    let split = shape == AccessShape::X32b2x16;
    let (values, address, offset) = match (load, reduces) {
        (true, true) => (0, 2, 3),
        (true, false) => (0, 1, 2),
        (false, _) => (if split { 2 } else { 1 }, 0, 1),
    };
    let split = match (split, o.get(offset)) {
        (true, Some(immediate)) => match decoder.immediate(immediate)? {
            offset @ 0..512 => offset as u32,
            offset => return Refusal::invalid(format!("expected a split offset in 0..512, got {offset}")),
        },
        (true, None) => return Refusal::invalid("expected a split offset"),
        (false, Some(_)) if load => return Refusal::invalid("only .16x32bx2 has a split offset"),
        _ => 0,
    };
    let elements = decoder.elements(&o[values]);
    let wanted = shape.registers(repeat) as usize;
    if elements.len() != wanted {
        return Refusal::invalid(format!("expected {wanted} registers, got {}", elements.len()));
    }
    let register = |d: &mut Decoder<'_>, e: &Operand| if load { d.dst32(e) } else { d.src32(e) };
    let regs = elements.iter().map(|e| register(decoder, e)).collect::<Result<Box<[R32]>, _>>()?;
    let reduction = if reduces {
        let max = instruction.has("max");
        let how = match instruction.choose(&[("f32", 0), ("s32", 1)]) {
            Some(0) => {
                let (nan, abs) = (instruction.has("NaN"), instruction.has("abs"));
                Reduction::Float(MinMax { max, nan, abs, ..MinMax::default() })
            }
            _ if instruction.has("NaN") || instruction.has("abs") => {
                return Refusal::invalid(".abs and .NaN need .f32");
            }
            Some(_) => Reduction::Signed(max),
            None => Reduction::Unsigned(max),
        };
        let [result] = decoder.elements(&o[1]) else {
            return Refusal::invalid("expected one register for the reduction");
        };
        Some((how, decoder.dst32(result)?))
    } else {
        None
    };
    let address = decoder.address(&o[address])?;
    let packed = instruction.has("pack::16b") || instruction.has("unpack::16b");
    let access = AccessOp { load, shape, repeat, packed, split, regs, address, reduction };
    Ok(Op::Tcgen05(Box::new(Tcgen05Op::Access(access))))
}

pub(super) fn decode_load(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    decode(decoder, instruction, true)
}

pub(super) fn decode_store(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    decode(decoder, instruction, false)
}

pub(super) fn decode_wait(_: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let wait = if instruction.has("wait::ld") { WaitOp::Loads } else { WaitOp::Stores };
    Ok(Op::Tcgen05(Box::new(Tcgen05Op::Wait(wait))))
}

/// `wait::ld`, `wait::st`: all earlier accesses of the executing threads.
pub(super) fn wait(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: WaitOp) -> Result<Outcome, Fault> {
    if let Some(outcome) = machine.require_aligned(warp, mask) {
        return Ok(outcome);
    }
    let accesses = &mut memory(machine, warp.cta).state.accesses;
    let spans = if op == WaitOp::Loads { &mut accesses.loads } else { &mut accesses.stores };
    let (done, rest) = spans.drain(..).partition(|span| span.warp == warp.index);
    *spans = rest;
    if op == WaitOp::Loads {
        warp.loading.clear();
    }
    let done: Vec<Span> = done;
    for Span { operation, .. } in done {
        machine.notify(warp, mask, &Event::Complete { operation });
        machine.notify(warp, mask, &Event::Waited { operation, reads_only: false });
    }
    Ok(Outcome::Next)
}

/// Executes a load or store of the whole warp.
pub(super) fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &AccessOp) -> Result<Outcome, Fault> {
    if let Some(outcome) = machine.require_aligned(warp, mask) {
        return Ok(outcome);
    }
    let fail = |machine: &Cluster, message: String| machine.finding(Kind::TensorMemory, warp, mask, message);
    let addresses = shared::addresses(warp, op.address);
    let address = addresses[mask.trailing_zeros() as usize] as u32;
    if crate::exec::lanes(mask).any(|lane| addresses[lane] as u32 != address) {
        return Err(fail(machine, "the tensor-memory address differs between lanes".to_string()));
    }
    let partition = 32 * (warp.index % 4);
    let allowed = [partition, partition + 16];
    let allowed = if op.shape == AccessShape::X32b32 { &allowed[..1] } else { &allowed };
    let owner = format!("warp {} owns lanes {partition}..", warp.index);
    // Hardware takes the place within the warp's own lanes, and kernels in use give lane 0 in every warp.
    let relative = partition != 0 && address >> 16 < 32;
    let absolute = if relative { address + (partition << 16) } else { address };
    let (lane, column) =
        check_lane(absolute, allowed).map_err(|message| fail(machine, format!("{message}: {owner}")))?;
    if relative {
        let mut finding =
            fail(machine, format!("address {address:#010x}: the lane is counted from the warp's first: {owner}"));
        finding.warning = true;
        machine.report(*finding);
    }
    let columns = op.shape.columns(op.repeat, op.packed);
    let second = (op.shape == AccessShape::X32b2x16).then_some(column + op.split);
    for first in [Some(column), second].into_iter().flatten() {
        check_columns(machine, warp.cta, first, columns).map_err(|message| fail(machine, message))?;
    }
    let operation = machine.engine.operation();
    machine.notify(warp, mask, &Event::Issue { operation });
    for first in [Some(column), second].into_iter().flatten() {
        let span = Span { warp: warp.index, lane, lanes: op.shape.lanes(), column: first, columns, operation };
        check_order(machine, warp, mask, op.load, &span);
        observe(machine, warp, op.load, &span);
        let accesses = &mut memory(machine, warp.cta).state.accesses;
        if op.load { accesses.loads.push(span) } else { accesses.stores.push(span) }
    }
    let bytes = u64::from(mask.count_ones() * op.shape.registers(op.repeat) * 4);
    machine.counters.add_bytes(if op.load { Path::TensorMemoryLoad } else { Path::TensorMemoryStore }, bytes);
    if op.load {
        warp.loading.push(warp.pc());
        load(machine, warp, mask, op, (lane, column));
    } else {
        store(machine, warp, mask, op, (lane, column));
    }
    Ok(Outcome::Next)
}

/// Reports accesses that are not ordered against others: stores without wait, asynchronous operations in flight.
fn check_order(machine: &mut Cluster, warp: &Warp, mask: u32, load: bool, span: &Span) {
    let (column, columns) = (span.column, span.columns);
    let accesses = &memory(machine, warp.cta).state.accesses;
    let same_lanes = |other: &&Span| other.lane < span.lane + span.lanes && span.lane < other.lane + other.lanes;
    let stored = accesses.stores.iter().filter(same_lanes).any(|other| other.meets(column, columns));
    let loaded = !load && accesses.loads.iter().filter(same_lanes).any(|other| other.meets(column, columns));
    let what = if load { "ld of" } else { "st to" };
    let range = format!("{what} columns {column}..{}", column + columns);
    let mut messages = Vec::new();
    if stored && load {
        messages.push(format!("{range} before the wait::st of an earlier st"));
    }
    if loaded {
        // What is stored mostly depends on what was loaded; then the order is kept, and kernels rely on it.
        let message = format!("{range} before the wait::ld of an earlier ld");
        let mut finding = machine.finding(Kind::TensorMemory, warp, mask, message);
        finding.warning = true;
        machine.report(*finding);
    }
    if let Some(pending) = super::queue::in_flight(machine, warp.cta, column, columns, !load) {
        messages.push(format!("{range} while {pending} is in flight: no commit and mbarrier wait came between"));
    }
    for message in messages {
        let finding = machine.finding(Kind::TensorMemory, warp, mask, message);
        machine.report(*finding);
    }
}

fn observe(machine: &mut Cluster, warp: &Warp, load: bool, span: &Span) {
    if machine.observer.is_none() {
        return;
    }
    let rows: [u64; WARP] = std::array::from_fn(|row| u64::from((span.lane + row as u32) << 16 | span.column));
    let lanes = if span.lanes == 32 { u32::MAX } else { 0xffff };
    let access = Access {
        space: Space::Tensor,
        usage: if load { Use::Read } else { Use::Write },
        proxy: Proxy::Generic,
        order: Order::Weak,
        bytes: Bytes::Lanes(&rows, span.columns),
        operation: span.operation,
    };
    machine.observe(warp, lanes, &access);
}

fn load(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &AccessOp, (lane0, column0): (u32, u32)) {
    let check = machine.options.checks.uninitialised;
    let tensor = memory(machine, warp.cta);
    let (mut written, mut unwritten) = (0, None);
    let mut reduced = [0; WARP];
    for (r, reg) in (0..).zip(&op.regs) {
        let values = std::array::from_fn(|lane| {
            let cell = op.shape.cell(lane as u32, r, op.split, op.packed);
            let at = ((lane0 + cell.lane) * COLUMNS + column0 + cell.column) as usize;
            let pair = if op.packed { 2 } else { 1 };
            if check && !tensor.init.all(at, pair) {
                unwritten = unwritten.or(Some((lane0 + cell.lane, column0 + cell.column)));
            } else {
                written += 1;
            }
            if op.packed { tensor.cells[at] & 0xffff | tensor.cells[at + 1] << 16 } else { tensor.cells[at] }
        });
        warp.regs.set::<u32>(*reg, mask, &values);
        if let Some((how, _)) = op.reduction {
            reduced = std::array::from_fn(|l| if r == 0 { values[l] } else { how.combine(reduced[l], values[l]) });
        }
    }
    if let Some((_, reg)) = op.reduction {
        warp.regs.set::<u32>(reg, mask, &reduced);
    }
    if let Some((lane, column)) = unwritten {
        // Rows between those of a 64-row accumulator are read and thrown away by some programs.
        let message = format!("nobody wrote tensor-memory lane {lane} column {column}");
        let mut finding = machine.finding(Kind::Uninitialised, warp, mask, message);
        finding.warning = written > 0;
        machine.report(*finding);
    }
}

/// Upper half of a cell after a 16-bit write: not established, so a NaN in every reading.
pub(super) const UNKNOWN_HALF: u32 = 0x7fff_0000;

fn store(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &AccessOp, (lane0, column0): (u32, u32)) {
    let tensor = memory(machine, warp.cta);
    for (r, reg) in (0..).zip(&op.regs) {
        let values = warp.regs.get::<u32>(*reg);
        for lane in crate::exec::lanes(mask) {
            let cell = op.shape.cell(lane as u32, r, op.split, op.packed);
            let at = ((lane0 + cell.lane) * COLUMNS + column0 + cell.column) as usize;
            if op.packed {
                tensor.cells[at] = values[lane] & 0xffff | UNKNOWN_HALF;
                tensor.cells[at + 1] = values[lane] >> 16 | UNKNOWN_HALF;
                tensor.init.set(at, 2);
            } else {
                tensor.cells[at] = values[lane];
                tensor.init.set(at, 1);
            }
        }
    }
}
