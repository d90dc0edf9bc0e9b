//! Capture, change the offsets, replay: on a GPU, where there are graphs.

use bakewell::cuda::timing::{Graph, OwnedStream};
use bakewell::gdn::{Pins, Sequences};
use bakewell_conformance::gdn::{Case, Inputs, Place, Staged};
use bakewell_tests::graphs::first_gpu;

use super::{equal, outputs};

#[test]
fn replays_with_other_offsets_give_the_bits_of_a_fresh_launch() {
    let Some((runtime, device)) = first_gpu() else { return };
    let case = Case {
        lengths: vec![300, 0, 41],
        heads: 2,
        value_heads: 4,
        initial_state: true,
        final_state: true,
        final_state_gradient: true,
        device_offsets: true,
        pins: Pins { segment_chunks: Some(2), ..Pins::default() },
        ..Case::default()
    };
    let inputs = Inputs { place: Place::Packed, ..case.inputs().unwrap() };
    let staged = Staged::new(&device, &inputs).unwrap();
    let bound = staged.bind().unwrap();
    let stream = OwnedStream::new(&runtime).unwrap();
    let graph = Graph::capture(&runtime, &stream, |stream| bound.iter().try_for_each(|bound| bound.launch(stream)));
    let graph = graph.unwrap();
    for offsets in [[0, 300, 300, 341], [0, 0, 0, 341], [0, 1, 340, 341], [0, 64, 192, 341]] {
        staged.set_offsets(&offsets).unwrap();
        staged.poison().unwrap();
        graph.launch(stream.stream()).unwrap();
        device.synchronize(stream.stream()).unwrap();
        let mut anew = inputs.clone();
        anew.offsets = Some(offsets.to_vec());
        anew.problem.sequences = Sequences::Offsets(offsets.to_vec());
        let fresh = outputs(&device, &anew, Place::Contiguous).unwrap();
        equal(&format!("{offsets:?}"), &fresh, &staged.outputs().unwrap()).unwrap();
    }
}
