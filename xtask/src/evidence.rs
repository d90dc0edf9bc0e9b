//! `cargo xtask evidence`: takes over what `bakewell verify --json` proved.
//!
//! Input: an object whose key `programs` lists, per program that ran, its architecture, operation, variant, the digest
//! of the bytes that ran, whether every case passed, and where. Only bytes that ship can gain evidence: what a report
//! says of others is named and left out.

use std::path::Path;

use anyhow::{Context, Result, bail};
use bakewell_core::Arch;
use bakewell_core::program::{Evidence, EvidenceFile, EvidenceRecord, program_name};
use serde::Deserialize;

use crate::artifacts;
use crate::support;
use crate::workspace::Workspace;

#[derive(Deserialize)]
struct Report {
    programs: Vec<Run>,
}

/// One program on one device.
#[derive(Clone, Deserialize)]
struct Run {
    arch: Arch,
    passed: bool,
    #[serde(flatten)]
    record: EvidenceRecord,
}

/// Merges a report into the evidence files.
pub(crate) fn merge(workspace: &Workspace, report: &Path) -> Result<()> {
    let text = std::fs::read_to_string(report).with_context(|| format!("cannot read {}", report.display()))?;
    let report: Report = serde_json::from_str(&text).context("the report has no list `programs` of this form")?;
    let (mut added, mut removed) = (0, 0);
    for arch in Arch::ALL {
        let runs: Vec<Run> = report.programs.iter().filter(|run| run.arch == arch).cloned().collect();
        let Some(manifest) = artifacts::manifest(workspace, arch)? else { continue };
        let (runs, others): (Vec<Run>, Vec<Run>) =
            runs.into_iter().partition(|run| support::ships(&run.record, &manifest));
        for Run { record, .. } in &others {
            let digest = record.sha256.short();
            let name = program_name(arch, record.operation, &record.variant);
            println!("{name}: left out, {digest} does not ship");
        }
        if runs.is_empty() && !others.is_empty() {
            bail!("{arch}: the report is about no program that ships");
        }
        let old = artifacts::evidence(workspace, arch)?;
        // A record about bytes that no longer ship proves nothing.
        let kept = old.records.iter().filter(|record| support::ships(record, &manifest)).cloned().collect();
        let kept = EvidenceFile { records: kept };
        let new = merged(kept, &runs);
        added += new.records.iter().filter(|record| !old.records.contains(record)).count();
        removed += old.records.iter().filter(|record| !new.records.contains(record)).count();
        artifacts::write_json(&workspace.programs(arch).join("evidence.json"), &new)?;
    }
    println!("{added} records added, {removed} removed");
    Ok(())
}

/// A newer run replaces the older of its kind; a failed run removes it. Sorted, so that files differ only where facts
/// do.
fn merged(old: EvidenceFile, runs: &[Run]) -> EvidenceFile {
    let mut records = old.records;
    records.retain(|record| !runs.iter().any(|run| same_claim(record, &run.record)));
    for (index, run) in runs.iter().enumerate() {
        let of_claim = |other: &&Run| same_claim(&other.record, &run.record);
        let superseded = runs[index + 1..].iter().any(|other| of_claim(&other));
        if runs.iter().filter(of_claim).all(|run| run.passed) && !superseded {
            records.push(run.record.clone());
        }
    }
    records.sort_by(|a, b| (a.operation, &a.variant, &a.evidence).cmp(&(b.operation, &b.variant, &b.evidence)));
    EvidenceFile { records }
}

/// The same program on the same kind of device.
fn same_claim(a: &EvidenceRecord, b: &EvidenceRecord) -> bool {
    let device = match (&a.evidence, &b.evidence) {
        (Evidence::Hardware { device: a, .. }, Evidence::Hardware { device: b, .. }) => a == b,
        (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
    };
    device && a.operation == b.operation && a.variant == b.variant
}

#[cfg(test)]
mod tests {
    use bakewell_core::Operation;
    use bakewell_core::program::Sha256Hex;

    use super::*;

    fn run(variant: &str, passed: bool, evidence: Evidence) -> Run {
        let record = EvidenceRecord {
            operation: Operation::GqaDecode,
            variant: variant.to_owned(),
            sha256: Sha256Hex::of(variant.as_bytes()),
            evidence,
        };
        Run { arch: Arch::Sm90, passed, record }
    }

    fn on_h200(date: &str) -> Evidence {
        Evidence::Hardware { device: "NVIDIA H200".into(), driver: "580".into(), date: date.into() }
    }

    #[test]
    fn the_form_of_verify_is_read() {
        let text = format!(
            r#"{{"cases": [], "programs": [{{"arch": "sm90", "operation": "gqa_decode", "variant": "long", "sha256": "{}",
               "passed": true, "cases": 3, "evidence": {{"kind": "emulator", "seeds": 16}}}}]}}"#,
            Sha256Hex::of(b"ptx")
        );
        let report: Report = serde_json::from_str(&text).unwrap();
        assert_eq!(report.programs[0].record.evidence, Evidence::Emulator { seeds: 16 });
        assert!(report.programs[0].passed);
    }

    #[test]
    fn a_newer_run_replaces_its_kind_and_leaves_the_others() {
        let old = merged(
            EvidenceFile::default(),
            &[run("long", true, on_h200("1")), run("long", true, Evidence::Emulator { seeds: 4 })],
        );
        assert_eq!(old.records.len(), 2);
        let new = merged(old, &[run("long", true, on_h200("2"))]);
        let kinds: Vec<&Evidence> = new.records.iter().map(|record| &record.evidence).collect();
        assert_eq!(kinds, [&Evidence::Emulator { seeds: 4 }, &on_h200("2")]);
    }

    #[test]
    fn one_failed_run_removes_the_evidence() {
        let old = merged(EvidenceFile::default(), &[run("long", true, on_h200("1")), run("short", true, on_h200("1"))]);
        let new = merged(old, &[run("long", true, on_h200("2")), run("long", false, on_h200("2"))]);
        assert_eq!(new.records.len(), 1);
        assert_eq!(new.records[0].variant, "short");
    }
}
