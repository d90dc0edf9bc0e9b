//! Checkers: observers of what the machine does. They see events and report findings; they never change a result.
//!
//! | module | what |
//! |---|---|
//! | [`order`] | happens-before: state, fences, barriers of threads |
//! | `access` | races, missing proxy and tensor-memory fences |
//! | `mbarrier`, `operation` | what mbarriers hand on; asynchronous work |
//! | `lifetime` | lifetime of clusters, work in flight at exit |
//! | [`overlap`] | launches that begin before the one before them has ended |
//! | [`clock`] | what an actor knows to have happened |
//! | [`shadow`] | who touched each four bytes last |
//! | [`sync`] | releases and acquires through memory |
//! | [`report`] | findings in words |
//!
//! Bounds, alignment, unwritten bytes, the protocols of mbarriers and of tensor memory are checked where they are
//! executed, because the machine has to know about them anyway.

mod access;
pub mod clock;
mod hash;
mod lifetime;
mod mbarrier;
mod operation;
pub mod order;
pub mod overlap;
pub mod report;
pub mod shadow;
pub mod sync;

use crate::finding::Finding;
use crate::machine::WARP;
use crate::memory::Space;

/// Who makes an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Actor {
    /// Rank of the CTA in its cluster.
    pub cta: u32,
    /// Warp in the CTA.
    pub warp: u32,
    /// Lanes that take part.
    pub lanes: u32,
    /// Index of the operation in the program.
    pub pc: u32,
}

/// Which proxy an access goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Proxy {
    /// `ld`, `st`, `atom`, ldmatrix and the like.
    Generic,
    /// Bulk and tensor copies, matrix operands in shared memory.
    Async,
    /// Tensor-map reads by the copy engine.
    TensorMap,
}

/// How bytes are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Use {
    /// Read.
    Read,
    /// Written.
    Write,
    /// Written with the values that are there already.
    Rewrite,
    /// Read, modified and written in one step.
    Atomic,
    /// Tensor memory given back.
    Free,
}

/// Memory order and scope of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Plain.
    Weak,
    /// `.relaxed`, `.volatile`
    Relaxed(Scope),
    /// `.acquire`
    Acquire(Scope),
    /// `.release`
    Release(Scope),
    /// `.acq_rel`
    AcquireRelease(Scope),
}

/// Threads that an ordering covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// `.cta`
    Cta,
    /// `.cluster`
    Cluster,
    /// `.gpu`
    Gpu,
    /// `.sys`
    Sys,
}

/// Addresses of one access.
#[derive(Debug, Clone, Copy)]
pub enum Bytes<'a> {
    /// `width` bytes at each lane's address; lanes are those of the actor.
    Lanes(&'a [u64; WARP], u32),
    /// One run of bytes.
    Range(u64, u64),
    /// Runs of as many bytes each at these addresses, all in the memory of one CTA: what a matrix operation reads.
    Runs(&'a [u64], u64),
}

/// One memory access.
#[derive(Debug, Clone, Copy)]
pub struct Access<'a> {
    /// Memory. Shared addresses are `rank << 24 | offset`, tensor addresses `lane << 16 | column`.
    pub space: Space,
    /// Read or write.
    pub usage: Use,
    /// Proxy.
    pub proxy: Proxy,
    /// Ordering.
    pub order: Order,
    /// Which bytes.
    pub bytes: Bytes<'a>,
    /// Asynchronous operation that makes the access; 0 for the warp itself.
    pub operation: u64,
}

