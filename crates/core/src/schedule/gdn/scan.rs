//! Stages `scan` and `states`: forward over the chunks of a segment, the state in registers.
//!
//! Grid: `segment_count * value_heads * value_splits` CTAs in x; the splits of a head are neighbours, then the heads of
//! a segment. In the pre-scan (`states` with `segment_state` not null) twice as many splits: the first half scans the
//! values from a state of zeros (H), the second the identity without values (M). CTAs that have nothing to do return at
//! once.
//!
//! | what | program | pointers |
//! |---|---|---|
//! | output, with or without tape | `scan` | `v_new`, `h` null or not; `ht` null or not |
//! | tape again | `states` | `v_new`, `h`; `segment_state` null |
//! | pre-scan | `states` | `segment_state`, `m`; `v_new`, `h`, `ht`, `h0`, `start` null |
//!
//! A segment that is the first of its sequence starts from `h0` (null: zeros), any other from `start`. The last one
//! writes `ht`. In the pre-scan the last segment of a sequence has no H; it has M only with `m_of_last`, which a
//! backward with `dht` needs; the first has M only with `m_of_first`, which a forward with `h0` needs.

use super::{CHUNK_TOKENS, Gdn, HEAD_DIM, Stage, f32, pointer, u32, u64};
use crate::params::ParamLayout;

/// Fields of the parameter block. Shapes: see `kernels/gdn/scan_params.cuh`.
pub const PARAMS: ParamLayout = ParamLayout {
    fields: &[
        pointer("q"),
        pointer("k"),
        pointer("v"),
        pointer("beta"),
        pointer("rq"),
        pointer("rk"),
        pointer("gate"),
        pointer("a"),
        pointer("chunks"),
        pointer("segments"),
        pointer("sequences"),
        pointer("h0"),
        pointer("start"),
        pointer("o"),
        pointer("v_new"),
        pointer("h"),
        pointer("ht"),
        pointer("segment_state"),
        pointer("m"),
        u64("q_token_stride"),
        u64("q_head_stride"),
        u64("k_token_stride"),
        u64("k_head_stride"),
        u64("v_token_stride"),
        u64("v_head_stride"),
        u64("beta_token_stride"),
        u32("heads"),
        u32("value_heads"),
        u32("beta_bf16"),
        u32("m_of_first"),
        u32("m_of_last"),
        f32("scale"),
    ],
};

/// Bytes of dynamic shared memory: two stages of k, A, v and, with output, q; P; two tables of factors.
pub(super) const fn shared_bytes(schedule: &Gdn) -> u32 {
    let rows = CHUNK_TOKENS * HEAD_DIM * 2;
    let square = CHUNK_TOKENS * CHUNK_TOKENS * 2;
    let values = CHUNK_TOKENS * schedule.value_columns * 2;
    let factors = 7 * CHUNK_TOKENS * 4 + 16;
    let with_output = matches!(schedule.stage, Stage::Scan) as u32;
    (2 * (rows + square + values + with_output * rows) + with_output * square + 2 * factors).next_multiple_of(256)
}
