//! The tensors of a call.

use std::borrow::Cow;

use bakewell::nvfp4_pre_attention::{Nvfp4PreAttention, Nvfp4PreAttentionArgs, OutputFormat};
use bakewell::schedule::nvfp4_pre_attention::KINDS;
use bakewell::{DType, Result};

use super::Inputs;
use crate::HostTensor;
use crate::call::{CallInputs, TensorSpec, Views};

/// Every tensor of a call.
pub fn tensors(problem: &Nvfp4PreAttention) -> Vec<TensorSpec> {
    let input = TensorSpec::input;
    let head = [problem.head_dim];
    let mut tensors = vec![
        input("x", DType::Bf16, &problem.x_shape()),
        input("x_norm_weight", DType::Bf16, &[problem.hidden]),
        input("adaln_scale", DType::Bf16, &problem.table_shape()),
        input("adaln_shift", DType::Bf16, &problem.table_shape()),
        input("adaln_index", DType::I32, &[problem.tokens]),
        input("x_global_scale", DType::F32, &[1]),
        input("qkv_weight_q", DType::U8, &problem.weight_shape()),
        input("qkv_weight_sf", DType::U8, &problem.weight_scales_shape()),
        input("w_global_scale", DType::F32, &[1]),
        input("q_norm_weight", DType::Bf16, &head),
        input("k_norm_weight", DType::Bf16, &head),
        input("rope_cos_sin", DType::Bf16, &problem.rope_shape()),
    ];
    let results = match problem.out_format {
        OutputFormat::Nvfp4 => {
            tensors.push(input("out_global_scale", DType::F32, &[1]));
            [
                ("out_q", DType::U8, problem.out_shape().to_vec()),
                ("out_sf", DType::U8, problem.out_scales_shape().to_vec()),
            ]
            .to_vec()
        }
        OutputFormat::E4m3 => {
            tensors.push(input("qkv_scales", DType::F32, &[KINDS.into()]));
            vec![("out_q", DType::E4m3, problem.out_shape().to_vec())]
        }
    };
    tensors.extend(results.into_iter().map(|(name, dtype, shape)| TensorSpec::output(name, dtype, &shape)));
    tensors.push(TensorSpec::output("activation_q", DType::U8, &problem.activation_shape()));
    tensors.push(TensorSpec::output("activation_sf", DType::U8, &problem.activation_scales_shape()));
    if problem.debug {
        tensors.push(TensorSpec::output("debug_adaln_bf16", DType::Bf16, &problem.x_shape()));
        tensors.push(TensorSpec::output("debug_q_bf16", DType::Bf16, &problem.debug_shape()));
        tensors.push(TensorSpec::output("debug_k_bf16", DType::Bf16, &problem.debug_shape()));
    }
    tensors
}

/// The arguments made of views.
///
/// # Errors
/// [`bakewell::Error::Argument`] for a view that must be there and is not.
pub fn args<'a>(views: &Views<'a>) -> Result<Nvfp4PreAttentionArgs<'a>> {
    Ok(Nvfp4PreAttentionArgs {
        x: views.need("x")?,
        x_norm_weight: views.need("x_norm_weight")?,
        adaln_scale: views.need("adaln_scale")?,
        adaln_shift: views.need("adaln_shift")?,
        adaln_index: views.need("adaln_index")?,
        x_global_scale: views.need("x_global_scale")?,
        qkv_weight_q: views.need("qkv_weight_q")?,
        qkv_weight_sf: views.need("qkv_weight_sf")?,
        w_global_scale: views.need("w_global_scale")?,
        q_norm_weight: views.need("q_norm_weight")?,
        k_norm_weight: views.need("k_norm_weight")?,
        rope_cos_sin: views.need("rope_cos_sin")?,
        out_global_scale: views.get("out_global_scale"),
        qkv_scales: views.get("qkv_scales"),
        out_q: views.need("out_q")?,
        out_sf: views.get("out_sf"),
        activation_q: views.need("activation_q")?,
        activation_sf: views.need("activation_sf")?,
        debug_adaln_bf16: views.get("debug_adaln_bf16"),
        debug_q_bf16: views.get("debug_q_bf16"),
        debug_k_bf16: views.get("debug_k_bf16"),
        workspace: views.get("workspace"),
    })
}

impl CallInputs for Inputs {
    type Problem = Nvfp4PreAttention;

    fn problem(&self) -> &Nvfp4PreAttention {
        &self.problem
    }

    fn specs(&self) -> Vec<TensorSpec> {
        tensors(&self.problem)
    }

    fn tensor(&self, name: &str) -> Option<Cow<'_, HostTensor>> {
        let tensor = match name {
            "x" => &self.x,
            "x_norm_weight" => &self.x_norm_weight,
            "adaln_scale" => &self.adaln_scale,
            "adaln_shift" => &self.adaln_shift,
            "adaln_index" => &self.adaln_index,
            "x_global_scale" => &self.x_global_scale,
            "qkv_weight_q" => &self.qkv_weight_q,
            "qkv_weight_sf" => &self.qkv_weight_sf,
            "w_global_scale" => &self.w_global_scale,
            "q_norm_weight" => &self.q_norm_weight,
            "k_norm_weight" => &self.k_norm_weight,
            "rope_cos_sin" => &self.rope_cos_sin,
            "out_global_scale" => self.out_global_scale.as_ref()?,
            "qkv_scales" => self.qkv_scales.as_ref()?,
            _ => return None,
        };
        Some(Cow::Borrowed(tensor))
    }

    fn args<'a>(&self, views: &Views<'a>) -> Result<Nvfp4PreAttentionArgs<'a>> {
        args(views)
    }
}
