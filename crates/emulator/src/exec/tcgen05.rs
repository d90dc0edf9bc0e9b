//! tcgen05: tensor memory and the matrix instructions on it (ISA notes, tcgen05).
//!
//! | file | instructions |
//! |---|---|
//! | [`allocation`] | alloc, dealloc, relinquish_alloc_permit |
//! | [`access`] | ld, ld.red, st, wait |
//! | [`queue`] | order and completion of mma, cp, shift, commit |
//! | [`copy`] | cp, shift |
//! | [`mma`] | mma, decoding and checks |
//! | `product` | mma, the arithmetic |
//! | `registers` | what else may be done with registers of ld |
//!
//! Data of `ld` is delivered at issue; what `wait::ld` protects is checked. mma, cp, shift and commit are queued
//! for each issuing thread and executed in that order, at a time the engine picks.

pub mod access;
pub mod allocation;
pub mod copy;
pub mod mma;
mod product;
pub mod queue;
pub(crate) mod registers;

use crate::check::{Event, ProxyFence};
use crate::decode::{Decoder, Refusal};
use crate::exec::Op;
use crate::finding::Kind;
use crate::isa::table::{BLACKWELL, FAMILY_100, Row};
use crate::isa::{Target, Words};
use crate::machine::{Cluster, Fault, Outcome, Warp};
use crate::memory::{COLUMNS, LANES, SHARED_COLUMNS, TensorMemory};
use crate::parse::ast::Instruction;

/// Targets of `ld.red`.
const WITH_REDUCTION: u8 = Target::Sm103.bit() | Target::Sm107.bit() | Target::Sm110.bit();
/// Targets of `kind::i8`.
const WITH_I8: u8 = Target::Sm100.bit() | Target::Sm110.bit();

/// `.xN` words.
macro_rules! repeats {
    () => {
        "(x1|x2|x4|x8|x16|x32|x64|x128)"
    };
}

/// Collector hints of A.
macro_rules! collector_a {
    () => {
        "{collector::a::fill|collector::a::use|collector::a::lastuse|collector::a::discard}"
    };
}

