//! Capture, change the lengths, replay: on a GPU, where there are graphs.

use bakewell::cuda::CudaRuntime;
use bakewell::cuda::timing::{Graph, OwnedStream};
use bakewell::gqa_decode::GqaDecode;
use bakewell::{Device, Error, Result};
use bakewell_conformance::gqa_decode::{Distribution, Inputs};
use bakewell_conformance::{HostTensor, Staged};
use bakewell_tests::runs::outputs;

/// Every way that splits merge: not at all, inside a cluster or by the route's choice, and through global partials.
const SHAPES: [(u64, Option<u32>); 4] = [(64, None), (190, Some(10)), (1024, None), (4096, None)];

#[test]
fn replays_with_other_lengths_give_the_bits_of_a_fresh_launch() {
    let runtime = match CudaRuntime::open(0) {
        Ok(runtime) => runtime,
        Err(error) => return println!("skipped: {error}"),
    };
    let device = Device::cuda(0).unwrap();
    for (capacity, num_splits) in SHAPES {
        let problem =
            GqaDecode { capacity, query_heads: 8, kv_heads: 2, num_splits, lse: true, ..GqaDecode::default() };
        // Every slot holds a number, so that any length is legal.
        let full = Inputs::generate(&problem, &[capacity as i32; 3], Distribution::Normal, 31).unwrap();
        replay(&runtime, &device, &full).unwrap_or_else(|error| panic!("capacity {capacity}: {error}"));
    }
}

fn replay(runtime: &std::sync::Arc<CudaRuntime>, device: &Device, full: &Inputs) -> Result<()> {
    let staged = Staged::new(device, full)?;
    let bound = staged.bind()?;
    let stream = OwnedStream::new(runtime)?;
    let graph = Graph::capture(runtime, &stream, |stream| bound.launch(stream))?;
    let last = full.problem.capacity as i32;
    for lengths in [[last; 3], [0; 3], [1, last, 0], [last / 2, 33, last - 1]] {
        staged.write("sequence_lengths", &HostTensor::of_i32(&[3], &lengths))?;
        staged.poison_outputs()?;
        // Twice: the counters must be back at zero.
        graph.launch(stream.stream())?;
        graph.launch(stream.stream())?;
        device.synchronize(stream.stream())?;
        let replayed = staged.outputs()?;
        let mut anew = full.clone();
        anew.sequence_lengths = HostTensor::of_i32(&[3], &lengths);
        let fresh = outputs(device, &anew).map_err(|failure| Error::value("fresh launch", "outputs", failure))?;
        if replayed != fresh {
            return Err(Error::value("lengths", "the bits of a fresh launch", format!("others for {lengths:?}")));
        }
    }
    Ok(())
}
