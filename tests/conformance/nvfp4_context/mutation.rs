//! Inputs changed before the reference sees them, as a kernel with a wrong index or layout would: the gates must
//! notice.

use bakewell::DType;
use bakewell::nvfp4_context::Family;
use bakewell_conformance::nvfp4_context::{Gates, Inputs, Spec, judge};
use bakewell_conformance::{HostTensor, Judged, Outputs};

use super::generated;

fn right() -> Inputs {
    generated(&Spec { q_heads: 8, kv_heads: 2, q_lens: vec![4, 3], kv_lens: vec![150, 96], sinks: true }, Some(1))
}

/// Whether the gates accept the model's output of changed inputs for the right ones.
fn accepts(change: impl Fn(&mut Inputs)) -> bool {
    let (inputs, mut wrong) = (right(), right());
    change(&mut wrong);
    let made = wrong.expected().unwrap();
    let lse: Vec<f32> = made.lse.iter().map(|&lse| lse as f32).collect();
    let out = HostTensor { dtype: DType::E4m3, shape: inputs.q.shape.clone(), bytes: made.model };
    let outputs = Outputs(vec![("out", out), ("lse", HostTensor::of(&inputs.problem.lse_shape(), &lse))]);
    judge(&inputs, &outputs, &inputs.expected().unwrap(), Gates::of(None, Family::Paged, 1)).unwrap().failure.is_none()
}

#[test]
fn wrong_indices_and_layouts_are_refused() {
    assert!(accepts(|_| ()), "the right one is accepted");
    assert!(!accepts(|i| i.bmm1_scale *= 1.02), "logits off by 2 %");
    assert!(!accepts(|i| i.bmm2_scale *= 1.06), "output off by half a code");
    assert!(!accepts(|i| i.seq_lens_kv = HostTensor::of_i32(&[2], &[149, 96])), "last key missed");
    assert!(!accepts(|i| i.q.bytes.rotate_left(128)), "queries of another head");
    assert!(!accepts(|i| i.k_packed.bytes.rotate_left(1024)), "keys of another head");
    assert!(!accepts(|i| i.v_packed.bytes.rotate_left(64)), "values shifted by a token");
    assert!(!accepts(|i| i.k_packed.bytes.iter_mut().for_each(|b| *b = b.rotate_left(4))), "nibbles of K swapped");
    assert!(!accepts(|i| i.v_packed.bytes.iter_mut().for_each(|b| *b = b.rotate_left(4))), "nibbles of V swapped");
    assert!(!accepts(|i| transpose_groups(&mut i.v_scale.bytes)), "scales of V read as those of K");
    assert!(!accepts(|i| i.sinks.as_mut().unwrap().bytes.rotate_left(4)), "sinks of another head");
    let swapped = |i: &mut Inputs| {
        let mut table = i.page_table.to_i32().unwrap();
        table.swap(0, 1);
        i.page_table = HostTensor::of_i32(&i.page_table.shape, &table);
    };
    // Two whole pages that every query of the first request sees: attention without positions cannot tell.
    assert!(accepts(swapped), "order of visible keys");
    let repeated = |i: &mut Inputs| {
        let mut table = i.page_table.to_i32().unwrap();
        table[1] = table[0];
        i.page_table = HostTensor::of_i32(&i.page_table.shape, &table);
    };
    assert!(!accepts(repeated), "one page read for another");
}

/// Moves the scales of V to where a reader of K's order expects them.
fn transpose_groups(scales: &mut [u8]) {
    for page in scales.chunks_exact_mut(128) {
        let interleaved = page.to_vec();
        for (token, group) in (0..16).flat_map(|token| (0..8).map(move |group| (token, group))) {
            page[token / 4 * 32 + group * 4 + token % 4] = interleaved[token * 8 + group];
        }
    }
}
