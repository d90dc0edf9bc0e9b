//! Schedules of NVFP4 paged-context attention.

use serde::{Deserialize, Serialize};

use super::{Budgets, Fact, Schedule, split_merge};
use crate::Operation;
use crate::params::{ParamField, ParamKind, ParamLayout};
use crate::route::{Bound, Route};

/// Elements of a head.
pub const HEAD_DIM: u32 = 128;
/// Tokens of a page.
pub const PAGE_TOKENS: u32 = 16;
/// Elements that share a scale factor.
pub const SCALE_GROUP: u32 = 16;
/// Keys of a block.
pub const BLOCK_KEYS: u32 = 128;
/// Halves of a tile of query rows.
pub const HALVES: u32 = 2;

/// How FP4 becomes E4M3. All give the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dequantise {
    /// Packed multiply of E2M1 by E4M3 (sm_100a, sm_103a).
    PackedMultiply,
    /// By f16, where E2M1 converts to it (sm_107a, sm_110a).
    F16,
    /// By a table of the eight magnitudes of a block (sm_90a).
    Table,
}

/// When a row's codes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeReads {
    /// Each 16 bytes before their use.
    PerChunk,
    /// The whole row first.
    WholeRow,
}

/// When the correction warps hand a rescale slot back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleRelease {
    /// As soon as it is read.
    AfterRead,
    /// After the other half's rescale and the next dequantisation.
    AfterRescale,
}

/// Who initialises the barriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BarrierInit {
    /// Thread 0, one after another.
    Thread0,
    /// A lane of warp 0 each.
    LanesOfWarp0,
}

/// How an output accumulator is rescaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rescale {
    /// Load, multiply, store in turn.
    InTurn,
    /// The next columns load while the previous multiply.
    Pipelined,
}

/// What only the tcgen05 kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Tcgen05 {
    /// When a rescale slot is handed back.
    pub scale_release: ScaleRelease,
    /// Who initialises the barriers.
    pub barrier_init: BarrierInit,
    /// How an accumulator is rescaled.
    pub rescale: Rescale,
    /// Registers of a softmax thread.
    pub softmax_registers: u32,
    /// Registers of a correction thread.
    pub correction_registers: u32,
    /// Registers of a thread of the issuing warps.
    pub issue_registers: u32,
}

/// What only the wgmma kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Wgmma {
    /// Registers of a thread that loads and expands K.
    pub key_registers: u32,
    /// Registers of a thread that loads and expands V.
    pub value_registers: u32,
    /// Registers of a thread that computes.
    pub consumer_registers: u32,
}

/// What only the decode kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Decode {
    /// Query rows of a request and KV head, tokens times heads of the group, that a CTA computes.
    pub columns: u32,
    /// Warps, each with pages of its own.
    pub warps: u32,
    /// Pages that a warp loads before it needs them.
    pub pages_ahead: u32,
    /// CTAs that must fit one SM at once (register budget).
    pub min_ctas_per_sm: u32,
    /// Whether the kernel starts under programmatic dependent launch.
    pub pdl: bool,
}

/// How a kernel works: what a problem may be pinned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Tiles of query rows against blocks of 128 keys in shared memory, on tensor cores for FP8.
    Paged,
    /// Few query rows; every warp streams pages through registers.
    Decode,
}

/// The kernel, with the facts that are its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// Tensor memory, 16 warps, halves of 128 rows.
    Tcgen05(Tcgen05),
    /// Warpgroup products, 16 warps, halves of 64 rows.
    Wgmma(Wgmma),
    /// Warp products in f16, few query rows.
    Decode(Decode),
}

/// One compiled variant of NVFP4 paged-context attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Nvfp4Context {
    /// Name of the schedule, without pack and split: `paged_k8`.
    pub name: &'static str,
    /// Kernel.
    pub engine: Engine,
    /// Query heads of a row group: heads that share a KV head and are packed into one tile. Decode takes whole groups of
    /// any size and has 1 here.
    pub pack: u32,
    /// Whether several CTAs may share a tile's keys. Decode's always may.
    pub split: bool,
    /// Ring of packed tiles: K and V in turn (tcgen05), or each its own (wgmma); 0 without a ring.
    pub packed_stages: u32,
    /// Ring of expanded tiles, likewise.
    pub expanded_stages: u32,
    /// How FP4 becomes E4M3.
    pub dequantise: Dequantise,
    /// When a row's codes are read.
    pub code_reads: CodeReads,
}

