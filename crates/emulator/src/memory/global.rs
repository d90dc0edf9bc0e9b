//! Global memory: a sparse 64-bit address space with guard gaps, shared by all clusters without locks on reads.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use bakewell_core::address_space::AddressSpace;

use super::AccessError;
use crate::exec::side_by_side;

/// Bytes of one page, the unit that is backed when touched.
pub const PAGE_BYTES: u64 = 1 << 16;
const PAGE_WORDS: usize = (PAGE_BYTES / 4) as usize;
/// Pages of one directory chunk: 64 MiB.
const CHUNK_PAGES: u64 = 1024;
/// Unmapped bytes between two buffers.
const GUARD: u64 = 1 << 21;
/// Locks for accesses wider than a word that must be indivisible.
const LOCKS: usize = 64;

struct Page {
    words: Box<[AtomicU32]>,
    /// One bit per byte: four bits per word, eight words in each element.
    init: Box<[AtomicU32]>,
}

impl Page {
    fn new() -> Page {
        Page {
            words: (0..PAGE_WORDS).map(|_| AtomicU32::new(0)).collect(),
            init: (0..PAGE_WORDS / 8).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    fn mark(&self, offset: usize, len: usize) {
        each_word(offset, len, |index, mask| {
            let cell = &self.init[index];
            if cell.load(Relaxed) & mask != mask {
                cell.fetch_or(mask, Relaxed);
            }
            true
        });
    }

    fn is_marked(&self, offset: usize, len: usize) -> bool {
        each_word(offset, len, |index, mask| self.init[index].load(Relaxed) & mask == mask)
    }
}

fn each_word(offset: usize, len: usize, mut f: impl FnMut(usize, u32) -> bool) -> bool {
    let mut at = offset;
    let end = offset + len;
    while at < end {
        let index = at / 32;
        let low = at % 32;
        let high = (end - index * 32).min(32);
        let mask = (u32::MAX << low) & (u32::MAX >> (32 - high));
        if !f(index, mask) {
            return false;
        }
        at = (index + 1) * 32;
    }
    true
}

/// Offset in the page of an access of all lanes that lie side by side in it.
fn whole_run(mask: u32, at: &[u64; 32], words: usize, base: u64, bytes: u64) -> Option<usize> {
    let inside = at[0].wrapping_sub(base);
    let fits = inside < bytes && inside + 128 * words as u64 <= bytes && inside.is_multiple_of(4);
    (words > 0 && fits && side_by_side(mask, at, 4 * words as u32)).then_some(inside as usize)
}

type Chunk = Box<[OnceLock<Page>]>;

/// A buffer in global memory.
pub struct Allocation {
    /// Name used in messages.
    pub name: String,
    /// First address.
    pub base: u64,
    /// Bytes.
    pub size: u64,
    /// Whether programs may write it; constants may not be written.
    pub writable: bool,
    chunks: Box<[OnceLock<Chunk>]>,
}

impl Allocation {
    fn page(&self, offset: u64) -> Option<&Page> {
        let index = offset / PAGE_BYTES;
        self.chunks[(index / CHUNK_PAGES) as usize].get()?[(index % CHUNK_PAGES) as usize].get()
    }

    fn touch(&self, offset: u64) -> &Page {
        let index = offset / PAGE_BYTES;
        let chunk = self.chunks[(index / CHUNK_PAGES) as usize]
            .get_or_init(|| (0..CHUNK_PAGES).map(|_| OnceLock::new()).collect());
        chunk[(index % CHUNK_PAGES) as usize].get_or_init(Page::new)
    }
}

impl std::fmt::Debug for Allocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {:#x}, {} bytes", self.name, self.base, self.size)
    }
}

/// The global address space of one emulated device.
#[derive(Debug)]
pub struct GlobalMemory {
    /// Sorted by address.
    allocations: Vec<Allocation>,
    addresses: AddressSpace,
    /// Whether reads of bytes that nobody wrote are faults.
    pub check_init: bool,
    locks: [Mutex<()>; LOCKS],
}

impl Default for GlobalMemory {
    fn default() -> Self {
        GlobalMemory::of(AddressSpace::whole())
    }
}

impl GlobalMemory {
    /// Empty memory whose buffers have these addresses.
    pub fn of(addresses: AddressSpace) -> GlobalMemory {
        GlobalMemory { allocations: Vec::new(), addresses, check_init: true, locks: [const { Mutex::new(()) }; LOCKS] }
    }

