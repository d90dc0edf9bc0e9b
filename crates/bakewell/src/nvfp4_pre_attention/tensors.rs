//! The tensors of a call, and what is checked about them before anything is launched.

use bakewell_core::schedule::nvfp4_pre_attention::KINDS;
use bakewell_core::{DType, Result, TensorView};

use super::{Nvfp4PreAttention, OutputFormat};
use crate::arguments::{Argument, Arguments, check_byte_type, check_contiguous, check_presence};

/// What vector accesses and the copy engine ask of addresses, in bytes.
const VECTOR_ALIGNMENT: u64 = 16;
/// What the kernel that clears padding asks of `out_sf`.
const OUT_SF_ALIGNMENT: u64 = 8;
/// Of numbers that are read one by one.
const NUMBER_ALIGNMENT: u64 = 4;

/// The tensors of a call; types and shapes as in the [module documentation](super).
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4PreAttentionArgs<'a> {
    /// Hidden states.
    pub x: TensorView<'a>,
    /// Weight of their norm.
    pub x_norm_weight: TensorView<'a>,
    /// Table of modulation scales, less one.
    pub adaln_scale: TensorView<'a>,
    /// Table of modulation shifts.
    pub adaln_shift: TensorView<'a>,
    /// Table row of each token.
    pub adaln_index: TensorView<'a>,
    /// Encode scale of the activation.
    pub x_global_scale: TensorView<'a>,
    /// Codes of the weight.
    pub qkv_weight_q: TensorView<'a>,
    /// Scales of the weight.
    pub qkv_weight_sf: TensorView<'a>,
    /// Encode scale of the weight.
    pub w_global_scale: TensorView<'a>,
    /// Weight of the norm of Q.
    pub q_norm_weight: TensorView<'a>,
    /// Weight of the norm of K.
    pub k_norm_weight: TensorView<'a>,
    /// Cosines and sines of each token.
    pub rope_cos_sin: TensorView<'a>,
    /// Encode scale of the results; NVFP4 only.
    pub out_global_scale: Option<TensorView<'a>>,
    /// Decode scales of the results; E4M3 only.
    pub qkv_scales: Option<TensorView<'a>>,
    /// Results. This and all that follow must not overlap any other tensor.
    pub out_q: TensorView<'a>,
    /// Their scales; NVFP4 only.
    pub out_sf: Option<TensorView<'a>>,
    /// Codes of the activation.
    pub activation_q: TensorView<'a>,
    /// Scales of the activation.
    pub activation_sf: TensorView<'a>,
    /// Modulated hidden states; this and the next two are present exactly when the problem wants them.
    pub debug_adaln_bf16: Option<TensorView<'a>>,
    /// Q before quantisation.
    pub debug_q_bf16: Option<TensorView<'a>>,
    /// K before quantisation.
    pub debug_k_bf16: Option<TensorView<'a>>,
    /// Workspace of at least [`Plan::workspace_bytes`](crate::Plan::workspace_bytes) bytes, u8, 256-byte aligned;
    /// `None` lets the binding allocate it.
    pub workspace: Option<TensorView<'a>>,
}

impl<'a> Arguments<'a> for Nvfp4PreAttentionArgs<'a> {
    fn tensors(&self) -> Vec<Argument<'_, 'a>> {
        let mut tensors = vec![
            Argument::read("x", &self.x),
            Argument::read("x_norm_weight", &self.x_norm_weight),
            Argument::read("adaln_scale", &self.adaln_scale),
            Argument::read("adaln_shift", &self.adaln_shift),
            Argument::read("adaln_index", &self.adaln_index),
            Argument::read("x_global_scale", &self.x_global_scale),
            Argument::read("qkv_weight_q", &self.qkv_weight_q),
            Argument::read("qkv_weight_sf", &self.qkv_weight_sf),
            Argument::read("w_global_scale", &self.w_global_scale),
            Argument::read("q_norm_weight", &self.q_norm_weight),
            Argument::read("k_norm_weight", &self.k_norm_weight),
            Argument::read("rope_cos_sin", &self.rope_cos_sin),
        ];
        tensors.extend(self.out_global_scale.iter().map(|view| Argument::read("out_global_scale", view)));
        tensors.extend(self.qkv_scales.iter().map(|view| Argument::read("qkv_scales", view)));
        tensors.push(Argument::write("out_q", &self.out_q));
        tensors.extend(self.out_sf.iter().map(|view| Argument::write("out_sf", view)));
        tensors.push(Argument::write("activation_q", &self.activation_q));
        tensors.push(Argument::write("activation_sf", &self.activation_sf));
        tensors.extend(self.debug_adaln_bf16.iter().map(|view| Argument::write("debug_adaln_bf16", view)));
        tensors.extend(self.debug_q_bf16.iter().map(|view| Argument::write("debug_q_bf16", view)));
        tensors.extend(self.debug_k_bf16.iter().map(|view| Argument::write("debug_k_bf16", view)));
        tensors
    }

    fn workspace(&self) -> Option<&TensorView<'a>> {
        self.workspace.as_ref()
    }
}

