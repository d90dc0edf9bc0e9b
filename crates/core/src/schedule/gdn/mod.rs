//! Schedules of chunked Gated DeltaNet training.
//!
//! A call is a sequence of stages, one program each. All stages share the tables of this module: [`Chunk`], [`Segment`]
//! and [`Sequence`] are built on the host and uploaded, or by the stage `tables` from device offsets.
//!
//! | module | stage |
//! |---|---|
//! | [`prepare`] | row norms, gate prefix, inverse of a chunk |
//! | [`scan`] | forward over the chunks of a segment: output, states; also segments from zero and from the identity |
//! | [`compose`] | start states of the segments of a sequence, either direction |
//! | [`adjoint`] | backward over the chunks of a segment |
//! | [`tail`] | gradients of a chunk |
//! | [`tables`] | the tables from offsets on the device |
//! | [`copy`] | a tensor that cannot be read in place, made contiguous |
//!
//! [`wgmma`] has what is particular to the scans on Hopper's warpgroup products, [`wgmma_tail`] to the tail on them,
//! [`tcgen05`] to the scans on tensor memory.

pub mod adjoint;
pub mod compose;
pub mod copy;
pub mod prepare;
pub mod scan;
pub mod tables;
pub mod tail;
pub mod tcgen05;
pub mod wgmma;
pub mod wgmma_tail;

use serde::{Deserialize, Serialize};

use super::{Budgets, Fact, Schedule};
use crate::Operation;
use crate::params::{ParamField, ParamKind, ParamLayout};

/// Tokens of a chunk.
pub const CHUNK_TOKENS: u32 = 64;
/// Elements of a key, and of a value.
pub const HEAD_DIM: u32 = 128;

/// Rows of one chunk in the tables. Chunks never cross a sequence; a sequence's last one may be short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Chunk {
    /// Row of its first token in `q`, `k`, `v`, ...
    pub first_token: u32,
    /// Tokens, at most [`CHUNK_TOKENS`]; 0 in a padding entry.
    pub tokens: u32,
    /// Sequence; -1 in a padding entry.
    pub sequence: i32,
    /// 0.
    pub reserved: u32,
}

/// Neighbouring chunks that one CTA scans. An empty sequence is one segment of no chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Segment {
    /// Index of its first chunk in the table of chunks.
    pub first_chunk: u32,
    /// Chunks.
    pub chunks: u32,
    /// Sequence; -1 in a padding entry.
    pub sequence: i32,
    /// Position among the segments of its sequence.
    pub index: u32,
}

/// The segments of one sequence: neighbours in the table of segments, in the order of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sequence {
    /// Index of its first segment.
    pub first_segment: u32,
    /// Segments, at least 1.
    pub segments: u32,
}

impl Chunk {
    /// Bytes of an entry.
    pub const BYTES: u64 = 16;

    /// A padding entry: every kernel passes over it.
    pub const PADDING: Chunk = Chunk { first_token: 0, tokens: 0, sequence: -1, reserved: 0 };

    /// The entry as the kernels read it.
    pub fn to_bytes(self) -> [u8; 16] {
        words([self.first_token, self.tokens, self.sequence as u32, self.reserved])
    }
}

impl Segment {
    /// Bytes of an entry.
    pub const BYTES: u64 = 16;

    /// A padding entry: every kernel passes over it.
    pub const PADDING: Segment = Segment { first_chunk: 0, chunks: 0, sequence: -1, index: 0 };

    /// The entry as the kernels read it.
    pub fn to_bytes(self) -> [u8; 16] {
        words([self.first_chunk, self.chunks, self.sequence as u32, self.index])
    }
}

impl Sequence {
    /// Bytes of an entry.
    pub const BYTES: u64 = 8;

    /// The entry as the kernels read it.
    pub fn to_bytes(self) -> [u8; 8] {
        let [low, high] = [self.first_segment.to_le_bytes(), self.segments.to_le_bytes()];
        [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]]
    }
}

