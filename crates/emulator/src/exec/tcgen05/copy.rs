//! cp and shift (ISA notes, tcgen05 3).

use super::queue::{Footprint, Work, push, single_lane};
use super::{Tcgen05Op, check_columns, check_lane, group_of, memory, ranks};
use crate::check::{Access, Bytes, Order, Proxy, Use};
use crate::decode::{Addr, Decoder, Refusal};
use crate::exec::Op;
use crate::exec::memory as shared;
use crate::exec::operand_tile::Issuer;
use crate::finding::Kind;
use crate::layout::operand::{Major, Operand};
use crate::layout::tensor_memory::{CopyFormat, CopyShape};
use crate::machine::{Cluster, Fault, Outcome, R64, Warp};
use crate::memory::{COLUMNS, LANES, Space};
use crate::parse::ast::Instruction;
use crate::trace::Path;

/// A decoded cp.
#[derive(Debug, Clone)]
pub struct CopyOp {
    group: u32,
    shape: CopyShape,
    format: CopyFormat,
    address: Addr,
    descriptor: R64,
}

/// A cp with its operands read.
#[derive(Debug, Clone)]
pub(super) struct CopyJob {
    shape: CopyShape,
    format: CopyFormat,
    ranks: Vec<u32>,
    lane: u32,
    column: u32,
    source: Operand,
}

pub(super) fn decode_copy(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let multicast = instruction.modifiers.iter().find(|m| m.starts_with("warpx")).map(String::as_str);
    let size = instruction.choose(&[("128x256b", 0), ("4x256b", 1), ("128x128b", 2), ("64x128b", 3), ("32x128b", 4)]);
    let shape = match (size, multicast) {
        (Some(0), None) => CopyShape::X256b128,
        (Some(1), None) => CopyShape::X256b4,
        (Some(2), None) => CopyShape::X128b128,
        (Some(3), Some("warpx2::02_13")) => CopyShape::X128b64Pairs02,
        (Some(3), Some("warpx2::01_23")) => CopyShape::X128b64Pairs01,
        (Some(4), Some("warpx4")) => CopyShape::X128b32,
        _ => return Refusal::invalid("the shape and the .warpx modifier do not go together"),
    };
    let packed = instruction.choose(&[("b4x16_p64", CopyFormat::Nibbles), ("b6x16_p32", CopyFormat::SixBit)]);
    if packed.is_some() != instruction.has("b8x16") {
        return Refusal::invalid(".b8x16 goes with .b4x16_p64 or .b6x16_p32");
    }
    let address = decoder.address(&instruction.operands[0])?;
    let descriptor = decoder.src64(&instruction.operands[1])?;
    let format = packed.unwrap_or(CopyFormat::Bytes);
    let group = group_of(instruction);
    Ok(Op::Tcgen05(Box::new(Tcgen05Op::Copy(CopyOp { group, shape, format, address, descriptor }))))
}

pub(super) fn issue_copy(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &CopyOp) -> Result<Outcome, Fault> {
    let thread = single_lane(machine, warp, mask)?;
    let ranks = ranks(machine, warp, mask, op.group)?;
    let fail = |machine: &Cluster, message: String| machine.finding(Kind::TensorMemory, warp, mask, message);
    let address = shared::addresses(warp, op.address)[thread] as u32;
    // Only the four-row shape may start inside a partition: a base lane of 31 reaches the last lane of each.
    let any: Vec<u32> = (0..32).collect();
    let allowed = if op.shape == CopyShape::X256b4 { &any[..] } else { &[0] };
    let (lane, column) = check_lane(address, allowed).map_err(|message| fail(machine, message))?;
    let columns = 4 * op.shape.units();
    for &rank in &ranks {
        check_columns(machine, rank, column, columns).map_err(|message| fail(machine, message))?;
    }
    let bits = warp.regs.get::<u64>(op.descriptor)[thread];
    let source = Operand::from_tcgen05(bits, false)
        .and_then(|source| {
            let bytes = 16 * op.shape.units();
            source.check(Major::K, 8, bytes).map(|()| source)
        })
        .map_err(|error| fail(machine, error.to_string()))?;
    let footprints = ranks.iter().map(|&rank| Footprint { rank, column, columns, write: true }).collect();
    let bytes = u64::from(op.shape.rows() * op.shape.units() * 16) * ranks.len() as u64;
    machine.counters.add_bytes(Path::TensorMemoryCopy, bytes);
    let job = CopyJob { shape: op.shape, format: op.format, ranks, lane, column, source };
    Ok(push(machine, warp, mask, Work::Copy(job), footprints))
}

