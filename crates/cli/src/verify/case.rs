//! A case of any operation.

use bakewell::{Device, Error, Operation};
use bakewell_conformance::compare::Comparison;
use bakewell_conformance::{Golden, Judged, Planned, Verdict};
use serde::Serialize;

use crate::report::one_line;

/// What outputs are compared with.
const GOLDEN: &str = "golden";
pub(super) const REFERENCE: &str = "reference";

/// Inputs, and what should come out.
pub(super) struct Case<I: Judged> {
    pub(super) name: String,
    against: &'static str,
    pub(super) inputs: I,
    expected: I::Expected,
}

/// A case whatever its operation.
pub(super) trait AnyCase {
    /// Runs on `device`, again on each of `others` for the same bits, and in other ways that must not change them.
    fn outcome(&self, device: &Device, others: &[Device]) -> CaseOutcome;
}

/// One case.
#[derive(Serialize)]
pub(super) struct CaseOutcome {
    pub(super) operation: Operation,
    pub(super) case: String,
    /// `golden` or `reference`: what the output was compared with.
    pub(super) against: &'static str,
    /// Names of the programs, joined.
    pub(super) program: Option<String>,
    #[serde(skip)]
    pub(super) variants: Vec<String>,
    #[serde(flatten)]
    pub(super) figures: Option<Figures>,
    /// Why the case failed: an error beyond tolerance, a finding of the checker, an error of the device.
    pub(super) failure: Option<String>,
    /// What the emulator warned of; no failure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
    /// Why the case was not run: its shape is not among those compiled for the architecture.
    pub(super) skipped: Option<String>,
}

/// How far an output is from what is expected.
#[derive(Serialize)]
pub(super) struct Figures {
    pub(super) relative_l2: f64,
    pub(super) max_absolute: f64,
    pub(super) max_relative: f64,
    pub(super) worst: Option<String>,
}

impl Figures {
    fn of(comparison: &Comparison) -> Figures {
        Figures {
            relative_l2: comparison.relative_l2,
            max_absolute: comparison.max_absolute,
            max_relative: comparison.max_relative,
            worst: comparison.worst.as_ref().map(ToString::to_string),
        }
    }
}

impl CaseOutcome {
    /// With what a comparison said, or why there was none.
    pub(super) fn judged(self, verdict: anyhow::Result<Verdict>) -> CaseOutcome {
        match verdict {
            Ok(verdict) => {
                CaseOutcome { figures: Some(Figures::of(&verdict.comparison)), failure: verdict.failure, ..self }
            }
            Err(error) => CaseOutcome { failure: Some(one_line(&error)), ..self },
        }
    }
}

impl<I: Judged> Case<I> {
    /// A case of a golden.
    pub(super) fn golden(golden: Golden<I>) -> Case<I> {
        Case { name: golden.name, against: GOLDEN, inputs: golden.inputs, expected: golden.expected }
    }

    /// A case against the reference.
    pub(super) fn generated(name: &str, inputs: I) -> anyhow::Result<Case<I>> {
        Ok(Case { name: name.to_owned(), against: REFERENCE, expected: inputs.expected()?, inputs })
    }

    fn verify(&self, device: &Device, others: &[Device]) -> anyhow::Result<Verdict> {
        let inputs = self.inputs.complete();
        let (first, _) = inputs.run(device)?;
        for other in others {
            anyhow::ensure!(inputs.run(other)?.0 == first, "two runs gave different bits");
        }
        for (how, inputs) in inputs.variations() {
            for (name, tensor) in &inputs.run(device)?.0.0 {
                anyhow::ensure!(first.get(name) == Some(tensor), "{how}: the bits of {name} changed");
            }
        }
        Ok(inputs.judge(&first, &self.expected, device)?)
    }
}

impl<I: Judged> AnyCase for Case<I> {
    fn outcome(&self, device: &Device, others: &[Device]) -> CaseOutcome {
        let plan = self.inputs.plan(device);
        let Planned { programs, schedules, .. } = plan.as_ref().cloned().unwrap_or_default();
        let mut outcome = CaseOutcome {
            operation: I::OPERATION,
            case: self.name.clone(),
            against: self.against,
            program: (!programs.is_empty()).then(|| programs.join(" + ")),
            variants: schedules.iter().map(|schedule| schedule.variant()).collect(),
            figures: None,
            failure: None,
            warnings: Vec::new(),
            skipped: None,
        };
        match plan {
            // Every architecture serves the goldens; generated cases ask for every shape that some architecture serves.
            Err(error @ Error::NoProgram { .. }) if self.against == REFERENCE => {
                outcome.skipped = Some(error.to_string());
                outcome
            }
            _ => outcome.judged(self.verify(device, others)),
        }
    }
}

/// Cases whatever their operation.
pub(super) fn boxed<I: Judged + 'static>(cases: Vec<Case<I>>) -> Vec<Box<dyn AnyCase>> {
    cases.into_iter().map(|case| Box::new(case) as Box<dyn AnyCase>).collect()
}
