//! What binding and launching ask of a device, on one that records.

use std::sync::Arc;

use bakewell::gqa_decode::GqaDecode;
use bakewell::{Arch, DType, Stream};
use bakewell_conformance::gqa_decode::{Distribution, Inputs};
use bakewell_tests::contract::{Contract, Tensors, recorder};
use bakewell_tests::recording::{Call, RecordingRuntime};

/// A split count that no cluster size of 16 makes without global partials.
fn split_problem() -> GqaDecode {
    GqaDecode { batch: 3, capacity: 5000, num_splits: Some(10), q_scale: 0.75, ..GqaDecode::default() }
}

fn contract(problem: &GqaDecode, lengths: &[i32]) -> Contract<Inputs> {
    Contract { inputs: Inputs::generate(problem, lengths, Distribution::Normal, 7).unwrap(), arch: Arch::Sm90 }
}

fn split() -> Contract<Inputs> {
    contract(&split_problem(), &[5000, 1, 77])
}

/// Tensors on a device that records, their plan, and what is recorded from now on.
fn recorded(contract: &Contract<Inputs>) -> (Tensors<Inputs>, Arc<RecordingRuntime>) {
    let (device, recording) = recorder(contract.arch);
    let tensors = Tensors::new(device, &contract.inputs).unwrap();
    recording.take_calls();
    (tensors, recording)
}

#[test]
fn binding_zeroes_the_counters_and_a_launch_only_launches() {
    // SAFETY: the recording runtime follows no handle.
    let other = unsafe { Stream::from_raw(0x1234) };
    match split().a_launch_only_launches(&[Stream::DEFAULT, other]).as_slice() {
        [Call::Allocate(_), Call::Fill(_, 0, zeroed), Call::Load(_)] => assert_eq!(*zeroed, 3 * 8 * 4),
        other => panic!("{other:?}"),
    }
}

#[test]
fn failures() {
    split().failures_leak_nothing();
}

#[test]
fn the_parameter_block_says_what_was_bound() {
    let (tensors, recording) = recorded(&split());
    let decision = tensors.plan.decision().unwrap().clone();
    let bound = tensors.bind(&tensors.views()).unwrap();
    recording.take_calls();
    bound.launch(Stream::DEFAULT).unwrap();
    let calls = recording.take_calls();
    let [Call::Launch(_, config, params, _)] = calls.as_slice() else { panic!("{calls:?}") };
    assert_eq!(Some(*config), decision.launch);

    // Offsets as kernels/gqa_decode/params.cuh: nine pointers, capacity, then 32-bit fields.
    let u64_at = |offset: usize| u64::from_le_bytes(params[offset..offset + 8].try_into().unwrap());
    let u32_at = |offset: usize| u32::from_le_bytes(params[offset..offset + 4].try_into().unwrap());
    for (i, name) in ["q", "kv", "sequence_lengths", "out"].into_iter().enumerate() {
        assert_eq!(u64_at(8 * i), tensors.buffer(name).address(), "{name}");
    }
    assert_eq!(u64_at(32), 0, "no log-sum-exp");
    let base = tensors.buffer("workspace").address();
    for (offset, region) in [(40, "partial_out"), (48, "partial_max"), (56, "partial_sum"), (64, "completed")] {
        assert_eq!(u64_at(offset), base + decision.workspace.region(region).unwrap().offset, "{region}");
    }
    assert_eq!(u64_at(72), 5000);
    assert_eq!((u32_at(80), u32_at(84)), (8, 10));
    let scale = 0.75 / 128f64.sqrt() * std::f64::consts::LOG2_E;
    let given = f64::from(f32::from_bits(u32_at(88)));
    assert!((given / scale - 1.0).abs() <= 2f64.powi(-24), "{given} for {scale}");
    assert_eq!(u32_at(92), decision.early_tiles);
    assert_eq!(params.len(), 96);
}

#[test]
fn a_workspace_of_the_caller_is_used_and_never_grown() {
    let (tensors, recording) = recorded(&split());
    let _bound = tensors.bind(&tensors.views()).unwrap();
    let calls = recording.take_calls();
    let [Call::Fill(counters, 0, _), Call::Load(_)] = calls.as_slice() else { panic!("{calls:?}") };
    let completed = tensors.plan.decision().unwrap().workspace.region("completed").unwrap().offset;
    assert_eq!(*counters, tensors.buffer("workspace").address() + completed);
}

#[test]
fn one_split_needs_no_workspace_and_an_empty_batch_nothing_at_all() {
    for (splits, lengths, wanted) in [(1, &[5000][..], 1), (2, &[], 0)] {
        let problem = GqaDecode { capacity: 5000, num_splits: Some(splits), ..GqaDecode::default() };
        let (tensors, recording) = recorded(&contract(&problem, lengths));
        let mut views = tensors.views();
        views.remove("workspace");
        let bound = tensors.bind(&views).unwrap();
        let calls = recording.take_calls();
        assert!(calls.len() == wanted && calls.iter().all(|call| matches!(call, Call::Load(_))), "{calls:?}");
        bound.launch(Stream::DEFAULT).unwrap();
        assert_eq!(recording.take_calls().len(), wanted, "launches");
    }
}

#[test]
fn plans_of_two_types_use_two_programs() {
    let (device, _) = recorder(Arch::Sm90);
    let programs = |dtype| device.plan(&GqaDecode { dtype, ..split_problem() }).unwrap().programs();
    assert_ne!(programs(DType::F16), programs(DType::Bf16));
}
