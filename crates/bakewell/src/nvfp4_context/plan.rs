//! A decision on a device, and the way from tensors to a launch.

use std::fmt;
use std::sync::Arc;

use bakewell_core::params::ParamBlock;
use bakewell_core::schedule::nvfp4_context::PARAMS;
use bakewell_core::{Buffer, Operation, Result, Stream, TensorView};
#[cfg(feature = "reference")]
use bakewell_reference::HostMemory;

use super::{Decision, Nvfp4Context, decide, tensors};
use crate::bound::{Bound, KernelLaunch};
use crate::device::{Device, Engine, Problem, Programs};

/// A planned problem on a device. Reusable for any number of bindings.
///
/// `Display` is the route in one line.
#[derive(Clone, Debug)]
pub struct Plan {
    problem: Nvfp4Context,
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

/// A factor, known on the host or only on the device.
#[derive(Clone, Copy, Debug)]
pub enum Scale<'a> {
    /// Its value.
    Host(f32),
    /// f32, one element, read when the work runs.
    Device(TensorView<'a>),
}

/// The tensors of a call; shapes as in the [module documentation](super).
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4ContextArgs<'a> {
    /// Queries.
    pub q: TensorView<'a>,
    /// Codes of K.
    pub k_packed: TensorView<'a>,
    /// Codes of V.
    pub v_packed: TensorView<'a>,
    /// Scales of K.
    pub k_scale: TensorView<'a>,
    /// Scales of V.
    pub v_scale: TensorView<'a>,
    /// Pages of each request.
    pub page_table: TensorView<'a>,
    /// Keys of each request.
    pub seq_lens_kv: TensorView<'a>,
    /// First query of each request, and the end.
    pub cu_seqlens_q: TensorView<'a>,
    /// Output; must not overlap any other tensor.
    pub out: TensorView<'a>,
    /// Log-sum-exp output; present exactly when the problem wants it.
    pub lse: Option<TensorView<'a>>,
    /// Sinks; present exactly when the problem has them.
    pub sinks: Option<TensorView<'a>>,
    /// Factor of the products; positive and finite.
    pub bmm1_scale: Scale<'a>,
    /// Factor of the output; finite. On the host or the device like the other.
    pub bmm2_scale: Scale<'a>,
    /// Workspace of at least [`Plan::workspace_bytes`] bytes, u8, 256-byte aligned; `None` lets the binding allocate it.
    pub workspace: Option<TensorView<'a>>,
}

impl Problem for Nvfp4Context {
    type Plan = Plan;

    /// As [`decide`](decide()) on a device with programs; the reference takes every valid problem.
    fn plan(&self, device: &Device) -> Result<Plan> {
        let _span = tracing::debug_span!("plan", operation = Operation::Nvfp4Context.name()).entered();
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
    pub fn problem(&self) -> &Nvfp4Context {
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

    /// Checks the tensors, loads the program, encodes the tensor maps, takes or allocates the workspace and writes the
    /// parameter block.
    ///
    /// # Errors
    /// [`Error::Argument`](bakewell_core::Error::Argument) that names the tensor, those about the program, or the
    /// device's error.
    pub fn bind<'a>(&self, args: Nvfp4ContextArgs<'a>) -> Result<Bound<'a>> {
        tensors::check(&self.problem, &args, self.workspace_bytes(), &*self.device.memory())?;
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
    pub fn launch(&self, stream: Stream, args: Nvfp4ContextArgs<'_>) -> Result<()> {
        self.bind(args)?.launch(stream)
    }

    fn bind_program<'a>(
        &self,
        programs: &Programs,
        decision: &Decision,
        args: &Nvfp4ContextArgs<'a>,
    ) -> Result<Bound<'a>> {
        let runtime = &programs.runtime;
        let Some(config) = decision.launch else {
            return Ok(Bound::kernels(Operation::Nvfp4Context, runtime.clone(), Vec::new(), None));
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
        let params = self.params(programs, decision, args, workspace)?;
        let launches = vec![KernelLaunch { kernel, config, params }];
        Ok(Bound::kernels(Operation::Nvfp4Context, runtime.clone(), launches, owned))
    }

    fn params(
        &self,
        programs: &Programs,
        decision: &Decision,
        args: &Nvfp4ContextArgs<'_>,
        workspace: u64,
    ) -> Result<Vec<u8>> {
        let problem = &self.problem;
        let mut block = ParamBlock::new(PARAMS);
        for (field, tensor, request) in tensors::maps(problem, decision.schedule, args) {
            block.tensor_map(field, &programs.runtime.encode_tensor_map(tensor, &request)?)?;
        }
        let address = |view: Option<TensorView<'_>>| view.map_or(0, |view| view.address());
        let ((bmm1, bmm1_device), (bmm2, bmm2_device)) = (args.bmm1_scale.split(), args.bmm2_scale.split());
        block
            .pointer("page_table", args.page_table.address())?
            .pointer("seq_lens_kv", args.seq_lens_kv.address())?
            .pointer("cu_seqlens_q", args.cu_seqlens_q.address())?
            .pointer("out", args.out.address())?
            .pointer("lse", address(args.lse))?
            .pointer("sinks", address(args.sinks))?
            .pointer("bmm1_device", address(bmm1_device))?
            .pointer("bmm2_device", address(bmm2_device))?;
        for region in ["partial_out", "partial_max", "partial_sum", "completed"] {
            block.pointer(region, decision.workspace.address(region, workspace))?;
        }
        block
            .u64("page_table_stride", args.page_table.strides()[0])?
            .f32("bmm1_scale", bmm1)?
            .f32("bmm2_scale", bmm2)?
            // Below 2^30 by `validate`.
            .u32("q_heads", problem.q_heads as u32)?
            .u32("heads_per_kv", problem.group_size()? as u32)?
            .u32("units_per_request", decision.units_per_request)?
            .u32("units", decision.units)?
            .u32("m_blocks", decision.m_blocks)?
            .u32("splits", decision.splits)?
            .u32("work_items", decision.work_items)?;
        block.finish()
    }
}

impl<'a> Scale<'a> {
    /// The host's value (0 without one) and the device's tensor.
    fn split(self) -> (f32, Option<TensorView<'a>>) {
        match self {
            Scale::Host(value) => (value, None),
            Scale::Device(view) => (0.0, Some(view)),
        }
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
