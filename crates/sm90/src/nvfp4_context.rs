//! Paged-context attention over an NVFP4 cache on sm90.

use bakewell_core::route::Route;
use bakewell_core::schedule::nvfp4_context::{Choice, DECODE_ROUTES, Nvfp4Context, every_pack, with_decode};

/// Seven packed tiles each of K and V in flight, FP4 by table, V transposed for the warpgroup products.
pub const PAGED: Nvfp4Context = Nvfp4Context::WGMMA;

/// Every compiled schedule: each pack, unsplit and split, and decode.
pub const SCHEDULES: &[Nvfp4Context] = &with_decode(every_pack(PAGED, Nvfp4Context::WGMMA_SPLIT));

/// Few query rows decode; one paged family serves every shape.
pub const ROUTES: &[Route<Choice>] =
    &[DECODE_ROUTES[0], DECODE_ROUTES[1], Route { when: &[], then: Choice { schedule: PAGED.name, min_blocks: 2 } }];
