//! What should come out, from a file or the reference, and whether it did.

use std::time::Duration;

use bakewell::error::Property;
use bakewell::nvfp4_context::{Family, Nvfp4Context};
use bakewell::{Device, Error, Operation, Result};
use bakewell_reference::nvfp4_context::{self as reference, Numerics};

use super::{Gates, Inputs, ScaleOrigin, judge};
use crate::TensorFile;
use crate::compare::compare;
use crate::judged::{Judged, Planned, Verdict};
use crate::staged::{Outputs, run};
use crate::tensor::e4m3_values;

/// What should come out.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// The exact answer, `[total_q, q_heads, 128]`.
    pub exact: Vec<f64>,
    /// The answer in the kernels' order with weights rounded to E4M3, as bytes.
    pub model: Vec<u8>,
    /// `[total_q, q_heads]`.
    pub lse: Vec<f64>,
}

impl Judged for Inputs {
    const OPERATION: Operation = Operation::Nvfp4Context;
    type Expected = Expected;

    /// A file with the operation's tensors and, in the metadata, `bmm1_scale` and `bmm2_scale`, and `max_q_len` and
    /// `max_kv_len` where they are known (the largest lengths otherwise).
    fn from_file(file: &TensorFile) -> Result<Inputs> {
        let tensor = |name| file.tensor(name).cloned();
        let (q, k_packed, page_table) = (tensor("q")?, tensor("k_packed")?, tensor("page_table")?);
        let (seq_lens_kv, cu_seqlens_q) = (tensor("seq_lens_kv")?, tensor("cu_seqlens_q")?);
        let sinks = file.tensors.get("sinks").cloned();
        let rank =
            |name, expected, shape: &[u64]| Err(Error::argument(name, Property::Rank, expected, format!("{shape:?}")));
        let [total_q, q_heads, head_dim] = q.shape[..] else {
            return rank("q", "[total_q, q_heads, 128]", &q.shape);
        };
        let [num_pages, kv_heads, page_tokens, _] = k_packed.shape[..] else {
            return rank("k_packed", "[num_pages, kv_heads, 16, 64]", &k_packed.shape);
        };
        let [batch, max_pages] = page_table.shape[..] else {
            return rank("page_table", "[batch, max_pages]", &page_table.shape);
        };
        let longest = |lengths: &mut dyn Iterator<Item = i32>| lengths.max().unwrap_or(0).max(0) as u64;
        let offsets = cu_seqlens_q.to_i32()?;
        let max_q_len = longest(&mut offsets.windows(2).map(|pair| pair[1].saturating_sub(pair[0])));
        let max_kv_len = longest(&mut seq_lens_kv.to_i32()?.into_iter());
        let scale = |name| {
            file.parameter(name)?.ok_or_else(|| Error::argument(name, Property::Presence, "in the metadata", "none"))
        };
        let problem = Nvfp4Context {
            batch,
            total_q,
            q_heads,
            kv_heads,
            num_pages,
            max_pages,
            max_q_len: file.parameter("max_q_len")?.unwrap_or(max_q_len),
            max_kv_len: file.parameter("max_kv_len")?.unwrap_or(max_kv_len),
            head_dim,
            page_tokens,
            sinks: sinks.is_some(),
            ..Nvfp4Context::default()
        };
        Ok(Inputs {
            problem,
            q,
            k_packed,
            v_packed: tensor("v_packed")?,
            k_scale: tensor("k_scale")?,
            v_scale: tensor("v_scale")?,
            page_table,
            seq_lens_kv,
            cu_seqlens_q,
            sinks,
            bmm1_scale: scale("bmm1_scale")?,
            bmm2_scale: scale("bmm2_scale")?,
            scale_origin: ScaleOrigin::Host,
        })
    }

    /// `out_f64`, `out_model_e4m3` and `lse`; without the first the file is about dequantisation only.
    fn golden(file: &TensorFile) -> Result<Option<Expected>> {
        let golden = |exact: &crate::HostTensor| {
            Ok(Expected {
                exact: exact.to_f64()?,
                model: file.tensor("out_model_e4m3")?.bytes.clone(),
                lse: file.tensor("lse")?.to_f64()?,
            })
        };
        file.tensors.get("out_f64").map(golden).transpose()
    }

