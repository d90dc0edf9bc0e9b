//! Why a group of lanes cannot run, and when it can again.

use super::{Cluster, Warp};
use crate::exec::copy_groups::GroupWait;
use crate::exec::mbarrier;

/// What a blocked group waits for. Conditions are polled by the scheduler: a waker only changes the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// All lanes of this mask that have not exited must stand at the same instruction.
    Converge {
        /// Lanes that must take part.
        members: u32,
    },
    /// A named barrier of the CTA must complete the generation.
    NamedBarrier {
        /// Barrier number.
        id: u32,
        /// Generation waited for.
        generation: u64,
    },
    /// The cluster barrier must complete the generation.
    ClusterBarrier {
        /// Generation waited for.
        generation: u64,
    },
    /// A mbarrier must complete a phase.
    Mbarrier {
        /// Barrier, `rank << 24 | offset`.
        address: u32,
        /// Phase number that must be complete.
        phase: u64,
        /// The instruction gives up after a while, as `try_wait` does.
        times_out: bool,
    },
    /// The copies of every lane of the group must be complete but for the newest groups.
    CopyGroups(GroupWait),
    /// The pending-operation count of the warp must fall to `most`; what counts is the family's business.
    Pending {
        /// Which counter: see [`Warp::pending`].
        counter: u32,
        /// Most operations that may remain.
        most: u32,
    },
    /// Tensor memory columns or the allocation permit must become free.
    TensorAllocation {
        /// [`super::Cta::tensor_changes`] when the wait began.
        seen: u64,
    },
    /// The register pool of the CTA must have this many registers.
    Registers {
        /// Registers wanted.
        wanted: u32,
    },
}

impl Block {
    /// Whether the group may run again.
    pub fn is_over(&self, cluster: &Cluster, warp: &Warp, mask: u32) -> bool {
        let cta = &cluster.ctas[warp.cta as usize];
        match *self {
            Block::Converge { members } => members & warp.live & !mask == 0,
            Block::NamedBarrier { id, generation } => cta.barriers[id as usize].generation > generation,
            Block::ClusterBarrier { generation } => cluster.barrier.generation > generation,
            Block::Mbarrier { address, phase, .. } => cluster.mbarrier_passed(address, phase),
            Block::CopyGroups(wait) => warp.copies.is_over(mask, wait),
            Block::Pending { counter, most } => warp.pending[counter as usize] <= most,
            Block::TensorAllocation { seen } => cta.tensor_changes != seen,
            Block::Registers { wanted } => cta.register_pool >= wanted,
        }
    }

    /// The wait in words, for deadlock reports.
    pub fn describe(&self, cluster: &Cluster, warp: &Warp) -> String {
        let cta = &cluster.ctas[warp.cta as usize];
        match *self {
            Block::Converge { members } => {
                format!("waits for lanes {members:#010x} to reach the same instruction")
            }
            Block::NamedBarrier { id, .. } => {
                let barrier = &cta.barriers[id as usize];
                format!("waits on named barrier {id}: {} of {} threads arrived", barrier.arrived, barrier.expected)
            }
            Block::ClusterBarrier { .. } => format!(
                "waits on the cluster barrier: {} of {} threads arrived",
                cluster.barrier.arrived,
                cluster.live_threads()
            ),
            Block::Mbarrier { address, phase, .. } => {
                format!("waits for phase {phase} of {}", mbarrier::describe(cluster, address))
            }
            Block::CopyGroups(wait) => wait.describe(),
            Block::Pending { counter, most } => {
                format!("waits until at most {most} operations remain, {} do", warp.pending[counter as usize])
            }
            Block::TensorAllocation { .. } => "waits for tensor memory".to_string(),
            Block::Registers { wanted } => {
                format!("waits for {wanted} registers, the pool has {}", cta.register_pool)
            }
        }
    }
}