/// Collector hints of B, four buffers.
macro_rules! collector_b {
    () => {
        concat!(
            "{collector::b0::fill|collector::b0::use|collector::b0::lastuse|collector::b0::discard|",
            "collector::b1::fill|collector::b1::use|collector::b1::lastuse|collector::b1::discard|",
            "collector::b2::fill|collector::b2::use|collector::b2::lastuse|collector::b2::discard|",
            "collector::b3::fill|collector::b3::use|collector::b3::lastuse|collector::b3::discard}"
        )
    };
}

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new(
        "tcgen05 alloc (cta_group::1|cta_group::2) sync aligned {shared::cta} b32",
        "[a], n",
        allocation::decode_alloc,
        "tcgen05 1.2",
    )
    .on(BLACKWELL, 86).needs(Words::Family),
    Row::new(
        "tcgen05 alloc exclusive (cta_group::1|cta_group::2) sync aligned {shared::cta} b32",
        "[a], n",
        allocation::decode_alloc,
        "9.7.18.7.1",
    )
    .on(BLACKWELL, 94).needs(Words::Family),
    Row::new(
        "tcgen05 dealloc exclusive (cta_group::1|cta_group::2) sync aligned b32",
        "a, n",
        allocation::decode_dealloc,
        "9.7.18.7.1",
    )
    .on(BLACKWELL, 94).needs(Words::Family),
    Row::new(
        "tcgen05 dealloc (cta_group::1|cta_group::2) sync aligned b32",
        "a, n",
        allocation::decode_dealloc,
        "tcgen05 1.2",
    )
    .on(BLACKWELL, 86).needs(Words::Family),
    Row::new(
        "tcgen05 relinquish_alloc_permit (cta_group::1|cta_group::2) sync aligned",
        "",
        allocation::decode_relinquish,
        "tcgen05 1.2",
    )
    .on(BLACKWELL, 86).needs(Words::Family),
    Row::new(
        concat!("tcgen05 ld sync aligned (32x32b|16x64b|16x128b|16x256b) ", repeats!(), " {pack::16b} b32"),
        "d, [a]",
        access::decode_load,
        "tcgen05 2.1",
    )
    .on(BLACKWELL, 86).needs(Words::Family),
    Row::new(
        concat!("tcgen05 ld sync aligned 16x32bx2 ", repeats!(), " {pack::16b} b32"),
        "d, [a], split",
        access::decode_load,
        "tcgen05 2.1",
    )
    .on(BLACKWELL, 86).needs(Words::Family),
    Row::new(
        "tcgen05 ld red sync aligned (32x32b|16x32bx2) (x2|x4|x8|x16|x32|x64|x128) (min|max) {abs} {NaN} (f32|u32|s32)",
        "d, r, [a]{, split}",
        access::decode_load,
        "tcgen05 2.4",
    )
    .on(WITH_REDUCTION, 86).needs(Words::Family),
    Row::refused(
        concat!("tcgen05 ld {red} spcompress sync aligned 32x32b ", repeats!(), " {min|max} {abs} {NaN} sp::2:4 (b32|f32)"),
        "d, m, [a]",
        "the selection rules of .spcompress are not public",
        "tcgen05 2.5",
    ),
    Row::new(
        concat!("tcgen05 st sync aligned (32x32b|16x64b|16x128b|16x256b) ", repeats!(), " {unpack::16b} b32"),
        "[a], b",
        access::decode_store,
        "tcgen05 2.1",
    )
    .on(BLACKWELL, 86).needs(Words::Family),
    Row::new(
        concat!("tcgen05 st sync aligned 16x32bx2 ", repeats!(), " {unpack::16b} b32"),
        "[a], split, b",
        access::decode_store,
        "tcgen05 2.1",
    )
    .on(BLACKWELL, 86).needs(Words::Family),
    Row::new("tcgen05 (wait::ld|wait::st) sync aligned", "", access::decode_wait, "tcgen05 2.6").on(BLACKWELL, 86).needs(Words::Family),
    Row::new(
        "tcgen05 cp (cta_group::1|cta_group::2) (128x256b|4x256b|128x128b|64x128b|32x128b) {warpx2::02_13|warpx2::01_23|warpx4} {b8x16} {b6x16_p32|b4x16_p64}",
        "[a], s",
        copy::decode_copy,
        "tcgen05 3.1",
    )
    .on(BLACKWELL, 86).needs(Words::Family),
    Row::new("tcgen05 shift (cta_group::1|cta_group::2) down", "[a]", copy::decode_shift, "tcgen05 3.6")
        .on(BLACKWELL, 86).needs(Words::Exact),
    Row::new(
        "tcgen05 commit (cta_group::1|cta_group::2) mbarrier::arrive::one {shared::cluster} {multicast::cluster} b64",
        "[a]{, mask}",
        queue::decode_commit,
        "tcgen05 8.4",
    )
    .on(BLACKWELL, 86).needs(Words::Family),
    Row::new(
        "tcgen05 commit (cta_group::1|cta_group::2) mbarrier::arrive::one {shared::cluster} (multicast::cluster::16b|multicast::cluster::32b) b64",
        "[a], mask",
        queue::decode_commit,
        "9.7.18.10.2",
    )
    .on(Target::Sm107.bit(), 94),
    Row::refused(
        "tcgen05 commit (cta_group::1|cta_group::2) mbarrier::arrive::one sync_restrict::shared::read::mma::a {shared::cluster} {multicast::cluster|multicast::cluster::16b|multicast::cluster::32b} b64",
        "[a]{, mask}",
        "what .sync_restrict leaves out of a commit is not established",
        "tcgen05 8.4",
    )
    .on(Target::Sm107.bit(), 94),
    Row::new("tcgen05 (fence::before_thread_sync|fence::after_thread_sync)", "", decode_fence, "tcgen05 8.5")
        .on(BLACKWELL, 86).needs(Words::Family),
    Row::new(
        concat!("tcgen05 mma (cta_group::1|cta_group::2) (kind::f16|kind::tf32|kind::f8f6f4) ", collector_a!()),
        "[d], a, b, idesc, p{, q, s}",
        mma::decode_mma,
        "tcgen05 4.1",
    )
    .on(BLACKWELL, 86).needs(Words::Family),
    Row::new(
        concat!("tcgen05 mma (cta_group::1|cta_group::2) kind::i8 ", collector_a!()),
        "[d], a, b, idesc, p{, q, s}",
        mma::decode_mma,
        "tcgen05 4.1",
    )
    .on(WITH_I8, 86).needs(Words::Exact),
    Row::new(
        concat!(
            "tcgen05 mma (cta_group::1|cta_group::2) (kind::mxf8f6f4|kind::mxf4|kind::mxf4nvf4) block_scale ",
            "{block16|block32} ",
            collector_a!()
        ),
        "[d], a, b, idesc, [sfa], [sfb], p",
        mma::decode_mma,
        "tcgen05 4.1",
    )
    .on(BLACKWELL, 86)
    .needs(Words::Family),
    Row::new(
        concat!(
            "tcgen05 mma (cta_group::1|cta_group::2) (kind::mxf8f6f4|kind::mxf4|kind::mxf4nvf4) block_scale ",
            "(scale_vec::1X|scale_vec::2X|scale_vec::4X) ",
            collector_a!()
        ),
        "[d], a, b, idesc, [sfa], [sfb], p",
        mma::decode_mma,
        "tcgen05 4.1",
    )
    .on(BLACKWELL, 86)
    .needs(Words::Exact),
    Row::new(
        concat!("tcgen05 mma ws cta_group::1 (kind::f16|kind::tf32|kind::f8f6f4) ", collector_b!()),
        "[d], a, b, idesc, p{, zmask}",
        mma::decode_mma,
        "tcgen05 4.1",
    )
    .on(BLACKWELL, 86).needs(Words::Family),
    Row::new(
        concat!("tcgen05 mma ws cta_group::1 kind::i8 ", collector_b!()),
        "[d], a, b, idesc, p{, zmask}",
        mma::decode_mma,
        "tcgen05 4.1",
    )
    .on(WITH_I8, 86).needs(Words::Exact),
    Row::refused(
        concat!(
            "tcgen05 mma {ws} sp (cta_group::1|cta_group::2) ",
            "(kind::f16|kind::tf32|kind::f8f6f4|kind::i8|kind::mxf8f6f4|kind::mxf4|kind::mxf4nvf4) {block_scale} ",
            "{scale_vec::1X|scale_vec::2X|scale_vec::4X|block16|block32} ",
            collector_a!()
        ),
        "[d], a, b, [meta], idesc, p{, q, r, s}",
        "sparse matrices are not modelled",
        "tcgen05 4.10",
    ),
    Row::refused(
        concat!("tcgen05 mma (cta_group::1|cta_group::2) (kind::f16|kind::tf32|kind::f8f6f4|kind::i8) ashift ", collector_a!()),
        "[d], a, b, idesc, p{, q, s}",
        "the sources disagree whether .ashift multiplies the shifted rows",
        "tcgen05 4.5",
    ),
    Row::refused(
        "tcgen05 mma (cta_group::1|cta_group::2) kind::ti16",
        "[d], a, b, idesc, p{, q, s}",
        "the sm_107 kind ti16 is not public",
        "tcgen05 4.2",
    )
    .on(FAMILY_100, 94),
];

