//! What binding and launching ask of a device, on one that records.

use bakewell::nvfp4_pre_attention::Nvfp4PreAttention;
use bakewell::{Arch, Device, Stream};
use bakewell_conformance::Staged;
use bakewell_conformance::nvfp4_pre_attention::Inputs;
use bakewell_tests::contract::{Contract, recorder};
use bakewell_tests::recording::Call;

use super::small;

fn contract() -> Contract<Inputs> {
    Contract { inputs: Inputs::generate(&small(130, 2), 7), arch: Arch::Sm90 }
}

/// On sm90 binding reads the scales, decodes the weight into memory of its own, and loads; a launch is two launches.
#[test]
fn binding_reads_prepares_and_loads_and_a_launch_only_launches() {
    // SAFETY: the recorder follows no handle.
    let other = unsafe { Stream::from_raw(0x1234) };
    let calls = contract().a_launch_only_launches(&[Stream::DEFAULT, other, Stream::DEFAULT]);
    let image = contract().inputs.problem.columns() * contract().inputs.problem.hidden * 2;
    match calls.as_slice() {
        [
            Call::Allocate(_),
            Call::Read(_, 4),
            Call::Read(_, 4),
            Call::Read(_, 4),
            Call::Allocate(bytes),
            Call::Load(weight_image),
            Call::Launch(..),
            Call::Synchronize(0),
            Call::Load(_),
            Call::Load(_),
        ] => assert_eq!((*bytes, weight_image.as_str()), (image, "sm90/nvfp4_pre_attention-weight_image")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn failures() {
    contract().failures_leak_nothing();
}

/// Nothing to compute: bound and launched without a scale read, a program, a workspace or a launch.
#[test]
fn an_empty_problem_launches_nothing() {
    let (device, recording) = recorder(Arch::Sm90);
    let staged = Staged::new(&device, &Inputs::generate(&small(0, 1), 7)).unwrap();
    recording.take_calls();
    staged.bind().unwrap().launch(Stream::DEFAULT).unwrap();
    assert_eq!(recording.take_calls(), []);
    let plan = device.plan(&Nvfp4PreAttention { tokens: 0, ..Nvfp4PreAttention::default() }).unwrap();
    assert_eq!((plan.decision().unwrap().launches, plan.workspace_bytes()), (None, 0));
    assert!(plan.schedules().is_empty() && plan.preparations().is_empty());
    let reference = Staged::new(&Device::reference().unwrap(), &Inputs::generate(&small(0, 1), 7)).unwrap();
    reference.bind().unwrap().launch(Stream::DEFAULT).unwrap();
    assert!(reference.outputs().unwrap()["out_q"].bytes.is_empty());
}
