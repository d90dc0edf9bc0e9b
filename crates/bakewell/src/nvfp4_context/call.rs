//! The tensors of a call, and the launch made of them.

#[cfg(feature = "reference")]
use std::sync::Arc;

use bakewell_core::params::ParamBlock;
use bakewell_core::route::Considered;
use bakewell_core::schedule::Schedule;
use bakewell_core::schedule::nvfp4_context::Family;
use bakewell_core::{Architecture, Operation, Result, TensorView};
#[cfg(feature = "reference")]
use bakewell_reference::HostMemory;

use super::{Decision, Expansion, Merge, Nvfp4Context, consider, decide, tensors};
use crate::arguments::{Argument, Arguments, address_or_null};
use crate::binder::Binder;
#[cfg(feature = "reference")]
use crate::bound::HostWork;
use crate::plan::{Problem, sealed::Sealed};
use crate::workspace::WorkspaceLayout;

/// A factor, known on the host or only on the device.
#[derive(Clone, Copy, Debug)]
pub enum Scale<'a> {
    /// Its value.
    Host(f32),
    /// f32, one element, read when the work runs.
    Device(TensorView<'a>),
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
    /// Workspace of at least [`Plan::workspace_bytes`](crate::Plan::workspace_bytes) bytes, u8, 256-byte aligned;
    /// `None` lets the binding allocate it.
    pub workspace: Option<TensorView<'a>>,
}

impl<'a> Arguments<'a> for Nvfp4ContextArgs<'a> {
    fn tensors(&self) -> Vec<Argument<'_, 'a>> {
        let mut tensors = vec![
            Argument::read("q", &self.q),
            Argument::read("k_packed", &self.k_packed),
            Argument::read("v_packed", &self.v_packed),
            Argument::read("k_scale", &self.k_scale),
            Argument::read("v_scale", &self.v_scale),
            Argument::read("page_table", &self.page_table),
            Argument::read("seq_lens_kv", &self.seq_lens_kv),
            Argument::read("cu_seqlens_q", &self.cu_seqlens_q),
            Argument::write("out", &self.out),
        ];
        tensors.extend(self.lse.iter().map(|view| Argument::write("lse", view)));
        tensors.extend(self.sinks.iter().map(|view| Argument::read("sinks", view)));
        for (name, scale) in [("bmm1_scale", &self.bmm1_scale), ("bmm2_scale", &self.bmm2_scale)] {
            if let Scale::Device(view) = scale {
                tensors.push(Argument::read(name, view));
            }
        }
        tensors
    }

    fn workspace(&self) -> Option<&TensorView<'a>> {
        self.workspace.as_ref()
    }
}

impl<'a> Nvfp4ContextArgs<'a> {
    pub(super) fn cache(&self) -> tensors::Cache<'_, 'a> {
        tensors::Cache {
            k_packed: &self.k_packed,
            v_packed: &self.v_packed,
            k_scale: &self.k_scale,
            v_scale: &self.v_scale,
        }
    }
}

impl Sealed for Nvfp4Context {}

impl Problem for Nvfp4Context {
    const OPERATION: Operation = Operation::Nvfp4Context;
    type Decision = Decision;
    type Args<'a> = Nvfp4ContextArgs<'a>;

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
        let first = decision.expansion.map(|expansion| expansion.schedule as &'static dyn Schedule);
        let last = decision.merge.map(|merge| merge.schedule as &'static dyn Schedule);
        let attention = decision.launch.map(|_| decision.schedule as &'static dyn Schedule);
        first.into_iter().chain(attention).chain(last).collect()
    }

    fn check(&self, args: &Nvfp4ContextArgs<'_>) -> Result<()> {
        tensors::check(self, args)
    }

    fn bind(&self, decision: &Decision, args: &Nvfp4ContextArgs<'_>, binder: &mut Binder<'_>) -> Result<()> {
        let Some(config) = decision.launch else { return Ok(()) };
        binder.clear_region("completed")?;
        if let Some(expansion) = &decision.expansion {
            binder.launch(expansion.schedule, expansion.launch, expansion_params(self, expansion, args, binder)?)?;
        }
        let params = params(self, decision, args, binder)?;
        binder.launch(decision.schedule, config, params)?;
        if let Some(merge) = &decision.merge {
            binder.launch(merge.schedule, merge.launch, merge_params(self, decision, merge, args, binder)?)?;
        }
        Ok(())
    }

    #[cfg(feature = "reference")]
    fn bind_reference<'a>(&self, memory: Arc<HostMemory>, args: Self::Args<'a>) -> Result<HostWork<'a>> {
        let problem = self.clone();
        Ok(Box::new(move || super::reference::run(&problem, &memory, &args)))
    }
}