    fn expected(&self) -> Result<Expected> {
        let (page_table, seq_lens_kv) = (self.page_table.to_i32()?, self.seq_lens_kv.to_i32()?);
        let cu_seqlens_q = self.cu_seqlens_q.to_i32()?;
        let sinks: Option<Vec<f32>> = match &self.sinks {
            Some(sinks) => Some(sinks.to_f64()?.into_iter().map(|sink| sink as f32).collect()),
            None => None,
        };
        let problem = reference::Nvfp4Context {
            q_heads: self.problem.q_heads as usize,
            kv_heads: self.problem.kv_heads as usize,
            max_pages: self.problem.max_pages as usize,
            q: &self.q.bytes,
            k_packed: &self.k_packed.bytes,
            v_packed: &self.v_packed.bytes,
            k_scale: &self.k_scale.bytes,
            v_scale: &self.v_scale.bytes,
            page_table: &page_table,
            seq_lens_kv: &seq_lens_kv,
            cu_seqlens_q: &cu_seqlens_q,
            sinks: sinks.as_deref(),
            bmm1_scale: self.bmm1_scale,
            bmm2_scale: self.bmm2_scale,
        };
        let (exact, lse) = reference::nvfp4_context(&problem, Numerics::Exact)?;
        let (model, _) = reference::nvfp4_context(&problem, Numerics::Kernel)?;
        Ok(Expected { exact, model: reference::round_output(&model), lse })
    }

    fn complete(&self) -> Inputs {
        Inputs { problem: Nvfp4Context { lse: true, ..self.problem.clone() }, ..self.clone() }
    }

    fn variations(&self) -> Vec<(&'static str, Inputs)> {
        let problem = Nvfp4Context { lse: false, ..self.problem.clone() };
        let other = Inputs { problem, scale_origin: ScaleOrigin::Device, ..self.clone() };
        vec![("device scales without the log-sum-exp", other)]
    }

    fn plan(&self, device: &Device) -> Result<Planned> {
        Ok(Planned::default().and(&device.plan(&self.problem)?))
    }

    fn run(&self, device: &Device) -> Result<(Outputs, Duration)> {
        run(device, self).map(|run| (run.outputs, run.time))
    }

    fn judge(&self, outputs: &Outputs, expected: &Expected, device: &Device) -> Result<Verdict> {
        let plan = device.plan(&self.problem)?;
        let (family, splits) =
            plan.decision().map_or((Family::Paged, 1), |decision| (decision.schedule.family(), decision.splits));
        let judgement = judge(self, outputs, expected, Gates::of(device.arch(), family, splits))?;
        let out = &outputs["out"];
        Ok(Verdict {
            comparison: compare(&out.shape, &e4m3_values(&out.bytes), &expected.exact)?,
            summary: format!(
                "{:.2} % of bytes equal the model's, {:.2} % within a code, cosine to the exact answer {:.6}",
                judgement.equal * 100.0,
                judgement.neighbouring * 100.0,
                judgement.cosine
            ),
            failure: judgement.failure,
        })
    }

    /// Packed keys and values with their scales, queries, outputs, page ids.
    fn live_bytes(&self) -> Result<u64> {
        let keys = self.seq_lens_kv.to_i32()?.into_iter().map(|length| length.max(0) as u64);
        let pages = keys.clone().map(|keys| keys.div_ceil(self.problem.page_tokens)).sum();
        Ok(live_bytes(&self.problem, keys.sum(), pages))
    }
}

/// Bytes that any kernel must move for so many keys in so many pages: packed keys and values with their scales, queries,
/// outputs, page ids.
pub fn live_bytes(problem: &Nvfp4Context, keys: u64, pages: u64) -> u64 {
    let token = 2 * problem.kv_heads * (problem.head_dim / 2 + problem.head_dim / 16);
    keys * token + 2 * problem.total_q * problem.q_heads * problem.head_dim + 4 * pages
}
