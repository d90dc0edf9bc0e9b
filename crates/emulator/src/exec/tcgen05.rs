//! tcgen05.

use crate::isa::table::Row;
use crate::machine::{Cluster, Outcome, Warp};

/// Rows of the family.
pub static ROWS: &[Row] = &[];

/// A decoded instruction of the family.
#[derive(Debug, Clone)]
pub enum Tcgen05Op {}

/// Executes an instruction of the family.
pub fn execute(_machine: &mut Cluster, _warp: &mut Warp, _mask: u32, op: &Tcgen05Op) -> Outcome {
    match *op {}
}

/// The CTA of rank `rank` exited: what it still holds is a leak.
pub fn cta_exit(_machine: &mut Cluster, _rank: u32) {}
