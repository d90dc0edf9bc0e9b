//! Stage `compose`: start states of the segments of each sequence, `S' = M S + H` from one to the next.
//!
//! Grid: `segment_count * value_heads * value_splits` CTAs in x, one per start state. Where `carries` is 0, M is zero
//! and need not be there. Forward (`adjoint` 0): `boundary` is `h0`, and
//! `start` of segment i > 0 is its state before the first chunk. Adjoint (`adjoint` 1): `boundary` is `dht`,
//! `segment_state` the pre-scan G of the backward, M is transposed, and `start` of every segment but the last is the
//! gradient of its state after the last chunk. Entries that no scan reads are not written; sequences of one segment
//! cost nothing.

use super::{Gdn, HEAD_DIM, pointer, u32};
use crate::params::ParamLayout;

/// Fields of the parameter block. Shapes: see `kernels/gdn/compose_params.cuh`.
pub const PARAMS: ParamLayout = ParamLayout {
    fields: &[
        pointer("segments"),
        pointer("sequences"),
        pointer("boundary"),
        pointer("segment_state"),
        pointer("m"),
        pointer("carries"),
        pointer("start"),
        u32("value_heads"),
        u32("adjoint"),
    ],
};

/// Bytes of dynamic shared memory: 16 value columns of two states in f32, a row of keys padded by 8.
pub(super) const SHARED_BYTES: u32 = 2 * Gdn::COMPOSE.value_columns * (HEAD_DIM + 8) * 4;
