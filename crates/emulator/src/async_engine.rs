//! Work in flight: copies, matrix operations and commits. A seed picks when each one completes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use crate::finding::Finding;
use crate::machine::Cluster;
use crate::rng::Rng;

/// When asynchronous work completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompletionPolicy {
    /// At once, in the order of issue.
    Eager,
    /// Only when no warp can run, in an order drawn from the seed.
    Lazy,
    /// At a time drawn from the seed.
    #[default]
    Random,
}

/// What completing an operation does to the cluster.
pub type Action = Box<dyn FnOnce(&mut Cluster) -> Result<(), Box<Finding>> + Send>;

/// An action and when it happens; actions of the same time happen in the order they were queued.
struct Pending {
    ready: u64,
    sequence: u64,
    action: Action,
}

impl Pending {
    fn key(&self) -> Reverse<(u64, u64)> {
        Reverse((self.ready, self.sequence))
    }
}

impl PartialEq for Pending {
    fn eq(&self, other: &Pending) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Pending {}

impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Pending) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pending {
    fn cmp(&self, other: &Pending) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// A warp that sleeps in a `try_wait`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sleep {
    /// Rank of the CTA.
    pub cta: u32,
    /// Warp in the CTA.
    pub warp: u32,
    /// The instruction.
    pub pc: u32,
    /// The barrier.
    pub address: u32,
}

/// The operations in flight of one cluster.
pub struct AsyncEngine {
    pending: BinaryHeap<Pending>,
    policy: CompletionPolicy,
    rng: Rng,
    next_operation: u64,
    sequence: u64,
    /// Sleeps that ended for lack of time since the last progress.
    timed_out: HashSet<Sleep>,
    refused: bool,
}

/// Mean delay of the random policy in warp instructions of the cluster.
const MEAN_DELAY: u64 = 400;
/// Times of the lazy policy: later than any instruction.
const NEVER: u64 = u64::MAX / 2;

impl AsyncEngine {
    /// An idle engine.
    pub fn new(policy: CompletionPolicy, seed: u64, stream: u64) -> AsyncEngine {
        AsyncEngine {
            pending: BinaryHeap::new(),
            policy,
            rng: Rng::new(seed ^ 0xA57C, stream),
            next_operation: 1,
            sequence: 0,
            timed_out: HashSet::new(),
            refused: false,
        }
    }

    /// A number for a new operation, unique in the cluster.
    pub fn operation(&mut self) -> u64 {
        let number = self.next_operation;
        self.next_operation += 1;
        number
    }

    /// Queues `action`, to run at a time that the policy picks, not before `now`.
    pub fn push(&mut self, now: u64, action: Action) {
        let ready = match self.policy {
            CompletionPolicy::Eager => now,
            CompletionPolicy::Lazy => NEVER + self.rng.below(1 << 32),
            CompletionPolicy::Random => now.saturating_add(self.rng.below(2 * MEAN_DELAY)),
        };
        self.sequence += 1;
        self.pending.push(Pending { ready, sequence: self.sequence, action });
    }

    /// A seeded choice that is not a time: whether something with one chance in `n` happens.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.rng.below(n) == 0
    }

    /// The program saw that a request of launch control failed.
    pub fn note_refusal(&mut self) {
        self.refused = true;
    }

    /// Whether the program saw a request of launch control fail.
    pub fn was_refused(&self) -> bool {
        self.refused
    }

    /// Whether nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// The next action whose time has come.
    pub fn take_ready(&mut self, now: u64) -> Option<Action> {
        if self.pending.peek()?.ready > now {
            return None;
        }
        self.take_next()
    }

    /// The next action, whatever its time; for when no warp can run.
    pub fn take_next(&mut self) -> Option<Action> {
        let pending = self.pending.pop()?;
        self.note_progress();
        Some(pending.action)
    }

    /// Something happened that a sleeper may wait for.
    pub fn note_progress(&mut self) {
        if !self.timed_out.is_empty() {
            self.timed_out.clear();
        }
    }

    /// Whether this sleep ended for lack of time since the last progress.
    pub fn has_timed_out(&self, sleep: &Sleep) -> bool {
        self.timed_out.contains(sleep)
    }

    /// A sleep ends for lack of time.
    pub fn note_timeout(&mut self, sleep: Sleep) {
        self.timed_out.insert(sleep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(policy: CompletionPolicy, seed: u64, now: u64) -> (usize, Vec<u64>) {
        let mut engine = AsyncEngine::new(policy, seed, 0);
        for _ in 0..32 {
            engine.push(10, Box::new(|_| Ok(())));
        }
        let mut ready = 0;
        while engine.pending.peek().is_some_and(|pending| pending.ready <= now) {
            engine.pending.pop();
            ready += 1;
        }
        let rest = std::iter::from_fn(|| engine.pending.pop().map(|pending| pending.sequence)).collect();
        (ready, rest)
    }

    #[test]
    fn policies() {
        assert_eq!(order(CompletionPolicy::Eager, 1, 9).1, (1..=32).collect::<Vec<u64>>());
        assert_eq!(order(CompletionPolicy::Eager, 1, 10).0, 32);
        let (ready, lazy) = order(CompletionPolicy::Lazy, 1, 1 << 40);
        assert_eq!(ready, 0);
        assert_ne!(lazy, order(CompletionPolicy::Lazy, 2, 0).1, "the order depends on the seed");
        let (half, _) = order(CompletionPolicy::Random, 1, 10 + MEAN_DELAY);
        assert!((4..28).contains(&half), "{half}");
        assert_eq!(order(CompletionPolicy::Random, 1, 10 + 2 * MEAN_DELAY).0, 32);
        assert_eq!(order(CompletionPolicy::Random, 7, 0), order(CompletionPolicy::Random, 7, 0));
    }
}
