//! NVFP4 pre-attention on sm110.

use bakewell_core::architecture::Table;
use bakewell_core::schedule::nvfp4_pre_attention::Tables;
use bakewell_core::schedule::nvfp4_pre_attention::norm::{Norm, ROUTES as NORM_ROUTES};
use bakewell_core::schedule::nvfp4_pre_attention::tcgen05::{ROWS_ROUTES, Tcgen05};

/// Schedules of the norm kernel.
const NORMS: &[Norm] = &[Norm::ANY, Norm::H5376];

/// Schedules of the GEMM: one epilogue role of eight warps.
const GEMMS: &[Tcgen05] =
    &[Tcgen05::WHOLE_ROWS, Tcgen05::WHOLE_ROWS.e4m3(), Tcgen05::WHOLE_ROWS_R96, Tcgen05::WHOLE_ROWS_R96.e4m3()];

/// Schedules and routes of both kernels.
pub const TABLES: Tables = Tables {
    norm: Table { schedules: NORMS, routes: NORM_ROUTES },
    tcgen05: Table { schedules: GEMMS, routes: ROWS_ROUTES },
    ..Tables::NONE
};
