//! Execution, one file per family: rows of the instruction table, decoding, semantics, tests.

pub mod async_copy;
#[cfg(test)]
pub(crate) mod async_testing;
pub mod atomic;
pub mod barrier;
pub mod bulk_copy;
pub mod cache;
pub mod call;
pub mod cluster;
pub mod compare;
pub mod control;
pub mod convert;
pub mod copy_groups;
pub mod float;
pub mod integer;
pub mod launch_control;
pub mod ldmatrix;
pub mod mbarrier;
pub mod memory;
pub mod mma;
pub mod moves;
mod multicast;
pub mod multimem;
pub(crate) mod operand_tile;
mod print;
pub mod reduction;
pub mod shuffle;
pub mod store_async;
pub mod tcgen05;
pub mod tensor_copy;
pub mod tensor_map;
pub mod texture;
mod transfer;
pub mod video;
pub mod wgmma;
pub mod wmma;

use crate::isa::table::Row;
use crate::machine::{Cluster, Outcome, Regs, WARP, Warp, Word};

/// A decoded operation, by family.
#[derive(Debug, Clone)]
pub enum Op {
    /// Integer arithmetic and bit operations.
    Integer(integer::IntegerOp),
    /// Floating-point arithmetic.
    Float(float::FloatOp),
    /// Video instructions.
    Video(Box<video::VideoOp>),
    /// `vmad`.
    VideoMultiply(Box<video::MultiplyOp>),
    /// Conversions.
    Convert(convert::ConvertOp),
    /// Comparison and selection.
    Compare(compare::CompareOp),
    /// Moves, packing, addresses, special registers.
    Move(moves::MoveOp),
    /// Branches, returns, exit.
    Control(control::ControlOp),
    /// Arguments and frames of calls, the stack of a thread.
    Call(call::CallOp),
    /// Loads and stores.
    Memory(memory::MemoryOp),
    /// Prefetches and cache policies.
    Cache(cache::CacheOp),
    /// atom and red.
    Atomic(Box<atomic::AtomicOp>),
    /// Values between lanes.
    Shuffle(shuffle::ShuffleOp),
    /// Named barriers, warp barriers, fences.
    Barrier(barrier::BarrierOp),
    /// mbarrier.
    Mbarrier(mbarrier::MbarrierOp),
    /// Bulk copies without a tensor map.
    BulkCopy(Box<bulk_copy::BulkCopyOp>),
    /// `cp.async`
    AsyncCopy(Box<async_copy::AsyncCopyOp>),
    /// `st.async` and `red.async`
    StoreAsync(Box<store_async::StoreAsyncOp>),
    /// Cluster launch control.
    LaunchControl(launch_control::LaunchControlOp),
    /// Groups of copies.
    CopyGroup(copy_groups::GroupOp),
    /// Tensor maps changed on the device.
    TensorMap(tensor_map::TensorMapOp),
    /// Tensor copies.
    TensorCopy(Box<tensor_copy::TensorCopyOp>),
    /// Clusters and launch control.
    Cluster(cluster::ClusterOp),
    /// ldmatrix, stmatrix, movmatrix.
    Ldmatrix(Box<ldmatrix::LdmatrixOp>),
    /// mma.sync.
    Mma(Box<mma::MmaOp>),
    /// Addresses of wmma accesses; its products are those of mma.sync.
    Wmma(Box<wmma::AddressOp>),
    /// wgmma.
    Wgmma(Box<wgmma::WgmmaOp>),
    /// tcgen05.
    Tcgen05(Box<tcgen05::Tcgen05Op>),
}

/// Rows of every family, joined by [`crate::isa::table`].
pub static ROWS: &[&[Row]] = &[
    integer::ROWS,
    float::ROWS,
    convert::ROWS,
    compare::ROWS,
    moves::ROWS,
    control::ROWS,
    call::ROWS,
    memory::ROWS,
    cache::ROWS,
    atomic::ROWS,
    multimem::ROWS,
    shuffle::ROWS,
    barrier::ROWS,
    mbarrier::ROWS,
    async_copy::ROWS,
    copy_groups::ROWS,
    launch_control::ROWS,
    store_async::ROWS,
    bulk_copy::ROWS,
    tensor_map::ROWS,
    tensor_copy::ROWS,
    texture::ROWS,
    video::ROWS,
    cluster::ROWS,
    ldmatrix::ROWS,
    mma::ROWS,
    wgmma::ROWS,
    wmma::ROWS,
    tcgen05::ROWS,
];

