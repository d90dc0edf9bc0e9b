//! The same bytes again: compiles every unit and compares with what ships.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use bakewell_core::Architecture;

use crate::workspace::{self, Workspace};
use crate::{artifacts, build, sources, toolchain};

/// Which programs are built again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// None.
    Nothing,
    /// The first of each kernel source on each architecture.
    OnePerSource,
    /// All.
    Everything,
}

/// Differences between the records of a fresh build and those of the manifests.
pub(crate) fn findings(
    workspace: &Workspace,
    architectures: &[&Architecture],
    extent: Extent,
    jobs: usize,
) -> Result<Vec<String>> {
    let toolchain = toolchain::ensure(workspace)?;
    let mut units = Vec::new();
    let mut seen = BTreeSet::new();
    for unit in architectures.iter().copied().flat_map(workspace::units) {
        if extent == Extent::OnePerSource && !seen.insert((unit.arch, unit.source)) {
            continue;
        }
        let closure = sources::closure(workspace, &unit)?;
        units.push((unit, closure));
    }
    let (programs, mut findings) = build::compile_all(workspace, &toolchain, units, jobs, |_| Ok(()));
    for (unit, rebuilt, _) in programs {
        let manifest = artifacts::manifest(workspace, unit.arch)?.context("the manifest disappeared")?;
        let shipped = manifest.programs.into_iter().find(|record| super::is_of(record, &unit));
        match shipped {
            None => findings.push(format!("{}: compiles but does not ship", unit.name())),
            Some(shipped) if shipped != rebuilt => {
                let differs = [
                    ("ptx", shipped.ptx != rebuilt.ptx),
                    ("cubin", shipped.cubin != rebuilt.cubin),
                    ("resources", shipped.resources != rebuilt.resources),
                ];
                let parts: Vec<&str> = differs.iter().filter(|(_, differs)| *differs).map(|(name, _)| *name).collect();
                findings.push(format!("{}: a rebuild differs in {}", unit.name(), parts.join(", ")));
            }
            Some(_) => {}
        }
    }
    Ok(findings)
}
