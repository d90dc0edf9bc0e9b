//! From tensors to the two launches.

#[cfg(feature = "reference")]
use std::sync::Arc;

use bakewell_core::params::ParamBlock;
use bakewell_core::route::Considered;
use bakewell_core::schedule::Schedule;
use bakewell_core::schedule::nvfp4_pre_attention::norm::PARAMS;
use bakewell_core::{Architecture, Operation, Result};
#[cfg(feature = "reference")]
use bakewell_reference::HostMemory;

use super::gemm::ACTIVATION_IMAGE;
use super::scales::Scales;
use super::{Decision, Nvfp4PreAttention, Nvfp4PreAttentionArgs, consider, decide, tensors};
use crate::arguments::address_or_null;
use crate::binder::Binder;
#[cfg(feature = "reference")]
use crate::bound::HostWork;
use crate::plan::{Problem, sealed::Sealed};
use crate::workspace::WorkspaceLayout;

impl Sealed for Nvfp4PreAttention {}

impl Problem for Nvfp4PreAttention {
    const OPERATION: Operation = Operation::Nvfp4PreAttention;
    type Decision = Decision;
    type Args<'a> = Nvfp4PreAttentionArgs<'a>;

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
        match decision.launches {
            Some(_) => vec![decision.norm, decision.gemm.schedule()],
            None => Vec::new(),
        }
    }

    fn preparations(decision: &Decision) -> Vec<&'static dyn Schedule> {
        decision.gemm.preparation_schedule().filter(|_| decision.launches.is_some()).into_iter().collect()
    }

    fn check(&self, args: &Nvfp4PreAttentionArgs<'_>) -> Result<()> {
        tensors::check(self, args)
    }

    fn bind(&self, decision: &Decision, args: &Nvfp4PreAttentionArgs<'_>, binder: &mut Binder<'_>) -> Result<()> {
        let Some(launches) = decision.launches else { return Ok(()) };
        let scales = Scales::read(binder.memory(), args)?;
        let prepared = decision.gemm.prepare(self, args, binder)?;
        let norm = norm_params(self, args, binder)?;
        let gemm = decision.gemm.params(self, args, &scales, prepared, binder)?;
        binder.launch(decision.norm, launches.norm, norm)?;
        binder.launch(decision.gemm.schedule(), launches.gemm, gemm)
    }

    #[cfg(feature = "reference")]
    fn bind_reference<'a>(&self, memory: Arc<HostMemory>, args: Self::Args<'a>) -> Result<HostWork<'a>> {
        if self.is_empty() {
            return Ok(Box::new(|| Ok(())));
        }
        let problem = self.clone();
        let scales = Scales::read(&*memory, &args)?;
        Ok(Box::new(move || super::reference::run(&problem, &scales, &memory, &args)))
    }
}

fn norm_params(problem: &Nvfp4PreAttention, args: &Nvfp4PreAttentionArgs<'_>, binder: &Binder<'_>) -> Result<Vec<u8>> {
    // A destination whose rows are whole tiles has no padding to clear.
    let whole = problem.rows_per_destination() == problem.out_scales_shape()[1] / 8;
    let mut block = ParamBlock::new(PARAMS);
    block
        .pointer("x", args.x.address())?
        .pointer("weight", args.x_norm_weight.address())?
        .pointer("adaln_scale", args.adaln_scale.address())?
        .pointer("adaln_shift", args.adaln_shift.address())?
        .pointer("adaln_index", args.adaln_index.address())?
        .pointer("global_scale", args.x_global_scale.address())?
        .pointer("activation_q", args.activation_q.address())?
        .pointer("activation_sf", args.activation_sf.address())?
        .pointer("image", binder.region(ACTIVATION_IMAGE))?
        .pointer("debug_adaln", address_or_null(args.debug_adaln_bf16.as_ref()))?
        .pointer("out_sf", if whole { 0 } else { address_or_null(args.out_sf.as_ref()) })?
        .u64("out_sf_bytes", problem.out_scales_shape()[1])?
        // All below 2^32 by `validate`.
        .u32("tokens", problem.tokens as u32)?
        .u32("hidden", problem.hidden as u32)?
        .u32("table_rows", problem.table_rows as u32)?
        .u32("destinations", problem.destinations as u32)?
        .f32("eps", problem.eps)?;
    block.finish()
}
