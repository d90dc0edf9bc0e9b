//! Work in flight: copies, matrix operations and commits. A seed picks when each one completes.

use crate::finding::Finding;
use crate::machine::Cluster;
use crate::rng::Rng;

/// When asynchronous work completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompletionPolicy {
    /// At once.
    Eager,
    /// Only when no warp can run.
    Lazy,
    /// At a time drawn from the seed.
    #[default]
    Random,
}

/// What completing an operation does to the cluster.
pub type Action = Box<dyn FnOnce(&mut Cluster) -> Result<(), Box<Finding>> + Send>;

struct Pending {
    ready: u64,
    sequence: u64,
    action: Action,
}

/// The operations in flight of one cluster.
pub struct AsyncEngine {
    pending: Vec<Pending>,
    policy: CompletionPolicy,
    rng: Rng,
    next_operation: u64,
    sequence: u64,
}

/// Mean delay of the random policy in warp instructions of the cluster.
const MEAN_DELAY: u64 = 400;

impl AsyncEngine {
    /// An idle engine.
    pub fn new(policy: CompletionPolicy, seed: u64, stream: u64) -> AsyncEngine {
        AsyncEngine {
            pending: Vec::new(),
            policy,
            rng: Rng::new(seed ^ 0xA57C, stream),
            next_operation: 1,
            sequence: 0,
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
        let delay = match self.policy {
            CompletionPolicy::Eager => 0,
            CompletionPolicy::Lazy => u64::MAX / 2,
            CompletionPolicy::Random => self.rng.below(2 * MEAN_DELAY),
        };
        self.sequence += 1;
        self.pending.push(Pending { ready: now.saturating_add(delay), sequence: self.sequence, action });
    }

    /// Whether nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// The next action whose time has come.
    pub fn take_ready(&mut self, now: u64) -> Option<Action> {
        let next = self.earliest()?;
        (self.pending[next].ready <= now).then(|| self.pending.remove(next).action)
    }

    /// The next action, whatever its time; for when no warp can run.
    pub fn take_next(&mut self) -> Option<Action> {
        let next = match self.policy {
            CompletionPolicy::Random if self.pending.len() > 1 => self.rng.below(self.pending.len() as u64) as usize,
            _ => self.earliest()?,
        };
        (next < self.pending.len()).then(|| self.pending.remove(next).action)
    }

    fn earliest(&self) -> Option<usize> {
        (0..self.pending.len()).min_by_key(|&i| (self.pending[i].ready, self.pending[i].sequence))
    }
}
