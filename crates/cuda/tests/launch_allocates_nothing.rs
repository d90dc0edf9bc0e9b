//! A launch of a loaded kernel allocates no host memory. The counter needs the process's allocator, hence its own test program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bakewell_core::Stream;
use bakewell_cuda::CudaRuntime;
use bakewell_cuda::ceilings::Ceilings;
use bakewell_cuda::mock::{FakeDevice, RecordingDriver};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged to the system allocator; counting touches no memory it manages.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_launch_allocates_no_host_memory() {
    let driver = RecordingDriver::new(&[FakeDevice::new((9, 0), 132)]);
    let runtime = CudaRuntime::with_driver(driver.clone(), 0).unwrap();
    let ceilings = Ceilings::load(&runtime).unwrap();
    driver.record(false);
    // The first launch on a thread may set up thread-local state of the fake.
    ceilings.empty(Stream::DEFAULT).unwrap();
    let before = ALLOCATIONS.get();
    for _ in 0..100 {
        ceilings.empty(Stream::DEFAULT).unwrap();
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    driver.record(true);
    ceilings.empty(Stream::DEFAULT).unwrap();
    assert_ne!(ALLOCATIONS.get() - before, 0, "the counter counts");
}
