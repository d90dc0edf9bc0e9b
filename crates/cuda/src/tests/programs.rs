//! Opening devices, loading programs, launching them.

use bakewell_core::runtime::Kernel;
use bakewell_core::tensor_map::{MapType, Swizzle, TensorMapRequest};
use bakewell_core::{Error, LaunchConfig, Program, Runtime, Stream};

use super::{H200, config, open, program, two_devices};
use crate::mock::{Alive, FakeDevice, RecordingDriver};
use crate::{CudaRuntime, devices, devices_of};

#[test]
fn opening_retains_the_primary_context_and_leaves_none_current() {
    let driver = two_devices();
    let runtime = CudaRuntime::with_driver(driver.clone(), 1).unwrap();
    assert_eq!(driver.take_names().last(), Some(&"cuDevicePrimaryCtxRetain"));
    assert_eq!((driver.current(), driver.alive().contexts), (None, 1));
    assert_eq!((runtime.sm_count(), runtime.facts().compute_capability), (132, (9, 0)));
    drop(runtime);
    assert_eq!(driver.alive(), Alive::default());
}

#[test]
fn a_capability_without_programs_is_refused_before_any_context_is_made() {
    let driver = RecordingDriver::new(&[FakeDevice::new((12, 0), 170)]);
    let error = CudaRuntime::with_driver(driver.clone(), 0).unwrap_err();
    assert!(matches!(error, Error::UnsupportedDevice { major: 12, minor: 0, .. }), "{error}");
    assert!(error.to_string().contains("tensor memory"), "{error}");
    assert!(!driver.take_names().contains(&"cuDevicePrimaryCtxRetain"));
    // It is still listed, so that people can be told.
    let listed = devices_of(&*driver).unwrap();
    assert_eq!((listed.len(), listed[0].sm_count), (1, 170));
}

#[test]
fn a_device_that_is_not_there_is_named_with_the_count() {
    for (devices, ordinal) in [(vec![], 0), (vec![H200], 1), (vec![H200], u32::MAX)] {
        let driver = RecordingDriver::new(&devices);
        let error = CudaRuntime::with_driver(driver, ordinal).unwrap_err();
        assert!(
            matches!(error, Error::NoDevice { ordinal: o, count } if o == ordinal && count as usize == devices.len()),
            "{error}"
        );
    }
}

/// Holds with and without a driver on the machine: nothing panics, and an absurd ordinal is a typed error.
#[test]
fn the_real_library_is_asked_without_a_panic() {
    let error = CudaRuntime::open(u32::MAX).unwrap_err();
    match (devices(), &error) {
        (Err(Error::NoDriver { .. }), Error::NoDriver { searched }) => {
            assert!(searched.contains("libcuda.so.1") || searched.contains("nvcuda.dll"), "{searched}");
        }
        (Ok(devices), Error::NoDevice { count, .. }) => assert_eq!(devices.len(), *count as usize),
        (devices, error) => panic!("{devices:?} and {error}"),
    }
}

#[test]
fn loading_is_module_function_and_settings_in_this_order_and_happens_once() {
    let driver = two_devices();
    let runtime = open(&driver, 0);
    let program = program(b"\x7fELF cubin", 65_536);
    let kernel = runtime.load(&program).unwrap();
    assert_eq!(
        driver.take_calls(),
        [
            "cuCtxGetCurrent()",
            "cuCtxSetCurrent(cuda:0)",
            "cuModuleLoadData(10 bytes)",
            "cuModuleGetFunction(fake_entry)",
            "cuFuncSetAttribute(MaxDynamicSharedBytes, 65536)",
            "cuFuncSetAttribute(NonPortableClusterAllowed, 1)",
            "cuCtxSetCurrent(none)",
        ]
    );
    assert_eq!(runtime.load(&program).unwrap(), kernel);
    assert!(driver.take_calls().is_empty(), "a second load asks the driver nothing");
    // Another device loads its own.
    open(&driver, 1).load(&program).unwrap();
    assert!(driver.take_names().contains(&"cuModuleLoadData"));
}

#[test]
fn a_corrupt_cubin_is_refused_before_the_driver_sees_it() {
    let driver = two_devices();
    let runtime = open(&driver, 0);
    let good = program(b"\x7fELF good", 0);
    let other = program(b"\x7fELF evil", 0);
    let swapped = Program { embedded: other.embedded, ..good };
    let error = runtime.load(&swapped).unwrap_err();
    assert!(matches!(error, Error::Corrupt { what: "cubin", .. }), "{error}");
    assert!(driver.take_calls().is_empty());
    runtime.load(&good).unwrap();
}

#[test]
fn a_program_of_another_architecture_is_refused() {
    let driver = RecordingDriver::new(&[FakeDevice::new((10, 0), 148)]);
    let runtime = open(&driver, 0);
    let error = runtime.load(&program(b"\x7fELF", 0)).unwrap_err();
    assert_eq!(error.to_string(), "program: expected one for sm100, got sm90/gqa_decode-fake");
    assert!(driver.take_calls().is_empty());
}

