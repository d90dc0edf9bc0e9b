//! Calls of the model's size, compared in every byte: of exact sums with what the reference makes of a few tokens, and
//! of more than 2^32 elements with what the device makes of them.

use std::cell::OnceCell;
use std::rc::Rc;

use bakewell::nvfp4_pre_attention::{Nvfp4PreAttention, OutputFormat};
use bakewell::{Device, Operation};
use bakewell_conformance::nvfp4_pre_attention::Inputs;
use bakewell_conformance::nvfp4_pre_attention::repeated::{Repeated, borders, exact, few};
use bakewell_conformance::{Judged, Outputs};

use crate::verify::case::{AnyCase, CaseOutcome, REFERENCE};

/// Tokens and destinations: around the borders of tiles, and the lengths of the model.
const EXACT: [(u64, u64); 10] =
    [(1, 1), (63, 2), (128, 4), (129, 8), (4184, 8), (6095, 1), (6096, 2), (8368, 4), (16_736, 2), (33_472, 1)];
const EXACT_E4M3: [(u64, u64); 4] = [(129, 4), (6095, 8), (8368, 2), (33_472, 1)];
/// The most tokens that the model may have, and with intermediates so many that each has more than 2^32 elements.
const MOST: u64 = 1_597_829;
const MOST_WITH_INTERMEDIATES: u64 = 800_000;

/// A few tokens and what they give, computed when first needed.
struct Few {
    problem: Nvfp4PreAttention,
    exact: bool,
    made: OnceCell<(Inputs, Outputs)>,
}

impl Few {
    fn new(out_format: OutputFormat, exact: bool, debug: bool) -> Rc<Few> {
        let problem = Nvfp4PreAttention { out_format, debug, ..Nvfp4PreAttention::default() };
        Rc::new(Few { problem, exact, made: OnceCell::new() })
    }

    /// The outputs of the reference where sums are exact, else of the device.
    fn make(&self, device: &Device) -> anyhow::Result<&(Inputs, Outputs)> {
        const SEED: u64 = 41;
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let (inputs, by) = match self.exact {
            true => (exact(&self.problem, SEED)?, Device::reference()?),
            false => (few(&self.problem, SEED), device.clone()),
        };
        let (outputs, _) = inputs.run(&by)?;
        Ok(self.made.get_or_init(|| (inputs, outputs)))
    }
}

/// A call on tokens that repeat the few.
pub(super) struct AtScale {
    few: Rc<Few>,
    tokens: u64,
    destinations: u64,
}

/// Every case.
pub(super) fn cases() -> impl Iterator<Item = AtScale> {
    let of = |few: Rc<Few>, sizes: &[(u64, u64)]| {
        let case = |&(tokens, destinations): &(u64, u64)| AtScale { few: few.clone(), tokens, destinations };
        sizes.iter().map(case).collect::<Vec<_>>()
    };
    [
        of(Few::new(OutputFormat::Nvfp4, true, false), &EXACT),
        of(Few::new(OutputFormat::E4m3, true, false), &EXACT_E4M3),
        of(Few::new(OutputFormat::Nvfp4, false, false), &[(MOST, 1)]),
        of(Few::new(OutputFormat::E4m3, false, true), &[(MOST_WITH_INTERMEDIATES, 1)]),
    ]
    .into_iter()
    .flatten()
}

impl AtScale {
    fn problem(&self) -> Nvfp4PreAttention {
        let &AtScale { tokens, destinations, .. } = self;
        Nvfp4PreAttention { tokens, destinations, ..self.few.problem.clone() }
    }

    fn verify(&self, device: &Device) -> anyhow::Result<()> {
        let (inputs, wanted) = self.few.make(device)?;
        let call = Repeated::run(device, inputs, self.tokens, self.destinations)?;
        let windows = match self.few.exact {
            true => std::iter::once(0..self.tokens).collect(),
            false => borders(&self.problem()),
        };
        match call.difference(wanted, &windows)? {
            Some(difference) => Err(anyhow::anyhow!(difference)),
            None => Ok(()),
        }
    }
}

impl AnyCase for AtScale {
    fn outcome(&self, device: &Device, others: &[Device]) -> CaseOutcome {
        let problem = self.problem();
        let plan = device.plan(&problem);
        let schedules = plan.as_ref().map(|plan| [plan.preparations(), plan.schedules()].concat()).unwrap_or_default();
        let ran = std::iter::once(device).chain(others).try_for_each(|device| self.verify(device));
        let how = if self.few.exact { "exact" } else { "borders" };
        CaseOutcome {
            operation: Operation::Nvfp4PreAttention,
            case: format!("model_m{}_p{}_{}_{how}", self.tokens, self.destinations, problem.out_format.name()),
            against: if self.few.exact { REFERENCE } else { "a few of its tokens" },
            program: plan.as_ref().ok().map(|plan| plan.programs().join(" + ")),
            variants: schedules.iter().map(|schedule| schedule.variant()).collect(),
            figures: None,
            failure: ran.err().map(|error| crate::report::one_line(&error)),
            warnings: Vec::new(),
            skipped: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_valid_and_the_largest_pass_every_border() {
        for case in cases() {
            case.problem().validate().unwrap();
        }
        let large: Vec<u64> = cases().filter(|case| !case.few.exact).map(|case| case.tokens).collect();
        assert_eq!(large, [MOST, MOST_WITH_INTERMEDIATES]);
        let default = Nvfp4PreAttention::default();
        assert!(Nvfp4PreAttention { tokens: MOST + 1, ..default.clone() }.validate().is_err());
        let [tokens, hidden] = Nvfp4PreAttention { tokens: MOST_WITH_INTERMEDIATES, ..default }.x_shape();
        assert!(tokens * hidden > 1 << 32);
    }
}