    /// Reserves `size` bytes; pages are backed when touched. The address is a multiple of `align` and of 2^16.
    ///
    /// # Errors
    /// A sentence, when the address space has no room for it.
    pub fn allocate(&mut self, name: &str, size: u64, align: u64, writable: bool) -> Result<u64, String> {
        let base = self.addresses.reserve(size, align.max(PAGE_BYTES), GUARD)?;
        let chunks = size.div_ceil(PAGE_BYTES * CHUNK_PAGES);
        let allocation = Allocation {
            name: name.to_string(),
            base,
            size,
            writable,
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
        };
        self.allocations.insert(self.allocations.partition_point(|a| a.base < base), allocation);
        Ok(base)
    }

    /// Whether an address is one that a buffer may have.
    pub fn has_address(&self, address: u64) -> bool {
        self.addresses.contains(address)
    }

    /// Removes the buffer that starts at `base`; false when there is none.
    pub fn free(&mut self, base: u64) -> bool {
        match self.allocations.binary_search_by_key(&base, |a| a.base) {
            Ok(index) => {
                self.allocations.remove(index);
                self.addresses.release(base);
                true
            }
            Err(_) => false,
        }
    }

    /// The buffer that holds `address`, if any.
    pub fn find(&self, address: u64) -> Option<&Allocation> {
        let index = self.allocations.partition_point(|a| a.base <= address);
        let allocation = self.allocations.get(index.checked_sub(1)?)?;
        (address - allocation.base < allocation.size).then_some(allocation)
    }

    /// The buffer that holds all of `address .. address + len`.
    ///
    /// # Errors
    /// Names the nearest buffer below and the distance past its end.
    pub fn range(&self, address: u64, len: u64) -> Result<(&Allocation, u64), AccessError> {
        let index = self.allocations.partition_point(|a| a.base <= address);
        let below = index.checked_sub(1).map(|i| &self.allocations[i]);
        if let Some(allocation) = below {
            let offset = address - allocation.base;
            if offset.checked_add(len).is_some_and(|end| end <= allocation.size) {
                return Ok((allocation, offset));
            }
        }
        Err(AccessError::OutOfBounds(self.describe(address, len)))
    }

    /// Where an address lies, in words.
    pub fn describe(&self, address: u64, len: u64) -> String {
        let index = self.allocations.partition_point(|a| a.base <= address);
        let below = index.checked_sub(1).map(|i| &self.allocations[i]);
        let above = self.allocations.get(index);
        match (below, above) {
            (Some(a), _) if address - a.base < a.size => {
                format!("{} bytes at {} + {}", len, a.name, address - a.base)
            }
            (Some(a), above) => {
                let past = address - a.base - a.size;
                match above {
                    Some(b) if b.base - address < past => {
                        format!("{len} bytes at {address:#x}, {} bytes before {}", b.base - address, b.name)
                    }
                    _ => format!(
                        "{len} bytes at {address:#x}, {past} bytes past the end of {} ({} bytes)",
                        a.name, a.size
                    ),
                }
            }
            (None, Some(b)) => {
                format!("{len} bytes at {address:#x}, {} bytes before {}", b.base - address, b.name)
            }
            (None, None) => format!("{len} bytes at {address:#x}, no buffer is allocated"),
        }
    }

    fn writable(&self, address: u64, len: u64) -> Result<(&Allocation, u64), AccessError> {
        let found = self.range(address, len)?;
        if !found.0.writable {
            return Err(AccessError::OutOfBounds(format!(
                "write of {len} bytes to the constant {} + {}",
                found.0.name, found.1
            )));
        }
        Ok(found)
    }

