//! Stage `adjoint`: backward over the chunks of a segment, the gradient of the state in registers.
//!
//! Grid: `segment_count * value_heads * value_splits` CTAs in x; the splits of a head are neighbours, then the heads of
//! a segment. CTAs of padding segments return at once.
//!
//! | what | pointers |
//! |---|---|
//! | gradients | `dv` receives dVb, which the stage `tail` finds and replaces; `dh`; `dh0` null or not; `segment_state` null |
//! | pre-scan | `segment_state` receives G, from zeros; `dv`, `dh`, `dh0`, `dht`, `start` null |
//!
//! A segment that is the last of its sequence starts from `dht` (null: zeros), any other from `start`, which is read
//! only where a sequence has several segments. The first one writes `dh0`. In the pre-scan the first segment of a
//! sequence has no G: nothing is before it. A G contains nothing of `dht`; the map of a segment carries that across.
//! Chunks that forget what is before them, by `fade` and `forget`, are not scanned.

use super::{CHUNK_TOKENS, Gdn, HEAD_DIM, f32, pointer, u32, u64};
use crate::params::ParamLayout;

/// Fields of the parameter block. Shapes: see `kernels/gdn/adjoint_params.cuh`.
pub const PARAMS: ParamLayout = ParamLayout {
    fields: &[
        pointer("q"),
        pointer("k"),
        pointer("grad_o"),
        pointer("beta"),
        pointer("rq"),
        pointer("rk"),
        pointer("gate"),
        pointer("a"),
        pointer("chunks"),
        pointer("segments"),
        pointer("sequences"),
        pointer("dht"),
        pointer("start"),
        pointer("dv"),
        pointer("dh"),
        pointer("dh0"),
        pointer("segment_state"),
        u64("q_token_stride"),
        u64("q_head_stride"),
        u64("k_token_stride"),
        u64("k_head_stride"),
        u64("grad_o_token_stride"),
        u64("grad_o_head_stride"),
        u64("beta_token_stride"),
        u32("heads"),
        u32("value_heads"),
        u32("beta_bf16"),
        f32("scale"),
        pointer("fade"),
        f32("forget"),
    ],
};

/// Chunks in the ring: as many as leave room for as many CTAs as registers do.
pub(super) const fn stages(schedule: &Gdn) -> u32 {
    if schedule.value_columns == 64 { 3 } else { 2 }
}

/// Bytes of mbarriers: of each slot of the ring, one for the copies, one for what is made of them, one for its release.
pub(super) const fn barrier_bytes(schedule: &Gdn) -> u32 {
    stages(schedule) * 3 * 8
}

/// Bytes of dynamic shared memory: a ring of chunks (k, q, gradient of the output, A, P, six factors per token), 2 KiB
/// per 16 value columns where results become rows, barriers.
pub(super) const fn shared_bytes(schedule: &Gdn) -> u32 {
    let rows = CHUNK_TOKENS * HEAD_DIM * 2;
    let values = CHUNK_TOKENS * schedule.value_columns * 2;
    let square = CHUNK_TOKENS * CHUNK_TOKENS * 2;
    let factors = 6 * CHUNK_TOKENS * 4;
    let slot = 2 * rows + values + 2 * square + factors;
    let staging = schedule.value_columns / 16 * 2048;
    (stages(schedule) * slot + staging + barrier_bytes(schedule)).next_multiple_of(256)
}
