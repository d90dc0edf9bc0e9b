//! Goldens and generated cases on every engine.

use bakewell_conformance::Judged;
use bakewell_conformance::nvfp4_pre_attention::{Case, Expected, Inputs, cases};
use bakewell_tests::on_every_engine;
use bakewell_tests::runs::verify;

use super::goldens;

#[test]
fn every_golden_is_met() {
    let goldens = goldens();
    assert_eq!(goldens.len(), 13);
    on_every_engine(|device| {
        for (golden, inputs) in &goldens {
            let expected = Inputs::golden(&golden.file).unwrap().unwrap();
            let verdict = verify(device, inputs, &expected).map_err(|failure| format!("{}: {failure}", golden.name))?;
            println!("{device} {}: {}", golden.name, verdict.summary);
        }
        Ok(())
    });
}

#[test]
fn every_generated_case_is_met() {
    let prepared: Vec<(Case, Inputs, Expected)> = cases()
        .into_iter()
        .enumerate()
        // Each size in one of the two formats here, in both under `bakewell verify`.
        .filter(|(i, _)| i % 4 == 0 || i % 4 == 3)
        .map(|(_, case)| {
            let inputs = case.inputs();
            let expected = inputs.expected().unwrap();
            (case, inputs, expected)
        })
        .collect();
    assert_eq!(prepared.len(), 15);
    on_every_engine(|device| {
        for (case, inputs, expected) in &prepared {
            verify(device, inputs, expected).map_err(|failure| format!("{}: {failure}", case.name))?;
        }
        Ok(())
    });
}
