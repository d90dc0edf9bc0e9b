//! Stage `tables`: chunks, segments and sequences from offsets on the device, padded to extents that follow from
//! tokens and sequence count alone. One CTA.

use super::{pointer, u32};
use crate::params::ParamLayout;

/// Fields of the parameter block.
pub const PARAMS: ParamLayout = ParamLayout {
    fields: &[
        pointer("cu_seqlens"),
        pointer("chunks"),
        pointer("segments"),
        pointer("sequences"),
        u32("sequence_count"),
        u32("chunk_count"),
        u32("segment_count"),
        u32("segment_chunks"),
        u32("cu_seqlens_i64"),
    ],
};
