//! The architectures compiled in, and their programs.

use bakewell_core::architecture::Library;
use bakewell_core::schedule::Schedule;
use bakewell_core::{Arch, Architecture, Error, Program, Result};
use once_cell::sync::OnceCell;

/// An architecture crate and, once asked for, its programs.
#[derive(Debug)]
pub struct Compiled {
    /// Schedules, routes and embedded bytes.
    pub architecture: &'static Architecture,
    library: OnceCell<Library>,
}

impl Compiled {
    #[cfg_attr(
        not(any(feature = "sm90", feature = "sm100", feature = "sm103", feature = "sm107", feature = "sm110")),
        allow(dead_code, reason = "without architectures there is nothing to list")
    )]
    fn new(architecture: &'static Architecture) -> Compiled {
        Compiled { architecture, library: OnceCell::new() }
    }

    /// The programs with their records and evidence; parsed on first use.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when manifest, evidence and embedded bytes do not belong together.
    pub fn library(&self) -> Result<&Library> {
        self.library.get_or_try_init(|| Library::open(self.architecture))
    }

    /// The program of a schedule, known to take the parameter block that this version of the crates writes.
    ///
    /// # Errors
    /// [`Error::NoProgram`], or [`Error::Corrupt`] for a program of another version.
    pub(crate) fn program(&self, schedule: &dyn Schedule) -> Result<Program> {
        let program = self.library()?.program(schedule.operation(), &schedule.variant())?;
        let abi = schedule.params().abi_hash();
        if program.record.abi != abi {
            return Err(Error::Corrupt {
                program: program.name(),
                what: "parameter layout",
                expected: program.record.abi.to_string(),
                given: abi.to_string(),
            });
        }
        Ok(program)
    }
}

/// Every architecture compiled in, oldest first: one line per feature.
pub fn compiled() -> &'static [Compiled] {
    static COMPILED: OnceCell<Box<[Compiled]>> = OnceCell::new();
    COMPILED.get_or_init(|| {
        Box::new([
            #[cfg(feature = "sm90")]
            Compiled::new(&bakewell_sm90::ARCHITECTURE),
            #[cfg(feature = "sm100")]
            Compiled::new(&bakewell_sm100::ARCHITECTURE),
            #[cfg(feature = "sm103")]
            Compiled::new(&bakewell_sm103::ARCHITECTURE),
            #[cfg(feature = "sm107")]
            Compiled::new(&bakewell_sm107::ARCHITECTURE),
            #[cfg(feature = "sm110")]
            Compiled::new(&bakewell_sm110::ARCHITECTURE),
        ])
    })
}

/// The crate of one architecture.
///
/// # Errors
/// [`Error::ArchNotCompiled`] that names the feature to enable.
pub fn find(arch: Arch) -> Result<&'static Compiled> {
    compiled().iter().find(|compiled| compiled.architecture.arch == arch).ok_or_else(|| Error::ArchNotCompiled {
        arch,
        compiled: compiled().iter().map(|compiled| compiled.architecture.arch).collect(),
    })
}

#[cfg(test)]
mod tests {
    use bakewell_core::architecture::Table;
    use bakewell_core::program::{Artifact, Embedded, EvidenceFile, Manifest, ProgramRecord, Sha256Hex};
    use bakewell_core::schedule::gqa_decode::GqaDecode;

    use super::*;

    const SCHEDULE: GqaDecode = GqaDecode::STREAM;

    /// An architecture with one program, whose manifest holds this ABI hash.
    fn with_abi(abi: Sha256Hex) -> Compiled {
        let digest = || Artifact { sha256: Sha256Hex::of(b""), bytes: 0 };
        let record = ProgramRecord {
            operation: SCHEDULE.operation(),
            variant: SCHEDULE.variant(),
            entry: "entry".into(),
            schedule: serde_json::Value::Null,
            budgets: SCHEDULE.budgets(),
            flags: Vec::new(),
            sources: Default::default(),
            closure: Sha256Hex::of(b""),
            abi,
            ptx: digest(),
            cubin: digest(),
            resources: Default::default(),
        };
        let embedded =
            Embedded { operation: SCHEDULE.operation(), variant: SCHEDULE.variant().leak(), ptx: b"", cubin: b"" };
        let manifest = Manifest { arch: Arch::Sm90, toolchain: Default::default(), programs: vec![record] };
        let json = |text: serde_json::Result<String>| -> &'static str { text.unwrap().leak() };
        Compiled::new(Box::leak(Box::new(Architecture {
            manifest: json(serde_json::to_string(&manifest)),
            evidence: json(serde_json::to_string(&EvidenceFile::default())),
            embedded: vec![embedded].leak(),
            gqa_decode: Table { schedules: &[SCHEDULE], routes: &[] },
            ..Architecture::empty(Arch::Sm90)
        })))
    }

    #[test]
    fn programs_of_another_parameter_layout_are_refused() {
        let abi = SCHEDULE.params().abi_hash();
        assert_eq!(with_abi(abi.clone()).program(&SCHEDULE).unwrap().name(), "sm90/gqa_decode-stream_g4_d128_f16");
        let other = Sha256Hex::of(b"another layout");
        match with_abi(other.clone()).program(&SCHEDULE) {
            Err(Error::Corrupt { program, what: "parameter layout", expected, given }) => {
                assert_eq!(program, "sm90/gqa_decode-stream_g4_d128_f16");
                assert_eq!((expected, given), (other.to_string(), abi.to_string()));
            }
            accepted => panic!("{accepted:?}"),
        }
    }

    /// Run with different features by `cargo xtask ci`: only what is enabled is embedded.
    #[test]
    fn features_decide_what_is_compiled_in() {
        let enabled = [
            (Arch::Sm90, cfg!(feature = "sm90")),
            (Arch::Sm100, cfg!(feature = "sm100")),
            (Arch::Sm103, cfg!(feature = "sm103")),
            (Arch::Sm107, cfg!(feature = "sm107")),
            (Arch::Sm110, cfg!(feature = "sm110")),
        ];
        let wanted: Vec<Arch> = enabled.iter().filter(|(_, enabled)| *enabled).map(|(arch, _)| *arch).collect();
        let found: Vec<Arch> = compiled().iter().map(|compiled| compiled.architecture.arch).collect();
        assert_eq!(found, wanted);
        for (arch, enabled) in enabled {
            match find(arch) {
                Ok(compiled) => assert!(enabled && compiled.architecture.arch == arch),
                Err(Error::ArchNotCompiled { arch: missing, compiled }) => {
                    assert!(!enabled && missing == arch && compiled == wanted);
                }
                Err(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn every_library_opens() {
        for compiled in compiled() {
            let library = compiled.library().unwrap();
            assert_eq!(library.programs.len(), compiled.architecture.embedded.len());
        }
    }
}
