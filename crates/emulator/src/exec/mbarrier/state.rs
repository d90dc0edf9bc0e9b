//! The state of one mbarrier, its 64-bit word, and the live barriers of a CTA.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use crate::check::Actor;

/// Most arrivals of a phase, and most outstanding bytes in either direction.
pub const MOST: u32 = (1 << 20) - 1;

/// What a warp knows of a barrier: used to report waiters that lag behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Waiter {
    /// Phases seen complete: the last one plus 1.
    seen: Option<u64>,
    /// The phase that a wait in progress waits for.
    waits_for: Option<u64>,
}

/// The true state of a mbarrier; the 64-bit word in shared memory mirrors it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mbarrier {
    /// Completed phases: the number of the phase in progress.
    pub phase: u64,
    /// Arrivals expected in each phase.
    pub expected: u32,
    /// Arrivals still missing in this phase.
    pub pending: u32,
    /// Bytes expected and not yet arrived; negative when they arrived first.
    pub transactions: i64,
    /// Who arrived last.
    pub last_arrival: Option<Actor>,
    waiters: Vec<Waiter>,
}

/// A change of a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// An arrival.
    Arrive {
        /// Threads that it counts for.
        count: u32,
        /// Bytes expected before the arrival counts.
        expect: u32,
        /// Later phases expect `count` arrivals fewer.
        drop: bool,
        /// The phase must not complete by it.
        no_complete: bool,
    },
    /// Bytes expected.
    Expect(u32),
    /// Bytes that arrived.
    Complete(u32),
    /// Arrivals added to this phase only: what `cp.async.mbarrier.arrive` without `.noinc` will take away.
    Increment,
}

impl Change {
    /// A plain arrival of one thread.
    pub const ONE: Change = Change::Arrive { count: 1, expect: 0, drop: false, no_complete: false };
}

impl Mbarrier {
    /// A barrier in phase 0 that expects `count` arrivals.
    pub fn new(count: u32) -> Mbarrier {
        Mbarrier { expected: count, pending: count, ..Mbarrier::default() }
    }

    /// The 64-bit object as ptxas-made code reads it (ISA notes, section 3.1). The encoding of the transaction count
    /// inside its 22 bits is not established: it is kept as a two's complement number.
    pub fn word(&self) -> u64 {
        let counts_up = |n: u32| u64::from((1u32 << 20) - n);
        let transactions = (self.transactions as u64) & ((1 << 22) - 1);
        counts_up(self.expected) << 1
            | transactions << 21
            | (counts_up(self.pending) & u64::from(MOST)) << 43
            | (self.phase & 1) << 63
    }

    /// Applies a change. Returns whether the phase completed.
    ///
    /// # Errors
    /// The rule of the protocol that is broken, with its number in the ISA notes.
    pub fn apply(&mut self, change: Change) -> Result<bool, String> {
        match change {
            Change::Arrive { count, expect, drop, no_complete } => {
                self.transact(i64::from(expect))?;
                if count == 0 || count > self.pending {
                    return Err(format!(
                        "MB04: {count} arrivals, {} of {} are pending in phase {}",
                        self.pending, self.expected, self.phase
                    ));
                }
                self.pending -= count;
                if drop {
                    self.expected -= count.min(self.expected);
                }
                let completed = self.try_complete();
                if completed && no_complete {
                    return Err("MB10: a .noComplete arrival completed the phase".to_string());
                }
                self.check_early()?;
                Ok(completed)
            }
            Change::Expect(bytes) => self.transact(i64::from(bytes)).map(|()| false),
            Change::Complete(bytes) => {
                self.transact(-i64::from(bytes))?;
                let completed = self.try_complete();
                self.check_early()?;
                Ok(completed)
            }
            Change::Increment => {
                if self.pending == MOST {
                    return Err(format!("MB04: more than {MOST} arrivals pending"));
                }
                self.pending += 1;
                Ok(false)
            }
        }
    }

