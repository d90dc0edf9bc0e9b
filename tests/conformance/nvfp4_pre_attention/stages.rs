//! The reference, stage by stage, against every tensor of every golden.

use super::goldens;
use bakewell_conformance::HostTensor;
use bakewell_conformance::nvfp4_pre_attention::Golden;
use bakewell_reference::Element;
use bakewell_reference::nvfp4_pre_attention::{
    Nvfp4PreAttention, OutputScale, alpha, epilogue, quantise::unswizzle_scales,
};
use half::bf16;

/// Every tensor of the golden under this name, where it has one, holds these bytes.
fn same(golden: &Golden, name: &'static str, bytes: &[u8]) {
    if let Some(expected) = golden.file.tensors.get(name) {
        let at = expected.bytes.iter().zip(bytes).position(|(a, b)| a != b);
        assert!(at.is_none() && expected.bytes.len() == bytes.len(), "{}: {name} differs at byte {at:?}", golden.name);
    }
}

fn scalar(tensor: &HostTensor) -> f32 {
    f32::from_bytes(&tensor.bytes)[0]
}

#[test]
fn the_reference_agrees_with_every_golden_in_every_byte_of_every_stage() {
    for (golden, inputs) in goldens() {
        let stages = inputs.stages().unwrap();
        let (norm, gemm, epilogue) = (&stages.norm, &stages.gemm, &stages.epilogue);
        same(&golden, "norm_rstd", &f32::to_bytes(&norm.rstd));
        same(&golden, "norm_bf16", &bf16::to_bytes(&norm.normed));
        same(&golden, "adaln_bf16", &bf16::to_bytes(&norm.modulated));
        same(&golden, "activation_q", &norm.codes);
        same(&golden, "activation_sf_linear", &norm.scales);
        same(&golden, "activation_sf", &norm.tiles);
        same(
            &golden,
            "alpha",
            &f32::to_bytes(&[alpha(scalar(&inputs.x_global_scale), scalar(&inputs.w_global_scale))]),
        );
        same(&golden, "qkv_bf16", &bf16::to_bytes(&gemm.words));
        same(&golden, "row_determined", &gemm.determined.iter().map(|&row| row.into()).collect::<Vec<u8>>());
        same(&golden, "qk_rstd", &f32::to_bytes(&epilogue.rstd));
        same(&golden, "q_bf16", &bf16::to_bytes(&epilogue.q));
        same(&golden, "k_bf16", &bf16::to_bytes(&epilogue.k));
        same(&golden, "out_q", &epilogue.out);
        same(&golden, "out_sf_linear", &epilogue.scales);
        same(&golden, "out_sf", &epilogue.tiles);

        let columns = inputs.problem.columns() as usize;
        let listed = golden.tensor("gemm_rows").unwrap().to_i32().unwrap();
        let sums = listed.iter().flat_map(|&row| &gemm.sums[row as usize * columns..][..columns]);
        same(&golden, "gemm_f64", &f64::to_bytes(&sums.copied().collect::<Vec<_>>()));
        let groups = inputs.problem.hidden as usize / 16;
        same(&golden, "qkv_weight_sf_linear", &unswizzle_scales(&inputs.qkv_weight_sf.bytes, columns, groups));
    }
}

/// The epilogue alone, on the golden's words.
#[test]
fn the_epilogue_agrees_with_every_golden_on_its_words() {
    for (golden, inputs) in goldens() {
        let words = bf16::from_bytes(&golden.tensor("qkv_bf16").unwrap().bytes);
        let weights = [&inputs.q_norm_weight, &inputs.k_norm_weight].map(|weight| bf16::from_bytes(&weight.bytes));
        let output = match (&inputs.out_global_scale, &inputs.qkv_scales) {
            (Some(scale), None) => OutputScale::Nvfp4(scalar(scale)),
            (None, Some(scales)) => OutputScale::E4m3(f32::from_bytes(&scales.bytes).try_into().unwrap()),
            both => panic!("{both:?}"),
        };
        let result = epilogue(
            &Nvfp4PreAttention {
                hidden: 0,
                heads: inputs.problem.heads as usize,
                destinations: inputs.problem.destinations as usize,
                rope_dim: inputs.problem.rope_dim as usize,
                eps: inputs.problem.eps,
                x: &[],
                x_norm_weight: &[],
                adaln_scale: &[],
                adaln_shift: &[],
                adaln_index: &[],
                x_global_scale: 0.0,
                qkv_weight_q: &[],
                qkv_weight_sf: &[],
                w_global_scale: 0.0,
                q_norm_weight: &weights[0],
                k_norm_weight: &weights[1],
                rope_cos_sin: &bf16::from_bytes(&inputs.rope_cos_sin.bytes),
                output,
            },
            &words,
        );
        same(&golden, "qk_rstd", &f32::to_bytes(&result.rstd));
        same(&golden, "q_bf16", &bf16::to_bytes(&result.q));
        same(&golden, "out_q", &result.out);
        same(&golden, "out_sf", &result.tiles);
    }
}

/// The quantiser for users gives the bytes of the reference, and of the goldens.
#[test]
fn the_quantiser_for_users_gives_the_activation_of_every_golden() {
    for (golden, inputs) in goldens() {
        let values = golden.tensor("adaln_bf16").unwrap();
        let values: Vec<f32> = bf16::from_bytes(&values.bytes).into_iter().map(bf16::to_f32).collect();
        let hidden = inputs.problem.hidden as usize;
        let quantised = bakewell::nvfp4::quantise(&values, hidden, scalar(&inputs.x_global_scale)).unwrap();
        // A token without a table row is zero in the golden whatever its values, which are zero too.
        same(&golden, "activation_q", &quantised.codes);
        same(&golden, "activation_sf_linear", &quantised.scales);
        let tiles = bakewell::nvfp4::swizzle_scales(&quantised.scales, hidden / 16).unwrap();
        same(&golden, "activation_sf", &tiles);
    }
}
