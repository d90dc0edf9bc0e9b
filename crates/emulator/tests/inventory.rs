//! Instruction forms of production kernels: each has a row in the table for the targets where it was seen, or is refused
//! with a reason.

use bakewell_emulator::Target;
use bakewell_emulator::decode::Refusal;
use bakewell_emulator::isa::table::TABLE;
use bakewell_emulator::parse::ast::{Instruction, Operand};

/// `form,count,targets`, most frequent first.
const FORMS: &str = include_str!("data/production_forms.csv");

/// Version of the modules that the forms come from.
const VERSION: u16 = 95;

/// What the table says of a form with whatever number of operands it takes.
fn look_up(form: &str, target: Target) -> Result<(), Refusal> {
    let mut words = form.split('.').map(str::to_string);
    let mnemonic = words.next().unwrap_or_default();
    let modifiers: Vec<String> = words.collect();
    let mut refusal = None;
    for operands in 0..12 {
        let instruction = Instruction {
            guard: None,
            mnemonic: mnemonic.clone(),
            modifiers: modifiers.clone(),
            operands: vec![Operand::Sink; operands],
            line: 1,
        };
        match TABLE.find(&instruction, target, VERSION) {
            Ok(_) => return Ok(()),
            Err(Refusal::Missing(reason)) if reason.starts_with("expected operands") => {}
            Err(reason) => refusal = Some(reason),
        }
    }
    Err(refusal.unwrap_or_else(|| Refusal::Missing("no number of operands fits".to_string())))
}

#[test]
fn production_forms_have_rows() {
    let mut missing = Vec::new();
    let mut refused = Vec::new();
    let mut known = 0;
    for line in FORMS.lines().skip(1) {
        let mut columns = line.split(',');
        let (Some(form), Some(count), Some(targets)) = (columns.next(), columns.next(), columns.next()) else {
            panic!("{line}: expected three columns");
        };
        for target in targets.split(' ').filter_map(Target::parse) {
            match look_up(form, target) {
                Ok(()) => known += 1,
                Err(Refusal::Refused(reason)) => refused.push(format!("{form} on {target}: {reason}")),
                Err(reason) => missing.push(format!("{form} ({count} uses) on {target}: {reason:?}")),
            }
        }
    }
    assert!(missing.is_empty(), "{} forms are missing:\n{}", missing.len(), missing.join("\n"));
    assert!(refused.iter().all(|line| REFUSED.iter().any(|form| line.starts_with(form))), "{}", refused.join("\n"));
    assert!(known > 600, "{known} forms");
}

/// Forms that are refused on purpose: their meaning is not established.
const REFUSED: &[&str] = &["tcgen05.alloc.exclusive", "tcgen05.dealloc.exclusive"];
