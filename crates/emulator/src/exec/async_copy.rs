//! `cp.async`: copies of 4, 8 or 16 bytes per thread from global to shared memory (ISA notes, section 2.4).

use std::sync::{Arc, Mutex, PoisonError};

use super::copy_groups::Family;
use super::mbarrier::{self, Change, Place, Together};
use super::memory::{self, MemorySpace};
use super::{Op, lanes, transfer};
use crate::check::{Access, Actor, Bytes, Event, Order, Proxy, Use};
use crate::decode::{Addr, Decoder, Refusal};
use crate::isa::table::Row;
use crate::machine::{Cluster, Fault, Outcome, P, R32, WARP, Warp};
use crate::memory::{AccessError, Space};
use crate::parse::ast::Instruction;
use crate::trace::Path;

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new(
        "cp async (ca|cg) (shared|shared::cta) global {L2::cache_hint} {L2::64B|L2::128B|L2::256B}",
        "[dst], [src], size{, source}{, policy}",
        decode_copy,
        "9.7.9.25.3.1",
    ),
    Row::new("cp async mbarrier arrive {noinc} {shared|shared::cta} b64", "[a]", decode_arrive, "9.7.13.15.14"),
];

/// How much of the source is read.
#[derive(Debug, Clone, Copy)]
pub enum Source {
    /// All of it.
    All,
    /// This many bytes, the rest being zeros.
    Size(R32),
    /// Nothing where the predicate (negated when the flag is set) is true.
    Ignore(P, bool),
}

/// A decoded instruction of the family.
#[derive(Debug, Clone)]
pub enum AsyncCopyOp {
    /// The copy.
    Copy {
        /// Shared memory of the own CTA.
        to: Place,
        /// Global memory.
        from: Addr,
        /// Bytes.
        size: u32,
        /// How much is read.
        source: Source,
    },
    /// `cp.async.mbarrier.arrive`
    Arrive {
        /// Barrier.
        address: Place,
        /// The arrival is part of the barrier's count.
        counted: bool,
    },
}

fn decode_copy(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let size = decoder.immediate(&instruction.operands[2])?;
    let allowed: &[i64] = if instruction.has("cg") { &[16] } else { &[4, 8, 16] };
    if !allowed.contains(&size) {
        return Refusal::invalid(format!("expected a size of {allowed:?} bytes, got {size}"));
    }
    let address = decoder.address(&instruction.operands[0])?;
    let from = decoder.address(&instruction.operands[1])?;
    let hint = instruction.has("L2::cache_hint");
    let extra = instruction.operands.len() - 3 - usize::from(hint);
    let source = match (extra, instruction.operands.get(3)) {
        (1, Some(operand)) => match decoder.pred(operand) {
            Ok((p, negated)) if !matches!(operand, crate::parse::ast::Operand::Integer(_)) => {
                Source::Ignore(p, negated)
            }
            _ => Source::Size(decoder.src32(operand)?),
        },
        _ => Source::All,
    };
    let to = Place { space: MemorySpace::SharedCta, address };
    Ok(Op::AsyncCopy(Box::new(AsyncCopyOp::Copy { to, from, size: size as u32, source })))
}

fn decode_arrive(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let address = Place { space: memory::space_of(instruction), address: decoder.address(&instruction.operands[0])? };
    Ok(Op::AsyncCopy(Box::new(AsyncCopyOp::Arrive { address, counted: instruction.has("noinc") })))
}

/// Executes an instruction of the family.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &AsyncCopyOp) -> Outcome {
    let result = match *op {
        AsyncCopyOp::Copy { to, from, size, source } => copy(machine, warp, mask, to, from, size, source),
        AsyncCopyOp::Arrive { address, counted } => arrive(machine, warp, mask, address, counted),
    };
    result.map_or_else(Outcome::Fault, |()| Outcome::Next)
}

fn copy(
    machine: &mut Cluster,
    warp: &mut Warp,
    mask: u32,
    to: Place,
    from: Addr,
    size: u32,
    source: Source,
) -> Result<(), Fault> {
    let to = mbarrier::shared_addresses(machine, warp, mask, to, true)?;
    let from = memory::addresses(warp, from);
    memory::check_alignment(machine, warp, mask, &to.map(u64::from), size)?;
    memory::check_alignment(machine, warp, mask, &from, size)?;
    let sizes: [u32; WARP] = match source {
        Source::All => [size; WARP],
        Source::Size(r) => *warp.regs.get::<u32>(r),
        Source::Ignore(p, negated) => {
            let ignored = warp.regs.pred[p.0 as usize] ^ if negated { u32::MAX } else { 0 };
            std::array::from_fn(|lane| if ignored >> lane & 1 != 0 { 0 } else { size })
        }
    };
    for lane in lanes(mask) {
        if sizes[lane] > size {
            let message = format!("source size {} of a copy of {size} bytes", sizes[lane]);
            return Err(machine.access_fault(AccessError::OutOfBounds(message), warp, 1 << lane));
        }
    }
    let operation = machine.engine.operation();
    let actor = Cluster::actor(warp, mask);
    machine.notify(warp, mask, &Event::Issue { operation });
    machine.counters.add_bytes(Path::AsyncCopy, u64::from(mask.count_ones() * size));
    warp.copies.issue(Family::Small, mask, operation);
    let work = Copy { actor, operation, to, from, size, sizes };
    machine.engine.push(machine.clock, Box::new(move |machine| work.run(machine)));
    Ok(())
}