    fn unwritten(&self, allocation: &Allocation, offset: u64, len: usize) -> Result<(), AccessError> {
        Err(AccessError::Uninitialised(format!("{len} bytes at {} + {offset}", allocation.name)))
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// Out of bounds, or uninitialised when `check_init` is set.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.read_as(address, out, self.check_init)
    }

    /// Copies bytes out; `check` says whether bytes that nobody wrote are an error.
    ///
    /// # Errors
    /// Out of bounds, or uninitialised when `check` is set.
    pub fn read_as(&self, address: u64, out: &mut [u8], check: bool) -> Result<(), AccessError> {
        let (allocation, mut offset) = self.range(address, out.len() as u64)?;
        let mut done = 0;
        while done < out.len() {
            let inside = (offset % PAGE_BYTES) as usize;
            let len = (PAGE_BYTES as usize - inside).min(out.len() - done);
            let part = &mut out[done..done + len];
            match allocation.page(offset) {
                None => {
                    if check {
                        self.unwritten(allocation, offset, len)?;
                    }
                    part.fill(0);
                }
                Some(page) => {
                    if check && !page.is_marked(inside, len) {
                        let first = (0..len).find(|&i| !page.is_marked(inside + i, 1)).unwrap_or(0);
                        self.unwritten(allocation, offset + first as u64, len - first)?;
                    }
                    copy_out(&page.words, inside, part);
                }
            }
            done += len;
            offset += len as u64;
        }
        Ok(())
    }

    /// Reads `words` aligned 32-bit words for each lane of `mask`, where all lanes lie in one page of one buffer and
    /// every byte was written (or `check` is off). Returns the lanes that were not read: they need [`Self::read_as`].
    pub fn gather(&self, mask: u32, at: &[u64; 32], words: usize, out: &mut [[u32; 8]; 32], check: bool) -> u32 {
        let Some((page, base, bytes)) = self.common_page(mask, at) else {
            return mask;
        };
        if let Some(start) = whole_run(mask, at, words, base, bytes)
            && (!check || page.is_marked(start, 128 * words))
        {
            for (lane, run) in out.iter_mut().zip(page.words[start / 4..].chunks_exact(words)) {
                for (value, word) in lane.iter_mut().zip(run) {
                    *value = word.load(Relaxed);
                }
            }
            return 0;
        }
        let mut rest = 0;
        for lane in 0..32 {
            if mask >> lane & 1 == 0 {
                continue;
            }
            let inside = at[lane].wrapping_sub(base);
            if inside >= bytes || inside + 4 * words as u64 > bytes || inside % 4 != 0 {
                rest |= 1 << lane;
                continue;
            }
            let start = inside as usize;
            if check && !page.is_marked(start, 4 * words) {
                rest |= 1 << lane;
                continue;
            }
            for (value, word) in out[lane][..words].iter_mut().zip(&page.words[start / 4..]) {
                *value = word.load(Relaxed);
            }
        }
        rest
    }

    /// Writes `words` aligned 32-bit words for each lane of `mask` that lies in the page of the first lane. Returns the
    /// lanes that were not written: they need [`Self::write`].
    pub fn scatter(&self, mask: u32, at: &[u64; 32], words: usize, values: &[[u32; 8]; 32]) -> u32 {
        let writable = self.find(at[mask.trailing_zeros() as usize & 31]).is_some_and(|a| a.writable);
        let Some((page, base, bytes)) = self.common_page(mask, at).filter(|_| writable) else {
            return mask;
        };
        if let Some(start) = whole_run(mask, at, words, base, bytes) {
            for (lane, run) in values.iter().zip(page.words[start / 4..].chunks_exact(words)) {
                for (value, word) in lane.iter().zip(run) {
                    word.store(*value, Relaxed);
                }
            }
            page.mark(start, 128 * words);
            return 0;
        }
        let mut rest = 0;
        for lane in 0..32 {
            if mask >> lane & 1 == 0 {
                continue;
            }
            let inside = at[lane].wrapping_sub(base);
            if inside >= bytes || inside + 4 * words as u64 > bytes || inside % 4 != 0 {
                rest |= 1 << lane;
                continue;
            }
            let start = inside as usize;
            for (value, word) in values[lane][..words].iter().zip(&page.words[start / 4..]) {
                word.store(*value, Relaxed);
            }
            page.mark(start, 4 * words);
        }
        rest
    }

