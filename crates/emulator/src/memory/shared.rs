//! Shared memory of one CTA, addressed by its offset (the low 24 bits of a shared address).

use super::{AccessError, BitSet, SHARED_START};

/// Shared memory of one CTA.
#[derive(Debug, Clone)]
pub struct SharedMemory {
    bytes: Vec<u8>,
    init: BitSet,
    /// Whether reads of bytes that nobody wrote are faults.
    pub check_init: bool,
}

impl SharedMemory {
    /// `size` usable bytes from [`SHARED_START`] on.
    pub fn new(size: u32, check_init: bool) -> SharedMemory {
        let len = (SHARED_START + size) as usize;
        SharedMemory { bytes: vec![0; len], init: BitSet::new(len), check_init }
    }

    /// One past the last valid offset.
    pub fn end(&self) -> u32 {
        self.bytes.len() as u32
    }

    fn range(&self, offset: u32, len: usize) -> Result<std::ops::Range<usize>, AccessError> {
        let start = offset as usize;
        if offset < SHARED_START || start + len > self.bytes.len() {
            return Err(AccessError::OutOfBounds(format!(
                "{len} bytes at shared offset {offset:#x}, the CTA has {SHARED_START:#x}..{:#x}",
                self.bytes.len()
            )));
        }
        Ok(start..start + len)
    }

    /// The bytes at `offset`, checked for bounds and for being written.
    pub fn read(&self, offset: u32, len: usize) -> Result<&[u8], AccessError> {
        let range = self.range(offset, len)?;
        if self.check_init && !self.init.all(range.start, len) {
            let first = self.init.first_clear(range.start, len).unwrap_or(range.start);
            return Err(AccessError::Uninitialised(format!("shared offset {first:#x} of {len} bytes at {offset:#x}")));
        }
        Ok(&self.bytes[range])
    }

    /// The bytes at `offset`, checked for bounds only: for engines that track initialisation themselves.
    pub fn peek(&self, offset: u32, len: usize) -> Result<&[u8], AccessError> {
        let range = self.range(offset, len)?;
        Ok(&self.bytes[range])
    }

    /// Whether all of the bytes were written; false out of bounds.
    pub fn is_initialised(&self, offset: u32, len: usize) -> bool {
        self.range(offset, len).is_ok_and(|range| self.init.all(range.start, len))
    }

    /// Copies bytes in and marks them written.
    pub fn write(&mut self, offset: u32, data: &[u8]) -> Result<(), AccessError> {
        let range = self.range(offset, data.len())?;
        self.init.set(range.start, data.len());
        self.bytes[range].copy_from_slice(data);
        Ok(())
    }

    /// Bytes to fill, marked written.
    ///
    /// # Errors
    /// Out of bounds.
    pub fn write_run(&mut self, offset: u32, len: usize) -> Result<&mut [u8], AccessError> {
        let range = self.range(offset, len)?;
        self.init.set(range.start, len);
        Ok(&mut self.bytes[range])
    }

    /// Marks bytes as never written: gaps of padded copies, released slots.
    pub fn forget(&mut self, offset: u32, len: usize) -> Result<(), AccessError> {
        let range = self.range(offset, len)?;
        self.init.clear(range.start, len);
        Ok(())
    }

    /// A fixed-size read.
    pub fn load<const N: usize>(&self, offset: u32) -> Result<[u8; N], AccessError> {
        let mut out = [0; N];
        out.copy_from_slice(self.read(offset, N)?);
        Ok(out)
    }
}
