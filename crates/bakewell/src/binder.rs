//! What an operation puts its launches into.

use std::sync::Arc;

use bakewell_core::runtime::Kernel;
use bakewell_core::schedule::Schedule;
use bakewell_core::tensor_map::{TensorMap, TensorMapRequest};
use bakewell_core::{Buffer, LaunchConfig, Memory, Operation, Result, Runtime, Stream, TensorView};

use crate::bound::{Bound, KernelLaunch};
use crate::device::Programs;
use crate::workspace::WorkspaceLayout;

/// Collects the launches of one call: any number of programs of any family, each with its own geometry and parameter
/// block, the device memory that they need besides the tensors, and the work that is done once, now.
///
/// Everything here may allocate, load and wait; [`Bound::launch`] then only enqueues.
pub struct Binder<'p> {
    programs: &'p Programs,
    layout: &'p WorkspaceLayout,
    /// Address of the workspace; 0 when there is none.
    workspace: u64,
    launches: Vec<KernelLaunch>,
    buffers: Vec<Arc<Buffer>>,
}

impl<'p> Binder<'p> {
    /// Takes the caller's workspace or allocates one.
    pub(crate) fn new(
        programs: &'p Programs,
        layout: &'p WorkspaceLayout,
        given: Option<&TensorView<'_>>,
    ) -> Result<Binder<'p>> {
        let mut binder = Binder { programs, layout, workspace: 0, launches: Vec::new(), buffers: Vec::new() };
        binder.workspace = match given {
            Some(view) => view.address(),
            None if layout.bytes > 0 => binder.buffer(layout.bytes)?.address(),
            None => 0,
        };
        Ok(binder)
    }

    /// The device's memory, to read what must be known on the host.
    pub fn memory(&self) -> &dyn Memory {
        &*self.programs.runtime
    }

    /// Address of a region of the workspace; 0, the null pointer of the kernels, when the plan has none of this name.
    pub fn region(&self, name: &str) -> u64 {
        self.layout.address(name, self.workspace)
    }

    /// Clears a region of the workspace, if the plan has it.
    ///
    /// # Errors
    /// As [`Memory::fill`].
    pub fn clear_region(&self, name: &str) -> Result<()> {
        match self.layout.region(name) {
            Some(region) if region.bytes > 0 => self.memory().fill(self.region(name), 0, region.bytes),
            _ => Ok(()),
        }
    }

    /// Device memory that lives at least as long as the binding. Content is undefined.
    ///
    /// # Errors
    /// As [`Memory::allocate`].
    pub fn buffer(&mut self, bytes: u64) -> Result<Arc<Buffer>> {
        let buffer = Buffer::new(self.programs.runtime.clone(), bytes)?;
        Ok(self.keep(buffer))
    }

    /// Device memory that lives at least as long as the binding, with this content.
    ///
    /// # Errors
    /// As [`Memory::allocate`] and [`Memory::write`].
    pub fn upload(&mut self, content: &[u8]) -> Result<Arc<Buffer>> {
        let buffer = Buffer::from_bytes(self.programs.runtime.clone(), content)?;
        Ok(self.keep(buffer))
    }

    fn keep(&mut self, buffer: Buffer) -> Arc<Buffer> {
        let buffer = Arc::new(buffer);
        self.buffers.push(buffer.clone());
        buffer
    }

    /// A tensor map for a parameter block. `tensor` names it in errors.
    ///
    /// # Errors
    /// As [`Runtime::encode_tensor_map`].
    pub fn tensor_map(&self, tensor: &'static str, request: &TensorMapRequest) -> Result<TensorMap> {
        self.programs.runtime.encode_tensor_map(tensor, request)
    }

    /// Runs a program now, and waits: preparation that later launches build on. The tensors that it reads must be
    /// ready.
    ///
    /// # Errors
    /// Those of loading, launching and the program's run.
    pub fn run(&self, schedule: &dyn Schedule, config: &LaunchConfig, params: &[u8]) -> Result<()> {
        let runtime = &self.programs.runtime;
        runtime.launch(self.load(schedule)?, config, params, Stream::DEFAULT)?;
        runtime.synchronize(Stream::DEFAULT)
    }

    /// Adds a launch after those already there.
    ///
    /// # Errors
    /// [`Error::NoProgram`](bakewell_core::Error::NoProgram), [`Error::Corrupt`](bakewell_core::Error::Corrupt), or the
    /// loader's error.
    pub fn launch(&mut self, schedule: &dyn Schedule, config: LaunchConfig, params: Vec<u8>) -> Result<()> {
        let kernel = self.load(schedule)?;
        self.launches.push(KernelLaunch { kernel, config, params });
        Ok(())
    }

    fn load(&self, schedule: &dyn Schedule) -> Result<Kernel> {
        self.programs.runtime.load(&self.programs.program(schedule)?)
    }

    pub(crate) fn finish<'a>(self, operation: Operation) -> Bound<'a> {
        let runtime: Arc<dyn Runtime> = self.programs.runtime.clone();
        Bound::kernels(operation, runtime, self.launches, self.buffers)
    }
}

