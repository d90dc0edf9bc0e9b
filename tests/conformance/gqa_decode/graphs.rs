//! Capture, change the lengths, replay: on a GPU, where there are graphs.

use bakewell::gqa_decode::GqaDecode;
use bakewell_conformance::HostTensor;
use bakewell_conformance::gqa_decode::{Distribution, Inputs};
use bakewell_tests::graphs::{first_gpu, replays_are_fresh_launches};

/// Every way that splits merge: not at all, inside a cluster or by the route's choice, and through global partials.
const SHAPES: [(u64, Option<u32>); 4] = [(64, None), (190, Some(10)), (1024, None), (4096, None)];

#[test]
fn replays_with_other_lengths_give_the_bits_of_a_fresh_launch() {
    let Some(gpu) = first_gpu() else { return };
    for (capacity, num_splits) in SHAPES {
        let problem =
            GqaDecode { capacity, query_heads: 8, kv_heads: 2, num_splits, lse: true, ..GqaDecode::default() };
        let last = capacity as i32;
        // Every slot holds a number, so that any length is legal.
        let full = Inputs::generate(&problem, &[last; 3], Distribution::Normal, 31).unwrap();
        let changed = [[last; 3], [0; 3], [1, last, 0], [last / 2, 33, last - 1]]
            .map(|lengths| Inputs { sequence_lengths: HostTensor::of_i32(&[3], &lengths), ..full.clone() });
        replays_are_fresh_launches(&gpu, &full, "sequence_lengths", &changed)
            .unwrap_or_else(|error| panic!("capacity {capacity}: {error}"));
    }
}