    /// The backed page of the first lane's address: its first address and the
    /// bytes of the buffer in it.
    fn common_page(&self, mask: u32, at: &[u64; 32]) -> Option<(&Page, u64, u64)> {
        let first = at[mask.trailing_zeros() as usize & 31];
        let allocation = self.find(first)?;
        let offset = first - allocation.base;
        let page = allocation.page(offset)?;
        let start = offset / PAGE_BYTES * PAGE_BYTES;
        Some((page, allocation.base + start, (allocation.size - start).min(PAGE_BYTES)))
    }

    /// Copies bytes in and marks them written.
    ///
    /// # Errors
    /// Out of bounds, or a constant.
    pub fn write(&self, address: u64, data: &[u8]) -> Result<(), AccessError> {
        let (allocation, offset) = self.writable(address, data.len() as u64)?;
        self.store(allocation, offset, data);
        Ok(())
    }

    /// Copies bytes in without regard to `writable`: for the host, which fills constants.
    ///
    /// # Errors
    /// Out of bounds.
    pub fn write_host(&self, address: u64, data: &[u8]) -> Result<(), AccessError> {
        let (allocation, offset) = self.range(address, data.len() as u64)?;
        self.store(allocation, offset, data);
        Ok(())
    }

    fn store(&self, allocation: &Allocation, mut offset: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let inside = (offset % PAGE_BYTES) as usize;
            let len = (PAGE_BYTES as usize - inside).min(data.len() - done);
            let page = allocation.touch(offset);
            copy_in(&page.words, inside, &data[done..done + len]);
            page.mark(inside, len);
            done += len;
            offset += len as u64;
        }
    }

    /// Whether all bytes were written; false outside buffers.
    pub fn is_initialised(&self, address: u64, len: u64) -> bool {
        let Ok((allocation, mut offset)) = self.range(address, len) else {
            return false;
        };
        let end = offset + len;
        while offset < end {
            let inside = offset % PAGE_BYTES;
            let part = (PAGE_BYTES - inside).min(end - offset);
            match allocation.page(offset) {
                Some(page) if page.is_marked(inside as usize, part as usize) => {}
                _ => return false,
            }
            offset += part;
        }
        true
    }

    /// Forgets that bytes were written (`discard`), contents kept.
    pub fn forget(&self, address: u64, len: u64) {
        let Ok((allocation, mut offset)) = self.range(address, len) else {
            return;
        };
        let end = offset + len;
        while offset < end {
            let inside = offset % PAGE_BYTES;
            let part = (PAGE_BYTES - inside).min(end - offset);
            if let Some(page) = allocation.page(offset) {
                each_word(inside as usize, part as usize, |index, mask| {
                    page.init[index].fetch_and(!mask, Relaxed);
                    true
                });
            }
            offset += part;
        }
    }

    /// Indivisible read-modify-write of `out.len()` bytes (2, 4, 8 or 16): `update` maps the old bytes to the new.
    ///
    /// # Errors
    /// As [`Self::read`] and [`Self::write`].
    pub fn update<const N: usize>(
        &self,
        address: u64,
        mut update: impl FnMut([u8; N]) -> [u8; N],
    ) -> Result<[u8; N], AccessError> {
        let _guard = self.lock(address);
        let mut old = [0; N];
        self.read(address, &mut old)?;
        let new = update(old);
        if new != old {
            self.write(address, &new)?;
        } else {
            self.writable(address, N as u64)?;
        }
        Ok(old)
    }

