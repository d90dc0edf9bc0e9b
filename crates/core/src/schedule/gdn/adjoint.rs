//! Stage `adjoint`: backward over the chunks of a segment, the gradient of the state in registers.
//!
//! Writes dVb into `dv`, where the stage `tail` finds and replaces it.

use super::{f32, pointer, u32, u64};
use crate::params::ParamLayout;

/// Fields of the parameter block.
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
    ],
};
