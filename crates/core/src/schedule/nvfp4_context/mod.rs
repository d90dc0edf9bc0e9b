//! Schedules of NVFP4 paged-context attention.

mod engine;
mod pages;
mod params;
mod tables;

use serde::Serialize;

use super::{Budgets, Fact, Schedule, split_merge};
use crate::Operation;
use crate::params::ParamLayout;

pub use engine::*;
pub use pages::*;
pub use params::*;
pub use tables::*;

/// Elements of a head.
pub const HEAD_DIM: u32 = 128;
/// Tokens of a page.
pub const PAGE_TOKENS: u32 = 16;
/// Elements that share a scale factor.
pub const SCALE_GROUP: u32 = 16;
/// Keys of a block.
pub const BLOCK_KEYS: u32 = 128;
/// Halves of a tile of query rows, where the schedule does not say otherwise.
const HALVES: u32 = 2;
/// Most CTAs that may share a tile's keys.
pub const MAX_SPLITS: u32 = 64;
/// Bytes of a block of K or V of one head, packed with its scales.
pub const PACKED_BYTES: u32 = BLOCK_KEYS * (HEAD_DIM / 2 + HEAD_DIM / SCALE_GROUP);
/// Bytes of a block of K or V of one head as E4M3.
pub const TILE_BYTES: u32 = BLOCK_KEYS * HEAD_DIM;

/// One compiled variant of NVFP4 paged-context attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Nvfp4Context {
    /// Name of the schedule, without pack and split: `paged_k8`.
    pub name: &'static str,
    /// Kernel.
    pub engine: Engine,
    /// Query heads of a row group: heads that share a KV head and are packed into one tile. Decode takes whole groups
    /// of any size and has 1 here.
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

/// Facts that route tables may bound.
pub mod facts {
    use crate::route::FactName;

