//! What binding and launching ask of a device, on one that records.

use bakewell::{Arch, Device, Stream};
use bakewell_conformance::gdn::{Case, Inputs, Place, Staged};
use bakewell_tests::recording::{Call, RecordingRuntime};

fn staged(recording: &std::sync::Arc<RecordingRuntime>, case: &Case) -> Staged {
    let device = Device::with_runtime(recording.clone()).unwrap();
    Staged::new(&device, &Inputs { place: Place::Packed, ..case.inputs().unwrap() }).unwrap()
}

/// Tables go up in one transfer when binding; with offsets on the device nothing goes up; a launch only launches.
#[test]
fn binding_uploads_tables_once_and_a_launch_only_launches() {
    for (device_offsets, uploads) in [(false, 1), (true, 0)] {
        let recording = RecordingRuntime::new(Arch::Sm90, 132);
        let staged = staged(&recording, &Case { lengths: vec![70, 3], device_offsets, ..Case::default() });
        recording.take_calls();
        let bound = staged.bind().unwrap();
        let calls = recording.take_calls();
        let count = |of: fn(&Call) -> bool| calls.iter().filter(|call| of(call)).count();
        assert_eq!(count(|call| matches!(call, Call::Write(..))), uploads * bound.len(), "{calls:?}");
        assert_eq!(count(|call| matches!(call, Call::Launch(..) | Call::Read(..) | Call::Synchronize(_))), 0);
        let steps = |plan: &bakewell::gdn::Decision| plan.steps.iter().map(|step| step.config).collect::<Vec<_>>();
        let plans = [staged.forward_plan().decision(), staged.backward_plan().and_then(|plan| plan.decision())];
        for (bound, plan) in bound.iter().zip(plans.into_iter().flatten()) {
            for _ in 0..2 {
                bound.launch(Stream::DEFAULT).unwrap();
                let launched: Vec<_> = recording
                    .take_calls()
                    .into_iter()
                    .map(|call| match call {
                        Call::Launch(_, config, _, 0) => config,
                        other => panic!("{other:?}"),
                    })
                    .collect();
                assert_eq!(launched, steps(plan));
            }
        }
    }
}

#[test]
fn an_empty_problem_launches_nothing() {
    let recording = RecordingRuntime::new(Arch::Sm100, 148);
    let staged = staged(&recording, &Case { lengths: vec![0, 0], ..Case::default() });
    let bound = staged.bind().unwrap();
    recording.take_calls();
    bound.iter().for_each(|bound| bound.launch(Stream::DEFAULT).unwrap());
    assert_eq!(recording.take_calls(), []);
}
