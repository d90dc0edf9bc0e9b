//! A call whose tensors pass 2^31 elements, of many sequences and heads, compared with what the device makes of a few.

use bakewell::gdn::{Backward, Forward};
use bakewell::{Device, Error, Operation};
use bakewell_conformance::gdn::repeated::{Repeated, borders, few, problem};
use bakewell_conformance::gdn::{Inputs, run};

use crate::verify::case::{AnyCase, CaseOutcome};

const HEADS: u64 = 16;
const VALUE_HEADS: u64 = 48;
const LENGTH: u64 = 256;
/// `o` and `dv` have more than 2^31 elements, the states of the chunks more than 2^32.
const SEQUENCES: u64 = 1366;

/// The case.
pub(super) struct AtScale;

impl AtScale {
    fn inputs() -> anyhow::Result<Inputs> {
        Ok(few(HEADS, VALUE_HEADS, LENGTH)?)
    }

    fn verify(device: &Device, inputs: &Inputs) -> anyhow::Result<()> {
        let wanted = run(device, inputs)?.outputs;
        let call = Repeated::run(device, inputs, SEQUENCES)?;
        match call.difference(&wanted, &borders(&problem(inputs, SEQUENCES)))? {
            Some(difference) => Err(anyhow::anyhow!(difference)),
            None => Ok(()),
        }
    }
}

impl AnyCase for AtScale {
    fn outcome(&self, device: &Device, others: &[Device]) -> CaseOutcome {
        let inputs = AtScale::inputs();
        let mut outcome = CaseOutcome {
            operation: Operation::Gdn,
            case: format!("sequences_{SEQUENCES}_of_{LENGTH}_heads_{VALUE_HEADS}_borders"),
            against: "a few of its sequences",
            program: None,
            variants: Vec::new(),
            figures: None,
            failure: None,
            warnings: Vec::new(),
            skipped: None,
        };
        if let Ok(inputs) = &inputs {
            let problem = problem(inputs, SEQUENCES);
            let plans = (device.plan(&Forward(problem.clone())), device.plan(&Backward(problem)));
            if let (Ok(forward), Ok(backward)) = plans {
                outcome.program = Some([forward.programs(), backward.programs()].concat().join(" + "));
                let schedules = [forward.schedules(), backward.schedules()].concat();
                outcome.variants = schedules.iter().map(|schedule| schedule.variant()).collect();
            }
        }
        let ran = inputs.and_then(|inputs| {
            std::iter::once(device).chain(others).try_for_each(|device| AtScale::verify(device, &inputs))
        });
        match ran {
            Err(error) if is_out_of_memory(&error) => outcome.skipped = Some(crate::report::one_line(&error)),
            ran => outcome.failure = ran.err().map(|error| crate::report::one_line(&error)),
        }
        outcome
    }
}

/// Whether the device lacks the 65 GB that the call takes.
fn is_out_of_memory(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Driver { name, .. }) if name == "CUDA_ERROR_OUT_OF_MEMORY")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_the_memory_is_told_from_a_wrong_result() {
        let driver =
            |name: &str| Error::Driver { call: "cuMemAlloc_v2", program: String::new(), code: 2, name: name.into() };
        assert!(is_out_of_memory(&driver("CUDA_ERROR_OUT_OF_MEMORY").into()));
        assert!(!is_out_of_memory(&driver("CUDA_ERROR_ILLEGAL_ADDRESS").into()));
        assert!(!is_out_of_memory(&anyhow::anyhow!("o: bytes differ")));
    }

    #[test]
    fn the_problem_is_valid_and_passes_every_border() {
        let inputs = AtScale::inputs().unwrap();
        let problem = problem(&inputs, SEQUENCES);
        problem.validate().unwrap();
        assert!(problem.v_shape().iter().product::<u64>() > 1 << 31);
        let states = SEQUENCES * LENGTH / 64 * VALUE_HEADS * 128 * 128;
        assert!(states > 1 << 32);
        let borders = borders(&problem);
        assert!(borders.len() > 2 && borders.first() == Some(&0) && borders.last() == Some(&(SEQUENCES - 1)));
    }
}
