//! Stage `tail`: gradients of a chunk from its states.
//!
//! One CTA per chunk and key head; the value heads of a group are summed in order.

use super::{f32, pointer, u32, u64};
use crate::params::ParamLayout;

/// Fields of the parameter block.
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
        u32("beta_bf16"),
        u32("l2norm"),
        f32("scale"),
    ],
};
