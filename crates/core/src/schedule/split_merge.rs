//! Budgets of the merge of partial results, `kernels/device/split_merge.cuh`: warps of a CTA, CTAs of a cluster,
//! clusters.

/// Largest cluster that the merge is laid out for.
pub const MAX_CLUSTER: u32 = 16;

/// Bytes of mbarriers: one counts what the peers of a cluster send.
pub const BARRIER_BYTES: u32 = 8;

/// Bytes of shared memory for `warps` partial results of `columns` query rows: output, reference and sum of every warp
/// in f32, the slice and weights received from the peers of a cluster, their mbarrier, and a flag; 16-byte aligned.
pub const fn shared_bytes(warps: u32, columns: u32, head_dim: u32) -> u32 {
    let output = columns * head_dim * 4;
    let weight = columns * 8;
    let received = output + MAX_CLUSTER * weight + BARRIER_BYTES;
    (warps * (output + weight) + received + 4).next_multiple_of(16)
}