#[cfg(all(test, feature = "emulator", feature = "sm90"))]
mod tests {
    use bakewell_core::{Arch, Architecture, DType};

    use super::*;
    use crate::arguments::Arguments as _;
    use crate::gqa_decode::{Decision, GqaDecode, GqaDecodeArgs};
    use crate::plan::{Problem, sealed::Sealed};
    use crate::{Device, Plan};

    /// Attention of attention of attention: the queries of the first are uploaded and attended to while binding, the
    /// other two are launches, and what lies between them belongs to the binding.
    #[derive(Clone, Debug)]
    struct Thrice(GqaDecode, Vec<u8>);

    impl Sealed for Thrice {}

    impl Problem for Thrice {
        const OPERATION: Operation = Operation::GqaDecode;
        type Decision = Decision;
        type Args<'a> = GqaDecodeArgs<'a>;

        fn validate(&self) -> Result<()> {
            self.0.validate()
        }

        fn decide(&self, architecture: &'static Architecture, sm_count: u32) -> Result<Decision> {
            self.0.decide(architecture, sm_count)
        }

        fn workspace(decision: &Decision) -> &WorkspaceLayout {
            <GqaDecode as Problem>::workspace(decision)
        }

        fn schedules(decision: &Decision) -> Vec<&'static dyn Schedule> {
            vec![decision.schedule; 3]
        }

        fn check(&self, args: &GqaDecodeArgs<'_>) -> Result<()> {
            self.0.check(args)
        }

        fn bind(&self, decision: &Decision, args: &GqaDecodeArgs<'_>, binder: &mut Binder<'_>) -> Result<()> {
            let shape = self.0.q_shape();
            let bytes = self.1.len() as u64;
            let between = [binder.upload(&self.1)?, binder.buffer(bytes)?, binder.buffer(bytes)?];
            let views: Vec<TensorView<'_>> =
                between.iter().map(|buffer| buffer.view(DType::F16, &shape)).collect::<Result<_>>()?;
            self.0.bind(decision, &GqaDecodeArgs { q: views[0], out: views[1], ..*args }, binder)?;
            let first = binder.launches.pop().unwrap();
            binder.run(decision.schedule, &first.config, &first.params)?;
            self.0.bind(decision, &GqaDecodeArgs { q: views[1], out: views[2], ..*args }, binder)?;
            self.0.bind(decision, &GqaDecodeArgs { q: views[2], ..*args }, binder)
        }

        #[cfg(feature = "reference")]
        fn bind_reference<'a>(
            &self,
            memory: Arc<bakewell_reference::HostMemory>,
            args: Self::Args<'a>,
        ) -> Result<crate::bound::HostWork<'a>> {
            self.0.bind_reference(memory, args)
        }
    }

    #[test]
    fn a_binding_prepares_owns_memory_and_launches_in_order() {
        let problem = GqaDecode { capacity: 64, query_heads: 4, kv_heads: 1, ..GqaDecode::default() };
        // Different finite values of either sign.
        let values = |count: u64, salt: u64| -> Vec<u8> {
            let value = |i: u64| ((i * 2_654_435_761 + salt) >> 7) as u16 & 0xBFFF | 0x2000;
            (0..count).flat_map(|i| value(i).to_le_bytes()).collect()
        };
        let device = Device::emulated(Arch::Sm90).unwrap();
        let bytes = values(4 * 128, 1);
        let kv = device.upload(&values(2 * 64 * 128, 2)).unwrap();
        let lengths = device.upload(&50i32.to_le_bytes()).unwrap();
        let (q, out) = (device.upload(&bytes).unwrap(), device.buffer(4 * 128 * 2).unwrap());
        let args = GqaDecodeArgs {
            q: q.view(DType::F16, &problem.q_shape()).unwrap(),
            kv: kv.view(DType::F16, &problem.kv_shape()).unwrap(),
            sequence_lengths: lengths.view(DType::I32, &[1]).unwrap(),
            out: out.view(DType::F16, &problem.q_shape()).unwrap(),
            lse: None,
            workspace: None,
        };
        assert_eq!(args.tensors().len(), 4);

        let bound = device.plan(&Thrice(problem.clone(), bytes)).unwrap().bind(args).unwrap();
        bound.launch(Stream::DEFAULT).unwrap();
        let thrice = out.read().unwrap();
        bound.launch(Stream::DEFAULT).unwrap();
        assert_eq!(out.read().unwrap(), thrice, "a binding launches any number of times");

        let plan: Plan<GqaDecode> = device.plan(&problem).unwrap();
        for step in 1..=3 {
            plan.launch(Stream::DEFAULT, args).unwrap();
            assert_eq!(out.read().unwrap() == thrice, step == 3, "after {step} ordinary calls");
            q.write(0, &out.read().unwrap()).unwrap();
        }
    }
}
