//! Is every program there that is promised, and made from the sources as they are?

use bakewell_core::program::{Manifest, ProgramRecord, program_name};
use bakewell_core::{Arch, Operation};

use super::is_of;
use crate::workspace::{Unit, Workspace};
use crate::{sources, toolchain};

/// Every operation has a schedule on every architecture, and schedules and records match one to one.
pub(crate) fn promises(arch: Arch, units: &[Unit], manifest: &Manifest) -> Vec<String> {
    let mut found = Vec::new();
    for operation in Operation::ALL {
        if !units.iter().any(|unit| unit.operation == operation) {
            found.push(format!("{arch}: {operation} has no schedule"));
        }
    }
    for unit in units {
        if !manifest.programs.iter().any(|record| is_of(record, unit)) {
            found.push(format!("{}: the schedule has no program; run `cargo xtask build`", unit.name()));
        }
    }
    for record in &manifest.programs {
        if !units.iter().any(|unit| is_of(record, unit)) {
            let name = program_name(arch, record.operation, &record.variant);
            found.push(format!("{name}: a program without a schedule"));
        }
    }
    if manifest.toolchain != toolchain::versions() {
        found.push(format!("{arch}: the manifest names another toolchain than toolchain.txt"));
    }
    found
}

/// The record was made from the sources, flags and schedule as they are now.
pub(crate) fn sources(workspace: &Workspace, unit: &Unit, record: &ProgramRecord) -> Vec<String> {
    let closure = match sources::closure(workspace, unit) {
        Ok(closure) => closure,
        Err(error) => return vec![format!("sources: {error:#}")],
    };
    let mut found = Vec::new();
    for (path, digest) in &closure.sources {
        match record.sources.get(path) {
            Some(recorded) if recorded == digest => {}
            Some(_) => found.push(format!("{path} changed since the program was built; run `cargo xtask build`")),
            None => found.push(format!("{path} was added since the program was built; run `cargo xtask build`")),
        }
    }
    for path in record.sources.keys().filter(|path| !closure.sources.contains_key(*path)) {
        found.push(format!("{path} is recorded but no longer included; run `cargo xtask build`"));
    }
    if record.closure != closure.digest && found.is_empty() {
        found.push("flags or toolchain changed since the program was built; run `cargo xtask build`".to_owned());
    }
    if record.schedule != crate::build::schedule_value(&unit.facts) {
        found.push("the recorded schedule is not the one in the architecture crate".to_owned());
    }
    found
}
