//! Golden and generated cases of grouped-query decode attention, and on a GPU replays of captured launches.

use std::collections::BTreeSet;

use bakewell::cuda::CudaRuntime;
use bakewell::gqa_decode::{GqaDecode, decide};
use bakewell::schedule::Schedule as _;
use bakewell::schedule::gqa_decode::GqaDecode as Schedule;
use bakewell::{Architecture, Device, DeviceName, Operation, architectures};
use bakewell_conformance::gqa_decode::replays::{CHANGED, replays};
use bakewell_conformance::gqa_decode::{Case as Generated, Distribution, Inputs, inputs::Lengths};
use bakewell_conformance::graphs::replays_are_fresh_launches;
use bakewell_conformance::{Golden, Judged, Planned};

use super::case::{AnyCase, Case, CaseOutcome, boxed};
use super::{Args, folders};
use crate::report::one_line;

/// Seed of generated inputs.
const INPUT_SEED: u64 = 17;

/// Goldens; with the source tree's also the generated cases, one for each program that none of these runs, and on a GPU
/// the replays.
pub(super) fn cases(args: &Args, device: &Device) -> anyhow::Result<Vec<Box<dyn AnyCase>>> {
    let (goldens, generated) = folders(args, Operation::GqaDecode)?;
    let with_tree = generated.is_some();
    let mut cases = Vec::new();
    for mut golden in Golden::<Inputs>::load_all(&goldens)? {
        // A golden has no log-sum-exp: the reference gives it.
        golden.expected.lse = golden.inputs.expected()?.lse;
        cases.push(Case::golden(golden));
    }
    if let Some(text) = generated.and_then(|path| std::fs::read_to_string(path).ok()) {
        let mut generated: Vec<Generated> = serde_json::from_str(&text)?;
        if let (Some(arch), Some(sm_count)) = (device.arch(), device.sm_count()) {
            let architecture = architectures::find(arch)?.architecture;
            let known = cases.iter().map(|case| case.inputs.problem.clone()).chain(generated.iter().map(problem));
            generated.extend(missing(&known.collect::<Vec<_>>(), architecture, sm_count));
        }
        for case in &generated {
            cases.push(Case::generated(&case.name, case.inputs(INPUT_SEED)?)?);
        }
    }
    let mut cases = boxed(cases);
    if let (true, Ok(DeviceName::Cuda(ordinal))) = (with_tree, device.name().parse()) {
        for (name, captured, changed) in replays()? {
            cases.push(Box::new(Replayed { ordinal, name, captured, changed }));
        }
    }
    Ok(cases)
}

/// A captured launch that is replayed with other lengths.
struct Replayed {
    ordinal: u32,
    name: String,
    captured: Inputs,
    changed: Vec<Inputs>,
}

impl Replayed {
    fn verify(&self) -> bakewell::Result<()> {
        let runtime = CudaRuntime::open(self.ordinal)?;
        let device = Device::with_runtime(runtime.clone())?;
        replays_are_fresh_launches(&runtime, &device, &self.captured, CHANGED, &self.changed)
    }
}

impl AnyCase for Replayed {
    fn outcome(&self, device: &Device, others: &[Device]) -> CaseOutcome {
        let Planned { programs, schedules, .. } = self.captured.plan(device).unwrap_or_default();
        let ran = (0..=others.len()).try_for_each(|_| self.verify());
        CaseOutcome {
            operation: Operation::GqaDecode,
            case: self.name.clone(),
            against: "fresh launches",
            program: (!programs.is_empty()).then(|| programs.join(" + ")),
            variants: schedules.iter().map(|schedule| schedule.variant()).collect(),
            figures: None,
            failure: ran.err().map(|error| one_line(&error.into())),
            warnings: Vec::new(),
            skipped: None,
        }
    }
}

/// The problem of a generated case, its batch filled in.
fn problem(case: &Generated) -> GqaDecode {
    GqaDecode { batch: case.lengths.to_vec().len() as u64, ..case.problem.clone() }
}

/// A case for every schedule that none of the `known` problems is routed to: a program that no case runs could never
/// gain evidence.
fn missing(known: &[GqaDecode], architecture: &'static Architecture, sm_count: u32) -> Vec<Generated> {
    let variant = |problem: &GqaDecode| Some(decide(problem, architecture, sm_count).ok()?.schedule.variant());
    let run: BTreeSet<String> = known.iter().filter_map(variant).collect();
    let schedules = architecture.gqa_decode.schedules.iter();
    let never = schedules.filter(|schedule| !run.contains(&schedule.variant()));
    never
        .filter_map(|schedule| {
            probes(schedule).into_iter().find(|case| variant(&problem(case)) == Some(schedule.variant()))
        })
        .collect()
}

/// Problems of a schedule's shape, one in each corner of the route tables: few and many keys, few and many requests.
fn probes(schedule: &Schedule) -> Vec<Generated> {
    let many = |capacity: i32, requests: i32| (capacity, (0..requests).map(|i| i * 7 % (capacity + 1)).collect());
    let corners: [(i32, Vec<i32>); 9] = [
        (40, vec![33]),
        (120, vec![117]),
        (300, vec![299, 1]),
        (3000, vec![2100]),
        (7000, vec![1500]),
        many(48, 140),
        many(200, 70),
        many(256, 512),
        (65_536, vec![1000]),
    ];
    let case = |(capacity, lengths): (i32, Vec<i32>)| Generated {
        name: format!("program_{}", schedule.variant()),
        problem: GqaDecode {
            capacity: u64::from(capacity.unsigned_abs()),
            query_heads: u64::from(schedule.group_size),
            kv_heads: 1,
            head_dim: u64::from(schedule.head_dim),
            dtype: schedule.element.dtype(),
            lse: true,
            ..GqaDecode::default()
        },
        lengths: Lengths::List(lengths),
        distribution: Distribution::Normal,
    };
    corners.into_iter().map(case).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests_folder;
    use super::*;

    #[test]
    fn every_schedule_of_every_architecture_has_a_case() {
        let tests = tests_folder("gqa_decode").unwrap();
        let text = std::fs::read_to_string(tests.join("cases/gqa_decode.json")).unwrap();
        let generated: Vec<Generated> = serde_json::from_str(&text).unwrap();
        let goldens = Golden::<Inputs>::load_all(&tests.join("golden/gqa_decode")).unwrap();
        let mut known: Vec<GqaDecode> = goldens.into_iter().map(|golden| golden.inputs.problem).collect();
        known.extend(generated.iter().map(problem));
        for compiled in architectures::compiled() {
            let (architecture, sm_count) = (compiled.architecture, compiled.architecture.arch.typical_sm_count());
            let mut all = known.clone();
            all.extend(missing(&known, architecture, sm_count).iter().map(problem));
            let run: BTreeSet<String> = all
                .iter()
                .filter_map(|problem| Some(decide(problem, architecture, sm_count).ok()?.schedule.variant()))
                .collect();
            let schedules = architecture.gqa_decode.schedules.iter().map(Schedule::variant);
            let never: Vec<String> = schedules.filter(|variant| !run.contains(variant)).collect();
            assert!(never.is_empty(), "no case on {} runs {never:?}", architecture.arch);
        }
    }
}
