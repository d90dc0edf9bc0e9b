//! Grouped-query decode attention.

mod errors;
mod giant;
#[cfg(feature = "cuda")]
mod graphs;
mod invariance;
mod launches;
mod mutation;
mod plans;
#[cfg(feature = "emulator")]
mod seeds;
#[cfg(feature = "cuda")]
mod two_gpus;
mod values;

use bakewell::Device;
use bakewell_conformance::HostTensor;
use bakewell_conformance::compare::{Comparison, Tolerance, compare};
use bakewell_conformance::gqa_decode::{Expected, Inputs, Outputs, lse_tolerance, out_tolerance, run};

/// Runs inputs on a device and holds them against what is expected. The error names the tensor.
fn verify(device: &Device, inputs: &Inputs, expected: &Expected) -> Result<Comparison, String> {
    let outputs = run(device, inputs).map_err(|error| error.to_string())?.outputs;
    if let (Some(lse), Some(want)) = (&outputs.lse, &expected.lse) {
        check(lse, want, &lse_tolerance(inputs).unwrap()).map_err(|failure| format!("lse: {failure}"))?;
    }
    check(&outputs.out, &expected.out, &out_tolerance(inputs.problem.dtype))
        .map_err(|failure| format!("out: {failure}"))
}

/// Compares a tensor with wanted values.
fn check(got: &HostTensor, want: &[f64], tolerance: &Tolerance) -> Result<Comparison, String> {
    let comparison = compare(&got.shape, &got.to_f64().unwrap(), want).unwrap();
    comparison.verdict(tolerance)?;
    Ok(comparison)
}

/// The outputs of one run.
fn outputs(device: &Device, inputs: &Inputs) -> Result<Outputs, String> {
    run(device, inputs).map(|run| run.outputs).map_err(|error| error.to_string())
}
