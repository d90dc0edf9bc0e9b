//! Generated cases, shared by the tests and the command line.

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
}

impl Case {
    /// Random inputs of these sizes.
    pub fn inputs(&self) -> Inputs {
        let mut inputs = Inputs::generate(&self.spec, INPUT_SEED);
        inputs.problem.num_splits = self.num_splits;
        inputs
    }
}

/// Every group with a program of its own and one without, unsplit and split; lengths round tile, page and block edges;
/// a shape whose splits the planner chooses.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for group in [1, 2, 3, 4, 5, 6, 7, 8, 12, 16] {
        let spec = Spec {
            q_heads: group * 2,
            kv_heads: 2,
            q_lens: vec![1, 17, 0, 5],
            kv_lens: vec![127, 17, 40, 300],
            sinks: group == 4,
        };
        for (suffix, splits) in [("", 1), (" split", 3)] {
            cases.push(Case { name: format!("group_{group}{suffix}"), spec: spec.clone(), num_splits: Some(splits) });
        }
    }
    let decode = Spec { q_heads: 8, kv_heads: 1, q_lens: vec![1, 1], kv_lens: vec![1025, 640], sinks: false };
    cases.push(Case { name: "decode, splits planned".to_owned(), spec: decode, num_splits: None });
    cases
}
