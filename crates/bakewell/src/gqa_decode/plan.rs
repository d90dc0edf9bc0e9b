//! A decision on a device, and the way from tensors to a launch.

use std::f64::consts::LN_2;
use std::fmt;
use std::sync::Arc;

use bakewell_core::error::Property;
use bakewell_core::params::ParamBlock;
use bakewell_core::schedule::gqa_decode::PARAMS;
use bakewell_core::{Buffer, DType, Error, Operation, Result, Stream, TensorView};
#[cfg(feature = "reference")]
use bakewell_reference::HostMemory;

use super::{Decision, GqaDecode, decide};
use crate::arguments::{Access, Argument, check_contiguous, check_placement, check_workspace};
use crate::bound::{Bound, KernelLaunch};
use crate::device::{Device, Engine, Problem, Programs};

/// Alignment of `q`, `kv` and `out` in bytes: kernels move 16-byte vectors.
const VECTOR_BYTES: u64 = 16;

/// A planned problem on a device. Reusable for any number of bindings.
///
/// `Display` is the route in one line.
#[derive(Clone, Debug)]
pub struct Plan {
    problem: GqaDecode,
    device: Device,
    route: Route,
}

/// Which engine, and what was decided for it.
#[derive(Clone, Debug)]
enum Route {
    #[cfg(feature = "reference")]
    Reference(Arc<HostMemory>),
    Program(Arc<Programs>, Decision),
}

/// The tensors of a call; shapes as in the [module documentation](super).
#[derive(Clone, Copy, Debug)]
pub struct GqaDecodeArgs<'a> {
    /// Queries.
    pub q: TensorView<'a>,
    /// Keys and values.
    pub kv: TensorView<'a>,
    /// Lengths, read when the work runs.
    pub sequence_lengths: TensorView<'a>,
    /// Output; must not overlap any other tensor.
    pub out: TensorView<'a>,
    /// Log-sum-exp output; present exactly when the problem wants it.
    pub lse: Option<TensorView<'a>>,
    /// Workspace of at least [`Plan::workspace_bytes`] bytes, u8, 256-byte aligned; `None` lets the binding allocate it.
    pub workspace: Option<TensorView<'a>>,
}

impl Problem for GqaDecode {
    type Plan = Plan;

    /// As [`decide`](decide()) on a device with programs; the reference takes every valid problem.
    fn plan(&self, device: &Device) -> Result<Plan> {
        let _span = tracing::debug_span!("plan", operation = Operation::GqaDecode.name()).entered();
        let route = match &device.engine {
            #[cfg(feature = "reference")]
            Engine::Reference(memory) => {
                self.validate()?;
                Route::Reference(memory.clone())
            }
            Engine::Programs(programs) => {
                let decision = decide(self, programs.compiled.architecture, programs.runtime.sm_count())?;
                Route::Program(programs.clone(), decision)
            }
        };
        let plan = Plan { problem: self.clone(), device: device.clone(), route };
        tracing::debug!(%device, "{plan}");
        Ok(plan)
    }
}

