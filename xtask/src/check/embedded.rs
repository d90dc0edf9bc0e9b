//! Are the files of an architecture crate what its manifest says, and small enough to publish?

use bakewell_core::Arch;
use bakewell_core::program::{Manifest, ProgramRecord, Sha256Hex, program_name};

use crate::artifacts::{self, FORMS};
use crate::support;
use crate::workspace::Workspace;

/// Largest package of a crate in bytes: the registry takes 10 MiB.
pub(crate) const PACKAGE_BYTES: u64 = 9 << 20;

/// The embedded bytes of a program are those that the manifest records.
pub(crate) fn bytes(workspace: &Workspace, arch: Arch, record: &ProgramRecord) -> Vec<String> {
    let mut found = Vec::new();
    for (form, artifact) in FORMS.into_iter().zip([&record.ptx, &record.cubin]) {
        match artifacts::read_program(workspace, arch, record, form) {
            Ok(bytes) => {
                let digest = Sha256Hex::of(&bytes);
                if digest != artifact.sha256 || bytes.len() as u64 != artifact.bytes {
                    found.push(format!(
                        "embedded {form}: the manifest records {} ({} bytes), the file has {} ({} bytes)",
                        artifact.sha256.short(),
                        artifact.bytes,
                        digest.short(),
                        bytes.len()
                    ));
                }
            }
            Err(error) => found.push(format!("embedded {form}: {error:#}")),
        }
    }
    found
}

/// `src/programs.rs` embeds exactly the programs of the manifest, and no other file lies beside them.
pub(crate) fn index(workspace: &Workspace, manifest: &Manifest) -> Vec<String> {
    let arch = manifest.arch;
    let mut found = Vec::new();
    let path = workspace.arch_crate(arch).join("src/programs.rs");
    if std::fs::read_to_string(&path).unwrap_or_default() != artifacts::programs_source(&manifest.programs) {
        found.push(format!("{arch}: src/programs.rs is not the one of the manifest; run `cargo xtask build`"));
    }
    let known: Vec<String> = manifest
        .programs
        .iter()
        .flat_map(|record| FORMS.map(|form| artifacts::file_name(record, form)))
        .chain(["manifest.json".into(), "evidence.json".into()])
        .collect();
    for entry in std::fs::read_dir(workspace.programs(arch)).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !known.contains(&name) {
            found.push(format!("{arch}: programs/{name} belongs to no record of the manifest"));
        }
    }
    found
}

/// Every evidence record is about a shipped program and its shipped bytes.
pub(crate) fn evidence(workspace: &Workspace, manifest: &Manifest) -> Vec<String> {
    let records = match artifacts::evidence(workspace, manifest.arch) {
        Ok(file) => file.records,
        Err(error) => return vec![format!("{}: {error:#}", manifest.arch)],
    };
    records
        .iter()
        .filter(|record| !support::ships(record, manifest))
        .map(|record| {
            let name = program_name(manifest.arch, record.operation, &record.variant);
            format!("{name}: its evidence ({}) is about bytes that do not ship", record.evidence)
        })
        .collect()
}

/// The crate's files together are small enough for a package. Compressed programs do not shrink in the archive.
pub(crate) fn package_size(workspace: &Workspace, arch: Arch) -> Vec<String> {
    let total: u64 = std::fs::read_dir(workspace.programs(arch))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.metadata().ok())
        .map(|meta| meta.len())
        .sum();
    let message = format!("{arch}: programs/ has {total} bytes; a package may have {PACKAGE_BYTES}");
    (total > PACKAGE_BYTES).then_some(message).into_iter().collect()
}