    /// The lock that guards wide and atomic accesses to the 16 bytes at `address`.
    pub fn lock(&self, address: u64) -> MutexGuard<'_, ()> {
        self.locks[(address / 16) as usize % LOCKS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every buffer, by address.
    pub fn allocations(&self) -> &[Allocation] {
        &self.allocations
    }
}

fn copy_out(words: &[AtomicU32], start: usize, out: &mut [u8]) {
    let mut at = start;
    let mut done = 0;
    while done < out.len() {
        let bytes = words[at / 4].load(Relaxed).to_le_bytes();
        let low = at % 4;
        let len = (4 - low).min(out.len() - done);
        out[done..done + len].copy_from_slice(&bytes[low..low + len]);
        done += len;
        at += len;
    }
}

fn copy_in(words: &[AtomicU32], start: usize, data: &[u8]) {
    let mut at = start;
    let mut done = 0;
    while done < data.len() {
        let low = at % 4;
        let len = (4 - low).min(data.len() - done);
        let word = &words[at / 4];
        if len == 4 {
            let bytes = [data[done], data[done + 1], data[done + 2], data[done + 3]];
            word.store(u32::from_le_bytes(bytes), Relaxed);
        } else {
            let mut bits = 0;
            let mut mask = 0;
            for i in 0..len {
                bits |= u32::from(data[done + i]) << ((low + i) * 8);
                mask |= 0xff << ((low + i) * 8);
            }
            let mut old = word.load(Relaxed);
            while let Err(now) = word.compare_exchange_weak(old, old & !mask | bits, Relaxed, Relaxed) {
                old = now;
            }
        }
        done += len;
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use bakewell_core::address_space::SPAN;

    use super::*;

    #[test]
    fn terabytes_are_reserved_and_only_touched_pages_backed() {
        let mut memory = GlobalMemory::default();
        let base = memory.allocate("kv", 4 << 40, 256, true).unwrap();
        let far = base + (3 << 40) + PAGE_BYTES - 3;
        memory.write(far, &[1, 2, 3, 4, 5, 6, 7]).unwrap();
        let mut out = [0; 7];
        memory.read(far, &mut out).unwrap();
        assert_eq!(out, [1, 2, 3, 4, 5, 6, 7]);
    }

    /// The last byte of a space, no byte behind it, and addresses that come round again, in order.
    #[test]
    fn a_space_that_is_full_is_an_error() {
        let mut memory = GlobalMemory::of(AddressSpace::apart());
        let most = SPAN - GUARD;
        assert!(memory.allocate("kv", most + 1, 256, true).unwrap_err().starts_with("no "));
        let base = memory.allocate("kv", most, 256, true).unwrap();
        memory.write(base + most - 1, &[7]).unwrap();
        assert!(memory.allocate("q", 1, 256, true).is_err());
        assert!(memory.free(base));
        let [a, b, c] = ["a", "b", "c"].map(|name| memory.allocate(name, SPAN / 4, 256, true).unwrap());
        assert!(memory.free(b));
        let high = memory.allocate("high", SPAN / 4 - 4 * GUARD, 256, true).unwrap();
        let low = memory.allocate("low", SPAN / 4, 256, true).unwrap();
        assert_eq!((low, high > c), (b, true));
        let addresses: Vec<u64> = memory.allocations().iter().map(|allocation| allocation.base).collect();
        assert_eq!(addresses, [a, b, c, high]);
        assert_eq!(memory.find(b + 5).unwrap().name, "low");
    }

    #[test]
    fn faults_name_the_buffer() {
        let mut memory = GlobalMemory::default();
        let base = memory.allocate("q", 64, 256, true).unwrap();
        memory.allocate("k", 64, 256, true).unwrap();
        let past = memory.read(base + 60, &mut [0; 8]).unwrap_err();
        assert_eq!(past, AccessError::OutOfBounds("8 bytes at q + 60".to_string()));
        let past = memory.read(base + 80, &mut [0; 8]).unwrap_err();
        let AccessError::OutOfBounds(text) = past else { panic!("{past:?}") };
        assert!(text.ends_with("16 bytes past the end of q (64 bytes)"), "{text}");
        memory.write(base, &[1; 8]).unwrap();
        let unread = memory.read(base + 4, &mut [0; 8]).unwrap_err();
        assert_eq!(unread, AccessError::Uninitialised("4 bytes at q + 8".to_string()));
    }
}
