//! A call on a device: inputs uploaded, outputs poisoned and guarded.

use std::ops::Index;
use std::time::{Duration, Instant};

use bakewell::{Bound, DType, Device, Plan, Problem, Result, Stream};

use crate::HostTensor;
use crate::call::{Buffers, CallInputs};
use crate::guarded::{Guarded, check_counters};

/// What came out, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outputs(pub Vec<(&'static str, HostTensor)>);

impl Outputs {
    /// The output of a name; `None` for one that was not asked for.
    pub fn get(&self, name: &str) -> Option<&HostTensor> {
        self.0.iter().find(|(there, _)| *there == name).map(|(_, tensor)| tensor)
    }

    /// The output of a name, to be changed.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut HostTensor> {
        self.0.iter_mut().find(|(there, _)| *there == name).map(|(_, tensor)| tensor)
    }
}

impl Index<&str> for Outputs {
    type Output = HostTensor;

    /// The output of a name.
    ///
    /// # Panics
    /// When it was not asked for.
    #[allow(clippy::panic, reason = "like the index of any map")]
    fn index(&self, name: &str) -> &HostTensor {
        self.get(name).unwrap_or_else(|| panic!("no output {name}"))
    }
}

/// Tensors on a device, outputs poisoned and guarded; ready to be bound and launched.
#[derive(Debug)]
pub struct Staged<I: CallInputs> {
    plan: Plan<I::Problem>,
    inputs: I,
    buffers: Buffers,
    outputs: Vec<Guarded>,
    workspace: Guarded,
}

impl<I: CallInputs> Staged<I> {
    /// Plans the problem and uploads its inputs.
    ///
    /// # Errors
    /// The plan's or the device's.
    pub fn new(device: &Device, inputs: &I) -> Result<Staged<I>> {
        let plan = device.plan(inputs.problem())?;
        let outputs = inputs.specs().into_iter().filter(|spec| spec.output);
        let guarded = outputs.map(|spec| Guarded::new(device, spec.name, spec.dtype, &spec.shape));
        Ok(Staged {
            buffers: Buffers::upload(device, inputs)?,
            outputs: guarded.collect::<Result<_>>()?,
            workspace: Guarded::new(device, "workspace", DType::U8, &[plan.workspace_bytes()])?,
            inputs: inputs.clone(),
            plan,
        })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan<I::Problem> {
        &self.plan
    }

    /// The tensors of the call.
    ///
    /// # Errors
    /// None of its own.
    pub fn args(&self) -> Result<<I::Problem as Problem>::Args<'_>> {
        let mut views = self.buffers.views()?;
        for output in self.outputs.iter().chain([&self.workspace]) {
            views.put(output.name(), output.view()?);
        }
        self.inputs.args(&views)
    }

    /// Binds the tensors.
    ///
    /// # Errors
    /// The binding's.
    pub fn bind(&self) -> Result<Bound<'_>> {
        self.plan.bind(self.args()?)
    }

    /// Writes another input of at most the same size where the next launch reads it.
    ///
    /// # Errors
    /// The device's, or [`bakewell::Error::Argument`] for a name that is no input.
    pub fn write(&self, name: &str, tensor: &HostTensor) -> Result<()> {
        self.buffers.get(name)?.write(0, &tensor.bytes)
    }

    /// Fills the outputs with NaN again; the workspace, whose counters belong to the binding, stays.
    ///
    /// # Errors
    /// The device's.
    pub fn poison_outputs(&self) -> Result<()> {
        self.outputs.iter().try_for_each(Guarded::poison)
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
            check_counters(&workspace, I::Problem::workspace(decision))?;
        }
        let outputs = self.outputs.iter().map(|output| Ok((output.name(), output.read()?)));
        Ok(Outputs(outputs.collect::<Result<_>>()?))
    }
}

/// One run of a problem.
#[derive(Debug)]
pub struct Run<P: Problem> {
    /// What came out.
    pub outputs: Outputs,
    /// The plan.
    pub plan: Plan<P>,
    /// From launch to the end of the work, without planning, binding and copies.
    pub time: Duration,
}

/// Plans, binds, launches once, and waits.
///
/// # Errors
/// Those of [`Staged`].
pub fn run<I: CallInputs>(device: &Device, inputs: &I) -> Result<Run<I::Problem>> {
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

    use super::*;
    use crate::gqa_decode::{Distribution, Inputs};
    use crate::guarded::GUARD_BYTES;

    #[test]
    fn writes_outside_an_output_are_found() {
        let device = Device::reference().unwrap();
        let problem = GqaDecode { capacity: 3, ..GqaDecode::default() };
        let inputs = Inputs::generate(&problem, &[3, 2], Distribution::Normal, 5).unwrap();
        let staged = Staged::new(&device, &inputs).unwrap();
        staged.bind().unwrap().launch(Stream::DEFAULT).unwrap();
        assert!(staged.outputs().is_ok());
        staged.outputs[0].buffer.write(GUARD_BYTES - 2, &[0]).unwrap();
        let error = staged.outputs().unwrap_err().to_string();
        assert_eq!(error, "out: expected writes inside the tensor only, got a write -2 bytes from its start");
    }
}
