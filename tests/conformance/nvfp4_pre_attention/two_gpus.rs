//! The device rule, down to driver calls on two pretended GPUs: tensors on one, the caller at work with the other.

use std::sync::Arc;

use bakewell::error::Property;
use bakewell::{Device, Error, Stream};
use bakewell_conformance::Staged;
use bakewell_conformance::nvfp4_pre_attention::Inputs;
use bakewell_cuda::CudaRuntime;
use bakewell_cuda::mock::{FakeDevice, RecordingDriver};

use super::small;

fn two_gpus() -> (Arc<RecordingDriver>, [Device; 2]) {
    let driver = RecordingDriver::new(&[FakeDevice::new((9, 0), 132), FakeDevice::new((9, 0), 132)]);
    let device = |ordinal| Device::with_runtime(CudaRuntime::with_driver(driver.clone(), ordinal).unwrap()).unwrap();
    let devices = [device(0), device(1)];
    (driver, devices)
}

/// Whatever device is current, also none: two launches, no other work, the caller's context back.
#[test]
fn a_run_is_two_driver_launches_and_restores_the_callers_context() {
    let (driver, devices) = two_gpus();
    let staged = Staged::new(&devices[1], &Inputs::generate(&small(3, 1), 1)).unwrap();
    for caller in [Some(0), Some(1), None] {
        driver.make_current(caller);
        let before = driver.launches().len();
        let bound = staged.bind().unwrap();
        assert_eq!(driver.current(), caller, "bound");
        assert_eq!(driver.launches().len(), before + 1, "the program that decodes the weight");
        driver.take_names();
        // SAFETY: the recording driver follows no handle.
        bound.launch(unsafe { Stream::from_raw(0x77) }).unwrap();
        assert_eq!(driver.current(), caller, "launched");
        let names = driver.take_names();
        let (launches, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| *name == "cuLaunchKernelEx");
        assert_eq!(launches.len(), 2);
        assert!(others.iter().all(|name| name.starts_with("cuCtx")), "{others:?}");
    }
}

#[test]
fn a_tensor_on_the_other_gpu_is_named() {
    let (driver, devices) = two_gpus();
    let inputs = Inputs::generate(&small(3, 1), 1);
    let (here, there) = (Staged::new(&devices[1], &inputs).unwrap(), Staged::new(&devices[0], &inputs).unwrap());
    let mut args = here.args().unwrap();
    args.rope_cos_sin = there.args().unwrap().rope_cos_sin;
    match here.plan().bind(args) {
        Err(Error::Argument { argument: "rope_cos_sin", property: Property::Location, expected, given }) => {
            assert_eq!(expected, "memory of cuda:1");
            assert!(given.contains("cuda:0"), "{given}");
        }
        other => panic!("{other:?}"),
    }
    assert!(driver.launches().is_empty());
}

/// Any driver call of binding and launching may fail: a typed error, the caller's context, and nothing left behind.
#[test]
fn a_driver_failure_at_any_call_is_an_error_and_leaks_nothing() {
    let inputs = Inputs::generate(&small(3, 1), 1);
    let mut failures = 0;
    for n in 0.. {
        let (driver, devices) = two_gpus();
        let staged = Staged::new(&devices[1], &inputs).unwrap();
        let before = driver.alive();
        driver.make_current(Some(0));
        driver.fail_after(n, 2);
        let result = staged.bind().and_then(|bound| bound.launch(Stream::DEFAULT));
        let pending = driver.take_pending_failure();
        assert_eq!(driver.current(), Some(0), "call {n}");
        match result {
            Err(Error::Driver { code: 2, .. } | Error::Argument { property: Property::Location, .. }) => {
                failures += 1;
                assert_eq!(driver.alive().allocations, before.allocations, "call {n}");
            }
            Ok(()) if pending => {
                assert_eq!(driver.alive().allocations, before.allocations);
                break;
            }
            // The image of the weight was being given back: there is nobody to tell.
            Ok(()) => {}
            Err(other) => panic!("call {n}: {other}"),
        }
    }
    assert!(failures >= 6, "reads, loads, allocation and launches at least; {failures}");
}
