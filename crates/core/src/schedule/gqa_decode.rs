//! Schedules of grouped-query decode attention.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{Budgets, Fact, Schedule, split_merge};
use crate::params::{ParamField, ParamKind, ParamLayout};
use crate::route::{Bound, Route};
use crate::{DType, Operation};

/// Which kernel of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// One tile per CTA, keys straight to registers, loads issued before the length is known.
    Short,
    /// Tiles streamed through registers by every warp on its own.
    Stream,
    /// Producer warp and a ring of K/V tiles in shared memory.
    Long,
}

/// Element type of queries, cache and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Element {
    /// binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl Element {
    /// The tensor element type.
    pub const fn dtype(self) -> DType {
        match self {
            Element::F16 => DType::F16,
            Element::Bf16 => DType::Bf16,
        }
    }
}

/// One compiled variant of grouped-query decode attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GqaDecode {
    /// Name of the schedule, without the shape facts: `short`, `long_s6`.
    pub name: &'static str,
    /// Kernel.
    pub family: Family,
    /// Element type.
    pub element: Element,
    /// Query heads per KV head.
    pub group_size: u32,
    /// Head dimension in elements.
    pub head_dim: u32,
    /// Threads of a CTA.
    pub threads: u32,
    /// Warps that compute; `long` has one more, which loads.
    pub consumer_warps: u32,
    /// Keys per tile; split `s` of `n` has tiles `s`, `s + n`, ...; `short` has one.
    pub tile_keys: u32,
    /// Tiles in the K/V ring; 0 without a ring.
    pub stages: u32,
    /// Whether the kernel starts under programmatic dependent launch.
    pub pdl: bool,
    /// CTAs that must fit one SM at once (register budget).
    pub min_ctas_per_sm: u32,
}

/// Fields of the kernels' parameter block. Shapes: see `kernels/gqa_decode/params.cuh`.
pub const PARAMS: ParamLayout = ParamLayout {
    fields: &[
        ParamField { name: "q", kind: ParamKind::Pointer },
        ParamField { name: "kv", kind: ParamKind::Pointer },
        ParamField { name: "sequence_lengths", kind: ParamKind::Pointer },
        ParamField { name: "out", kind: ParamKind::Pointer },
        ParamField { name: "lse", kind: ParamKind::Pointer },
        ParamField { name: "partial_out", kind: ParamKind::Pointer },
        ParamField { name: "partial_max", kind: ParamKind::Pointer },
        ParamField { name: "partial_sum", kind: ParamKind::Pointer },
        ParamField { name: "completed", kind: ParamKind::Pointer },
        ParamField { name: "capacity", kind: ParamKind::U64 },
        ParamField { name: "kv_heads", kind: ParamKind::U32 },
        ParamField { name: "splits", kind: ParamKind::U32 },
        ParamField { name: "scale_log2", kind: ParamKind::F32 },
        ParamField { name: "early_tiles", kind: ParamKind::U32 },
    ],
};

/// A group size, a head dimension and an element type that programs are compiled for.
pub type Shape = (u32, u32, Element);

/// Every shape that an architecture with the full matrix serves; the first is the seed's.
pub const SHAPES: [Shape; 12] = [
    (4, 128, Element::F16),
    (1, 128, Element::F16),
    (8, 128, Element::F16),
    (4, 64, Element::F16),
    (1, 64, Element::F16),
    (8, 64, Element::F16),
    (4, 128, Element::Bf16),
    (1, 128, Element::Bf16),
    (8, 128, Element::Bf16),
    (4, 64, Element::Bf16),
    (1, 64, Element::Bf16),
    (8, 64, Element::Bf16),
];

/// Each of the schedules for each of [`SHAPES`]. `N` is `12 * B`; anything else fails to compile in a constant.
pub const fn every_shape<const B: usize, const N: usize>(schedules: [GqaDecode; B]) -> [GqaDecode; N] {
    assert!(N == B * SHAPES.len());
    let mut all = [schedules[0]; N];
    let mut i = 0;
    while i < N {
        let (group_size, head_dim, element) = SHAPES[i / B];
        all[i] = GqaDecode { group_size, head_dim, element, ..schedules[i % B] };
        i += 1;
    }
    all
}

