//! Paged-context attention over an NVFP4 cache on sm100.

use bakewell_core::route::Route;
use bakewell_core::schedule::nvfp4_context::{
    BarrierInit, Choice, CodeReads, Engine, Nvfp4Context, Pages, Rescale, ScaleRelease, Tcgen05, every_pack,
};

/// Two packed tiles in flight; barriers initialised one after another, rescale slots handed back late.
pub const PAGED: Nvfp4Context = Nvfp4Context {
    name: "paged_k2",
    packed_stages: 2,
    code_reads: CodeReads::PerChunk,
    engine: Engine::Tcgen05(Tcgen05 {
        scale_release: ScaleRelease::AfterRescale,
        barrier_init: BarrierInit::Thread0,
        rescale: Rescale::InTurn,
        ..Nvfp4Context::TCGEN05_ENGINE
    }),
    ..Nvfp4Context::TCGEN05
};

/// Every compiled schedule: every pack, unsplit and split.
pub const SCHEDULES: &[Nvfp4Context] = &every_pack(PAGED, PAGED);

/// One family serves every shape.
pub const ROUTES: &[Route<Choice>] = &[Route { when: &[], then: Choice { schedule: PAGED.name, min_blocks: 2 } }];

/// What shows the pages of a cache.
pub const PAGES: &[Pages] = &[Pages::of(&PAGED)];
