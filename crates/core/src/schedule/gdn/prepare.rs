//! Stage `prepare`: what a chunk's scan and backward share and the state does not touch.
//!
//! A warp has a chunk and a value head. On registers it is a CTA; with the programs of Hopper it is one of those of
//! three or four value heads of a key head, which are a CTA and share the products of its keys. Grid:
//! `chunk_count * value_heads`, divided by
//! [`value_heads`], CTAs in x, the value heads of a chunk neighbours. CTAs of padding chunks return at once.

use super::wgmma::with_maps;
use super::{CHUNK_TOKENS, Engine, Gdn, HEAD_DIM, Stage, pointer, u32, u64};
use crate::params::{ParamField, ParamLayout};

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

const GROUP_MAPS: [&str; 2] = ["k_map", "a_map"];
const GROUP_FIELDS: [ParamField; 16] = [
    pointer("q"),
    pointer("g"),
    pointer("beta"),
    pointer("chunks"),
    pointer("rq"),
    pointer("rk"),
    pointer("gate"),
    pointer("fade"),
    u64("q_token_stride"),
    u64("q_head_stride"),
    u64("g_token_stride"),
    u64("beta_token_stride"),
    u32("heads"),
    u32("value_heads"),
    u32("beta_bf16"),
    u32("l2norm"),
];

/// Fields of the parameter block where value heads share a key head: maps of keys and inverses, then those of
/// [`PARAMS`] without them.
pub const GROUP_PARAMS: ParamLayout =
    ParamLayout { fields: &with_maps::<{ GROUP_MAPS.len() + GROUP_FIELDS.len() }>(&GROUP_MAPS, &GROUP_FIELDS, &[]) };

/// Bytes of dynamic shared memory: the inverse, in whose place are quarters of keys and its diagonal blocks before,
/// neither of them larger; four factors of each token.
pub const SHARED_BYTES: u32 = INVERSE_BYTES + FACTOR_BYTES;

const WARP: u32 = 32;
const INVERSE_BYTES: u32 = CHUNK_TOKENS * CHUNK_TOKENS * 2;
const FACTOR_BYTES: u32 = 4 * CHUNK_TOKENS * 4;
/// A barrier that counts the bytes of the keys.
pub(super) const GROUP_BARRIER_BYTES: u32 = 8;

/// Value heads of a CTA.
pub const fn value_heads(schedule: &Gdn) -> u32 {
    schedule.threads / WARP
}

/// Bytes of dynamic shared memory of [`value_heads`] that share a key head: keys, in whose place their inverses follow;
/// products of keys, 10 blocks of 16 x 16 floats; factors; a barrier.
pub(super) const fn group_shared_bytes(schedule: &Gdn) -> u32 {
    let (keys, heads) = (CHUNK_TOKENS * HEAD_DIM * 2, value_heads(schedule));
    let first = if keys > heads * INVERSE_BYTES { keys } else { heads * INVERSE_BYTES };
    (first + 10 * 16 * 16 * 4 + heads * FACTOR_BYTES + GROUP_BARRIER_BYTES).next_multiple_of(1024)
}

impl Gdn {
    /// Three value heads of a key head.
    pub const PREPARE_G3: Gdn = Gdn {
        name: "prepare_g3",
        stage: Stage::Prepare,
        engine: Engine::Wgmma,
        threads: 3 * WARP,
        value_columns: HEAD_DIM,
        min_ctas_per_sm: 5,
    };

    /// Four value heads of a key head.
    pub const PREPARE_G4: Gdn = Gdn { name: "prepare_g4", threads: 4 * WARP, min_ctas_per_sm: 4, ..Gdn::PREPARE_G3 };
}
