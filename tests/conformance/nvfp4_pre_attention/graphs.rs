//! Capture, change the hidden states, replay: on a GPU, where there are graphs.

use bakewell_conformance::graphs::replays_are_fresh_launches;
use bakewell_conformance::nvfp4_pre_attention::Inputs;
use bakewell_tests::graphs::first_gpu;

use super::small;

#[test]
fn replays_with_other_hidden_states_give_the_bytes_of_a_fresh_launch() {
    let Some((runtime, device)) = first_gpu() else { return };
    let inputs = Inputs::generate(&small(300, 2), 21);
    let changed = [22, 23, 24, 25].map(|seed| Inputs { x: Inputs::generate(&small(300, 2), seed).x, ..inputs.clone() });
    replays_are_fresh_launches(&runtime, &device, &inputs, "x", &changed).unwrap();
}
