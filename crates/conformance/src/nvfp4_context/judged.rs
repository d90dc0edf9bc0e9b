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

/// No program checks what these tensors hold: a file's are checked where it is read. Tensors of the wrong size are left
/// to the binding.
fn check_contents(problem: &Nvfp4Context, offsets: &[i32], lengths: &[i32], page_table: &[i32]) -> Result<()> {
    let within = |value: i64, limit: u64| u64::try_from(value).is_ok_and(|value| value <= limit);
    let differences = || offsets.windows(2).map(|pair| i64::from(pair[1]) - i64::from(pair[0]));
    let whole =
        offsets.first() == Some(&0) && offsets.last().is_some_and(|&end| u64::try_from(end) == Ok(problem.total_q));
    if offsets.len() as u64 == problem.batch + 1 {
        if !whole || differences().any(|queries| queries < 0) {
            let expected = format!("offsets from 0 to {} that never decrease", problem.total_q);
            return Err(Error::value("cu_seqlens_q", expected, format!("{offsets:?}")));
        }
        if let Some(request) = differences().position(|queries| !within(queries, problem.max_q_len)) {
            let expected = format!("at most max_q_len = {} queries for request {request}", problem.max_q_len);
            return Err(Error::value("cu_seqlens_q", expected, format!("{offsets:?}")));
        }
    }
    for (request, &keys) in lengths.iter().enumerate() {
        if !within(keys.into(), problem.max_kv_len) {
            let expected = format!("0..={} for request {request}", problem.max_kv_len);
            return Err(Error::value("seq_lens_kv", expected, keys));
        }
        let pages = page_table.chunks(problem.max_pages.max(1) as usize).nth(request).unwrap_or_default();
        let mut used = pages.iter().take((keys as usize).div_ceil(problem.page_tokens as usize));
        if let Some(page) = used.find(|&&page| !u64::try_from(page).is_ok_and(|page| page < problem.num_pages)) {
            let expected = format!("pages below {} for request {request}", problem.num_pages);
            return Err(Error::value("page_table", expected, page));
        }
    }
    Ok(())
}

impl Judged for Inputs {
    const OPERATION: Operation = Operation::Nvfp4Context;
    type Expected = Expected;

    /// A file with the operation's tensors and, in the metadata, `bmm1_scale` and `bmm2_scale`; `max_q_len` and
    /// `max_kv_len` where they are known (the largest lengths otherwise); `num_splits`, `family` and `schedule` where
    /// the problem is pinned to them.
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
        let offsets = file.integers("cu_seqlens_q")?;
        let lengths = file.integers("seq_lens_kv")?;
        let max_q_len = longest(&mut offsets.windows(2).map(|pair| pair[1].saturating_sub(pair[0])));
        let max_kv_len = longest(&mut lengths.iter().copied());
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
            num_splits: file.parameter("num_splits")?,
            family: file.word("family")?,
            schedule: file.word("schedule")?,
            sinks: sinks.is_some(),
            ..Nvfp4Context::default()
        };
        problem.validate()?;
        check_contents(&problem, &offsets, &lengths, &file.integers("page_table")?)?;
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
        if !file.tensors.contains_key("out_f64") {
            return Ok(None);
        }
        let problem = Inputs::from_file(file)?.problem;
        Ok(Some(Expected {
            exact: file.numbers("out_f64", &problem.q_shape())?,
            model: file.codes("out_model_e4m3", &problem.q_shape())?,
            lse: file.numbers("lse", &problem.lse_shape())?,
        }))
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

/// Bytes that any kernel must move for so many keys in so many pages: packed keys and values with their scales,
/// queries, outputs, page ids.
pub fn live_bytes(problem: &Nvfp4Context, keys: u64, pages: u64) -> u64 {
    let token = 2 * problem.kv_heads * (problem.head_dim / 2 + problem.head_dim / 16);
    keys * token + 2 * problem.total_q * problem.q_heads * problem.head_dim + 4 * pages
}

#[cfg(test)]
mod tests {
    use super::super::Spec;
    use super::*;
    use crate::HostTensor;
    use crate::call::CallInputs;

    /// Two requests: 3 queries over 20 keys, 2 over 5.
    fn file() -> TensorFile {
        let spec = Spec { q_heads: 2, kv_heads: 1, q_lens: vec![3, 2], kv_lens: vec![20, 5], sinks: false };
        let inputs = Inputs::generate(&spec, 3);
        let mut file = TensorFile::default();
        for spec in inputs.specs() {
            if let Some(tensor) = inputs.tensor(spec.name) {
                file.tensors.insert(spec.name.into(), tensor.into_owned());
            }
        }
        for (name, value) in [("bmm1_scale", "1"), ("bmm2_scale", "1"), ("max_q_len", "3"), ("max_kv_len", "20")] {
            file.metadata.insert(name.into(), value.into());
        }
        file
    }

