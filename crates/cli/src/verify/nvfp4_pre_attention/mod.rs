//! Golden and generated cases of NVFP4 pre-attention, and of schedules that no route chooses.
//!
//! | module | cases |
//! |---|---|
//! | [`at_scale`] | calls of the model's size, on a GPU |

mod at_scale;

use bakewell::program::program_name;
use bakewell::schedule::Schedule;
use bakewell::schedule::nvfp4_pre_attention::Tables;
use bakewell::schedule::nvfp4_pre_attention::tcgen05::Tcgen05;
use bakewell::{Device, Operation, architectures};
use bakewell_conformance::nvfp4_pre_attention::{self, Expected, Inputs, tcgen05};
use bakewell_conformance::{Golden, Judged, Verdict};

use super::case::{AnyCase, Case, CaseOutcome, REFERENCE, boxed};
use super::{Args, folders, gpu_name};

/// Goldens; with the source tree's also the generated cases, one for each schedule that no plan could choose, and on a
/// GPU calls of the model's size.
pub(super) fn cases(args: &Args, device: &Device) -> anyhow::Result<Vec<Box<dyn AnyCase>>> {
    let (goldens, generated) = folders(args, Operation::Nvfp4PreAttention)?;
    let mut cases: Vec<_> = Golden::<Inputs>::load_all(&goldens)?.into_iter().map(Case::golden).collect();
    if generated.is_none() {
        return Ok(boxed(cases));
    }
    for case in nvfp4_pre_attention::cases() {
        cases.push(Case::generated(&case.name, case.inputs())?);
    }
    let mut cases = boxed(cases);
    if let Some(arch) = device.arch() {
        let tables = &architectures::find(arch)?.architecture.nvfp4_pre_attention;
        cases.extend(unrouted(tables).map(|schedule| Box::new(Alone(schedule)) as Box<dyn AnyCase>));
    }
    if gpu_name(device).is_some() {
        cases.extend(at_scale::cases().map(|case| Box::new(case) as Box<dyn AnyCase>));
    }
    Ok(cases)
}

/// Schedules of the GEMM that are there to be compared with: no route names them.
fn unrouted(tables: &'static Tables) -> impl Iterator<Item = &'static Tcgen05> {
    let routes = tables.tcgen05.routes;
    tables.tcgen05.schedules.iter().filter(|schedule| routes.iter().all(|route| route.then.schedule != schedule.name))
}

/// A schedule of the GEMM alone, on the activation of the reference and the first generated case that it serves.
struct Alone(&'static Tcgen05);

impl Alone {
    fn verify(&self, device: &Device, others: &[Device]) -> anyhow::Result<Verdict> {
        let case = nvfp4_pre_attention::cases().into_iter().find(|case| tcgen05::serves(self.0, &case.problem));
        let inputs = case.ok_or_else(|| anyhow::anyhow!("no generated case is one that it serves"))?.inputs();
        let stages = inputs.stages()?;
        let first = tcgen05::run(device, self.0, &inputs, &stages)?;
        for other in others {
            anyhow::ensure!(tcgen05::run(other, self.0, &inputs, &stages)? == first, "two runs gave different bits");
        }
        Ok(inputs.judge(&first, &Expected::of(stages), device)?)
    }
}

impl AnyCase for Alone {
    fn outcome(&self, device: &Device, others: &[Device]) -> CaseOutcome {
        let variant = self.0.variant();
        let outcome = CaseOutcome {
            operation: Operation::Nvfp4PreAttention,
            case: format!("schedule_{variant}"),
            against: REFERENCE,
            program: device.arch().map(|arch| program_name(arch, Operation::Nvfp4PreAttention, &variant)),
            variants: vec![variant],
            figures: None,
            failure: None,
            warnings: Vec::new(),
            skipped: None,
        };
        outcome.judged(self.verify(device, others))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bakewell::Problem;
    use bakewell::nvfp4_pre_attention::{Nvfp4PreAttention, decide};

    use super::super::tests_folder;
    use super::*;

    #[test]
    fn every_schedule_of_every_architecture_has_a_case() {
        let goldens = tests_folder("nvfp4_pre_attention").unwrap().join("golden/nvfp4_pre_attention");
        let goldens = Golden::<Inputs>::load_all(&goldens).unwrap().into_iter().map(|golden| golden.inputs.problem);
        let problems: Vec<Nvfp4PreAttention> =
            goldens.chain(nvfp4_pre_attention::cases().into_iter().map(|case| case.problem)).collect();
        for compiled in architectures::compiled() {
            let architecture = compiled.architecture;
            let tables = &architecture.nvfp4_pre_attention;
            let mut run: BTreeSet<String> = unrouted(tables).map(Schedule::variant).collect();
            for problem in &problems {
                let decision = decide(problem, architecture, architecture.arch.typical_sm_count()).unwrap();
                let of_plan = Nvfp4PreAttention::schedules(&decision);
                let schedules = of_plan.into_iter().chain(Nvfp4PreAttention::preparations(&decision));
                run.extend(schedules.map(|schedule| schedule.variant()));
            }
            let never: Vec<String> = tables
                .schedules()
                .map(|schedule| schedule.variant())
                .filter(|variant| !run.contains(variant))
                .collect();
            assert!(never.is_empty(), "no case on {} runs {never:?}", architecture.arch);
            for schedule in unrouted(tables) {
                let serves = |case: &nvfp4_pre_attention::Case| tcgen05::serves(schedule, &case.problem);
                assert!(nvfp4_pre_attention::cases().iter().any(serves), "{}", schedule.variant());
            }
        }
    }
}