impl GqaDecode {
    /// One 64-key tile per CTA: 16 keys for each of 4 warps. Seed's shape, as all of these; architectures change what
    /// they must.
    pub const SHORT: GqaDecode = GqaDecode {
        name: "short",
        family: Family::Short,
        element: Element::F16,
        group_size: 4,
        head_dim: 128,
        threads: 128,
        consumer_warps: 4,
        tile_keys: 64,
        stages: 0,
        pdl: true,
        min_ctas_per_sm: 1,
    };

    /// Ring of twelve 64-key tiles, 192 KiB: little work per CTA, everything in flight at once.
    pub const LONG_K64: GqaDecode =
        GqaDecode { name: "long_k64", family: Family::Long, threads: 160, stages: 12, ..GqaDecode::SHORT };

    /// Ring of six 128-key tiles, 192 KiB: half as many barriers per key.
    pub const LONG_K128: GqaDecode = GqaDecode { name: "long_k128", tile_keys: 128, stages: 6, ..GqaDecode::LONG_K64 };

    /// Eight warps on a ring of four 128-key tiles: where a row of some thousand keys has a CTA cluster to itself.
    pub const LONG_K128_W8: GqaDecode =
        GqaDecode { name: "long_k128_w8", threads: 288, consumer_warps: 8, stages: 4, ..GqaDecode::LONG_K128 };

    /// 8 warps with 16 keys each of a 128-key tile, through registers: 64 KiB in flight, the best rate of full DRAM.
    pub const STREAM: GqaDecode = GqaDecode {
        name: "stream",
        family: Family::Stream,
        threads: 256,
        consumer_warps: 8,
        tile_keys: 128,
        ..GqaDecode::SHORT
    };

    /// The same with 5 warps, of which an SM holds two CTAs: where rows come in waves, one begins while another ends.
    pub const STREAM_W5: GqaDecode =
        GqaDecode { name: "stream_w5", threads: 160, consumer_warps: 5, tile_keys: 80, ..GqaDecode::STREAM };

    /// Whether this schedule serves a group size, head dimension and element type.
    pub fn serves(&self, group_size: u64, head_dim: u64, dtype: DType) -> bool {
        u64::from(self.group_size) == group_size
            && u64::from(self.head_dim) == head_dim
            && self.element.dtype() == dtype
    }

    /// Most keys of capacity that `splits` splits read; `None` without a limit.
    pub fn max_capacity(&self, splits: u32) -> Option<u64> {
        match self.family {
            Family::Short => Some(u64::from(self.tile_keys) * u64::from(splits)),
            Family::Stream | Family::Long => None,
        }
    }

    /// Bytes of the mbarriers: a full and an empty barrier per stage, and one of the cluster merge.
    pub const fn barrier_bytes(&self) -> u32 {
        self.stages * 2 * 8 + split_merge::BARRIER_BYTES
    }

    /// Bytes of one tile of K or V in the ring: eight strips, skewed by up to 34 vectors of 16 bytes against
    /// bank conflicts, 128-byte aligned.
    pub const fn tile_bytes(&self) -> u32 {
        let keys = self.tile_keys * self.head_dim * self.element.dtype().bytes() as u32;
        (keys + 34 * 16).next_multiple_of(128)
    }

    const fn merge_bytes(&self) -> u32 {
        split_merge::shared_bytes(self.consumer_warps, self.group_size, self.head_dim)
    }

    /// Bytes of dynamic shared memory of a CTA: ring, barriers, merge. The kernel asserts the same sum.
    pub const fn dynamic_shared_bytes(&self) -> u32 {
        match self.family {
            Family::Short | Family::Stream => self.merge_bytes(),
            Family::Long => {
                let ring = (self.stages * (self.tile_bytes() + 2 * 8)).next_multiple_of(128);
                (ring + self.merge_bytes()).next_multiple_of(128)
            }
        }
    }

    /// Keys of a request of `length` keys that split `split` of `splits` reads, tile by tile. The kernels divide the
    /// same way.
    pub fn key_ranges(&self, split: u32, splits: u32, length: u64) -> impl Iterator<Item = Range<u64>> {
        let tile = u64::from(self.tile_keys);
        let of_request = 0..length.div_ceil(tile);
        let own = of_request.skip(split as usize).step_by(splits.max(1) as usize);
        own.map(move |index| index * tile..length.min((index + 1) * tile))
    }
}

