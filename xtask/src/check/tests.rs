//! Every check fails on a copy that is broken in the one way it looks for, and passes on the unbroken one.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use bakewell_core::program::{Evidence, EvidenceFile, EvidenceRecord, Manifest, ProgramRecord, Sha256Hex};
use bakewell_core::{Arch, Operation};

use super::{coverage, embedded, is_of, program};
use crate::artifacts;
use crate::resources::{self, CubinFacts};
use crate::sources;
use crate::workspace::{self, ARCHITECTURES, Unit, Workspace};

/// The smallest architecture crate of the workspace and its sources, copied. Schedules without a program are left out
/// and the sources' digests brought up to date, so that the copy is sound also while a kernel is being changed.
struct Copy {
    workspace: Workspace,
    manifest: Manifest,
    units: Vec<Unit>,
    unit: Unit,
}

const ARCH: Arch = Arch::Sm107;

impl Copy {
    fn new() -> Copy {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let folder = format!("xtask-check-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let workspace = Workspace { root: std::env::temp_dir().join(folder) };
        let here = Workspace::here();
        copy(&here.root.join("kernels"), &workspace.root.join("kernels"));
        copy(&here.programs(ARCH), &workspace.programs(ARCH));
        copy(&here.arch_crate(ARCH).join("src"), &workspace.arch_crate(ARCH).join("src"));
        let architecture = ARCHITECTURES.into_iter().find(|architecture| architecture.arch == ARCH).unwrap();
        let mut manifest = artifacts::manifest(&workspace, ARCH).unwrap().unwrap();
        let mut units = workspace::units(architecture);
        units.retain(|unit| manifest.programs.iter().any(|record| is_of(record, unit)));
        manifest.programs.retain(|record| units.iter().any(|unit| is_of(record, unit)));
        for (unit, record) in units.iter().zip(&mut manifest.programs) {
            let closure = sources::closure(&workspace, unit).unwrap();
            (record.sources, record.closure) = (closure.sources, closure.digest);
        }
        artifacts::write_index(&workspace, &manifest).unwrap();
        Copy { workspace, manifest, unit: units[0].clone(), units }
    }

    fn record(&mut self) -> &mut ProgramRecord {
        &mut self.manifest.programs[0]
    }

    fn file(&self, form: &str) -> PathBuf {
        self.workspace.programs(ARCH).join(artifacts::file_name(&self.manifest.programs[0], form))
    }

    fn facts(&self) -> CubinFacts {
        resources::cubin_facts(&self.bytes("cubin"), self.unit.entry).unwrap()
    }

    fn bytes(&self, form: &str) -> Vec<u8> {
        artifacts::read_program(&self.workspace, ARCH, &self.manifest.programs[0], form).unwrap()
    }

    fn ptx(&self) -> String {
        String::from_utf8(self.bytes("ptx")).unwrap()
    }

    fn program(&self) -> Vec<String> {
        program::findings(&self.unit, &self.manifest.programs[0], &self.facts(), &self.ptx())
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.workspace.root);
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, target).unwrap();
        }
    }
}

/// Exactly one finding, and it says this.
#[track_caller]
fn assert_one(findings: &[String], part: &str) {
    assert!(findings.len() == 1 && findings[0].contains(part), "expected one finding with `{part}`: {findings:#?}");
}

#[test]
fn the_unbroken_copy_has_no_finding() {
    let copy = Copy::new();
    let record = &copy.manifest.programs[0];
    let findings = [
        copy.program(),
        coverage::sources(&copy.workspace, &copy.unit, record),
        coverage::promises(ARCH, &copy.units, &copy.manifest),
        embedded::bytes(&copy.workspace, ARCH, record),
        embedded::index(&copy.workspace, &copy.manifest),
        embedded::package_size(&copy.workspace, ARCH),
    ];
    assert!(findings.concat().is_empty(), "{findings:#?}");
}

#[test]
fn embedded_bytes_must_be_those_of_the_manifest() {
    let copy = Copy::new();
    let mut ptx = copy.bytes("ptx");
    *ptx.last_mut().unwrap() ^= 1;
    std::fs::write(copy.file("ptx"), zstd::encode_all(&ptx[..], 3).unwrap()).unwrap();
    let bytes = || embedded::bytes(&copy.workspace, ARCH, &copy.manifest.programs[0]);
    assert_one(&bytes(), "embedded ptx: the manifest records");
    std::fs::write(copy.file("ptx"), "not zstd").unwrap();
    assert_one(&bytes(), "is not a zstd file");
    std::fs::remove_file(copy.file("ptx")).unwrap();
    assert_one(&bytes(), "cannot read");
}

