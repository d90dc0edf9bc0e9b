//! Paged-context attention over an NVFP4 cache.

mod errors;
mod giant;
mod invariance;
mod launches;
mod mutation;
mod plans;
#[cfg(feature = "emulator")]
mod schedules;
mod values;

use bakewell::Device;
use bakewell_conformance::nvfp4_context::{
    Expected, Gates, Golden, Inputs, Judgement, Outputs, ScaleOrigin, Spec, judge, run,
};
use bakewell_tests::data;

/// Runs inputs on a device and holds them against what is expected.
fn verify(device: &Device, inputs: &Inputs, expected: &Expected) -> Result<Judgement, String> {
    let run = run(device, inputs, ScaleOrigin::Host).map_err(|error| error.to_string())?;
    let splits = run.plan.decision().map_or(1, |decision| decision.splits);
    let judgement = judge(inputs, &run.outputs, expected, Gates::of(device.arch(), splits)).unwrap();
    match &judgement.failure {
        Some(failure) => Err(failure.clone()),
        None => Ok(judgement),
    }
}

/// The outputs of one run with factors on the host.
fn outputs(device: &Device, inputs: &Inputs) -> Result<Outputs, String> {
    run(device, inputs, ScaleOrigin::Host).map(|run| run.outputs).map_err(|error| error.to_string())
}

fn goldens() -> Vec<Golden> {
    Golden::load_all(&data("golden/nvfp4_context")).unwrap()
}

/// Random inputs with log-sum-exp.
fn generated(spec: &Spec, num_splits: Option<u32>) -> Inputs {
    let mut inputs = Inputs::generate(spec, 31);
    inputs.problem.num_splits = num_splits;
    inputs.problem.lse = true;
    inputs
}

/// Several tiles of several blocks: chunked prefill, one token, nothing new, nothing cached, more queries than keys.
fn mixed() -> Spec {
    Spec { q_heads: 8, kv_heads: 2, q_lens: vec![70, 1, 0, 3, 5], kv_lens: vec![390, 257, 40, 0, 2], sinks: false }
}

fn equal<T: PartialEq>(what: &str, a: &T, b: &T) -> Result<(), String> {
    if a == b { Ok(()) } else { Err(format!("{what}: other bytes")) }
}
