//! NVFP4 pre-attention on sm107.

use bakewell_core::architecture::Table;
use bakewell_core::schedule::nvfp4_pre_attention::Tables;
use bakewell_core::schedule::nvfp4_pre_attention::norm::{Norm, ROUTES as NORM_ROUTES};

/// Schedules of the norm kernel.
const NORMS: &[Norm] = &[Norm::ANY, Norm::H5376];

/// Schedules and routes of both kernels.
pub const TABLES: Tables = Tables { norm: Table { schedules: NORMS, routes: NORM_ROUTES }, ..Tables::NONE };
