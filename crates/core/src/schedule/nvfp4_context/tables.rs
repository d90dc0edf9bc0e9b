//! Tables that architectures share: schedules by pack, routes.

use super::{Choice, Nvfp4Context, facts};
use crate::LaunchConfig;
use crate::route::{Bound, Route};

/// Packs that have programs of their own; any other group runs with pack 1.
pub const PACKS: [u32; 9] = [1, 2, 4, 5, 6, 7, 8, 12, 16];

/// A schedule for each of [`PACKS`], unsplit and split, which may differ in registers. The order: all unsplit, then all
/// split.
pub const fn every_pack(unsplit: Nvfp4Context, split: Nvfp4Context) -> [Nvfp4Context; 18] {
    let mut all = [unsplit; 18];
    let mut i = 0;
    while i < all.len() {
        let schedule = if i < PACKS.len() { unsplit } else { split };
        all[i] = Nvfp4Context { pack: PACKS[i % PACKS.len()], split: i >= PACKS.len(), ..schedule };
        i += 1;
    }
    all
}

/// Decode's schedules.
pub const DECODE_SCHEDULES: [Nvfp4Context; 2] = [Nvfp4Context::DECODE, Nvfp4Context::DECODE_C16];

/// Two tables, one after the other; `N` is `A + B`.
pub const fn concat<const A: usize, const B: usize, const N: usize>(
    first: [Nvfp4Context; A],
    second: [Nvfp4Context; B],
) -> [Nvfp4Context; N] {
    assert!(A + B == N);
    let mut all = [Nvfp4Context::DECODE; N];
    let mut i = 0;
    while i < N {
        all[i] = if i < A { first[i] } else { second[i - A] };
        i += 1;
    }
    all
}

/// KV heads that a grid of the decode kernel has room for.
const DECODE_HEADS: Bound = Bound::up_to(facts::KV_HEADS, LaunchConfig::MAX_GRID[1] as u64);

/// The routes of decode.
pub const DECODE_ROUTES: [Route<Choice>; 2] = [
    Route {
        when: &[Bound::up_to(facts::QUERY_ROWS, 8), DECODE_HEADS],
        then: Choice { schedule: Nvfp4Context::DECODE.name, min_blocks: 1 },
    },
    Route {
        when: &[Bound::up_to(facts::QUERY_ROWS, 16), DECODE_HEADS],
        then: Choice { schedule: Nvfp4Context::DECODE_C16.name, min_blocks: 1 },
    },
];
