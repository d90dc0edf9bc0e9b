//! Paged-context attention over an NVFP4 cache on sm90.

use bakewell_core::route::{Bound, Route};
use bakewell_core::schedule::nvfp4_context::{
    Choice, DECODE_ROUTES, DECODE_SCHEDULES, Nvfp4Context, concat, every_pack, facts,
};

/// Seven packed tiles each of K and V in flight, FP4 by table, V transposed for the warpgroup products.
pub const PAGED: Nvfp4Context = Nvfp4Context::WGMMA;

/// Six expanded tiles each of K and V in flight.
pub const EXPANDED: Nvfp4Context = Nvfp4Context::EXPANDED;

const TILED: [Nvfp4Context; 36] = concat(every_pack(PAGED, Nvfp4Context::WGMMA_SPLIT), every_pack(EXPANDED, EXPANDED));

/// Every compiled schedule: of each tiled family each pack, unsplit and split; decode; and the kernel that expands.
pub const SCHEDULES: &[Nvfp4Context] = &concat::<38, 1, 39>(concat(TILED, DECODE_SCHEDULES), [Nvfp4Context::EXPAND]);

/// Few query rows decode. Many pay for a launch that expands the cache once, where there are keys enough and the workspace
/// stays below a GiB. Measured: from 512 rows over 1024 keys on the expanded family is faster, over 128 keys the paged one.
pub const ROUTES: &[Route<Choice>] = &[
    DECODE_ROUTES[0],
    DECODE_ROUTES[1],
    Route {
        when: &[
            Bound::from(facts::QUERY_ROWS, 512),
            Bound::from(facts::MAX_KEYS, 512),
            Bound::up_to(facts::EXPANDED_BYTES, 1 << 30),
        ],
        then: Choice { schedule: EXPANDED.name, min_blocks: 4 },
    },
    Route { when: &[], then: Choice { schedule: PAGED.name, min_blocks: 2 } },
    // Reached by problems that are pinned to the family.
    Route { when: &[], then: Choice { schedule: EXPANDED.name, min_blocks: 4 } },
];
