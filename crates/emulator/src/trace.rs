//! Counters: how much of what a launch did. Never a time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A path that bytes take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// `ld` from global or constant memory.
    GlobalLoad,
    /// `st` to global memory.
    GlobalStore,
    /// `ld` from shared memory, ldmatrix included.
    SharedLoad,
    /// `st` to shared memory, stmatrix included.
    SharedStore,
    /// Accesses to another CTA's shared memory.
    RemoteShared,
    /// Local memory, both directions.
    Local,
    /// `atom` and `red`.
    Atomic,
    /// Non-bulk `cp.async`.
    AsyncCopy,
    /// Bulk copies to shared memory.
    BulkLoad,
    /// Bulk copies from shared memory.
    BulkStore,
    /// Tensor copies to shared memory.
    TensorLoad,
    /// Tensor copies from shared memory.
    TensorStore,
    /// tcgen05.ld
    TensorMemoryLoad,
    /// tcgen05.st
    TensorMemoryStore,
    /// tcgen05.cp
    TensorMemoryCopy,
}

impl Path {
    /// Every path.
    pub const ALL: [Path; PATHS] = [
        Path::GlobalLoad,
        Path::GlobalStore,
        Path::SharedLoad,
        Path::SharedStore,
        Path::RemoteShared,
        Path::Local,
        Path::Atomic,
        Path::AsyncCopy,
        Path::BulkLoad,
        Path::BulkStore,
        Path::TensorLoad,
        Path::TensorStore,
        Path::TensorMemoryLoad,
        Path::TensorMemoryStore,
        Path::TensorMemoryCopy,
    ];
}

/// Number of [`Path`] values.
const PATHS: usize = Path::TensorMemoryCopy as usize + 1;

/// Counters of one launch, or of one cluster of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Warp instructions, all warps.
    pub warp_instructions: u64,
    /// Thread instructions: active lanes of each warp instruction.
    pub thread_instructions: u64,
    /// Warp instructions by warp index in the CTA, summed over CTAs.
    pub instructions_by_warp: Vec<u64>,
    /// Bytes by path, indexed by [`Path`].
    bytes: [u64; PATHS],
    /// Matrix operations by kind: count of instructions and of multiply-adds.
    pub matrix: BTreeMap<String, MatrixCount>,
    /// Waits on barriers that succeeded.
    pub barrier_waits: u64,
    /// Waits that had to try again.
    pub barrier_retries: u64,
    /// Extra shared-memory passes because lanes met in a bank.
    pub bank_conflicts: u64,
    /// `ex2` operations, lanes counted.
    pub exponentials: u64,
    /// CTAs that ran.
    pub ctas: u64,
}

/// Count of one kind of matrix operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatrixCount {
    /// Instructions.
    pub instructions: u64,
    /// Multiply-adds.
    pub multiply_adds: u64,
}

impl Counters {
    /// Adds bytes to a path.
    #[inline]
    pub fn add_bytes(&mut self, path: Path, bytes: u64) {
        self.bytes[path as usize] += bytes;
    }

    /// Bytes that took a path.
    pub fn bytes(&self, path: Path) -> u64 {
        self.bytes[path as usize]
    }

    /// Counts a matrix operation.
    pub fn add_matrix(&mut self, kind: &str, multiply_adds: u64) {
        if let Some(count) = self.matrix.get_mut(kind) {
            count.instructions += 1;
            count.multiply_adds += multiply_adds;
            return;
        }
        let first = MatrixCount { instructions: 1, multiply_adds };
        self.matrix.insert(kind.to_string(), first);
    }

    /// Sums another set of counters into this one.
    pub fn merge(&mut self, other: &Counters) {
        self.warp_instructions += other.warp_instructions;
        self.thread_instructions += other.thread_instructions;
        let warps = self.instructions_by_warp.len().max(other.instructions_by_warp.len());
        self.instructions_by_warp.resize(warps, 0);
        for (mine, theirs) in self.instructions_by_warp.iter_mut().zip(&other.instructions_by_warp) {
            *mine += theirs;
        }
        for (mine, theirs) in self.bytes.iter_mut().zip(&other.bytes) {
            *mine += theirs;
        }
        for (kind, count) in &other.matrix {
            let mine = self.matrix.entry(kind.clone()).or_default();
            mine.instructions += count.instructions;
            mine.multiply_adds += count.multiply_adds;
        }
        self.barrier_waits += other.barrier_waits;
        self.barrier_retries += other.barrier_retries;
        self.bank_conflicts += other.bank_conflicts;
        self.exponentials += other.exponentials;
        self.ctas += other.ctas;
    }
}
