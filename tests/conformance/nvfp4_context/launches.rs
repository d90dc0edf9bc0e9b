//! What binding and launching ask of a device, on one that records.

use bakewell::nvfp4_context::Nvfp4Context;
use bakewell::{Arch, Device, Stream};
use bakewell_conformance::nvfp4_context::{ScaleOrigin, Staged};
use bakewell_tests::recording::{Call, RecordingRuntime};

use super::{generated, mixed};

#[test]
fn binding_encodes_loads_and_zeroes_and_a_launch_only_launches() {
    let recording = RecordingRuntime::new(Arch::Sm103, 152);
    let device = Device::with_runtime(recording.clone()).unwrap();
    let staged = Staged::new(&device, &generated(&mixed(), Some(2)), ScaleOrigin::Host).unwrap();
    let decision = staged.plan().decision().unwrap().clone();
    let completed = decision.workspace.region("completed").unwrap().bytes;
    recording.take_calls();
    let bound = staged.bind().unwrap();
    let calls = recording.take_calls();
    let [Call::Fill(_, 0, bytes), maps @ .., Call::Load(program)] = calls.as_slice() else { panic!("{calls:?}") };
    assert_eq!((*bytes, program), (completed, &decision.program()));
    assert_eq!(maps, ["q", "k_packed", "v_packed", "k_scale", "v_scale"].map(Call::EncodeTensorMap));
    for _ in 0..2 {
        bound.launch(Stream::DEFAULT).unwrap();
        match recording.take_calls().as_slice() {
            [Call::Launch(_, config, _, Stream::DEFAULT)] => assert_eq!(Some(*config), decision.launch),
            other => panic!("{other:?}"),
        }
    }
}

/// Nothing to compute: bound and launched without a program, a workspace or a launch.
#[test]
fn an_empty_problem_launches_nothing() {
    let recording = RecordingRuntime::new(Arch::Sm100, 148);
    let device = Device::with_runtime(recording.clone()).unwrap();
    let mut inputs = generated(&mixed(), None);
    inputs.problem.max_q_len = 0;
    let staged = Staged::new(&device, &inputs, ScaleOrigin::Device).unwrap();
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
