//! The tensors of a call.

use std::borrow::Cow;

use bakewell::gqa_decode::{GqaDecode, GqaDecodeArgs};
use bakewell::{DType, Result};

use super::Inputs;
use crate::HostTensor;
use crate::call::{CallInputs, TensorSpec, Views};

/// Every tensor of a call.
pub fn tensors(problem: &GqaDecode) -> Vec<TensorSpec> {
    let mut tensors = vec![
        TensorSpec::input("q", problem.dtype, &problem.q_shape()),
        TensorSpec::input("kv", problem.dtype, &problem.kv_shape()),
        TensorSpec::input("sequence_lengths", DType::I32, &problem.sequence_lengths_shape()),
        TensorSpec::output("out", problem.dtype, &problem.q_shape()),
    ];
    if problem.lse {
        tensors.push(TensorSpec::output("lse", DType::F32, &problem.lse_shape()));
    }
    tensors
}

/// The arguments made of views.
///
/// # Errors
/// [`bakewell::Error::Argument`] for a view that must be there and is not.
pub fn args<'a>(views: &Views<'a>) -> Result<GqaDecodeArgs<'a>> {
    Ok(GqaDecodeArgs {
        q: views.need("q")?,
        kv: views.need("kv")?,
        sequence_lengths: views.need("sequence_lengths")?,
        out: views.need("out")?,
        lse: views.get("lse"),
        workspace: views.get("workspace"),
    })
}

impl CallInputs for Inputs {
    type Problem = GqaDecode;

    fn problem(&self) -> &GqaDecode {
        &self.problem
    }

    fn specs(&self) -> Vec<TensorSpec> {
        tensors(&self.problem)
    }

    fn tensor(&self, name: &str) -> Option<Cow<'_, HostTensor>> {
        match name {
            "q" => Some(Cow::Borrowed(&self.q)),
            "kv" => Some(Cow::Borrowed(&self.kv)),
            "sequence_lengths" => Some(Cow::Borrowed(&self.sequence_lengths)),
            _ => None,
        }
    }

    fn args<'a>(&self, views: &Views<'a>) -> Result<GqaDecodeArgs<'a>> {
        args(views)
    }
}
