//! The tensors of a call, and the launch made of them.

use std::f64::consts::LN_2;
#[cfg(feature = "reference")]
use std::sync::Arc;

use bakewell_core::params::ParamBlock;
use bakewell_core::route::Considered;
use bakewell_core::schedule::Schedule;
use bakewell_core::schedule::gqa_decode::PARAMS;
use bakewell_core::{Architecture, DType, LaunchConfig, Operation, Result, TensorView};
#[cfg(feature = "reference")]
use bakewell_reference::HostMemory;

use super::{Decision, GqaDecode, consider, decide};
use crate::arguments::{Argument, Arguments, address_or_null, check_contiguous, check_dense, check_optional};
use crate::binder::Binder;
#[cfg(feature = "reference")]
use crate::bound::HostWork;
use crate::plan::{Problem, sealed::Sealed};
use crate::workspace::WorkspaceLayout;

/// Alignment of `q`, `kv` and `out` in bytes: kernels move 16-byte vectors.
const VECTOR_BYTES: u64 = 16;

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
    /// Workspace of at least [`Plan::workspace_bytes`](crate::Plan::workspace_bytes) bytes, u8, 256-byte aligned;
    /// `None` lets the binding allocate it.
    pub workspace: Option<TensorView<'a>>,
}

impl<'a> Arguments<'a> for GqaDecodeArgs<'a> {
    fn tensors(&self) -> Vec<Argument<'_, 'a>> {
        let mut tensors = vec![
            Argument::read("q", &self.q),
            Argument::read("kv", &self.kv),
            Argument::read("sequence_lengths", &self.sequence_lengths),
            Argument::write("out", &self.out),
        ];
        tensors.extend(self.lse.iter().map(|view| Argument::write("lse", view)));
        tensors
    }

    fn workspace(&self) -> Option<&TensorView<'a>> {
        self.workspace.as_ref()
    }
}

impl Sealed for GqaDecode {}

impl Problem for GqaDecode {
    const OPERATION: Operation = Operation::GqaDecode;
    type Decision = Decision;
    type Args<'a> = GqaDecodeArgs<'a>;

    fn validate(&self) -> Result<()> {
        self.validate()
    }

    fn decide(&self, architecture: &'static Architecture, sm_count: u32) -> Result<Decision> {
        decide(self, architecture, sm_count)
    }

    fn consider(&self, architecture: &'static Architecture, sm_count: u32) -> Result<Vec<Considered>> {
        consider(self, architecture, sm_count)
    }

    fn workspace(decision: &Decision) -> &WorkspaceLayout {
        &decision.workspace
    }

    fn schedules(decision: &Decision) -> Vec<&'static dyn Schedule> {
        decision.launch.iter().map(|_| decision.schedule as &'static dyn Schedule).collect()
    }

    fn check(&self, args: &GqaDecodeArgs<'_>) -> Result<()> {
        for (name, view, shape) in [
            ("q", &args.q, self.q_shape().as_slice()),
            ("kv", &args.kv, self.kv_shape().as_slice()),
            ("out", &args.out, self.q_shape().as_slice()),
        ] {
            view.expect(name, self.dtype, shape)?;
            check_contiguous(name, view, VECTOR_BYTES)?;
        }
        check_dense("sequence_lengths", &args.sequence_lengths, DType::I32, &self.sequence_lengths_shape())?;
        check_optional("lse", args.lse.as_ref(), self.lse, DType::F32, &self.lse_shape())
    }

    fn bind(&self, decision: &Decision, args: &GqaDecodeArgs<'_>, binder: &mut Binder<'_>) -> Result<()> {
        let Some(config) = decision.launch else { return Ok(()) };
        binder.clear_region("completed")?;
        let params = params(self, decision, &config, args, binder)?;
        binder.launch(decision.schedule, config, params)
    }

    #[cfg(feature = "reference")]
    fn bind_reference<'a>(&self, memory: Arc<HostMemory>, args: Self::Args<'a>) -> Result<HostWork<'a>> {
        use super::reference::run;
        let problem = self.clone();
        Ok(Box::new(move || match problem.dtype {
            DType::Bf16 => run::<half::bf16>(&problem, &memory, &args),
            // Planning admits these two only.
            _ => run::<half::f16>(&problem, &memory, &args),
        }))
    }
}

fn params(
    problem: &GqaDecode,
    decision: &Decision,
    config: &LaunchConfig,
    args: &GqaDecodeArgs<'_>,
    binder: &Binder<'_>,
) -> Result<Vec<u8>> {
    let scale_log2 = f64::from(problem.q_scale) / ((problem.head_dim as f64).sqrt() * LN_2);
    let mut block = ParamBlock::new(PARAMS);
    block
        .pointer("q", args.q.address())?
        .pointer("kv", args.kv.address())?
        .pointer("sequence_lengths", args.sequence_lengths.address())?
        .pointer("out", args.out.address())?
        .pointer("lse", address_or_null(args.lse.as_ref()))?;
    for region in ["partial_out", "partial_max", "partial_sum", "completed"] {
        block.pointer(region, binder.region(region))?;
    }
    block
        .u64("capacity", problem.capacity)?
        .u32("kv_heads", config.grid[2])?
        .u32("splits", decision.splits)?
        .f32("scale_log2", scale_log2 as f32)?
        .u32("early_tiles", decision.early_tiles)?;
    block.finish()
}
