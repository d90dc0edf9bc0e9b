//! Opening devices, with and without a driver.

use bakewell::{Arch, Device, DeviceName, Error};
use bakewell_tests::recording::RecordingRuntime;

/// Without a driver library the error says where it was looked for; with one, an ordinal that is not there is refused.
#[test]
fn asking_for_a_gpu_that_is_not_there_is_a_typed_error() {
    match Device::cuda(4096) {
        Err(Error::NoDriver { searched }) => assert!(searched.contains("libcuda"), "{searched}"),
        Err(Error::NoDevice { ordinal: 4096, count }) => assert!(count < 4096),
        Err(Error::FeatureMissing { feature: "cuda" }) if cfg!(not(feature = "cuda")) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_best_device_always_opens() {
    let device = Device::open(DeviceName::Auto).unwrap();
    println!("auto is {device}");
    let expected = match (Device::cuda(0).is_ok(), cfg!(feature = "emulator")) {
        (true, _) => "cuda:0",
        (false, true) => "emulated:sm110",
        (false, false) => "reference",
    };
    assert_eq!(device.name(), expected);
}

#[test]
fn a_device_of_every_architecture_finds_its_programs() {
    for arch in Arch::ALL {
        let device = Device::with_runtime(RecordingRuntime::new(arch, 10)).unwrap();
        assert_eq!((device.arch(), device.sm_count()), (Some(arch), Some(10)));
        assert_eq!(device.library().unwrap().map(|library| library.arch), Some(arch));
    }
    let reference = Device::reference().unwrap();
    assert_eq!((reference.arch(), reference.sm_count()), (None, None));
}