fn words(words: [u32; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// What a program does in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Row norms, gate prefix, inverse.
    Prepare,
    /// Forward scan with output.
    Scan,
    /// Forward scan without output: states for a backward; on registers also what [`Stage::PreScan`] gives.
    States,
    /// A segment's map for [`Stage::Compose`].
    PreScan,
    /// Start states of segments.
    Compose,
    /// Backward scan.
    Adjoint,
    /// Gradients of a chunk.
    Tail,
    /// Tables from device offsets.
    Tables,
    /// A tensor that cannot be read in place, made contiguous.
    Copy,
}

/// How products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// `mma.sync` on registers; every architecture.
    Registers,
    /// Hopper's warpgroup products.
    Wgmma,
    /// Tensor memory.
    Tcgen05,
}

impl Engine {
    /// Name, as problems are pinned to it.
    pub const fn name(self) -> &'static str {
        match self {
            Engine::Registers => "registers",
            Engine::Wgmma => "wgmma",
            Engine::Tcgen05 => "tcgen05",
        }
    }
}

/// One compiled program of chunked Gated DeltaNet training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gdn {
    /// Name of the program: `prepare`, `scan_v64`.
    pub name: &'static str,
    /// What it does.
    pub stage: Stage,
    /// How.
    pub engine: Engine,
    /// Threads of a CTA.
    pub threads: u32,
    /// Value columns of a CTA where several CTAs share a head; [`HEAD_DIM`] where one has all.
    pub value_columns: u32,
    /// CTAs that must fit one SM at once (register budget).
    pub min_ctas_per_sm: u32,
}

impl Gdn {
    /// Inverse of a chunk for a value head: a warp.
    pub const PREPARE: Gdn = Gdn {
        name: "prepare",
        stage: Stage::Prepare,
        engine: Engine::Registers,
        threads: 32,
        value_columns: HEAD_DIM,
        min_ctas_per_sm: 15,
    };

    /// Tables from device offsets, by one CTA.
    pub const TABLES: Gdn = Gdn {
        name: "tables",
        stage: Stage::Tables,
        engine: Engine::Registers,
        threads: tables::THREADS,
        value_columns: HEAD_DIM,
        min_ctas_per_sm: 1,
    };

    /// Copies of a token's heads.
    pub const COPY: Gdn = Gdn {
        name: "copy",
        stage: Stage::Copy,
        engine: Engine::Registers,
        threads: 128,
        value_columns: HEAD_DIM,
        min_ctas_per_sm: 16,
    };

    /// Half a head per CTA, 16 value columns per warp.
    pub const SCAN_V64: Gdn = Gdn {
        name: "scan_v64",
        stage: Stage::Scan,
        engine: Engine::Registers,
        threads: 128,
        value_columns: 64,
        min_ctas_per_sm: 2,
    };

    /// A head per CTA: keys are loaded and multiplied with queries once, where heads fill the device.
    pub const SCAN_V128: Gdn =
        Gdn { name: "scan_v128", threads: 256, value_columns: 128, min_ctas_per_sm: 1, ..Gdn::SCAN_V64 };

    /// As [`Gdn::SCAN_V64`], without output.
    pub const STATES_V64: Gdn = Gdn { name: "states_v64", stage: Stage::States, ..Gdn::SCAN_V64 };

    /// 16 value columns per CTA, the rows of one product.
    pub const COMPOSE: Gdn = Gdn {
        name: "compose",
        stage: Stage::Compose,
        engine: Engine::Registers,
        threads: 128,
        value_columns: 16,
        min_ctas_per_sm: 2,
    };

    /// A head per CTA: 16 value columns for each of 8 warps, and 4 warps that load and make P.
    pub const ADJOINT_V128: Gdn = Gdn {
        name: "adjoint_v128",
        stage: Stage::Adjoint,
        engine: Engine::Registers,
        threads: 384,
        value_columns: HEAD_DIM,
        min_ctas_per_sm: 1,
    };

    /// Half a head per CTA.
    pub const ADJOINT_V64: Gdn = Gdn { name: "adjoint_v64", threads: 256, value_columns: 64, ..Gdn::ADJOINT_V128 };

    /// A quarter of a head per CTA, two CTAs per SM: where heads and segments do not fill the device.
    pub const ADJOINT_V32: Gdn =
        Gdn { name: "adjoint_v32", threads: 192, value_columns: 32, min_ctas_per_sm: 2, ..Gdn::ADJOINT_V128 };

