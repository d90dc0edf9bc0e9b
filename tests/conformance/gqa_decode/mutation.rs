//! Wrong results must be called wrong: the comparison itself is tested with faults of the kinds that kernels have.

use bakewell::gqa_decode::GqaDecode;
use bakewell_conformance::compare::Tolerance;
use bakewell_conformance::gqa_decode::{Distribution, Expected, Inputs, out_tolerance};
use bakewell_conformance::{HostTensor, Judged};

use super::check;

fn right() -> (Inputs, Expected, HostTensor) {
    let problem = GqaDecode { capacity: 97, query_heads: 8, kv_heads: 2, ..GqaDecode::default() };
    let inputs = Inputs::generate(&problem, &[97, 60], Distribution::Normal, 21).unwrap();
    let expected = inputs.expected().unwrap();
    let out = HostTensor::rounded(inputs.q.dtype, &inputs.q.shape, &expected.out).unwrap();
    (inputs, expected, out)
}

/// Changes the output of a right result; says whether the operation's tolerance still accepts it.
fn accepts(change: impl Fn(&mut Vec<f64>)) -> bool {
    let (inputs, expected, out) = right();
    let mut values = out.to_f64().unwrap();
    change(&mut values);
    let out = HostTensor::rounded(out.dtype, &out.shape, &values).unwrap();
    check(&out, &expected.out, &out_tolerance(inputs.q.dtype)).is_ok()
}

#[test]
fn wrong_outputs_are_refused() {
    assert!(accepts(|_| {}), "the right one is accepted");
    assert!(!accepts(|out| out.iter_mut().for_each(|x| *x *= 1.02)), "2 % everywhere");
    assert!(!accepts(|out| out[5 * 128..6 * 128].iter_mut().for_each(|x| *x *= 1.02)), "2 % in one head");
    assert!(!accepts(|out| out.swap(3, 4)), "two columns swapped");
    assert!(!accepts(|out| out.rotate_left(128)), "heads shifted by one");
    assert!(!accepts(|out| out[7] = f64::NAN), "one NaN");
    assert!(!accepts(|out| out[15 * 128..].fill(0.0)), "a head never written");
}

/// One ulp in one row is within the tolerance, and must not be within equality.
#[test]
fn one_ulp_is_seen_where_equality_is_promised() {
    let (_, _, out) = right();
    let wanted = out.to_f64().unwrap();
    assert!(check(&out, &wanted, &Tolerance::EXACT).is_ok());
    let mut changed = out.clone();
    changed.bytes[2 * 300] ^= 1;
    assert!(check(&changed, &wanted, &Tolerance::EXACT).is_err());
}

/// Changes the inputs before the reference sees them, as a kernel with a wrong index would.
#[test]
fn wrong_indices_are_refused() {
    let (inputs, expected, _) = right();
    let accepts = |wrong: &Inputs| {
        let out = wrong.expected().unwrap().out;
        let out = HostTensor::rounded(wrong.q.dtype, &wrong.q.shape, &out).unwrap();
        check(&out, &expected.out, &out_tolerance(wrong.q.dtype)).is_ok()
    };
    assert!(accepts(&inputs));
    let change = |change: &dyn Fn(&mut Inputs)| {
        let mut wrong = inputs.clone();
        change(&mut wrong);
        wrong
    };
    let row = 128 * 2;
    let plane = 97 * row;
    assert!(!accepts(&change(&|i| i.sequence_lengths = HostTensor::of_i32(&[2], &[96, 60]))), "last key missed");
    assert!(!accepts(&change(&|i| i.problem.q_scale = 1.02)), "scale off by 2 %");
    assert!(!accepts(&change(&|i| i.kv.bytes[..2 * plane].rotate_left(plane))), "keys of another head");
    assert!(!accepts(&change(&|i| i.kv.bytes[2 * plane..3 * plane].rotate_left(row))), "values shifted by a slot");
    assert!(!accepts(&change(&|i| i.q.bytes.rotate_left(row))), "queries shifted by a head");
}
