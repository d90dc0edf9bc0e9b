//! Schedules of the GEMM on the tcgen05 tensor cores, and what their launches need to know.
//!
//! A CTA pair computes tiles of 256 tokens x 256 columns; each CTA owns 128 tokens, and of the columns two head rows
//! per token. The kernel: `kernels/nvfp4_pre_attention/tcgen05.cu`.

use serde::Serialize;

use super::{Choice, HEAD_DIM, KINDS, OutputFormat, SCALE_GROUP, SCALE_TILE_BYTES, TILE_COLUMNS, TILE_TOKENS, facts};
use crate::Operation;
use crate::params::{ParamField, ParamKind, ParamLayout};
use crate::route::{Bound, Route};
use crate::schedule::{Budgets, Fact, Schedule};
use crate::tensor_map::{MapType, Swizzle, TensorMapRequest};

/// CTAs of a cluster.
pub const PAIR_CTAS: u32 = 2;
/// Token tiles of a group; tiles are visited group by group, token tiles first.
pub const GROUP_TILES: u32 = 64;
/// Elements of K of a stage.
pub const STAGE_K: u32 = 256;
/// Elements of K whose scales share a tile of 512 bytes.
pub const SET_K: u32 = 64;
/// Elements of K of the three stages that eight products of K = 96 cover.
pub const WINDOW_K: u32 = 3 * STAGE_K;

/// Buffers per head half in shared memory: two, or one of the wider rows.
const fn staging_buffers(output: OutputFormat) -> u32 {
    match output {
        OutputFormat::Nvfp4 => 2,
        OutputFormat::E4m3 => 1,
    }
}

/// How the warps of the epilogue share the head rows of a tile. All give the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Epilogue {
    /// One role of 8 warps, a thread per head row.
    WholeRows,
    /// One role of 16 warps, two threads per head row; which blocks a thread has is a value that its warp shares.
    ColumnSets,
    /// Two roles of 8 warps, one for each set of blocks: the code twice. What [`Epilogue::ColumnSets`] replaced.
    RolePerSet,
}

/// One compiled variant of the GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Tcgen05 {
    /// Name, without the output: `gemm_sets_k96`.
    pub name: &'static str,
    /// How the epilogue's warps share the work.
    pub epilogue: Epilogue,
    /// Rotated elements of a head, known when compiling; 0: any multiple of 16.
    pub rope_dim: u32,
    /// What it writes.
    pub output: OutputFormat,
    /// Elements of K of one product: 64, or 96 (sm103).
    pub product_k: u32,
    /// Whether scale factors travel through a ring of their own, with a warp that loads them.
    pub separate_scales: bool,
    /// Stages of the operand ring.
    pub stages: u32,
    /// Registers of a thread of the warps that load and multiply.
    pub issue_registers: u32,
    /// Registers of a thread of the epilogue.
    pub epilogue_registers: u32,
}

/// Fields of the kernel's parameter block. Shapes: see `kernels/nvfp4_pre_attention/tcgen05_params.cuh`.
pub const PARAMS: ParamLayout = ParamLayout {
    fields: &[
        ParamField { name: "a", kind: ParamKind::TensorMap },
        ParamField { name: "b", kind: ParamKind::TensorMap },
        ParamField { name: "a_scales", kind: ParamKind::TensorMap },
        ParamField { name: "b_scales", kind: ParamKind::TensorMap },
        ParamField { name: "out", kind: ParamKind::TensorMap },
        ParamField { name: "rope_cos_sin", kind: ParamKind::Pointer },
        ParamField { name: "q_norm_weight", kind: ParamKind::Pointer },
        ParamField { name: "k_norm_weight", kind: ParamKind::Pointer },
        ParamField { name: "out_sf", kind: ParamKind::Pointer },
        ParamField { name: "out_global_scale", kind: ParamKind::Pointer },
        ParamField { name: "debug_q", kind: ParamKind::Pointer },
        ParamField { name: "debug_k", kind: ParamKind::Pointer },
        ParamField { name: "alpha", kind: ParamKind::F32 },
        ParamField { name: "eps", kind: ParamKind::F32 },
        ParamField { name: "inverse_scale_q", kind: ParamKind::F32 },
        ParamField { name: "inverse_scale_k", kind: ParamKind::F32 },
        ParamField { name: "inverse_scale_v", kind: ParamKind::F32 },
        ParamField { name: "tokens", kind: ParamKind::U32 },
        ParamField { name: "heads", kind: ParamKind::U32 },
        ParamField { name: "destinations", kind: ParamKind::U32 },
        ParamField { name: "rope_dim", kind: ParamKind::U32 },
        ParamField { name: "hidden", kind: ParamKind::U32 },
    ],
};

