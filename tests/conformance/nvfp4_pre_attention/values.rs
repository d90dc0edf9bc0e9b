//! Goldens and generated cases on every engine.

use bakewell::nvfp4_pre_attention::OutputFormat;
use bakewell::{Arch, Device};
use bakewell_conformance::Judged;
use bakewell_conformance::nvfp4_pre_attention::{Case, Expected, Inputs, cases};
use bakewell_tests::on_every_engine;
use bakewell_tests::runs::verify;

use super::goldens;

#[test]
fn every_golden_is_met() {
    let goldens = goldens();
    assert_eq!(goldens.len(), 15);
    on_every_engine(|device| {
        for (golden, inputs) in &goldens {
            let expected = Inputs::golden(&golden.file).unwrap().unwrap();
            let verdict = verify(device, inputs, &expected).map_err(|failure| format!("{}: {failure}", golden.name))?;
            println!("{device} {}: {}", golden.name, verdict.summary);
        }
        Ok(())
    });
}

/// Whether a device runs case `index` here; `bakewell verify` runs all of them on any. Formats are neighbours: on sm90
/// each size is run in one of the two, on one of the architectures with tensor memory each case.
fn runs(device: &Device, index: usize) -> bool {
    const TENSOR_MEMORY: [Arch; 4] = [Arch::Sm100, Arch::Sm103, Arch::Sm107, Arch::Sm110];
    match device.arch() {
        None => true,
        Some(Arch::Sm90) => [0, 3].contains(&(index % 4)),
        Some(arch) => arch == TENSOR_MEMORY[index / 2 % TENSOR_MEMORY.len()],
    }
}

#[test]
fn every_generated_case_is_met() {
    let prepared: Vec<(Case, Inputs, Expected)> = cases()
        .into_iter()
        .map(|case| {
            let inputs = case.inputs();
            let expected = inputs.expected().unwrap();
            (case, inputs, expected)
        })
        .collect();
    assert_eq!(prepared.len(), 96);
    on_every_engine(|device| {
        for (_, (case, inputs, expected)) in prepared.iter().enumerate().filter(|(index, _)| runs(device, *index)) {
            verify(device, inputs, expected).map_err(|failure| format!("{}: {failure}", case.name))?;
        }
        Ok(())
    });
}

/// What the cases are for: every number of tokens around a border with every number of destinations, in both formats.
#[test]
fn generated_cases_cross_tokens_destinations_and_formats() {
    let all = cases();
    for tokens in [1, 2, 7, 8, 15, 16, 127, 128, 129, 255, 257] {
        for destinations in [1, 2, 4, 8] {
            for out_format in [OutputFormat::Nvfp4, OutputFormat::E4m3] {
                let wanted = (tokens, destinations, out_format);
                let is = |case: &Case| {
                    let problem = &case.problem;
                    (problem.tokens, problem.destinations, problem.out_format) == wanted
                };
                assert!(all.iter().any(is), "{wanted:?}");
            }
        }
    }
    for rope_dim in (16..=128).step_by(16).filter(|dim| ![48, 80].contains(dim)) {
        assert!(all.iter().any(|case| case.problem.rope_dim == rope_dim), "{rope_dim}");
    }
}
