//! Where things are: paths of the workspace and the units of work that the architecture crates define.

use std::path::{Path, PathBuf};

use bakewell_core::Operation;
use bakewell_core::params::ParamLayout;
use bakewell_core::program::{file_stem, program_name};
use bakewell_core::schedule::{Budgets, Fact, Schedule};
use bakewell_core::{Arch, Architecture};

/// Every architecture crate, oldest architecture first.
pub(crate) const ARCHITECTURES: [&Architecture; 5] = [
    &bakewell_sm90::ARCHITECTURE,
    &bakewell_sm100::ARCHITECTURE,
    &bakewell_sm103::ARCHITECTURE,
    &bakewell_sm107::ARCHITECTURE,
    &bakewell_sm110::ARCHITECTURE,
];

/// A workspace on disk. Checks run on copies of it in tests, so nothing else may assume a location.
#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    /// Folder of the root `Cargo.toml`.
    pub(crate) root: PathBuf,
}

impl Workspace {
    /// The workspace whose xtask cargo runs; without cargo, the one this program was compiled in.
    pub(crate) fn here() -> Workspace {
        let running = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let xtask = running.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
        Workspace { root: xtask.parent().unwrap_or(Path::new(".")).to_owned() }
    }

    /// The pinned compiler.
    pub(crate) fn toolchain(&self) -> PathBuf {
        self.root.join("target/toolchain")
    }

    /// The crate of an architecture.
    pub(crate) fn arch_crate(&self, arch: Arch) -> PathBuf {
        self.root.join("crates").join(arch.name())
    }

    /// Embedded programs of an architecture.
    pub(crate) fn programs(&self, arch: Arch) -> PathBuf {
        self.arch_crate(arch).join("programs")
    }
}

/// One program to be compiled: a schedule with everything asked of it once.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub(crate) arch: Arch,
    pub(crate) operation: Operation,
    pub(crate) variant: String,
    /// Kernel source below `kernels/`.
    pub(crate) source: &'static str,
    pub(crate) entry: &'static str,
    pub(crate) facts: Vec<Fact>,
    pub(crate) budgets: Budgets,
    pub(crate) params: ParamLayout,
    pub(crate) required_opcodes: &'static [&'static str],
}

impl Unit {
    /// The unit of a schedule.
    pub(crate) fn new(arch: Arch, schedule: &dyn Schedule) -> Unit {
        let (source, entry) = schedule.source();
        Unit {
            arch,
            operation: schedule.operation(),
            variant: schedule.variant(),
            source,
            entry,
            facts: schedule.facts(),
            budgets: schedule.budgets(),
            params: schedule.params(),
            required_opcodes: schedule.required_opcodes(),
        }
    }

    /// `gqa_decode-long_s6_g4_d128_f16`: file names and messages.
    pub(crate) fn file_stem(&self) -> String {
        file_stem(self.operation, &self.variant)
    }

    /// `sm103/gqa_decode-long_s6_g4_d128_f16`.
    pub(crate) fn name(&self) -> String {
        program_name(self.arch, self.operation, &self.variant)
    }

    /// Folder of the rendered sources and compiler output, relative to the workspace root.
    pub(crate) fn folder(&self) -> String {
        format!("target/kernels/{}/{}", self.arch, self.file_stem())
    }
}

/// Every unit of one architecture, ordered as in its manifest.
pub(crate) fn units(architecture: &Architecture) -> Vec<Unit> {
    let mut units: Vec<Unit> =
        architecture.schedules().into_iter().map(|schedule| Unit::new(architecture.arch, schedule)).collect();
    units.sort_by(|a, b| (a.operation, &a.variant).cmp(&(b.operation, &b.variant)));
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_unique_within_an_architecture() {
        for architecture in ARCHITECTURES {
            let units = units(architecture);
            for pair in units.windows(2) {
                assert_ne!(pair[0].file_stem(), pair[1].file_stem(), "{}", architecture.arch);
            }
        }
    }
}
