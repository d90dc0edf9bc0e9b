//! What ships and how far it is proven: the facts behind the generated tables.

use anyhow::{Context, Result};
use bakewell_core::program::{Evidence, EvidenceFile, EvidenceRecord, Manifest, ProgramRecord};
use bakewell_core::{Arch, Operation};

use crate::artifacts;
use crate::workspace::Workspace;

/// Manifest and evidence of one architecture.
pub(crate) struct Shipped {
    pub(crate) manifest: Manifest,
    evidence: EvidenceFile,
}

/// Manifests and evidence of every architecture, oldest first.
pub(crate) fn shipped(workspace: &Workspace) -> Result<Vec<Shipped>> {
    Arch::ALL
        .into_iter()
        .map(|arch| {
            let manifest = artifacts::manifest(workspace, arch)?.with_context(|| format!("{arch} has no manifest"))?;
            Ok(Shipped { manifest, evidence: artifacts::evidence(workspace, arch)? })
        })
        .collect()
}

impl Shipped {
    /// Programs of an operation.
    pub(crate) fn programs(&self, operation: Operation) -> impl Iterator<Item = &ProgramRecord> {
        self.manifest.programs.iter().filter(move |record| record.operation == operation)
    }

    /// Best evidence of a program whose bytes are still those that ran.
    pub(crate) fn evidence(&self, program: &ProgramRecord) -> Evidence {
        let best = self
            .evidence
            .records
            .iter()
            .filter(|record| is_about(record, program))
            .map(|record| &record.evidence)
            .max();
        best.cloned().unwrap_or(Evidence::CompiledOnly)
    }
}

/// The record is about these very bytes: hardware runs the cubin, the emulator the PTX.
pub(crate) fn is_about(record: &EvidenceRecord, program: &ProgramRecord) -> bool {
    let ran = match record.evidence {
        Evidence::Hardware { .. } => &program.cubin.sha256,
        Evidence::Emulator { .. } | Evidence::CompiledOnly => &program.ptx.sha256,
    };
    record.operation == program.operation && record.variant == program.variant && record.sha256 == *ran
}

/// The record is about some program of the manifest, as it ships.
pub(crate) fn ships(record: &EvidenceRecord, manifest: &Manifest) -> bool {
    manifest.programs.iter().any(|program| is_about(record, program))
}
