//! Inputs changed before the reference sees them, as a kernel with a wrong index or rounding would, and outputs changed
//! afterwards: the comparison must notice.

use bakewell::DType;
use bakewell::nvfp4_pre_attention::{Nvfp4PreAttention, OutputFormat};
use bakewell_conformance::nvfp4_pre_attention::{Inputs, judge};
use bakewell_conformance::{HostTensor, Judged, Outputs};
use bakewell_reference::Element;
use half::bf16;

use super::small;

fn right(out_format: OutputFormat) -> Inputs {
    Inputs::generate(&Nvfp4PreAttention { out_format, ..small(12, 2) }, 11)
}

/// What the reference makes of inputs, as a device would give it.
fn made(inputs: &Inputs) -> Outputs {
    let problem = &inputs.problem;
    let stages = inputs.stages().unwrap();
    let bytes = |shape: &[u64], bytes| HostTensor { dtype: DType::U8, shape: shape.to_vec(), bytes };
    let words = |shape: &[u64], words: &[bf16]| HostTensor {
        dtype: DType::Bf16,
        shape: shape.to_vec(),
        bytes: bf16::to_bytes(words),
    };
    let mut outputs = Outputs(vec![
        ("out_q", bytes(&problem.out_shape(), stages.epilogue.out)),
        ("activation_q", bytes(&problem.activation_shape(), stages.norm.codes)),
        ("activation_sf", bytes(&problem.activation_scales_shape(), stages.norm.tiles)),
        ("debug_adaln_bf16", words(&problem.x_shape(), &stages.norm.modulated)),
        ("debug_q_bf16", words(&problem.debug_shape(), &stages.epilogue.q)),
        ("debug_k_bf16", words(&problem.debug_shape(), &stages.epilogue.k)),
    ]);
    if problem.out_format == OutputFormat::Nvfp4 {
        outputs.0.push(("out_sf", bytes(&problem.out_scales_shape(), stages.epilogue.tiles)));
    }
    outputs
}

/// Whether the comparison accepts changed outputs of changed inputs.
fn accepts(out_format: OutputFormat, inputs: impl Fn(&mut Inputs), outputs: impl Fn(&mut Outputs)) -> bool {
    let right = right(out_format);
    let mut wrong = right.clone();
    inputs(&mut wrong);
    let mut got = made(&wrong);
    outputs(&mut got);
    let expected = right.expected().unwrap();
    let (determined, rows) = expected.determined_rows();
    assert_eq!(determined, rows, "small problems leave nothing open");
    judge(&right, &got, &expected).unwrap().failure.is_none()
}

#[test]
fn wrong_inputs_are_refused() {
    for format in [OutputFormat::Nvfp4, OutputFormat::E4m3] {
        let accepts = |change: fn(&mut Inputs)| {
            // Only the final results: the intermediates would show it anyway.
            accepts(format, change, |outputs| outputs.0.retain(|(name, _)| !name.starts_with("debug")))
        };
        assert!(accepts(|_| ()), "the right one is accepted");
        assert!(!accepts(|i| i.problem.eps = 1e-1), "another eps");
        assert!(!accepts(|i| i.qkv_weight_q.bytes.rotate_left(160)), "rows of the weight shifted by one");
        assert!(!accepts(|i| i.qkv_weight_sf.bytes.rotate_left(1)), "scales of the weight of the next block");
        assert!(!accepts(|i| std::mem::swap(&mut i.q_norm_weight, &mut i.k_norm_weight)), "weights of Q and K swapped");
        assert!(!accepts(|i| i.rope_cos_sin.bytes.rotate_left(192)), "rotation of the next token");
        let swapped = |i: &mut Inputs| i.rope_cos_sin.bytes.chunks_mut(192).for_each(|row| row.rotate_left(96));
        assert!(!accepts(swapped), "cosines and sines swapped");
        assert!(!accepts(|i| std::mem::swap(&mut i.adaln_scale, &mut i.adaln_shift)), "tables swapped");
    }
    let scaled = |i: &mut Inputs| i.out_global_scale = Some(HostTensor::of(&[1], &[2688.0f32 / 5.0]));
    assert!(!accepts(OutputFormat::Nvfp4, scaled, |_| ()), "output scale 2 % off");
    let rotated = |i: &mut Inputs| i.qkv_scales.as_mut().unwrap().bytes.rotate_left(4);
    assert!(!accepts(OutputFormat::E4m3, rotated, |_| ()), "scales of another kind");
}

#[test]
fn one_byte_of_any_output_is_noticed() {
    let accepts = |format, name: &str, change: fn(&mut Vec<u8>)| {
        accepts(format, |_| (), |outputs| change(&mut outputs.get_mut(name).unwrap().bytes))
    };
    let nvfp4 = |name, change| accepts(OutputFormat::Nvfp4, name, change);
    assert!(nvfp4("out_q", |_| ()));
    for name in ["activation_q", "activation_sf", "out_q", "out_sf", "debug_adaln_bf16", "debug_q_bf16", "debug_k_bf16"]
    {
        assert!(!nvfp4(name, |bytes| bytes[17] ^= 1), "one bit of {name}");
    }
    assert!(!nvfp4("activation_sf", |bytes| *bytes.last_mut().unwrap() = 1), "padding of the activation's scales");
    assert!(!nvfp4("out_sf", |bytes| *bytes.last_mut().unwrap() = 0xFF), "padding of the results' scales");
    assert!(!nvfp4("out_q", |bytes| bytes.rotate_left(64)), "rows shifted by one");
    assert!(!nvfp4("out_q", |bytes| bytes.truncate(64)));
    assert!(!accepts(OutputFormat::E4m3, "out_q", |bytes| bytes[1000] ^= 1));
}
