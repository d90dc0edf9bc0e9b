//! Paged-context attention over an NVFP4 cache on sm90.

use bakewell_core::route::{Bound, Route};
use bakewell_core::schedule::nvfp4_context::{
    Choice, DECODE_ROUTES, DECODE_SCHEDULES, Nvfp4Context, Pages, concat, every_pack, facts,
};

/// Seven packed tiles each of K and V in flight, FP4 by table, V transposed for the warpgroup products.
pub const PAGED: Nvfp4Context = Nvfp4Context::WGMMA;

/// Three packed tiles each of K and V in flight, expanded for two CTAs.
pub const PAIRED: Nvfp4Context = Nvfp4Context::WGMMA_PAIR;

/// Six expanded tiles each of K and V in flight.
pub const EXPANDED: Nvfp4Context = Nvfp4Context::EXPANDED;

/// Five, and a third half of query rows.
pub const EXPANDED_THREE: Nvfp4Context = Nvfp4Context::EXPANDED_THREE;

const FROM_PAGES: [Nvfp4Context; 36] = concat(every_pack(PAGED, Nvfp4Context::WGMMA_SPLIT), every_pack(PAIRED, PAIRED));
const FROM_TILES: [Nvfp4Context; 36] =
    concat(every_pack(EXPANDED, EXPANDED), every_pack(EXPANDED_THREE, EXPANDED_THREE));
const TILED: [Nvfp4Context; 72] = concat(FROM_PAGES, FROM_TILES);

/// Every compiled schedule: of each tiled family each pack, unsplit and split; decode; the kernels that expand and
/// merge.
pub const SCHEDULES: &[Nvfp4Context] =
    &concat::<74, 2, 76>(concat(TILED, DECODE_SCHEDULES), [Nvfp4Context::EXPAND, Nvfp4Context::MERGE]);

/// A route to a schedule of the paged family.
const fn paged(schedule: Nvfp4Context, when: &'static [Bound]) -> Route<Choice> {
    Route { when, then: Choice { schedule: schedule.name, min_blocks: 2 } }
}

/// A route to a schedule of the expanded family.
const fn expanded(schedule: Nvfp4Context, when: &'static [Bound]) -> Route<Choice> {
    Route { when, then: Choice { schedule: schedule.name, min_blocks: 4 } }
}

/// What the routes let it take: a GiB.
const WORKSPACE: Bound = Bound::up_to(facts::EXPANDED_BYTES, 1 << 30);

/// Of a request and KV head.
const MANY_ROWS: Bound = Bound::from(facts::QUERY_ROWS, 512);

/// More tiles of 128 query rows than an H200 has multiprocessors.
const FULL: Bound = Bound::from(facts::ALL_ROWS, 132 * 128 + 1);

/// Few query rows decode. Many pay for a launch that expands the cache once, the sooner the more keys there are.
/// Measured: the expanded family is faster for 256 rows over 32,768 keys and from 512 rows over 1024 keys on, the paged
/// one over 128. Three halves are faster from 512 rows on where tiles fill the device without splits, but for
/// 8x128x4096, where two take 1 % less; two are faster with splits. Pairs of CTAs are faster than either family from
/// 129 to 256 rows.
pub const ROUTES: &[Route<Choice>] = &[
    DECODE_ROUTES[0],
    DECODE_ROUTES[1],
    expanded(EXPANDED_THREE, &[MANY_ROWS, Bound::from(facts::MAX_KEYS, 512), FULL, WORKSPACE]),
    expanded(EXPANDED, &[MANY_ROWS, Bound::from(facts::MAX_KEYS, 512), WORKSPACE]),
    paged(
        PAIRED,
        &[
            Bound::from(facts::QUERY_ROWS, 129),
            Bound::up_to(facts::QUERY_ROWS, 256),
            Bound::from(facts::MAX_KEYS, 1024),
        ],
    ),
    expanded(EXPANDED, &[Bound::from(facts::QUERY_ROWS, 257), Bound::from(facts::MAX_KEYS, 32_768), WORKSPACE]),
    paged(PAGED, &[]),
    // Reached by problems that are pinned to family or schedule.
    expanded(EXPANDED, &[]),
    expanded(EXPANDED_THREE, &[]),
    paged(PAIRED, &[]),
];

/// What shows the pages of a cache.
pub const PAGES: &[Pages] = &[Pages::of(&PAGED)];
