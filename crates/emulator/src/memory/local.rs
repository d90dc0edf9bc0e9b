//! Local memory of one warp: every lane has its own copy of the same offsets.

use super::{AccessError, BitSet};

/// Local memory of the 32 lanes of a warp.
#[derive(Debug, Clone, Default)]
pub struct LocalMemory {
    size: u32,
    bytes: Vec<u8>,
    init: BitSet,
    /// Whether reads of bytes that nobody wrote are faults.
    pub check_init: bool,
}

impl LocalMemory {
    /// `size` bytes for each lane.
    pub fn new(size: u32, check_init: bool) -> LocalMemory {
        let len = size as usize * 32;
        LocalMemory { size, bytes: vec![0; len], init: BitSet::new(len), check_init }
    }

    fn start(&self, lane: usize, offset: u64, len: usize) -> Result<usize, AccessError> {
        if offset.checked_add(len as u64).is_none_or(|end| end > u64::from(self.size)) {
            return Err(AccessError::OutOfBounds(format!(
                "{len} bytes at local offset {offset:#x}, a thread has {:#x} bytes",
                self.size
            )));
        }
        Ok(lane * self.size as usize + offset as usize)
    }

    /// Reads the lane's bytes; `check` says whether bytes that nobody wrote are an error.
    pub fn read(&self, lane: usize, offset: u64, out: &mut [u8], check: bool) -> Result<(), AccessError> {
        let start = self.start(lane, offset, out.len())?;
        if check && self.check_init && !self.init.all(start, out.len()) {
            return Err(AccessError::Uninitialised(format!("{} bytes at local offset {offset:#x}", out.len())));
        }
        out.copy_from_slice(&self.bytes[start..start + out.len()]);
        Ok(())
    }

    /// Writes the lane's bytes.
    pub fn write(&mut self, lane: usize, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        let start = self.start(lane, offset, data.len())?;
        self.init.set(start, data.len());
        self.bytes[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }

    /// A lane's bytes at a place that the decoder chose.
    ///
    /// # Panics
    /// Outside the thread's memory.
    pub fn peek(&self, lane: usize, offset: u32, len: u32) -> &[u8] {
        let start = lane * self.size as usize + offset as usize;
        &self.bytes[start..start + len as usize]
    }

    /// Puts back what [`Self::peek`] gave; whether the bytes count as written does not change.
    ///
    /// # Panics
    /// Outside the thread's memory.
    pub fn poke(&mut self, lane: usize, offset: u32, data: &[u8]) {
        let start = lane * self.size as usize + offset as usize;
        self.bytes[start..start + data.len()].copy_from_slice(data);
    }
}