#[test]
fn the_index_must_be_that_of_the_manifest() {
    let copy = Copy::new();
    std::fs::write(copy.workspace.programs(ARCH).join("stray.cubin.zst"), "x").unwrap();
    assert_one(&embedded::index(&copy.workspace, &copy.manifest), "programs/stray.cubin.zst belongs to no record");
    std::fs::remove_file(copy.workspace.programs(ARCH).join("stray.cubin.zst")).unwrap();
    std::fs::write(copy.workspace.arch_crate(ARCH).join("src/programs.rs"), "").unwrap();
    assert_one(&embedded::index(&copy.workspace, &copy.manifest), "src/programs.rs is not the one of the manifest");
}

#[test]
fn a_changed_added_or_removed_source_is_noticed() {
    let mut copy = Copy::new();
    let source = copy.workspace.root.join("kernels").join(copy.unit.source);
    let original = std::fs::read_to_string(&source).unwrap();
    let check = |copy: &Copy| coverage::sources(&copy.workspace, &copy.unit, &copy.manifest.programs[0]);

    std::fs::write(&source, original.clone() + "\n").unwrap();
    assert_one(&check(&copy), &format!("kernels/{} changed since", copy.unit.source));
    std::fs::write(&source, original).unwrap();

    let header = "kernels/device/schedule_types.cuh".to_owned();
    let digest = copy.record().sources.remove(&header).unwrap();
    assert_one(&check(&copy), &format!("{header} was added"));
    copy.record().sources.insert(header, digest.clone());
    copy.record().sources.insert("kernels/gone.cuh".to_owned(), digest);
    assert_one(&check(&copy), "kernels/gone.cuh is recorded but no longer included");
    copy.record().sources.remove("kernels/gone.cuh");
    copy.record().closure = Sha256Hex::of(b"other flags");
    assert_one(&check(&copy), "flags or toolchain changed");
}

#[test]
fn a_changed_schedule_is_a_changed_source_and_a_changed_record() {
    let mut copy = Copy::new();
    copy.unit.facts.push(bakewell_core::schedule::Fact::int("added", 1));
    let found = coverage::sources(&copy.workspace, &copy.unit, &copy.manifest.programs[0]);
    assert!(found.iter().any(|finding| finding.contains("schedule.cuh changed")), "{found:#?}");
    assert!(found.iter().any(|finding| finding.contains("recorded schedule is not the one")), "{found:#?}");
}

#[test]
fn a_promised_program_must_be_there_and_no_other() {
    let mut copy = Copy::new();
    assert_one(
        &coverage::promises(ARCH, &copy.units[1..], &copy.manifest),
        &format!("{}: a program without a schedule", copy.unit.name()),
    );
    let without_schedules = coverage::promises(ARCH, &[], &Manifest { programs: Vec::new(), ..copy.manifest.clone() });
    for operation in Operation::ALL {
        let missing = format!("{ARCH}: {operation} has no schedule");
        assert!(without_schedules.contains(&missing), "{without_schedules:#?}");
    }
    copy.manifest.programs.remove(0);
    assert_one(
        &coverage::promises(ARCH, &copy.units, &copy.manifest),
        &format!("{}: the schedule has no program", copy.unit.name()),
    );
}

#[test]
fn another_toolchain_is_noticed() {
    let mut copy = Copy::new();
    copy.manifest.toolchain.insert("nvidia-cuda-nvcc".to_owned(), "13.4.0".to_owned());
    assert_one(&coverage::promises(ARCH, &copy.units, &copy.manifest), "names another toolchain");
}

#[test]
fn spills_stack_and_local_memory_are_refused() {
    let mut copy = Copy::new();
    copy.record().resources.spill_store_bytes = 8;
    assert_one(&copy.program(), "8 bytes of spill stores");
    copy.record().resources.spill_store_bytes = 0;
    copy.record().resources.spill_load_bytes = 4;
    assert_one(&copy.program(), "4 bytes of spill loads");
    copy.record().resources.spill_load_bytes = 0;
    copy.record().resources.opcodes.insert("LDL.64".to_owned(), 2);
    assert_one(&copy.program(), "2 LDL.64: local memory");
    copy.record().resources.opcodes.remove("LDL.64");
    copy.record().resources.stack_bytes = 16;
    assert_one(&program::no_local_memory(&copy.manifest.programs[0]), "16 bytes of stack frame");
    assert_one(
        &program::recorded_resources(&copy.manifest.programs[0], &copy.facts()),
        "stack_bytes: the manifest says 16, the cubin 0",
    );
}

