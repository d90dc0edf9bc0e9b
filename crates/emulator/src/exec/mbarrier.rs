//! mbarrier.

use crate::isa::table::Row;
use crate::check::Actor;
use crate::finding::Kind;
use crate::machine::{Cluster, Fault, Outcome, Warp};

/// Rows of the family.
pub static ROWS: &[Row] = &[];

/// The true state of a mbarrier; the 64-bit word in shared memory mirrors it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mbarrier {
    /// Completed phases.
    pub phase: u64,
    /// Arrivals expected in each phase.
    pub expected: u32,
    /// Arrivals still missing in this phase.
    pub pending: u32,
    /// Bytes expected and not yet arrived.
    pub transactions: i64,
}

/// A decoded instruction of the family.
#[derive(Debug, Clone)]
pub enum MbarrierOp {}

/// Executes an instruction of the family.
pub fn execute(_machine: &mut Cluster, _warp: &mut Warp, _mask: u32, op: &MbarrierOp) -> Outcome {
    match *op {}
}

/// The CTA of rank `rank` exited: barriers in the middle of a phase are reported.
pub fn cta_exit(_machine: &mut Cluster, _rank: u32) {}

/// An engine arrives once on a barrier on behalf of `operation`.
pub fn signal(machine: &mut Cluster, actor: &Actor, address: u32, _operation: u64) -> Result<(), Fault> {
    let cta = machine.ctas.get_mut(Cluster::rank_of(address) as usize);
    let Some(barrier) = cta.and_then(|cta| cta.mbarriers.get_mut(&(address & 0x00ff_ffff))) else {
        let message = format!("signal to {address:#x}, where no mbarrier is");
        return Err(machine.finding_of(Kind::Mbarrier, actor, message));
    };
    barrier.pending = barrier.pending.saturating_sub(1);
    if barrier.pending == 0 && barrier.transactions == 0 {
        barrier.phase += 1;
        barrier.pending = barrier.expected;
    }
    Ok(())
}
