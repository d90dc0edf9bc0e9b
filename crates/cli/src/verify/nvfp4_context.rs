//! Golden and generated cases of NVFP4 paged-context attention.

use bakewell::{Device, Error, Operation};
use bakewell_conformance::compare::compare;
use bakewell_conformance::nvfp4_context::inputs::decode;
use bakewell_conformance::nvfp4_context::{self, Expected, Gates, Golden, Inputs, Outputs, ScaleOrigin, judge};

use super::{Args, Case, CaseOutcome, Figures, folders};

struct Nvfp4ContextCase {
    name: String,
    against: &'static str,
    inputs: Inputs,
    expected: Expected,
}

impl Nvfp4ContextCase {
    fn generated(case: &nvfp4_context::Case) -> anyhow::Result<Nvfp4ContextCase> {
        let inputs = case.inputs();
        Ok(Nvfp4ContextCase { name: case.name.clone(), against: "reference", expected: inputs.expected()?, inputs })
    }

    /// The outputs, if every run gave the same bits, with host and device scales, with and without log-sum-exp.
    fn run(&self, device: &Device, others: &[Device]) -> anyhow::Result<Outputs> {
        let mut wanted = self.inputs.clone();
        wanted.problem.lse = true;
        let first = nvfp4_context::run(device, &wanted, ScaleOrigin::Host)?.outputs;
        for other in others {
            let again = nvfp4_context::run(other, &wanted, ScaleOrigin::Host)?.outputs;
            anyhow::ensure!(again == first, "two runs gave different bits");
        }
        wanted.problem.lse = false;
        let without = nvfp4_context::run(device, &wanted, ScaleOrigin::Device)?.outputs;
        anyhow::ensure!(
            without.out == first.out,
            "device scales without the log-sum-exp changed the bits of the output"
        );
        Ok(first)
    }
}

impl Case for Nvfp4ContextCase {
    fn outcome(&self, device: &Device) -> CaseOutcome {
        let plan = device.plan(&self.inputs.problem);
        let decision = plan.as_ref().ok().and_then(|plan| plan.decision());
        let skipped = match &plan {
            Err(error @ Error::NoProgram { .. }) => Some(error.to_string()),
            _ => None,
        };
        CaseOutcome {
            operation: Operation::Nvfp4Context,
            case: self.name.clone(),
            against: self.against,
            program: decision.map(|decision| decision.program()),
            variant: decision.map(|decision| bakewell::schedule::Schedule::variant(decision.schedule)),
            figures: None,
            failure: None,
            skipped,
        }
    }

    fn verify(&self, device: &Device, others: &[Device]) -> anyhow::Result<(Figures, Result<(), String>)> {
        let outputs = self.run(device, others)?;
        let splits = device.plan(&self.inputs.problem)?.decision().map_or(1, |decision| decision.splits);
        let judgement = judge(&self.inputs, &outputs, &self.expected, Gates::of(device.arch(), splits))?;
        let comparison = compare(&outputs.out.shape, &decode(&outputs.out.bytes), &self.expected.exact)?;
        Ok((Figures::of(&comparison), judgement.failure.map_or(Ok(()), Err)))
    }
}

/// Goldens, and with the source tree's also the generated cases.
pub(super) fn cases(args: &Args) -> anyhow::Result<Vec<Box<dyn Case>>> {
    let (goldens, generated) = folders(args, Operation::Nvfp4Context)?;
    let mut cases: Vec<Box<dyn Case>> = Vec::new();
    for golden in Golden::load_all(&goldens)? {
        for (suffix, splits) in [("", Some(1)), (" split", Some(2))] {
            let mut golden = golden.clone();
            golden.inputs.problem.num_splits = splits;
            cases.push(Box::new(Nvfp4ContextCase {
                name: format!("{}{suffix}", golden.name),
                against: "golden",
                inputs: golden.inputs,
                expected: golden.expected,
            }));
        }
    }
    if generated.is_some() {
        for case in nvfp4_context::cases() {
            cases.push(Box::new(Nvfp4ContextCase::generated(&case)?));
        }
    }
    Ok(cases)
}
