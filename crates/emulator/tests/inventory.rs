//! Instruction forms of production kernels: each has a row in the table for the targets where it was seen.

use std::collections::{BTreeMap, BTreeSet};

use bakewell_emulator::Target;
use bakewell_emulator::decode::Refusal;
use bakewell_emulator::isa::TargetWord;
use bakewell_emulator::isa::table::{Handler, TABLE};
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
        match TABLE.find(&instruction, target, TargetWord::exactly(target), VERSION) {
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
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert_eq!((FORMS.lines().count() - 1, known), COVERED, "forms, and forms covered on their targets");
}

/// Forms of the list, and those that are executed, each counted for every target that it was seen on.
const COVERED: (usize, usize) = (382, 713);

/// Reasons of refusals, with the forms that they are for.
fn refusals() -> BTreeMap<&'static str, BTreeSet<String>> {
    let mut reasons: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for row in TABLE.rows() {
        let reason = match row.handler {
            Handler::Decode(_) => continue,
            Handler::Missing => "not written",
            Handler::Refused(reason) => reason,
        };
        // The mnemonic and the words that every such instruction has.
        let words = row.form.split(' ').filter(|word| !word.starts_with(['(', '{', '*']));
        let words: Vec<&str> = words.collect();
        reasons.entry(reason).or_default().insert(format!("`{}`", words.join(".")));
    }
    reasons
}

#[test]
fn refusals_are_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/emulator_model.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (_, listed) = page.split_once("| reason | forms |\n|---|---|\n").unwrap();
    let row = |(reason, forms): (&str, BTreeSet<String>)| {
        format!("| {reason} | {} |", forms.into_iter().collect::<Vec<_>>().join(", "))
    };
    let wanted: Vec<String> = refusals().into_iter().map(row).collect();
    assert_eq!(listed.lines().collect::<Vec<_>>(), wanted, "{path} should list:\n{}", wanted.join("\n"));
}