    /// Query rows of a request and KV head: tokens of the longest request times heads of the group.
    pub const QUERY_ROWS: FactName = "query_rows";
    /// The same of all requests and KV heads, as long as the longest.
    pub const ALL_ROWS: FactName = "all_rows";
    /// KV heads.
    pub const KV_HEADS: FactName = "kv_heads";
    /// Bound of a request's keys.
    pub const MAX_KEYS: FactName = "max_keys";
    /// Bytes of the whole cache as expanded tiles, which [`super::Family::Expanded`] takes as workspace.
    pub const EXPANDED_BYTES: FactName = "expanded_bytes";
}

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
        engine: Engine::Wgmma(Wgmma {
            cluster: 1,
            key_registers: 64,
            value_registers: 64,
            consumer_registers: 192,
            take_turns: false,
        }),
        pack: 1,
        split: false,
        packed_stages: 7,
        expanded_stages: 2,
        dequantise: Dequantise::Table,
        code_reads: CodeReads::PerChunk,
    };

    /// The Hopper schedule of split tiles: their producers keep a few more values.
    pub const WGMMA_SPLIT: Nvfp4Context = Nvfp4Context {
        engine: Engine::Wgmma(Wgmma {
            cluster: 1,
            key_registers: 72,
            value_registers: 72,
            consumer_registers: 184,
            take_turns: false,
        }),
        ..Nvfp4Context::WGMMA
    };

    /// Two CTAs that share a tile of four halves: each expands every other block and copies it to the other.
    pub const WGMMA_PAIR: Nvfp4Context = Nvfp4Context {
        name: "paired_k3",
        engine: Engine::Wgmma(Wgmma {
            cluster: 2,
            key_registers: 88,
            value_registers: 88,
            consumer_registers: 168,
            take_turns: true,
        }),
        packed_stages: 3,
        expanded_stages: 4,
        ..Nvfp4Context::WGMMA
    };

    /// Up to 8 query rows.
    pub const DECODE: Nvfp4Context = Nvfp4Context {
        name: "decode_c8",
        engine: Engine::Decode(Decode { columns: 8, warps: 8, page_slots: 2, min_ctas_per_sm: 2, pdl: true }),
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
        engine: Engine::Decode(Decode { columns: 16, warps: 8, page_slots: 2, min_ctas_per_sm: 1, pdl: true }),
        ..Nvfp4Context::DECODE
    };

    /// Attention over expanded tiles.
    pub const EXPANDED: Nvfp4Context = Nvfp4Context {
        name: "expanded_k6",
        engine: Engine::Expanded(Expanded {
            query_halves: 2,
            load_registers: 24,
            consumer_registers: 240,
            take_turns: true,
        }),
        pack: 1,
        split: false,
        packed_stages: 0,
        expanded_stages: 6,
        dequantise: Dequantise::Table,
        code_reads: CodeReads::PerChunk,
    };

    /// The same with a third half in every CTA, in fewer registers and a ring that is one tile shorter.
    pub const EXPANDED_THREE: Nvfp4Context = Nvfp4Context {
        name: "expanded_h3_k5",
        engine: Engine::Expanded(Expanded {
            query_halves: 3,
            load_registers: 24,
            consumer_registers: 160,
            take_turns: true,
        }),
        expanded_stages: 5,
        ..Nvfp4Context::EXPANDED
    };

    /// Expands the tiles of both.
    pub const EXPAND: Nvfp4Context = Nvfp4Context {
        name: "dequantise",
        engine: Engine::Expand(Expand { min_ctas_per_sm: 4 }),
        packed_stages: 1,
        expanded_stages: 1,
        ..Nvfp4Context::EXPANDED
    };

    /// Merges the results of split tiles that other launches left.
    pub const MERGE: Nvfp4Context = Nvfp4Context {
        name: "merge",
        engine: Engine::Merge,
        packed_stages: 0,
        expanded_stages: 0,
        ..Nvfp4Context::WGMMA
    };

    /// How the kernel works.
    pub const fn family(&self) -> Family {
        match self.engine {
            Engine::Tcgen05(_) | Engine::Wgmma(_) | Engine::Merge => Family::Paged,
            Engine::Decode(_) => Family::Decode,
            Engine::Expanded(_) | Engine::Expand(_) => Family::Expanded,
        }
    }

    /// Query rows of half a tile; all rows of a decode kernel; none where nothing attends.
    pub const fn half_rows(&self) -> u32 {
        match self.engine {
            Engine::Tcgen05(_) => 128,
            Engine::Wgmma(_) | Engine::Expanded(_) => 64,
            Engine::Decode(decode) => decode.columns,
            Engine::Expand(_) | Engine::Merge => 0,
        }
    }

    /// Whether another launch merges the results of split tiles. Where none does, the last CTA of a tile does.
    pub const fn merges_by_launch(&self) -> bool {
        matches!(self.engine, Engine::Wgmma(_) | Engine::Expanded(_))
    }

    /// Query tokens of half a tile; rows beyond `pack` times as many are dead.
    pub const fn tokens_per_half(&self) -> u32 {
        self.half_rows() / self.pack
    }

    /// CTAs that share a tile.
    pub const fn cluster(&self) -> u32 {
        match self.engine {
            Engine::Wgmma(wgmma) => wgmma.cluster,
            _ => 1,
        }
    }

    /// Halves of a tile in each CTA, a warpgroup each.
    pub const fn query_halves(&self) -> u32 {
        match self.engine {
            Engine::Expanded(expanded) => expanded.query_halves,
            _ => HALVES,
        }
    }

    /// Query tokens of a tile.
    pub const fn tile_tokens(&self) -> u32 {
        self.cluster() * self.query_halves() * self.tokens_per_half()
    }

    /// Threads of a CTA: whole warpgroups, or decode's warps.
    pub const fn threads(&self) -> u32 {
        match self.engine {
            Engine::Tcgen05(_) | Engine::Wgmma(_) => 512,
            Engine::Decode(decode) => 32 * decode.warps,
            Engine::Expanded(expanded) => 128 * (1 + expanded.query_halves),
            Engine::Expand(_) | Engine::Merge => 256,
        }
    }

    /// Rings of each kind: one for K and V in turn, or one each.
    const fn rings(&self) -> u32 {
        match self.engine {
            Engine::Tcgen05(_) => 1,
            Engine::Wgmma(_) | Engine::Expanded(_) | Engine::Expand(_) => 2,
            Engine::Decode(_) | Engine::Merge => 0,
        }
    }

    /// Number of mbarriers. A ring has two per slot.
    ///
    /// tcgen05: rings of packed tiles, expanded tiles and 6 slots of page ids; six pairs between the roles of the two
    /// halves (queries, scores, weights twice, rescale slot twice, turns, outputs: sixteen) and one for the queries'
    /// release. wgmma and expanded: rings of packed K and V, expanded K and V, and two tiles of queries. decode: that
    /// of the merge. expand: one for each of K and V. merge: none.
    pub const fn barriers(&self) -> u32 {
        let rings = self.rings() * (self.packed_stages + self.expanded_stages);
        match self.engine {
            Engine::Tcgen05(_) => 2 * (rings + 6) + 8 * HALVES + 1,
            Engine::Wgmma(_) | Engine::Expanded(_) => 2 * (rings + 2),
            Engine::Expand(_) => 2,
            Engine::Merge => 0,
            Engine::Decode(_) => split_merge::BARRIER_BYTES / 8,
        }
    }

    /// Bytes of dynamic shared memory of a CTA: barriers and scalars, queries, expanded ring, packed ring; of decode
    /// the queries, packed pages, the merge and the eight products of each scale byte; of merge the weights of each
    /// row's splits.
    pub const fn dynamic_shared_bytes(&self) -> u32 {
        let (head, q_tiles) = match self.engine {
            Engine::Tcgen05(_) => (4096, 1),
            Engine::Wgmma(_) | Engine::Expanded(_) => (1024, 2),
            Engine::Expand(_) => (128, 0),
            Engine::Merge => return self.threads() / 32 * MAX_SPLITS * 4,
            Engine::Decode(Decode { columns, warps, page_slots, .. }) => {
                let pages = warps * page_slots * PAGE_TOKENS * (HEAD_DIM + 2 * HEAD_DIM / SCALE_GROUP);
                let queries = columns.next_multiple_of(8) * HEAD_DIM;
                let merge = split_merge::shared_bytes(warps, columns, HEAD_DIM);
                return (pages + queries + merge + 256 * 8).next_multiple_of(1024);
            }
        };
        let queries = q_tiles * self.query_halves() * self.half_rows() * HEAD_DIM;
        let expanded = self.rings() * self.expanded_stages * TILE_BYTES;
        let packed = self.rings() * self.packed_stages * PACKED_BYTES;
        head + queries + expanded + packed
    }
}

