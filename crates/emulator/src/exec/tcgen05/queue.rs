//! Order and completion of mma, cp, shift and commit (ISA notes, tcgen05 8).
//!
//! Each issuing thread has a queue. The engine picks when a step runs; it runs behind every earlier step of its thread,
//! so the pairs that are ordered by themselves stay in order, and a commit signals after everything it tracks.

use std::collections::{BTreeMap, VecDeque};

use super::copy::{CopyJob, ShiftJob};
use super::product::MmaJob;
use super::{Tcgen05Op, group_of, memory, ranks};
use crate::check::Event;
use crate::decode::{Addr, Decoder, Refusal};
use crate::exec::Op;
use crate::exec::memory as shared;
use crate::exec::memory::MemorySpace;
use crate::exec::multicast::{self, Multicast};
use crate::exec::operand_tile::Issuer;
use crate::finding::Kind;
use crate::machine::{Cluster, Fault, Outcome, Warp};
use crate::memory::Space;
use crate::parse::ast::Instruction;

/// Columns of one CTA's tensor memory that a step touches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Footprint {
    pub(super) rank: u32,
    pub(super) column: u32,
    pub(super) columns: u32,
    pub(super) write: bool,
}

/// What a step does.
#[derive(Debug, Clone)]
pub(super) enum Work {
    Mma(Box<MmaJob>),
    Copy(CopyJob),
    Shift(ShiftJob),
    Commit(Vec<u32>),
}

impl Work {
    fn name(&self) -> &'static str {
        match self {
            Self::Mma(_) => "a mma",
            Self::Copy(_) => "a cp",
            Self::Shift(_) => "a shift",
            Self::Commit(_) => "a commit",
        }
    }
}

/// A queued step.
#[derive(Debug, Clone)]
struct Step {
    issuer: Issuer,
    work: Work,
    footprints: Vec<Footprint>,
}

/// Queues of a CTA's threads, by thread.
#[derive(Debug, Clone, Default)]
pub(super) struct Queues {
    threads: BTreeMap<u32, VecDeque<Step>>,
}

/// The queued operation that conflicts with an access of columns of a CTA, in words: one that writes them, or one that
/// reads them when the access writes.
pub(super) fn in_flight(machine: &mut Cluster, rank: u32, column: u32, columns: u32, write: bool) -> Option<String> {
    for holder in (rank & !1)..=(rank | 1) {
        let Some(tensor) = machine.ctas.get(holder as usize).and_then(|cta| cta.tensor.as_ref()) else {
            continue;
        };
        for step in tensor.state.queues.threads.values().flatten() {
            let hit = step.footprints.iter().any(|f| {
                f.rank == rank && (f.write || write) && f.column < column + columns && column < f.column + f.columns
            });
            if hit {
                let line = machine.program.line_of(step.issuer.actor.pc);
                return Some(format!("{} of line {line}", step.work.name()));
            }
        }
    }
    None
}

/// The one lane that issues an asynchronous operation.
pub(super) fn single_lane(machine: &Cluster, warp: &Warp, mask: u32) -> Result<usize, Fault> {
    if mask.count_ones() == 1 {
        return Ok(mask.trailing_zeros() as usize);
    }
    let message = format!("issued by {} lanes, each of which would issue one: expected one lane", mask.count_ones());
    Err(machine.finding(Kind::TensorMemory, warp, mask, message))
}