/// Tells the checkers that an operation touches as many columns, from one on, of each of some lanes.
pub(super) fn observe(
    machine: &mut Cluster,
    issuer: Issuer,
    rank: u32,
    usage: Use,
    cells: impl Iterator<Item = (u32, u32)>,
    columns: u32,
) {
    if let Some(observer) = &mut machine.observer {
        let actor = crate::check::Actor { cta: rank, ..issuer.actor };
        let starts: Vec<u64> = cells.map(|(lane, column)| u64::from(lane << 16 | column)).collect();
        let access = Access {
            space: Space::Tensor,
            usage,
            proxy: Proxy::Async,
            order: Order::Weak,
            bytes: Bytes::Runs(&starts, columns.into()),
            operation: issuer.operation,
        };
        observer.access(&actor, &access);
    }
}

/// Each CTA of the group reads its own shared memory and writes its own tensor memory.
pub(super) fn run_copy(machine: &mut Cluster, job: &CopyJob, issuer: Issuer) -> Result<(), Fault> {
    let data_bytes = match job.format {
        CopyFormat::Bytes => 16,
        CopyFormat::Nibbles => 8,
        CopyFormat::SixBit => 12,
    };
    for &rank in &job.ranks {
        for row in 0..job.shape.rows() {
            for unit in 0..job.shape.units() {
                let address = job.source.unit(Major::K, row, unit);
                issuer.observe_units(machine, rank, &[address], data_bytes);
                let bytes = job.format.unpack(&issuer.read_unit(machine, rank, address, data_bytes)?);
                let column = job.column + 4 * unit;
                let cells = job.shape.lanes(row).map(|lane| (lane + job.lane, column));
                observe(machine, issuer, rank, Use::Write, cells, 4);
                for lane in job.shape.lanes(row) {
                    let tensor = memory(machine, rank);
                    let at = ((lane + job.lane) * COLUMNS + column) as usize;
                    for (cell, word) in tensor.cells[at..at + 4].iter_mut().zip(bytes.as_chunks::<4>().0) {
                        *cell = u32::from_le_bytes(*word);
                    }
                    tensor.init.set(at, 4);
                }
            }
        }
    }
    Ok(())
}

/// A decoded shift.
#[derive(Debug, Clone)]
pub struct ShiftOp {
    group: u32,
    address: Addr,
}

/// A shift with its operands read.
#[derive(Debug, Clone)]
pub(super) struct ShiftJob {
    ranks: Vec<u32>,
    column: u32,
}

/// Columns that a shift moves.
const SHIFT_COLUMNS: u32 = 8;

pub(super) fn decode_shift(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let op = ShiftOp { group: group_of(instruction), address: decoder.address(&instruction.operands[0])? };
    Ok(Op::Tcgen05(Box::new(Tcgen05Op::Shift(op))))
}

pub(super) fn issue_shift(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &ShiftOp) -> Result<Outcome, Fault> {
    let thread = single_lane(machine, warp, mask)?;
    let ranks = ranks(machine, warp, mask, op.group)?;
    let fail = |machine: &Cluster, message: String| machine.finding(Kind::TensorMemory, warp, mask, message);
    let address = shared::addresses(warp, op.address)[thread] as u32;
    let (_, column) = check_lane(address, &[0, 32, 64, 96]).map_err(|message| fail(machine, message))?;
    for &rank in &ranks {
        check_columns(machine, rank, column, SHIFT_COLUMNS).map_err(|message| fail(machine, message))?;
    }
    let footprint = |&rank: &u32| Footprint { rank, column, columns: SHIFT_COLUMNS, write: true };
    let footprints = ranks.iter().map(footprint).collect();
    Ok(push(machine, warp, mask, Work::Shift(ShiftJob { ranks, column }), footprints))
}

/// Every lane but the last of its partition takes the row below.
pub(super) fn run_shift(machine: &mut Cluster, job: &ShiftJob, issuer: Issuer) {
    for &rank in &job.ranks {
        let lanes = (0..LANES).filter(|lane| lane % 32 != 31);
        observe(machine, issuer, rank, Use::Read, lanes.clone().map(|lane| (lane + 1, job.column)), SHIFT_COLUMNS);
        observe(machine, issuer, rank, Use::Write, lanes.clone().map(|lane| (lane, job.column)), SHIFT_COLUMNS);
        for lane in lanes {
            let tensor = memory(machine, rank);
            let at = (lane * COLUMNS + job.column) as usize;
            let below = at + COLUMNS as usize;
            for column in 0..SHIFT_COLUMNS as usize {
                tensor.cells[at + column] = tensor.cells[below + column];
                let written = tensor.init.all(below + column, 1);
                if written { tensor.init.set(at + column, 1) } else { tensor.init.clear(at + column, 1) }
            }
        }
    }
}
