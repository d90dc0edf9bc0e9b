//! The norm kernel alone: any schedule of an architecture, also one that no route chooses.

use bakewell::error::Property;
use bakewell::params::ParamBlock;
use bakewell::schedule::Schedule;
use bakewell::schedule::nvfp4_pre_attention::norm::{Norm, PARAMS, ROWS_PER_CTA};
use bakewell::schedule::nvfp4_pre_attention::{SCALE_GROUP, SCALE_TILE_ROWS};
use bakewell::{DType, Device, Error, LaunchConfig, Result, Stream};

use crate::HostTensor;
use crate::guarded::Guarded;

/// What the kernel reads. Shapes as in the operation's contract.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// bf16 `[tokens, hidden]`.
    pub x: HostTensor,
    /// bf16 `[hidden]`.
    pub weight: HostTensor,
    /// bf16 `[table_rows, hidden]`.
    pub adaln_scale: HostTensor,
    /// bf16 `[table_rows, hidden]`.
    pub adaln_shift: HostTensor,
    /// i32 `[tokens]`.
    pub adaln_index: HostTensor,
    /// f32 `[1]`.
    pub global_scale: HostTensor,
    /// Of the mean of squares.
    pub eps: f32,
    /// Destinations, and bytes of output scales of each; 0 where there are none to clear.
    pub out_sf: [u64; 2],
    /// Whether the modulated activation is wanted.
    pub debug: bool,
}

/// What it writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outputs {
    /// u8 `[tokens, hidden / 2]`.
    pub activation_q: HostTensor,
    /// u8, swizzled.
    pub activation_sf: HostTensor,
    /// bf16 `[tokens, hidden]`.
    pub debug_adaln: Option<HostTensor>,
    /// The activation as an operand image, where the schedule writes one; rows rounded up to whole blocks.
    pub image: Option<HostTensor>,
    /// u8 `[destinations, bytes]`: zeros in the last tile of each destination, 0xFF elsewhere.
    pub out_sf: Option<HostTensor>,
}

/// Runs one schedule.
///
/// # Errors
/// The device's, [`Error::NoProgram`], or [`Error::Argument`] for a write outside a tensor.
pub fn run(device: &Device, schedule: &Norm, inputs: &Inputs) -> Result<Outputs> {
    let (Some(runtime), Some(library)) = (device.runtime(), device.library()?) else {
        return Err(Error::argument("device", Property::Value, "one that runs programs", device));
    };
    let [tokens, hidden] = [inputs.x.shape[0], inputs.x.shape[1]];
    let rows = tokens.next_multiple_of(SCALE_TILE_ROWS.into());
    let [destinations, out_sf_bytes] = inputs.out_sf;
    let tensors = [
        &inputs.x,
        &inputs.weight,
        &inputs.adaln_scale,
        &inputs.adaln_shift,
        &inputs.adaln_index,
        &inputs.global_scale,
    ];
    let uploaded = tensors.into_iter().map(|tensor| tensor.upload(device)).collect::<Result<Vec<_>>>()?;
    let activation_q = Guarded::new(device, "activation_q", DType::U8, &[tokens, hidden / 2])?;
    let activation_sf = Guarded::new(device, "activation_sf", DType::U8, &[rows * hidden / u64::from(SCALE_GROUP)])?;
    let debug_adaln = inputs.debug.then(|| Guarded::new(device, "debug_adaln_bf16", DType::Bf16, &[tokens, hidden]));
    let debug_adaln = debug_adaln.transpose()?;
    let image = schedule.image.then(|| Guarded::new(device, "image", DType::Bf16, &[rows, hidden])).transpose()?;
    let out_sf = (out_sf_bytes > 0).then(|| Guarded::new(device, "out_sf", DType::U8, &inputs.out_sf)).transpose()?;
    let address = |guarded: &Option<Guarded>| -> Result<u64> {
        guarded.as_ref().map_or(Ok(0), |guarded| Ok(guarded.view()?.address()))
    };

    let mut block = ParamBlock::new(PARAMS);
    for (name, buffer) in
        ["x", "weight", "adaln_scale", "adaln_shift", "adaln_index", "global_scale"].into_iter().zip(&uploaded)
    {
        block.pointer(name, buffer.address())?;
    }
    block
        .pointer("activation_q", activation_q.view()?.address())?
        .pointer("activation_sf", activation_sf.view()?.address())?
        .pointer("image", address(&image)?)?
        .pointer("debug_adaln", address(&debug_adaln)?)?
        .pointer("out_sf", address(&out_sf)?)?
        .u64("out_sf_bytes", out_sf_bytes)?
        .u32("tokens", tokens as u32)?
        .u32("hidden", hidden as u32)?
        .u32("table_rows", inputs.adaln_scale.shape[0] as u32)?
        .u32("destinations", destinations as u32)?
        .f32("eps", inputs.eps)?;
    let budgets = schedule.budgets();
    let config = LaunchConfig {
        grid: [rows as u32 / ROWS_PER_CTA, 1, 1],
        cluster: [1, 1, 1],
        block: budgets.threads,
        dynamic_shared_bytes: budgets.dynamic_shared_bytes,
        programmatic_serialization: false,
    };
    let kernel = runtime.load(&library.program(schedule.operation(), &schedule.variant())?)?;
    runtime.launch(kernel, &config, &block.finish()?, Stream::DEFAULT)?;
    runtime.synchronize(Stream::DEFAULT)?;
    Ok(Outputs {
        activation_q: activation_q.read()?,
        activation_sf: activation_sf.read()?,
        debug_adaln: debug_adaln.as_ref().map(Guarded::read).transpose()?,
        image: image.as_ref().map(Guarded::read).transpose()?,
        out_sf: out_sf.as_ref().map(Guarded::read).transpose()?,
    })
}
