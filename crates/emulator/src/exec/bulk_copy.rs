//! Bulk copies and reductions without a tensor map (ISA notes, section 2.1).

#[cfg(test)]
mod tests;

use super::copy_groups::Family;
use super::mbarrier::{self, Place};
use super::memory::{self, MemorySpace};
use super::multicast::{self, Multicast};
use super::reduction::{Function, Reduction};
use super::{Op, lanes, transfer};
use crate::check::{Actor, Event, Use};
use crate::decode::{Decoder, Refusal, types};
use crate::isa::Target;
use crate::isa::table::{BLACKWELL, Row};
use crate::machine::{Cluster, Fault, Outcome, R32, WARP, Warp};
use crate::memory::{AccessError, Space};
use crate::parse::ast::Instruction;
use crate::trace::Path;

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new(
        "cp async bulk (shared::cta|shared::cluster) global mbarrier::complete_tx::bytes {multicast::cluster} {L2::cache_hint}",
        "[dst], [src], size, [bar]{, mask}{, policy}",
        decode_load,
        "9.7.9.25.4.3",
    ),
    Row::new(
        "cp async bulk shared::cluster global mbarrier::complete_tx::bytes (multicast::cluster::16b|multicast::cluster::32b) {L2::cache_hint}",
        "[dst], [src], size, [bar], mask{, policy}",
        decode_load,
        "9.7.9.25.4.3",
    )
    .on(Target::Sm107.bit(), 94),
    Row::new(
        "cp async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes",
        "[dst], [src], size, [bar]",
        decode_push,
        "9.7.9.25.4.3",
    ),
    Row::new(
        "cp async bulk global shared::cta bulk_group {L2::cache_hint}",
        "[dst], [src], size{, policy}",
        decode_store,
        "9.7.9.25.4.3",
    ),
    Row::new(
        "cp async bulk global shared::cta bulk_group {L2::cache_hint} cp_mask",
        "[dst], [src], size{, policy}, mask",
        decode_store,
        "9.7.9.25.4.3",
    )
    .on(BLACKWELL, 86),
    Row::new(
        "cp async bulk prefetch L2 global {L2::cache_hint}",
        "[src], size{, policy}",
        decode_prefetch,
        "9.7.9.25.4.5",
    ),
    Row::new("cp async bulk prefetch L2 global L2::evict_last", "[src], size", decode_prefetch, "9.7.9.25.4.5")
        .on(Target::Sm107.bit(), 94),
    // A hint; its group has nothing to wait for.
    Row::new("applypriority async bulk global bulk_group L2::evict_normal", "[src], size", decode_prefetch, "9.7.9.16")
        .on(Target::Sm107.bit(), 94),
    Row::new(
        "cp reduce async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes (add|min|max|inc|dec|and|or|xor) (u32|s32|u64|b32)",
        "[dst], [src], size, [bar]",
        decode_push,
        "9.7.9.25.4.4",
    ),
    Row::new(
        "cp reduce async bulk global shared::cta bulk_group {L2::cache_hint} (add|min|max|inc|dec|and|or|xor) {noftz} (u32|s32|u64|s64|b32|b64|f16|bf16|f32|f64)",
        "[dst], [src], size{, policy}",
        decode_store,
        "9.7.9.25.4.4",
    ),
    Row::refused(
        "cp async bulk (shared::cta|shared::cluster) global mbarrier::complete_tx::bytes ignore_oob {multicast::cluster} {L2::cache_hint}",
        "[dst], [src], size, a, b, [bar]{, mask}{, policy}",
        "the behaviour of .ignore_oob is not documented",
        "2.1",
    ),
];

/// From where to where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Global to shared, with a barrier.
    Load,
    /// Shared to the shared memory of a CTA of the cluster, with a barrier.
    Push,
    /// Shared to global, in a group.
    Store,
    /// Nowhere: bounds are checked.
    Prefetch,
}

/// A decoded instruction of the family.
#[derive(Debug, Clone)]
pub struct BulkCopyOp {
    direction: Direction,
    /// Destination; that of a prefetch is its source.
    to: Place,
    from: Place,
    size: R32,
    barrier: Option<Place>,
    /// CTAs of a multicast, or bytes of each 16.
    mask: Option<Multicast>,
    reduction: Option<Reduction>,
}

