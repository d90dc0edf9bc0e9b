//! Calls to capture in a graph, and the lengths to replay them with.

use bakewell::Result;
use bakewell::gqa_decode::GqaDecode;

use super::{Distribution, Inputs};
use crate::HostTensor;

/// The input that changes between replays.
pub const CHANGED: &str = "sequence_lengths";

/// Capacity and split count: every family of kernels, and every way that splits merge, which is not at all, inside a
/// cluster, through global partials, and both.
const SHAPES: [(u64, Option<u32>); 5] = [(64, None), (190, Some(10)), (1024, None), (4096, None), (8200, None)];

/// A name, the inputs that are captured, and the inputs of the replays.
///
/// # Errors
/// None of its own.
pub fn replays() -> Result<Vec<(String, Inputs, Vec<Inputs>)>> {
    let replay = |(capacity, num_splits)| {
        let problem =
            GqaDecode { capacity, query_heads: 8, kv_heads: 2, num_splits, lse: true, ..GqaDecode::default() };
        let last = capacity as i32;
        // Every slot holds a number, so that any length is legal.
        let full = Inputs::generate(&problem, &[last; 3], Distribution::Normal, 31)?;
        let lengths = [[last; 3], [0; 3], [1, last, 0], [last / 2, 33, last - 1]];
        let changed = lengths
            .map(|lengths| Inputs { sequence_lengths: HostTensor::of_i32(&[3], &lengths), ..full.clone() })
            .into();
        Ok((format!("replays_capacity_{capacity}"), full, changed))
    };
    SHAPES.into_iter().map(replay).collect()
}
