//! Captured launches replayed with other inputs, on devices that have graphs.

use std::sync::Arc;

use bakewell::cuda::CudaRuntime;
use bakewell::cuda::timing::{Graph, OwnedStream};
use bakewell::error::Property;
use bakewell::{Device, Error, Result};

use crate::staged::run;
use crate::{CallInputs, Staged};

/// Captures a launch, then replays it with the input `name` as in each of `changed`: the bytes of a fresh launch.
///
/// # Errors
/// The device's, or [`Error::Argument`] for other bytes.
pub fn replays_are_fresh_launches<I: CallInputs>(
    runtime: &Arc<CudaRuntime>,
    device: &Device,
    inputs: &I,
    name: &'static str,
    changed: &[I],
) -> Result<()> {
    let staged = Staged::new(device, inputs)?;
    let bound = staged.bind()?;
    let stream = OwnedStream::new(runtime)?;
    let graph = Graph::capture(runtime, &stream, |stream| bound.launch(stream))?;
    for (i, anew) in changed.iter().enumerate() {
        let missing = || Error::argument(name, Property::Presence, "an input", "none");
        let tensor = anew.tensor(name).ok_or_else(missing)?;
        staged.write(name, &tensor)?;
        staged.poison_outputs()?;
        // Twice: what a launch counts with must be back where it began.
        graph.launch(stream.stream())?;
        graph.launch(stream.stream())?;
        device.synchronize(stream.stream())?;
        if staged.outputs()? != run(device, anew)?.outputs {
            return Err(Error::value(name, "the bytes of a fresh launch", format!("others for change {i}")));
        }
    }
    Ok(())
}