/// Queues a step of the lane that executes, after checking it against accesses that wait for their `wait`.
pub(super) fn push(machine: &mut Cluster, warp: &Warp, mask: u32, work: Work, footprints: Vec<Footprint>) -> Outcome {
    for f in &footprints {
        let accesses = &memory(machine, f.rank).state.accesses;
        if let Some(message) = accesses.conflict(f.column, f.columns, f.write) {
            let warning = accesses.conflict(f.column, f.columns, false).is_none();
            let mut finding = machine.finding(Kind::TensorMemory, warp, mask, format!("{} on {message}", work.name()));
            // A ld alone: whoever uses what it loaded before it signals has waited in effect.
            finding.warning = warning;
            machine.report(*finding);
        }
    }
    let operation = machine.engine.operation();
    let issuer = Issuer { actor: Cluster::actor(warp, mask), operation };
    let (rank, thread) = (warp.cta, warp.index * 32 + mask.trailing_zeros());
    let queue = memory(machine, rank).state.queues.threads.entry(thread).or_default();
    queue.push_back(Step { issuer, work, footprints });
    machine.notify(warp, mask, &Event::Issue { operation });
    machine.engine.push(machine.clock, Box::new(move |m| run_through(m, rank, thread, operation)));
    Outcome::Next
}

/// Runs the steps of a thread up to and including `operation`.
fn run_through(machine: &mut Cluster, rank: u32, thread: u32, operation: u64) -> Result<(), Fault> {
    loop {
        let queues = &mut memory(machine, rank).state.queues;
        let Some(queue) = queues.threads.get_mut(&thread) else {
            return Ok(());
        };
        if queue.front().is_none_or(|step| step.issuer.operation > operation) {
            return Ok(());
        }
        let Some(Step { issuer, work, .. }) = queue.pop_front() else {
            return Ok(());
        };
        match &work {
            Work::Mma(job) => super::product::run(machine, job, issuer)?,
            Work::Copy(job) => super::copy::run_copy(machine, job, issuer)?,
            Work::Shift(job) => super::copy::run_shift(machine, job, issuer),
            Work::Commit(barriers) => {
                for &barrier in barriers {
                    crate::exec::mbarrier::signal(machine, &issuer.actor, barrier, issuer.operation)?;
                }
            }
        }
        if let Some(observer) = &mut machine.observer {
            observer.event(&issuer.actor, &Event::Complete { operation: issuer.operation });
        }
    }
}

/// A decoded commit.
#[derive(Debug, Clone)]
pub struct CommitOp {
    group: u32,
    address: Addr,
    space: MemorySpace,
    /// Mask of CTAs of the multicast form.
    multicast: Option<Multicast>,
}

pub(super) fn decode_commit(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let address = decoder.address(&instruction.operands[0])?;
    let multicast = match (multicast::asked(instruction), instruction.operands.get(1)) {
        (true, Some(mask)) => Some(Multicast::decode(decoder, instruction, mask)?),
        (false, None) => None,
        _ => return Refusal::invalid("the mask goes with .multicast::cluster"),
    };
    let (group, space) = (group_of(instruction), shared::space_of(instruction));
    Ok(Op::Tcgen05(Box::new(Tcgen05Op::Commit(CommitOp { group, address, space, multicast }))))
}

pub(super) fn issue_commit(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &CommitOp) -> Result<Outcome, Fault> {
    let lane = single_lane(machine, warp, mask)?;
    ranks(machine, warp, mask, op.group)?;
    let mut addresses = shared::addresses(warp, op.address);
    let spaces = shared::resolve(machine, warp, mask, op.space, &mut addresses)?;
    let address = addresses[lane] as u32;
    let fail = |machine: &Cluster, message: String| machine.finding(Kind::TensorMemory, warp, mask, message);
    if spaces[lane] != Space::Shared {
        return Err(fail(machine, format!("the mbarrier address {:#x} is not in shared memory", addresses[lane])));
    }
    let barriers: Vec<u32> = match op.multicast {
        None => vec![address],
        Some(mask) => {
            let selected = mask.masks(warp)[lane];
            let size = machine.ctas.len() as u32;
            if selected == 0 || u64::from(selected) >> size != 0 {
                return Err(fail(machine, format!("mask {selected:#06x} does not name CTAs of a cluster of {size}")));
            }
            multicast::addresses(address, selected).collect()
        }
    };
    Ok(push(machine, warp, mask, Work::Commit(barriers), Vec::new()))
}
