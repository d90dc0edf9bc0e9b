//! The whole way down to driver calls, on two pretended GPUs.

use std::sync::Arc;

use bakewell::error::Property;
use bakewell::gqa_decode::{GqaDecode, GqaDecodeArgs};
use bakewell::{Buffer, DType, Device, Error, Stream};
use bakewell_cuda::CudaRuntime;
use bakewell_cuda::mock::{FakeDevice, RecordingDriver};

fn two_gpus() -> (Arc<RecordingDriver>, [Device; 2]) {
    let driver = RecordingDriver::new(&[FakeDevice::new((9, 0), 132), FakeDevice::new((9, 0), 132)]);
    let device = |ordinal| Device::with_runtime(CudaRuntime::with_driver(driver.clone(), ordinal).unwrap()).unwrap();
    let devices = [device(0), device(1)];
    (driver, devices)
}

/// Two clusters of partials per row, so that there is a workspace.
fn problem() -> GqaDecode {
    GqaDecode { batch: 2, capacity: 200, num_splits: Some(10), ..GqaDecode::default() }
}

/// Buffers for `q`, `kv`, `sequence_lengths` and `out`.
fn tensors(device: &Device) -> [Buffer; 4] {
    let problem = problem();
    let q_bytes = problem.q_shape().iter().product::<u64>() * 2;
    let kv_bytes = problem.kv_shape().iter().product::<u64>() * 2;
    [q_bytes, kv_bytes, 8, q_bytes].map(|bytes| device.buffer(bytes).unwrap())
}

fn args<'t>([q, kv, lengths, out]: [&'t Buffer; 4]) -> GqaDecodeArgs<'t> {
    let problem = problem();
    GqaDecodeArgs {
        q: q.view(DType::F16, &problem.q_shape()).unwrap(),
        kv: kv.view(DType::F16, &problem.kv_shape()).unwrap(),
        sequence_lengths: lengths.view(DType::I32, &[2]).unwrap(),
        out: out.view(DType::F16, &problem.q_shape()).unwrap(),
        lse: None,
        workspace: None,
    }
}

#[test]
fn a_tensor_on_the_other_gpu_is_named() {
    let (driver, devices) = two_gpus();
    let (here, there) = (tensors(&devices[1]), tensors(&devices[0]));
    let plan = devices[1].plan(&problem()).unwrap();
    for (i, name) in ["q", "kv", "sequence_lengths", "out"].into_iter().enumerate() {
        let mut mixed = here.each_ref();
        mixed[i] = &there[i];
        match plan.bind(args(mixed)) {
            Err(Error::Argument { argument, property: Property::Location, expected, given }) => {
                assert_eq!((argument, expected.as_str()), (name, "memory of cuda:1"));
                assert!(given.contains("cuda:0"), "{given}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(driver.launches().is_empty());
}

/// A launch on one GPU while the caller works with the other: one launch, no other work, the caller's context back.
#[test]
fn a_launch_is_one_driver_launch_and_restores_the_callers_context() {
    let (driver, devices) = two_gpus();
    let tensors = tensors(&devices[1]);
    let bound = devices[1].plan(&problem()).unwrap().bind(args(tensors.each_ref())).unwrap();
    for caller in [Some(0), Some(1), None] {
        driver.make_current(caller);
        driver.take_names();
        // SAFETY: the recording driver follows no handle.
        bound.launch(unsafe { Stream::from_raw(0x77) }).unwrap();
        assert_eq!(driver.current(), caller);
        let names = driver.take_names();
        let (launches, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| *name == "cuLaunchKernelEx");
        assert_eq!(launches.len(), 1);
        assert!(others.iter().all(|name| name.starts_with("cuCtx")), "{others:?}");
    }
    assert_eq!(driver.launches().len(), 3);
}

/// Any driver call of plan, bind and launch may fail: a typed error, the caller's context, and nothing left behind.
#[test]
fn a_driver_failure_at_any_call_is_an_error_and_leaks_nothing() {
    let mut failures = 0;
    for n in 0.. {
        let (driver, devices) = two_gpus();
        let tensors = tensors(&devices[1]);
        let before = driver.alive();
        driver.make_current(Some(0));
        driver.fail_after(n, 2);
        let plan = devices[1].plan(&problem()).unwrap();
        let result = plan.launch(Stream::DEFAULT, args(tensors.each_ref()));
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
            // The workspace was being given back: there is nobody to tell.
            Ok(()) => {}
            Err(other) => panic!("call {n}: {other}"),
        }
    }
    assert!(failures >= 4, "module load, function, allocation, launch at least; {failures}");
}
