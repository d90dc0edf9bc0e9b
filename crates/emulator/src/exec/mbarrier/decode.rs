//! Forms of the mbarrier instructions.

use super::{MbarrierOp, Phase, Place};
use crate::check::{Order, Scope};
use crate::decode::{Decoder, Refusal};
use crate::exec::Op;
use crate::exec::memory::{scope_of, space_of};
use crate::exec::multicast::{self, Multicast};
use crate::isa::Target;
use crate::isa::table::{ALL, Row};
use crate::machine::R64;
use crate::parse::ast::{Instruction, Operand};

/// Why newer forms are not executed.
const REPORTING: &str = "serves transfer-validity reporting, whose behaviour is not established";

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new("mbarrier init {shared|shared::cta} b64", "[a], count", decode_init, "9.7.13.15.9"),
    Row::new("mbarrier init {shared|shared::cta} layout::v0 b64", "[a], count", decode_init, "9.7.15.16.12")
        .on(ALL, 94),
    Row::new("mbarrier inval {shared|shared::cta} b64", "[a]", decode_inval, "9.7.13.15.10"),
    Row::new(
        "mbarrier (arrive|arrive_drop) {expect_tx} {release|relaxed} {cta|cluster} {shared|shared::cta|shared::cluster} b64",
        "state, [a]{, count}",
        decode_arrive,
        "9.7.13.15.13",
    ),
    Row::new(
        "mbarrier (arrive|arrive_drop) {expect_tx} {release|relaxed} {cluster} shared::cluster (multicast::cluster::16b|multicast::cluster::32b) b64",
        "state, [a]{, count}, mask",
        decode_arrive,
        "9.7.15.16.16",
    )
    .on(Target::Sm107.bit(), 94),
    Row::new(
        "mbarrier (arrive|arrive_drop) noComplete {release} {cta} {shared|shared::cta} b64",
        "state, [a], count",
        decode_arrive,
        "9.7.13.15.13",
    ),
    Row::new(
        "mbarrier (expect_tx|complete_tx) {relaxed} {cta|cluster} {shared|shared::cta|shared::cluster} b64",
        "[a], bytes",
        decode_transaction,
        "9.7.13.15.11",
    ),
    Row::new(
        "mbarrier (expect_tx|complete_tx) {relaxed} {cta|cluster} shared::cluster (multicast::cluster::16b|multicast::cluster::32b) b64",
        "[a], bytes, mask",
        decode_transaction,
        "9.7.15.16.14",
    )
    .on(Target::Sm107.bit(), 94),
    Row::new(
        "mbarrier (test_wait|try_wait) {parity} {acquire|relaxed} {cta|cluster} {shared|shared::cta} b64",
        "d, [a], phase{, hint}",
        decode_wait,
        "9.7.13.15.16",
    ),
    Row::new("mbarrier pending_count b64", "count, state", decode_pending_count, "9.7.13.15.17"),
    Row::refused("mbarrier init {shared|shared::cta} layout::v1 b64", "[a], count", REPORTING, "3.2"),
    Row::refused("mbarrier check_layout {shared|shared::cta} {layout::v0|layout::v1} b64", "d, [a]", REPORTING, "3.2"),
    Row::refused(
        "mbarrier (test_wait|try_wait) {parity} {acquire|relaxed} {cta|cluster} {shared|shared::cta} (phase_type::primary|phase_type::conditional) {report_mechanism} b64",
        "d, [a], phase{, b, c}",
        REPORTING,
        "3.2",
    ),
];

fn place(decoder: &mut Decoder<'_>, instruction: &Instruction, operand: &Operand) -> Result<Place, Refusal> {
    Ok(Place { space: space_of(instruction), address: decoder.address(operand)? })
}

fn decode_init(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let address = place(decoder, instruction, &instruction.operands[0])?;
    let count = decoder.src32(&instruction.operands[1])?;
    Ok(Op::Mbarrier(MbarrierOp::Init { address, count }))
}

fn decode_inval(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let address = place(decoder, instruction, &instruction.operands[0])?;
    Ok(Op::Mbarrier(MbarrierOp::Invalidate { address }))
}

/// The register of a returned state; `_` asks for none.
fn state(decoder: &mut Decoder<'_>, operand: &Operand) -> Result<Option<R64>, Refusal> {
    match operand {
        Operand::Sink => Ok(None),
        other => decoder.dst64(other).map(Some),
    }
}

fn decode_arrive(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let scope = scope_of(instruction).unwrap_or(Scope::Cta);
    let order = if instruction.has("relaxed") { Order::Relaxed(scope) } else { Order::Release(scope) };
    let expect = instruction.has("expect_tx");
    let state = state(decoder, &instruction.operands[0])?;
    if state.is_some() && instruction.has("shared::cluster") {
        return Refusal::invalid("expected _ instead of a state for a .shared::cluster barrier");
    }
    let address = place(decoder, instruction, &instruction.operands[1])?;
    let mut counts = &instruction.operands[2..];
    let multicast = match counts.split_last() {
        Some((mask, before)) if multicast::asked(instruction) => {
            counts = before;
            Some(Multicast::decode(decoder, instruction, mask)?)
        }
        _ => None,
    };
    let operand = match counts.first() {
        Some(operand) => decoder.src32(operand)?,
        None if expect => return Refusal::invalid("expected the number of bytes"),
        None => decoder.constant32(1),
    };
    Ok(Op::Mbarrier(MbarrierOp::Arrive {
        state,
        address,
        operand,
        expect,
        drop: instruction.has("arrive_drop"),
        no_complete: instruction.has("noComplete"),
        order,
        multicast,
    }))
}

fn decode_transaction(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let address = place(decoder, instruction, &instruction.operands[0])?;
    let bytes = decoder.src32(&instruction.operands[1])?;
    let mask = instruction.operands.get(2);
    let multicast = mask.map(|mask| Multicast::decode(decoder, instruction, mask)).transpose()?;
    let complete = instruction.has("complete_tx");
    Ok(Op::Mbarrier(MbarrierOp::Transaction { address, bytes, complete, multicast }))
}

fn decode_wait(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let scope = scope_of(instruction).unwrap_or(Scope::Cta);
    let order = if instruction.has("relaxed") { Order::Relaxed(scope) } else { Order::Acquire(scope) };
    let d = decoder.dst_pred(&instruction.operands[0])?;
    let address = place(decoder, instruction, &instruction.operands[1])?;
    let phase = match instruction.has("parity") {
        true => Phase::Parity(decoder.src32(&instruction.operands[2])?),
        false => Phase::State(decoder.src64(&instruction.operands[2])?),
    };
    let suspends = instruction.has("try_wait");
    if let Some(hint) = instruction.operands.get(3) {
        if !suspends {
            return Refusal::invalid("a time limit belongs to try_wait");
        }
        decoder.src32(hint)?;
    }
    Ok(Op::Mbarrier(MbarrierOp::Wait { d, address, phase, order, suspends }))
}

fn decode_pending_count(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let d = decoder.dst32(&instruction.operands[0])?;
    let state = decoder.src64(&instruction.operands[1])?;
    Ok(Op::Mbarrier(MbarrierOp::PendingCount { d, state }))
}
