//! Tensor maps made or changed on the device (ISA notes, section 1.6).

use super::mbarrier::{self, Place};
use super::memory::{self, scope_of, space_of};
use super::{Op, lanes};
use crate::check::{Access, Bytes, Event, Order, Proxy, ProxyFence, Scope, Use};
use crate::decode::{Addr, Decoder, Refusal};
use crate::finding::Kind;
use crate::isa::Words;
use crate::isa::table::{BLACKWELL, Row};
use crate::layout::tensor_map::{self, Field};
use crate::machine::{Cluster, Fault, Outcome, Reg, Warp};
use crate::memory::Space;
use crate::parse::ast::Instruction;

/// Bytes of a tensor map.
const MAP_BYTES: u32 = 128;

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new(
        "tensormap replace tile (global_address|rank|box_dim|global_dim|global_stride|element_stride|elemtype|interleave_layout|swizzle_mode|fill_mode) {global|shared::cta} b1024 (b32|b64)",
        "[a], value{, new}",
        decode_replace,
        "9.7.9.26",
    )
    .needs(Words::Family),
    Row::new(
        "tensormap replace tile swizzle_atomicity {global|shared::cta} b1024 b32",
        "[a], value",
        decode_replace,
        "9.7.9.26",
    )
    .on(BLACKWELL, 86)
    .needs(Words::Family),
    Row::new(
        "tensormap cp_fenceproxy global shared::cta tensormap::generic release (cta|cluster|gpu|sys) sync aligned",
        "[dst], [src], size",
        decode_publish,
        "9.7.13.15.18",
    ),
];

/// A decoded instruction of the family.
#[derive(Debug, Clone)]
pub enum TensorMapOp {
    /// `tensormap.replace`
    Replace {
        /// The record, in global or shared memory.
        address: Place,
        /// The field; the ordinal of dimensions is inside.
        field: Field,
        /// Its new value.
        value: Reg,
    },
    /// `tensormap.cp_fenceproxy`
    Publish {
        /// Global memory.
        to: Addr,
        /// Shared memory.
        from: Addr,
        /// Scope of the release.
        scope: Scope,
    },
}

fn expect_map_bytes(decoder: &Decoder<'_>, instruction: &Instruction, operand: usize) -> Result<(), Refusal> {
    match decoder.immediate(&instruction.operands[operand])? {
        128 => Ok(()),
        other => Refusal::invalid(format!("expected 128 bytes, got {other}")),
    }
}

fn decode_replace(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let o = &instruction.operands;
    let address = Place { space: space_of(instruction), address: decoder.address(&o[0])? };
    let by_dimension: Option<fn(usize) -> Field> = instruction.choose(&[
        ("box_dim", Field::BoxDim as fn(usize) -> Field),
        ("global_dim", Field::GlobalDim),
        ("global_stride", Field::GlobalStride),
        ("element_stride", Field::ElementStride),
    ]);
    let (field, value) = match (by_dimension, o.get(2)) {
        (Some(field), Some(value)) => {
            let ordinal = decoder.immediate(&o[1])?;
            (field(usize::try_from(ordinal).unwrap_or(usize::MAX)), value)
        }
        (None, None) => {
            let field = instruction.choose(&[
                ("global_address", Field::GlobalAddress),
                ("rank", Field::Rank),
                ("elemtype", Field::ElementType),
                ("interleave_layout", Field::Interleave),
                ("swizzle_mode", Field::SwizzleMode),
                ("swizzle_atomicity", Field::SwizzleAtomicity),
                ("fill_mode", Field::FillMode),
            ]);
            (field.unwrap_or(Field::Rank), &o[1])
        }
        _ => return Refusal::invalid("expected an ordinal with the fields of dimensions, and nowhere else"),
    };
    let value = if instruction.has("b64") { Reg::R64(decoder.src64(value)?) } else { Reg::R32(decoder.src32(value)?) };
    Ok(Op::TensorMap(TensorMapOp::Replace { address, field, value }))
}

