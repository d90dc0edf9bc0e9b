//! What an architecture crate offers: schedules, routes, programs.

use crate::program::{Embedded, Evidence, EvidenceFile, Manifest, Program, file_stem};
use crate::route::Route;
use crate::schedule::Schedule;
use crate::schedule::gdn::{self, Gdn};
use crate::schedule::gqa_decode::{self, GqaDecode};
use crate::schedule::nvfp4_context::{self, Nvfp4Context, Pages};
use crate::schedule::nvfp4_pre_attention;
use crate::{Arch, Error, Operation, Result};

/// The static content of an architecture crate.
#[derive(Debug)]
pub struct Architecture {
    /// Which one.
    pub arch: Arch,
    /// `programs/manifest.json`; empty without the feature `programs`.
    pub manifest: &'static str,
    /// `programs/evidence.json`; empty without the feature `programs`.
    pub evidence: &'static str,
    /// Embedded programs; empty without the feature `programs`.
    pub embedded: &'static [Embedded],
    /// Grouped-query decode attention.
    pub gqa_decode: Table<GqaDecode, gqa_decode::Choice>,
    /// Paged-context attention over an NVFP4 cache.
    pub nvfp4_context: Table<Nvfp4Context, nvfp4_context::Choice>,
    /// What shows the pages of such a cache: one schedule, or none.
    pub nvfp4_context_pages: &'static [Pages],
    /// Norm, modulation, quantisation and the fused NVFP4 QKV GEMM.
    pub nvfp4_pre_attention: nvfp4_pre_attention::Tables,
    /// Chunked Gated DeltaNet training.
    pub gdn: Table<Gdn, gdn::Choice>,
}

/// Schedules and routes of one operation, or of one of its kernels, on one architecture.
#[derive(Debug)]
pub struct Table<S: 'static, C: 'static> {
    /// Every compiled schedule.
    pub schedules: &'static [S],
    /// Which serves which shapes; first match wins.
    pub routes: &'static [Route<C>],
}

impl<S, C> Table<S, C> {
    /// No schedule at all.
    pub const NONE: Table<S, C> = Table { schedules: &[], routes: &[] };
}

impl Architecture {
    /// An architecture without schedules and programs.
    pub const fn empty(arch: Arch) -> Architecture {
        Architecture {
            arch,
            manifest: "",
            evidence: "",
            embedded: &[],
            gqa_decode: Table::NONE,
            nvfp4_context: Table::NONE,
            nvfp4_context_pages: &[],
            nvfp4_pre_attention: nvfp4_pre_attention::Tables::NONE,
            gdn: Table::NONE,
        }
    }

    /// Every schedule of every operation.
    pub fn schedules(&self) -> Vec<&dyn Schedule> {
        let gqa_decode = self.gqa_decode.schedules.iter().map(|schedule| schedule as &dyn Schedule);
        let nvfp4_context = self.nvfp4_context.schedules.iter().map(|schedule| schedule as &dyn Schedule);
        let pages = self.nvfp4_context_pages.iter().map(|schedule| schedule as &dyn Schedule);
        let gdn = self.gdn.schedules.iter().map(|schedule| schedule as &dyn Schedule);
        gqa_decode.chain(nvfp4_context).chain(pages).chain(self.nvfp4_pre_attention.schedules()).chain(gdn).collect()
    }
}

/// The programs of one architecture, manifest and evidence parsed.
#[derive(Debug)]
pub struct Library {
    /// Architecture.
    pub arch: Arch,
    /// Programs in manifest order.
    pub programs: Vec<Program>,
    evidence: EvidenceFile,
}

impl Library {
    /// Parses manifest and evidence of an architecture crate. Done once per process: records live as long as it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when a file does not parse or an embedded program has no record.
    pub fn open(architecture: &'static Architecture) -> Result<Library> {
        let arch = architecture.arch;
        let corrupt = |what, error: &dyn std::fmt::Display| Error::Corrupt {
            program: arch.name().to_owned(),
            what,
            expected: "readable".to_owned(),
            given: error.to_string(),
        };
        if architecture.manifest.is_empty() {
            return Ok(Library { arch, programs: Vec::new(), evidence: EvidenceFile::default() });
        }
        let manifest: Manifest =
            serde_json::from_str(architecture.manifest).map_err(|error| corrupt("manifest", &error))?;
        let evidence = serde_json::from_str(architecture.evidence).map_err(|error| corrupt("evidence", &error))?;
        let records: &'static [_] = Vec::leak(manifest.programs);
        let programs = architecture.embedded.iter().map(|&embedded| {
            records
                .iter()
                .find(|record| record.operation == embedded.operation && record.variant == embedded.variant)
                .map(|record| Program { arch, record, embedded })
                .ok_or_else(|| {
                    corrupt("manifest", &format!("no record for {}", file_stem(embedded.operation, embedded.variant)))
                })
        });
        Ok(Library { arch, programs: programs.collect::<Result<_>>()?, evidence })
    }

    /// The program of a variant.
    ///
    /// # Errors
    /// [`Error::NoProgram`].
    pub fn program(&self, operation: Operation, variant: &str) -> Result<Program> {
        let of_operation = || self.programs.iter().filter(|program| program.record.operation == operation);
        of_operation().find(|program| program.record.variant == variant).copied().ok_or_else(|| {
            let available = of_operation().map(|program| program.record.variant.clone());
            Error::no_program(operation, self.arch, variant, available)
        })
    }

    /// As [`EvidenceFile::best`].
    pub fn evidence(&self, program: &Program) -> Evidence {
        self.evidence.best(program.record)
    }
}
