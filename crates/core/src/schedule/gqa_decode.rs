//! Schedules of grouped-query decode attention.

use serde::{Deserialize, Serialize};

use super::{Budgets, Fact, Schedule};
use crate::params::{ParamField, ParamKind, ParamLayout};
use crate::{DType, Operation};

/// Which kernel of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// CUDA cores, keys straight to registers, one CTA per request and KV head.
    Short,
    /// Producer warp, ring of K/V tiles, tensor cores, split-KV.
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
    /// Warps that compute; the remaining one of `long` loads.
    pub consumer_warps: u32,
    /// Keys per tile of the ring (`long`), largest capacity (`short`).
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
    ],
};

impl GqaDecode {
    /// Bytes of the mbarriers: a full and an empty barrier per stage.
    pub const fn barrier_bytes(&self) -> u32 {
        self.stages * 2 * 8
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
        let tile_bytes = self.tile_keys * self.head_dim * self.element.dtype().bytes() as u32;
        Budgets {
            threads: self.threads,
            dynamic_shared_bytes: self.stages * tile_bytes + self.barrier_bytes(),
            barrier_bytes: self.barrier_bytes(),
            tmem_columns: 0,
        }
    }

    fn params(&self) -> ParamLayout {
        PARAMS
    }

    fn required_opcodes(&self) -> &'static [&'static str] {
        match self.family {
            Family::Short => &["LDG.E.128"],
            Family::Long => &["UBLKCP", "SYNCS"],
        }
    }
}

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
}

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
