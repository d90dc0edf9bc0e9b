//! NVFP4 pre-attention on sm103.

use bakewell_core::architecture::Table;
use bakewell_core::route::{Bound, Route};
use bakewell_core::schedule::nvfp4_pre_attention::norm::{Norm, ROUTES as NORM_ROUTES};
use bakewell_core::schedule::nvfp4_pre_attention::tcgen05::{Epilogue, Tcgen05};
use bakewell_core::schedule::nvfp4_pre_attention::{Choice, Tables, facts};

/// Schedules of the norm kernel.
const NORMS: &[Norm] = &[Norm::ANY, Norm::H5376];

/// One epilogue role of 16 warps over column sets.
const SETS: Tcgen05 = Tcgen05::COLUMN_SETS;
/// The same with products of K = 96.
const SETS_K96: Tcgen05 = Tcgen05 { name: "gemm_sets_k96", product_k: 96, ..SETS };
/// The same with a ring of its own for scales.
const SETS_K96_SEPARATE: Tcgen05 = Tcgen05 { name: "gemm_sets_k96_separate", separate_scales: true, ..SETS_K96 };
/// What column sets replaced: a role for each set, the code twice. No route chooses it; the claim is measured with it.
const ROLES: Tcgen05 = Tcgen05 { name: "gemm_roles", epilogue: Epilogue::RolePerSet, ..SETS };

/// Schedules of the GEMM. Whole rows serve rotations that the sets were not made for.
const GEMMS: &[Tcgen05] = &[
    Tcgen05::WHOLE_ROWS,
    Tcgen05::WHOLE_ROWS.e4m3(),
    SETS,
    SETS.e4m3(),
    SETS_K96,
    SETS_K96.e4m3(),
    SETS_K96_SEPARATE,
    ROLES,
];

const ROPE_96: Bound = Bound::equal(facts::ROPE_DIM, SETS.rope_dim as u64);
const WHOLE_WINDOWS: Bound = Bound::equal(facts::K_TAIL, 0);
const FP4: Bound = Bound::equal(facts::ROW_BYTES, 64);

/// Routes of the GEMM. Where a separate scale ring pays is what a published implementation chose on B300; not measured
/// here.
const GEMM_ROUTES: &[Route<Choice>] = &[
    Route {
        when: &[ROPE_96, WHOLE_WINDOWS, FP4, Bound::equal(facts::DESTINATIONS, 8)],
        then: Choice { schedule: SETS_K96_SEPARATE.name },
    },
    Route {
        when: &[ROPE_96, WHOLE_WINDOWS, FP4, Bound::equal(facts::DESTINATIONS, 2), Bound::from(facts::TOKENS, 16_736)],
        then: Choice { schedule: SETS_K96_SEPARATE.name },
    },
    Route {
        when: &[ROPE_96, WHOLE_WINDOWS, FP4, Bound::equal(facts::DESTINATIONS, 1), Bound::from(facts::TOKENS, 32_640)],
        then: Choice { schedule: SETS_K96_SEPARATE.name },
    },
    Route { when: &[ROPE_96, WHOLE_WINDOWS], then: Choice { schedule: SETS_K96.name } },
    Route { when: &[ROPE_96], then: Choice { schedule: SETS.name } },
    Route { when: &[], then: Choice { schedule: Tcgen05::WHOLE_ROWS.name } },
];

/// Schedules and routes of both kernels.
pub const TABLES: Tables = Tables {
    norm: Table { schedules: NORMS, routes: NORM_ROUTES },
    tcgen05: Table { schedules: GEMMS, routes: GEMM_ROUTES },
    ..Tables::NONE
};