impl Schedule for Nvfp4Context {
    fn operation(&self) -> Operation {
        Operation::Nvfp4Context
    }

    fn variant(&self) -> String {
        if let Engine::Decode(_) | Engine::Expand(_) | Engine::Merge = self.engine {
            return self.name.to_owned();
        }
        format!("{}_g{}{}", self.name, self.pack, if self.split { "_split" } else { "" })
    }

    fn source(&self) -> (&'static str, &'static str) {
        match self.engine {
            Engine::Tcgen05(_) => ("nvfp4_context/tcgen05.cu", "nvfp4_context_tcgen05"),
            Engine::Wgmma(_) => ("nvfp4_context/wgmma.cu", "nvfp4_context_wgmma"),
            Engine::Decode(_) => ("nvfp4_context/decode.cu", "nvfp4_context_decode"),
            Engine::Expanded(_) => ("nvfp4_context/expanded.cu", "nvfp4_context_expanded"),
            Engine::Expand(_) => ("nvfp4_context/dequantise.cu", "nvfp4_context_dequantise"),
            Engine::Merge => ("nvfp4_context/merge.cu", "nvfp4_context_merge"),
        }
    }

    fn facts(&self) -> Vec<Fact> {
        if let Engine::Decode(decode) = self.engine {
            return vec![
                Fact::int("columns", decode.columns),
                Fact::int("warps", decode.warps),
                Fact::int("page_slots", decode.page_slots),
                Fact::int("min_ctas_per_sm", decode.min_ctas_per_sm),
                Fact::bool("pdl", decode.pdl),
            ];
        }
        if let Engine::Merge = self.engine {
            return Vec::new();
        }
        let mut facts = vec![
            Fact::int("pack", self.pack),
            Fact::bool("split", self.split),
            Fact::int("packed_stages", self.packed_stages),
            Fact::int("expanded_stages", self.expanded_stages),
            self.dequantise.fact(),
            self.code_reads.fact(),
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
                Fact::int("cluster", engine.cluster),
                Fact::int("query_halves", self.query_halves()),
                Fact::int("key_registers", engine.key_registers),
                Fact::int("value_registers", engine.value_registers),
                Fact::int("consumer_registers", engine.consumer_registers),
                Fact::bool("take_turns", engine.take_turns),
            ]),
            Engine::Expanded(engine) => facts.extend([
                Fact::int("cluster", self.cluster()),
                Fact::int("query_halves", engine.query_halves),
                Fact::int("load_registers", engine.load_registers),
                Fact::int("consumer_registers", engine.consumer_registers),
                Fact::bool("take_turns", engine.take_turns),
            ]),
            Engine::Expand(engine) => facts.push(Fact::int("min_ctas_per_sm", engine.min_ctas_per_sm)),
            Engine::Decode(_) | Engine::Merge => {}
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
                _ => 0,
            },
        }
    }

    fn params(&self) -> ParamLayout {
        match self.engine {
            Engine::Tcgen05(_) | Engine::Wgmma(_) => PARAMS,
            Engine::Decode(_) => DECODE_PARAMS,
            Engine::Expanded(_) => EXPANDED_PARAMS,
            Engine::Expand(_) => DEQUANTISE_PARAMS,
            Engine::Merge => MERGE_PARAMS,
        }
    }

    fn required_opcodes(&self) -> &'static [&'static str] {
        match self.engine {
            Engine::Tcgen05(_) => &["UTCQMMA", "LDTM", "STTM", "UTMALDG", "SYNCS"],
            Engine::Wgmma(_) => &["QGMMA", "UTMALDG", "SYNCS"],
            Engine::Decode(_) => &["LDGSTS", "QGMMA", "HMMA"],
            Engine::Expanded(_) => &["QGMMA", "UBLKCP", "SYNCS"],
            Engine::Expand(_) => &["UTMALDG", "UBLKCP", "SYNCS"],
            Engine::Merge => &["MUFU"],
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
        let pair = Nvfp4Context::WGMMA_PAIR;
        assert_eq!((pair.barriers(), pair.dynamic_shared_bytes(), pair.tile_tokens()), (32, 220_160, 256));
        let expanded = Nvfp4Context::EXPANDED;
        assert_eq!((expanded.barriers(), expanded.dynamic_shared_bytes()), (28, 230_400));
        let three = Nvfp4Context::EXPANDED_THREE;
        assert_eq!((three.barriers(), three.dynamic_shared_bytes()), (24, 214_016));
        assert_eq!((Nvfp4Context::EXPAND.barriers(), Nvfp4Context::EXPAND.dynamic_shared_bytes()), (2, 51_328));
        assert_eq!((Nvfp4Context::MERGE.barriers(), Nvfp4Context::MERGE.dynamic_shared_bytes()), (0, 2_048));
        let decode = [Nvfp4Context::DECODE, Nvfp4Context::DECODE_C16].map(|s| (s.barriers(), s.dynamic_shared_bytes()));
        assert_eq!(decode, [(1, 78_848), (1, 118_784)]);
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
        for schedule in [Nvfp4Context::WGMMA, Nvfp4Context::WGMMA_SPLIT, Nvfp4Context::WGMMA_PAIR] {
            let Engine::Wgmma(engine) = schedule.engine else { unreachable!() };
            let groups = engine.key_registers + engine.value_registers + 2 * engine.consumer_registers;
            assert!(groups * 128 <= 65_536);
        }
        for schedule in [Nvfp4Context::EXPANDED, Nvfp4Context::EXPANDED_THREE] {
            let Engine::Expanded(engine) = schedule.engine else { unreachable!() };
            let groups = engine.load_registers + engine.query_halves * engine.consumer_registers;
            assert!(groups * 128 <= 65_536);
        }
    }
}