    fn transact(&mut self, bytes: i64) -> Result<(), String> {
        self.transactions += bytes;
        if self.transactions.unsigned_abs() > u64::from(MOST) {
            return Err(format!("MB05: {} bytes outstanding, the count holds {MOST}", self.transactions));
        }
        Ok(())
    }

    /// Bytes that arrived before they were expected are no error while arrivals are pending.
    fn check_early(&self) -> Result<(), String> {
        if self.transactions < 0 && self.pending == 0 {
            return Err(format!(
                "MB06: all {} arrivals of phase {} came and {} bytes more than expected",
                self.expected, self.phase, -self.transactions
            ));
        }
        Ok(())
    }

    fn try_complete(&mut self) -> bool {
        let done = self.pending == 0 && self.transactions == 0;
        if done {
            self.phase += 1;
            self.pending = self.expected;
        }
        done
    }

    /// Whether a wait for `parity` passes: the phase in progress has the other parity.
    pub fn passes(&self, parity: u32) -> bool {
        self.phase & 1 != u64::from(parity)
    }

    fn waiter(&mut self, warp: u32) -> &mut Waiter {
        let index = warp as usize;
        if self.waiters.len() <= index {
            self.waiters.resize(index + 1, Waiter::default());
        }
        &mut self.waiters[index]
    }

    /// A wait of `warp` passed. Returns how many phases it missed when the parity it waited for can only have come
    /// round again by the barrier overtaking it.
    pub fn note_pass(&mut self, warp: u32) -> Option<u64> {
        let phase = self.phase;
        let waiter = self.waiter(warp);
        waiter.waits_for = None;
        let ahead = waiter.seen.replace(phase).map(|seen| phase - seen);
        ahead.filter(|&phases| phases >= 3 && phases % 2 == 1)
    }

    /// A wait of `warp` did not pass. Returns how many phases went by since it began to wait, when it missed one.
    pub fn note_wait(&mut self, warp: u32) -> Option<u64> {
        let phase = self.phase;
        let waiter = self.waiter(warp);
        let began = *waiter.waits_for.get_or_insert(phase);
        waiter.waits_for = Some(phase);
        (phase >= began + 2).then(|| phase - began)
    }
}

/// The live barriers of a CTA by shared offset.
#[derive(Debug, Clone, Default)]
pub struct Mbarriers {
    live: BTreeMap<u32, Mbarrier>,
}

impl Mbarriers {
    /// The barrier at an offset.
    pub fn get(&self, offset: u32) -> Option<&Mbarrier> {
        self.live.get(&offset)
    }

    /// The barrier at an offset, to change.
    pub fn get_mut(&mut self, offset: u32) -> Option<&mut Mbarrier> {
        self.live.get_mut(&offset)
    }

    /// Makes a barrier live; returns the one that was live there.
    pub fn insert(&mut self, offset: u32, barrier: Mbarrier) -> Option<Mbarrier> {
        self.live.insert(offset, barrier)
    }

    /// Ends the life of a barrier.
    pub fn remove(&mut self, offset: u32) -> Option<Mbarrier> {
        self.live.remove(&offset)
    }

