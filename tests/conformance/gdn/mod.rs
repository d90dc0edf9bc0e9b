//! Chunked Gated DeltaNet training.

mod errors;
mod giant;
#[cfg(feature = "cuda")]
mod graphs;
mod invariance;
mod launches;
mod mutation;
mod plans;
#[cfg(feature = "emulator")]
mod schedules;
#[cfg(feature = "emulator")]
mod stages;
mod strides;
#[cfg(feature = "emulator")]
mod tables;
mod tapes;
mod tensors;
mod values;

use bakewell::{Arch, Device, DeviceName};
use bakewell_conformance::engines::Engines;
use bakewell_conformance::gdn::{Expected, Inputs, Judgement, Place, judge, run};
use bakewell_conformance::{Golden, Outputs};
use bakewell_tests::data;
#[cfg(feature = "cuda")]
pub(crate) use tensors::refuse_tensors_elsewhere;

/// Runs a check on the reference, a GPU if there is one, and the emulator as two architectures: one with the scans on
/// warpgroup products, one on tensor memory. What a program computes does not depend on the architecture that it is
/// compiled for, and `bakewell verify` runs them all.
#[track_caller]
fn on_some_engines(check: impl Fn(&Device) -> Result<(), String>) {
    let engines = Engines::find();
    print!("{}", engines.skipped());
    let chosen = |device: &&Device| match device.name().parse() {
        Ok(DeviceName::Emulated(arch)) => [Arch::Sm90, Arch::Sm100].contains(&arch),
        _ => true,
    };
    for device in engines.present.iter().filter(chosen) {
        check(device).unwrap_or_else(|failure| panic!("{device}: {failure}"));
        println!("ran on {device}");
    }
}

/// Runs inputs on a device and holds them against what is expected.
fn verify(device: &Device, inputs: &Inputs, expected: &Expected) -> Result<Judgement, String> {
    let outputs = outputs(device, inputs, Place::Contiguous)?;
    let judgement = judge(inputs, &outputs, expected, device.arch()).unwrap();
    match &judgement.failure {
        Some(failure) => Err(failure.clone()),
        None => Ok(judgement),
    }
}

/// The outputs of one run.
pub(crate) fn outputs(device: &Device, inputs: &Inputs, place: Place) -> Result<Outputs, String> {
    let placed = Inputs { place, ..inputs.clone() };
    run(device, &placed).map(|run| run.outputs).map_err(|error| error.to_string())
}

fn goldens() -> Vec<Golden<Inputs>> {
    Golden::load_all(&data("golden/gdn")).unwrap()
}

/// Every output has the same bits.
fn equal(what: &str, a: &Outputs, b: &Outputs) -> Result<(), String> {
    match a.0.iter().find(|(name, tensor)| b.get(name) != Some(tensor)) {
        Some((name, _)) => Err(format!("{what}: other bits in {name}")),
        None if a.0.len() != b.0.len() => Err(format!("{what}: other outputs")),
        None => Ok(()),
    }
}