    /// What is said of a file in which an element of a tensor is another.
    fn refused(name: &str, index: usize, value: i32) -> String {
        let mut file = file();
        let tensor = file.tensors.get_mut(name).unwrap();
        tensor.bytes[4 * index..][..4].copy_from_slice(&value.to_le_bytes());
        Inputs::from_file(&file).unwrap_err().to_string()
    }

    #[test]
    fn offsets_lengths_and_pages_of_a_file_are_checked_where_it_is_read() {
        let problem = Inputs::from_file(&file()).unwrap().problem;
        assert_eq!((problem.total_q, problem.max_q_len, problem.max_kv_len), (5, 3, 20));
        for (index, value) in [(0, -1), (0, 1), (1, 6), (1, i32::MIN), (2, 4), (2, i32::MAX)] {
            let text = refused("cu_seqlens_q", index, value);
            assert!(
                text.starts_with("cu_seqlens_q: expected offsets from 0 to 5 that never decrease, got ["),
                "{text}"
            );
        }
        assert_eq!(
            refused("cu_seqlens_q", 1, 1),
            "cu_seqlens_q: expected at most max_q_len = 3 queries for request 1, got [0, 1, 5]"
        );
        for value in [-1, 21, i32::MAX, i32::MIN] {
            let text = refused("seq_lens_kv", 1, value);
            assert_eq!(text, format!("seq_lens_kv: expected 0..=20 for request 1, got {value}"));
        }
        let pages = problem.num_pages;
        for value in [-1, pages as i32, i32::MAX] {
            let text = refused("page_table", 1, value);
            assert_eq!(text, format!("page_table: expected pages below {pages} for request 0, got {value}"));
        }
    }

    #[test]
    fn pins_of_a_file_are_those_of_the_problem() {
        let with = |name: &str, value: &str| {
            let mut file = file();
            file.metadata.insert(name.to_owned(), value.to_owned());
            Inputs::from_file(&file).map(|inputs| inputs.problem).map_err(|error| error.to_string())
        };
        let free = Inputs::from_file(&file()).unwrap().problem;
        assert_eq!((free.num_splits, free.family, free.schedule.as_deref()), (None, None, None));
        assert_eq!(with("num_splits", "3").unwrap().num_splits, Some(3));
        for family in [Family::Paged, Family::Decode, Family::Expanded] {
            assert_eq!(with("family", &format!("{family:?}").to_lowercase()).unwrap().family, Some(family));
        }
        assert_eq!(with("schedule", "paged_k2").unwrap().schedule.as_deref(), Some("paged_k2"));
        for (name, value, said) in [
            ("num_splits", "0", "num_splits: expected 1..=64, got 0"),
            ("num_splits", "65", "num_splits: expected 1..=64, got 65"),
            (
                "num_splits",
                "-1",
                "num_splits: expected a number in the file's metadata, got \"-1\" (invalid digit found in string)",
            ),
            (
                "family",
                "fast",
                "family: expected a word in the file's metadata, got \"fast\" (unknown variant `fast`, expected one of \
                 `paged`, `decode`, `expanded`)",
            ),
        ] {
            assert_eq!(with(name, value).unwrap_err(), said);
        }
    }

    #[test]
    fn a_golden_is_complete_and_has_the_shapes_of_the_outputs() {
        let mut file = file();
        assert!(Inputs::golden(&file).unwrap().is_none());
        file.tensors.insert("out_f64".into(), HostTensor::of(&[5, 2, 128], &[0f64; 1280]));
        let codes = HostTensor { dtype: bakewell::DType::U8, shape: vec![5, 2, 128], bytes: vec![0; 1280] };
        file.tensors.insert("out_model_e4m3".into(), codes);
        let refused = |file: &TensorFile| Inputs::golden(file).unwrap_err().to_string();
        assert!(refused(&file).starts_with("lse: expected a tensor of this name"));
        file.tensors.insert("lse".into(), HostTensor::of::<f64>(&[0, 2], &[]));
        assert_eq!(refused(&file), "lse: expected shape [5, 2], got [0, 2]");
        file.tensors.insert("lse".into(), HostTensor::of(&[5, 2], &[0f64; 10]));
        assert!(Inputs::golden(&file).unwrap().is_some());
    }
}