/// Executes one operation for the lanes of `mask`, which is not empty.
#[inline]
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &Op) -> Outcome {
    match op {
        Op::Integer(op) => integer::execute(&mut warp.regs, mask, op),
        Op::Float(op) => float::execute(machine, warp, mask, op),
        Op::Video(op) => video::execute(&mut warp.regs, mask, op),
        Op::VideoMultiply(op) => video::execute_multiply(&mut warp.regs, mask, op),
        Op::Convert(op) => convert::execute(machine, warp, mask, op),
        Op::Compare(op) => compare::execute(&mut warp.regs, mask, op),
        Op::Move(op) => moves::execute(machine, warp, mask, op),
        Op::Control(op) => control::execute(machine, warp, mask, op),
        Op::Call(op) => call::execute(machine, warp, mask, op),
        Op::Memory(op) => memory::execute(machine, warp, mask, op),
        Op::Cache(op) => cache::execute(machine, warp, mask, op),
        Op::Atomic(op) => atomic::execute(machine, warp, mask, op),
        Op::Shuffle(op) => shuffle::execute(machine, warp, mask, op),
        Op::Barrier(op) => barrier::execute(machine, warp, mask, op),
        Op::Mbarrier(op) => mbarrier::execute(machine, warp, mask, op),
        Op::AsyncCopy(op) => async_copy::execute(machine, warp, mask, op),
        Op::StoreAsync(op) => store_async::execute(machine, warp, mask, op),
        Op::LaunchControl(op) => launch_control::execute(machine, warp, mask, op),
        Op::CopyGroup(op) => copy_groups::execute(machine, warp, mask, *op),
        Op::TensorMap(op) => tensor_map::execute(machine, warp, mask, op),
        Op::BulkCopy(op) => bulk_copy::execute(machine, warp, mask, op),
        Op::TensorCopy(op) => tensor_copy::execute(machine, warp, mask, op),
        Op::Cluster(op) => cluster::execute(machine, warp, mask, op),
        Op::Ldmatrix(op) => ldmatrix::execute(machine, warp, mask, op),
        Op::Mma(op) => mma::execute(machine, warp, mask, op),
        Op::Wmma(op) => wmma::execute(machine, warp, mask, op),
        Op::Wgmma(op) => wgmma::execute(machine, warp, mask, op),
        Op::Tcgen05(op) => tcgen05::execute(machine, warp, mask, op),
    }
}

/// `d = f(a)` for the lanes of `mask`.
#[inline(always)]
pub fn map1<A: Word, D: Word>(regs: &mut Regs, mask: u32, d: D::Index, a: A::Index, f: impl Fn(A) -> D) -> Outcome {
    let a = regs.get::<A>(a);
    let mut out = [D::default(); WARP];
    for lane in 0..WARP {
        out[lane] = f(a[lane]);
    }
    regs.set::<D>(d, mask, &out);
    Outcome::Next
}

/// `d = f(a, b)` for the lanes of `mask`.
#[inline(always)]
pub fn map2<A: Word, B: Word, D: Word>(
    regs: &mut Regs,
    mask: u32,
    d: D::Index,
    a: A::Index,
    b: B::Index,
    f: impl Fn(A, B) -> D,
) -> Outcome {
    let (a, b) = (regs.get::<A>(a), regs.get::<B>(b));
    let mut out = [D::default(); WARP];
    for lane in 0..WARP {
        out[lane] = f(a[lane], b[lane]);
    }
    regs.set::<D>(d, mask, &out);
    Outcome::Next
}

/// `d = f(a, b, c)` for the lanes of `mask`.
#[inline(always)]
pub fn map3<A: Word, B: Word, C: Word, D: Word>(
    regs: &mut Regs,
    mask: u32,
    d: D::Index,
    (a, b, c): (A::Index, B::Index, C::Index),
    f: impl Fn(A, B, C) -> D,
) -> Outcome {
    let (a, b, c) = (regs.get::<A>(a), regs.get::<B>(b), regs.get::<C>(c));
    let mut out = [D::default(); WARP];
    for lane in 0..WARP {
        out[lane] = f(a[lane], b[lane], c[lane]);
    }
    regs.set::<D>(d, mask, &out);
    Outcome::Next
}

/// Whether all lanes take part and their accesses of `bytes` bytes lie one behind the other.
#[inline]
pub fn side_by_side(mask: u32, at: &[u64; WARP], bytes: u32) -> bool {
    mask == u32::MAX && at.iter().zip(0u64..).all(|(&a, lane)| a == at[0].wrapping_add(lane * u64::from(bytes)))
}

/// Lanes of a mask, lowest first.
pub fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        Some(lane)
    })
}