impl Schedule for GqaDecode {
    fn operation(&self) -> Operation {
        Operation::GqaDecode
    }

    fn variant(&self) -> String {
        let element = self.element.dtype();
        format!("{}_g{}_d{}_{element}", self.name, self.group_size, self.head_dim)
    }

    fn source(&self) -> (&'static str, &'static str) {
        match self.family {
            Family::Short => ("gqa_decode/short.cu", "gqa_decode_short"),
            Family::Stream => ("gqa_decode/stream.cu", "gqa_decode_stream"),
            Family::Long => ("gqa_decode/long.cu", "gqa_decode_long"),
        }
    }

    fn facts(&self) -> Vec<Fact> {
        let element = match self.element {
            Element::F16 => "f16",
            Element::Bf16 => "bf16",
        };
        vec![
            Fact::choice("element", "Element", element),
            Fact::int("group_size", self.group_size),
            Fact::int("head_dim", self.head_dim),
            Fact::int("threads", self.threads),
            Fact::int("consumer_warps", self.consumer_warps),
            Fact::int("tile_keys", self.tile_keys),
            Fact::int("stages", self.stages),
            Fact::bool("pdl", self.pdl),
            Fact::int("min_ctas_per_sm", self.min_ctas_per_sm),
        ]
    }

    fn budgets(&self) -> Budgets {
        Budgets {
            threads: self.threads,
            dynamic_shared_bytes: self.dynamic_shared_bytes(),
            barrier_bytes: self.barrier_bytes(),
            tmem_columns: 0,
        }
    }

    fn params(&self) -> ParamLayout {
        PARAMS
    }

    fn required_opcodes(&self) -> &'static [&'static str] {
        match self.family {
            Family::Short | Family::Stream => &["LDG.E", "HMMA", "CCTL.E.PF2"],
            Family::Long => &["UBLKCP", "SYNCS", "HMMA", "CCTL.E.PF2"],
        }
    }
}

/// Facts that route tables may bound.
pub mod facts {
    use crate::route::FactName;

    /// Requests.
    pub const BATCH: FactName = "batch";
    /// Key slots per request.
    pub const CAPACITY: FactName = "capacity";
    /// KV heads.
    pub const KV_HEADS: FactName = "kv_heads";
    /// (Request, KV head) pairs: `batch * kv_heads`.
    pub const ROWS: FactName = "rows";
    /// Streaming multiprocessors of the device.
    pub const SM_COUNT: FactName = "sm_count";
    /// Split count that the caller asks for; 0 when the table decides.
    pub const REQUESTED_SPLITS: FactName = "requested_splits";
}

/// Split counts that a caller may ask for.
pub const REQUESTABLE_SPLITS: [u32; 6] = [1, 2, 4, 8, 10, 16];

/// What a route chooses: a schedule by name, and how the keys of a request are split.
///
/// The split count is `cluster * global_splits`. Both come from batch, capacity and SM count only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Name of the schedule, [`GqaDecode::name`].
    pub schedule: &'static str,
    /// CTAs of a cluster that share a request and KV head and merge through distributed shared memory.
    pub cluster: u32,
    /// Splits that merge through global partials.
    pub splits: Splits,
    /// Tiles of each split that the L2 is asked for while earlier grids still run, up to [`MOST_EARLY_TILES`].
    pub early_tiles: u32,
}

/// A warp asks for K and V of so many tiles, for the queries and for the length.
pub const MOST_EARLY_TILES: u32 = 15;

/// How many global splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Splits {
    /// This many.
    Fixed(u32),
    /// Enough for `ctas_per_sm` CTAs on every SM, but no split shorter than `min_keys`, and at most `max`.
    Fill {
        /// CTAs wanted per SM.
        ctas_per_sm: u32,
        /// Fewest keys of capacity per split.
        min_keys: u32,
        /// Most splits.
        max: u32,
    },
}