/// Fields of the paged kernels' parameter block. Shapes: see `kernels/nvfp4_context/params.cuh`.
pub const PARAMS: ParamLayout = ParamLayout {
    fields: &[
        ParamField { name: "q", kind: ParamKind::TensorMap },
        ParamField { name: "k", kind: ParamKind::TensorMap },
        ParamField { name: "v", kind: ParamKind::TensorMap },
        ParamField { name: "k_scale", kind: ParamKind::TensorMap },
        ParamField { name: "v_scale", kind: ParamKind::TensorMap },
        ParamField { name: "page_table", kind: ParamKind::Pointer },
        ParamField { name: "seq_lens_kv", kind: ParamKind::Pointer },
        ParamField { name: "cu_seqlens_q", kind: ParamKind::Pointer },
        ParamField { name: "out", kind: ParamKind::Pointer },
        ParamField { name: "lse", kind: ParamKind::Pointer },
        ParamField { name: "sinks", kind: ParamKind::Pointer },
        ParamField { name: "bmm1_device", kind: ParamKind::Pointer },
        ParamField { name: "bmm2_device", kind: ParamKind::Pointer },
        ParamField { name: "partial_out", kind: ParamKind::Pointer },
        ParamField { name: "partial_max", kind: ParamKind::Pointer },
        ParamField { name: "partial_sum", kind: ParamKind::Pointer },
        ParamField { name: "completed", kind: ParamKind::Pointer },
        ParamField { name: "page_table_stride", kind: ParamKind::U64 },
        ParamField { name: "bmm1_scale", kind: ParamKind::F32 },
        ParamField { name: "bmm2_scale", kind: ParamKind::F32 },
        ParamField { name: "q_heads", kind: ParamKind::U32 },
        ParamField { name: "heads_per_kv", kind: ParamKind::U32 },
        ParamField { name: "units_per_request", kind: ParamKind::U32 },
        ParamField { name: "units", kind: ParamKind::U32 },
        ParamField { name: "m_blocks", kind: ParamKind::U32 },
        ParamField { name: "splits", kind: ParamKind::U32 },
        ParamField { name: "work_items", kind: ParamKind::U32 },
    ],
};

/// Fields of the decode kernel's parameter block. Shapes: see `kernels/nvfp4_context/decode_params.cuh`.
pub const DECODE_PARAMS: ParamLayout = ParamLayout {
    fields: &[
        ParamField { name: "q", kind: ParamKind::Pointer },
        ParamField { name: "k", kind: ParamKind::Pointer },
        ParamField { name: "v", kind: ParamKind::Pointer },
        ParamField { name: "k_scale", kind: ParamKind::Pointer },
        ParamField { name: "v_scale", kind: ParamKind::Pointer },
        ParamField { name: "page_table", kind: ParamKind::Pointer },
        ParamField { name: "seq_lens_kv", kind: ParamKind::Pointer },
        ParamField { name: "cu_seqlens_q", kind: ParamKind::Pointer },
        ParamField { name: "out", kind: ParamKind::Pointer },
        ParamField { name: "lse", kind: ParamKind::Pointer },
        ParamField { name: "sinks", kind: ParamKind::Pointer },
        ParamField { name: "bmm1_device", kind: ParamKind::Pointer },
        ParamField { name: "bmm2_device", kind: ParamKind::Pointer },
        ParamField { name: "partial_out", kind: ParamKind::Pointer },
        ParamField { name: "partial_max", kind: ParamKind::Pointer },
        ParamField { name: "partial_sum", kind: ParamKind::Pointer },
        ParamField { name: "completed", kind: ParamKind::Pointer },
        ParamField { name: "q_token_stride", kind: ParamKind::U64 },
        ParamField { name: "q_head_stride", kind: ParamKind::U64 },
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
        ParamField { name: "page_table_stride", kind: ParamKind::U64 },
        ParamField { name: "bmm1_scale", kind: ParamKind::F32 },
        ParamField { name: "bmm2_scale", kind: ParamKind::F32 },
        ParamField { name: "q_heads", kind: ParamKind::U32 },
        ParamField { name: "heads_per_kv", kind: ParamKind::U32 },
        ParamField { name: "kv_heads", kind: ParamKind::U32 },
        ParamField { name: "splits", kind: ParamKind::U32 },
    ],
};

/// Facts that route tables may bound.
pub mod facts {
    use crate::route::FactName;

    /// Query rows of a request and KV head: tokens of the longest request times heads of the group.
    pub const QUERY_ROWS: FactName = "query_rows";
    /// KV heads.
    pub const KV_HEADS: FactName = "kv_heads";
}

/// Packs that have programs of their own; any other group runs with pack 1.
pub const PACKS: [u32; 9] = [1, 2, 4, 5, 6, 7, 8, 12, 16];