    /// A chunk and a key head at a time: 8 warps on 4 blocks of rows by 2 of columns, and 4 warps that load.
    pub const TAIL: Gdn = Gdn {
        name: "tail",
        stage: Stage::Tail,
        engine: Engine::Registers,
        threads: 384,
        value_columns: HEAD_DIM,
        min_ctas_per_sm: 1,
    };

    /// CTAs that share the value columns of a head.
    pub const fn value_splits(&self) -> u32 {
        HEAD_DIM / self.value_columns
    }

    /// Bytes of dynamic shared memory of a CTA. The kernel asserts the same sum.
    pub const fn dynamic_shared_bytes(&self) -> u32 {
        match self.engine {
            Engine::Registers => {}
            Engine::Wgmma => return wgmma::shared_bytes(self),
            Engine::Tcgen05 => return tcgen05::shared_bytes(self),
        }
        match self.stage {
            Stage::Prepare => prepare::SHARED_BYTES,
            Stage::Scan | Stage::States | Stage::PreScan => scan::shared_bytes(self),
            Stage::Adjoint => adjoint::shared_bytes(self),
            Stage::Tail => tail::SHARED_BYTES,
            Stage::Tables => tables::SHARED_BYTES,
            Stage::Compose => compose::SHARED_BYTES,
            Stage::Copy => 0,
        }
    }
}

impl Schedule for Gdn {
    fn operation(&self) -> Operation {
        Operation::Gdn
    }

    fn variant(&self) -> String {
        self.name.to_owned()
    }

    fn source(&self) -> (&'static str, &'static str) {
        match self.engine {
            Engine::Registers => {}
            Engine::Wgmma => return wgmma::source(self),
            Engine::Tcgen05 => return tcgen05::source(self),
        }
        match self.stage {
            Stage::Prepare => ("gdn/prepare.cu", "gdn_prepare"),
            Stage::Scan | Stage::States | Stage::PreScan => ("gdn/scan.cu", "gdn_scan"),
            Stage::Compose => ("gdn/compose.cu", "gdn_compose"),
            Stage::Adjoint => ("gdn/adjoint.cu", "gdn_adjoint"),
            Stage::Tail => ("gdn/tail.cu", "gdn_tail"),
            Stage::Tables => ("gdn/tables.cu", "gdn_tables"),
            Stage::Copy => ("gdn/copy.cu", "gdn_copy"),
        }
    }

    fn facts(&self) -> Vec<Fact> {
        match self.engine {
            Engine::Registers => {}
            Engine::Wgmma => return wgmma::facts(self),
            Engine::Tcgen05 => return tcgen05::facts(self),
        }
        let mut facts = vec![
            Fact::int("threads", self.threads),
            Fact::int("value_columns", self.value_columns),
            Fact::bool("output", matches!(self.stage, Stage::Scan)),
            Fact::int("min_ctas_per_sm", self.min_ctas_per_sm),
        ];
        if self.stage == Stage::Adjoint {
            facts.push(Fact::int("stages", adjoint::stages(self)));
        }
        facts
    }

    fn budgets(&self) -> Budgets {
        match self.engine {
            Engine::Registers => {}
            Engine::Wgmma => return wgmma::budgets(self),
            Engine::Tcgen05 => return tcgen05::budgets(self),
        }
        Budgets {
            threads: self.threads,
            dynamic_shared_bytes: self.dynamic_shared_bytes(),
            barrier_bytes: match self.stage {
                Stage::Adjoint => adjoint::barrier_bytes(self),
                Stage::Tail => tail::BARRIER_BYTES,
                _ => 0,
            },
            tmem_columns: 0,
        }
    }

    fn params(&self) -> ParamLayout {
        match self.engine {
            Engine::Registers => {}
            Engine::Wgmma => return wgmma::params(self),
            Engine::Tcgen05 => return tcgen05::params(self),
        }
        match self.stage {
            Stage::Prepare => prepare::PARAMS,
            Stage::Scan | Stage::States | Stage::PreScan => scan::PARAMS,
            Stage::Compose => compose::PARAMS,
            Stage::Adjoint => adjoint::PARAMS,
            Stage::Tail => tail::PARAMS,
            Stage::Tables => tables::PARAMS,
            Stage::Copy => copy::PARAMS,
        }
    }

