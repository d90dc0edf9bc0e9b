//! Tensor copies and reductions (ISA notes, section 2.2): the instructions. `run` is what the engine does.

mod run;
#[cfg(test)]
mod tests;

use super::bulk_copy::tail;
use super::mbarrier::{self, Place};
use super::memory::{self, MemorySpace};
use super::multicast::{self, Multicast};
use super::reduction::{Function, Reduction};
use super::{Op, lanes, transfer};
use crate::check::{Access, Bytes, Event, Order, Proxy, Use};
use crate::decode::{Decoder, Refusal};
use crate::exec::copy_groups::Family;
use crate::finding::Kind;
use crate::isa::table::{BLACKWELL, Row};
use crate::isa::{Target, Type, Words};
use crate::layout::tensor_map::{self, Map};
use crate::machine::{Cluster, Fault, Outcome, R32, Warp};
use crate::memory::{AccessError, Space};
use crate::parse::ast::{Instruction, Operand};
use bakewell_core::tensor_map::MapType;
use run::TensorCopy;

const IM2COL: &str = "im2col copies are not modelled";
const OVERRIDE: &str = "the behaviour of .override is not established";

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new(
        "cp async bulk tensor (1d|2d|3d|4d|5d) (shared::cta|shared::cluster) global {tile} mbarrier::complete_tx::bytes {multicast::cluster} {L2::cache_hint}",
        "[dst], [map, coordinates], [bar]{, mask}{, policy}",
        decode_load,
        "9.7.9.25.5.2",
    ),
    Row::new(
        "cp async bulk tensor (1d|2d|3d|4d|5d) (shared::cta|shared::cluster) global {tile|tile::gather4} mbarrier::complete_tx::bytes {multicast::cluster} {cta_group::1|cta_group::2} {L2::cache_hint}",
        "[dst], [map, coordinates], [bar]{, mask}{, policy}",
        decode_load,
        "9.7.9.25.5.2",
    )
    .on(BLACKWELL, 86)
    .needs(Words::Family),
    Row::new(
        "cp async bulk tensor 2d shared::cta global tile::gather4 mbarrier::complete_tx::bytes {L2::cache_hint}",
        "[dst], [map, coordinates], [bar]{, policy}",
        decode_load,
        "9.7.9.25.5.2",
    )
    .on(BLACKWELL, 86),
    Row::new(
        "cp async bulk tensor (1d|2d|3d|4d|5d) shared::cluster global {tile|tile::gather4} mbarrier::complete_tx::bytes (multicast::cluster::16b|multicast::cluster::32b) {cta_group::1|cta_group::2} {L2::cache_hint}",
        "[dst], [map, coordinates], [bar], mask{, policy}",
        decode_load,
        "9.7.9.25.5.2",
    )
    .on(Target::Sm107.bit(), 94),
    Row::new(
        "cp async bulk tensor (1d|2d|3d|4d|5d) global shared::cta {tile} bulk_group {L2::cache_hint}",
        "[map, coordinates], [src]{, policy}",
        decode_store,
        "9.7.9.25.5.2",
    ),
    Row::new(
        "cp async bulk tensor 2d global shared::cta tile::scatter4 bulk_group {L2::cache_hint}",
        "[map, coordinates], [src]{, policy}",
        decode_store,
        "9.7.9.25.5.2",
    )
    .on(BLACKWELL, 86)
    .needs(Words::Family),
    Row::new(
        "cp reduce async bulk tensor (1d|2d|3d|4d|5d) global shared::cta (add|min|max|inc|dec|and|or|xor) {tile} bulk_group {L2::cache_hint}",
        "[map, coordinates], [src]{, policy}",
        decode_store,
        "9.7.9.25.5.3",
    ),
    Row::new(
        "cp async bulk prefetch tensor (1d|2d|3d|4d|5d) L2 global {tile} {L2::cache_hint}",
        "[map, coordinates]{, policy}",
        decode_prefetch,
        "9.7.9.25.5.4",
    ),
    Row::new(
        "cp async bulk prefetch tensor 2d L2 global tile::gather4 {L2::cache_hint}",
        "[map, coordinates]{, policy}",
        decode_prefetch,
        "9.7.9.25.5.4",
    )
    .on(BLACKWELL, 86)
    .needs(Words::Family),
    Row::new(
        "cp async bulk prefetch tensor (1d|2d|3d|4d|5d) L2 global {tile|tile::gather4} L2::evict_last",
        "[map, coordinates]",
        decode_prefetch,
        "9.7.9.25.5.4",
    )
    .on(Target::Sm107.bit(), 94),
    Row::refused(
        "cp async bulk tensor (3d|4d|5d) (shared::cta|shared::cluster) global (im2col|im2col::w|im2col::w::128) mbarrier::complete_tx::bytes {multicast::cluster} {cta_group::1|cta_group::2} {L2::cache_hint}",
        "[dst], [map, coordinates], [bar]{, offsets}{, mask}{, policy}",
        IM2COL,
        "2.2",
    ),
    Row::refused(
        "cp async bulk tensor (3d|4d|5d) global shared::cta im2col_no_offs bulk_group {L2::cache_hint}",
        "[map, coordinates], [src]{, policy}",
        IM2COL,
        "2.2",
    ),
    Row::refused(
        "cp async bulk prefetch tensor (3d|4d|5d) L2 global (im2col|im2col::w|im2col::w::128) {L2::cache_hint}",
        "[map, coordinates]{, offsets}{, policy}",
        IM2COL,
        "2.2",
    ),
    Row::refused(
        "cp async bulk tensor (1d|2d|3d|4d|5d) (shared::cta|shared::cluster) global {tile} mbarrier::complete_tx::bytes override::global_address {multicast::cluster} {cta_group::1|cta_group::2} {L2::cache_hint}",
        "[dst], [map, coordinates], [bar]{, a, b, c}",
        OVERRIDE,
        "2.1",
    ),
];