#[test]
fn resources_are_those_of_the_cubin() {
    let mut copy = Copy::new();
    copy.record().resources.registers += 1;
    assert_one(&copy.program(), "registers: the manifest says");
}

#[test]
fn budgets_of_schedule_manifest_and_program_must_agree() {
    let mut copy = Copy::new();
    copy.record().budgets.barrier_bytes += 8;
    assert_one(&copy.program(), "budget barrier_bytes: the schedule gives");
    copy.record().budgets.barrier_bytes -= 8;

    copy.unit.budgets.dynamic_shared_bytes += 16;
    let found = copy.program();
    assert!(found[0].contains("dynamic_shared_bytes") && found[0].contains("the manifest"), "{found:#?}");
    assert!(found[1].contains("dynamic_shared_bytes") && found[1].contains("the compiled program"), "{found:#?}");
    copy.unit.budgets.dynamic_shared_bytes -= 16;

    copy.unit.budgets.threads += 32;
    let found = copy.program();
    assert!(found.iter().any(|finding| finding.starts_with("launch bounds: ")), "{found:#?}");
}

#[test]
fn too_much_shared_memory_is_refused() {
    let copy = Copy::new();
    let facts = CubinFacts { static_shared_bytes: ARCH.limits().shared_bytes_per_cta, ..copy.facts() };
    assert_one(&program::shared_memory(&copy.unit, &facts), "bytes of shared memory; a CTA of sm107 has");
}

#[test]
fn a_missing_opcode_is_noticed() {
    let mut copy = Copy::new();
    let required = copy.unit.required_opcodes[0];
    copy.record().resources.opcodes.retain(|opcode, _| !opcode.starts_with(required));
    assert_one(&copy.program(), &format!("the SASS has no {required}"));
}

#[test]
fn another_parameter_layout_is_refused() {
    let mut copy = Copy::new();
    copy.record().abi = Sha256Hex::of(b"other layout");
    assert_one(&copy.program(), "parameter layout: the host's has hash");
    copy.record().abi = copy.unit.params.abi_hash();
    let facts = CubinFacts { parameter_bytes: copy.facts().parameter_bytes + 8, ..copy.facts() };
    assert_one(
        &program::parameters(&copy.unit, &copy.manifest.programs[0], &facts, &copy.ptx()),
        "parameter block: the host writes",
    );
    copy.unit.entry = "renamed";
    let facts = CubinFacts { parameter_bytes: copy.unit.params.size(), ..CubinFacts::default() };
    assert_one(
        &program::parameters(&copy.unit, &copy.manifest.programs[0], &facts, &copy.ptx()),
        "the PTX has no entry renamed",
    );
}

#[test]
fn forbidden_text_in_the_ptx_is_found_with_its_line() {
    let copy = Copy::new();
    for (line, part) in [
        ("mov.u32 %r1, %smid;", "`%smid`"),
        (".file 1 \"long.cu\"", "`.file`"),
        (".global .b32 _ZN27_INTERNAL_ac69b174_1;", "`_INTERNAL_`"),
    ] {
        let found = program::text(&copy.unit, &format!("{}\n{line}\n", copy.ptx()));
        assert_one(&found, part);
        assert!(found[0].contains(line), "{found:?}");
    }
    assert_one(&program::text(&copy.unit, &copy.ptx().replace(".target sm_107a", ".target sm_100a")), "no line");
}

#[test]
fn evidence_must_be_about_bytes_that_ship() {
    let copy = Copy::new();
    let record = &copy.manifest.programs[0];
    let evidence = |sha256: &Sha256Hex| EvidenceFile {
        records: vec![EvidenceRecord {
            operation: record.operation,
            variant: record.variant.clone(),
            sha256: sha256.clone(),
            evidence: Evidence::Emulator { seeds: 16 },
        }],
    };
    let path = copy.workspace.programs(ARCH).join("evidence.json");
    artifacts::write_json(&path, &evidence(&record.ptx.sha256)).unwrap();
    assert!(embedded::evidence(&copy.workspace, &copy.manifest).is_empty());
    artifacts::write_json(&path, &evidence(&record.cubin.sha256)).unwrap();
    assert_one(&embedded::evidence(&copy.workspace, &copy.manifest), "is about bytes that do not ship");
}

#[test]
fn a_package_that_no_registry_takes_is_noticed() {
    let copy = Copy::new();
    std::fs::write(copy.workspace.programs(ARCH).join("large.bin"), vec![0; 9 << 20]).unwrap();
    assert_one(&embedded::package_size(&copy.workspace, ARCH), "a package may have");
}
