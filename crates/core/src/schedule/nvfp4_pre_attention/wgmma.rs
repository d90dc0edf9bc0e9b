//! Schedules of the GEMM on the warpgroup tensor cores, and what their launches need to know.
//!
//! A cluster of two CTAs computes tiles of 256 tokens x 256 columns; each CTA owns 128 tokens, and of the columns two
//! head rows per token. Operands are images, see [`image_bytes`]. The kernel: `kernels/nvfp4_pre_attention/wgmma.cu`.

use serde::Serialize;

use super::{Choice, HEAD_DIM, KINDS, OutputFormat, TILE_COLUMNS, TILE_TOKENS};
use crate::Operation;
use crate::params::{ParamField, ParamKind, ParamLayout};
use crate::route::Route;
use crate::schedule::{Budgets, Fact, Schedule};

/// Rows of a block of an operand image.
pub const IMAGE_ROWS: u32 = 128;
/// Columns of a block of an operand image.
pub const IMAGE_COLUMNS: u32 = 32;
/// CTAs of a cluster: neighbours along the tokens, which share the weights.
pub const CLUSTER: u32 = 2;

/// Bytes of the bf16 image of a decoded operand: rows rounded up to whole blocks.
pub const fn image_bytes(rows: u64, columns: u64) -> u64 {
    rows.next_multiple_of(IMAGE_ROWS as u64) * columns * 2
}

/// One compiled variant of the GEMM on warpgroup tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Wgmma {
    /// Name, without the output: `gemm_k6`.
    pub name: &'static str,
    /// What it writes.
    pub output: OutputFormat,
    /// Ring of operand blocks: 128 tokens and 256 weight rows, 32 columns.
    pub stages: u32,
    /// Pairs of token blocks whose activations stay in the second-level cache while the weights pass.
    pub group_pairs: u32,
}

/// Fields of the GEMM's parameter block. Shapes: see `kernels/nvfp4_pre_attention/wgmma_params.cuh`.
pub const PARAMS: ParamLayout = ParamLayout {
    fields: &[
        ParamField { name: "activation", kind: ParamKind::Pointer },
        ParamField { name: "weight", kind: ParamKind::Pointer },
        ParamField { name: "rope_cos_sin", kind: ParamKind::Pointer },
        ParamField { name: "q_norm_weight", kind: ParamKind::Pointer },
        ParamField { name: "k_norm_weight", kind: ParamKind::Pointer },
        ParamField { name: "out_global_scale", kind: ParamKind::Pointer },
        ParamField { name: "out_q", kind: ParamKind::Pointer },
        ParamField { name: "out_sf", kind: ParamKind::Pointer },
        ParamField { name: "debug_q", kind: ParamKind::Pointer },
        ParamField { name: "debug_k", kind: ParamKind::Pointer },
        ParamField { name: "alpha", kind: ParamKind::F32 },
        ParamField { name: "eps", kind: ParamKind::F32 },
        ParamField { name: "inverse_scale_q", kind: ParamKind::F32 },
        ParamField { name: "inverse_scale_k", kind: ParamKind::F32 },
        ParamField { name: "inverse_scale_v", kind: ParamKind::F32 },
        ParamField { name: "tokens", kind: ParamKind::U32 },
        ParamField { name: "hidden", kind: ParamKind::U32 },
        ParamField { name: "heads", kind: ParamKind::U32 },
        ParamField { name: "destinations", kind: ParamKind::U32 },
        ParamField { name: "rope_dim", kind: ParamKind::U32 },
    ],
};

impl Wgmma {
    /// Six stages, NVFP4.
    pub const K6: Wgmma = Wgmma { name: "gemm_k6", output: OutputFormat::Nvfp4, stages: 6, group_pairs: 8 };

    /// The same schedule for the other output.
    pub const fn e4m3(self) -> Wgmma {
        Wgmma { output: OutputFormat::E4m3, ..self }
    }

    /// Threads of a CTA: a warpgroup that loads and finishes, two that multiply.
    pub const fn threads(&self) -> u32 {
        384
    }

    /// Number of mbarriers: two per stage, and two for each half of the words of a tile.
    pub const fn barriers(&self) -> u32 {
        2 * (self.stages + TILE_COLUMNS / HEAD_DIM)
    }

    /// Bytes of dynamic shared memory of a CTA: ring, words of a tile, barriers.
    pub const fn dynamic_shared_bytes(&self) -> u32 {
        let stage = (TILE_TOKENS + TILE_COLUMNS) * IMAGE_COLUMNS * 2;
        self.stages * stage + TILE_TOKENS * TILE_COLUMNS * 2 + 1024
    }

    /// CTAs of a launch: a cluster for each tile, at most as many as the SMs hold at once. `heads` is even.
    pub const fn ctas(tokens: u64, heads: u64, sm_count: u32) -> u32 {
        let row_pairs = tokens.div_ceil((CLUSTER * TILE_TOKENS) as u64);
        let tiles = row_pairs * (heads * (KINDS * HEAD_DIM) as u64 / TILE_COLUMNS as u64);
        let resident = sm_count / CLUSTER;
        CLUSTER * if tiles < resident as u64 { tiles as u32 } else { resident }
    }
}

/// One schedule serves every shape.
pub const ROUTES: &[Route<Choice>] = &[Route { when: &[], then: Choice { schedule: Wgmma::K6.name } }];

impl Schedule for Wgmma {
    fn operation(&self) -> Operation {
        Operation::Nvfp4PreAttention
    }

    fn variant(&self) -> String {
        format!("{}_{}", self.name, self.output.name())
    }

    fn source(&self) -> (&'static str, &'static str) {
        ("nvfp4_pre_attention/wgmma.cu", "nvfp4_pre_attention_wgmma")
    }

    fn facts(&self) -> Vec<Fact> {
        vec![
            Fact::bool("fp4_output", self.output == OutputFormat::Nvfp4),
            Fact::int("stages", self.stages),
            Fact::int("group_pairs", self.group_pairs),
        ]
    }

    fn budgets(&self) -> Budgets {
        Budgets {
            threads: self.threads(),
            dynamic_shared_bytes: self.dynamic_shared_bytes(),
            barrier_bytes: 8 * self.barriers(),
            tmem_columns: 0,
        }
    }

    fn params(&self) -> ParamLayout {
        PARAMS
    }

    fn required_opcodes(&self) -> &'static [&'static str] {
        &["HGMMA", "UBLKCP", "SYNCS", "STSM"]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_those_of_the_shared_map() {
        let gemm = Wgmma::K6;
        assert_eq!((gemm.barriers(), gemm.dynamic_shared_bytes()), (16, 214_016));
        assert_eq!(gemm.variant(), "gemm_k6_nvfp4");
    }

    #[test]
    fn a_launch_has_a_cluster_per_tile_or_fills_the_device() {
        assert_eq!(Wgmma::ctas(1, 2, 132), 2 * 3);
        assert_eq!(Wgmma::ctas(257, 2, 132), 2 * 2 * 3);
        assert_eq!(Wgmma::ctas(33_472, 56, 132), 132);
        assert_eq!(Wgmma::ctas(33_472, 56, 3), 2);
        assert_eq!(image_bytes(129, 64), 256 * 64 * 2);
    }
}
