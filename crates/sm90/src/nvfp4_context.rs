//! Paged-context attention over an NVFP4 cache on sm90.

use bakewell_core::route::Route;
use bakewell_core::schedule::nvfp4_context::{Choice, Nvfp4Context, every_pack};

/// Seven packed tiles each of K and V in flight, FP4 by table, V transposed for the warpgroup products.
pub const PAGED: Nvfp4Context = Nvfp4Context::WGMMA;

/// Every compiled schedule: each pack, unsplit and split.
pub const SCHEDULES: &[Nvfp4Context] = &every_pack(PAGED, Nvfp4Context::WGMMA_SPLIT);

/// One family serves every shape.
pub const ROUTES: &[Route<Choice>] = &[Route { when: &[], then: Choice { schedule: PAGED.name, min_blocks: 2 } }];
