//! mma.sync.

use crate::isa::table::Row;
use crate::machine::{Cluster, Outcome, Warp};

/// Rows of the family.
pub static ROWS: &[Row] = &[];

/// A decoded instruction of the family.
#[derive(Debug, Clone)]
pub enum MmaOp {}

/// Executes an instruction of the family.
pub fn execute(_machine: &mut Cluster, _warp: &mut Warp, _mask: u32, op: &MmaOp) -> Outcome {
    match *op {}
}
