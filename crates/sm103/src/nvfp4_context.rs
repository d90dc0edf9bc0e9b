//! Paged-context attention over an NVFP4 cache on sm103.

use bakewell_core::route::Route;
use bakewell_core::schedule::nvfp4_context::{Choice, Nvfp4Context};

/// Eight packed tiles in flight; barriers initialised by a lane each, rescale slots handed back as soon as read.
pub const PAGED: Nvfp4Context = Nvfp4Context::TCGEN05;

/// Nothing is compiled yet.
pub const SCHEDULES: &[Nvfp4Context] = &[];

/// No program, no route.
pub const ROUTES: &[Route<Choice>] = &[];
