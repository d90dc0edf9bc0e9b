//! Capture, change the hidden states, replay: on a GPU, where there are graphs.

use bakewell::cuda::CudaRuntime;
use bakewell::cuda::timing::{Graph, OwnedStream};
use bakewell::{Device, Error, Result};
use bakewell_conformance::Staged;
use bakewell_conformance::nvfp4_pre_attention::Inputs;
use bakewell_tests::runs::outputs;

use super::small;

#[test]
fn replays_with_other_hidden_states_give_the_bytes_of_a_fresh_launch() {
    let runtime = match CudaRuntime::open(0) {
        Ok(runtime) => runtime,
        Err(error) => return println!("skipped: {error}"),
    };
    let device = Device::cuda(0).unwrap();
    replay(&runtime, &device).unwrap();
}

fn replay(runtime: &std::sync::Arc<CudaRuntime>, device: &Device) -> Result<()> {
    let inputs = Inputs::generate(&small(300, 2), 21);
    let staged = Staged::new(device, &inputs)?;
    let bound = staged.bind()?;
    let stream = OwnedStream::new(runtime)?;
    let graph = Graph::capture(runtime, &stream, |stream| bound.launch(stream))?;
    for seed in 22..26 {
        let mut changed = inputs.clone();
        changed.x = Inputs::generate(&small(300, 2), seed).x;
        staged.write("x", &changed.x)?;
        staged.poison_outputs()?;
        graph.launch(stream.stream())?;
        graph.launch(stream.stream())?;
        device.synchronize(stream.stream())?;
        let replayed = staged.outputs()?;
        let fresh = outputs(device, &changed).map_err(|failure| Error::value("fresh launch", "outputs", failure))?;
        if replayed != fresh {
            return Err(Error::value("x", "the bytes of a fresh launch", format!("others for seed {seed}")));
        }
    }
    Ok(())
}