/// What a tensor copy does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Global to shared, with a barrier.
    Load,
    /// Shared to global, in a group.
    Store,
    /// A reduction of shared into global elements, in a group.
    Reduce(Function),
    /// Nowhere: bounds are checked.
    Prefetch,
}

/// A decoded instruction of the family.
#[derive(Debug, Clone)]
pub struct TensorCopyOp {
    target: Target,
    direction: Direction,
    /// Shared memory; unused by a prefetch.
    shared: Option<Place>,
    map: Place,
    /// Coordinates, innermost first; column and four rows for gather4 and scatter4.
    coordinates: Box<[R32]>,
    rank: usize,
    four_rows: bool,
    barrier: Option<Place>,
    mask: Option<Multicast>,
    pair: bool,
}

/// The map and coordinates of `[map, {c0, c1}]`.
fn map_operand(
    decoder: &mut Decoder<'_>,
    instruction: &Instruction,
    operand: &Operand,
) -> Result<(Place, Box<[R32]>, usize), Refusal> {
    let Operand::Address(address) = operand else {
        return Refusal::invalid("expected a tensor map and coordinates in brackets");
    };
    let [coordinates] = address.rest.as_slice() else {
        return Refusal::invalid("expected one vector of coordinates behind the tensor map");
    };
    let rank = instruction.choose(&[("1d", 1), ("2d", 2), ("3d", 3), ("4d", 4), ("5d", 5)]).unwrap_or(1);
    let four_rows = instruction.has("tile::gather4") || instruction.has("tile::scatter4");
    if four_rows && rank != 2 {
        return Refusal::invalid("expected .2d with four rows");
    }
    let wanted = if four_rows { 5 } else { rank };
    let given = decoder.elements(coordinates);
    if given.len() != wanted {
        return Refusal::invalid(format!("expected {wanted} coordinates, got {}", given.len()));
    }
    let coordinates = given.iter().map(|c| decoder.src32(c)).collect::<Result<_, _>>()?;
    let space = if decoder.is_entry_param(operand) { MemorySpace::Param } else { MemorySpace::Generic };
    Ok((Place { space, address: decoder.base(address)? }, coordinates, rank))
}

fn decode_load(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let o = &instruction.operands;
    let cluster = instruction.has("shared::cluster");
    let multicast = multicast::asked(instruction);
    let pair = instruction.has("cta_group::2");
    if multicast && !cluster {
        return Refusal::invalid("expected .shared::cluster with .multicast::cluster");
    }
    let space = if cluster { MemorySpace::SharedCluster } else { MemorySpace::SharedCta };
    let barrier_space = if pair { MemorySpace::SharedCluster } else { space };
    let (map, coordinates, rank) = map_operand(decoder, instruction, &o[1])?;
    let op = TensorCopyOp {
        target: decoder.target,
        direction: Direction::Load,
        shared: Some(Place { space, address: decoder.address(&o[0])? }),
        map,
        coordinates,
        rank,
        four_rows: instruction.has("tile::gather4"),
        barrier: Some(Place { space: barrier_space, address: decoder.address(&o[2])? }),
        mask: tail(decoder, instruction, 3, multicast)?,
        pair,
    };
    Ok(Op::TensorCopy(Box::new(op)))
}