fn decode_publish(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    expect_map_bytes(decoder, instruction, 2)?;
    let to = decoder.address(&instruction.operands[0])?;
    let from = decoder.address(&instruction.operands[1])?;
    let scope = scope_of(instruction).unwrap_or(Scope::Gpu);
    Ok(Op::TensorMap(TensorMapOp::Publish { to, from, scope }))
}

/// Executes an instruction of the family.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &TensorMapOp) -> Outcome {
    match *op {
        TensorMapOp::Replace { address, field, value } => {
            replace(machine, warp, mask, address, field, value).map_or_else(Outcome::Fault, |()| Outcome::Next)
        }
        TensorMapOp::Publish { to, from, scope } => {
            if let Some(outcome) = machine.require_aligned(warp, mask) {
                return outcome;
            }
            publish(machine, warp, mask, to, from, scope).map_or_else(Outcome::Fault, |()| Outcome::Yield)
        }
    }
}

fn observe(machine: &mut Cluster, warp: &Warp, lane: usize, space: Space, usage: Use, address: u64) {
    let bytes = Bytes::Range(address, MAP_BYTES.into());
    let access = Access { space, usage, proxy: Proxy::Generic, order: Order::Weak, bytes, operation: 0 };
    machine.observe(warp, 1 << lane, &access);
}

/// The record at an address, as bytes; a field that nobody wrote is 0 until it is replaced.
fn replace(
    machine: &mut Cluster,
    warp: &mut Warp,
    mask: u32,
    place: Place,
    field: Field,
    value: Reg,
) -> Result<(), Fault> {
    let mut at = memory::addresses(warp, place.address);
    let spaces = memory::resolve(machine, warp, mask, place.space, &mut at)?;
    memory::check_alignment(machine, warp, mask, &at, MAP_BYTES)?;
    for lane in lanes(mask) {
        observe(machine, warp, lane, spaces[lane], Use::Atomic, at[lane]);
        let mut record = [0; MAP_BYTES as usize];
        memory::read(machine, warp, lane, spaces[lane], at[lane], &mut record)?;
        let value = warp.regs.lane_bits(value, lane) as u64;
        if let Err(error) = tensor_map::replace(&mut record, field, value) {
            return Err(machine.finding(Kind::TensorMap, warp, 1 << lane, error.to_string()));
        }
        memory::write(machine, warp, lane, spaces[lane], at[lane], &record)?;
    }
    Ok(())
}

/// The warp copies one record from shared to global memory and releases it to the tensor-map proxy.
fn publish(machine: &mut Cluster, warp: &mut Warp, mask: u32, to: Addr, from: Addr, scope: Scope) -> Result<(), Fault> {
    let lane = mask.trailing_zeros() as usize;
    let source = Place { space: memory::MemorySpace::SharedCta, address: from };
    let from = u64::from(mbarrier::shared_addresses(machine, warp, mask, source, true)?[lane]);
    let to = memory::addresses(warp, to)[lane];
    for address in [from, to] {
        if !address.is_multiple_of(MAP_BYTES.into()) {
            let error =
                crate::memory::AccessError::Misaligned(format!("{address:#x} is not a multiple of {MAP_BYTES}"));
            return Err(machine.access_fault(error, warp, 1 << lane));
        }
    }
    observe(machine, warp, lane, Space::Shared, Use::Read, from);
    let mut record = [0; MAP_BYTES as usize];
    memory::read(machine, warp, lane, Space::Shared, from, &mut record)?;
    observe(machine, warp, lane, Space::Global, Use::Write, to);
    memory::write(machine, warp, lane, Space::Global, to, &record)?;
    machine.notify(warp, mask, &Event::ProxyFence { fence: ProxyFence::TensorMap });
    machine.notify(warp, mask, &Event::Fence { order: Order::Release(scope) });
    Ok(())
}
