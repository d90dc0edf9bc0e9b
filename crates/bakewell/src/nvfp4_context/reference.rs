//! The operation on the reference device: tensors out of host memory, plain loops, results back.

use bakewell_core::Result;
use bakewell_reference::nvfp4_context::{self, Numerics, PAGE_CODES, PAGE_SCALES, Side, dequantise_page};
use bakewell_reference::{Element, HostMemory};

use super::debug::PagesArgs;
use super::{Nvfp4Context, Nvfp4ContextArgs, Scale};
use crate::host_tensors::{elements, integers, read, write};

pub(super) fn run(problem: &Nvfp4Context, memory: &HostMemory, args: &Nvfp4ContextArgs<'_>) -> Result<()> {
    if problem.is_empty() {
        return Ok(());
    }
    let scale = |scale: &Scale<'_>| match scale {
        Scale::Host(value) => Ok(*value),
        Scale::Device(view) => Ok(elements(memory, view)?[0]),
    };
    let (q, k_packed, v_packed) =
        (read(memory, &args.q)?, read(memory, &args.k_packed)?, read(memory, &args.v_packed)?);
    let (k_scale, v_scale) = (read(memory, &args.k_scale)?, read(memory, &args.v_scale)?);
    let (page_table, seq_lens_kv) = (integers(memory, &args.page_table)?, integers(memory, &args.seq_lens_kv)?);
    let cu_seqlens_q = integers(memory, &args.cu_seqlens_q)?;
    let sinks = args.sinks.as_ref().map(|view| elements(memory, view)).transpose()?;
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
    write(memory, &args.out, &nvfp4_context::round_output(&out))?;
    match &args.lse {
        Some(view) => write(memory, view, &f32::to_bytes(&lse.iter().map(|&value| value as f32).collect::<Vec<_>>())),
        None => Ok(()),
    }
}

/// Every page of a cache.
pub(super) fn pages(memory: &HostMemory, args: &PagesArgs<'_>) -> Result<()> {
    for (codes, scales, out, side) in
        [(&args.k_packed, &args.k_scale, &args.k, Side::K), (&args.v_packed, &args.v_scale, &args.v, Side::V)]
    {
        let (codes, scales) = (read(memory, codes)?, read(memory, scales)?);
        let pages = codes.chunks_exact(PAGE_CODES).zip(scales.chunks_exact(PAGE_SCALES));
        let bytes: Vec<u8> = pages.flat_map(|(codes, scales)| dequantise_page(codes, scales, side)).collect();
        write(memory, out, &bytes)?;
    }
    Ok(())
}
