//! How kernels work: what differs between them.

use serde::{Deserialize, Serialize};

use crate::schedule::Fact;

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

impl Dequantise {
    /// As a fact of a kernel.
    pub fn fact(self) -> Fact {
        let value = match self {
            Dequantise::PackedMultiply => "packed_multiply",
            Dequantise::F16 => "f16",
            Dequantise::Table => "table",
        };
        Fact::choice("dequantise", "Dequantise", value)
    }
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

impl CodeReads {
    /// As a fact of a kernel.
    pub fn fact(self) -> Fact {
        let value = match self {
            CodeReads::PerChunk => "per_chunk",
            CodeReads::WholeRow => "whole_row",
        };
        Fact::choice("code_reads", "CodeReads", value)
    }
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
    /// CTAs that share a tile, each with halves of its own, and the expanded blocks that it sees.
    pub cluster: u32,
    /// Registers of a thread that loads and expands K.
    pub key_registers: u32,
    /// Registers of a thread that loads and expands V.
    pub value_registers: u32,
    /// Registers of a thread that computes.
    pub consumer_registers: u32,
    /// Whether the halves make their weights one at a time.
    pub take_turns: bool,
}

/// What only attention over expanded tiles has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Expanded {
    /// Halves of a tile of query rows.
    pub query_halves: u32,
    /// Registers of a thread of the warpgroup that loads.
    pub load_registers: u32,
    /// Registers of a thread that computes.
    pub consumer_registers: u32,
    /// Whether the halves make their weights one at a time.
    pub take_turns: bool,
}

/// What only the kernel that expands tiles has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Expand {
    /// CTAs that must fit one SM at once (register budget).
    pub min_ctas_per_sm: u32,
}

/// What only the decode kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Decode {
    /// Query rows of a request and KV head, tokens times heads of the group, that a CTA computes.
    pub columns: u32,
    /// Warps, each with pages of its own.
    pub warps: u32,
    /// Pages of each warp's ring in shared memory.
    pub page_slots: u32,
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
    /// Few query rows; every warp streams pages of its own.
    Decode,
    /// Many query rows: a first launch expands the cache into the workspace, the second brings tiles from there.
    Expanded,
}

/// The kernel, with the facts that are its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// Tensor memory, 16 warps, halves of 128 rows.
    Tcgen05(Tcgen05),
    /// Warpgroup products, 16 warps, halves of 64 rows.
    Wgmma(Wgmma),
    /// Scores by warpgroup products, outputs by warp products in f16; few query rows.
    Decode(Decode),
    /// Warpgroup products over expanded tiles, halves of 64 rows.
    Expanded(Expanded),
    /// No attention: expands tiles for the former.
    Expand(Expand),
    /// No attention: merges what the CTAs that share a tile's keys leave. A warp for each row of the output.
    Merge,
}
