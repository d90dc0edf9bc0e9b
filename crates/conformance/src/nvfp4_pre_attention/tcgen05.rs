//! The GEMM kernel on tensor memory alone: any schedule of an architecture, also one that no route chooses.

use bakewell::error::Property;
use bakewell::nvfp4_pre_attention::{Nvfp4PreAttention, OutputFormat};
use bakewell::params::ParamBlock;
use bakewell::schedule::Schedule;
use bakewell::schedule::nvfp4_pre_attention::tcgen05::{PAIR_CTAS, PARAMS, SET_K, Shape, Tcgen05, pair_order};
use bakewell::{DType, Device, Error, LaunchConfig, Result, Stream};
use bakewell_reference::Element;
use bakewell_reference::nvfp4_pre_attention::{Stages, alpha};

use super::Inputs;
use crate::HostTensor;
use crate::guarded::Guarded;
use crate::staged::Outputs;

/// Whether a schedule can do what a problem needs.
pub fn serves(schedule: &Tcgen05, problem: &Nvfp4PreAttention) -> bool {
    schedule.output == problem.out_format
        && (schedule.rope_dim == 0 || u64::from(schedule.rope_dim) == problem.rope_dim)
        && schedule.fits_hidden(problem.hidden)
}

/// Runs one schedule on the reference's activation, which is among the outputs, as if the norm kernel had made it.
/// Scales of rows that do not exist are zeroed first, as that kernel does.
///
/// # Errors
/// The device's, [`Error::NoProgram`], or [`Error::Argument`] for a write outside a tensor.
pub fn run(device: &Device, schedule: &Tcgen05, inputs: &Inputs, stages: &Stages) -> Result<Outputs> {
    let (Some(runtime), Some(library)) = (device.runtime(), device.library()?) else {
        return Err(Error::argument("device", Property::Value, "one that runs programs", device));
    };
    let problem = &inputs.problem;
    let &Nvfp4PreAttention { tokens, hidden, heads, destinations, .. } = problem;
    let shape = Shape { tokens, hidden, heads, destinations };
    let scalar = |tensor: &HostTensor| f32::from_bytes(&tensor.bytes)[0];
    let bytes = |content: Vec<u8>| HostTensor { dtype: DType::U8, shape: vec![content.len() as u64], bytes: content };
    let upload = |tensor: &HostTensor| tensor.upload(device);
    let a = upload(&bytes(stages.norm.codes.clone()))?;
    let a_scales = upload(&bytes(stages.norm.tiles.clone()))?;
    let b = upload(&inputs.qkv_weight_q)?;
    let b_scales = upload(&bytes(pair_order(&inputs.qkv_weight_sf.bytes, (hidden / u64::from(SET_K)) as usize)))?;
    let rope = upload(&inputs.rope_cos_sin)?;
    let (q_weight, k_weight) = (upload(&inputs.q_norm_weight)?, upload(&inputs.k_norm_weight)?);
    let global_scale = inputs.out_global_scale.as_ref().map(upload).transpose()?;
    let inverse = match &inputs.qkv_scales {
        Some(scales) => f32::from_bytes(&scales.bytes).iter().map(|&scale| (1.0 / f64::from(scale)) as f32).collect(),
        None => vec![0.0; 3],
    };

    let packed = match problem.out_format {
        OutputFormat::Nvfp4 => DType::U8,
        OutputFormat::E4m3 => DType::E4m3,
    };
    let out_q = Guarded::new(device, "out_q", packed, &problem.out_shape())?;
    let fp4 = problem.out_format == OutputFormat::Nvfp4;
    let out_sf = fp4.then(|| Guarded::new(device, "out_sf", DType::U8, &problem.out_scales_shape())).transpose()?;
    if let Some(out_sf) = &out_sf {
        let bytes = problem.out_scales_shape().iter().product::<u64>() as usize;
        out_sf.write(&vec![0; bytes])?;
    }
    let debug =
        |name| problem.debug.then(|| Guarded::new(device, name, DType::Bf16, &problem.debug_shape())).transpose();
    let (debug_q, debug_k) = (debug("debug_q_bf16")?, debug("debug_k_bf16")?);
    let address = |guarded: &Option<Guarded>| -> Result<u64> {
        guarded.as_ref().map_or(Ok(0), |guarded| Ok(guarded.view()?.address()))
    };
    let encode = |name, request| runtime.encode_tensor_map(name, &request);

    let mut block = ParamBlock::new(PARAMS);
    block
        .tensor_map("a", &encode("activation_q", shape.activation_map(a.address()))?)?
        .tensor_map("b", &encode("weight_q", shape.weight_map(b.address()))?)?
        .tensor_map("a_scales", &encode("activation_sf", shape.activation_scales_map(a_scales.address()))?)?
        .tensor_map("b_scales", &encode("weight_sf", shape.weight_scales_map(b_scales.address()))?)?
        .tensor_map("out", &encode("out_q", shape.output_map(out_q.view()?.address(), problem.out_format))?)?
        .pointer("rope_cos_sin", rope.address())?
        .pointer("q_norm_weight", q_weight.address())?
        .pointer("k_norm_weight", k_weight.address())?
        .pointer("out_sf", address(&out_sf)?)?
        .pointer("out_global_scale", global_scale.as_ref().map_or(0, |scale| scale.address()))?
        .pointer("debug_q", address(&debug_q)?)?
        .pointer("debug_k", address(&debug_k)?)?
        .f32("alpha", alpha(scalar(&inputs.x_global_scale), scalar(&inputs.w_global_scale)))?
        .f32("eps", problem.eps)?
        .f32("inverse_scale_q", inverse[0])?
        .f32("inverse_scale_k", inverse[1])?
        .f32("inverse_scale_v", inverse[2])?
        .u32("tokens", tokens as u32)?
        .u32("heads", heads as u32)?
        .u32("destinations", destinations as u32)?
        .u32("rope_dim", problem.rope_dim as u32)?
        .u32("hidden", hidden as u32)?;
    let budgets = schedule.budgets();
    let config = LaunchConfig {
        grid: [shape.ctas() as u32, 1, 1],
        cluster: [PAIR_CTAS, 1, 1],
        block: budgets.threads,
        dynamic_shared_bytes: budgets.dynamic_shared_bytes,
        programmatic_serialization: false,
    };
    let kernel = runtime.load(&library.program(schedule.operation(), &schedule.variant())?)?;
    runtime.launch(kernel, &config, &block.finish()?, Stream::DEFAULT)?;
    runtime.synchronize(Stream::DEFAULT)?;
    let written = [Some(out_q), out_sf, debug_q, debug_k];
    let written = written.iter().flatten().map(|tensor| Ok((tensor.name(), tensor.read()?)));
    let given =
        [("activation_q", bytes(stages.norm.codes.clone())), ("activation_sf", bytes(stages.norm.tiles.clone()))];
    Ok(Outputs(written.chain(given.map(Ok)).collect::<Result<_>>()?))
}
