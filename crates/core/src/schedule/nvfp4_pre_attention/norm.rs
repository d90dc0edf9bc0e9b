//! Schedules of the norm kernel: hidden states to NVFP4 activation.

use serde::Serialize;

use super::{Choice, facts};
use crate::Operation;
use crate::params::{ParamField, ParamKind, ParamLayout};
use crate::route::{Bound, Route};
use crate::schedule::{Budgets, Fact, Schedule};

/// Token rows of a CTA, 64 threads each.
pub const ROWS_PER_CTA: u32 = 2;
/// Threads of a row. The order in which its squares are added depends on it.
pub const ROW_THREADS: u32 = 64;

/// One compiled variant of the norm kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Norm {
    /// Name: `norm_h5376`.
    pub name: &'static str,
    /// Elements of a row, known when compiling: the row stays in registers between its two uses. 0: any, read twice.
    pub hidden: u32,
    /// Whether the target converts f32 to E2M1 by an instruction. The integer form gives the same codes.
    pub e2m1_instruction: bool,
    /// Whether the activation is written as an operand image too, for a GEMM whose tensor cores read no FP4.
    pub image: bool,
    /// CTAs that an SM must be able to hold: bounds the registers.
    pub min_ctas_per_sm: u32,
}

/// Fields of the kernel's parameter block. Shapes: see `struct Params` in `kernels/nvfp4_pre_attention/norm.cu`.
pub const PARAMS: ParamLayout = ParamLayout {
    fields: &[
        ParamField { name: "x", kind: ParamKind::Pointer },
        ParamField { name: "weight", kind: ParamKind::Pointer },
        ParamField { name: "adaln_scale", kind: ParamKind::Pointer },
        ParamField { name: "adaln_shift", kind: ParamKind::Pointer },
        ParamField { name: "adaln_index", kind: ParamKind::Pointer },
        ParamField { name: "global_scale", kind: ParamKind::Pointer },
        ParamField { name: "activation_q", kind: ParamKind::Pointer },
        ParamField { name: "activation_sf", kind: ParamKind::Pointer },
        ParamField { name: "image", kind: ParamKind::Pointer },
        ParamField { name: "debug_adaln", kind: ParamKind::Pointer },
        ParamField { name: "out_sf", kind: ParamKind::Pointer },
        ParamField { name: "out_sf_bytes", kind: ParamKind::U64 },
        ParamField { name: "tokens", kind: ParamKind::U32 },
        ParamField { name: "hidden", kind: ParamKind::U32 },
        ParamField { name: "table_rows", kind: ParamKind::U32 },
        ParamField { name: "destinations", kind: ParamKind::U32 },
        ParamField { name: "eps", kind: ParamKind::F32 },
    ],
};

impl Norm {
    /// Serves every number of hidden elements.
    pub const ANY: Norm = Norm { name: "norm", hidden: 0, e2m1_instruction: true, image: false, min_ctas_per_sm: 4 };

    /// Serves 5376 hidden elements.
    pub const H5376: Norm = Norm { name: "norm_h5376", hidden: 5376, ..Norm::ANY };
}

/// The row length that has a program of its own, then any.
pub const ROUTES: &[Route<Choice>] = &[
    Route {
        when: &[Bound::equal(facts::HIDDEN, Norm::H5376.hidden as u64)],
        then: Choice { schedule: Norm::H5376.name },
    },
    Route { when: &[], then: Choice { schedule: Norm::ANY.name } },
];

impl Schedule for Norm {
    fn operation(&self) -> Operation {
        Operation::Nvfp4PreAttention
    }

    fn variant(&self) -> String {
        self.name.to_owned()
    }

    fn source(&self) -> (&'static str, &'static str) {
        ("nvfp4_pre_attention/norm.cu", "nvfp4_pre_attention_norm")
    }

    fn facts(&self) -> Vec<Fact> {
        vec![
            Fact::int("hidden", self.hidden),
            Fact::bool("e2m1_instruction", self.e2m1_instruction),
            Fact::bool("image", self.image),
            Fact::int("min_ctas_per_sm", self.min_ctas_per_sm),
        ]
    }

    fn budgets(&self) -> Budgets {
        Budgets {
            threads: ROWS_PER_CTA * ROW_THREADS,
            // What each of 128 scale bytes stands for, two words, and the sum of each warp.
            dynamic_shared_bytes: 128 * 8 + ROWS_PER_CTA * ROW_THREADS / 32 * 4,
            barrier_bytes: 0,
            tmem_columns: 0,
        }
    }

    fn params(&self) -> ParamLayout {
        PARAMS
    }

    fn required_opcodes(&self) -> &'static [&'static str] {
        &[]
    }
}
