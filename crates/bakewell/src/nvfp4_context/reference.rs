//! The operation on the reference device: tensors out of host memory, plain loops, results back.

use std::sync::Arc;

use bakewell_core::{Memory, Operation, Result, TensorView};
use bakewell_reference::nvfp4_context::{self, Numerics};
use bakewell_reference::{Element, HostMemory};

use super::{Nvfp4Context, Nvfp4ContextArgs, Scale};
use crate::bound::Bound;

pub(super) fn bind<'a>(problem: &Nvfp4Context, memory: Arc<HostMemory>, args: Nvfp4ContextArgs<'a>) -> Bound<'a> {
    let problem = problem.clone();
    Bound::host(Operation::Nvfp4Context, Box::new(move || run(&problem, &memory, &args)))
}

fn run(problem: &Nvfp4Context, memory: &HostMemory, args: &Nvfp4ContextArgs<'_>) -> Result<()> {
    if problem.is_empty() {
        return Ok(());
    }
    let integers = |view: &TensorView<'_>| -> Result<Vec<i32>> {
        let bytes = gather(memory, view)?;
        Ok(bytes.as_chunks().0.iter().map(|&integer| i32::from_le_bytes(integer)).collect())
    };
    let floats = |view: &TensorView<'_>| -> Result<Vec<f32>> { Ok(f32::from_bytes(&gather(memory, view)?)) };
    let scale = |scale: &Scale<'_>| match scale {
        Scale::Host(value) => Ok(*value),
        Scale::Device(view) => Ok(floats(view)?[0]),
    };
    let (q, k_packed, v_packed) =
        (gather(memory, &args.q)?, gather(memory, &args.k_packed)?, gather(memory, &args.v_packed)?);
    let (k_scale, v_scale) = (gather(memory, &args.k_scale)?, gather(memory, &args.v_scale)?);
    let (page_table, seq_lens_kv) = (integers(&args.page_table)?, integers(&args.seq_lens_kv)?);
    let cu_seqlens_q = integers(&args.cu_seqlens_q)?;
    let sinks = args.sinks.as_ref().map(floats).transpose()?;
    // Tensors of these sizes exist in host memory, so the sizes fit.
    let (out, lse) = nvfp4_context::nvfp4_context(
        &nvfp4_context::Nvfp4Context {
            q_heads: problem.q_heads as usize,
            kv_heads: problem.kv_heads as usize,
            max_pages: problem.max_pages as usize,
            q: &q,
            k_packed: &k_packed,
            v_packed: &v_packed,
            k_scale: &k_scale,
            v_scale: &v_scale,
            page_table: &page_table,
            seq_lens_kv: &seq_lens_kv,
            cu_seqlens_q: &cu_seqlens_q,
            sinks: sinks.as_deref(),
            bmm1_scale: scale(&args.bmm1_scale)?,
            bmm2_scale: scale(&args.bmm2_scale)?,
        },
        Numerics::Kernel,
    )?;
    memory.write(args.out.address(), &nvfp4_context::round_output(&out))?;
    if let Some(view) = &args.lse {
        let lse: Vec<f32> = lse.iter().map(|&value| value as f32).collect();
        memory.write(view.address(), &f32::to_bytes(&lse))?;
    }
    Ok(())
}

/// The bytes of a strided tensor in row-major order.
fn gather(memory: &HostMemory, view: &TensorView<'_>) -> Result<Vec<u8>> {
    let mut all = vec![0; view.extent_bytes()? as usize];
    if all.is_empty() {
        return Ok(all);
    }
    memory.read(view.address(), &mut all)?;
    if view.is_contiguous() {
        return Ok(all);
    }
    let element = view.dtype().bytes() as usize;
    let mut offsets = vec![0usize];
    for (&size, &stride) in view.shape().iter().zip(view.strides()) {
        offsets = offsets.iter().flat_map(|&at| (0..size).map(move |i| at + (i * stride) as usize)).collect();
    }
    Ok(offsets.iter().flat_map(|&at| all[at * element..][..element].iter().copied()).collect())
}