    fn required_opcodes(&self) -> &'static [&'static str] {
        match (self.engine, self.stage) {
            (_, Stage::Tables | Stage::Copy) => &[],
            (Engine::Registers, Stage::Prepare | Stage::Compose) => &["HMMA"],
            (Engine::Wgmma, Stage::Prepare) => &["HMMA", "LDSM", "UTMALDG", "SYNCS"],
            (Engine::Registers, _) => &["HMMA", "LDSM", "LDGSTS"],
            (Engine::Wgmma, _) => &["HGMMA", "UTMALDG", "SYNCS"],
            (Engine::Tcgen05, _) => &["UTCHMMA", "LDTM", "STTM", "UTMALDG", "SYNCS"],
        }
    }
}

/// Facts that route tables may bound.
pub mod facts {
    use crate::route::FactName;

    /// Tokens of all sequences.
    pub const TOKENS: FactName = "tokens";
    /// Sequences.
    pub const SEQUENCES: FactName = "sequences";
    /// Key heads.
    pub const HEADS: FactName = "heads";
    /// Value heads.
    pub const VALUE_HEADS: FactName = "value_heads";
    /// Streaming multiprocessors of the device.
    pub const SM_COUNT: FactName = "sm_count";
}

/// What a route chooses: the engine of the scans, and what to expect of it. Segments and value splits follow from
/// lengths, heads and SM count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Engine.
    pub engine: Engine,
    /// Times that whole sequences are weighed against segments with.
    pub costs: Costs,
}

/// Times in nanoseconds, one CTA to an SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A chunk in a CTA of the forward scan: value columns of the CTA, time.
    pub scan_steps: &'static [(u32, u32)],
    /// Begin and end of a CTA of the forward scan.
    pub scan_start: u32,
    /// A chunk in a CTA of the pre-scan.
    pub prescan_step: u32,
    /// Begin and end of a CTA of the pre-scan.
    pub prescan_start: u32,
    /// Chunks that a pre-scan is expected to find remembered, where it may forget; 0: this engine's forgets nothing.
    pub remembered: u32,
    /// One more start state to compose, where nothing is forgotten.
    pub boundary: u32,
    /// What the additional launches cost.
    pub launches: u32,
}

impl Costs {
    /// Hopper's warpgroup products. Steps are how much longer a scan alone took for each chunk more to a CTA, in the
    /// record of an H200 that `docs/design/0004-gdn.md` cites: scans of 16, 32 and 47 chunks, in halves of 32 and 512,
    /// pre-scans of 32 and 47 where nothing is forgotten. All else is estimated.
    pub const WGMMA: Costs = Costs {
        scan_steps: &[(128, 2000), (64, 1440)],
        scan_start: 5000,
        prescan_step: 1100,
        prescan_start: 5000,
        remembered: 6,
        boundary: 3000,
        launches: 10_000,
    };

    /// Tensor memory, pre-scans on registers. Estimates until a device has said otherwise.
    pub const TCGEN05: Costs = Costs { scan_steps: &[(128, 1100)], ..Costs::REGISTERS };

    /// The engine of registers. Estimates until a device has said otherwise.
    pub const REGISTERS: Costs = Costs {
        scan_steps: &[(128, 4000), (64, 2000), (32, 1500)],
        scan_start: 0,
        prescan_step: 2000,
        prescan_start: 0,
        remembered: 0,
        boundary: 3000,
        launches: 10_000,
    };
}

const fn pointer(name: &'static str) -> ParamField {
    ParamField { name, kind: ParamKind::Pointer }
}

const fn u64(name: &'static str) -> ParamField {
    ParamField { name, kind: ParamKind::U64 }
}

const fn u32(name: &'static str) -> ParamField {
    ParamField { name, kind: ParamKind::U32 }
}

const fn f32(name: &'static str) -> ParamField {
    ParamField { name, kind: ParamKind::F32 }
}
