//! A CTA: shared memory, tensor memory, named barriers, register pool.

use super::Warp;
use crate::exec::mbarrier::Mbarriers;
use crate::memory::{SharedMemory, TensorMemory};

/// One of the sixteen barriers of a CTA.
#[derive(Debug, Clone, Default)]
pub struct NamedBarrier {
    /// Completed generations.
    pub generation: u64,
    /// Threads that arrived in this generation.
    pub arrived: u32,
    /// Threads expected in this generation; 0 while nobody arrived.
    pub expected: u32,
    /// Warps that arrived, with arrive or sync.
    pub arrivals: Vec<u32>,
    /// Reduction so far: count of true predicates, and, or.
    pub reduction: (u32, bool, bool),
    /// Reduction of the generation that completed last.
    pub result: (u32, bool, bool),
}

/// A CTA.
pub struct Cta {
    /// Rank in the cluster.
    pub rank: u32,
    /// `%ctaid`
    pub index: [u32; 3],
    /// Shared memory.
    pub shared: SharedMemory,
    /// Tensor memory; present on targets that have it.
    pub tensor: Option<Box<TensorMemory>>,
    /// Number of allocations and releases of tensor memory so far.
    pub tensor_changes: u64,
    /// Live mbarriers by shared offset.
    pub mbarriers: Mbarriers,
    /// Named barriers 0 to 15.
    pub barriers: [NamedBarrier; 16],
    /// Registers that setmaxnreg may hand out.
    pub register_pool: u32,
    /// What each warp asked for with setmaxnreg: registers, and the operation.
    pub register_changes: Vec<Vec<(u32, u32)>>,
    /// Warps; the one that runs is taken out meanwhile.
    pub warps: Vec<Option<Box<Warp>>>,
    /// Threads that have not exited.
    pub live_threads: u32,
    /// Threads that have not exited, by warp.
    pub live_by_warp: Vec<u32>,
}

impl Cta {
    /// Whether all threads exited.
    pub fn is_done(&self) -> bool {
        self.live_threads == 0
    }
}
