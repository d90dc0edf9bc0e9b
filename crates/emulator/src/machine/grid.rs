//! A launch: its shape, and what its clusters share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Sizes of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchShape {
    /// CTAs.
    pub grid: [u32; 3],
    /// Threads of a CTA.
    pub block: [u32; 3],
    /// CTAs of a cluster.
    pub cluster: [u32; 3],
    /// Whether clusters were asked for, by the launch or by the kernel.
    pub explicit_cluster: bool,
    /// Dynamic shared memory, bytes.
    pub dynamic_shared: u32,
    /// All shared memory of a CTA, bytes, static part included.
    pub shared_bytes: u32,
}

impl LaunchShape {
    /// Threads of a CTA.
    pub fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// CTAs of a cluster.
    pub fn cluster_size(&self) -> u32 {
        self.cluster.iter().product()
    }

    /// Clusters in each direction.
    pub fn clusters(&self) -> [u32; 3] {
        std::array::from_fn(|i| self.grid[i] / self.cluster[i])
    }

    /// Clusters of the grid.
    pub fn cluster_count(&self) -> u64 {
        self.clusters().iter().map(|&n| u64::from(n)).product()
    }

    /// Position of a cluster from its linear index, x fastest.
    pub fn cluster_index(&self, linear: u64) -> [u32; 3] {
        let [x, y, _] = self.clusters().map(u64::from);
        [(linear % x) as u32, (linear / x % y) as u32, (linear / (x * y)) as u32]
    }
}

/// What the clusters of a launch share.
#[derive(Debug)]
pub struct Grid {
    /// Sizes.
    pub shape: LaunchShape,
    /// `%gridid`
    pub id: u64,
    /// What a barrier of the whole grid counts in: its address, 0 for kernels that have none.
    pub workspace: u64,
    /// Clusters launched or cancelled so far, in launch order.
    next: AtomicU64,
    /// Slices without a spin, over all clusters: grows while anything makes progress.
    progress: AtomicU64,
    /// A cluster faulted: the others stop.
    stopped: AtomicBool,
}

impl Grid {
    /// A grid of which nothing is launched, and of whose clusters those before `first` never will be.
    pub fn new(shape: LaunchShape, id: u64, workspace: u64, first: u64) -> Grid {
        Grid {
            shape,
            id,
            workspace,
            next: AtomicU64::new(first),
            progress: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    /// Takes the next cluster that is not launched: to launch it, or to cancel it (launch control).
    pub fn take_cluster(&self) -> Option<u64> {
        let total = self.shape.cluster_count();
        self.next.fetch_update(SeqCst, SeqCst, |n| (n < total).then_some(n + 1)).ok()
    }

    /// Notes progress.
    pub fn advance(&self) {
        self.progress.fetch_add(1, SeqCst);
    }

    /// How much progress there was.
    pub fn progress(&self) -> u64 {
        self.progress.load(SeqCst)
    }

    /// Ends the launch early.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
    }

    /// Whether the launch ends early.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }
}
