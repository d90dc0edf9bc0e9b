//! Inputs from files and generators, and what the reference makes of them.

use bakewell::error::Property;
use bakewell::nvfp4_context::Nvfp4Context;
use bakewell::{DType, Error, Result};
use bakewell_reference::nvfp4_context::{self as reference, Numerics};
use bakewell_reference::small_float::{e4m3_from_f64, e4m3_to_f64};

use crate::random::Random;
use crate::{HostTensor, TensorFile};

/// A problem and its input tensors, named as in [`bakewell::nvfp4_context`].
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names of the operation's documentation")]
pub struct Inputs {
    pub problem: Nvfp4Context,
    pub q: HostTensor,
    pub k_packed: HostTensor,
    pub v_packed: HostTensor,
    pub k_scale: HostTensor,
    pub v_scale: HostTensor,
    pub page_table: HostTensor,
    pub seq_lens_kv: HostTensor,
    pub cu_seqlens_q: HostTensor,
    pub sinks: Option<HostTensor>,
    pub bmm1_scale: f32,
    pub bmm2_scale: f32,
}

/// What generated inputs look like.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Query heads.
    pub q_heads: u64,
    /// KV heads.
    pub kv_heads: u64,
    /// Query tokens of each request.
    pub q_lens: Vec<i32>,
    /// Keys of each request.
    pub kv_lens: Vec<i32>,
    /// Whether there are sinks.
    pub sinks: bool,
}

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

impl Inputs {
    /// Inputs from a file with the operation's tensors and, in the metadata, `bmm1_scale` and `bmm2_scale`, and
    /// `max_q_len` and `max_kv_len` where they are known (the largest lengths otherwise).
    ///
    /// # Errors
    /// [`Error::Argument`] that names what is missing or has another rank than it must.
    pub fn from_file(file: &TensorFile) -> Result<Inputs> {
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
        })
    }

    /// Random inputs. Pages are dealt in random order; scales where no token is live are NaN, and table entries past a
    /// request's last page are -1.
    pub fn generate(spec: &Spec, seed: u64) -> Inputs {
        const SPARE_PAGES: usize = 2;
        let mut random = Random::new(seed);
        let pages_of = |keys: i32| (keys.max(0) as usize).div_ceil(reference::PAGE_TOKENS);
        let used: usize = spec.kv_lens.iter().map(|&keys| pages_of(keys)).sum();
        let widest = spec.kv_lens.iter().map(|&keys| pages_of(keys)).max().unwrap_or(0).max(1);
        let mut order: Vec<i32> = (0..(used + SPARE_PAGES) as i32).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, (random.bits() % (i as u64 + 1)) as usize);
        }
        let mut offsets = vec![0];
        offsets.extend(spec.q_lens.iter().scan(0, |end, &queries| {
            *end += queries;
            Some(*end)
        }));
        let longest = |lengths: &[i32]| lengths.iter().copied().max().unwrap_or(0).max(0) as u64;
        let problem = Nvfp4Context {
            batch: spec.kv_lens.len() as u64,
            total_q: *offsets.last().unwrap_or(&0) as u64,
            q_heads: spec.q_heads,
            kv_heads: spec.kv_heads,
            num_pages: order.len() as u64,
            max_pages: widest as u64 + 1,
            max_q_len: longest(&spec.q_lens),
            max_kv_len: longest(&spec.kv_lens),
            sinks: spec.sinks,
            ..Nvfp4Context::default()
        };
        let (table, live) = deal(&problem, &spec.kv_lens, &order);
        let bytes = |shape: &[u64], bytes: Vec<u8>| HostTensor { dtype: DType::U8, shape: shape.to_vec(), bytes };
        let normal = |random: &mut Random, shape: &[u64]| -> Vec<u8> {
            let count = shape.iter().product::<u64>() as usize;
            random.normal(count).into_iter().map(e4m3_from_f64).collect()
        };
        let q = normal(&mut random, &problem.q_shape());
        let mut codes =
            |shape: &[u64]| -> Vec<u8> { (0..shape.iter().product::<u64>()).map(|_| random.bits() as u8).collect() };
        let (k_packed, v_packed) = (codes(&problem.packed_shape()), codes(&problem.packed_shape()));
        let heads = spec.kv_heads as usize;
        let mut scales = |place: fn(usize, usize) -> usize| {
            let mut all = vec![0u8; problem.scale_shape().iter().product::<u64>() as usize];
            for (tile, page) in all.chunks_exact_mut(128).enumerate() {
                for (token, group) in (0..16).flat_map(|token| (0..8).map(move |group| (token, group))) {
                    // 2^-4 to just under 2^-1, all different from 1; NaN where nothing may be read.
                    let mid = 0x18 + (random.bits() % 24) as u8;
                    page[place(token, group)] = if live[tile / heads * 16 + token] { mid } else { 0x7F };
                }
            }
            all
        };
        let k_scale = scales(|token, group| token * 8 + group);
        let v_scale = scales(|token, group| token / 4 * 32 + group * 4 + token % 4);
        let sinks = spec.sinks.then(|| {
            let values = random.normal(spec.q_heads as usize);
            HostTensor::of(&[spec.q_heads], &values.into_iter().map(|value| value as f32).collect::<Vec<_>>())
        });
        Inputs {
            q: bytes(&problem.q_shape(), q),
            k_packed: bytes(&problem.packed_shape(), k_packed),
            v_packed: bytes(&problem.packed_shape(), v_packed),
            k_scale: bytes(&problem.scale_shape(), k_scale),
            v_scale: bytes(&problem.scale_shape(), v_scale),
            page_table: HostTensor::of_i32(&problem.page_table_shape(), &table),
            seq_lens_kv: HostTensor::of_i32(&[problem.batch], &spec.kv_lens),
            cu_seqlens_q: HostTensor::of_i32(&[problem.batch + 1], &offsets),
            sinks,
            // Products have a standard deviation near 8: logits near 1.
            bmm1_scale: 0.118,
            bmm2_scale: 0.9,
            problem,
        }
    }

    /// What the reference computes.
    ///
    /// # Errors
    /// The reference's.
    pub fn expected(&self) -> Result<Expected> {
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
}

/// Page table of the requests, and which tokens of the pool are live.
fn deal(problem: &Nvfp4Context, kv_lens: &[i32], order: &[i32]) -> (Vec<i32>, Vec<bool>) {
    let width = problem.max_pages as usize;
    let mut table = vec![-1; kv_lens.len() * width];
    let mut live = vec![false; order.len() * reference::PAGE_TOKENS];
    let mut next = order.iter();
    for (row, &keys) in table.chunks_exact_mut(width).zip(kv_lens) {
        let keys = keys.max(0) as usize;
        for (entry, &page) in row.iter_mut().zip(next.by_ref().take(keys.div_ceil(reference::PAGE_TOKENS))) {
            *entry = page;
        }
        for token in 0..keys {
            let page = row[token / reference::PAGE_TOKENS] as usize;
            live[page * reference::PAGE_TOKENS + token % reference::PAGE_TOKENS] = true;
        }
    }
    (table, live)
}

/// E4M3 bytes as numbers.
pub fn decode(bytes: &[u8]) -> Vec<f64> {
    bytes.iter().map(|&byte| e4m3_to_f64(byte)).collect()
}
