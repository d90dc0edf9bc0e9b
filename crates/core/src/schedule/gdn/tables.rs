//! Stage `tables`: chunks, segments and sequences from offsets on the device, padded to extents that follow from
//! tokens and sequence count alone. One CTA.

use super::{pointer, u32};
use crate::params::ParamLayout;

/// Threads: sequences of a round.
pub const THREADS: u32 = 256;

/// Bytes of dynamic shared memory: two counts per warp; tokens and counts of a sequence per thread.
pub const SHARED_BYTES: u32 = THREADS / 32 * 8 + THREADS * 16;

/// Fields of the parameter block. Shapes: see `kernels/gdn/tables_params.cuh`.
pub const PARAMS: ParamLayout = ParamLayout {
    fields: &[
        pointer("cu_seqlens"),
        pointer("chunks"),
        pointer("segments"),
        pointer("sequences"),
        u32("tokens"),
        u32("sequence_count"),
        u32("chunk_count"),
        u32("segment_count"),
        u32("segment_chunks"),
        u32("cu_seqlens_i64"),
    ],
};
