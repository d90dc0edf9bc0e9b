//! The operation on the reference device: tensors out of host memory, plain loops, results back.

use std::sync::Arc;

use bakewell_core::{DType, Memory, Operation, Result, TensorView};
use bakewell_reference::{Element, HostMemory, gqa_decode};
use half::{bf16, f16};

use super::{GqaDecode, GqaDecodeArgs};
use crate::bound::Bound;

pub(super) fn bind<'a>(problem: &GqaDecode, memory: Arc<HostMemory>, args: GqaDecodeArgs<'a>) -> Bound<'a> {
    let problem = problem.clone();
    Bound::host(
        Operation::GqaDecode,
        Box::new(move || match problem.dtype {
            DType::Bf16 => run::<bf16>(&problem, &memory, &args),
            // Planning admits these two only.
            _ => run::<f16>(&problem, &memory, &args),
        }),
    )
}

fn run<T: Element>(problem: &GqaDecode, memory: &HostMemory, args: &GqaDecodeArgs<'_>) -> Result<()> {
    // Tensors of these sizes exist in host memory, so the sizes fit.
    let sizes = gqa_decode::GqaDecode {
        batch: problem.batch as usize,
        capacity: problem.capacity as usize,
        query_heads: problem.query_heads as usize,
        kv_heads: problem.kv_heads as usize,
        head_dim: problem.head_dim as usize,
        q_scale: problem.q_scale,
    };
    let q: Vec<T> = T::from_bytes(&read(memory, &args.q)?);
    let kv: Vec<T> = T::from_bytes(&read(memory, &args.kv)?);
    let lengths = read(memory, &args.sequence_lengths)?;
    let lengths: Vec<i32> = lengths.as_chunks().0.iter().map(|&length| i32::from_le_bytes(length)).collect();
    let mut out = vec![T::from_f64(0.0); q.len()];
    let mut lse = args.lse.map(|_| vec![0.0f32; sizes.batch * sizes.query_heads]);
    gqa_decode::gqa_decode(&sizes, &q, &kv, &lengths, &mut out, lse.as_deref_mut())?;

    write(memory, &args.out, &T::to_bytes(&out))?;
    match (&args.lse, lse) {
        (Some(view), Some(lse)) => write(memory, view, &f32::to_bytes(&lse)),
        _ => Ok(()),
    }
}

/// The bytes of a contiguous tensor.
fn read(memory: &HostMemory, view: &TensorView<'_>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; view.extent_bytes()? as usize];
    if !bytes.is_empty() {
        memory.read(view.address(), &mut bytes)?;
    }
    Ok(bytes)
}

fn write(memory: &HostMemory, view: &TensorView<'_>, bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() { Ok(()) } else { memory.write(view.address(), bytes) }
}