/// A decoded instruction of the family.
#[derive(Debug, Clone)]
pub enum Tcgen05Op {
    /// alloc, dealloc, relinquish_alloc_permit
    Allocation(allocation::AllocationOp),
    /// ld, st
    Access(access::AccessOp),
    /// wait::ld, wait::st
    Wait(access::WaitOp),
    /// cp
    Copy(copy::CopyOp),
    /// shift
    Shift(copy::ShiftOp),
    /// commit
    Commit(queue::CommitOp),
    /// mma
    Mma(mma::MmaOp),
    /// fence; true for `before_thread_sync`
    Fence(bool),
}

fn decode_fence(_: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    Ok(Op::Tcgen05(Box::new(Tcgen05Op::Fence(instruction.has("fence::before_thread_sync")))))
}

/// `.cta_group` as a number.
fn group_of(instruction: &Instruction) -> u32 {
    if instruction.has("cta_group::2") { 2 } else { 1 }
}

/// Rules and work of a CTA's tensor memory beside its cells.
#[derive(Debug, Clone, Default)]
pub struct State {
    allocation: allocation::Allocations,
    accesses: access::Outstanding,
    queues: queue::Queues,
    collector: mma::Collector,
    /// `.cta_group` of the kernel, once one was executed.
    group: Option<u32>,
}

