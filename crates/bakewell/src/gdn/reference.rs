//! Both calls on the reference device: tensors out of host memory, plain loops, results back.

use bakewell_core::error::Property;
use bakewell_core::{DType, Error, Result, TensorView};
use bakewell_reference::gdn::{self, adjoint, recurrence};
use bakewell_reference::{Element, HostMemory};
use half::bf16;

use super::{BackwardArgs, ForwardArgs, Gdn, Input};
use crate::host_tensors::{elements, integers, read, write};

/// The inputs of both calls, widened.
struct Inputs {
    offsets: Vec<usize>,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    g: Vec<f64>,
    beta: Vec<f64>,
    h0: Option<Vec<f64>>,
}

impl Inputs {
    fn read<'a>(
        problem: &Gdn,
        memory: &HostMemory,
        view: impl Fn(Input) -> Option<TensorView<'a>>,
        cu_seqlens: Option<&TensorView<'a>>,
        h0: Option<&TensorView<'a>>,
    ) -> Result<Inputs> {
        // Gates alone may be absent: they are zero then.
        let values = |input: Input| match view(input) {
            Some(view) => widened(memory, &view),
            None => Ok(vec![0.0; problem.input(input).1.iter().product::<u64>() as usize]),
        };
        Ok(Inputs {
            offsets: offsets(problem, memory, cu_seqlens)?,
            q: values(Input::Q)?,
            k: values(Input::K)?,
            v: values(Input::V)?,
            g: values(Input::G)?,
            beta: values(Input::Beta)?,
            h0: h0.map(|h0| widened(memory, h0)).transpose()?,
        })
    }

    fn problem<'i>(&'i self, problem: &Gdn) -> gdn::Gdn<'i> {
        // Tensors of these sizes exist in host memory, so the sizes fit.
        gdn::Gdn {
            heads: problem.heads as usize,
            value_heads: problem.value_heads as usize,
            head_dim: problem.head_dim as usize,
            scale: problem.output_scale().into(),
            l2norm: problem.l2norm,
            offsets: &self.offsets,
            q: &self.q,
            k: &self.k,
            v: &self.v,
            g: &self.g,
            beta: &self.beta,
            h0: self.h0.as_deref(),
        }
    }
}

pub(super) fn forward(problem: &Gdn, memory: &HostMemory, args: &ForwardArgs<'_>) -> Result<()> {
    let view = |input| args.input(input);
    let inputs = Inputs::read(problem, memory, view, args.cu_seqlens.as_ref(), args.h0.as_ref())?;
    let forward = recurrence(&inputs.problem(problem))?;
    rounded(memory, &args.o, &forward.o)?;
    args.ht.as_ref().map_or(Ok(()), |ht| rounded(memory, ht, &forward.ht))
}

pub(super) fn backward(problem: &Gdn, memory: &HostMemory, args: &BackwardArgs<'_>) -> Result<()> {
    let view = |input| args.input(input);
    let inputs = Inputs::read(problem, memory, view, args.cu_seqlens.as_ref(), args.h0.as_ref())?;
    let dht = args.dht.as_ref().map(|dht| widened(memory, dht)).transpose()?;
    let gradients = adjoint(&inputs.problem(problem), &widened(memory, &args.d_o)?, dht.as_deref())?;
    for (view, values) in [
        (&args.dq, &gradients.dq),
        (&args.dk, &gradients.dk),
        (&args.dv, &gradients.dv),
        (&args.dbeta, &gradients.dbeta),
    ] {
        rounded(memory, view, values)?;
    }
    args.dg.as_ref().map_or(Ok(()), |dg| rounded(memory, dg, &gradients.dg))?;
    args.dh0.as_ref().map_or(Ok(()), |dh0| rounded(memory, dh0, &gradients.dh0))
}

/// The offsets of the sequences, from the problem or out of memory.
fn offsets(problem: &Gdn, memory: &HostMemory, cu_seqlens: Option<&TensorView<'_>>) -> Result<Vec<usize>> {
    if let Some(offsets) = problem.sequences.offsets(problem.batch, problem.tokens) {
        return Ok(offsets.into_iter().map(|offset| offset as usize).collect());
    }
    let view = cu_seqlens.ok_or_else(|| Error::argument("cu_seqlens", Property::Presence, "a tensor", "none"))?;
    let offsets: Vec<i64> = match view.dtype() {
        DType::I64 => read(memory, view)?.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect(),
        _ => integers(memory, view)?.into_iter().map(i64::from).collect(),
    };
    let outside = || Error::value("cu_seqlens", format!("an end of {} tokens", problem.tokens), format!("{offsets:?}"));
    let offsets: Option<Vec<usize>> = offsets.iter().map(|&offset| usize::try_from(offset).ok()).collect();
    offsets.filter(|offsets| offsets.last() == Some(&(problem.tokens as usize))).ok_or_else(outside)
}

fn widened(memory: &HostMemory, view: &TensorView<'_>) -> Result<Vec<f64>> {
    fn widen<T: Element>(memory: &HostMemory, view: &TensorView<'_>) -> Result<Vec<f64>> {
        Ok(elements::<T>(memory, view)?.into_iter().map(T::to_f64).collect())
    }
    match view.dtype() {
        DType::Bf16 => widen::<bf16>(memory, view),
        // A check admits these two only.
        _ => widen::<f32>(memory, view),
    }
}

fn rounded(memory: &HostMemory, view: &TensorView<'_>, values: &[f64]) -> Result<()> {
    fn round<T: Element>(values: &[f64]) -> Vec<u8> {
        T::to_bytes(&values.iter().map(|&value| T::from_f64(value)).collect::<Vec<_>>())
    }
    match view.dtype() {
        DType::Bf16 => write(memory, view, &round::<bf16>(values)),
        _ => write(memory, view, &round::<f32>(values)),
    }
}
