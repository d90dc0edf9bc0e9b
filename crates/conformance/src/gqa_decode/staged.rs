//! Inputs on a device, outputs poisoned and guarded.

use std::time::{Duration, Instant};

use bakewell::gqa_decode::{GqaDecodeArgs, Plan};
use bakewell::{Bound, Buffer, DType, Device, Result, Stream};

use super::Inputs;
use crate::HostTensor;
use crate::guarded::{Guarded, check_counters};

/// What came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outputs {
    /// `[batch, query_heads, head_dim]`.
    pub out: HostTensor,
    /// `[batch, query_heads]`, f32.
    pub lse: Option<HostTensor>,
}

/// Tensors on a device, outputs poisoned and guarded; ready to be bound and launched.
#[derive(Debug)]
pub struct Staged {
    plan: Plan,
    q: Buffer,
    kv: Buffer,
    sequence_lengths: Buffer,
    out: Guarded,
    lse: Option<Guarded>,
    workspace: Guarded,
}

impl Staged {
    /// Plans the problem and uploads its inputs.
    ///
    /// # Errors
    /// The plan's or the device's.
    pub fn new(device: &Device, inputs: &Inputs) -> Result<Staged> {
        let problem = &inputs.problem;
        let plan = device.plan(problem)?;
        Ok(Staged {
            q: inputs.q.upload(device)?,
            kv: inputs.kv.upload(device)?,
            sequence_lengths: inputs.sequence_lengths.upload(device)?,
            out: Guarded::new(device, "out", problem.dtype, &problem.q_shape())?,
            lse: match problem.lse {
                true => Some(Guarded::new(device, "lse", DType::F32, &problem.lse_shape())?),
                false => None,
            },
            workspace: Guarded::new(device, "workspace", DType::U8, &[plan.workspace_bytes()])?,
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
    pub fn args(&self) -> Result<GqaDecodeArgs<'_>> {
        let problem = self.plan.problem();
        Ok(GqaDecodeArgs {
            q: self.q.view(problem.dtype, &problem.q_shape())?,
            kv: self.kv.view(problem.dtype, &problem.kv_shape())?,
            sequence_lengths: self.sequence_lengths.view(DType::I32, &problem.sequence_lengths_shape())?,
            out: self.out.view()?,
            lse: self.lse.as_ref().map(Guarded::view).transpose()?,
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

    /// Writes other lengths where the next launch reads them.
    ///
    /// # Errors
    /// The device's.
    pub fn set_lengths(&self, lengths: &[i32]) -> Result<()> {
        self.sequence_lengths.write(0, &HostTensor::of_i32(&[lengths.len() as u64], lengths).bytes)
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
    /// The error of work that failed; [`bakewell::Error::Argument`] for a write outside a tensor, or for counters that a launch
    /// left set.
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
pub fn run(device: &Device, inputs: &Inputs) -> Result<Run> {
    let staged = Staged::new(device, inputs)?;
    let bound = staged.bind()?;
    let start = Instant::now();
    bound.launch(Stream::DEFAULT)?;
    device.synchronize(Stream::DEFAULT)?;
    let time = start.elapsed();
    drop(bound);
    Ok(Run { outputs: staged.outputs()?, plan: staged.plan, time })
}

#[cfg(test)]
mod tests {
    use bakewell::gqa_decode::GqaDecode;

    use super::super::Distribution;
    use super::*;
    use crate::guarded::GUARD_BYTES;

    #[test]
    fn writes_outside_an_output_are_found() {
        let device = Device::reference().unwrap();
        let problem = GqaDecode { capacity: 3, ..GqaDecode::default() };
        let inputs = Inputs::generate(&problem, &[3, 2], Distribution::Normal, 5).unwrap();
        let staged = Staged::new(&device, &inputs).unwrap();
        staged.bind().unwrap().launch(Stream::DEFAULT).unwrap();
        assert!(staged.outputs().is_ok());
        staged.out.buffer.write(GUARD_BYTES - 2, &[0]).unwrap();
        let error = staged.outputs().unwrap_err().to_string();
        assert_eq!(error, "out: expected writes inside the tensor only, got a write -2 bytes from its start");
    }
}
