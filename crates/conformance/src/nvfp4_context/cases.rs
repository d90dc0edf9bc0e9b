//! Generated cases, shared by the tests and the command line.

use bakewell::Device;
use bakewell::nvfp4_context::Family;

use super::{Inputs, Spec};

/// Seed of generated inputs.
const INPUT_SEED: u64 = 23;

/// A generated case.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name: what is special about it.
    pub name: String,
    /// Sizes.
    pub spec: Spec,
    /// CTAs that share a tile's keys; `None` lets the planner decide.
    pub num_splits: Option<u32>,
    /// How the kernel works; `None` lets the route table decide.
    pub family: Option<Family>,
    /// Name of the schedules to take; `None` lets the route table decide.
    pub schedule: Option<&'static str>,
}

impl Case {
    /// Random inputs of these sizes.
    pub fn inputs(&self) -> Inputs {
        let mut inputs = Inputs::generate(&self.spec, INPUT_SEED);
        (inputs.problem.num_splits, inputs.problem.family) = (self.num_splits, self.family);
        inputs.problem.schedule = self.schedule.map(str::to_owned);
        inputs
    }

    /// Whether the device has what the case is pinned to: only the expanded family and schedules by name may be
    /// missing.
    pub fn runs_on(&self, device: &Device) -> bool {
        let everywhere = self.family != Some(Family::Expanded) && self.schedule.is_none();
        everywhere || device.plan(&self.inputs().problem).is_ok()
    }
}

/// Schedule of the expanded family with three halves in a tile.
pub const THREE_HALVES: &str = "expanded_h3_k5";

/// Schedule of the paged family whose CTAs share a tile in pairs.
pub const PAIRED: &str = "paired_k3";

/// The ways to compute: each family unsplit and split, of the paged one also the schedule for pairs of CTAs, of
/// the expanded one that with three halves. Three splits
/// of decode merge through global memory, two and eight in a cluster, sixteen in two clusters.
pub const WAYS: [(&str, Family, Option<&str>, u32); 13] = [
    ("paged", Family::Paged, None, 1),
    ("paged split", Family::Paged, None, 2),
    ("paged, in pairs", Family::Paged, Some(PAIRED), 1),
    ("paged, in pairs split", Family::Paged, Some(PAIRED), 2),
    ("expanded", Family::Expanded, None, 1),
    ("expanded split", Family::Expanded, None, 2),
    ("expanded, three halves", Family::Expanded, Some(THREE_HALVES), 1),
    ("expanded, three halves split", Family::Expanded, Some(THREE_HALVES), 2),
    ("decode", Family::Decode, None, 1),
    ("decode in a cluster", Family::Decode, None, 2),
    ("decode through global memory", Family::Decode, None, 3),
    ("decode in a large cluster", Family::Decode, None, 8),
    ("decode in two clusters", Family::Decode, None, 16),
];

impl Inputs {
    /// The inputs in each of [`WAYS`] that the device has a program for.
    pub fn ways(&self, device: &Device) -> Vec<(&'static str, Inputs)> {
        let pinned = WAYS.map(|(name, family, schedule, splits)| {
            let mut inputs = self.clone();
            (inputs.problem.family, inputs.problem.num_splits) = (Some(family), Some(splits));
            inputs.problem.schedule = schedule.map(str::to_owned);
            (name, inputs)
        });
        pinned.into_iter().filter(|(_, inputs)| device.plan(&inputs.problem).is_ok()).collect()
    }
}

/// Every group with a program of its own and one without, unsplit and split; lengths round tile, page and block edges;
/// a ring of packed tiles that is shallow, and wraps; a shape whose family and splits the planner chooses.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, spec: &Spec, num_splits, family, schedule| {
        cases.push(Case { name, spec: spec.clone(), num_splits, family, schedule });
    };
    for group in [1, 2, 3, 4, 5, 6, 7, 8, 12, 16] {
        let spec = Spec {
            q_heads: group * 2,
            kv_heads: 2,
            q_lens: vec![1, 17, 0, 5],
            kv_lens: vec![127, 17, 40, 300],
            sinks: group == 4,
        };
        for (suffix, splits) in [("", 1), (" split", 3)] {
            add(format!("group_{group}{suffix}"), &spec, Some(splits), Some(Family::Paged), None);
            add(format!("group_{group} expanded{suffix}"), &spec, Some(splits), Some(Family::Expanded), None);
            add(format!("group_{group} in pairs{suffix}"), &spec, Some(splits), None, Some(PAIRED));
            add(format!("group_{group} three halves{suffix}"), &spec, Some(splits), None, Some(THREE_HALVES));
        }
        let few = Spec { q_lens: vec![1, 16 / group as i32, 0, 1], ..spec };
        add(format!("group_{group} few rows"), &few, Some(2), None, None);
    }
    for group in [1, 8] {
        let spec = Spec { q_heads: group, kv_heads: 1, q_lens: vec![3, 1], kv_lens: vec![700, 260], sinks: false };
        add(format!("group_{group} shallow ring"), &spec, None, None, Some("paged_k2"));
    }
    let decode = Spec { q_heads: 8, kv_heads: 1, q_lens: vec![1, 1], kv_lens: vec![1025, 640], sinks: false };
    add("decode, splits planned".to_owned(), &decode, None, None, None);
    cases
}
