//! Device memory: `core::Memory` over the driver. Sizes are 64-bit, copies are finished when they return.

use bakewell_core::error::Property;
use bakewell_core::{Error, Memory, Result, Stream};

use crate::CudaRuntime;
use crate::driver::{PointerFacts, PointerKind};

impl Memory for CudaRuntime {
    fn name(&self) -> String {
        format!("cuda:{}", self.ordinal)
    }

    fn allocate(&self, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            return Err(Error::argument("bytes", Property::Size, "at least 1", bytes));
        }
        self.call("", || self.driver.memory_allocate(bytes))
    }

    fn free(&self, address: u64) {
        let freed = self.call("", || {
            // Work on any stream may still use the memory. A failed wait is no reason to keep it.
            let waited = self.driver.context_synchronize();
            let freed = self.driver.memory_free(address);
            waited.and(freed)
        });
        if let Err(error) = freed {
            tracing::warn!(%error, "memory at {address:#x} on {}", self.name());
        }
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        self.check_range(address, bytes.len() as u64)?;
        self.call("", || {
            self.driver.memory_write(address, bytes)?;
            // A copy from pageable memory may return while its last part is still on the way.
            self.driver.stream_synchronize(Stream::DEFAULT)
        })
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        self.check_range(address, bytes.len() as u64)?;
        self.call("", || {
            self.driver.context_synchronize()?;
            self.driver.memory_read(address, bytes)
        })
    }

    fn fill(&self, address: u64, value: u8, bytes: u64) -> Result<()> {
        self.check_range(address, bytes)?;
        self.call("", || {
            self.driver.memory_fill(address, value, bytes)?;
            self.driver.stream_synchronize(Stream::DEFAULT)
        })
    }

    fn locate(&self, address: u64, bytes: u64) -> Result<(), String> {
        if bytes == 0 {
            return Ok(());
        }
        let facts = self.call("", || self.driver.pointer(address)).map_err(|error| error.to_string())?;
        place(&facts, self.ordinal, address, bytes)
    }
}

impl CudaRuntime {
    /// Refuses ranges that are not memory of this device: with unified addressing a copy would follow any pointer.
    pub(crate) fn check_range(&self, address: u64, bytes: u64) -> Result<()> {
        self.locate(address, bytes).map_err(|found| {
            let expected = format!("{bytes} bytes of memory on {}", self.name());
            Error::argument("address", Property::Location, expected, found)
        })
    }
}

/// Whether `[address, address + bytes)` lies in the allocation that `facts` describe, on device `ordinal`.
fn place(facts: &PointerFacts, ordinal: u32, address: u64, bytes: u64) -> Result<(), String> {
    match facts.kind {
        PointerKind::Unknown => return Err(format!("{address:#x}, which the driver does not know")),
        PointerKind::Host => return Err(format!("{address:#x}, which is host memory")),
        PointerKind::Device if i64::from(facts.ordinal) != i64::from(ordinal) => {
            return Err(format!("{address:#x}, which is memory of cuda:{}", facts.ordinal));
        }
        PointerKind::Device | PointerKind::Managed => {}
    }
    let end = facts.start.saturating_add(facts.bytes);
    match address.checked_add(bytes) {
        Some(last) if address >= facts.start && last <= end => Ok(()),
        _ => Err(format!(
            "{bytes} bytes at {address:#x}, in an allocation of {} bytes at {:#x}",
            facts.bytes, facts.start
        )),
    }
}
