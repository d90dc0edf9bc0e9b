//! A launch of a binding allocates no host memory. The counter is the allocator of the process, so this is a program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bakewell::gqa_decode::GqaDecode;
use bakewell::nvfp4_pre_attention::Nvfp4PreAttention;
use bakewell::{Device, Stream};
use bakewell_conformance::{Staged, gdn, gqa_decode, nvfp4_context, nvfp4_pre_attention};
use bakewell_cuda::CudaRuntime;
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
    let device = Device::with_runtime(runtime).unwrap();
    let decode = GqaDecode { capacity: 5000, num_splits: Some(10), ..GqaDecode::default() };
    let decode = gqa_decode::Inputs::generate(&decode, &[5000], gqa_decode::Distribution::Normal, 7).unwrap();
    let context = nvfp4_context::cases().swap_remove(0).inputs();
    let pre_attention = Nvfp4PreAttention { tokens: 5, hidden: 320, heads: 2, ..Nvfp4PreAttention::default() };
    let pre_attention = nvfp4_pre_attention::Inputs::generate(&pre_attention, 7);
    let training = gdn::Case { lengths: vec![70], ..gdn::Case::default() }.inputs().unwrap();

    let (decode, context) = (Staged::new(&device, &decode).unwrap(), Staged::new(&device, &context).unwrap());
    let pre_attention = Staged::new(&device, &pre_attention).unwrap();
    let training = gdn::Staged::new(&device, &training).unwrap();
    let mut bound = vec![decode.bind().unwrap(), context.bind().unwrap(), pre_attention.bind().unwrap()];
    bound.extend(training.bind().unwrap());
    assert_eq!(bound.len(), 5, "the last is a forward and a backward");
    for bound in bound {
        driver.record(false);
        // The first launch on a thread may set up thread-local state of the fake.
        bound.launch(Stream::DEFAULT).unwrap();
        let before = ALLOCATIONS.get();
        for _ in 0..100 {
            bound.launch(Stream::DEFAULT).unwrap();
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "{bound:?}");
        driver.record(true);
        bound.launch(Stream::DEFAULT).unwrap();
        assert_ne!(ALLOCATIONS.get() - before, 0, "the counter counts");
    }
}
