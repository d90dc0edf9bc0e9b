//! Paged-context attention over an NVFP4 cache on sm107.

use bakewell_core::route::Route;
use bakewell_core::schedule::nvfp4_context::{Choice, Dequantise, Nvfp4Context, Pages, every_pack};

/// The schedule of sm103, with FP4 expanded by way of f16: this target has no packed multiply.
pub const PAGED: Nvfp4Context = Nvfp4Context { dequantise: Dequantise::F16, ..Nvfp4Context::TCGEN05 };

/// Every compiled schedule: every pack, unsplit and split.
pub const SCHEDULES: &[Nvfp4Context] = &every_pack(PAGED, PAGED);

/// One family serves every shape.
pub const ROUTES: &[Route<Choice>] = &[Route { when: &[], then: Choice { schedule: PAGED.name, min_blocks: 2 } }];

/// What shows the pages of a cache.
pub const PAGES: &[Pages] = &[Pages::of(&PAGED)];