fn decode_store(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let o = &instruction.operands;
    let (map, coordinates, rank) = map_operand(decoder, instruction, &o[0])?;
    tail(decoder, instruction, 2, false)?;
    let op = TensorCopyOp {
        target: decoder.target,
        direction: Function::of(instruction).map_or(Direction::Store, Direction::Reduce),
        shared: Some(Place { space: MemorySpace::SharedCta, address: decoder.address(&o[1])? }),
        map,
        coordinates,
        rank,
        four_rows: instruction.has("tile::scatter4"),
        barrier: None,
        mask: None,
        pair: false,
    };
    Ok(Op::TensorCopy(Box::new(op)))
}

fn decode_prefetch(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let (map, coordinates, rank) = map_operand(decoder, instruction, &instruction.operands[0])?;
    tail(decoder, instruction, 1, false)?;
    let op = TensorCopyOp {
        target: decoder.target,
        direction: Direction::Prefetch,
        shared: None,
        map,
        coordinates,
        rank,
        four_rows: instruction.has("tile::gather4"),
        barrier: None,
        mask: None,
        pair: false,
    };
    Ok(Op::TensorCopy(Box::new(op)))
}

/// Executes an instruction of the family.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &TensorCopyOp) -> Outcome {
    issue(machine, warp, mask, op).map_or_else(Outcome::Fault, |()| Outcome::Yield)
}

fn issue(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &TensorCopyOp) -> Result<(), Fault> {
    let own = op.shared.is_some_and(|place| place.space == MemorySpace::SharedCta);
    let shared = op.shared.map(|place| mbarrier::shared_addresses(machine, warp, mask, place, own)).transpose()?;
    let barriers = match op.barrier {
        Some(place) => {
            let own = place.space == MemorySpace::SharedCta;
            Some(mbarrier::shared_addresses(machine, warp, mask, place, own)?)
        }
        None => None,
    };
    let mut maps = memory::addresses(warp, op.map.address);
    let spaces = memory::resolve(machine, warp, mask, op.map.space, &mut maps)?;
    for lane in lanes(mask) {
        let operation = machine.engine.operation();
        if op.direction != Direction::Prefetch {
            machine.notify(warp, 1 << lane, &Event::Issue { operation });
        }
        let map = read_map(machine, warp, lane, (spaces[lane], maps[lane]), op, operation)?;
        let coordinates =
            std::array::from_fn(|i| op.coordinates.get(i).map_or(0, |&r| warp.regs.get::<u32>(r)[lane] as i32));
        let copy = TensorCopy {
            actor: Cluster::actor(warp, 1 << lane),
            operation,
            load: op.direction == Direction::Load,
            reduction: element_reduction(machine, warp, lane, op.direction, &map)?,
            map,
            coordinates,
            four_rows: op.four_rows,
            shared: shared.map_or(0, |at| at[lane]),
            barrier: barriers.map_or(0, |at| at[lane]),
            mask: op.mask.map(|mask| mask.masks(warp)[lane]),
            pair: op.pair,
        };
        if op.direction == Direction::Prefetch {
            copy.check_global(machine)?;
            continue;
        }
        check(machine, &copy, op.target)?;
        copy.check_global(machine)?;
        start(machine, warp, lane, copy);
    }
    Ok(())
}

fn start(machine: &mut Cluster, warp: &mut Warp, lane: usize, copy: TensorCopy) {
    let path = if copy.load { crate::trace::Path::TensorLoad } else { crate::trace::Path::TensorStore };
    machine.counters.add_bytes(path, u64::from(copy.transaction_bytes()) * copy.targets().count() as u64);
    if !copy.load {
        warp.copies.issue(Family::Bulk, 1 << lane, copy.operation);
    }
    machine.engine.push(machine.clock, Box::new(move |machine| copy.run(machine)));
}

/// Reads and checks the record; the checkers see a read through the tensor-map proxy.
fn read_map(
    machine: &mut Cluster,
    warp: &Warp,
    lane: usize,
    (space, at): (Space, u64),
    op: &TensorCopyOp,
    operation: u64,
) -> Result<Map, Fault> {
    if !at.is_multiple_of(64) || !matches!(space, Space::Global | Space::Param) {
        let message =
            format!("expected a tensor map in global, constant or parameter memory at a multiple of 64, got {at:#x}");
        return Err(machine.access_fault(AccessError::Misaligned(message), warp, 1 << lane));
    }
    let mut record = [0; 128];
    if space == Space::Global {
        if at < machine.params.len() as u64 {
            let message = format!(
                "no tensor map can be at the generic address {at:#x}; if that is the place of a parameter, cvta.param makes its address generic"
            );
            return Err(machine.finding(Kind::TensorMap, warp, 1 << lane, message));
        }
        let bytes = Bytes::Range(at, 128);
        let (usage, proxy, order) = (Use::Read, Proxy::TensorMap, Order::Weak);
        machine.observe(warp, 1 << lane, &Access { space, usage, proxy, order, bytes, operation });
    }
    memory::read(machine, warp, lane, space, at, &mut record)?;
    let bad = |message: String| machine.finding(Kind::TensorMap, warp, 1 << lane, message);
    let map = tensor_map::decode(&record).map_err(|error| bad(error.to_string()))?;
    if map.rank != op.rank {
        return Err(bad(format!("the instruction is {}d, the tensor map has rank {}", op.rank, map.rank)));
    }
    let store = matches!(op.direction, Direction::Store | Direction::Reduce(_));
    map.check_copy(store).map_err(|error| bad(error.to_string()))?;
    Ok(map)
}

