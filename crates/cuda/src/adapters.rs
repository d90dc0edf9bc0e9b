//! Streams and slices of cudarc as Bakewell's.
//!
//! ```no_run
//! use bakewell_cuda::adapters;
//! use cudarc::driver::CudaContext;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let stream = CudaContext::new(0)?.new_stream()?;
//! let slice = stream.alloc_zeros::<f32>(6)?;
//! let tensor = adapters::tensor(&slice, &stream, &[2, 3])?;
//! assert_eq!(tensor.view().shape(), [2, 3]);
//! // SAFETY: `stream` is dropped after everything that is launched on it.
//! let raw = unsafe { adapters::stream(&stream) }; // launch on it while `tensor` lives
//! # let _ = raw;
//! # Ok(())
//! # }
//! ```

use bakewell_core::error::Property;
use bakewell_core::{DType, Dims, Error, Result, Stream, TensorView};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};

#[cfg(test)]
mod tests;

/// A Rust type that is the element of a tensor.
pub trait Element {
    /// Element type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {
        $(impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        })*
    };
}

elements! {
    half::f16 => F16, half::bf16 => Bf16, f32 => F32, f64 => F64, u8 => U8, i32 => I32, u32 => U32, i64 => I64,
}

/// The handle of a cudarc stream.
///
/// # Safety
/// As [`Stream::from_raw`]: it is a stream of the device on which the handle will be used.
pub unsafe fn stream(stream: &CudaStream) -> Stream<'_> {
    // SAFETY: the device is what this function asks of its caller; the stream is borrowed.
    unsafe { Stream::from_raw(stream.cu_stream() as usize as u64) }
}

/// A contiguous tensor in a cudarc slice, for work on one stream.
///
/// Making it lets the stream wait for earlier work of cudarc on the slice; dropping it after the launch lets
/// later work of cudarc wait for the launch. The slice stays borrowed in between.
pub struct Tensor<'a> {
    view: TensorView<'a>,
    _order: SyncOnDrop<'a>,
}

impl<'a> Tensor<'a> {
    /// The view to pass to an operation.
    pub fn view(&self) -> TensorView<'a> {
        self.view
    }
}

impl std::fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.view.fmt(f)
    }
}

/// An input tensor of `shape` at the start of a slice or view.
///
/// # Errors
/// [`Error::Argument`] when the slice has fewer elements than the shape.
pub fn tensor<'a, T: Element, S: DevicePtr<T>>(
    slice: &'a S,
    stream: &'a CudaStream,
    shape: &[u64],
) -> Result<Tensor<'a>> {
    placed::<T>(slice.len(), shape, || slice.device_ptr(stream))
}

/// An output tensor of `shape` at the start of a slice or view.
///
/// # Errors
/// As [`tensor`].
pub fn tensor_mut<'a, T: Element, S: DevicePtrMut<T>>(
    slice: &'a mut S,
    stream: &'a CudaStream,
    shape: &[u64],
) -> Result<Tensor<'a>> {
    placed::<T>(slice.len(), shape, || slice.device_ptr_mut(stream))
}

/// The tensor at the start of `len` elements of a slice. Its pointer, whose asking orders work, is asked for when all
/// else is known to be right.
fn placed<'a, T: Element>(
    len: usize,
    shape: &[u64],
    pointer: impl FnOnce() -> (u64, SyncOnDrop<'a>),
) -> Result<Tensor<'a>> {
    let dims = Dims::new(shape)?;
    let wanted = dims.product()?;
    if wanted > len as u64 {
        return Err(Error::argument("slice", Property::Size, format!("{wanted} elements for shape {shape:?}"), len));
    }
    let (address, order) = pointer();
    // SAFETY: the slice is borrowed for `'a` and has the elements of the shape, as was checked. `Tensor` orders work on
    // its stream before and after cudarc's own, and a mutable borrow gives an output alone.
    let view = unsafe { TensorView::from_raw(address, T::DTYPE, shape, dims.contiguous_strides().as_slice()) }?;
    Ok(Tensor { view, _order: order })
}
