//! The operation on the reference device: tensors out of host memory, plain loops, results back.

use bakewell_core::Result;
use bakewell_reference::{Element, HostMemory, gqa_decode};

use super::{GqaDecode, GqaDecodeArgs};
use crate::host_tensors::{elements, integers, write};

pub(super) fn run<T: Element>(problem: &GqaDecode, memory: &HostMemory, args: &GqaDecodeArgs<'_>) -> Result<()> {
    // Tensors of these sizes exist in host memory, so the sizes fit.
    let sizes = gqa_decode::GqaDecode {
        batch: problem.batch as usize,
        capacity: problem.capacity as usize,
        query_heads: problem.query_heads as usize,
        kv_heads: problem.kv_heads as usize,
        head_dim: problem.head_dim as usize,
        q_scale: problem.q_scale,
    };
    let (q, kv): (Vec<T>, Vec<T>) = (elements(memory, &args.q)?, elements(memory, &args.kv)?);
    let lengths = integers(memory, &args.sequence_lengths)?;
    let mut out = vec![T::from_f64(0.0); q.len()];
    let mut lse = args.lse.map(|_| vec![0.0f32; sizes.batch * sizes.query_heads]);
    gqa_decode::gqa_decode(&sizes, &q, &kv, &lengths, &mut out, lse.as_deref_mut())?;

    write(memory, &args.out, &T::to_bytes(&out))?;
    match (&args.lse, lse) {
        (Some(view), Some(lse)) => write(memory, view, &f32::to_bytes(&lse)),
        _ => Ok(()),
    }
}
