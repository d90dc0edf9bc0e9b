//! Paged-context attention over an NVFP4 cache on sm90.

use bakewell_core::route::{Bound, Route};
use bakewell_core::schedule::nvfp4_context::{
    Choice, DECODE_ROUTES, DECODE_SCHEDULES, Nvfp4Context, Pages, concat, every_pack, facts,
};

/// Seven packed tiles each of K and V in flight, FP4 by table, V transposed for the warpgroup products.
pub const PAGED: Nvfp4Context = Nvfp4Context::WGMMA;

/// Six expanded tiles each of K and V in flight.
pub const EXPANDED: Nvfp4Context = Nvfp4Context::EXPANDED;

/// Five, and a third half of query rows.
pub const EXPANDED_THREE: Nvfp4Context = Nvfp4Context::EXPANDED_THREE;

const PACKED: [Nvfp4Context; 36] = concat(every_pack(PAGED, Nvfp4Context::WGMMA_SPLIT), every_pack(EXPANDED, EXPANDED));
const TILED: [Nvfp4Context; 54] = concat(PACKED, every_pack(EXPANDED_THREE, EXPANDED_THREE));

/// Every compiled schedule: of each tiled family each pack, unsplit and split; decode; the kernels that expand and merge.
pub const SCHEDULES: &[Nvfp4Context] =
    &concat::<56, 2, 58>(concat(TILED, DECODE_SCHEDULES), [Nvfp4Context::EXPAND, Nvfp4Context::MERGE]);

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

/// Few query rows decode. Many pay for a launch that expands the cache once, the sooner the more keys there are. Measured:
/// the expanded family is faster for 256 rows over 32,768 keys and from 512 rows over 1024 keys on, the paged one over 128.
/// Three halves are faster from 512 rows over 1024 keys on wherever their tiles need no splits to fill the device, two with
/// splits.
pub const ROUTES: &[Route<Choice>] = &[
    DECODE_ROUTES[0],
    DECODE_ROUTES[1],
    expanded(EXPANDED_THREE, &[MANY_ROWS, Bound::from(facts::MAX_KEYS, 512), FULL, WORKSPACE]),
    expanded(EXPANDED, &[MANY_ROWS, Bound::from(facts::MAX_KEYS, 512), WORKSPACE]),
    expanded(EXPANDED, &[Bound::from(facts::QUERY_ROWS, 256), Bound::from(facts::MAX_KEYS, 32_768), WORKSPACE]),
    Route { when: &[], then: Choice { schedule: PAGED.name, min_blocks: 2 } },
    // Reached by problems that are pinned to the family.
    expanded(EXPANDED, &[]),
    expanded(EXPANDED_THREE, &[]),
];

/// What shows the pages of a cache.
pub const PAGES: &[Pages] = &[Pages::of(&PAGED)];
