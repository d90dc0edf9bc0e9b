//! Made-up addresses for memory on the CPU, apart from each other as those of the GPUs in a process are.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of the address space of one device; also the first address that any has: those below belong to nobody.
pub const SPAN: u64 = 1 << 40;

/// Devices that have spaces of their own at a time. These end below every address window that an emulated program has
/// for itself.
const SPACES: usize = 120;

/// The addresses of a device, and which of them are in use.
///
/// A range that was given back is not given out again before the others have been: a stale address is noticed.
///
/// ```
/// use bakewell_core::address_space::AddressSpace;
///
/// let (mut one, other) = (AddressSpace::apart(), AddressSpace::apart());
/// let address = one.reserve(100, 256, 4096)?;
/// assert!(address.is_multiple_of(256) && one.contains(address) && !other.contains(address));
/// assert!(one.reserve(1 << 50, 256, 4096).is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Debug)]
pub struct AddressSpace {
    /// Which one of those of the process; `None` for one of somebody who needs no other.
    number: Option<usize>,
    first: u64,
    end: u64,
    /// Where the search begins.
    next: u64,
    /// Ends of the ranges in use, guards included, by their starts.
    reserved: BTreeMap<u64, u64>,
}

impl AddressSpace {
    /// Addresses `[n SPAN, (n + 1) SPAN)` that no other living device has, so that a tensor of one is recognised as
    /// foreign by another, as it is between GPUs. While 120 live, the next has none, and every reservation fails.
    pub fn apart() -> AddressSpace {
        let number = numbers().take();
        let first = number.map_or(0, |number| (number as u64 + 1) * SPAN);
        let end = number.map_or(0, |_| first + SPAN);
        AddressSpace { number, first, end, next: first, reserved: BTreeMap::new() }
    }

    /// The addresses of all spaces, for a device whose addresses are compared with nobody's.
    pub fn whole() -> AddressSpace {
        let end = (SPACES as u64 + 1) * SPAN;
        AddressSpace { number: None, first: SPAN, end, next: SPAN, reserved: BTreeMap::new() }
    }

    /// The first of `bytes` addresses, a multiple of `alignment`. The `guard` behind them are nobody's.
    ///
    /// # Errors
    /// A sentence, when no such range is left.
    pub fn reserve(&mut self, bytes: u64, alignment: u64, guard: u64) -> Result<u64, String> {
        let needed = bytes.checked_add(guard);
        let found = needed.and_then(|needed| {
            let behind = self.gap(self.next, needed, alignment);
            behind.or_else(|| self.gap(self.first, needed, alignment)).map(|start| (start, start + needed))
        });
        let Some((start, end)) = found else {
            let spaces =
                if self.first == self.end { format!(": {SPACES} devices live already") } else { String::new() };
            return Err(format!("no {bytes} addresses are left of {}{spaces}", self.end - self.first));
        };
        self.reserved.insert(start, end);
        self.next = end;
        Ok(start)
    }

    /// Gives back the range that starts at `start`, if one does.
    pub fn release(&mut self, start: u64) {
        self.reserved.remove(&start);
    }

    /// Whether an address is of this device.
    pub fn contains(&self, address: u64) -> bool {
        (self.first..self.end).contains(&address)
    }

    /// The first start at `from` or behind it of so many addresses that nobody has.
    fn gap(&self, from: u64, needed: u64, alignment: u64) -> Option<u64> {
        let before = self.reserved.range(..from).next_back().map_or(from, |(_, &end)| end.max(from));
        let mut start = before.checked_next_multiple_of(alignment)?;
        for (&taken, &end) in self.reserved.range(from..) {
            if start.checked_add(needed)? <= taken {
                break;
            }
            start = end.max(start).checked_next_multiple_of(alignment)?;
        }
        (start.checked_add(needed)? <= self.end).then_some(start)
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            numbers().taken[number] = false;
        }
    }
}

/// Which spaces living devices have.
struct Numbers {
    taken: [bool; SPACES],
    next: usize,
}

fn numbers() -> MutexGuard<'static, Numbers> {
    static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { taken: [false; SPACES], next: 0 });
    // Flags and a number are never half-changed.
    NUMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Numbers {
    /// The one that was given back longest ago, or was never given.
    fn take(&mut self) -> Option<usize> {
        let free = (0..SPACES).map(|step| (self.next + step) % SPACES).find(|&number| !self.taken[number])?;
        self.taken[free] = true;
        self.next = free + 1;
        Some(free)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// One test, since the spaces are those of the process.
    #[test]
    fn living_spaces_are_apart_and_below_the_windows_and_run_out() {
        let mut spaces: Vec<AddressSpace> = (0..SPACES).map(|_| AddressSpace::apart()).collect();
        let starts: BTreeSet<u64> = spaces.iter_mut().map(|space| space.reserve(1, 256, 0).unwrap()).collect();
        assert_eq!(starts.len(), SPACES);
        assert!(
            starts.iter().all(|&start| start >= SPAN && start.is_multiple_of(SPAN) && start + SPAN <= 0x7f00 << 32)
        );
        let error = AddressSpace::apart().reserve(1, 256, 0).unwrap_err();
        assert_eq!(error, "no 1 addresses are left of 0: 120 devices live already");
        // One that goes makes room for one; a number is not given again at once where others are free.
        let gone = spaces.swap_remove(7).first;
        assert_eq!(AddressSpace::apart().first, gone);
        spaces.clear();
        assert_ne!(AddressSpace::apart().first, AddressSpace::apart().first);
    }

    #[test]
    fn ranges_stay_inside_and_apart_with_their_guards() {
        let mut space = AddressSpace::whole();
        let room = space.end - space.first;
        assert!(space.reserve(room, 256, 1).is_err());
        let all = space.reserve(room - 64, 256, 64).unwrap();
        assert!(space.contains(all) && space.contains(all + room - 1) && !space.contains(all + room));
        assert_eq!(space.reserve(1, 1, 0).unwrap_err(), format!("no 1 addresses are left of {room}"));
        space.release(all);
        let [a, b] = [100, 100].map(|bytes| space.reserve(bytes, 256, 200).unwrap());
        assert_eq!((a, b), (all, all + 512));
        for (bytes, guard) in [(u64::MAX, 1), (u64::MAX - 1, 1), (room, 0)] {
            assert!(space.reserve(bytes, 256, guard).is_err(), "{bytes}");
        }
    }

    /// Freed ranges come round again, so that a device may allocate for ever.
    #[test]
    fn what_was_given_back_is_found_again_last() {
        let mut space = AddressSpace::whole();
        let sixth = (space.end - space.first) / 6;
        let starts: Vec<u64> = (0..5).map(|_| space.reserve(sixth - 4096, 4096, 4096).unwrap()).collect();
        space.release(starts[1]);
        space.release(starts[2]);
        let last = space.reserve(sixth - 4096, 4096, 4096).unwrap();
        assert!(last > starts[4], "room that was never given comes first");
        assert_eq!(space.reserve(2 * sixth - 8192, 4096, 4096).unwrap(), starts[1]);
        assert!(space.reserve(4096, 4096, sixth).is_err());
        space.release(starts[4]);
        assert_eq!(space.reserve(sixth - 4096, 4096, 4096).unwrap(), starts[4]);
    }
}
