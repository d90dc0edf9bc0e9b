//! The GEMM on warpgroup tensor cores alone, with the program that makes its operand images.

use bakewell::error::Property;
use bakewell::params::ParamBlock;
use bakewell::schedule::Schedule;
use bakewell::schedule::nvfp4_pre_attention::weight_image::WeightImage;
use bakewell::schedule::nvfp4_pre_attention::wgmma::{CLUSTER, PARAMS, Wgmma, image_bytes};
use bakewell::schedule::nvfp4_pre_attention::{HEAD_DIM, KINDS, OutputFormat, SCALE_TILE_ROWS};
use bakewell::{Buffer, DType, Device, Error, LaunchConfig, Result, Stream};

use super::Golden;
use crate::HostTensor;
use crate::guarded::Guarded;

/// What the two programs read. Shapes as in the operation's contract.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// u8 `[tokens, hidden / 2]`.
    pub activation_q: HostTensor,
    /// u8, swizzled.
    pub activation_sf: HostTensor,
    /// u8 `[heads * 384, hidden / 2]`.
    pub weight_q: HostTensor,
    /// u8, swizzled.
    pub weight_sf: HostTensor,
    /// bf16 `[tokens, rope_dim]`.
    pub rope_cos_sin: HostTensor,
    /// bf16 `[128]`.
    pub q_norm_weight: HostTensor,
    /// bf16 `[128]`.
    pub k_norm_weight: HostTensor,
    /// f32 `[1]`; NVFP4 output.
    pub out_global_scale: Option<HostTensor>,
    /// Reciprocals of the decode scales of Q, K and V; E4M3 output.
    pub inverse_scales: [f32; 3],
    /// What the sums are multiplied by.
    pub alpha: f32,
    /// Of the mean of squares.
    pub eps: f32,
    /// Destinations.
    pub destinations: u64,
}

/// What the GEMM writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outputs {
    /// `[destinations, tokens, heads / destinations, 3, row bytes]`.
    pub out_q: HostTensor,
    /// u8 `[destinations, bytes]`; NVFP4 only. The padding, which the norm kernel clears, is zeros.
    pub out_sf: Option<HostTensor>,
    /// bf16 `[tokens, heads, 128]`.
    pub debug_q: HostTensor,
    /// The same of K.
    pub debug_k: HostTensor,
}

impl Inputs {
    /// Those of a golden.
    ///
    /// # Errors
    /// [`Error::Argument`] that names what the file lacks.
    pub fn of(golden: &Golden) -> Result<Inputs> {
        let tensor = |name| golden.tensor(name).cloned();
        let f32s = |name| Ok(golden.tensor(name)?.to_f64()?.into_iter().map(|value| value as f32).collect::<Vec<_>>());
        let scales = if golden.output() == OutputFormat::E4m3 { f32s("qkv_scales")? } else { vec![1.0; 3] };
        Ok(Inputs {
            activation_q: tensor("activation_q")?,
            activation_sf: tensor("activation_sf")?,
            weight_q: tensor("qkv_weight_q")?,
            weight_sf: tensor("qkv_weight_sf")?,
            rope_cos_sin: tensor("rope_cos_sin")?,
            q_norm_weight: tensor("q_norm_weight")?,
            k_norm_weight: tensor("k_norm_weight")?,
            out_global_scale: tensor("out_global_scale").ok(),
            inverse_scales: std::array::from_fn(|kind| (1.0 / f64::from(scales[kind])) as f32),
            alpha: f32s("alpha")?[0],
            eps: golden.parameter("eps")?,
            destinations: golden.parameter("P")?,
        })
    }

    /// The output that the inputs ask for.
    pub fn output(&self) -> OutputFormat {
        if self.out_global_scale.is_some() { OutputFormat::Nvfp4 } else { OutputFormat::E4m3 }
    }
}

/// The image of codes and swizzled scales. Rows are rounded up to whole blocks; the codes of the rest are zeros.
///
/// # Errors
/// The device's, or [`Error::NoProgram`].
pub fn image(device: &Device, codes: &HostTensor, scales: &HostTensor) -> Result<Buffer> {
    let rows = codes.shape[0].next_multiple_of(SCALE_TILE_ROWS.into());
    let columns = 2 * codes.shape[1];
    let mut padded = codes.bytes.clone();
    padded.resize((rows * columns / 2) as usize, 0);
    let (codes, scales) = (device.upload(&padded)?, scales.upload(device)?);
    let image = device.buffer(image_bytes(rows, columns))?;
    let mut block = ParamBlock::new(WeightImage::PARAMS);
    block.pointer("codes", codes.address())?.pointer("scales", scales.address())?;
    block.pointer("image", image.address())?.u32("columns", columns as u32)?;
    launch(device, &WeightImage, WeightImage::grid(rows as u32, columns as u32), 1, &block)?;
    Ok(image)
}

