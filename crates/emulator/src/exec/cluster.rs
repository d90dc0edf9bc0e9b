//! Cluster barrier, addresses in the cluster, programmatic launch order.

#[cfg(test)]
mod tests;

use super::{Op, lanes};
use crate::check::Event;
use crate::decode::{Decoder, Refusal, types};
use crate::finding::Kind;
use crate::isa::Type;
use crate::isa::table::Row;
use crate::machine::{Block, Cluster, Outcome, R32, Reg, WARP, Warp};
use crate::memory::{AccessError, SHARED_WINDOW, Space, resolve_generic};
use crate::parse::ast::{Instruction, Operand};

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new("barrier cluster arrive {release|relaxed} {aligned}", "", decode_arrive, "9.7.13.4"),
    Row::new("barrier cluster wait {acquire} {aligned}", "", decode_wait, "9.7.13.4"),
    Row::new("mapa {shared::cluster} (u32|u64)", "d, a, rank", decode_mapa, "9.7.9.23"),
    Row::new("getctarank {shared::cluster} (u32|u64)", "d, a", decode_rank, "9.7.9.24"),
    Row::new("griddepcontrol launch_dependents", "", |_, _| Ok(Op::Cluster(ClusterOp::ReleaseDependents)), "9.7.13.13"),
    Row::new("griddepcontrol wait", "", |_, _| Ok(Op::Cluster(ClusterOp::WaitForEarlier)), "9.7.13.13"),
];

/// A decoded instruction of the family.
#[derive(Debug, Clone)]
pub enum ClusterOp {
    /// `barrier.cluster.arrive`
    Arrive {
        /// Orders what came before.
        release: bool,
        /// All lanes of the warp take part.
        aligned: bool,
    },
    /// `barrier.cluster.wait`
    Wait {
        /// All lanes of the warp take part.
        aligned: bool,
    },
    /// `mapa`
    Map {
        /// The address in the other CTA.
        d: Reg,
        /// An address in the own CTA.
        a: Reg,
        /// Rank of the other CTA.
        rank: R32,
        /// The address lies in the shared window; otherwise it is generic.
        shared: bool,
    },
    /// `getctarank`
    Rank {
        /// Rank.
        d: R32,
        /// Address.
        a: Reg,
        /// The address lies in the shared window; otherwise it is generic.
        shared: bool,
    },
    /// `griddepcontrol.launch_dependents`
    ReleaseDependents,
    /// `griddepcontrol.wait`
    WaitForEarlier,
}

fn decode_arrive(_: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let op = ClusterOp::Arrive { release: !instruction.has("relaxed"), aligned: instruction.has("aligned") };
    Ok(Op::Cluster(op))
}

fn decode_wait(_: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    Ok(Op::Cluster(ClusterOp::Wait { aligned: instruction.has("aligned") }))
}

/// An address operand without brackets: a register, or a shared variable plus a constant.
fn address(decoder: &mut Decoder<'_>, instruction: &Instruction, operand: &Operand) -> Result<(Reg, bool), Refusal> {
    let ty = types(instruction).first().copied().unwrap_or(Type::U32);
    let shared = instruction.has("shared::cluster");
    if !shared && ty != Type::U64 {
        return Refusal::invalid("expected .u64 for generic addresses");
    }
    Ok((decoder.src(operand, ty)?, shared))
}

fn decode_mapa(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let (a, shared) = address(decoder, instruction, &instruction.operands[1])?;
    let ty = types(instruction).first().copied().unwrap_or(Type::U32);
    let d = decoder.dst(&instruction.operands[0], ty)?;
    let rank = decoder.src32(&instruction.operands[2])?;
    Ok(Op::Cluster(ClusterOp::Map { d, a, rank, shared }))
}

fn decode_rank(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let (a, shared) = address(decoder, instruction, &instruction.operands[1])?;
    let d = decoder.dst32(&instruction.operands[0])?;
    Ok(Op::Cluster(ClusterOp::Rank { d, a, shared }))
}

/// Executes an instruction of the family.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &ClusterOp) -> Outcome {
    match *op {
        ClusterOp::Arrive { release, aligned } => arrive(machine, warp, mask, release, aligned),
        ClusterOp::Wait { aligned } => wait(machine, warp, mask, aligned),
        ClusterOp::Map { d, a, rank, shared } => map(machine, warp, mask, d, a, rank, shared),
        ClusterOp::Rank { d, a, shared } => {
            let a = warp.regs.wide(a);
            let mut out = [0; WARP];
            for lane in lanes(mask) {
                match shared_part(a[lane], shared) {
                    Some(at) => out[lane] = Cluster::rank_of(at),
                    None => return not_shared(machine, warp, lane, a[lane]),
                }
            }
            warp.regs.set::<u32>(d, mask, &out);
            Outcome::Next
        }
        // Launches run one after the other: earlier ones are complete, and what matters is who may rely on it.
        ClusterOp::ReleaseDependents => {
            machine.notify(warp, mask, &Event::ReleaseDependents);
            Outcome::Yield
        }
        ClusterOp::WaitForEarlier => {
            machine.notify(warp, mask, &Event::EarlierPass);
            Outcome::Yield
        }
    }
}

