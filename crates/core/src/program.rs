//! Compiled programs: what ships, what it was made from, what it needs, and where it has run.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::schedule::Budgets;
use crate::{Arch, Error, Operation, Result};

/// A SHA-256 digest as 64 lower-case hexadecimal digits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sha256Hex(String);

impl Sha256Hex {
    /// Digest of some bytes.
    pub fn of(bytes: &[u8]) -> Sha256Hex {
        Sha256Hex::of_digest(Sha256::new_with_prefix(bytes))
    }

    pub(crate) fn of_digest(hash: Sha256) -> Sha256Hex {
        Sha256Hex(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first twelve digits, for people.
    pub fn short(&self) -> &str {
        self.0.get(..12).unwrap_or(&self.0)
    }
}

impl fmt::Display for Sha256Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Sha256Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `programs/manifest.json` of an architecture crate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Architecture.
    pub arch: Arch,
    /// Exact versions of the compiler's packages.
    pub toolchain: BTreeMap<String, String>,
    /// One record per program, ordered by operation and variant.
    pub programs: Vec<ProgramRecord>,
}

/// What is known about one program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgramRecord {
    /// Operation.
    pub operation: Operation,
    /// Name of the variant.
    pub variant: String,
    /// Entry point.
    pub entry: String,
    /// The schedule, field by field.
    pub schedule: serde_json::Value,
    /// Resources that the schedule implies.
    pub budgets: Budgets,
    /// Compiler flags, PTX step then cubin step.
    pub flags: Vec<String>,
    /// Digest of each source, by path from the workspace root; rendered headers by name.
    pub sources: BTreeMap<String, Sha256Hex>,
    /// Digest over flags, toolchain and all sources.
    pub closure: Sha256Hex,
    /// Digest of the parameter layout.
    pub abi: Sha256Hex,
    /// The PTX text.
    pub ptx: Artifact,
    /// The cubin, assembled from exactly that PTX.
    pub cubin: Artifact,
    /// Resources measured on the compiled program.
    pub resources: Resources,
}

/// An embedded file: digest and size before compression.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Digest of the uncompressed bytes.
    pub sha256: Sha256Hex,
    /// Uncompressed size in bytes.
    pub bytes: u64,
}

/// What the compiled program reports about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Registers per thread.
    pub registers: u32,
    /// Stack frame in bytes.
    pub stack_bytes: u32,
    /// Bytes of spill stores.
    pub spill_store_bytes: u32,
    /// Bytes of spill loads.
    pub spill_load_bytes: u32,
    /// Static shared memory in bytes.
    pub static_shared_bytes: u32,
    /// SASS code in bytes.
    pub code_bytes: u32,
    /// How often each opcode that matters occurs in the SASS.
    pub opcodes: BTreeMap<String, u32>,
}

/// `programs/evidence.json` of an architecture crate: where programs have run.
///
/// A record counts only while its digest is that of the shipped cubin (hardware) or PTX (emulator).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvidenceFile {
    /// Records.
    pub records: Vec<EvidenceRecord>,
}

/// One successful verification of one program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvidenceRecord {
    /// Operation.
    pub operation: Operation,
    /// Variant.
    pub variant: String,
    /// Digest of the bytes that ran.
    pub sha256: Sha256Hex,
    /// Where.
    pub evidence: Evidence,
}

impl EvidenceFile {
    /// The best evidence for a program whose bytes are still those that ran.
    pub fn best(&self, program: &ProgramRecord) -> Evidence {
        let about = self.records.iter().filter(|record| record.is_about(program));
        about.map(|record| &record.evidence).max().cloned().unwrap_or(Evidence::CompiledOnly)
    }
}

impl EvidenceRecord {
    /// Whether it is about these very bytes: hardware runs the cubin, the emulator the PTX.
    pub fn is_about(&self, program: &ProgramRecord) -> bool {
        let ran = match self.evidence {
            Evidence::Hardware { .. } => &program.cubin.sha256,
            Evidence::Emulator { .. } | Evidence::CompiledOnly => &program.ptx.sha256,
        };
        self.operation == program.operation && self.variant == program.variant && self.sha256 == *ran
    }
}