#[test]
fn a_launch_is_one_driver_call_between_the_context_calls() {
    let driver = two_devices();
    let runtime = open(&driver, 0);
    let kernel = runtime.load(&program(b"\x7fELF", 1024)).unwrap();
    driver.take_calls();
    let config = LaunchConfig { dynamic_shared_bytes: 1024, ..config() };
    runtime.launch(kernel, &config, &[7; 24], Stream::DEFAULT).unwrap();
    let launch = "cuLaunchKernelEx(grid [4, 1, 1], block 128, 1024 shared bytes, [], 24 parameter bytes, stream 0)";
    assert_eq!(driver.take_calls(), ["cuCtxGetCurrent()", "cuCtxSetCurrent(cuda:0)", launch, "cuCtxSetCurrent(none)"]);
    // With the context already current there is nothing to set and nothing to restore.
    driver.make_current(Some(0));
    runtime.launch(kernel, &config, &[7; 24], Stream::DEFAULT).unwrap();
    assert_eq!(driver.take_calls(), ["cuCtxGetCurrent()", launch]);
    assert_eq!(driver.launches()[1].params, [7; 24]);
    assert_eq!(driver.launches()[1].entry, "fake_entry");
}

#[test]
fn cluster_and_programmatic_launch_become_attributes() {
    let driver = two_devices();
    let runtime = open(&driver, 0);
    let kernel = runtime.load(&program(b"\x7fELF", 0)).unwrap();
    for (cluster, programmatic, expected) in [
        ([2, 1, 1], false, "[Cluster([2, 1, 1])]"),
        ([1, 1, 1], true, "[ProgrammaticSerialization]"),
        ([4, 1, 1], true, "[Cluster([4, 1, 1]), ProgrammaticSerialization]"),
    ] {
        let config = LaunchConfig { cluster, programmatic_serialization: programmatic, ..config() };
        runtime.launch(kernel, &config, &[0; 8], Stream::DEFAULT).unwrap();
        assert_eq!(format!("{:?}", driver.launches().last().unwrap().attributes), expected);
    }
}

#[test]
fn two_devices_do_not_disturb_each_other_or_the_caller() {
    let driver = two_devices();
    let (first, second) = (open(&driver, 0), open(&driver, 1));
    let program = program(b"\x7fELF", 0);
    let kernels = [first.load(&program).unwrap(), second.load(&program).unwrap()];
    for caller in [None, Some(0), Some(1)] {
        driver.make_current(caller);
        second.launch(kernels[1], &config(), &[0; 8], Stream::DEFAULT).unwrap();
        assert_eq!(driver.current(), caller);
        first.launch(kernels[0], &config(), &[0; 8], Stream::DEFAULT).unwrap();
        assert_eq!(driver.current(), caller);
    }
    let devices: Vec<usize> = driver.launches().iter().map(|launch| launch.device).collect();
    assert_eq!(devices, [1, 0, 1, 0, 1, 0]);
}

#[test]
fn launches_that_cannot_work_are_refused_before_the_driver_is_asked() {
    let driver = two_devices();
    let runtime = open(&driver, 0);
    let kernel = runtime.load(&program(b"\x7fELF", 1024)).unwrap();
    driver.take_calls();
    let refused = |kernel, config: LaunchConfig| {
        runtime.launch(kernel, &config, &[0; 8], Stream::DEFAULT).unwrap_err().to_string()
    };
    assert_eq!(refused(Kernel(9), config()), "kernel: expected a kernel that this device loaded, got 9");
    assert_eq!(
        refused(kernel, LaunchConfig { dynamic_shared_bytes: 1025, ..config() }),
        "dynamic_shared_bytes: expected at most the 1024 bytes of sm90/gqa_decode-fake, got 1025"
    );
    assert!(refused(kernel, LaunchConfig { grid: [4, 65_536, 1], ..config() }).starts_with("grid: "));
    assert!(refused(kernel, LaunchConfig { cluster: [3, 1, 1], ..config() }).starts_with("cluster: "));
    assert!(driver.take_calls().is_empty());
}

#[test]
fn tensor_maps_are_validated_before_they_are_encoded() {
    let driver = two_devices();
    let runtime = open(&driver, 0);
    let request =
        |stride| TensorMapRequest::tiled(MapType::F16, 0x1000, &[64, 100], &[stride], &[64, 8], Swizzle::B128);
    let error = runtime.encode_tensor_map("kv", &request(136)).unwrap_err();
    assert!(error.to_string().starts_with("kv: expected a stride of dimension 1"), "{error}");
    assert!(driver.take_calls().is_empty());
    let map = runtime.encode_tensor_map("kv", &request(128)).unwrap();
    assert_eq!(map.0[..3], [0x1000, 64, 100]);
    assert_eq!(driver.take_names()[2], "cuTensorMapEncodeTiled");
}
