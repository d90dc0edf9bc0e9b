//! Stage `prepare`: what a chunk's scan and backward share and the state does not touch.
//!
//! Grid: `chunk_count * value_heads` CTAs in x, the value heads of a chunk neighbours. A CTA is one warp. CTAs of padding
//! chunks return at once.

use super::{CHUNK_TOKENS, pointer, u32, u64};
use crate::params::ParamLayout;

/// Fields of the parameter block. Shapes: see `kernels/gdn/prepare_params.cuh`.
pub const PARAMS: ParamLayout = ParamLayout {
    fields: &[
        pointer("q"),
        pointer("k"),
        pointer("g"),
        pointer("beta"),
        pointer("chunks"),
        pointer("rq"),
        pointer("rk"),
        pointer("gate"),
        pointer("fade"),
        pointer("a"),
        u64("q_token_stride"),
        u64("q_head_stride"),
        u64("k_token_stride"),
        u64("k_head_stride"),
        u64("g_token_stride"),
        u64("beta_token_stride"),
        u32("heads"),
        u32("value_heads"),
        u32("beta_bf16"),
        u32("l2norm"),
    ],
};

/// Bytes of dynamic shared memory: the inverse, before that its 4 diagonal blocks of 16 x 24 floats, which are smaller; four
/// factors of each token.
pub const SHARED_BYTES: u32 = CHUNK_TOKENS * CHUNK_TOKENS * 2 + 4 * CHUNK_TOKENS * 4;