/// Synchronisation and life-cycle events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A CTA starts, with this many warps.
    CtaStart {
        /// Rank.
        cta: u32,
        /// Warps.
        warps: u32,
    },
    /// The last warp of a CTA exited.
    CtaExit {
        /// Rank.
        cta: u32,
    },
    /// Lanes of a warp exited.
    Exit,
    /// `bar.sync`, `bar.arrive` or `bar.red` reached; `waits` is false for arrive.
    BarrierArrive {
        /// Barrier number.
        id: u32,
        /// Generation that this arrival belongs to.
        generation: u64,
        /// Whether the warp waits.
        waits: bool,
    },
    /// A named barrier completed.
    BarrierComplete {
        /// Rank.
        cta: u32,
        /// Barrier number.
        id: u32,
        /// Generation that completed.
        generation: u64,
    },
    /// A wait on a named barrier returned.
    BarrierPass {
        /// Barrier number.
        id: u32,
        /// Generation waited for.
        generation: u64,
    },
    /// `bar.warp.sync` and other warp-wide joins.
    WarpSync {
        /// Member mask.
        members: u32,
    },
    /// `barrier.cluster.arrive`
    ClusterArrive {
        /// Generation.
        generation: u64,
        /// `.release`
        release: bool,
    },
    /// `barrier.cluster.wait` returned.
    ClusterPass {
        /// Generation.
        generation: u64,
    },
    /// mbarrier initialised, `address` is `rank << 24 | offset`.
    MbarrierInit {
        /// Barrier.
        address: u32,
        /// Expected arrivals.
        count: u32,
    },
    /// mbarrier invalidated.
    MbarrierInvalidate {
        /// Barrier.
        address: u32,
    },
    /// An arrival; `operation` is not 0 when an engine signals (commit, complete_tx).
    MbarrierArrive {
        /// Barrier.
        address: u32,
        /// Phase the arrival belongs to.
        phase: u64,
        /// Order.
        order: Order,
        /// Asynchronous operation, or 0.
        operation: u64,
    },
    /// A phase completed.
    MbarrierComplete {
        /// Barrier.
        address: u32,
        /// Phase.
        phase: u64,
    },
    /// A wait returned true.
    MbarrierPass {
        /// Barrier.
        address: u32,
        /// Phase waited for.
        phase: u64,
        /// Order.
        order: Order,
    },
    /// A fence between threads.
    Fence {
        /// Order and scope.
        order: Order,
    },
    /// A proxy fence.
    ProxyFence {
        /// Which one.
        fence: ProxyFence,
    },
    /// An asynchronous operation was issued by this warp.
    Issue {
        /// Its number, unique in the cluster, never 0.
        operation: u64,
    },
    /// An asynchronous operation finished reading its sources.
    ReadsDone {
        /// Its number.
        operation: u64,
    },
    /// An asynchronous operation finished.
    Complete {
        /// Its number.
        operation: u64,
    },
    /// `griddepcontrol.wait` returned: the launches before this one are complete.
    EarlierPass,
    /// `griddepcontrol.launch_dependents`
    ReleaseDependents,
    /// The warp waited for an operation (wait_group and the like).
    Waited {
        /// Its number.
        operation: u64,
        /// Reads only (`.read`).
        reads_only: bool,
    },
}

/// Which proxy fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProxyFence {
    /// `fence.proxy.async` over all spaces.
    Async,
    /// `fence.proxy.async.global`
    AsyncGlobal,
    /// `fence.proxy.async.shared::cta` or `::cluster`
    AsyncShared,
    /// `fence.proxy.tensormap::generic` release or acquire
    TensorMap,
    /// `fence.mbarrier_init`
    MbarrierInit,
    /// `tcgen05.fence::before_thread_sync`
    TensorBefore,
    /// `tcgen05.fence::after_thread_sync`
    TensorAfter,
    /// `wgmma.fence`
    Wgmma,
}

/// A checker of one cluster.
pub trait Observer: Send {
    /// A memory access, before it takes place.
    fn access(&mut self, actor: &Actor, access: &Access<'_>);
    /// A synchronisation event, after it took place.
    fn event(&mut self, actor: &Actor, event: &Event);
    /// Findings since the last call; the machine fills kernel, line and text from `pc` of the actor.
    fn take_findings(&mut self) -> Vec<(Actor, Finding)>;
}