/// A schedule for each of [`PACKS`], unsplit and split, which may differ in registers. The order: all unsplit, then all
/// split.
pub const fn every_pack(unsplit: Nvfp4Context, split: Nvfp4Context) -> [Nvfp4Context; 18] {
    let mut all = [unsplit; 18];
    let mut i = 0;
    while i < all.len() {
        let schedule = if i < PACKS.len() { unsplit } else { split };
        all[i] = Nvfp4Context { pack: PACKS[i % PACKS.len()], split: i >= PACKS.len(), ..schedule };
        i += 1;
    }
    all
}

/// Those of [`every_pack`], then decode's.
pub const fn with_decode(paged: [Nvfp4Context; 18]) -> [Nvfp4Context; 20] {
    let mut all = [Nvfp4Context::DECODE; 20];
    let mut i = 0;
    while i < paged.len() {
        all[i] = paged[i];
        i += 1;
    }
    all[i + 1] = Nvfp4Context::DECODE_C16;
    all
}

/// KV heads that a grid of the decode kernel has room for.
const DECODE_HEADS: Bound = Bound::up_to(facts::KV_HEADS, 65_535);

/// The routes of decode.
pub const DECODE_ROUTES: [Route<Choice>; 2] = [
    Route {
        when: &[Bound::up_to(facts::QUERY_ROWS, 8), DECODE_HEADS],
        then: Choice { schedule: Nvfp4Context::DECODE.name, min_blocks: 1 },
    },
    Route {
        when: &[Bound::up_to(facts::QUERY_ROWS, 16), DECODE_HEADS],
        then: Choice { schedule: Nvfp4Context::DECODE_C16.name, min_blocks: 1 },
    },
];

/// What a route chooses: schedules by name, and how short a split of the keys may be.
///
/// Pack and split count follow from the shape and the SM count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Name of the schedules, [`Nvfp4Context::name`].
    pub schedule: &'static str,
    /// Fewest blocks of keys per split.
    pub min_blocks: u32,
}

impl Nvfp4Context {
    /// What the tcgen05 schedules share; the fields of [`Tcgen05`] are those of sm103.
    pub const TCGEN05: Nvfp4Context = Nvfp4Context {
        name: "paged_k8",
        engine: Engine::Tcgen05(Self::TCGEN05_ENGINE),
        pack: 1,
        split: false,
        packed_stages: 8,
        expanded_stages: 3,
        dequantise: Dequantise::PackedMultiply,
        code_reads: CodeReads::WholeRow,
    };

    /// The tcgen05 facts of sm103.
    pub const TCGEN05_ENGINE: Tcgen05 = Tcgen05 {
        scale_release: ScaleRelease::AfterRead,
        barrier_init: BarrierInit::LanesOfWarp0,
        rescale: Rescale::Pipelined,
        softmax_registers: 168,
        correction_registers: 120,
        issue_registers: 56,
    };

    /// The Hopper schedule.
    pub const WGMMA: Nvfp4Context = Nvfp4Context {
        name: "paged_k7",
        engine: Engine::Wgmma(Wgmma { key_registers: 64, value_registers: 64, consumer_registers: 192 }),
        pack: 1,
        split: false,
        packed_stages: 7,
        expanded_stages: 2,
        dequantise: Dequantise::Table,
        code_reads: CodeReads::PerChunk,
    };

    /// The Hopper schedule of split tiles: their producers keep a few more values.
    pub const WGMMA_SPLIT: Nvfp4Context = Nvfp4Context {
        engine: Engine::Wgmma(Wgmma { key_registers: 72, value_registers: 72, consumer_registers: 184 }),
        ..Nvfp4Context::WGMMA
    };

    /// Up to 8 query rows.
    pub const DECODE: Nvfp4Context = Nvfp4Context {
        name: "decode_c8",
        engine: Engine::Decode(Decode { columns: 8, warps: 8, pages_ahead: 1, min_ctas_per_sm: 2, pdl: true }),
        pack: 1,
        split: true,
        packed_stages: 0,
        expanded_stages: 0,
        dequantise: Dequantise::Table,
        code_reads: CodeReads::WholeRow,
    };

    /// Up to 16 query rows, with twice the accumulators.
    pub const DECODE_C16: Nvfp4Context = Nvfp4Context {
        name: "decode_c16",
        engine: Engine::Decode(Decode { columns: 16, warps: 8, pages_ahead: 1, min_ctas_per_sm: 1, pdl: true }),
        ..Nvfp4Context::DECODE
    };

    /// How the kernel works.
    pub const fn family(&self) -> Family {
        match self.engine {
            Engine::Tcgen05(_) | Engine::Wgmma(_) => Family::Paged,
            Engine::Decode(_) => Family::Decode,
        }
    }

