//! What binding and launching ask of a device, on one that records.

use bakewell::nvfp4_context::{Family, Nvfp4Context};
use bakewell::{Arch, Stream};
use bakewell_conformance::Staged;
use bakewell_conformance::nvfp4_context::Inputs;
use bakewell_tests::contract::{Contract, recorder};
use bakewell_tests::recording::Call;

use super::{few, generated, mixed};

fn contract() -> Contract<Inputs> {
    Contract { inputs: generated(&mixed(), Some(2)), arch: Arch::Sm103 }
}

#[test]
fn binding_zeroes_and_encodes_and_a_launch_only_launches() {
    let calls = contract().a_launch_only_launches(&[Stream::DEFAULT]);
    let [Call::Allocate(_), Call::Fill(_, 0, zeroed), maps @ .., Call::Load(_)] = calls.as_slice() else {
        panic!("{calls:?}")
    };
    let plan = recorder(Arch::Sm103).0.plan(&contract().inputs.problem).unwrap();
    assert_eq!(*zeroed, plan.decision().unwrap().workspace.region("completed").unwrap().bytes);
    assert_eq!(maps, ["q", "k_packed", "v_packed", "k_scale", "v_scale"].map(Call::EncodeTensorMap));
}

/// Decode takes plain addresses: no tensor map.
#[test]
fn binding_decode_zeroes_and_loads() {
    let mut inputs = generated(&few(), Some(3));
    inputs.problem.family = Some(Family::Decode);
    let calls = Contract { inputs, arch: Arch::Sm90 }.a_launch_only_launches(&[Stream::DEFAULT]);
    assert!(matches!(calls.as_slice(), [Call::Allocate(_), Call::Fill(_, 0, _), Call::Load(_)]), "{calls:?}");
}

/// Three launches: one expands the cache, whose maps it has; the second has that of the queries; the last merges the
/// splits.
#[test]
fn binding_the_expanded_family_encodes_and_loads_for_all_launches() {
    let mut inputs = generated(&mixed(), Some(2));
    inputs.problem.family = Some(Family::Expanded);
    let calls = Contract { inputs, arch: Arch::Sm90 }.a_launch_only_launches(&[Stream::DEFAULT]);
    let [Call::Allocate(_), cache @ .., Call::Load(_), q, Call::Load(_), Call::Load(_)] = calls.as_slice() else {
        panic!("{calls:?}")
    };
    assert_eq!(cache, ["k_packed", "v_packed", "k_scale", "v_scale"].map(Call::EncodeTensorMap));
    assert_eq!(*q, Call::EncodeTensorMap("q"));
}

#[test]
fn failures() {
    contract().failures_leak_nothing();
}

/// Nothing to compute: bound and launched without a program, a workspace or a launch.
#[test]
fn an_empty_problem_launches_nothing() {
    let (device, recording) = recorder(Arch::Sm100);
    let mut inputs = generated(&mixed(), None);
    inputs.problem.max_q_len = 0;
    let staged = Staged::new(&device, &inputs).unwrap();
    recording.take_calls();
    staged.bind().unwrap().launch(Stream::DEFAULT).unwrap();
    assert_eq!(recording.take_calls(), []);
    for problem in [
        Nvfp4Context { batch: 0, ..Nvfp4Context::default() },
        Nvfp4Context { total_q: 0, ..Nvfp4Context::default() },
        Nvfp4Context { max_q_len: 0, ..Nvfp4Context::default() },
    ] {
        let plan = device.plan(&problem).unwrap();
        assert_eq!((plan.decision().unwrap().launch, plan.workspace_bytes()), (None, 0), "{problem:?}");
    }
}
