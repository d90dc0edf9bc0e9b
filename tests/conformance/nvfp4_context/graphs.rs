//! Capture, change the lengths, replay: on a GPU, where there are graphs.

use bakewell_conformance::HostTensor;
use bakewell_conformance::nvfp4_context::Inputs;
use bakewell_tests::graphs::{first_gpu, replays_are_fresh_launches};

use super::{generated, mixed};

/// Without and with a split, whose counters must be back at zero.
#[test]
fn replays_with_other_lengths_give_the_bytes_of_a_fresh_launch() {
    let Some(gpu) = first_gpu() else { return };
    for splits in [1, 2] {
        let inputs = generated(&mixed(), Some(splits));
        // Shorter ones, of which every page is in the table.
        let changed = [[389, 200, 17, 0, 1], [71, 1, 40, 0, 2], [0; 5]]
            .map(|lengths| Inputs { seq_lens_kv: HostTensor::of_i32(&[5], &lengths), ..inputs.clone() });
        replays_are_fresh_launches(&gpu, &inputs, "seq_lens_kv", &changed)
            .unwrap_or_else(|error| panic!("{splits} splits: {error}"));
    }
}
