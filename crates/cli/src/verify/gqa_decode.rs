//! Golden and generated cases of grouped-query decode attention.

use bakewell::schedule::Schedule as _;
use bakewell::{Device, Operation};
use bakewell_conformance::compare::{Comparison, compare};
use bakewell_conformance::gqa_decode::{
    self, Case as Generated, Expected, Golden, Inputs, Outputs, lse_tolerance, out_tolerance,
};

use super::{Args, Case, CaseOutcome, Figures, folders};

/// Seed of generated inputs.
const INPUT_SEED: u64 = 17;

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
        Ok(GqaDecodeCase { name: golden.name, against: "golden", inputs: golden.inputs, expected })
    }

    fn generated(case: &Generated) -> anyhow::Result<GqaDecodeCase> {
        let inputs = case.inputs(INPUT_SEED)?;
        Ok(GqaDecodeCase { name: case.name.clone(), against: "reference", expected: inputs.expected()?, inputs })
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
        let plan = device.plan(&self.inputs.problem).ok();
        let decision = plan.as_ref().and_then(|plan| plan.decision());
        CaseOutcome {
            operation: Operation::GqaDecode,
            case: self.name.clone(),
            against: self.against,
            program: decision.map(|decision| decision.program()),
            variant: decision.map(|decision| decision.schedule.variant()),
            figures: None,
            failure: None,
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
