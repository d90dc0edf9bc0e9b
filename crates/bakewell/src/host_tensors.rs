//! Tensors in the reference's memory, as values.

use bakewell_core::{Memory, Result, TensorView};
use bakewell_reference::{Element, HostMemory};

/// The elements of a tensor of any strides, in row-major order, as bytes.
pub(crate) fn read(memory: &HostMemory, view: &TensorView<'_>) -> Result<Vec<u8>> {
    let mut all = vec![0; view.extent_bytes()? as usize];
    if all.is_empty() {
        return Ok(all);
    }
    memory.read(view.address(), &mut all)?;
    if view.is_contiguous() {
        return Ok(all);
    }
    let element = view.dtype().bytes() as usize;
    let mut offsets = vec![0usize];
    for (&size, &stride) in view.shape().iter().zip(view.strides()) {
        offsets = offsets.iter().flat_map(|&at| (0..size).map(move |i| at + (i * stride) as usize)).collect();
    }
    Ok(offsets.iter().flat_map(|&at| all[at * element..][..element].iter().copied()).collect())
}

/// The elements of a floating-point tensor in row-major order.
pub(crate) fn elements<T: Element>(memory: &HostMemory, view: &TensorView<'_>) -> Result<Vec<T>> {
    Ok(T::from_bytes(&read(memory, view)?))
}

/// The elements of an i32 tensor in row-major order.
pub(crate) fn integers(memory: &HostMemory, view: &TensorView<'_>) -> Result<Vec<i32>> {
    Ok(read(memory, view)?.as_chunks().0.iter().map(|&integer| i32::from_le_bytes(integer)).collect())
}

/// Writes all bytes of a contiguous tensor.
pub(crate) fn write(memory: &HostMemory, view: &TensorView<'_>, bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() { Ok(()) } else { memory.write(view.address(), bytes) }
}
