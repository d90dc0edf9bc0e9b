//! Paged-context attention over an NVFP4 cache on sm103.

use bakewell_core::route::Route;
use bakewell_core::schedule::nvfp4_context::{Choice, Nvfp4Context, Pages, concat, every_pack};

/// Eight packed tiles in flight; barriers initialised by a lane each, rescale slots handed back as soon as read.
pub const PAGED: Nvfp4Context = Nvfp4Context::TCGEN05;

/// Two packed tiles in flight and nothing else different: that the depth of the ring changes no bit is tested with it.
const PAGED_K2: Nvfp4Context = Nvfp4Context { name: "paged_k2", packed_stages: 2, ..PAGED };

const SHALLOW: [Nvfp4Context; 2] = [PAGED_K2, Nvfp4Context { pack: 8, ..PAGED_K2 }];

/// Every compiled schedule: every pack, unsplit and split; and the shallow ring, unsplit, of two packs.
pub const SCHEDULES: &[Nvfp4Context] = &concat::<18, 2, 20>(every_pack(PAGED, PAGED), SHALLOW);

/// One family serves every shape.
pub const ROUTES: &[Route<Choice>] = &[
    Route { when: &[], then: Choice { schedule: PAGED.name, min_blocks: 2 } },
    // Reached by problems that are pinned to the schedule; no split of theirs is long enough.
    Route { when: &[], then: Choice { schedule: PAGED_K2.name, min_blocks: u32::MAX } },
];

/// What shows the pages of a cache.
pub const PAGES: &[Pages] = &[Pages::of(&PAGED)];