/// Executes an instruction of the family.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &Tcgen05Op) -> Outcome {
    let result = match op {
        Tcgen05Op::Allocation(op) => allocation::execute(machine, warp, mask, op),
        Tcgen05Op::Access(op) => access::execute(machine, warp, mask, op),
        Tcgen05Op::Wait(op) => access::wait(machine, warp, mask, *op),
        Tcgen05Op::Copy(op) => copy::issue_copy(machine, warp, mask, op),
        Tcgen05Op::Shift(op) => copy::issue_shift(machine, warp, mask, op),
        Tcgen05Op::Commit(op) => queue::issue_commit(machine, warp, mask, op),
        Tcgen05Op::Mma(op) => mma::issue(machine, warp, mask, op),
        Tcgen05Op::Fence(before) => {
            let fence = if *before { ProxyFence::TensorBefore } else { ProxyFence::TensorAfter };
            machine.notify(warp, mask, &Event::ProxyFence { fence });
            Ok(Outcome::Next)
        }
    };
    result.unwrap_or_else(Outcome::Fault)
}

/// Tensor memory of a CTA.
fn memory(machine: &mut Cluster, rank: u32) -> &mut TensorMemory {
    // Rows of this family exist only on targets with tensor memory, where every CTA has one.
    machine.ctas[rank as usize].tensor.get_or_insert_default()
}

/// One `.cta_group` for a kernel; group 2 needs the other CTA of the pair. Gives the ranks of the group, the even one
/// first.
fn ranks(machine: &mut Cluster, warp: &Warp, mask: u32, group: u32) -> Result<Vec<u32>, Fault> {
    let known = *memory(machine, warp.cta).state.group.get_or_insert(group);
    if known != group {
        let message = format!("cta_group::{group} in a kernel that also uses cta_group::{known}");
        return Err(machine.finding(Kind::TensorMemory, warp, mask, message));
    }
    if group == 1 {
        return Ok(vec![warp.cta]);
    }
    let even = warp.cta & !1;
    if machine.ctas.len() as u32 <= even + 1 {
        let message = format!("cta_group::2 needs a pair, the cluster has {} CTAs", machine.ctas.len());
        return Err(machine.finding(Kind::TensorMemory, warp, mask, message));
    }
    Ok(vec![even, even + 1])
}

/// Columns of an access: inside tensor memory and allocated.
fn check_columns(machine: &mut Cluster, rank: u32, column: u32, columns: u32) -> Result<(), String> {
    let owner = &memory(machine, rank).owner;
    let most = if owner[SHARED_COLUMNS as usize] == 0 { SHARED_COLUMNS } else { COLUMNS };
    if column + columns > most {
        return Err(format!("columns {column}..{} are outside the {most} of tensor memory", column + columns));
    }
    match (column..column + columns).find(|&c| owner[c as usize] == 0) {
        Some(free) => Err(format!("column {free} of {column}..{} is not allocated", column + columns)),
        None => Ok(()),
    }
}

/// Splits an address and checks its lane.
fn check_lane(address: u32, allowed: &[u32]) -> Result<(u32, u32), String> {
    let (lane, column) = (address >> 16, address & 0xffff);
    if lane >= 0x4000 {
        return Err(format!(
            "address {address:#010x}: bits [31:30] hold a scale selector, which belongs into the descriptor"
        ));
    }
    if lane >= LANES || !allowed.contains(&lane) {
        return Err(format!("address {address:#010x}: lane {lane}, expected {allowed:?}"));
    }
    Ok((lane, column))
}

/// The CTA of rank `rank` exited: what it still holds is a leak.
pub fn cta_exit(machine: &mut Cluster, rank: u32) {
    if machine.ctas[rank as usize].tensor.is_none() {
        return;
    }
    for (by, message) in memory(machine, rank).state.allocation.leaks() {
        let finding = machine.finding_of(Kind::Leak, &by, message);
        machine.report(*finding);
    }
}

#[cfg(test)]
mod tests;
