//! Capture, change the lengths, replay: on a GPU, where there are graphs.

use bakewell_conformance::gqa_decode::replays::{CHANGED, replays};
use bakewell_conformance::graphs::replays_are_fresh_launches;
use bakewell_tests::graphs::first_gpu;

#[test]
fn replays_with_other_lengths_give_the_bits_of_a_fresh_launch() {
    let Some((runtime, device)) = first_gpu() else { return };
    for (name, captured, changed) in replays().unwrap() {
        replays_are_fresh_launches(&runtime, &device, &captured, CHANGED, &changed)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}
