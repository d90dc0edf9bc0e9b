//! State of the machine: registers, warps, CTAs, clusters, the grid, and who runs next.

mod block;
mod cluster;
mod cta;
mod endless;
mod frame;
mod grid;
mod regs;
mod schedule;
mod warp;

pub use block::Block;
pub use cluster::{Cluster, Fault};
pub use cta::{Cta, NamedBarrier};
pub use endless::Watch;
pub use frame::SavedFrame;
pub use grid::{Grid, LaunchShape};
pub use regs::{P, R32, R64, R128, Reg, RegCounts, Regs, WARP, Word};
pub(crate) use schedule::IDLE_TURNS;
pub use schedule::Status;
pub use warp::{Group, Warp};

use crate::finding::Finding;

/// What a handler tells the machine.
#[derive(Debug)]
pub enum Outcome {
    /// Go on with the next operation.
    Next,
    /// As `Next`, and let the scheduler pick a warp: after synchronising instructions.
    Yield,
    /// As `Yield`, for instructions that spin loops are made of (volatile or acquire loads, test_wait, nanosleep).
    Spin,
    /// The active lanes go to this operation, the others of the group go on.
    Branch(u32),
    /// Lanes go to several operations.
    Scatter(Vec<(u32, u32)>),
    /// The active lanes call a function.
    Call(u32),
    /// The active lanes return to their caller.
    Return,
    /// The active lanes exit.
    Exit,
    /// Try the same operation again once the block may have ended.
    Retry(Block),
    /// The operation is done; go on behind it once the block ended.
    Wait(Block),
    /// A fault of the program that ends the launch.
    Fault(Box<Finding>),
}