    /// Query rows of half a tile; all rows of a decode kernel.
    pub const fn half_rows(&self) -> u32 {
        match self.engine {
            Engine::Tcgen05(_) => 128,
            Engine::Wgmma(_) => 64,
            Engine::Decode(decode) => decode.columns,
        }
    }

    /// Query tokens of half a tile; rows beyond `pack` times as many are dead.
    pub const fn tokens_per_half(&self) -> u32 {
        self.half_rows() / self.pack
    }

    /// Query tokens of a tile.
    pub const fn tile_tokens(&self) -> u32 {
        HALVES * self.tokens_per_half()
    }

    /// Threads of a CTA: four warpgroups, or decode's warps.
    pub const fn threads(&self) -> u32 {
        match self.engine {
            Engine::Tcgen05(_) | Engine::Wgmma(_) => 512,
            Engine::Decode(decode) => 32 * decode.warps,
        }
    }

    /// Rings of each kind: one for K and V in turn, or one each.
    const fn rings(&self) -> u32 {
        match self.engine {
            Engine::Tcgen05(_) => 1,
            Engine::Wgmma(_) => 2,
            Engine::Decode(_) => 0,
        }
    }

    /// Number of mbarriers. A ring has two per slot.
    ///
    /// tcgen05: rings of packed tiles, expanded tiles and 6 slots of page ids; six pairs between the roles of the two
    /// halves (queries, scores, weights twice, rescale slot twice, turns, outputs: sixteen) and one for the queries'
    /// release. wgmma: rings of packed K and V, expanded K and V, and two tiles of queries. decode: that of the merge.
    pub const fn barriers(&self) -> u32 {
        let rings = self.rings() * (self.packed_stages + self.expanded_stages);
        match self.engine {
            Engine::Tcgen05(_) => 2 * (rings + 6) + 8 * HALVES + 1,
            Engine::Wgmma(_) => 2 * (rings + 2),
            Engine::Decode(_) => split_merge::BARRIER_BYTES / 8,
        }
    }

    /// Bytes of dynamic shared memory of a CTA: barriers and scalars, queries, expanded ring, packed ring; of decode the
    /// merge and the eight products of each scale byte.
    pub const fn dynamic_shared_bytes(&self) -> u32 {
        let (head, q_tiles) = match self.engine {
            Engine::Tcgen05(_) => (4096, 1),
            Engine::Wgmma(_) => (1024, 2),
            Engine::Decode(Decode { columns, warps, .. }) => {
                return split_merge::shared_bytes(warps, columns, HEAD_DIM) + 256 * 8;
            }
        };
        let queries = q_tiles * HALVES * self.half_rows() * HEAD_DIM;
        let expanded = self.rings() * self.expanded_stages * BLOCK_KEYS * HEAD_DIM;
        let packed = self.rings() * self.packed_stages * BLOCK_KEYS * (HEAD_DIM / 2 + HEAD_DIM / SCALE_GROUP);
        head + queries + expanded + packed
    }
}

impl Schedule for Nvfp4Context {
    fn operation(&self) -> Operation {
        Operation::Nvfp4Context
    }

    fn variant(&self) -> String {
        if self.family() == Family::Decode {
            return self.name.to_owned();
        }
        format!("{}_g{}{}", self.name, self.pack, if self.split { "_split" } else { "" })
    }

    fn source(&self) -> (&'static str, &'static str) {
        match self.engine {
            Engine::Tcgen05(_) => ("nvfp4_context/tcgen05.cu", "nvfp4_context_tcgen05"),
            Engine::Wgmma(_) => ("nvfp4_context/wgmma.cu", "nvfp4_context_wgmma"),
            Engine::Decode(_) => ("nvfp4_context/decode.cu", "nvfp4_context_decode"),
        }
    }