impl Tcgen05 {
    /// A thread per head row, any rotation, K = 64, NVFP4: every tcgen05 target.
    pub const WHOLE_ROWS: Tcgen05 = Tcgen05 {
        name: "gemm_rows",
        epilogue: Epilogue::WholeRows,
        rope_dim: 0,
        output: OutputFormat::Nvfp4,
        product_k: 64,
        separate_scales: false,
        stages: 5,
        issue_registers: 40,
        epilogue_registers: 224,
    };

    /// The same with 96 rotated elements.
    pub const WHOLE_ROWS_R96: Tcgen05 = Tcgen05 { name: "gemm_rows_r96", rope_dim: 96, ..Tcgen05::WHOLE_ROWS };

    /// Two threads per head row, 96 rotated elements, K = 64, NVFP4.
    pub const COLUMN_SETS: Tcgen05 = Tcgen05 {
        name: "gemm_sets",
        epilogue: Epilogue::ColumnSets,
        rope_dim: 96,
        issue_registers: 32,
        epilogue_registers: 112,
        ..Tcgen05::WHOLE_ROWS
    };

    /// The same schedule for the other output.
    pub const fn e4m3(self) -> Tcgen05 {
        Tcgen05 { output: OutputFormat::E4m3, ..self }
    }

    /// Whether rows of this length can be multiplied: any multiple of 64, with K = 96 of 768.
    pub const fn fits_hidden(&self, hidden: u64) -> bool {
        let step = if self.product_k == 96 { WINDOW_K } else { SET_K };
        hidden.is_multiple_of(step as u64)
    }

    /// Warps of the epilogue: 4 lane quarters x 2 head halves, and with column sets twice that.
    pub const fn epilogue_warps(&self) -> u32 {
        match self.epilogue {
            Epilogue::WholeRows => 8,
            Epilogue::ColumnSets | Epilogue::RolePerSet => 16,
        }
    }

    /// Threads of a CTA: a warpgroup that loads and multiplies, then the epilogue.
    pub const fn threads(&self) -> u32 {
        128 + 32 * self.epilogue_warps()
    }

    /// Number of mbarriers: two per stage of a ring (operands, scales where separate, four launch responses), one each
    /// way for the accumulator.
    pub const fn barriers(&self) -> u32 {
        let rings = if self.separate_scales { 2 } else { 1 };
        2 * (rings * self.stages + 4) + 2
    }

    /// Bytes of dynamic shared memory of a CTA: barriers and small tables, ring of operands and their scales, staging
    /// of packed rows.
    ///
    /// A stage holds 128 rows of A, half of 256 rows of B, the scales of the former and of all the latter.
    pub const fn dynamic_shared_bytes(&self) -> u32 {
        let operands = 2 * TILE_TOKENS * STAGE_K / 2;
        let scales = (1 + 2) * (STAGE_K / SET_K) * SCALE_TILE_BYTES;
        let staging = 2 * staging_buffers(self.output) * TILE_TOKENS * self.output.row_bytes();
        2048 + self.stages * (operands + scales) + staging
    }
}

