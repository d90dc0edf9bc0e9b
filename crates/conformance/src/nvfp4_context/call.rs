//! The tensors of a call.

use std::borrow::Cow;

use bakewell::nvfp4_context::{Nvfp4Context, Nvfp4ContextArgs, Scale};
use bakewell::{DType, Result};

use super::{Inputs, ScaleOrigin};
use crate::HostTensor;
use crate::call::{CallInputs, TensorSpec, Views};

/// Every tensor of a call with factors on the host.
pub fn tensors(problem: &Nvfp4Context) -> Vec<TensorSpec> {
    let mut tensors = vec![
        TensorSpec::input("q", DType::E4m3, &problem.q_shape()),
        TensorSpec::input("k_packed", DType::U8, &problem.packed_shape()),
        TensorSpec::input("v_packed", DType::U8, &problem.packed_shape()),
        TensorSpec::input("k_scale", DType::E4m3, &problem.scale_shape()),
        TensorSpec::input("v_scale", DType::E4m3, &problem.scale_shape()),
        TensorSpec::input("page_table", DType::I32, &problem.page_table_shape()),
        TensorSpec::input("seq_lens_kv", DType::I32, &problem.seq_lens_kv_shape()),
        TensorSpec::input("cu_seqlens_q", DType::I32, &problem.cu_seqlens_q_shape()),
        TensorSpec::output("out", DType::E4m3, &problem.q_shape()),
    ];
    if problem.lse {
        tensors.push(TensorSpec::output("lse", DType::F32, &problem.lse_shape()));
    }
    if problem.sinks {
        tensors.push(TensorSpec::input("sinks", DType::F32, &problem.sinks_shape()));
    }
    tensors
}

/// The arguments made of views. A factor without a view is on the host.
///
/// # Errors
/// [`bakewell::Error::Argument`] for a view that must be there and is not.
pub fn args<'a>(views: &Views<'a>, bmm1_scale: f32, bmm2_scale: f32) -> Result<Nvfp4ContextArgs<'a>> {
    let scale = |name, value| views.get(name).map_or(Scale::Host(value), Scale::Device);
    Ok(Nvfp4ContextArgs {
        q: views.need("q")?,
        k_packed: views.need("k_packed")?,
        v_packed: views.need("v_packed")?,
        k_scale: views.need("k_scale")?,
        v_scale: views.need("v_scale")?,
        page_table: views.need("page_table")?,
        seq_lens_kv: views.need("seq_lens_kv")?,
        cu_seqlens_q: views.need("cu_seqlens_q")?,
        out: views.need("out")?,
        lse: views.get("lse"),
        sinks: views.get("sinks"),
        bmm1_scale: scale("bmm1_scale", bmm1_scale),
        bmm2_scale: scale("bmm2_scale", bmm2_scale),
        workspace: views.get("workspace"),
    })
}

impl CallInputs for Inputs {
    type Problem = Nvfp4Context;

    fn problem(&self) -> &Nvfp4Context {
        &self.problem
    }

    fn specs(&self) -> Vec<TensorSpec> {
        let mut specs = tensors(&self.problem);
        if self.scale_origin == ScaleOrigin::Device {
            specs.extend(["bmm1_scale", "bmm2_scale"].map(|name| TensorSpec::input(name, DType::F32, &[1])));
        }
        specs
    }

    fn tensor(&self, name: &str) -> Option<Cow<'_, HostTensor>> {
        let tensor = match name {
            "q" => &self.q,
            "k_packed" => &self.k_packed,
            "v_packed" => &self.v_packed,
            "k_scale" => &self.k_scale,
            "v_scale" => &self.v_scale,
            "page_table" => &self.page_table,
            "seq_lens_kv" => &self.seq_lens_kv,
            "cu_seqlens_q" => &self.cu_seqlens_q,
            "sinks" => self.sinks.as_ref()?,
            "bmm1_scale" => return Some(Cow::Owned(HostTensor::of(&[1], &[self.bmm1_scale]))),
            "bmm2_scale" => return Some(Cow::Owned(HostTensor::of(&[1], &[self.bmm2_scale]))),
            _ => return None,
        };
        Some(Cow::Borrowed(tensor))
    }

    fn args<'a>(&self, views: &Views<'a>) -> Result<Nvfp4ContextArgs<'a>> {
        args(views, self.bmm1_scale, self.bmm2_scale)
    }
}
