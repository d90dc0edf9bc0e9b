//! The kernel that shows pages: what is in the cache, as the attention kernels of its architecture expand it.

use serde::Serialize;

use super::{BLOCK_KEYS, CodeReads, Dequantise, Engine, Nvfp4Context, PACKED_BYTES, TILE_BYTES};
use crate::Operation;
use crate::params::{ParamField, ParamKind, ParamLayout};
use crate::schedule::{Budgets, Fact, Schedule};

/// Fields of the parameter block. Shapes: see `kernels/nvfp4_context/pages_params.cuh`.
pub const PAGES_PARAMS: ParamLayout = ParamLayout {
    fields: &[
        ParamField { name: "k", kind: ParamKind::Pointer },
        ParamField { name: "v", kind: ParamKind::Pointer },
        ParamField { name: "k_scale", kind: ParamKind::Pointer },
        ParamField { name: "v_scale", kind: ParamKind::Pointer },
        ParamField { name: "k_out", kind: ParamKind::Pointer },
        ParamField { name: "v_out", kind: ParamKind::Pointer },
        ParamField { name: "k_page_stride", kind: ParamKind::U64 },
        ParamField { name: "k_head_stride", kind: ParamKind::U64 },
        ParamField { name: "k_token_stride", kind: ParamKind::U64 },
        ParamField { name: "v_page_stride", kind: ParamKind::U64 },
        ParamField { name: "v_head_stride", kind: ParamKind::U64 },
        ParamField { name: "v_token_stride", kind: ParamKind::U64 },
        ParamField { name: "k_scale_page_stride", kind: ParamKind::U64 },
        ParamField { name: "k_scale_head_stride", kind: ParamKind::U64 },
        ParamField { name: "v_scale_page_stride", kind: ParamKind::U64 },
        ParamField { name: "v_scale_head_stride", kind: ParamKind::U64 },
        ParamField { name: "pages", kind: ParamKind::U32 },
        ParamField { name: "kv_heads", kind: ParamKind::U32 },
    ],
};

/// One compiled variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pages {
    /// How FP4 becomes E4M3.
    pub dequantise: Dequantise,
    /// When a row's codes are read.
    pub code_reads: CodeReads,
    /// Whether tiles of V have a row for each dim instead of each token.
    pub transposed_values: bool,
}

impl Pages {
    /// What shows the pages of these schedules: it expands as they do.
    pub const fn of(paged: &Nvfp4Context) -> Pages {
        Pages {
            dequantise: paged.dequantise,
            code_reads: paged.code_reads,
            transposed_values: matches!(paged.engine, Engine::Wgmma(_)),
        }
    }
}

impl Schedule for Pages {
    fn operation(&self) -> Operation {
        Operation::Nvfp4Context
    }

    fn variant(&self) -> String {
        "pages".to_owned()
    }

    fn source(&self) -> (&'static str, &'static str) {
        ("nvfp4_context/pages.cu", "nvfp4_context_pages")
    }

    fn facts(&self) -> Vec<Fact> {
        vec![self.dequantise.fact(), self.code_reads.fact(), Fact::bool("transposed_values", self.transposed_values)]
    }

    fn budgets(&self) -> Budgets {
        Budgets {
            threads: BLOCK_KEYS,
            dynamic_shared_bytes: TILE_BYTES + PACKED_BYTES,
            barrier_bytes: 0,
            tmem_columns: 0,
        }
    }

    fn params(&self) -> ParamLayout {
        PAGES_PARAMS
    }

    fn required_opcodes(&self) -> &'static [&'static str] {
        &["LDG", "STS", "LDS", "STG"]
    }
}