/// Routes where whole rows serve everything: the production rotation has programs of its own.
pub const ROWS_ROUTES: &[Route<Choice>] = &[
    Route {
        when: &[Bound::equal(facts::ROPE_DIM, Tcgen05::WHOLE_ROWS_R96.rope_dim as u64)],
        then: Choice { schedule: Tcgen05::WHOLE_ROWS_R96.name },
    },
    Route { when: &[], then: Choice { schedule: Tcgen05::WHOLE_ROWS.name } },
];

impl Schedule for Tcgen05 {
    fn operation(&self) -> Operation {
        Operation::Nvfp4PreAttention
    }

    fn variant(&self) -> String {
        format!("{}_{}", self.name, self.output.name())
    }

    fn source(&self) -> (&'static str, &'static str) {
        ("nvfp4_pre_attention/tcgen05.cu", "nvfp4_pre_attention_tcgen05")
    }

    fn facts(&self) -> Vec<Fact> {
        vec![
            Fact::bool("column_sets", self.epilogue != Epilogue::WholeRows),
            Fact::bool("role_per_set", self.epilogue == Epilogue::RolePerSet),
            Fact::int("rope_dim", self.rope_dim),
            Fact::bool("fp4_output", self.output == OutputFormat::Nvfp4),
            Fact::int("product_k", self.product_k),
            Fact::bool("separate_scales", self.separate_scales),
            Fact::int("stages", self.stages),
            Fact::int("issue_registers", self.issue_registers),
            Fact::int("epilogue_registers", self.epilogue_registers),
        ]
    }

    fn budgets(&self) -> Budgets {
        Budgets {
            threads: self.threads(),
            dynamic_shared_bytes: self.dynamic_shared_bytes(),
            barrier_bytes: 8 * self.barriers(),
            tmem_columns: 512,
        }
    }

    fn params(&self) -> ParamLayout {
        PARAMS
    }

    fn required_opcodes(&self) -> &'static [&'static str] {
        &["UTCOMMA.2CTA", "UTCCP", "LDTM", "UTMALDG", "UTMASTG", "SYNCS"]
    }
}

/// What a launch of the GEMM depends on. All sizes are positive; `hidden` is a multiple of 64, `heads` even and a
/// multiple of `destinations`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of the activation.
    pub tokens: u64,
    /// Elements of a row.
    pub hidden: u64,
    /// Heads of all destinations.
    pub heads: u64,
    /// Ranks that the heads are shared out over.
    pub destinations: u64,
}

impl Shape {
    /// Token tiles, rounded up so that pairs are whole.
    pub const fn m_tiles(&self) -> u64 {
        self.tokens.div_ceil((PAIR_CTAS * TILE_TOKENS) as u64) * PAIR_CTAS as u64
    }

    /// Column tiles.
    pub const fn n_tiles(&self) -> u64 {
        self.heads * (KINDS * HEAD_DIM) as u64 / TILE_COLUMNS as u64
    }

    /// CTAs of a launch: one for each tile, of which running clusters take over those that have not started.
    pub const fn ctas(&self) -> u64 {
        self.m_tiles() * self.n_tiles()
    }

    /// Token tile and column tile of a CTA.
    pub const fn tile(&self, cta: u64) -> (u64, u64) {
        let group_ctas = GROUP_TILES as u64 * self.n_tiles();
        let first = cta / group_ctas * GROUP_TILES as u64;
        let left = self.m_tiles() - first;
        let size = if left < GROUP_TILES as u64 { left } else { GROUP_TILES as u64 };
        let inside = cta % group_ctas;
        (first + inside % size, inside / size)
    }

    /// Sets of 64 elements of K.
    const fn sets(&self) -> u64 {
        self.hidden / SET_K as u64
    }

    /// Map of the activation's codes, `[tokens, hidden / 2]` bytes: boxes of 128 tokens x 256 elements.
    pub fn activation_map(&self, address: u64) -> TensorMapRequest {
        self.codes_map(address, self.tokens)
    }

