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

    /// As [`EvidenceFile::best`].
    pub(crate) fn evidence(&self, program: &ProgramRecord) -> Evidence {
        self.evidence.best(program)
    }
}

/// The record is about some program of the manifest, as it ships.
pub(crate) fn ships(record: &EvidenceRecord, manifest: &Manifest) -> bool {
    manifest.programs.iter().any(|program| record.is_about(program))
}
