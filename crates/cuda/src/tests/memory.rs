//! Allocation, copies, and where an address lies.

use bakewell_core::{Buffer, Error, Memory};

use super::{open, two_devices};
use crate::driver::{PointerFacts, PointerKind};

#[test]
fn contents_travel_both_ways_and_every_copy_is_complete_when_it_returns() {
    let driver = two_devices();
    let runtime = open(&driver, 0);
    let buffer = Buffer::from_bytes(runtime.clone(), &[1, 2, 3, 4]).unwrap();
    let names = driver.take_names();
    let copy = names.iter().position(|name| *name == "cuMemcpyHtoD_v2").unwrap();
    assert_eq!(names[copy + 1], "cuStreamSynchronize");
    assert_eq!(buffer.read().unwrap(), [1, 2, 3, 4]);
    let names = driver.take_names();
    let copy = names.iter().position(|name| *name == "cuMemcpyDtoH_v2").unwrap();
    assert_eq!(names[copy - 1], "cuCtxSynchronize", "work of every stream is waited for before a read");
    buffer.fill(9).unwrap();
    runtime.write(buffer.address() + 1, &[5, 6]).unwrap();
    assert_eq!(buffer.read().unwrap(), [9, 5, 6, 9]);
    drop(buffer);
    assert_eq!(driver.alive().allocations, 0);
}

#[test]
fn memory_of_another_place_is_never_copied_to() {
    let driver = two_devices();
    let (first, second) = (open(&driver, 0), open(&driver, 1));
    let here = first.allocate(100).unwrap();
    let there = second.allocate(100).unwrap();
    let facts = |kind| PointerFacts { kind, ordinal: 0, start: 0x7000, bytes: 64 };
    driver.pretend(0x7000, facts(PointerKind::Host));
    driver.pretend(0x7010, facts(PointerKind::Managed));

    first.locate(here, 100).unwrap();
    first.locate(here + 40, 60).unwrap();
    first.locate(0, 0).unwrap();
    first.locate(0x7010, 48).unwrap();
    for (address, bytes, part) in [
        (there, 4, "memory of cuda:1"),
        (0x7000, 4, "host memory"),
        (0x7010, 49, "in an allocation of 64 bytes"),
        (0x1234, 4, "does not know"),
        (here + 40, 61, "in an allocation of 100 bytes"),
        (here, u64::MAX, "in an allocation of 100 bytes"),
    ] {
        let found = first.locate(address, bytes).unwrap_err();
        assert!(found.contains(part), "{found}");
    }

    driver.take_calls();
    let error = first.write(there, &[0; 4]).unwrap_err();
    assert!(error.to_string().starts_with("address: expected 4 bytes of memory on cuda:0, got 0x"), "{error}");
    assert!(first.read(0x7000, &mut [0; 4]).is_err() && first.fill(0x1234, 0, 4).is_err());
    assert!(!driver.take_names().iter().any(|name| name.starts_with("cuMem")));
    first.free(here);
    second.free(there);
}

#[test]
fn running_out_of_memory_is_the_drivers_error_with_its_name() {
    let driver = two_devices();
    let runtime = open(&driver, 0);
    let error = runtime.allocate(1 << 40).unwrap_err();
    driver.take_calls();
    assert_eq!(error.to_string(), "cuMemAlloc_v2 failed with 2 (CUDA_ERROR_OUT_OF_MEMORY)");
    assert!(driver.take_calls().is_empty(), "formatting calls no driver");
    assert!(matches!(runtime.allocate(0), Err(Error::Argument { argument: "bytes", .. })));
}
