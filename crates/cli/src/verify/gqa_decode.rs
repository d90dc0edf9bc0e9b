//! Golden and generated cases of grouped-query decode attention.

use bakewell::schedule::Schedule as _;
use bakewell::{Device, Error, Operation};
use bakewell_conformance::compare::{Comparison, compare};
use bakewell_conformance::gqa_decode::{
    self, Case as Generated, Expected, Golden, Inputs, Outputs, lse_tolerance, out_tolerance,
};

use super::{Args, Case, CaseOutcome, Figures, folders};

/// Seed of generated inputs.
const INPUT_SEED: u64 = 17;

/// What outputs are compared with.
const GOLDEN: &str = "golden";
const REFERENCE: &str = "reference";

/// One case of grouped-query decode attention.
struct GqaDecodeCase {
    name: String,
    against: &'static str,
    inputs: Inputs,
    expected: Expected,
}

impl GqaDecodeCase {
    fn from_golden(golden: Golden) -> anyhow::Result<GqaDecodeCase> {
        // A golden has no log-sum-exp: the reference gives it.
        let lse = golden.inputs.expected()?.lse;
        let expected = Expected { lse, ..golden.expected };
        Ok(GqaDecodeCase { name: golden.name, against: GOLDEN, inputs: golden.inputs, expected })
    }

    fn generated(case: &Generated) -> anyhow::Result<GqaDecodeCase> {
        let inputs = case.inputs(INPUT_SEED)?;
        Ok(GqaDecodeCase { name: case.name.clone(), against: REFERENCE, expected: inputs.expected()?, inputs })
    }

    /// The outputs, if every run gave the same bits, and the same without the log-sum-exp.
    fn run(&self, device: &Device, others: &[Device]) -> anyhow::Result<Outputs> {
        let mut wanted = self.inputs.clone();
        wanted.problem.lse = true;
        let first = gqa_decode::run(device, &wanted)?.outputs;
        for other in others {
            anyhow::ensure!(gqa_decode::run(other, &wanted)?.outputs == first, "two runs gave different bits");
        }
        wanted.problem.lse = false;
        let without = gqa_decode::run(device, &wanted)?.outputs;
        anyhow::ensure!(without.out == first.out, "asking for the log-sum-exp changed the bits of the output");
        Ok(first)
    }

    /// The comparison of the output, and the verdict on output and log-sum-exp.
    fn judge(&self, outputs: &Outputs) -> bakewell::Result<(Comparison, Result<(), String>)> {
        let out = compare(&outputs.out.shape, &outputs.out.to_f64()?, &self.expected.out)?;
        let mut verdict =
            out.verdict(&out_tolerance(self.inputs.problem.dtype)).map_err(|reason| format!("out: {reason}"));
        if let (Ok(()), Some(lse), Some(expected)) = (&verdict, &outputs.lse, &self.expected.lse) {
            let lse = compare(&lse.shape, &lse.to_f64()?, expected)?;
            verdict = lse.verdict(&lse_tolerance(&self.inputs)?).map_err(|reason| format!("lse: {reason}"));
        }
        Ok((out, verdict))
    }
}

impl Case for GqaDecodeCase {
    fn outcome(&self, device: &Device) -> CaseOutcome {
        let plan = device.plan(&self.inputs.problem);
        let decision = plan.as_ref().ok().and_then(|plan| plan.decision());
        // Every architecture serves the goldens; generated cases ask for every shape that some architecture serves.
        let skipped = match &plan {
            Err(error @ Error::NoProgram { .. }) if self.against == REFERENCE => Some(error.to_string()),
            _ => None,
        };
        CaseOutcome {
            operation: Operation::GqaDecode,
            case: self.name.clone(),
            against: self.against,
            program: decision.map(|decision| decision.program()),
            variant: decision.map(|decision| decision.schedule.variant()),
            figures: None,
            failure: None,
            skipped,
        }
    }

    fn verify(&self, device: &Device, others: &[Device]) -> anyhow::Result<(Figures, Result<(), String>)> {
        let (comparison, verdict) = self.judge(&self.run(device, others)?)?;
        Ok((Figures::of(&comparison), verdict))
    }
}

/// Goldens, and with the source tree's also the generated cases.
pub(super) fn cases(args: &Args) -> anyhow::Result<Vec<Box<dyn Case>>> {
    let (goldens, generated) = folders(args, Operation::GqaDecode)?;
    let mut cases: Vec<Box<dyn Case>> = Vec::new();
    for golden in Golden::load_all(&goldens)? {
        cases.push(Box::new(GqaDecodeCase::from_golden(golden)?));
    }
    if let Some(text) = generated.and_then(|path| std::fs::read_to_string(path).ok()) {
        let generated: Vec<Generated> = serde_json::from_str(&text)?;
        for case in &generated {
            cases.push(Box::new(GqaDecodeCase::generated(case)?));
        }
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bakewell::architectures;
    use bakewell::gqa_decode::{GqaDecode, decide};

    use super::super::tests_folder;
    use super::*;

    /// A program that no case runs could never gain evidence.
    #[test]
    fn the_cases_of_the_source_tree_run_every_program() {
        let tests = tests_folder("gqa_decode").unwrap();
        let text = std::fs::read_to_string(tests.join("cases/gqa_decode.json")).unwrap();
        let generated: Vec<Generated> = serde_json::from_str(&text).unwrap();
        let goldens = Golden::load_all(&tests.join("golden/gqa_decode")).unwrap();
        let mut problems: Vec<GqaDecode> = goldens.into_iter().map(|golden| golden.inputs.problem).collect();
        problems.extend(generated.into_iter().map(|case| GqaDecode { batch: 2, ..case.problem }));
        for compiled in architectures::compiled() {
            let (architecture, library) = (compiled.architecture, compiled.library().unwrap());
            let decide = |problem| decide(problem, architecture, architecture.arch.typical_sm_count());
            let run: BTreeSet<String> =
                problems.iter().filter_map(|problem| Some(decide(problem).ok()?.schedule.variant())).collect();
            let mine = library.programs.iter().filter(|program| program.record.operation == Operation::GqaDecode);
            let never: Vec<String> =
                mine.filter(|program| !run.contains(&program.record.variant)).map(|program| program.name()).collect();
            assert!(never.is_empty(), "no case runs {never:?}");
        }
    }
}
