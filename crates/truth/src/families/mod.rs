//! The cases, one module per family.

mod approximate;
mod arithmetic;
mod cluster;
mod convert;
mod integer;
mod matrix;
mod mbarrier;
mod tensor_copy;
mod warp;
mod wgmma;

use crate::case::Case;
use crate::values::{Kind, operands};

/// The families.
pub const NAMES: [&str; 10] = [
    "integer",
    "arithmetic",
    "convert",
    "approximate",
    "warp",
    "matrix",
    "wgmma",
    "tensor_copy",
    "mbarrier",
    "cluster",
];

/// The cases of a family; `None` for an unknown name.
pub fn family(name: &str) -> Option<Vec<Case>> {
    Some(match name {
        "integer" => integer::cases(),
        "arithmetic" => arithmetic::cases(),
        "convert" => convert::cases(),
        "approximate" => approximate::cases(),
        "warp" => warp::cases(),
        "matrix" => matrix::cases(),
        "wgmma" => wgmma::cases(),
        "tensor_copy" => tensor_copy::cases(),
        "mbarrier" => mbarrier::cases(),
        "cluster" => cluster::cases(),
        _ => return None,
    })
}

/// One instruction on every combination of operands: `op %o0, %i0, ..`.
fn elementwise(op: &str, kinds: &[Kind], out: u32) -> Case {
    let list: Vec<String> = (0..kinds.len()).map(|i| format!("%i{i}")).collect();
    program(op, kinds, &[out], &format!("{op} %o0, {};", list.join(", ")))
}

/// A few instructions on every combination of operands.
fn program(name: &str, kinds: &[Kind], outs: &[u32], body: &str) -> Case {
    let mut case = Case::new(name, 256, body);
    case.ctas = 8;
    case.inputs = operands(name, kinds, case.total());
    case.outs = outs.to_vec();
    case
}
