//! What every planner promises: pure answers for any architecture and SM count, within every limit.

use bakewell::architectures::compiled;
use bakewell::{Architecture, Error, Problem};
use proptest::prelude::*;

/// SM counts of the smallest devices, and of real ones.
pub const SM_COUNTS: [u32; 10] = [1, 2, 19, 20, 48, 132, 148, 152, 160, 216];

/// Every architecture.
pub fn architectures() -> impl Iterator<Item = &'static Architecture> {
    compiled().iter().map(|compiled| compiled.architecture)
}

/// Shows each of some problems, SM counts and the decision for every architecture to `check`.
///
/// # Panics
/// When a problem is refused.
pub fn every_plan<P: Problem>(problems: &[P], sm_counts: &[u32], mut check: impl FnMut(&P, u32, &P::Decision)) {
    for architecture in architectures() {
        for &sm_count in sm_counts {
            for problem in problems {
                let decision = problem.decide(architecture, sm_count).unwrap_or_else(|error| {
                    panic!("{problem:?} on {} with {sm_count} SMs: {error}", architecture.arch)
                });
                check(problem, sm_count, &decision);
            }
        }
    }
}

/// Equal questions get equal answers.
///
/// # Panics
/// When they do not.
pub fn equal_questions_get_equal_answers<P: Problem<Decision: PartialEq>>(problems: &[P], sm_counts: &[u32]) {
    let mut first = Vec::new();
    every_plan(problems, sm_counts, |_, _, decision| first.push(decision.clone()));
    let mut again = first.iter();
    every_plan(problems, sm_counts, |problem, sm_count, decision| {
        assert!(again.next() == Some(decision), "{problem:?}, {sm_count} SMs: another answer");
    });
}

/// Small sizes, sizes near powers of two, and the ends of the range.
pub fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..300,
        (0u32..64, 0u64..3).prop_map(|(bit, less)| (1u64 << bit).saturating_sub(less)),
        Just(u64::MAX)
    ]
}

/// The decisions of the architectures that take a problem; the others refuse it by a typed error, and none panics.
///
/// # Errors
/// Another error than those of a refusal.
pub fn planned_or_refused<P: Problem>(problem: &P, sm_count: u32) -> Result<Vec<P::Decision>, TestCaseError> {
    let mut decisions = Vec::new();
    for architecture in architectures() {
        match problem.decide(architecture, sm_count) {
            Ok(decision) => decisions.push(decision),
            Err(Error::Argument { .. } | Error::NoProgram { .. }) => {}
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        }
    }
    Ok(decisions)
}