impl Plan {
    /// The problem.
    pub fn problem(&self) -> &GqaDecode {
        &self.problem
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Program, geometry and workspace; `None` on the reference, which has no programs.
    pub fn decision(&self) -> Option<&Decision> {
        match &self.route {
            #[cfg(feature = "reference")]
            Route::Reference(_) => None,
            Route::Program(_, decision) => Some(decision),
        }
    }

    /// Bytes of workspace that a binding needs.
    pub fn workspace_bytes(&self) -> u64 {
        self.decision().map_or(0, |decision| decision.workspace.bytes)
    }

    /// Checks the tensors, loads the program, takes or allocates the workspace and writes the parameter block.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the tensor, [`Error::NoProgram`] and [`Error::Corrupt`] about the program, or the
    /// device's error.
    pub fn bind<'a>(&self, args: GqaDecodeArgs<'a>) -> Result<Bound<'a>> {
        self.check(&args)?;
        match &self.route {
            #[cfg(feature = "reference")]
            Route::Reference(memory) => Ok(super::reference::bind(&self.problem, memory.clone(), args)),
            Route::Program(programs, decision) => self.bind_program(programs, decision, &args),
        }
    }

    /// Binds and launches.
    ///
    /// # Errors
    /// As [`Plan::bind`] and [`Bound::launch`].
    pub fn launch(&self, stream: Stream, args: GqaDecodeArgs<'_>) -> Result<()> {
        self.bind(args)?.launch(stream)
    }

    fn check(&self, args: &GqaDecodeArgs<'_>) -> Result<()> {
        let problem = &self.problem;
        for (name, view, shape) in [
            ("q", &args.q, problem.q_shape().as_slice()),
            ("kv", &args.kv, problem.kv_shape().as_slice()),
            ("out", &args.out, problem.q_shape().as_slice()),
        ] {
            view.expect(name, problem.dtype, shape)?;
            check_contiguous(name, view, VECTOR_BYTES)?;
        }
        let lengths = &args.sequence_lengths;
        lengths.expect("sequence_lengths", DType::I32, &problem.sequence_lengths_shape())?;
        check_contiguous("sequence_lengths", lengths, DType::I32.bytes())?;

        let read = |name, view| Argument { name, view, access: Access::Read };
        let write = |name, view| Argument { name, view, access: Access::Write };
        let mut arguments =
            vec![read("q", &args.q), read("kv", &args.kv), read("sequence_lengths", lengths), write("out", &args.out)];
        match (&args.lse, problem.lse) {
            (Some(lse), true) => {
                lse.expect("lse", DType::F32, &problem.lse_shape())?;
                check_contiguous("lse", lse, DType::F32.bytes())?;
                arguments.push(write("lse", lse));
            }
            (None, false) => {}
            (Some(_), false) => {
                return Err(Error::argument("lse", Property::Presence, "no tensor, as planned", "a tensor"));
            }
            (None, true) => return Err(Error::argument("lse", Property::Presence, "a tensor, as planned", "none")),
        }
        if let Some(workspace) = &args.workspace {
            check_workspace(workspace, self.workspace_bytes())?;
            arguments.push(write("workspace", workspace));
        }
        check_placement(&*self.device.memory(), &arguments)
    }

    fn bind_program<'a>(
        &self,
        programs: &Programs,
        decision: &Decision,
        args: &GqaDecodeArgs<'a>,
    ) -> Result<Bound<'a>> {
        let runtime = &programs.runtime;
        let Some(config) = decision.launch else {
            return Ok(Bound::kernels(Operation::GqaDecode, runtime.clone(), Vec::new(), None));
        };
        let kernel = runtime.load(&programs.program(decision.schedule)?)?;
        let owned = match &args.workspace {
            None if decision.workspace.bytes > 0 => Some(self.device.buffer(decision.workspace.bytes)?),
            _ => None,
        };
        let workspace = args.workspace.map(|view| view.address()).or(owned.as_ref().map(Buffer::address)).unwrap_or(0);
        if let Some(completed) = decision.workspace.region("completed") {
            runtime.fill(workspace + completed.offset, 0, completed.bytes)?;
        }
        let params = self.params(decision, args, workspace)?;
        Ok(Bound::kernels(Operation::GqaDecode, runtime.clone(), vec![KernelLaunch { kernel, config, params }], owned))
    }

    fn params(&self, decision: &Decision, args: &GqaDecodeArgs<'_>, workspace: u64) -> Result<Vec<u8>> {
        let problem = &self.problem;
        let scale_log2 = f64::from(problem.q_scale) / ((problem.head_dim as f64).sqrt() * LN_2);
        let mut block = ParamBlock::new(PARAMS);
        block
            .pointer("q", args.q.address())?
            .pointer("kv", args.kv.address())?
            .pointer("sequence_lengths", args.sequence_lengths.address())?
            .pointer("out", args.out.address())?
            .pointer("lse", args.lse.map_or(0, |lse| lse.address()))?;
        for region in ["partial_out", "partial_max", "partial_sum", "completed"] {
            block.pointer(region, decision.workspace.address(region, workspace))?;
        }
        block
            .u64("capacity", problem.capacity)?
            .u32("kv_heads", decision.launch.map_or(0, |launch| launch.grid[2]))?
            .u32("splits", decision.splits)?
            .f32("scale_log2", scale_log2 as f32)?;
        block.finish()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decision() {
            Some(decision) => fmt::Display::fmt(decision, f),
            None => f.write_str("reference: plain loops on the host, no workspace, no copies"),
        }
    }
}
