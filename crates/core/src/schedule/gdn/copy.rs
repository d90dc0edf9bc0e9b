//! Stage `copy`: a tensor that no stage can read in place, made contiguous.
//!
//! Grid: one CTA per token of a batch row in x. A token's heads are copied in units of 2, 4 or 16 bytes; strides are in
//! bytes.

use super::{pointer, u32, u64};
use crate::params::ParamLayout;

/// Fields of the parameter block. Shapes: see `kernels/gdn/copy_params.cuh`.
pub const PARAMS: ParamLayout = ParamLayout {
    fields: &[
        pointer("source"),
        pointer("target"),
        u64("batch_stride"),
        u64("token_stride"),
        u64("head_stride"),
        u64("unit_stride"),
        u32("row_tokens"),
        u32("row_heads"),
        u32("units"),
        u32("unit_bytes"),
    ],
};