/// Runs one schedule.
///
/// # Errors
/// The device's, [`Error::NoProgram`], or [`Error::Argument`] for a write outside a tensor.
pub fn run(device: &Device, schedule: &Wgmma, inputs: &Inputs) -> Result<Outputs> {
    let [tokens, hidden] = [inputs.activation_q.shape[0], 2 * inputs.activation_q.shape[1]];
    let heads = inputs.weight_q.shape[0] / u64::from(KINDS * HEAD_DIM);
    let (destinations, local_heads) = (inputs.destinations, heads / inputs.destinations);
    let activation = image(device, &inputs.activation_q, &inputs.activation_sf)?;
    let weight = image(device, &inputs.weight_q, &inputs.weight_sf)?;
    let uploads = [&inputs.rope_cos_sin, &inputs.q_norm_weight, &inputs.k_norm_weight];
    let uploads = uploads.into_iter().map(|tensor| tensor.upload(device)).collect::<Result<Vec<_>>>()?;
    let global = inputs.out_global_scale.as_ref().map(|scale| scale.upload(device)).transpose()?;

    let dtype = match inputs.output() {
        OutputFormat::Nvfp4 => DType::U8,
        OutputFormat::E4m3 => DType::E4m3,
    };
    let out_shape = [destinations, tokens, local_heads, KINDS.into(), inputs.output().row_bytes().into()];
    let out_q = Guarded::new(device, "out_q", dtype, &out_shape)?;
    let rows = (tokens * local_heads * u64::from(KINDS)).next_multiple_of(SCALE_TILE_ROWS.into());
    let scale_bytes = [destinations, rows * 8];
    let out_sf = global.as_ref().map(|_| Guarded::new(device, "out_sf", DType::U8, &scale_bytes)).transpose()?;
    let out_sf_address = out_sf.as_ref().map_or(Ok(0), |out_sf| out_sf.view().map(|view| view.address()))?;
    if let Some(out_sf) = &out_sf {
        out_sf.write(&vec![0; scale_bytes.iter().product::<u64>() as usize])?;
    }
    let debug_shape = [tokens, heads, HEAD_DIM.into()];
    let debug_q = Guarded::new(device, "debug_q_bf16", DType::Bf16, &debug_shape)?;
    let debug_k = Guarded::new(device, "debug_k_bf16", DType::Bf16, &debug_shape)?;

    let mut block = ParamBlock::new(PARAMS);
    for (name, buffer) in ["rope_cos_sin", "q_norm_weight", "k_norm_weight"].into_iter().zip(&uploads) {
        block.pointer(name, buffer.address())?;
    }
    block
        .pointer("activation", activation.address())?
        .pointer("weight", weight.address())?
        .pointer("out_global_scale", global.as_ref().map_or(0, Buffer::address))?
        .pointer("out_q", out_q.view()?.address())?
        .pointer("out_sf", out_sf_address)?
        .pointer("debug_q", debug_q.view()?.address())?
        .pointer("debug_k", debug_k.view()?.address())?
        .f32("alpha", inputs.alpha)?
        .f32("eps", inputs.eps)?
        .f32("inverse_scale_q", inputs.inverse_scales[0])?
        .f32("inverse_scale_k", inputs.inverse_scales[1])?
        .f32("inverse_scale_v", inputs.inverse_scales[2])?
        .u32("tokens", tokens as u32)?
        .u32("hidden", hidden as u32)?
        .u32("heads", heads as u32)?
        .u32("destinations", destinations as u32)?
        .u32("rope_dim", inputs.rope_cos_sin.shape[1] as u32)?;
    let ctas = Wgmma::ctas(tokens, heads, device.sm_count().unwrap_or(0));
    launch(device, schedule, [ctas, 1, 1], CLUSTER, &block)?;
    Ok(Outputs {
        out_q: out_q.read()?,
        out_sf: out_sf.as_ref().map(Guarded::read).transpose()?,
        debug_q: debug_q.read()?,
        debug_k: debug_k.read()?,
    })
}

fn launch(device: &Device, schedule: &dyn Schedule, grid: [u32; 3], cluster: u32, block: &ParamBlock) -> Result<()> {
    let (Some(runtime), Some(library)) = (device.runtime(), device.library()?) else {
        return Err(Error::argument("device", Property::Value, "one that runs programs", device));
    };
    let budgets = schedule.budgets();
    let config = LaunchConfig {
        grid,
        cluster: [cluster, 1, 1],
        block: budgets.threads,
        dynamic_shared_bytes: budgets.dynamic_shared_bytes,
        programmatic_serialization: false,
    };
    let kernel = runtime.load(&library.program(schedule.operation(), &schedule.variant())?)?;
    runtime.launch(kernel, &config, &block.finish()?, Stream::DEFAULT)?;
    runtime.synchronize(Stream::DEFAULT)
}