fn shared_part(address: u64, shared: bool) -> Option<u32> {
    match resolve_generic(address) {
        (Space::Shared, at) => Some(at as u32),
        _ => (shared && address >> 32 == 0).then_some(address as u32),
    }
}

fn not_shared(machine: &Cluster, warp: &Warp, lane: usize, address: u64) -> Outcome {
    let message = format!("expected an address in shared memory, got {address:#x}");
    Outcome::Fault(machine.access_fault(AccessError::OutOfBounds(message), warp, 1 << lane))
}

fn map(machine: &Cluster, warp: &mut Warp, mask: u32, d: Reg, a: Reg, rank: R32, shared: bool) -> Outcome {
    let a = warp.regs.wide(a);
    let ranks = *warp.regs.get::<u32>(rank);
    for lane in lanes(mask) {
        let Some(at) = shared_part(a[lane], shared) else {
            return not_shared(machine, warp, lane, a[lane]);
        };
        // A rank outside the cluster is a fault where the address is used: kernels map in lanes that then do nothing.
        let mapped = u64::from(at & 0x00ff_ffff | ranks[lane].min(0xff) << 24);
        let window = if shared { a[lane] & 0xffff_ffff_0000_0000 } else { SHARED_WINDOW };
        warp.regs.set_lane_bits(d, lane, u128::from(window | mapped));
    }
    Outcome::Next
}

fn spread(generation: u64) -> u32 {
    if generation & 1 != 0 { u32::MAX } else { 0 }
}

/// A thread arrives once in a generation and waits before the next.
fn arrive(machine: &mut Cluster, warp: &mut Warp, mask: u32, release: bool, aligned: bool) -> Outcome {
    if aligned && let Some(outcome) = machine.require_aligned(warp, mask) {
        return outcome;
    }
    let again = warp.cluster_arrived & mask;
    if again != 0 {
        return machine.fault(
            Kind::Barrier,
            warp,
            again,
            "a thread arrives at the cluster barrier twice without waiting",
        );
    }
    let generation = machine.barrier.generation;
    warp.cluster_arrived |= mask;
    warp.cluster_parity = warp.cluster_parity & !mask | spread(generation) & mask;
    machine.barrier.arrived += mask.count_ones();
    machine.notify(warp, mask, &Event::ClusterArrive { generation, release });
    complete(machine);
    Outcome::Yield
}

fn wait(machine: &mut Cluster, warp: &mut Warp, mask: u32, aligned: bool) -> Outcome {
    if aligned && let Some(outcome) = machine.require_aligned(warp, mask) {
        return outcome;
    }
    let missing = mask & !warp.cluster_arrived;
    if missing != 0 {
        return machine.fault(Kind::Barrier, warp, missing, "a thread waits on the cluster barrier without arriving");
    }
    // A generation cannot complete without the threads that wait: theirs is the one in progress or the one before.
    let generation = machine.barrier.generation;
    if !(warp.cluster_parity ^ spread(generation)) & mask != 0 {
        return Outcome::Retry(Block::ClusterBarrier { generation });
    }
    warp.cluster_arrived &= !mask;
    machine.counters.barrier_waits += 1;
    machine.notify(warp, mask, &Event::ClusterPass { generation: generation - 1 });
    Outcome::Yield
}

/// Completes the cluster barrier when every thread that has not exited arrived.
fn complete(machine: &mut Cluster) {
    if machine.barrier.arrived == 0 || machine.barrier.arrived < machine.live_threads() {
        return;
    }
    machine.barrier.generation += 1;
    machine.barrier.arrived = 0;
    machine.engine.note_progress();
}

/// The lanes `exited` of a warp are gone: they count as arrived at the cluster barrier.
pub fn after_exit(machine: &mut Cluster, warp: &mut Warp, exited: u32) {
    let in_progress = !(warp.cluster_parity ^ spread(machine.barrier.generation));
    machine.barrier.arrived -= (warp.cluster_arrived & in_progress & exited).count_ones();
    warp.cluster_arrived &= !exited;
    complete(machine);
}