    /// All live barriers, by offset.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Mbarrier)> {
        self.live.iter().map(|(&offset, barrier)| (offset, barrier))
    }

    /// Whether no barrier is live.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// The first live barrier that `len` bytes at `offset` overlap.
    pub fn overlapped(&self, offset: u32, len: u32) -> Option<u32> {
        let (last, _) = self.live.last_key_value()?;
        if offset >= last + 8 {
            return None;
        }
        let after = offset.checked_sub(8).map_or(Unbounded, Excluded);
        let first = self.live.range((after, Unbounded)).next()?.0;
        (*first < offset + len).then_some(*first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrive(count: u32, expect: u32) -> Change {
        Change::Arrive { count, expect, drop: false, no_complete: false }
    }

    #[test]
    fn the_word_is_the_one_ptxas_reads() {
        let mut barrier = Mbarrier::new(3);
        let up = (1u64 << 20) - 3;
        assert_eq!(barrier.word(), up << 1 | up << 43);
        barrier.apply(arrive(1, 0)).unwrap();
        assert_eq!((1 << 20) - (barrier.word() >> 43 & 0xfffff), 2, "pending_count");
        barrier.apply(arrive(2, 0)).unwrap();
        assert_eq!(barrier.word(), 1 << 63 | up << 1 | up << 43);
    }

    #[test]
    fn phases_need_arrivals_and_bytes() {
        let mut barrier = Mbarrier::new(2);
        assert!(barrier.passes(1) && !barrier.passes(0), "a fresh barrier lets producers pass");
        assert_eq!(barrier.apply(arrive(1, 64)), Ok(false));
        assert_eq!(barrier.apply(Change::Complete(48)), Ok(false));
        assert_eq!(barrier.apply(arrive(1, 0)), Ok(false));
        assert_eq!(barrier.apply(Change::Complete(16)), Ok(true));
        assert!(barrier.passes(0) && !barrier.passes(1));
        // Bytes first, while an arrival is pending.
        assert_eq!(barrier.apply(Change::Complete(32)), Ok(false));
        assert_eq!(barrier.transactions, -32);
        assert_eq!(barrier.apply(arrive(1, 32)), Ok(false));
        assert_eq!(barrier.apply(arrive(1, 0)), Ok(true));
    }

    #[test]
    fn drops_lower_later_phases() {
        let mut barrier = Mbarrier::new(3);
        let drop = Change::Arrive { count: 1, expect: 0, drop: true, no_complete: false };
        assert_eq!(barrier.apply(drop), Ok(false));
        assert_eq!(barrier.apply(arrive(2, 0)), Ok(true));
        assert_eq!((barrier.expected, barrier.pending), (2, 2));
    }

    #[test]
    fn broken_rules() {
        let mut barrier = Mbarrier::new(1);
        assert!(barrier.apply(arrive(2, 0)).unwrap_err().starts_with("MB04"));
        assert!(barrier.apply(arrive(0, 0)).unwrap_err().starts_with("MB04"));
        assert!(barrier.apply(Change::Expect(1 << 20)).unwrap_err().starts_with("MB05"));
        let mut barrier = Mbarrier::new(1);
        barrier.apply(Change::Complete(16)).unwrap();
        assert!(barrier.apply(arrive(1, 0)).unwrap_err().starts_with("MB06"));
        let mut barrier = Mbarrier::new(1);
        let one = Change::Arrive { count: 1, expect: 0, drop: false, no_complete: true };
        assert!(barrier.apply(one).unwrap_err().starts_with("MB10"));
    }

    #[test]
    fn waiters_that_are_overtaken() {
        let mut barrier = Mbarrier::new(1);
        assert_eq!(barrier.note_wait(5), None);
        barrier.apply(Change::ONE).unwrap();
        assert_eq!(barrier.note_pass(5), None);
        assert_eq!(barrier.note_wait(5), None);
        (0..2).for_each(|_| assert!(barrier.apply(Change::ONE).unwrap()));
        assert_eq!(barrier.note_wait(5), Some(2));
        barrier.apply(Change::ONE).unwrap();
        assert_eq!(barrier.note_pass(5), Some(3));
    }

    #[test]
    fn overlaps() {
        let mut barriers = Mbarriers::default();
        barriers.insert(0x410, Mbarrier::new(1));
        assert_eq!(barriers.overlapped(0x400, 16), None);
        assert_eq!(barriers.overlapped(0x400, 17), Some(0x410));
        assert_eq!(barriers.overlapped(0x417, 1), Some(0x410));
        assert_eq!(barriers.overlapped(0x418, 64), None);
    }
}
