//! Down to driver calls, on two pretended GPUs: tensors on the second, the caller at work with the first.

use std::sync::Arc;

use bakewell::error::Property;
use bakewell::gqa_decode::GqaDecode;
use bakewell::nvfp4_context::Nvfp4Context;
use bakewell::nvfp4_pre_attention::Nvfp4PreAttention;
use bakewell::{Bound, Device, Error, Result, Stream};
use bakewell_conformance::{CallInputs, gdn, gqa_decode, nvfp4_context, nvfp4_pre_attention};
use bakewell_cuda::CudaRuntime;
use bakewell_cuda::mock::{FakeDevice, RecordingDriver};
use bakewell_tests::contract::Tensors;

fn two_gpus() -> (Arc<RecordingDriver>, [Device; 2]) {
    let driver = RecordingDriver::new(&[FakeDevice::new((9, 0), 132), FakeDevice::new((9, 0), 132)]);
    let device = |ordinal| Device::with_runtime(CudaRuntime::with_driver(driver.clone(), ordinal).unwrap()).unwrap();
    let devices = [device(0), device(1)];
    (driver, devices)
}

/// Tensors on a device for every call of an operation.
trait Calls {
    /// Binds all calls, which allocate what they need.
    fn bind_all(&self) -> Result<Vec<Bound<'_>>>;

    /// Programs that binding runs, and those that launching runs.
    fn programs(&self) -> [usize; 2];
}

impl<I: CallInputs> Calls for Tensors<I> {
    fn bind_all(&self) -> Result<Vec<Bound<'_>>> {
        let mut views = self.views();
        views.remove("workspace");
        Ok(vec![self.bind(&views)?])
    }

    fn programs(&self) -> [usize; 2] {
        [self.plan.preparations().len(), self.plan.schedules().len()]
    }
}

impl Calls for gdn::Staged {
    fn bind_all(&self) -> Result<Vec<Bound<'_>>> {
        self.bind()
    }

    fn programs(&self) -> [usize; 2] {
        let backward = self.backward_plan().map_or(0, |plan| plan.schedules().len());
        [0, self.forward_plan().schedules().len() + backward]
    }
}

/// Whatever device is current, also none: launches and no other work, the caller's context back.
fn the_callers_context_is_restored(calls: impl Fn(&Device) -> Box<dyn Calls>) {
    let (driver, devices) = two_gpus();
    let calls = calls(&devices[1]);
    let [prepared, launched] = calls.programs();
    for caller in [Some(0), Some(1), None] {
        driver.make_current(caller);
        let before = driver.launches().len();
        let bound = calls.bind_all().unwrap();
        assert_eq!(driver.current(), caller, "bound");
        assert_eq!(driver.launches().len() - before, prepared, "while binding");
        driver.take_names();
        // SAFETY: the recording driver follows no handle.
        let stream = unsafe { Stream::from_raw(0x77) };
        bound.iter().for_each(|bound| bound.launch(stream).unwrap());
        assert_eq!(driver.current(), caller, "launched");
        let (launches, others): (Vec<_>, Vec<_>) =
            driver.take_names().into_iter().partition(|name| *name == "cuLaunchKernelEx");
        assert_eq!(launches.len(), launched);
        assert!(others.iter().all(|name| name.starts_with("cuCtx")), "{others:?}");
        assert!(driver.launches().iter().all(|launch| launch.device == 1));
    }
}

/// Any driver call of binding and launching may fail: a typed error, the caller's context, and nothing left behind.
fn failures_leak_nothing(calls: impl Fn(&Device) -> Box<dyn Calls>) {
    let mut failures = 0;
    for n in 0.. {
        let (driver, devices) = two_gpus();
        let calls = calls(&devices[1]);
        let before = driver.alive().allocations;
        driver.make_current(Some(0));
        driver.fail_after(n, 2);
        let result =
            calls.bind_all().and_then(|bound| bound.iter().try_for_each(|bound| bound.launch(Stream::DEFAULT)));
        let pending = driver.take_pending_failure();
        assert_eq!(driver.current(), Some(0), "call {n}");
        match result {
            Err(Error::Driver { code: 2, .. } | Error::Argument { property: Property::Location, .. }) => {
                failures += 1;
                assert_eq!(driver.alive().allocations, before, "call {n}");
            }
            Ok(()) if pending => {
                assert_eq!(driver.alive().allocations, before);
                break;
            }
            // Memory was being given back: there is nobody to tell.
            Ok(()) => {}
            Err(other) => panic!("call {n}: {other}"),
        }
    }
    assert!(failures >= 4, "module load, function, allocation, launch at least; {failures}");
}

/// Each tensor in memory of the first GPU is refused by its name, in words that name that GPU.
fn tensors_on_the_other_gpu_are_named<I: CallInputs>(inputs: &I) {
    let (driver, [first, second]) = two_gpus();
    let here = Tensors::new(second, inputs).unwrap();
    here.refuse_those_of(&first);
    let (mut views, spec) = (here.views(), &inputs.specs()[0]);
    let there = first.buffer(spec.bytes()).unwrap();
    views.put(spec.name, there.view(spec.dtype, &spec.shape).unwrap());
    let error = here.bind(&views).unwrap_err().to_string();
    assert!(error.ends_with("which is memory of cuda:0"), "{error}");
    assert!(driver.launches().is_empty());
}

fn check<I: CallInputs + 'static>(inputs: &I) {
    let calls = |device: &Device| Box::new(Tensors::new(device.clone(), inputs).unwrap()) as Box<dyn Calls>;
    the_callers_context_is_restored(calls);
    failures_leak_nothing(calls);
    tensors_on_the_other_gpu_are_named(inputs);
}

/// Two clusters of partials per row, so that there is a workspace.
#[test]
fn gqa_decode_on_the_second_gpu() {
    let problem = GqaDecode { capacity: 200, num_splits: Some(10), lse: true, ..GqaDecode::default() };
    let normal = gqa_decode::Distribution::Normal;
    check(&gqa_decode::Inputs::generate(&problem, &[200, 50], normal, 3).unwrap());
}

#[test]
fn nvfp4_context_on_the_second_gpu() {
    let spec = nvfp4_context::Spec { q_heads: 8, kv_heads: 2, q_lens: vec![4, 2], kv_lens: vec![140, 16], sinks: true };
    let mut inputs = nvfp4_context::Inputs::generate(&spec, 3);
    inputs.problem = Nvfp4Context { num_splits: Some(2), lse: true, ..inputs.problem };
    inputs.scale_origin = nvfp4_context::ScaleOrigin::Device;
    check(&inputs);
}

/// Binding decodes the weight.
#[test]
fn nvfp4_pre_attention_on_the_second_gpu() {
    let problem = Nvfp4PreAttention { tokens: 3, hidden: 320, heads: 2, table_rows: 3, ..Nvfp4PreAttention::default() };
    check(&nvfp4_pre_attention::Inputs::generate(&problem, 1));
}

/// Tables that are uploaded, and tables that the device builds.
#[test]
fn gdn_on_the_second_gpu() {
    for device_offsets in [false, true] {
        let case = gdn::Case { lengths: vec![70, 3], device_offsets, ..gdn::Case::default() };
        let inputs = gdn::Inputs { place: gdn::Place::Packed, ..case.inputs().unwrap() };
        let calls = |device: &Device| Box::new(gdn::Staged::new(device, &inputs).unwrap()) as Box<dyn Calls>;
        the_callers_context_is_restored(calls);
        failures_leak_nothing(calls);
    }
    let (_, [first, second]) = two_gpus();
    crate::gdn::refuse_tensors_elsewhere(&second, &first);
}