/// The last operands of a copy that ends in `{, mask}{, policy}`; the policy has no effect.
pub(crate) fn tail(
    decoder: &mut Decoder<'_>,
    instruction: &Instruction,
    first: usize,
    masked: bool,
) -> Result<Option<Multicast>, Refusal> {
    let hint = instruction.has("L2::cache_hint");
    let given = instruction.operands.len().saturating_sub(first);
    if given != usize::from(masked) + usize::from(hint) {
        return Refusal::invalid(format!(
            "expected {} operands, got {}",
            first + usize::from(masked) + usize::from(hint),
            instruction.operands.len()
        ));
    }
    if hint {
        let policy = if instruction.has("cp_mask") { first } else { first + usize::from(masked) };
        decoder.src64(&instruction.operands[policy])?;
    }
    let place = if instruction.has("cp_mask") { first + usize::from(hint) } else { first };
    masked.then(|| Multicast::decode(decoder, instruction, &instruction.operands[place])).transpose()
}

fn reduction(instruction: &Instruction) -> Result<Option<Reduction>, Refusal> {
    let Some(function) = Function::of(instruction) else {
        return Ok(None);
    };
    let Some(&ty) = types(instruction).last() else {
        return Refusal::invalid("expected an element type");
    };
    let reduction = Reduction { function, ty };
    if !reduction.is_defined() {
        return Refusal::invalid(format!("{function:?} is not defined for .{}", ty.word()));
    }
    let half = matches!(ty, crate::isa::Type::F16 | crate::isa::Type::Bf16);
    if (half && function == Function::Add) != instruction.has("noftz") {
        return Refusal::invalid("expected .noftz with .add of 16-bit floats, and nowhere else");
    }
    Ok(Some(reduction))
}

fn decode_load(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let multicast = multicast::asked(instruction);
    if multicast && !instruction.has("shared::cluster") {
        return Refusal::invalid("expected .shared::cluster with .multicast::cluster");
    }
    let o = &instruction.operands;
    let mask = tail(decoder, instruction, 4, multicast)?;
    let to_space = if instruction.has("shared::cluster") { MemorySpace::SharedCluster } else { MemorySpace::SharedCta };
    let op = BulkCopyOp {
        direction: Direction::Load,
        to: Place { space: to_space, address: decoder.address(&o[0])? },
        from: Place { space: MemorySpace::Global, address: decoder.address(&o[1])? },
        size: decoder.src32(&o[2])?,
        barrier: Some(Place { space: to_space, address: decoder.address(&o[3])? }),
        mask,
        reduction: None,
    };
    Ok(Op::BulkCopy(Box::new(op)))
}

fn decode_push(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let o = &instruction.operands;
    let reduction = reduction(instruction)?;
    if reduction.is_some_and(|r| r.ty == crate::isa::Type::U64 && r.function != Function::Add) {
        return Refusal::invalid("between CTAs 64-bit elements have .add only");
    }
    let op = BulkCopyOp {
        direction: Direction::Push,
        to: Place { space: MemorySpace::SharedCluster, address: decoder.address(&o[0])? },
        from: Place { space: MemorySpace::SharedCta, address: decoder.address(&o[1])? },
        size: decoder.src32(&o[2])?,
        barrier: Some(Place { space: MemorySpace::SharedCluster, address: decoder.address(&o[3])? }),
        mask: None,
        reduction,
    };
    Ok(Op::BulkCopy(Box::new(op)))
}

fn decode_store(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let o = &instruction.operands;
    let op = BulkCopyOp {
        direction: Direction::Store,
        to: Place { space: MemorySpace::Global, address: decoder.address(&o[0])? },
        from: Place { space: MemorySpace::SharedCta, address: decoder.address(&o[1])? },
        size: decoder.src32(&o[2])?,
        barrier: None,
        mask: tail(decoder, instruction, 3, instruction.has("cp_mask"))?,
        reduction: reduction(instruction)?,
    };
    Ok(Op::BulkCopy(Box::new(op)))
}

fn decode_prefetch(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    tail(decoder, instruction, 2, false)?;
    let from = Place { space: MemorySpace::Global, address: decoder.address(&instruction.operands[0])? };
    let size = decoder.src32(&instruction.operands[1])?;
    let op =
        BulkCopyOp { direction: Direction::Prefetch, to: from, from, size, barrier: None, mask: None, reduction: None };
    Ok(Op::BulkCopy(Box::new(op)))
}

/// Addresses in the lanes, shared ones checked for their space.
fn place(machine: &Cluster, warp: &Warp, mask: u32, place: Place) -> Result<[u64; WARP], Fault> {
    match place.space {
        MemorySpace::Global => Ok(memory::addresses(warp, place.address)),
        space => {
            let own = space == MemorySpace::SharedCta;
            mbarrier::shared_addresses(machine, warp, mask, place, own).map(|at| at.map(u64::from))
        }
    }
}

