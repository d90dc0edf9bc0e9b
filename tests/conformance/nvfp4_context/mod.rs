//! Paged-context attention over an NVFP4 cache.

mod errors;
mod giant;
#[cfg(feature = "cuda")]
mod graphs;
mod invariance;
mod launches;
mod mutation;
mod pages;
mod plans;
mod scales;
#[cfg(feature = "emulator")]
mod schedules;
mod values;
mod wide;

use bakewell::Device;
use bakewell::nvfp4_context::{Family, Nvfp4Context};
use bakewell_conformance::Golden;
use bakewell_conformance::nvfp4_context::{Inputs, Spec};
use bakewell_tests::data;

fn goldens() -> Vec<Golden<Inputs>> {
    Golden::load_all(&data("golden/nvfp4_context")).unwrap()
}

/// Random inputs with log-sum-exp.
pub(crate) fn generated(spec: &Spec, num_splits: Option<u32>) -> Inputs {
    let mut inputs = Inputs::generate(spec, 31);
    inputs.problem.num_splits = num_splits;
    inputs.problem.lse = true;
    inputs
}

/// Several tiles of several blocks: chunked prefill, one token, nothing new, nothing cached, more queries than keys.
fn mixed() -> Spec {
    Spec { q_heads: 8, kv_heads: 2, q_lens: vec![70, 1, 0, 3, 5], kv_lens: vec![390, 257, 40, 0, 2], sinks: false }
}

/// The same over few query rows, which decode takes.
fn few() -> Spec {
    Spec { q_lens: vec![4, 1, 0, 2, 3], ..mixed() }
}

/// The inputs pinned to a family, for a device that has it.
fn pinned(inputs: &Inputs, family: Family) -> Inputs {
    Inputs { problem: Nvfp4Context { family: Some(family), ..inputs.problem.clone() }, ..inputs.clone() }
}

/// Inputs of several tiles for each tiled family, and few query rows for each way to decode, that the device has.
fn subjects(device: &Device) -> Vec<Inputs> {
    let tiled = [1, 2].map(|splits| generated(&mixed(), Some(splits)));
    let tiled = tiled.iter().flat_map(|inputs| [Family::Paged, Family::Expanded].map(|family| pinned(inputs, family)));
    let tiled = tiled.filter(|inputs| device.plan(&inputs.problem).is_ok());
    let few = generated(&few(), None).ways(device).into_iter().map(|(_, inputs)| inputs);
    tiled.chain(few.filter(|inputs| inputs.problem.family == Some(Family::Decode))).collect()
}
