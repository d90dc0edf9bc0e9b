//! Stage `tail`: gradients of a chunk from the states around it and from dVb, which it finds in `dv` and replaces.
//!
//! Grid: up to `chunk_count * heads` CTAs in x; more than fit the device at once (one per SM) gain nothing. CTA `i`
//! takes items `i`, `i + grid`, ...: an item is a chunk and a key head, whose value heads are summed in order. Which
//! CTA an item falls to changes no bits. Padding chunks are passed over.
//!
//! Reads `h`, `v_new` (tape or stage `states`), `dh`, `dv` (stage `adjoint`). `v` is read only in rows whose `beta` is
//! smaller than 2^-40.

use super::{CHUNK_TOKENS, HEAD_DIM, f32, pointer, u32, u64};
use crate::params::ParamLayout;

/// Fields of the parameter block. Shapes: see `kernels/gdn/tail_params.cuh`.
pub const PARAMS: ParamLayout = ParamLayout {
    fields: &[
        pointer("q"),
        pointer("k"),
        pointer("v"),
        pointer("grad_o"),
        pointer("beta"),
        pointer("rq"),
        pointer("rk"),
        pointer("gate"),
        pointer("v_new"),
        pointer("h"),
        pointer("dh"),
        pointer("chunks"),
        pointer("dq"),
        pointer("dk"),
        pointer("dv"),
        pointer("dg"),
        pointer("dbeta"),
        u64("q_token_stride"),
        u64("q_head_stride"),
        u64("k_token_stride"),
        u64("k_head_stride"),
        u64("v_token_stride"),
        u64("v_head_stride"),
        u64("grad_o_token_stride"),
        u64("grad_o_head_stride"),
        u64("beta_token_stride"),
        u32("heads"),
        u32("value_heads"),
        u32("chunk_count"),
        u32("beta_bf16"),
        u32("l2norm"),
        f32("scale"),
    ],
};

/// Bytes of mbarriers: full and empty of the rows of a key head, of the states, and of two slots of a value head's
/// rows.
pub(super) const BARRIER_BYTES: u32 = (2 + 2 + 4) * 8;

/// Bytes of the sums that the gradients of gate and beta of a value head are made of.
pub(super) const SUMS_BYTES: u32 = 2 * 3 * 48 * 4 + 12 * CHUNK_TOKENS * 4 + 8 * 4;

/// Bytes of dynamic shared memory: q, k and their norms; both states; two slots of gradient of the output, dVb, v_new,
/// gate and beta; R and N'; two sets of the sums that the gradient of the gate is made of; row products; barriers.
pub(super) const SHARED_BYTES: u32 = {
    let rows = CHUNK_TOKENS * HEAD_DIM * 2;
    let column = CHUNK_TOKENS * 4;
    let states = 2 * HEAD_DIM * HEAD_DIM * 2;
    let values = 2 * (3 * rows + 2 * column);
    let matrices = 2 * CHUNK_TOKENS * CHUNK_TOKENS * 2;
    let sums = 2 * SUMS_BYTES;
    (2 * rows + 2 * column + states + values + matrices + sums + 4 * column + BARRIER_BYTES).next_multiple_of(256)
};
