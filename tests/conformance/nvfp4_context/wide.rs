//! Tensors with gaps, poisoned where that is not too much to write.

use bakewell::{Buffer, DType, Device, Result, TensorView};
use bakewell_conformance::HostTensor;

/// A tensor on the device with extra elements after each item of a dimension.
pub(super) struct Wide {
    buffer: Buffer,
    dtype: DType,
    shape: Vec<u64>,
    strides: Vec<u64>,
}

impl Wide {
    /// `gaps`: elements after each item of a dimension.
    pub(super) fn new(device: &Device, tensor: &HostTensor, gaps: &[u64]) -> Result<Wide> {
        let mut strides = vec![1; gaps.len()];
        for i in (0..gaps.len() - 1).rev() {
            strides[i] = strides[i + 1] * tensor.shape[i + 1] + gaps[i];
        }
        let element = tensor.dtype.bytes() as usize;
        let buffer = device.buffer(strides[0] * tensor.shape[0] * element as u64)?;
        if buffer.bytes() < 1 << 24 {
            buffer.write(0, &vec![0xFF; buffer.bytes() as usize])?;
        }
        let inner = tensor.shape[gaps.len() - 1] as usize * element;
        for (row, data) in tensor.bytes.chunks_exact(inner).enumerate() {
            let (mut rest, mut at) = (row as u64, 0);
            for i in (0..gaps.len() - 1).rev() {
                at += rest % tensor.shape[i] * strides[i];
                rest /= tensor.shape[i];
            }
            buffer.write(at * element as u64, data)?;
        }
        Ok(Wide { buffer, dtype: tensor.dtype, shape: tensor.shape.clone(), strides })
    }

    pub(super) fn view(&self) -> Result<TensorView<'_>> {
        self.buffer.strided_view(0, self.dtype, &self.shape, &self.strides)
    }
}
