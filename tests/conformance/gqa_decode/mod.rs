//! Grouped-query decode attention.

mod errors;
mod giant;
#[cfg(feature = "cuda")]
mod graphs;
mod invariance;
mod launches;
mod mutation;
mod plans;
mod scales;
#[cfg(feature = "emulator")]
mod seeds;
mod values;

use bakewell_conformance::HostTensor;
use bakewell_conformance::compare::{Comparison, Tolerance, compare};

/// Compares a tensor with wanted values.
fn check(got: &HostTensor, want: &[f64], tolerance: &Tolerance) -> Result<Comparison, String> {
    let comparison = compare(&got.shape, &got.to_f64().unwrap(), want).unwrap();
    comparison.verdict(tolerance)?;
    Ok(comparison)
}
