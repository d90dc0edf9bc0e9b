//! An address space of host buffers.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bakewell_core::address_space::AddressSpace;
use bakewell_core::error::Property;
use bakewell_core::{Error, Memory, Result};

/// Bytes between allocations, so that an access past an end hits nothing.
const GAP: u64 = 4096;

/// Host buffers behind made-up addresses: the memory of the reference device.
///
/// Buffers are filled with `0xFF` (NaN in every floating-point type) when they are allocated.
///
/// ```
/// use bakewell_core::Memory;
/// use bakewell_reference::HostMemory;
///
/// let memory = HostMemory::new("reference");
/// let address = memory.allocate(4)?;
/// memory.write(address + 1, &[7])?;
/// let mut bytes = [0; 4];
/// memory.read(address, &mut bytes)?;
/// assert_eq!(bytes, [0xFF, 7, 0xFF, 0xFF]);
/// # Ok::<(), bakewell_core::Error>(())
/// ```
#[derive(Debug)]
pub struct HostMemory {
    name: String,
    space: Mutex<Space>,
}

#[derive(Debug)]
struct Space {
    buffers: BTreeMap<u64, Vec<u8>>,
    addresses: AddressSpace,
}

impl HostMemory {
    /// An empty address space; `name` stands in messages.
    pub fn new(name: &str) -> HostMemory {
        HostMemory {
            name: name.to_owned(),
            space: Mutex::new(Space { buffers: BTreeMap::new(), addresses: AddressSpace::apart() }),
        }
    }

    /// Number of live allocations.
    pub fn allocations(&self) -> usize {
        self.space().buffers.len()
    }

    fn space(&self) -> MutexGuard<'_, Space> {
        // Buffers are plain bytes: a panic elsewhere leaves nothing half-done.
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of an access outside any buffer.
    fn outside(&self, place: String, address: u64, bytes: u64) -> Error {
        let expected = format!("memory of {}", self.name);
        Error::argument("address", Property::Location, expected, format!("{bytes} bytes at {address:#x}, {place}"))
    }
}

impl Space {
    /// The buffer that holds all of `[address, address + bytes)`, and the offset in it; else where the range lies.
    fn find(&mut self, address: u64, bytes: u64) -> Result<(&mut Vec<u8>, usize), String> {
        if !self.addresses.contains(address) {
            return Err("not an address of this device".to_owned());
        }
        let Some((&base, buffer)) = self.buffers.range_mut(..=address).next_back() else {
            return Err("before any allocation".to_owned());
        };
        let (offset, size) = (address - base, buffer.len() as u64);
        match offset.checked_add(bytes) {
            Some(end) if end <= size => Ok((buffer, offset as usize)),
            Some(end) => Err(format!("{} bytes past the end of the {size} bytes at {base:#x}", end - size)),
            None => Err("past the end of the address space".to_owned()),
        }
    }
}

impl Memory for HostMemory {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn allocate(&self, bytes: u64) -> Result<u64> {
        let refuse = || Error::argument("bytes", Property::Size, "what host memory can hold", bytes);
        let exhausted = |what| Error::argument("bytes", Property::Size, "what the address space can hold", what);
        let size = usize::try_from(bytes).map_err(|_| refuse())?;
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(size).map_err(|_| refuse())?;
        buffer.resize(size, 0xFF);
        let mut space = self.space();
        let address = space.addresses.reserve(bytes, GAP, GAP).map_err(exhausted)?;
        space.buffers.insert(address, buffer);
        Ok(address)
    }

    fn free(&self, address: u64) {
        let mut space = self.space();
        if space.buffers.remove(&address).is_some() {
            space.addresses.release(address);
        }
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        match self.space().find(address, bytes.len() as u64) {
            Ok((buffer, offset)) => buffer[offset..offset + bytes.len()].copy_from_slice(bytes),
            Err(place) => return Err(self.outside(place, address, bytes.len() as u64)),
        }
        Ok(())
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        match self.space().find(address, bytes.len() as u64) {
            Ok((buffer, offset)) => bytes.copy_from_slice(&buffer[offset..offset + bytes.len()]),
            Err(place) => return Err(self.outside(place, address, bytes.len() as u64)),
        }
        Ok(())
    }

    fn fill(&self, address: u64, value: u8, bytes: u64) -> Result<()> {
        match self.space().find(address, bytes) {
            // The range lies in a buffer, so its size fits.
            Ok((buffer, offset)) => buffer[offset..offset + bytes as usize].fill(value),
            Err(place) => return Err(self.outside(place, address, bytes)),
        }
        Ok(())
    }

    fn locate(&self, address: u64, bytes: u64) -> Result<(), String> {
        self.space().find(address, bytes).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_stay_inside_their_buffer() {
        let memory = HostMemory::new("reference");
        let first = memory.allocate(100).unwrap();
        let second = memory.allocate(100).unwrap();
        assert!(first.is_multiple_of(256) && second.is_multiple_of(256) && second >= first + 100 + GAP);

        memory.fill(first, 1, 100).unwrap();
        memory.write(first + 98, &[2, 3]).unwrap();
        let error = memory.write(first + 99, &[2, 3]).unwrap_err().to_string();
        assert!(error.contains("1 bytes past the end of the 100 bytes"), "{error}");
        let mut bytes = [0; 100];
        memory.read(first, &mut bytes).unwrap();
        assert_eq!((bytes[0], bytes[97], bytes[98], bytes[99]), (1, 1, 2, 3));
        memory.read(second, &mut bytes).unwrap();
        assert_eq!(bytes, [0xFF; 100]);
    }

    #[test]
    fn freed_and_foreign_addresses_are_refused() {
        let memory = HostMemory::new("reference");
        let address = memory.allocate(8).unwrap();
        assert_eq!(memory.locate(address, 8), Ok(()));
        assert_eq!(memory.locate(8, 8).unwrap_err(), "not an address of this device");
        assert_eq!(memory.locate(address + 1, u64::MAX).unwrap_err(), "past the end of the address space");
        memory.free(address);
        assert!(memory.read(address, &mut [0]).is_err());
        assert_eq!(memory.allocations(), 0);
        assert!(matches!(memory.allocate(u64::MAX), Err(Error::Argument { property: Property::Size, .. })));
    }
}
