//! Paged-context attention over an NVFP4 cache on sm103.

use bakewell_core::route::Route;
use bakewell_core::schedule::nvfp4_context::{Choice, Nvfp4Context, every_pack};

/// Eight packed tiles in flight; barriers initialised by a lane each, rescale slots handed back as soon as read.
pub const PAGED: Nvfp4Context = Nvfp4Context::TCGEN05;

/// Every compiled schedule: every pack, unsplit and split.
pub const SCHEDULES: &[Nvfp4Context] = &every_pack(PAGED, PAGED);

/// One family serves every shape.
pub const ROUTES: &[Route<Choice>] = &[Route { when: &[], then: Choice { schedule: PAGED.name, min_blocks: 2 } }];
