//! `cargo xtask check`: proves that what ships is what the sources and schedules say.
//!
//! Without a compiler: embedded bytes against manifest, sources against closure, budgets and resources against the
//! cubin's own sections, opcodes, parameter layout, promised programs, package sizes. With `--rebuild`: the same
//! bytes again from the pinned compiler.

pub(crate) mod addresses;
pub(crate) mod coverage;
pub(crate) mod embedded;
pub(crate) mod program;
pub(crate) mod rebuild;
#[cfg(test)]
mod tests;

use anyhow::{Result, bail};
use bakewell_core::program::ProgramRecord;
use bakewell_core::{Arch, Architecture};

use self::rebuild::Extent;
use crate::artifacts;
use crate::resources;
use crate::workspace::{self, ARCHITECTURES, Unit, Workspace};

/// Runs every check on one architecture or all of them, and prints each finding.
pub(crate) fn run(workspace: &Workspace, arch: Option<Arch>, extent: Extent, jobs: usize) -> Result<()> {
    let architectures: Vec<&Architecture> =
        ARCHITECTURES.into_iter().filter(|architecture| arch.is_none_or(|arch| arch == architecture.arch)).collect();
    let mut findings = Vec::new();
    let mut programs = 0;
    for architecture in &architectures {
        let (count, found) = architecture_findings(workspace, architecture)?;
        programs += count;
        findings.extend(found);
    }
    if extent != Extent::Nothing && findings.is_empty() {
        findings.extend(
            rebuild::findings(workspace, &architectures, extent, jobs)?.into_iter().map(|finding| (None, finding)),
        );
    }
    for line in grouped(&findings) {
        eprintln!("{line}");
    }
    if !findings.is_empty() {
        bail!("{} findings on {programs} programs", findings.len());
    }
    let rebuilt = match extent {
        Extent::Nothing => "",
        Extent::OnePerSource => ", one of each kernel rebuilt byte for byte",
        Extent::Everything => ", rebuilt byte for byte",
    };
    println!("{programs} programs of {} architectures checked{rebuilt}", architectures.len());
    Ok(())
}

/// A finding, and the program it is about if it is about one.
type Finding = (Option<String>, String);

/// One line per distinct finding, with the program it was first seen on and the number of others.
fn grouped(findings: &[Finding]) -> Vec<String> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for (program, finding) in findings {
        match groups.iter_mut().find(|(text, _)| text == finding) {
            Some((_, programs)) => programs.extend(program.as_deref()),
            None => groups.push((finding, program.as_deref().into_iter().collect())),
        }
    }
    let line = |(text, programs): (&str, Vec<&str>)| match programs[..] {
        [] => text.to_owned(),
        [program] => format!("{program}: {text}"),
        [program, ..] => format!("{program} and {} more: {text}", programs.len() - 1),
    };
    groups.into_iter().map(line).collect()
}

/// Number of programs and findings of one architecture.
fn architecture_findings(workspace: &Workspace, architecture: &Architecture) -> Result<(usize, Vec<Finding>)> {
    let arch = architecture.arch;
    let units = workspace::units(architecture);
    let Some(manifest) = artifacts::manifest(workspace, arch)? else {
        return Ok((0, vec![(None, format!("{arch}: no manifest; run `cargo xtask build`"))]));
    };
    let whole = [
        coverage::promises(arch, &units, &manifest),
        embedded::index(workspace, &manifest),
        embedded::evidence(workspace, &manifest),
        embedded::package_size(workspace, arch),
    ];
    let mut findings: Vec<Finding> = whole.concat().into_iter().map(|finding| (None, finding)).collect();
    for unit in &units {
        if let Some(record) = manifest.programs.iter().find(|record| is_of(record, unit)) {
            let found = program_findings(workspace, unit, record);
            findings.extend(found.into_iter().map(|finding| (Some(unit.name()), finding)));
        }
    }
    Ok((manifest.programs.len(), findings))
}

/// Whether a record is that of a unit of the same architecture.
pub(crate) fn is_of(record: &ProgramRecord, unit: &Unit) -> bool {
    record.operation == unit.operation && record.variant == unit.variant
}

/// Findings on one program: sources, bytes, and when the bytes are readable, what they say.
fn program_findings(workspace: &Workspace, unit: &Unit, record: &ProgramRecord) -> Vec<String> {
    let mut findings = coverage::sources(workspace, unit, record);
    findings.extend(embedded::bytes(workspace, unit.arch, record));
    let read = |form| artifacts::read_program(workspace, unit.arch, record, form);
    if let (Ok(ptx), Ok(cubin)) = (read("ptx"), read("cubin")) {
        match resources::cubin_facts(&cubin, unit.entry) {
            Ok(facts) => {
                findings.extend(program::findings(unit, record, &facts, &String::from_utf8_lossy(&ptx)));
            }
            Err(error) => findings.push(format!("embedded cubin: {error:#}")),
        }
    }
    findings
}
