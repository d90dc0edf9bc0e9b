//! Capture, change the lengths, replay: on a GPU, where there are graphs.

use bakewell_conformance::HostTensor;
use bakewell_conformance::graphs::replays_are_fresh_launches;
use bakewell_conformance::nvfp4_context::{Inputs, ScaleOrigin};
use bakewell_tests::graphs::first_gpu;

use super::subjects;

/// Both families, without and with a split, whose counters must be back at zero, factors on the host and on the device.
#[test]
fn replays_with_other_lengths_give_the_bytes_of_a_fresh_launch() {
    let Some((runtime, device)) = first_gpu() else { return };
    for subject in subjects(&device) {
        for scale_origin in [ScaleOrigin::Host, ScaleOrigin::Device] {
            let inputs = Inputs { scale_origin, ..subject.clone() };
            // Shorter ones, of which every page is in the table.
            let changed = [[389, 200, 17, 0, 1], [71, 1, 40, 0, 2], [0; 5]]
                .map(|lengths| Inputs { seq_lens_kv: HostTensor::of_i32(&[5], &lengths), ..inputs.clone() });
            replays_are_fresh_launches(&runtime, &device, &inputs, "seq_lens_kv", &changed)
                .unwrap_or_else(|error| panic!("{scale_origin:?}, {:?}: {error}", inputs.problem));
        }
    }
}