/// Routes of devices with a hundred SMs and more, as measured on an H200 with 132.
///
/// Above 132 rows come waves: `stream` where they fill the device, more splits where the last would be nearly empty,
/// `stream_w5` where there are four and more of up to 2048 keys. Below, clusters share a row and merge without global
/// memory while rows are short, and splits that fill the device read long ones. A row whose schedule is not compiled
/// for a shape is passed over. Record: `docs/measurements/`.
pub const LARGE_DEVICE_ROUTES: &[Route<Choice>] = {
    const SHORT: &str = GqaDecode::SHORT.name;
    const K64: &str = GqaDecode::LONG_K64.name;
    const K128: &str = GqaDecode::LONG_K128.name;
    const K128_W8: &str = GqaDecode::LONG_K128_W8.name;
    const STREAM: &str = GqaDecode::STREAM.name;
    const STREAM_W5: &str = GqaDecode::STREAM_W5.name;
    const ONE: Splits = Splits::Fixed(1);
    const FILL: Splits = Splits::Fill { ctas_per_sm: 1, min_keys: 128, max: 16 };
    use facts::{CAPACITY, REQUESTED_SPLITS, ROWS};

    &[
        row(&[Bound::from(REQUESTED_SPLITS, 1)], K128, 1, ONE),
        row(&[Bound::up_to(CAPACITY, 64), Bound::within(ROWS, 17, 132)], K64, 1, ONE),
        row(&[Bound::up_to(CAPACITY, 64)], SHORT, 1, ONE),
        row(&[Bound::from(ROWS, 512), Bound::within(CAPACITY, 256, 2048)], STREAM_W5, 1, ONE),
        row(&[Bound::within(ROWS, 133, 170), Bound::from(CAPACITY, 1024)], STREAM_W5, 1, Splits::Fixed(3)),
        row(&[Bound::within(ROWS, 171, 210), Bound::from(CAPACITY, 1024)], STREAM, 2, ONE),
        row(&[Bound::from(ROWS, 128), Bound::from(CAPACITY, 512)], STREAM, 1, ONE),
        row(&[Bound::within(ROWS, 91, 127), Bound::from(CAPACITY, 4096)], STREAM, 2, ONE),
        row(&[Bound::within(ROWS, 65, 90), Bound::from(CAPACITY, 2048)], K128, 2, ONE),
        row(&[Bound::within(ROWS, 65, 127), Bound::from(CAPACITY, 1024)], STREAM, 1, ONE),
        with_early_tiles(2, row(&[Bound::equal(ROWS, 64), Bound::from(CAPACITY, 2048)], STREAM, 2, ONE)),
        row(&[Bound::equal(ROWS, 64), Bound::from(CAPACITY, 512)], K128, 2, ONE),
        row(&[Bound::from(ROWS, 64)], K128, 1, ONE),
        row(&[Bound::from(ROWS, 45), Bound::from(CAPACITY, 16_384)], STREAM, 1, Splits::Fixed(4)),
        row(&[Bound::from(ROWS, 45), Bound::from(CAPACITY, 2048)], STREAM, 2, ONE),
        row(&[Bound::from(ROWS, 31), Bound::from(CAPACITY, 4096)], STREAM, 1, FILL),
        row(&[Bound::from(ROWS, 17), Bound::from(CAPACITY, 8192)], STREAM, 1, FILL),
        row(&[Bound::from(ROWS, 33), Bound::up_to(CAPACITY, 2047)], K64, 2, ONE),
        row(&[Bound::within(ROWS, 17, 30)], K64, 4, ONE),
        row(&[Bound::from(ROWS, 17)], K128, 2, ONE),
        row(&[Bound::from(ROWS, 9), Bound::from(CAPACITY, 6144)], STREAM, 1, FILL),
        row(&[Bound::from(ROWS, 9), Bound::from(CAPACITY, 2049)], K128, 1, Splits::Fixed(8)),
        row(&[Bound::from(ROWS, 9)], K64, 4, ONE),
        with_early_tiles(2, row(&[Bound::from(CAPACITY, 16_384)], STREAM, 2, FILL)),
        row(&[Bound::from(CAPACITY, 8193)], STREAM, 2, FILL),
        row(&[Bound::from(CAPACITY, 6657)], K128_W8, 8, ONE),
        row(&[Bound::from(CAPACITY, 5632)], STREAM, 2, FILL),
        row(&[Bound::from(CAPACITY, 2049)], K128, 1, Splits::Fixed(8)),
        row(&[Bound::from(CAPACITY, 129)], K64, 8, ONE),
        row(&[], K128, 1, ONE),
    ]
};

