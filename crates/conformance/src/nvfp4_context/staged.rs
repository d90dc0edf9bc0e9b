//! Inputs on a device, outputs poisoned and guarded.

use std::time::{Duration, Instant};

use bakewell::nvfp4_context::{Nvfp4ContextArgs, Plan, Scale};
use bakewell::{Bound, Buffer, DType, Device, Result, Stream};

use super::Inputs;
use crate::HostTensor;
use crate::guarded::{Guarded, check_counters};

/// What came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outputs {
    /// `[total_q, q_heads, 128]`, E4M3 bytes.
    pub out: HostTensor,
    /// `[total_q, q_heads]`, f32.
    pub lse: Option<HostTensor>,
}

/// Where the two factors lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleOrigin {
    /// On the host.
    Host,
    /// On the device.
    Device,
}

/// Tensors on a device, outputs poisoned and guarded; ready to be bound and launched.
#[derive(Debug)]
pub struct Staged {
    plan: Plan,
    inputs: Inputs,
    origin: ScaleOrigin,
    q: Buffer,
    k_packed: Buffer,
    v_packed: Buffer,
    k_scale: Buffer,
    v_scale: Buffer,
    page_table: Buffer,
    seq_lens_kv: Buffer,
    cu_seqlens_q: Buffer,
    sinks: Option<Buffer>,
    bmm1_scale: Buffer,
    bmm2_scale: Buffer,
    out: Guarded,
    lse: Option<Guarded>,
    workspace: Guarded,
}

impl Staged {
    /// Plans the problem and uploads its inputs.
    ///
    /// # Errors
    /// The plan's or the device's.
    pub fn new(device: &Device, inputs: &Inputs, origin: ScaleOrigin) -> Result<Staged> {
        let problem = &inputs.problem;
        let plan = device.plan(problem)?;
        Ok(Staged {
            q: inputs.q.upload(device)?,
            k_packed: inputs.k_packed.upload(device)?,
            v_packed: inputs.v_packed.upload(device)?,
            k_scale: inputs.k_scale.upload(device)?,
            v_scale: inputs.v_scale.upload(device)?,
            page_table: inputs.page_table.upload(device)?,
            seq_lens_kv: inputs.seq_lens_kv.upload(device)?,
            cu_seqlens_q: inputs.cu_seqlens_q.upload(device)?,
            sinks: inputs.sinks.as_ref().map(|sinks| sinks.upload(device)).transpose()?,
            bmm1_scale: device.upload(&inputs.bmm1_scale.to_le_bytes())?,
            bmm2_scale: device.upload(&inputs.bmm2_scale.to_le_bytes())?,
            out: Guarded::new(device, "out", DType::U8, &problem.q_shape())?,
            lse: match problem.lse {
                true => Some(Guarded::new(device, "lse", DType::F32, &problem.lse_shape())?),
                false => None,
            },
            workspace: Guarded::new(device, "workspace", DType::U8, &[plan.workspace_bytes()])?,
            inputs: inputs.clone(),
            origin,
            plan,
        })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The tensors of the call.
    ///
    /// # Errors
    /// None of its own.
    pub fn args(&self) -> Result<Nvfp4ContextArgs<'_>> {
        let inputs = &self.inputs;
        fn view<'b>(buffer: &'b Buffer, tensor: &HostTensor) -> Result<bakewell::TensorView<'b>> {
            buffer.view(tensor.dtype, &tensor.shape)
        }
        let scale = |value: f32, buffer| -> Result<Scale<'_>> {
            Ok(match self.origin {
                ScaleOrigin::Host => Scale::Host(value),
                ScaleOrigin::Device => Scale::Device(Buffer::view(buffer, DType::F32, &[1])?),
            })
        };
        Ok(Nvfp4ContextArgs {
            q: view(&self.q, &inputs.q)?,
            k_packed: view(&self.k_packed, &inputs.k_packed)?,
            v_packed: view(&self.v_packed, &inputs.v_packed)?,
            k_scale: view(&self.k_scale, &inputs.k_scale)?,
            v_scale: view(&self.v_scale, &inputs.v_scale)?,
            page_table: view(&self.page_table, &inputs.page_table)?,
            seq_lens_kv: view(&self.seq_lens_kv, &inputs.seq_lens_kv)?,
            cu_seqlens_q: view(&self.cu_seqlens_q, &inputs.cu_seqlens_q)?,
            out: self.out.view()?,
            lse: self.lse.as_ref().map(Guarded::view).transpose()?,
            sinks: match (&self.sinks, &inputs.sinks) {
                (Some(buffer), Some(tensor)) => Some(view(buffer, tensor)?),
                _ => None,
            },
            bmm1_scale: scale(inputs.bmm1_scale, &self.bmm1_scale)?,
            bmm2_scale: scale(inputs.bmm2_scale, &self.bmm2_scale)?,
            workspace: Some(self.workspace.view()?),
        })
    }

    /// Binds the tensors.
    ///
    /// # Errors
    /// The binding's.
    pub fn bind(&self) -> Result<Bound<'_>> {
        self.plan.bind(self.args()?)
    }

    /// Replaces the requests' cache lengths.
    ///
    /// # Errors
    /// The device's.
    pub fn set_lengths(&self, seq_lens_kv: &HostTensor) -> Result<()> {
        self.seq_lens_kv.write(0, &seq_lens_kv.bytes)
    }

    /// Fills the outputs with NaN again; the workspace, whose counters belong to the binding, stays.
    ///
    /// # Errors
    /// The device's.
    pub fn poison_outputs(&self) -> Result<()> {
        self.lse.iter().chain([&self.out]).try_for_each(Guarded::poison)
    }

    /// The outputs after all work of the default stream.
    ///
    /// # Errors
    /// The error of work that failed; [`bakewell::Error::Argument`] for a write outside a tensor, or for counters that
    /// a launch left set.
    pub fn outputs(&self) -> Result<Outputs> {
        self.plan.device().synchronize(Stream::DEFAULT)?;
        let workspace = self.workspace.read()?;
        if let Some(decision) = self.plan.decision() {
            check_counters(&workspace, &decision.workspace)?;
        }
        Ok(Outputs { out: self.out.read()?, lse: self.lse.as_ref().map(Guarded::read).transpose()? })
    }
}

/// Runs a problem once.
#[derive(Debug)]
pub struct Run {
    /// What came out.
    pub outputs: Outputs,
    /// The plan.
    pub plan: Plan,
    /// From launch to the end of the work, without planning, binding and copies.
    pub time: Duration,
}

/// Plans, binds, launches once, and waits.
///
/// # Errors
/// Those of [`Staged`].
pub fn run(device: &Device, inputs: &Inputs, origin: ScaleOrigin) -> Result<Run> {
    let staged = Staged::new(device, inputs, origin)?;
    let bound = staged.bind()?;
    let start = Instant::now();
    bound.launch(Stream::DEFAULT)?;
    device.synchronize(Stream::DEFAULT)?;
    let time = start.elapsed();
    drop(bound);
    Ok(Run { outputs: staged.outputs()?, plan: staged.plan, time })
}