/// Executes an instruction of the family.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &BulkCopyOp) -> Outcome {
    issue(machine, warp, mask, op).map_or_else(Outcome::Fault, |()| Outcome::Yield)
}

fn issue(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &BulkCopyOp) -> Result<(), Fault> {
    let to = place(machine, warp, mask, op.to)?;
    let from = place(machine, warp, mask, op.from)?;
    let barrier = op.barrier.map(|bar| place(machine, warp, mask, bar)).transpose()?;
    let sizes = *warp.regs.get::<u32>(op.size);
    let masks = op.mask.map(|mask| mask.masks(warp));
    for lane in lanes(mask) {
        let copy = BulkCopy {
            actor: Cluster::actor(warp, 1 << lane),
            operation: machine.engine.operation(),
            direction: op.direction,
            to: to[lane],
            from: from[lane],
            size: sizes[lane],
            barrier: barrier.map_or(0, |bar| bar[lane] as u32),
            mask: masks.map(|masks| masks[lane]),
            reduction: op.reduction,
        };
        copy.check(machine)?;
        if op.direction == Direction::Prefetch {
            continue;
        }
        if op.direction != Direction::Store {
            copy.targets().try_for_each(|(_, bar)| mbarrier::check_live(machine, &copy.actor, bar))?;
        }
        machine.notify(warp, 1 << lane, &Event::Issue { operation: copy.operation });
        // A store has one target, in global memory.
        let (path, targets) = match op.direction {
            Direction::Store => (Path::BulkStore, 1),
            _ => (Path::BulkLoad, copy.targets().count() as u64),
        };
        machine.counters.add_bytes(path, u64::from(copy.size) * targets);
        if op.direction == Direction::Store {
            warp.copies.issue(Family::Bulk, 1 << lane, copy.operation);
        }
        machine.engine.push(machine.clock, Box::new(move |machine| copy.run(machine)));
    }
    Ok(())
}

/// A copy in flight.
#[derive(Debug, Clone, Copy)]
struct BulkCopy {
    actor: Actor,
    operation: u64,
    direction: Direction,
    to: u64,
    from: u64,
    size: u32,
    barrier: u32,
    mask: Option<u32>,
    reduction: Option<Reduction>,
}

impl BulkCopy {
    /// Destinations and barriers in shared memory: one, or one in each CTA of a multicast.
    fn targets(&self) -> impl Iterator<Item = (u32, u32)> {
        let (to, barrier) = (self.to as u32, self.barrier);
        let multicast = if self.direction == Direction::Load { self.mask } else { None };
        let ranks = multicast.unwrap_or(multicast::only(to));
        multicast::addresses(to, ranks).zip(multicast::addresses(barrier, ranks))
    }

    fn check(&self, machine: &Cluster) -> Result<(), Fault> {
        let misaligned = |what: &str, value: u64| {
            let error = AccessError::Misaligned(format!("{what} {value:#x} of the copy is not a multiple of 16"));
            machine.access_fault_of(error, &self.actor)
        };
        let named = [("destination", self.to), ("source", self.from), ("size", self.size.into())];
        if let Some((what, value)) = named.into_iter().find(|(_, value)| !value.is_multiple_of(16)) {
            return Err(misaligned(what, value));
        }
        if self.size == 0 {
            return Err(transfer::broken(machine, &self.actor, "expected a size above 0"));
        }
        match self.direction {
            Direction::Load | Direction::Prefetch => {
                transfer::check_global(machine, &self.actor, self.from, self.size.into())?;
            }
            Direction::Push | Direction::Store => {
                transfer::check_shared(machine, &self.actor, self.from as u32, self.size)?;
            }
        }
        match self.direction {
            Direction::Prefetch => Ok(()),
            Direction::Store => transfer::check_global(machine, &self.actor, self.to, self.size.into()),
            Direction::Load | Direction::Push => {
                if self.mask.is_none() && Cluster::rank_of(self.barrier) != Cluster::rank_of(self.to as u32) {
                    let message = format!(
                        "the mbarrier is in CTA rank {}, the destination in rank {}",
                        Cluster::rank_of(self.barrier),
                        Cluster::rank_of(self.to as u32)
                    );
                    return Err(transfer::broken(machine, &self.actor, message));
                }
                self.targets().try_for_each(|(to, _)| transfer::check_shared(machine, &self.actor, to, self.size))
            }
        }
    }

    fn run(self, machine: &mut Cluster) -> Result<(), Fault> {
        match self.direction {
            Direction::Load | Direction::Push => self.fill(machine),
            Direction::Store => self.read(machine),
            Direction::Prefetch => Ok(()),
        }
    }

