//! Tensors in slices, in memory of the recording driver; and on a GPU, where there is one, in slices of cudarc.

use bakewell_core::error::Property;
use bakewell_core::{DType, Error, Memory, Stream};
use cudarc::driver::{CudaContext, DriverError, SyncOnDrop};

use super::{Element, placed};
use crate::tests::{open, two_devices};
use crate::{CudaRuntime, adapters, devices};

/// Order on no stream.
fn no_order<'a>() -> SyncOnDrop<'a> {
    SyncOnDrop::Sync(None)
}

#[test]
fn element_sizes_agree_with_the_rust_types() {
    fn check<T: Element>() {
        assert_eq!(T::DTYPE.bytes(), size_of::<T>() as u64);
    }
    check::<half::f16>();
    check::<half::bf16>();
    check::<f32>();
    check::<f64>();
    check::<u8>();
    check::<i32>();
    check::<u32>();
    check::<i64>();
}

/// The whole slice, a part of it, and nothing: dense views that the device knows as its own.
#[test]
fn a_tensor_is_the_start_of_its_slice() {
    let driver = two_devices();
    let [runtime, other] = [open(&driver, 0), open(&driver, 1)];
    let address = runtime.allocate(6 * 2).unwrap();
    for shape in [&[2, 3][..], &[1, 5], &[6], &[0, 7], &[]] {
        let tensor = placed::<half::bf16>(6, shape, || (address, no_order())).unwrap();
        let view = tensor.view();
        assert_eq!((view.address(), view.dtype(), view.shape()), (address, DType::Bf16, shape));
        assert!(view.is_contiguous());
        let bytes = view.extent_bytes().unwrap();
        assert_eq!(bytes, 2 * shape.iter().product::<u64>());
        runtime.locate(view.address(), bytes).unwrap();
        assert_eq!(other.locate(view.address(), bytes).is_ok(), bytes == 0);
        assert_eq!(format!("{tensor:?}"), format!("{view:?}"));
    }
}

/// Nothing is ordered on a stream for a tensor that does not fit.
#[test]
fn a_slice_that_is_too_short_is_refused_before_its_pointer_is_asked_for() {
    let refused = |len, shape: &[u64]| {
        placed::<f32>(len, shape, || -> (u64, SyncOnDrop<'static>) { panic!("asked for the pointer") }).unwrap_err()
    };
    assert_eq!(refused(5, &[2, 3]).to_string(), "slice: expected 6 elements for shape [2, 3], got 5");
    assert!(matches!(refused(5, &[1; 7]), Error::Argument { property: Property::Rank, .. }));
    assert!(matches!(refused(5, &[1 << 40, 1 << 40]), Error::Argument { property: Property::Size, .. }));
}

/// cudarc reads what was written through a tensor, and a tensor what cudarc wrote.
#[test]
fn slices_of_cudarc_on_a_gpu() {
    // Asked first: the loader of cudarc panics without a driver.
    if let Err(none) = devices() {
        println!("skipped slices of cudarc: {none}");
        return;
    }
    let runtime = CudaRuntime::open(0).unwrap();
    let on_gpu = || -> Result<(), DriverError> {
        let stream = CudaContext::new(0)?.new_stream()?;
        // SAFETY: the stream outlives its use.
        assert_ne!(unsafe { adapters::stream(&stream) }, Stream::DEFAULT);
        let mut slice = stream.clone_htod(&[1.5f32, 2.5, -3.5, 4.5, 5.5, 6.5])?;
        let mut bytes = [0; 4];
        let input = adapters::tensor(&slice, &stream, &[2, 2]).unwrap();
        stream.synchronize()?;
        runtime.read(input.view().address() + 8, &mut bytes).unwrap();
        assert_eq!(f32::from_le_bytes(bytes), -3.5);
        drop(input);
        let output = adapters::tensor_mut(&mut slice, &stream, &[6]).unwrap();
        stream.synchronize()?;
        runtime.write(output.view().address() + 20, &7.25f32.to_le_bytes()).unwrap();
        drop(output);
        let mut part = slice.slice_mut(4..6);
        let output = adapters::tensor_mut(&mut part, &stream, &[1]).unwrap();
        stream.synchronize()?;
        runtime.write(output.view().address(), &(-0.5f32).to_le_bytes()).unwrap();
        drop(output);
        assert_eq!(stream.clone_dtoh(&slice)?, [1.5, 2.5, -3.5, 4.5, -0.5, 7.25]);
        Ok(())
    };
    on_gpu().unwrap();
}