    fn facts(&self) -> Vec<Fact> {
        if let Engine::Decode(decode) = self.engine {
            return vec![
                Fact::int("columns", decode.columns),
                Fact::int("warps", decode.warps),
                Fact::int("pages_ahead", decode.pages_ahead),
                Fact::int("min_ctas_per_sm", decode.min_ctas_per_sm),
                Fact::bool("pdl", decode.pdl),
            ];
        }
        let dequantise = match self.dequantise {
            Dequantise::PackedMultiply => "packed_multiply",
            Dequantise::F16 => "f16",
            Dequantise::Table => "table",
        };
        let code_reads = match self.code_reads {
            CodeReads::PerChunk => "per_chunk",
            CodeReads::WholeRow => "whole_row",
        };
        let mut facts = vec![
            Fact::int("pack", self.pack),
            Fact::bool("split", self.split),
            Fact::int("packed_stages", self.packed_stages),
            Fact::int("expanded_stages", self.expanded_stages),
            Fact::choice("dequantise", "Dequantise", dequantise),
            Fact::choice("code_reads", "CodeReads", code_reads),
        ];
        match self.engine {
            Engine::Tcgen05(engine) => {
                let scale_release = match engine.scale_release {
                    ScaleRelease::AfterRead => "after_read",
                    ScaleRelease::AfterRescale => "after_rescale",
                };
                let barrier_init = match engine.barrier_init {
                    BarrierInit::Thread0 => "thread0",
                    BarrierInit::LanesOfWarp0 => "lanes_of_warp0",
                };
                let rescale = match engine.rescale {
                    Rescale::InTurn => "in_turn",
                    Rescale::Pipelined => "pipelined",
                };
                facts.extend([
                    Fact::choice("scale_release", "ScaleRelease", scale_release),
                    Fact::choice("barrier_init", "BarrierInit", barrier_init),
                    Fact::choice("rescale", "Rescale", rescale),
                    Fact::int("softmax_registers", engine.softmax_registers),
                    Fact::int("correction_registers", engine.correction_registers),
                    Fact::int("issue_registers", engine.issue_registers),
                ]);
            }
            Engine::Wgmma(engine) => facts.extend([
                Fact::int("key_registers", engine.key_registers),
                Fact::int("value_registers", engine.value_registers),
                Fact::int("consumer_registers", engine.consumer_registers),
            ]),
            Engine::Decode(_) => {}
        }
        facts
    }

    fn budgets(&self) -> Budgets {
        Budgets {
            threads: self.threads(),
            dynamic_shared_bytes: self.dynamic_shared_bytes(),
            barrier_bytes: 8 * self.barriers(),
            tmem_columns: match self.engine {
                Engine::Tcgen05(_) => 512,
                Engine::Wgmma(_) | Engine::Decode(_) => 0,
            },
        }
    }

    fn params(&self) -> ParamLayout {
        match self.family() {
            Family::Paged => PARAMS,
            Family::Decode => DECODE_PARAMS,
        }
    }

    fn required_opcodes(&self) -> &'static [&'static str] {
        match self.engine {
            Engine::Tcgen05(_) => &["UTCQMMA", "LDTM", "STTM", "UTMALDG", "SYNCS"],
            Engine::Wgmma(_) => &["QGMMA", "UTMALDG", "SYNCS"],
            Engine::Decode(_) => &["LDG.E", "HMMA"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_those_of_the_shared_maps() {
        let k2 = Nvfp4Context { packed_stages: 2, ..Nvfp4Context::TCGEN05 };
        assert_eq!((k2.barriers(), k2.dynamic_shared_bytes()), (39, 104_448));
        let k8 = Nvfp4Context::TCGEN05;
        assert_eq!((k8.barriers(), k8.dynamic_shared_bytes()), (51, 159_744));
        assert_eq!((Nvfp4Context::WGMMA.barriers(), Nvfp4Context::WGMMA.dynamic_shared_bytes()), (40, 228_352));
        let decode = [Nvfp4Context::DECODE, Nvfp4Context::DECODE_C16].map(|s| (s.barriers(), s.dynamic_shared_bytes()));
        assert_eq!(decode, [(1, 40_464), (1, 78_864)]);
    }

    #[test]
    fn every_pack_occurs_unsplit_and_split_and_fits_its_rows() {
        let all = every_pack(Nvfp4Context::TCGEN05, Nvfp4Context::TCGEN05);
        let mut names: Vec<String> = all.iter().map(Schedule::variant).collect();
        assert_eq!((names[6].as_str(), names[15].as_str()), ("paged_k8_g8", "paged_k8_g8_split"));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 18);
        for schedule in all {
            assert!(schedule.tokens_per_half() * schedule.pack <= schedule.half_rows());
        }
    }

    #[test]
    fn register_budgets_fit_the_register_file() {
        let Engine::Tcgen05(engine) = Nvfp4Context::TCGEN05.engine else { unreachable!() };
        let groups = 2 * engine.softmax_registers + engine.correction_registers + engine.issue_registers;
        assert!(groups * 128 <= 65_536);
        for schedule in [Nvfp4Context::WGMMA, Nvfp4Context::WGMMA_SPLIT] {
            let Engine::Wgmma(engine) = schedule.engine else { unreachable!() };
            let groups = engine.key_registers + engine.value_registers + 2 * engine.consumer_registers;
            assert!(groups * 128 <= 65_536);
        }
    }
}
