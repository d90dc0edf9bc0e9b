//! Names of the operations.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

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
    /// Every operation, in the order of tables and commands.
    pub const ALL: [Operation; 4] =
        [Operation::GqaDecode, Operation::Nvfp4Context, Operation::Nvfp4PreAttention, Operation::Gdn];

    /// Name in commands, files and manifests: `gqa_decode`.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::GqaDecode => "gqa_decode",
            Operation::Nvfp4Context => "nvfp4_context",
            Operation::Nvfp4PreAttention => "nvfp4_pre_attention",
            Operation::Gdn => "gdn",
        }
    }

    /// The operation of a name.
    ///
    /// # Errors
    /// [`Error::Argument`] that lists the names.
    pub fn parse(text: &str) -> Result<Operation> {
        Operation::ALL.into_iter().find(|operation| operation.name() == text).ok_or_else(|| {
            let names = Operation::ALL.map(Operation::name).join(", ");
            Error::value("operation", format!("one of {names}"), text)
        })
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_parsed_and_written_alike_and_others_are_refused() {
        for operation in Operation::ALL {
            assert_eq!(Operation::parse(operation.name()).unwrap(), operation);
            assert_eq!(serde_json::to_value(operation).unwrap(), operation.name());
        }
        assert_eq!(
            Operation::parse("fly").unwrap_err().to_string(),
            "operation: expected one of gqa_decode, nvfp4_context, nvfp4_pre_attention, gdn, got fly"
        );
    }
}
