//! Paged-context attention over an NVFP4 cache on sm107.

use bakewell_core::route::Route;
use bakewell_core::schedule::nvfp4_context::{Choice, Dequantise, Nvfp4Context};

/// The schedule of sm103, with FP4 expanded by way of f16: this target has no packed multiply.
pub const PAGED: Nvfp4Context = Nvfp4Context { dequantise: Dequantise::F16, ..Nvfp4Context::TCGEN05 };

/// Nothing is compiled yet.
pub const SCHEDULES: &[Nvfp4Context] = &[];

/// No program, no route.
pub const ROUTES: &[Route<Choice>] = &[];