    /// Map of the weight's codes, `[heads * 384, hidden / 2]` bytes: boxes of 128 rows x 256 elements.
    pub fn weight_map(&self, address: u64) -> TensorMapRequest {
        self.codes_map(address, self.heads * u64::from(KINDS * HEAD_DIM))
    }

    /// Rows past the end and the tail of K read as zeros.
    fn codes_map(&self, address: u64, rows: u64) -> TensorMapRequest {
        let row_bytes = self.hidden / 2;
        let box_dims = [STAGE_K / 2, TILE_TOKENS];
        TensorMapRequest::tiled(MapType::U8, address, &[row_bytes, rows], &[row_bytes], &box_dims, Swizzle::B128)
    }

    /// Map of the activation's scales: boxes of the four tiles of a stage.
    pub fn activation_scales_map(&self, address: u64) -> TensorMapRequest {
        let tiles = self.tokens.div_ceil(u64::from(TILE_TOKENS)) * self.sets();
        Self::scales_map(address, tiles, STAGE_K / SET_K)
    }

    /// Map of the weight's scales in pair order, `[n_tiles][sets][2][512]`: boxes of the eight tiles of a stage.
    pub fn weight_scales_map(&self, address: u64) -> TensorMapRequest {
        Self::scales_map(address, self.n_tiles() * self.sets() * 2, 2 * STAGE_K / SET_K)
    }

    /// Tiles of 512 bytes one after another, as words of 8 bytes: a box may have 256 elements a side.
    fn scales_map(address: u64, tiles: u64, box_tiles: u32) -> TensorMapRequest {
        let words = SCALE_TILE_BYTES / 8;
        let stride = u64::from(SCALE_TILE_BYTES);
        TensorMapRequest::tiled(
            MapType::U64,
            address,
            &[u64::from(words), tiles],
            &[stride],
            &[words, box_tiles],
            Swizzle::None,
        )
    }

    /// Map of the output, `[destinations, tokens, heads / destinations * 3, row bytes]`: boxes of one row of 128
    /// tokens.
    pub fn output_map(&self, address: u64, output: OutputFormat) -> TensorMapRequest {
        let row = u64::from(output.row_bytes());
        let rows = self.heads / self.destinations * u64::from(KINDS);
        let swizzle = match output {
            OutputFormat::Nvfp4 => Swizzle::B64,
            OutputFormat::E4m3 => Swizzle::B128,
        };
        TensorMapRequest::tiled(
            MapType::U8,
            address,
            &[row, rows, self.tokens, self.destinations],
            &[row, row * rows, row * rows * self.tokens],
            &[output.row_bytes(), 1, TILE_TOKENS, 1],
            swizzle,
        )
    }
}

/// Pair order of a weight's scales: `[n_tiles][2][sets][512]` to `[n_tiles][sets][2][512]`, so that the tiles of a
/// stage, for both halves of the 256 columns, are one run of bytes.
///
/// `swizzled` has a multiple of `2 * sets` tiles of 512 bytes.
pub fn pair_order(swizzled: &[u8], sets: usize) -> Vec<u8> {
    let tile = SCALE_TILE_BYTES as usize;
    let mut paired = Vec::with_capacity(swizzled.len());
    for columns in swizzled.chunks(2 * sets * tile) {
        for set in 0..sets {
            for half in 0..2 {
                let from = (half * sets + set) * tile;
                paired.extend_from_slice(&columns[from..from + tile]);
            }
        }
    }
    paired
}

/// Where product `j` of the eight that cover 768 elements with K = 96 begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product96 {
    /// Stage of the three.
    pub stage: u32,
    /// Byte in the stage's rows of 128.
    pub byte: u32,
    /// Whether it goes on in the next stage.
    pub straddles: bool,
    /// Set of scales of the stage, of four.
    pub scale_set: u32,
    /// First scale in the set: the id in the instruction descriptor.
    pub scale_id: u32,
}