/// The reduction with the element type of the map.
fn element_reduction(
    machine: &Cluster,
    warp: &Warp,
    lane: usize,
    direction: Direction,
    map: &Map,
) -> Result<Option<Reduction>, Fault> {
    let Direction::Reduce(function) = direction else {
        return Ok(None);
    };
    let bitwise = matches!(function, Function::And | Function::Or | Function::Xor);
    let ty = match map.element {
        MapType::U32 | MapType::I32 if bitwise => Some(Type::B32),
        MapType::U64 | MapType::I64 if bitwise => Some(Type::B64),
        MapType::U32 => Some(Type::U32),
        MapType::I32 => Some(Type::S32),
        MapType::U64 => Some(Type::U64),
        MapType::I64 => Some(Type::S64),
        MapType::F16 => Some(Type::F16),
        MapType::Bf16 => Some(Type::Bf16),
        MapType::F32 => Some(Type::F32),
        _ => None,
    };
    match ty.map(|ty| Reduction { function, ty }).filter(|reduction| reduction.is_defined()) {
        Some(reduction) => Ok(Some(reduction)),
        None => {
            let message = format!("{function:?} is not defined for elements {:?}", map.element);
            Err(machine.finding(Kind::TensorMap, warp, 1 << lane, message))
        }
    }
}

/// Where the box begins. What an H200 answers with an illegal instruction is a fault there; elsewhere nothing is known.
fn check_origin(machine: &mut Cluster, copy: &TensorCopy, target: Target) -> Result<(), Fault> {
    let bits = i64::from(copy.coordinates[0]) * copy.map.element.bits() as i64;
    let message = if bits.rem_euclid(128) != 0 {
        format!(
            "first coordinate {} of {:?} elements: the box does not begin at a multiple of 16 bytes of its row",
            copy.coordinates[0], copy.map.element
        )
    } else if !copy.load && copy.coordinates.iter().any(|&c| c < 0) {
        "a store with a negative coordinate".to_owned()
    } else {
        return Ok(());
    };
    let mut found = transfer::broken(machine, &copy.actor, message);
    if target == Target::Sm90 {
        return Err(found);
    }
    found.warning = true;
    machine.report(*found);
    Ok(())
}

/// Alignment, bounds in shared memory, and the place of the barrier.
fn check(machine: &mut Cluster, copy: &TensorCopy, target: Target) -> Result<(), Fault> {
    let actor = &copy.actor;
    check_origin(machine, copy, target)?;
    if !copy.shared.is_multiple_of(128) {
        let message = format!("shared address {:#x} of a tensor copy is not a multiple of 128", copy.shared);
        return Err(machine.access_fault_of(AccessError::Misaligned(message), actor));
    }
    let period = copy.map.pattern.period();
    if !(copy.shared & 0x00ff_ffff).is_multiple_of(period) {
        let message =
            format!("shared address {:#x} is not a multiple of {period}, after which the swizzle repeats", copy.shared);
        let mut found = transfer::broken(machine, actor, message);
        found.warning = true;
        machine.report(*found);
    }
    let (dst, bar) = (Cluster::rank_of(copy.shared), Cluster::rank_of(copy.barrier));
    let reachable = copy.mask.is_some() || dst == bar || copy.pair && dst ^ 1 == bar;
    if copy.load && !reachable {
        let message = format!("the mbarrier is in CTA rank {bar}, the destination in rank {dst}");
        return Err(transfer::broken(machine, actor, message));
    }
    if copy.pair && !machine.ctas.len().is_multiple_of(2) {
        let message = format!(".cta_group::2 in a cluster of {} CTAs", machine.ctas.len());
        return Err(transfer::broken(machine, actor, message));
    }
    let targets: Vec<(u32, u32)> = copy.targets().collect();
    for (shared, barrier) in targets {
        transfer::check_shared(machine, actor, shared, copy.shared_bytes())?;
        if copy.load {
            mbarrier::check_live(machine, actor, barrier)?;
        }
    }
    Ok(())
}
