//! Outputs on a device between guards, poisoned.

use bakewell::error::Property;
use bakewell::workspace::WorkspaceLayout;
use bakewell::{Buffer, DType, Device, Dims, Error, Result, TensorView};

use crate::HostTensor;

/// Bytes before and after every tensor that a launch writes.
pub(crate) const GUARD_BYTES: u64 = 256;

/// What guards hold; outputs and workspace hold `POISON`, NaN in every type.
const GUARD: u8 = 0x7E;
const POISON: u8 = 0xFF;

/// A buffer between guards.
#[derive(Debug)]
pub(crate) struct Guarded {
    pub(crate) name: &'static str,
    pub(crate) buffer: Buffer,
    dtype: DType,
    shape: Vec<u64>,
}

impl Guarded {
    pub(crate) fn new(device: &Device, name: &'static str, dtype: DType, shape: &[u64]) -> Result<Guarded> {
        let bytes = shape.iter().product::<u64>() * dtype.bytes();
        let guarded = Guarded { name, buffer: device.buffer(bytes + 2 * GUARD_BYTES)?, dtype, shape: shape.to_vec() };
        guarded.poison()?;
        Ok(guarded)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn poison(&self) -> Result<()> {
        self.buffer.fill(GUARD)?;
        let bytes = self.buffer.bytes() - 2 * GUARD_BYTES;
        self.write(&vec![POISON; bytes as usize])
    }

    pub(crate) fn write(&self, content: &[u8]) -> Result<()> {
        self.buffer.write(GUARD_BYTES, content)
    }

    pub(crate) fn view(&self) -> Result<TensorView<'_>> {
        let strides = Dims::new(&self.shape)?.contiguous_strides();
        self.buffer.strided_view(GUARD_BYTES, self.dtype, &self.shape, strides.as_slice())
    }

    /// The content, if the guards are whole.
    pub(crate) fn read(&self) -> Result<HostTensor> {
        let all = self.buffer.read()?;
        let inner = GUARD_BYTES as usize..all.len() - GUARD_BYTES as usize;
        let touched = all.iter().enumerate().position(|(i, &byte)| !inner.contains(&i) && byte != GUARD);
        if let Some(i) = touched {
            let given = format!("a write {} bytes from its start", i as i64 - GUARD_BYTES as i64);
            return Err(Error::argument(self.name, Property::Size, "writes inside the tensor only", given));
        }
        Ok(HostTensor { dtype: self.dtype, shape: self.shape.clone(), bytes: all[inner].to_vec() })
    }
}

/// Checks that a launch left the counters of its workspace at zero.
pub(crate) fn check_counters(workspace: &HostTensor, layout: &WorkspaceLayout) -> Result<()> {
    if let Some(completed) = layout.region("completed") {
        let counters = &workspace.bytes[completed.offset as usize..(completed.offset + completed.bytes) as usize];
        if counters.iter().any(|&byte| byte != 0) {
            return Err(Error::value("workspace", "counters that are zero after a launch", "others"));
        }
    }
    Ok(())
}