    fn observe(&self, machine: &mut Cluster, at: (Space, Use), address: u64) {
        transfer::observe(machine, &self.actor, self.operation, at, address, self.size.into());
    }

    /// Writes shared memory and signals the barriers.
    fn fill(self, machine: &mut Cluster) -> Result<(), Fault> {
        let data = if self.direction == Direction::Load {
            self.observe(machine, (Space::Global, Use::Read), self.from);
            transfer::read_global(machine, &self.actor, self.from, self.size as usize)?
        } else {
            transfer::check_landing(machine, &self.actor, self.actor.cta)?;
            self.observe(machine, (Space::Shared, Use::Read), self.from);
            transfer::read_shared(machine, &self.actor, self.from as u32, self.size as usize)?
        };
        for (to, _) in self.targets() {
            transfer::check_landing(machine, &self.actor, Cluster::rank_of(to))?;
            let usage = if self.reduction.is_some() { Use::Atomic } else { Use::Write };
            self.observe(machine, (Space::Shared, usage), to.into());
            match self.reduction {
                None => transfer::write_shared(machine, &self.actor, to, &data)?,
                Some(reduction) => {
                    let mut old = transfer::read_shared(machine, &self.actor, to, self.size as usize)?;
                    reduction.fold(&mut old.bytes, &data.bytes, false);
                    transfer::write_shared(machine, &self.actor, to, &old)?;
                }
            }
        }
        transfer::finish(machine, &self.actor, None, self.operation);
        for (_, barrier) in self.targets() {
            mbarrier::complete_tx(machine, &self.actor, barrier, self.size, self.operation)?;
        }
        Ok(())
    }

    /// Reads shared memory; the write to global memory comes later.
    fn read(self, machine: &mut Cluster) -> Result<(), Fault> {
        self.observe(machine, (Space::Shared, Use::Read), self.from);
        let data = transfer::read_shared(machine, &self.actor, self.from as u32, self.size as usize)?;
        transfer::reads_done(machine, &self.actor, self.operation);
        let write = move |machine: &mut Cluster| self.write(machine, &data);
        machine.engine.push(machine.clock, Box::new(write));
        Ok(())
    }

    fn write(&self, machine: &mut Cluster, data: &transfer::Data) -> Result<(), Fault> {
        let usage = if self.reduction.is_some() { Use::Atomic } else { Use::Write };
        self.observe(machine, (Space::Global, usage), self.to);
        match (self.reduction, self.mask) {
            (Some(reduction), _) => reduce_global(machine, &self.actor, self.to, &data.bytes, reduction)?,
            (None, None) => transfer::write_global(machine, &self.actor, self.to, data)?,
            (None, Some(mask)) => {
                let chosen = (0..self.size as usize).filter(|i| mask >> (i % 16) & 1 != 0);
                for i in chosen {
                    let byte = transfer::Data {
                        bytes: vec![data.bytes[i]],
                        unwritten: data.unwritten.as_ref().map(|gaps| vec![gaps[i]]).filter(|gap| gap[0]),
                    };
                    transfer::write_global(machine, &self.actor, self.to + i as u64, &byte)?;
                }
            }
        }
        transfer::finish(machine, &self.actor, Some(Family::Bulk), self.operation);
        Ok(())
    }
}

/// Element-wise atomic reduction in global memory.
pub(crate) fn reduce_global(
    machine: &mut Cluster,
    actor: &Actor,
    to: u64,
    operand: &[u8],
    reduction: Reduction,
) -> Result<(), Fault> {
    let width = reduction.ty.bytes() as usize;
    for (i, part) in operand.chunks_exact(width).enumerate() {
        let at = to + (i * width) as u64;
        let result = match width {
            2 => update::<2>(machine, at, part, reduction),
            4 => update::<4>(machine, at, part, reduction),
            _ => update::<8>(machine, at, part, reduction),
        };
        match result {
            Err(error @ AccessError::Uninitialised(_)) => {
                let found = machine.access_fault_of(error, actor);
                machine.report(*found);
                let written = machine.global.write(at, part);
                written.map_err(|error| machine.access_fault_of(error, actor))?;
            }
            other => other.map_err(|error| machine.access_fault_of(error, actor))?,
        }
    }
    Ok(())
}

fn update<const N: usize>(machine: &Cluster, at: u64, operand: &[u8], reduction: Reduction) -> Result<(), AccessError> {
    let fold = |mut old: [u8; N]| {
        reduction.fold(&mut old, operand, true);
        old
    };
    machine.global.update::<N>(at, fold).map(|_| ())
}
