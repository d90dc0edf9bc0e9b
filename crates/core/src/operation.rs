//! Names of the operations.

use serde::{Deserialize, Serialize};

/// An operation that Bakewell ships.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Grouped-query decode attention, f16 or bf16.
    GqaDecode,
    /// Paged-context attention over an NVFP4 cache.
    Nvfp4Context,
    /// Norm, modulation, quantisation and the fused NVFP4 QKV GEMM.
    Nvfp4PreAttention,
    /// Gated DeltaNet chunked training.
    Gdn,
}

impl Operation {
    /// Name in commands, files and manifests: `gqa_decode`.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::GqaDecode => "gqa_decode",
            Operation::Nvfp4Context => "nvfp4_context",
            Operation::Nvfp4PreAttention => "nvfp4_pre_attention",
            Operation::Gdn => "gdn",
        }
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