/// A type that a tensor may have.
#[derive(Clone, Copy)]
enum Type {
    One(DType),
    /// E4M3, which may come as bytes.
    E4m3Bytes,
}

/// What a tensor must be: type, shape, alignment in bytes.
struct Expected<'s>(Type, &'s [u64], u64);

/// Checks every tensor against the problem.
pub(super) fn check(problem: &Nvfp4PreAttention, args: &Nvfp4PreAttentionArgs<'_>) -> Result<()> {
    let (bf16, f32, i32, u8) =
        (Type::One(DType::Bf16), Type::One(DType::F32), Type::One(DType::I32), Type::One(DType::U8));
    let nvfp4 = problem.out_format == OutputFormat::Nvfp4;
    let results = if nvfp4 { u8 } else { Type::E4m3Bytes };
    let (tokens, hidden, head, kinds) = ([problem.tokens], [problem.hidden], [problem.head_dim], [KINDS.into()]);
    let (x, table, rope, debug) =
        (problem.x_shape(), problem.table_shape(), problem.rope_shape(), problem.debug_shape());
    let (weight, weight_scales) = (problem.weight_shape(), problem.weight_scales_shape());
    let (activation, activation_scales) = (problem.activation_shape(), problem.activation_scales_shape());
    let (out, out_scales) = (problem.out_shape(), problem.out_scales_shape());
    for (name, view, expected) in [
        ("x", &args.x, Expected(bf16, &x, VECTOR_ALIGNMENT)),
        ("x_norm_weight", &args.x_norm_weight, Expected(bf16, &hidden, VECTOR_ALIGNMENT)),
        ("adaln_scale", &args.adaln_scale, Expected(bf16, &table, VECTOR_ALIGNMENT)),
        ("adaln_shift", &args.adaln_shift, Expected(bf16, &table, VECTOR_ALIGNMENT)),
        ("adaln_index", &args.adaln_index, Expected(i32, &tokens, NUMBER_ALIGNMENT)),
        ("x_global_scale", &args.x_global_scale, Expected(f32, &[1], NUMBER_ALIGNMENT)),
        ("qkv_weight_q", &args.qkv_weight_q, Expected(u8, &weight, VECTOR_ALIGNMENT)),
        ("qkv_weight_sf", &args.qkv_weight_sf, Expected(Type::E4m3Bytes, &weight_scales, VECTOR_ALIGNMENT)),
        ("w_global_scale", &args.w_global_scale, Expected(f32, &[1], NUMBER_ALIGNMENT)),
        ("q_norm_weight", &args.q_norm_weight, Expected(bf16, &head, VECTOR_ALIGNMENT)),
        ("k_norm_weight", &args.k_norm_weight, Expected(bf16, &head, VECTOR_ALIGNMENT)),
        ("rope_cos_sin", &args.rope_cos_sin, Expected(bf16, &rope, VECTOR_ALIGNMENT)),
        ("out_q", &args.out_q, Expected(results, &out, VECTOR_ALIGNMENT)),
        ("activation_q", &args.activation_q, Expected(u8, &activation, VECTOR_ALIGNMENT)),
        ("activation_sf", &args.activation_sf, Expected(Type::E4m3Bytes, &activation_scales, VECTOR_ALIGNMENT)),
    ] {
        dense(name, view, expected)?;
    }
    for (name, view, wanted, expected) in [
        ("out_global_scale", &args.out_global_scale, nvfp4, Expected(f32, &[1], NUMBER_ALIGNMENT)),
        ("qkv_scales", &args.qkv_scales, !nvfp4, Expected(f32, &kinds, NUMBER_ALIGNMENT)),
        ("out_sf", &args.out_sf, nvfp4, Expected(Type::E4m3Bytes, &out_scales, OUT_SF_ALIGNMENT)),
        ("debug_adaln_bf16", &args.debug_adaln_bf16, problem.debug, Expected(bf16, &x, VECTOR_ALIGNMENT)),
        ("debug_q_bf16", &args.debug_q_bf16, problem.debug, Expected(bf16, &debug, VECTOR_ALIGNMENT)),
        ("debug_k_bf16", &args.debug_k_bf16, problem.debug, Expected(bf16, &debug, VECTOR_ALIGNMENT)),
    ] {
        check_presence(name, view.as_ref(), wanted)?.map_or(Ok(()), |view| dense(name, view, expected))?;
    }
    Ok(())
}

fn dense(name: &'static str, view: &TensorView<'_>, Expected(dtype, shape, alignment): Expected<'_>) -> Result<()> {
    match dtype {
        Type::One(dtype) => view.expect(name, dtype, shape)?,
        Type::E4m3Bytes => check_byte_type(name, view, shape)?,
    }
    check_contiguous(name, view, alignment)
}
