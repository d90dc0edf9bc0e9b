//! Made-up addresses for memory on the CPU, apart from each other as those of the GPUs in a process are.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of one address space; also its first possible start, below which addresses belong to nobody.
pub const SPAN: u64 = 1 << 40;

/// Address spaces in use before the first is given out again. They end below every address window that an
/// emulated program has for itself.
const SPACES: u64 = 120;

/// First address of a space of 2^40 bytes, a multiple of its size.
///
/// The last 120 that a process asked for are different, so that a tensor of one device is recognised as foreign by
/// another, as it is between GPUs.
///
/// ```
/// use bakewell_core::address_space;
///
/// let (one, other) = (address_space::next(), address_space::next());
/// assert!(one.abs_diff(other) >= 1 << 40);
/// ```
pub fn next() -> u64 {
    static GIVEN: AtomicU64 = AtomicU64::new(0);
    (GIVEN.fetch_add(1, Ordering::Relaxed) % SPACES + 1) * SPAN
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn spaces_are_apart_and_below_the_windows() {
        let spaces: BTreeSet<u64> = (0..super::SPACES / 2).map(|_| super::next()).collect();
        assert_eq!(spaces.len() as u64, super::SPACES / 2);
        assert!(spaces.iter().all(|&first| first >= super::SPAN && first + super::SPAN < 0x7f00_0000_0000));
    }
}