impl Product96 {
    /// The walk: 48 bytes and six scales a product.
    pub const fn of(j: u32) -> Product96 {
        let (row, bytes, scales) = (STAGE_K / 2, 96 / 2, 96 / SCALE_GROUP);
        let set_scales = SET_K / SCALE_GROUP;
        let (start, scale) = (j * bytes, j * scales);
        Product96 {
            stage: start / row,
            byte: start % row,
            straddles: start % row + bytes > row,
            scale_set: scale / set_scales % (STAGE_K / SET_K),
            scale_id: scale % set_scales,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_those_of_the_shared_map() {
        let rows = Tcgen05::WHOLE_ROWS;
        assert_eq!((rows.threads(), rows.barriers(), rows.dynamic_shared_bytes()), (384, 20, 229_376));
        assert_eq!(rows.e4m3().dynamic_shared_bytes(), 229_376);
        let sets = Tcgen05 { separate_scales: true, ..Tcgen05::COLUMN_SETS };
        assert_eq!((sets.threads(), sets.barriers(), sets.dynamic_shared_bytes()), (640, 30, 229_376));
    }

    #[test]
    fn register_budgets_fit_what_a_launch_gets() {
        for schedule in [Tcgen05::WHOLE_ROWS, Tcgen05::COLUMN_SETS] {
            // Registers are shared out to warps in eights per thread, over four partitions of 16384.
            let warps = schedule.threads() / 32;
            let launched = 65_536 / 4 / warps.div_ceil(4) / 32 / 8 * 8 * schedule.threads();
            let wanted = 128 * schedule.issue_registers + 32 * schedule.epilogue_warps() * schedule.epilogue_registers;
            assert!(wanted <= launched, "{schedule:?}: {wanted} of {launched}");
        }
    }

    #[test]
    fn every_tile_is_visited_once_and_pairs_are_neighbours() {
        for (tokens, heads) in [(1, 2), (128, 2), (300, 4), (4184, 56), (8192, 2), (8193, 2), (16_500, 4)] {
            let shape = Shape { tokens, hidden: 256, heads, destinations: 1 };
            let mut seen = vec![false; shape.ctas() as usize];
            for cta in 0..shape.ctas() {
                let (m, n) = shape.tile(cta);
                let at = (m * shape.n_tiles() + n) as usize;
                assert!(!std::mem::replace(&mut seen[at], true), "tile {m} {n} twice");
                if cta % 2 == 1 {
                    assert_eq!(shape.tile(cta - 1), (m - 1, n));
                }
            }
            assert!(seen.iter().all(|&visited| visited));
        }
    }

    #[test]
    fn products_of_96_walk_over_three_stages() {
        let walk: Vec<Product96> = (0..8).map(Product96::of).collect();
        assert_eq!(walk.iter().map(|p| p.stage).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1, 2, 2]);
        assert_eq!(walk.iter().map(|p| p.byte).collect::<Vec<_>>(), [0, 48, 96, 16, 64, 112, 32, 80]);
        assert_eq!(walk.iter().map(|p| p.scale_set).collect::<Vec<_>>(), [0, 1, 3, 0, 2, 3, 1, 2]);
        assert_eq!(walk.iter().map(|p| p.scale_id).collect::<Vec<_>>(), [0, 2, 0, 2, 0, 2, 0, 2]);
        let straddling: Vec<usize> = (0..8).filter(|&j| walk[j].straddles).collect();
        assert_eq!(straddling, [2, 5]);
        assert_eq!(walk[7].byte + 48, 128);
    }

    #[test]
    fn pair_order_swaps_halves_and_sets() {
        let tile = SCALE_TILE_BYTES as usize;
        let swizzled: Vec<u8> = (0..2 * 2 * 3).flat_map(|tile_index| vec![tile_index; tile]).collect();
        let paired: Vec<u8> = pair_order(&swizzled, 3).chunks(tile).map(|bytes| bytes[0]).collect();
        assert_eq!(paired, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
    }
}
