//! The operation on the reference device: tensors out of host memory, every stage, results back.

use bakewell_core::error::Property;
use bakewell_core::{Error, Result, TensorView};
use bakewell_reference::nvfp4_pre_attention::{self as reference, OutputScale};
use bakewell_reference::{Element, HostMemory};
use half::bf16;

use super::scales::Scales;
use super::{Nvfp4PreAttention, Nvfp4PreAttentionArgs};
use crate::host_tensors::{elements, integers, read, write};

/// A call that is not empty; `scales` were read when it was bound.
pub(super) fn run(
    problem: &Nvfp4PreAttention,
    scales: &Scales,
    memory: &HostMemory,
    args: &Nvfp4PreAttentionArgs<'_>,
) -> Result<()> {
    let bf16s = |view| elements::<bf16>(memory, view);
    let output = match (&args.out_global_scale, scales.decode) {
        (_, Some(decode)) => OutputScale::E4m3(decode),
        (Some(view), None) => OutputScale::Nvfp4(elements::<f32>(memory, view)?[0]),
        (None, None) => {
            return Err(Error::argument("out_global_scale", Property::Presence, "a tensor, as planned", "none"));
        }
    };
    // Tensors of these sizes exist in host memory, so the sizes fit.
    let stages = reference::nvfp4_pre_attention(&reference::Nvfp4PreAttention {
        hidden: problem.hidden as usize,
        heads: problem.heads as usize,
        destinations: problem.destinations as usize,
        rope_dim: problem.rope_dim as usize,
        eps: problem.eps,
        x: &bf16s(&args.x)?,
        x_norm_weight: &bf16s(&args.x_norm_weight)?,
        adaln_scale: &bf16s(&args.adaln_scale)?,
        adaln_shift: &bf16s(&args.adaln_shift)?,
        adaln_index: &integers(memory, &args.adaln_index)?,
        x_global_scale: scales.activation,
        qkv_weight_q: &read(memory, &args.qkv_weight_q)?,
        qkv_weight_sf: &read(memory, &args.qkv_weight_sf)?,
        w_global_scale: scales.weight,
        q_norm_weight: &bf16s(&args.q_norm_weight)?,
        k_norm_weight: &bf16s(&args.k_norm_weight)?,
        rope_cos_sin: &bf16s(&args.rope_cos_sin)?,
        output,
    })?;
    let optional = |view: &Option<TensorView<'_>>, bytes: &[u8]| match view {
        Some(view) => write(memory, view, bytes),
        None => Ok(()),
    };
    write(memory, &args.activation_q, &stages.norm.codes)?;
    write(memory, &args.activation_sf, &stages.norm.tiles)?;
    write(memory, &args.out_q, &stages.epilogue.out)?;
    optional(&args.out_sf, &stages.epilogue.tiles)?;
    optional(&args.debug_adaln_bf16, &bf16::to_bytes(&stages.norm.modulated))?;
    optional(&args.debug_q_bf16, &bf16::to_bytes(&stages.epilogue.q))?;
    optional(&args.debug_k_bf16, &bf16::to_bytes(&stages.epilogue.k))
}