/// A row of a route table; one tile of each split is asked for early.
pub const fn row(when: &'static [Bound], schedule: &'static str, cluster: u32, splits: Splits) -> Route<Choice> {
    Route { when, then: Choice { schedule, cluster, splits, early_tiles: 1 } }
}

/// The row with another number of early tiles; more than [`MOST_EARLY_TILES`] fail to compile in a constant.
pub const fn with_early_tiles(early_tiles: u32, row: Route<Choice>) -> Route<Choice> {
    assert!(early_tiles <= MOST_EARLY_TILES);
    Route { then: Choice { early_tiles, ..row.then }, ..row }
}

impl Choice {
    /// How the keys are split, in words.
    pub fn details(&self) -> String {
        let splits = match self.splits {
            Splits::Fixed(splits) => format!("{splits} global splits"),
            Splits::Fill { ctas_per_sm, min_keys, max } => {
                format!("splits of at least {min_keys} keys, at most {max}, for {ctas_per_sm} CTAs per SM")
            }
        };
        format!("clusters of {}, {splits}, early tiles {}", self.cluster, self.early_tiles)
    }

    /// Global splits for `rows` (request, KV head) pairs of `capacity` keys on `sm_count` SMs.
    pub fn global_splits(&self, rows: u64, capacity: u64, sm_count: u32) -> u32 {
        match self.splits {
            Splits::Fixed(splits) => splits,
            Splits::Fill { ctas_per_sm, min_keys, max } => {
                let cluster = u64::from(self.cluster);
                let wanted = u64::from(sm_count) * u64::from(ctas_per_sm) / rows.saturating_mul(cluster).max(1);
                let longest = capacity / (u64::from(min_keys) * cluster).max(1);
                // Bounded by `max`, so it fits.
                wanted.min(longest).min(u64::from(max)).max(1) as u32
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_occurs_once_per_schedule() {
        let all: [GqaDecode; 24] = every_shape([GqaDecode::SHORT, GqaDecode::LONG_K64]);
        let mut names: Vec<String> = all.iter().map(Schedule::variant).collect();
        assert_eq!((names[0].as_str(), names[1].as_str()), ("short_g4_d128_f16", "long_k64_g4_d128_f16"));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 24);
    }

    #[test]
    fn splits_cover_every_key_once() {
        for (splits, length) in [(1, 0), (1, 1), (2, 128), (3, 257), (16, 2000), (16, 2048), (10, 130), (4, 5000)] {
            let mut ranges: Vec<_> =
                (0..splits).flat_map(|split| GqaDecode::STREAM.key_ranges(split, splits, length)).collect();
            ranges.sort_by_key(|range| range.start);
            let mut next = 0;
            for range in ranges {
                assert_eq!(range.start, next, "{splits} splits of {length} keys");
                next = range.end;
            }
            assert_eq!(next, length, "{splits} splits");
        }
        let second: Vec<_> = GqaDecode::STREAM.key_ranges(1, 2, 500).collect();
        assert_eq!(second, [128..256, 384..500], "tiles go round the splits");
    }

    #[test]
    fn filled_splits_use_one_wave_and_keep_splits_long() {
        let fill = |cluster, ctas_per_sm, min_keys, max| Choice {
            schedule: "long",
            cluster,
            splits: Splits::Fill { ctas_per_sm, min_keys, max },
            early_tiles: 1,
        };
        assert_eq!(fill(1, 1, 64, 64).global_splits(8, 131_072, 132), 16, "132 / 8 rows");
        assert_eq!(fill(1, 2, 64, 64).global_splits(8, 131_072, 132), 33);
        assert_eq!(fill(1, 1, 64, 64).global_splits(8, 256, 132), 4, "256 keys make four splits of 64");
        assert_eq!(fill(4, 1, 64, 64).global_splits(8, 131_072, 132), 4, "four CTAs per cluster already");
        assert_eq!(fill(1, 1, 64, 10).global_splits(8, 131_072, 132), 10);
        assert_eq!(fill(1, 1, 64, 10).global_splits(512, 131_072, 132), 1, "never none");
    }
}
