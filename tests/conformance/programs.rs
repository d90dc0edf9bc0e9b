//! What ships: a program for every schedule, whole, and of this version.

use bakewell::architectures::compiled;
use bakewell::program::Evidence;

#[test]
fn every_schedule_has_its_program() {
    for compiled in compiled() {
        let (architecture, library) = (compiled.architecture, compiled.library().unwrap());
        assert_eq!(library.programs.len(), architecture.schedules().len(), "{}", architecture.arch);
        for schedule in architecture.schedules() {
            let program = library.program(schedule.operation(), &schedule.variant()).unwrap();
            let (record, name) = (program.record, program.name());
            assert_eq!(record.abi, schedule.params().abi_hash(), "{name}");
            assert_eq!(record.budgets, schedule.budgets(), "{name}");
            assert_eq!(record.entry, schedule.source().1, "{name}");
            assert_eq!((record.resources.stack_bytes, record.resources.spill_store_bytes), (0, 0), "{name}");
            assert_eq!(&program.cubin().unwrap()[..4], b"\x7fELF", "{name}");
            let ptx = program.ptx().unwrap();
            assert!(ptx.contains(&format!(".target {}", architecture.arch.target())), "{name}");
            assert!(ptx.contains(&format!(".entry {}", record.entry)), "{name}");
        }
    }
}

/// Evidence is for the bytes that ship; a record of other bytes does not count.
#[test]
fn evidence_belongs_to_the_shipped_bytes() {
    for compiled in compiled() {
        let library = compiled.library().unwrap();
        for program in &library.programs {
            let mut other = program.record.clone();
            other.cubin.sha256 = bakewell::program::Sha256Hex::of(b"other");
            other.ptx.sha256 = other.cubin.sha256.clone();
            let changed = bakewell::Program { record: Box::leak(Box::new(other)), ..*program };
            assert_eq!(library.evidence(&changed), Evidence::CompiledOnly, "{}", program.name());
        }
    }
}