/// How far a program has been proven.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Evidence {
    /// Compiled, never executed.
    CompiledOnly,
    /// Passed its goldens on the emulator.
    Emulator {
        /// Seeds per case.
        seeds: u32,
    },
    /// Passed its goldens on hardware.
    Hardware {
        /// Device name as the driver gives it.
        device: String,
        /// Driver version.
        driver: String,
        /// Day, `2026-11-29`.
        date: String,
    },
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Evidence::CompiledOnly => f.write_str("compiled only"),
            Evidence::Emulator { seeds: 1 } => f.write_str("run on the emulator (1 seed)"),
            Evidence::Emulator { seeds } => write!(f, "run on the emulator ({seeds} seeds)"),
            Evidence::Hardware { device, driver, date } => write!(f, "run on {device} (driver {driver}, {date})"),
        }
    }
}

/// The bytes of one embedded program, zstd-compressed. Generated by `xtask build`.
#[derive(Clone, Copy, Debug)]
pub struct Embedded {
    /// Operation.
    pub operation: Operation,
    /// Variant.
    pub variant: &'static str,
    /// Compressed PTX.
    pub ptx: &'static [u8],
    /// Compressed cubin.
    pub cubin: &'static [u8],
}

/// Name of a program within its architecture, also of its files: `nvfp4_context-paged_k8_g4`.
pub fn file_stem(operation: Operation, variant: &str) -> String {
    format!("{operation}-{variant}")
}

/// How a program is called in messages and commands: `sm103/nvfp4_context-paged_k8_g4`.
pub fn program_name(arch: Arch, operation: Operation, variant: &str) -> String {
    format!("{arch}/{}", file_stem(operation, variant))
}

/// A program ready to be loaded: its record and its embedded bytes.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Architecture.
    pub arch: Arch,
    /// Manifest record.
    pub record: &'static ProgramRecord,
    /// Embedded bytes.
    pub embedded: Embedded,
}

impl Program {
    /// As [`program_name`].
    pub fn name(&self) -> String {
        program_name(self.arch, self.record.operation, &self.record.variant)
    }

    /// The cubin, decompressed and compared with the manifest's digest.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn cubin(&self) -> Result<Vec<u8>> {
        self.unpack("cubin", self.embedded.cubin, &self.record.cubin)
    }

    /// The PTX text, decompressed and compared with the manifest's digest.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn ptx(&self) -> Result<String> {
        let bytes = self.unpack("ptx", self.embedded.ptx, &self.record.ptx)?;
        String::from_utf8(bytes).map_err(|error| self.corrupt("ptx text", "UTF-8", error))
    }

    fn unpack(&self, what: &'static str, packed: &[u8], artifact: &Artifact) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        // One byte more than promised is enough to notice that there is too much.
        let result =
            ruzstd::decoding::StreamingDecoder::new(packed).map_err(|error| error.to_string()).and_then(|decoder| {
                decoder.take(artifact.bytes + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())
            });
        if let Err(error) = result {
            return Err(self.corrupt(what, "a zstd frame", error));
        }
        let digest = Sha256Hex::of(&bytes);
        if digest != artifact.sha256 {
            return Err(self.corrupt(what, &artifact.sha256, digest));
        }
        Ok(bytes)
    }

    fn corrupt(&self, what: &'static str, expected: impl ToString, given: impl ToString) -> Error {
        Error::Corrupt { program: self.name(), what, expected: expected.to_string(), given: given.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_standard() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Sha256Hex::of(b"abc").as_str(), abc);
        assert_eq!(Sha256Hex::of(b"abc").short(), "ba7816bf8f01");
    }

    #[test]
    fn evidence_ranks_hardware_over_emulator_over_nothing() {
        let hardware =
            Evidence::Hardware { device: "NVIDIA H200".into(), driver: "580".into(), date: "2026-11-29".into() };
        assert!(hardware > Evidence::Emulator { seeds: 16 });
        assert!(Evidence::Emulator { seeds: 1 } > Evidence::CompiledOnly);
    }
}
