//! Cluster barrier, mapa, launch control, programmatic launch order.

use crate::isa::table::Row;
use crate::machine::{Cluster, Outcome, Warp};

/// Rows of the family.
pub static ROWS: &[Row] = &[];

/// A decoded instruction of the family.
#[derive(Debug, Clone)]
pub enum ClusterOp {}

/// Executes an instruction of the family.
pub fn execute(_machine: &mut Cluster, _warp: &mut Warp, _mask: u32, op: &ClusterOp) -> Outcome {
    match *op {}
}

/// Threads exited: they count as arrived at the cluster barrier.
pub fn after_exit(_machine: &mut Cluster) {}