fn params(
    problem: &Nvfp4Context,
    decision: &Decision,
    args: &Nvfp4ContextArgs<'_>,
    binder: &Binder<'_>,
) -> Result<Vec<u8>> {
    let mut block = ParamBlock::new(decision.schedule.params());
    common(&mut block, problem, decision, args, binder)?;
    let schedule = decision.schedule;
    match schedule.family() {
        Family::Paged => {
            put_map(&mut block, binder, tensors::queries(problem, schedule, args))?;
            put_cache(&mut block, problem, args, binder)?;
            put_tiles(&mut block, decision)?;
            block.pointer("completed", binder.region("completed"))?;
        }
        Family::Expanded => {
            let key_blocks = decision.expansion.map_or(0, |expansion| expansion.key_blocks);
            put_map(&mut block, binder, tensors::queries(problem, schedule, args))?;
            put_tiles(&mut block, decision)?;
            block.pointer("expanded", binder.region("expanded"))?.u32("key_blocks", key_blocks)?;
        }
        Family::Decode => {
            tensors::put_queries(&mut block, &args.q)?;
            args.cache().put(&mut block)?;
            // Below 2^30 by `validate`.
            put_table(&mut block, args)?
                .pointer("completed", binder.region("completed"))?
                .u32("kv_heads", decision.units_per_request)?
                .u32("max_pages", problem.max_pages as u32)?;
        }
    }
    block.finish()
}

/// The block of the launch that expands the cache.
fn expansion_params(
    problem: &Nvfp4Context,
    expansion: &Expansion,
    args: &Nvfp4ContextArgs<'_>,
    binder: &Binder<'_>,
) -> Result<Vec<u8>> {
    let mut block = ParamBlock::new(expansion.schedule.params());
    put_cache(&mut block, problem, args, binder)?;
    block
        .pointer("seq_lens_kv", args.seq_lens_kv.address())?
        .pointer("cu_seqlens_q", args.cu_seqlens_q.address())?
        .pointer("expanded", binder.region("expanded"))?
        // Below 2^30 by `validate`.
        .u32("kv_heads", problem.kv_heads as u32)?
        .u32("key_blocks", expansion.key_blocks)?;
    block.finish()
}

fn put_map(block: &mut ParamBlock, binder: &Binder<'_>, (field, tensor, request): tensors::Map) -> Result<()> {
    block.tensor_map(field, &binder.tensor_map(tensor, &request)?)?;
    Ok(())
}

/// The cache and the table of its pages.
fn put_cache(
    block: &mut ParamBlock,
    problem: &Nvfp4Context,
    args: &Nvfp4ContextArgs<'_>,
    binder: &Binder<'_>,
) -> Result<()> {
    for map in tensors::cache(problem, args) {
        put_map(block, binder, map)?;
    }
    put_table(block, args)?;
    Ok(())
}

fn put_table<'b>(block: &'b mut ParamBlock, args: &Nvfp4ContextArgs<'_>) -> Result<&'b mut ParamBlock> {
    block.pointer("page_table", args.page_table.address())?.u64("page_table_stride", args.page_table.strides()[0])
}

/// How tiles are dealt.
fn put_tiles(block: &mut ParamBlock, decision: &Decision) -> Result<()> {
    block
        .u32("units_per_request", decision.units_per_request)?
        .u32("units", decision.units)?
        .u32("m_blocks", decision.m_blocks)?
        .u32("work_items", decision.work_items)?;
    Ok(())
}

/// The block of the launch that merges split tiles.
fn merge_params(
    problem: &Nvfp4Context,
    decision: &Decision,
    merge: &Merge,
    args: &Nvfp4ContextArgs<'_>,
    binder: &Binder<'_>,
) -> Result<Vec<u8>> {
    let mut block = ParamBlock::new(merge.schedule.params());
    put_output(&mut block, problem, decision, args, binder)?;
    // Below 2^30 by `validate`.
    block.u32("batch", problem.batch as u32)?;
    block.finish()
}

/// The fields of every family that attends.
fn common(
    block: &mut ParamBlock,
    problem: &Nvfp4Context,
    decision: &Decision,
    args: &Nvfp4ContextArgs<'_>,
    binder: &Binder<'_>,
) -> Result<()> {
    put_output(block, problem, decision, args, binder)?;
    block.pointer("seq_lens_kv", args.seq_lens_kv.address())?.u32("heads_per_kv", problem.group_size()? as u32)?;
    Ok(())
}

/// What turns rows and partial results into the output.
fn put_output(
    block: &mut ParamBlock,
    problem: &Nvfp4Context,
    decision: &Decision,
    args: &Nvfp4ContextArgs<'_>,
    binder: &Binder<'_>,
) -> Result<()> {
    let ((bmm1, bmm1_device), (bmm2, bmm2_device)) = (args.bmm1_scale.split(), args.bmm2_scale.split());
    for region in ["partial_out", "partial_max", "partial_sum"] {
        block.pointer(region, binder.region(region))?;
    }
    block
        .pointer("cu_seqlens_q", args.cu_seqlens_q.address())?
        .pointer("out", args.out.address())?
        .pointer("lse", address_or_null(args.lse.as_ref()))?
        .pointer("sinks", address_or_null(args.sinks.as_ref()))?
        .pointer("bmm1_device", address_or_null(bmm1_device.as_ref()))?
        .pointer("bmm2_device", address_or_null(bmm2_device.as_ref()))?
        .f32("bmm1_scale", bmm1)?
        .f32("bmm2_scale", bmm2)?
        // Below 2^30 by `validate`.
        .u32("q_heads", problem.q_heads as u32)?
        .u32("splits", decision.splits)?;
    Ok(())
}
