//! NVFP4 pre-attention on sm90.

use bakewell_core::architecture::Table;
use bakewell_core::schedule::nvfp4_pre_attention::Tables;
use bakewell_core::schedule::nvfp4_pre_attention::norm::{Norm, ROUTES as NORM_ROUTES};
use bakewell_core::schedule::nvfp4_pre_attention::weight_image::WeightImage;
use bakewell_core::schedule::nvfp4_pre_attention::wgmma::{self, Wgmma};

/// Schedules of the norm kernel: no conversion to E2M1, and an image for the GEMM, whose tensor cores read no FP4.
const NORMS: &[Norm] = &[
    Norm { e2m1_instruction: false, image: true, ..Norm::ANY },
    Norm { e2m1_instruction: false, image: true, ..Norm::H5376 },
];

/// The GEMM, for each output.
const GEMMS: &[Wgmma] = &[Wgmma::K6, Wgmma::K6.e4m3()];

/// Schedules and routes of both kernels.
pub const TABLES: Tables = Tables {
    norm: Table { schedules: NORMS, routes: NORM_ROUTES },
    wgmma: Table { schedules: GEMMS, routes: wgmma::ROUTES },
    weight_image: &[WeightImage],
    ..Tables::NONE
};
