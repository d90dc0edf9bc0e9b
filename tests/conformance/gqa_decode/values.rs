//! Goldens and generated cases on every engine.

use bakewell::gqa_decode::GqaDecode;
use bakewell_conformance::gqa_decode::{Case, Inputs};
use bakewell_conformance::{Golden, Judged};
use bakewell_tests::runs::verify;
use bakewell_tests::{cases, data, on_every_engine};

fn goldens() -> Vec<Golden<Inputs>> {
    Golden::load_all(&data("golden/gqa_decode")).unwrap()
}

#[test]
fn every_golden_is_met() {
    let goldens = goldens();
    assert_eq!(goldens.len(), 10);
    on_every_engine(|device| {
        for golden in &goldens {
            let verdict = verify(device, &golden.inputs, &golden.expected)
                .map_err(|failure| format!("{}: {failure}", golden.name))?;
            println!("{device} {}: {}", golden.name, verdict.summary);
        }
        Ok(())
    });
}

/// The reference itself, unrounded, against goldens that were computed by other code: f32 storage of the golden and the
/// order of f64 sums is all that may differ.
#[test]
fn the_reference_agrees_with_every_golden_before_rounding() {
    use bakewell_conformance::compare::{Tolerance, compare};
    for golden in goldens() {
        let expected = golden.inputs.expected().unwrap();
        let shape = golden.inputs.problem.q_shape();
        let comparison = compare(&shape, &expected.out, &golden.expected.out).unwrap();
        let storage = Tolerance { relative_l2: 2f64.powi(-24), absolute: 1e-12, of_peak: 2f64.powi(-24) };
        comparison.verdict(&storage).unwrap_or_else(|failure| panic!("{}: {failure}", golden.name));
    }
}

#[test]
fn every_generated_case_is_met() {
    let cases: Vec<Case> = cases("gqa_decode");
    let prepared: Vec<_> = cases
        .iter()
        .enumerate()
        .map(|(seed, case)| {
            let inputs = case.inputs(seed as u64).unwrap();
            let expected = inputs.expected().unwrap();
            (&case.name, inputs, expected)
        })
        .collect();
    on_every_engine(|device| {
        let mut served = 0;
        for (name, inputs, expected) in &prepared {
            match verify(device, inputs, expected) {
                Ok(_) => served += 1,
                Err(failure) if failure.contains("no program for") => println!("{device} skipped {name}: {failure}"),
                Err(failure) => return Err(format!("{name}: {failure}")),
            }
        }
        println!("{device}: {served} of {} cases", prepared.len());
        Ok(())
    });
}

/// The log-sum-exp of the goldens, which store none, against the reference.
#[test]
fn log_sum_exp_of_the_goldens_is_that_of_the_reference() {
    on_every_engine(|device| {
        for golden in goldens() {
            let problem = GqaDecode { lse: true, ..golden.inputs.problem.clone() };
            let inputs = Inputs { problem, ..golden.inputs };
            let expected = inputs.expected().map_err(|error| error.to_string())?;
            verify(device, &inputs, &expected).map_err(|failure| format!("{}: {failure}", golden.name))?;
        }
        Ok(())
    });
}