/// A copy in flight, all lanes of one instruction.
struct Copy {
    actor: Actor,
    operation: u64,
    to: [u32; WARP],
    from: [u64; WARP],
    size: u32,
    sizes: [u32; WARP],
}

impl Copy {
    fn run(&self, machine: &mut Cluster) -> Result<(), Fault> {
        transfer::check_landing(machine, &self.actor, self.actor.cta)?;
        self.observe(machine);
        for lane in lanes(self.actor.lanes) {
            let mut data = [0u8; 16];
            let read = self.sizes[lane] as usize;
            let mut written = true;
            if read > 0 {
                let check = machine.global.check_init;
                let mut result = machine.global.read_as(self.from[lane], &mut data[..read], check);
                if matches!(result, Err(AccessError::Uninitialised(_))) {
                    written = false;
                    result = machine.global.read_as(self.from[lane], &mut data[..read], false);
                }
                result.map_err(|error| machine.access_fault_of(error, &self.actor))?;
            }
            let offset = self.to[lane] & 0x00ff_ffff;
            let shared = &mut machine.ctas[self.actor.cta as usize].shared;
            let mut result = shared.write(offset, &data[..self.size as usize]);
            if !written && result.is_ok() {
                result = transfer::forget_unwritten(shared, offset, &machine.global, self.from[lane], read);
            }
            result.map_err(|error| machine.access_fault_of(error, &self.actor))?;
        }
        transfer::finish(machine, &self.actor, Some(Family::Small), self.operation);
        Ok(())
    }

    fn observe(&self, machine: &mut Cluster) {
        let Some(observer) = &mut machine.observer else {
            return;
        };
        let access = |space, usage, bytes| Access {
            space,
            usage,
            proxy: Proxy::Generic,
            order: Order::Weak,
            bytes,
            operation: self.operation,
        };
        for lane in lanes(self.actor.lanes).filter(|&lane| self.sizes[lane] > 0) {
            let from = Bytes::Range(self.from[lane], self.sizes[lane].into());
            observer.access(&self.actor, &access(Space::Global, Use::Read, from));
        }
        let to = self.to.map(u64::from);
        observer.access(&self.actor, &access(Space::Shared, Use::Write, Bytes::Lanes(&to, self.size)));
    }
}

/// Arrives at a barrier once the copies that the lanes issued so far are complete.
fn arrive(machine: &mut Cluster, warp: &Warp, mask: u32, place: Place, counted: bool) -> Result<(), Fault> {
    let at = mbarrier::shared_addresses(machine, warp, mask, place, true)?;
    let together = Arc::new(Mutex::new(Together::default()));
    for lane in lanes(mask) {
        let actor = Cluster::actor(warp, 1 << lane);
        if !counted {
            mbarrier::update(machine, &actor, at[lane], Change::Increment, Order::Weak, 0)?;
        }
        let operation = machine.engine.operation();
        machine.notify(warp, 1 << lane, &Event::Issue { operation });
        let copies = warp.copies.incomplete(Family::Small, lane);
        let arrival = Arrival { actor, address: at[lane], operation, copies, together: together.clone() };
        queue_arrival(machine, arrival);
    }
    Ok(())
}

/// An arrival that waits for copies of its lane.
struct Arrival {
    actor: Actor,
    address: u32,
    operation: u64,
    copies: Vec<u64>,
    /// With the other lanes of the instruction.
    together: Arc<Mutex<Together>>,
}

/// Queues the arrival; it queues itself again while a copy is in flight.
fn queue_arrival(machine: &mut Cluster, arrival: Arrival) {
    let action = move |machine: &mut Cluster| {
        let Arrival { actor, address, operation, ref copies, ref together } = arrival;
        let lane = actor.lanes.trailing_zeros() as usize;
        let warp = machine.ctas[actor.cta as usize].warps[actor.warp as usize].as_deref();
        let open = warp.map_or(Vec::new(), |warp| warp.copies.incomplete(Family::Small, lane));
        if copies.iter().any(|copy| open.contains(copy)) {
            queue_arrival(machine, arrival);
            return Ok(());
        }
        transfer::forget_copies(machine, &actor, copies);
        together.lock().unwrap_or_else(PoisonError::into_inner).check(machine, &actor, address)?;
        mbarrier::signal(machine, &actor, address, operation)
    };
    machine.engine.push(machine.clock, Box::new(action));
}
