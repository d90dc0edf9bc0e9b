//! mbarrier.

use crate::isa::table::Row;
use crate::machine::{Cluster, Outcome, Warp};

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
