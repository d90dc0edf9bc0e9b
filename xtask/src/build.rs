//! `cargo xtask build`: from schedules to embedded programs.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use bakewell_core::program::{Artifact, Manifest, ProgramRecord, Sha256Hex};
use bakewell_core::schedule::{Fact, FactValue};
use bakewell_core::{Arch, Architecture, Operation};
use indicatif::{ProgressBar, ProgressStyle};

use crate::compile::{self, Compiled};
use crate::sources::{self, Closure};
use crate::toolchain::{self, Toolchain};
use crate::workspace::{self, ARCHITECTURES, Unit, Workspace};
use crate::{
    artifacts::{self, Packed},
    check,
};

/// Which programs to build.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    pub(crate) arch: Option<Arch>,
    pub(crate) operation: Option<Operation>,
    /// Part of the variant's name.
    pub(crate) variant: Option<String>,
}

impl Selection {
    fn takes(&self, unit: &Unit) -> bool {
        self.operation.is_none_or(|operation| operation == unit.operation)
            && self.variant.as_ref().is_none_or(|part| unit.variant.contains(part.as_str()))
    }
}

/// Builds what is selected and not up to date, and rewrites the index of each architecture touched.
pub(crate) fn build(workspace: &Workspace, selection: &Selection, jobs: usize, force: bool) -> Result<()> {
    let architectures: Vec<&Architecture> = ARCHITECTURES
        .into_iter()
        .filter(|architecture| selection.arch.is_none_or(|arch| arch == architecture.arch))
        .collect();
    let mut manifests = Vec::new();
    let mut stale = Vec::new();
    for architecture in architectures {
        let units = workspace::units(architecture);
        let old = artifacts::manifest(workspace, architecture.arch)?.map(|manifest| manifest.programs);
        let mut records = old.unwrap_or_default();
        records.retain(|record| units.iter().any(|unit| check::is_of(record, unit)));
        for unit in units.into_iter().filter(|unit| selection.takes(unit)) {
            let closure = sources::closure(workspace, &unit).with_context(|| unit.name())?;
            let record = records.iter().find(|record| check::is_of(record, &unit));
            if force || !record.is_some_and(|record| is_current(workspace, &unit, &closure, record)) {
                stale.push((unit, closure));
            }
        }
        manifests.push(Manifest { arch: architecture.arch, toolchain: toolchain::versions(), programs: records });
    }

    let total = stale.len();
    let mut failures = Vec::new();
    if total > 0 {
        let toolchain = toolchain::ensure(workspace)?;
        let (compiled, failed) = compile_all(workspace, &toolchain, stale, jobs, Packed::of);
        failures = failed;
        for (unit, record, packed) in compiled {
            packed.write(workspace, unit.arch, &record)?;
            let manifest = manifests.iter_mut().find(|manifest| manifest.arch == unit.arch);
            let records = &mut manifest.context("a unit of an architecture that was not selected")?.programs;
            records.retain(|old| !check::is_of(old, &unit));
            records.push(record);
        }
    }
    for manifest in &mut manifests {
        manifest.programs.sort_by(|a, b| (a.operation, &a.variant).cmp(&(b.operation, &b.variant)));
        artifacts::write_index(workspace, manifest)?;
    }
    if !failures.is_empty() {
        bail!("{} of {total} programs failed:\n{}", failures.len(), failures.join("\n"));
    }
    let known: usize = manifests.iter().map(|manifest| manifest.programs.len()).sum();
    println!("{total} programs compiled, {} left as they are", known - total);
    Ok(())
}

/// The record describes these sources and the files are those it describes.
fn is_current(workspace: &Workspace, unit: &Unit, closure: &Closure, record: &ProgramRecord) -> bool {
    record.closure == closure.digest && check::embedded::bytes(workspace, unit.arch, record).is_empty()
}

/// A unit, its record, and what the caller made of its bytes.
pub(crate) type Done<T> = (Unit, ProgramRecord, T);

/// Compiles units on `jobs` threads and lets `finish` take each result: what succeeded, and a message for each failure.
pub(crate) fn compile_all<T: Send>(
    workspace: &Workspace,
    toolchain: &Toolchain,
    work: Vec<(Unit, Closure)>,
    jobs: usize,
    finish: impl Fn(Compiled) -> Result<T> + Sync,
) -> (Vec<Done<T>>, Vec<String>) {
    let bar = ProgressBar::new(work.len() as u64).with_style(
        ProgressStyle::with_template("{spinner} programs {bar:30} {pos}/{len} {eta} {wide_msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, work.len().max(1)) {
            scope.spawn(|| {
                while let Some((unit, closure)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    bar.set_message(unit.name());
                    let result = build_one(workspace, toolchain, unit, closure)
                        .and_then(|(record, compiled)| Ok((unit.clone(), record, finish(compiled)?)))
                        .with_context(|| unit.name());
                    bar.inc(1);
                    let mut results = results.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    results.push(result);
                }
            });
        }
    });
    bar.finish_and_clear();
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for result in results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
        match result {
            Ok(program) => done.push(program),
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    (done, failed)
}

/// Compiles a unit and refuses what is not fit to ship.
fn build_one(
    workspace: &Workspace,
    toolchain: &Toolchain,
    unit: &Unit,
    closure: &Closure,
) -> Result<(ProgramRecord, Compiled)> {
    let compiled = compile::compile(workspace, toolchain, unit, closure)?;
    let record = record(unit, closure, &compiled);
    let ptx = String::from_utf8(compiled.ptx.clone()).context("the PTX is not text")?;
    let findings = check::program::findings(unit, &record, &compiled.measured.cubin, &ptx);
    if !findings.is_empty() {
        bail!("compiled, but not fit to ship:\n  {}", findings.join("\n  "));
    }
    Ok((record, compiled))
}

/// The manifest record of a compiled unit.
fn record(unit: &Unit, closure: &Closure, compiled: &Compiled) -> ProgramRecord {
    let artifact = |bytes: &[u8]| Artifact { sha256: Sha256Hex::of(bytes), bytes: bytes.len() as u64 };
    ProgramRecord {
        operation: unit.operation,
        variant: unit.variant.clone(),
        entry: unit.entry.to_owned(),
        schedule: schedule_value(&unit.facts),
        budgets: unit.budgets,
        flags: compile::flags(unit),
        sources: closure.sources.clone(),
        closure: closure.digest.clone(),
        abi: unit.params.abi_hash(),
        ptx: artifact(&compiled.ptx),
        cubin: artifact(&compiled.cubin),
        resources: compiled.measured.resources.clone(),
    }
}

/// The schedule field by field: the facts under the names they have everywhere.
pub(crate) fn schedule_value(facts: &[Fact]) -> serde_json::Value {
    let fields = facts.iter().map(|fact| {
        let value = match fact.value {
            FactValue::Int(value) => value.into(),
            FactValue::Bool(value) => value.into(),
            FactValue::Enum(_, value) => value.into(),
        };
        (fact.name.to_owned(), value)
    });
    serde_json::Value::Object(fields.collect())
}
