//! Paged-context attention over an NVFP4 cache, E4M3 queries and output.
//!
//! Query token `i` of a request of `n` queries over `l` cached keys sees key `j` iff `j <= i + l - n` (bottom-right
//! causal). With `q`, `k`, `v` the decoded E4M3 values, K and V after dequantisation to E4M3:
//!
//! ```text
//! x[j]   = sum_d q[d] k[j, d]                     logit[j] = bmm1_scale * x[j]
//! out    = E4M3(bmm2_scale * sum_j softmax(logit)[j] v[j])
//! lse    = ln sum_j exp(logit[j])
//! ```
//!
//! [`Numerics::Kernel`] adds what every kernel of this operation does on purpose: blocks of 128 keys from the last
//! down, and weights of up to 448 rounded to E4M3 before the product with V, while their sum is kept unrounded.
//! [`Numerics::Exact`] has neither. A sink is one more logit with no value. A row that sees nothing is zero, with
//! log-sum-exp -inf (or the sink).

use bakewell_core::error::Property;
use bakewell_core::{Error, Result};

use crate::small_float::{dequantise, e4m3_from_f64, e4m3_to_f64};

/// Elements of a head.
pub const HEAD_DIM: usize = 128;
/// Tokens of a page.
pub const PAGE_TOKENS: usize = 16;
/// Elements that share a scale factor.
pub const GROUP: usize = 16;
/// Keys of a block in the kernels' order.
pub const BLOCK_KEYS: usize = 128;

const GROUPS: usize = HEAD_DIM / GROUP;
/// Bytes of codes of a page of one head.
pub const PAGE_CODES: usize = PAGE_TOKENS * HEAD_DIM / 2;
/// Bytes of scales of a page of one head.
pub const PAGE_SCALES: usize = PAGE_TOKENS * GROUPS;

/// Whether K or V: their scales lie differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Scales `[token][group]`.
    K,
    /// Scales `[token / 4][group][token % 4]`.
    V,
}

/// How the weights are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numerics {
    /// Mathematics in `f64`.
    Exact,
    /// The kernels' order of blocks, and weights rounded to E4M3.
    Kernel,
}

/// A problem; all slices row-major and contiguous.
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4Context<'a> {
    /// Query heads, a multiple of `kv_heads`.
    pub q_heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Entries of a page-table row.
    pub max_pages: usize,
    /// E4M3 `[total_q, q_heads, 128]`.
    pub q: &'a [u8],
    /// Packed FP4 `[pages, kv_heads, 16, 64]`, low nibble first.
    pub k_packed: &'a [u8],
    /// Packed FP4 `[pages, kv_heads, 16, 64]`.
    pub v_packed: &'a [u8],
    /// E4M3 `[pages, kv_heads, 128]`, order [`Side::K`].
    pub k_scale: &'a [u8],
    /// E4M3 `[pages, kv_heads, 128]`, order [`Side::V`].
    pub v_scale: &'a [u8],
    /// `[batch, max_pages]`; entries past the last page of a request are not read.
    pub page_table: &'a [i32],
    /// `[batch]`.
    pub seq_lens_kv: &'a [i32],
    /// `[batch + 1]`, from 0, not decreasing.
    pub cu_seqlens_q: &'a [i32],
    /// Logits `[q_heads]` without value.
    pub sinks: Option<&'a [f32]>,
    /// Factor of the products, positive.
    pub bmm1_scale: f32,
    /// Factor of the output.
    pub bmm2_scale: f32,
}

/// The dequantised bytes of one page of one head, `[16, 128]` E4M3 in natural order.
///
/// `codes` holds [`PAGE_CODES`] bytes, `scales` [`PAGE_SCALES`].
pub fn dequantise_page(codes: &[u8], scales: &[u8], side: Side) -> Vec<u8> {
    let element = |token: usize, dim: usize| {
        let packed = codes[token * HEAD_DIM / 2 + dim / 2];
        let code = if dim.is_multiple_of(2) { packed & 0xF } else { packed >> 4 };
        let group = dim / GROUP;
        let scale = match side {
            Side::K => token * GROUPS + group,
            Side::V => token / 4 * 4 * GROUPS + group * 4 + token % 4,
        };
        dequantise(code, scales[scale])
    };
    (0..PAGE_TOKENS).flat_map(|token| (0..HEAD_DIM).map(move |dim| element(token, dim))).collect()
}

/// Computes `out` `[total_q, q_heads, 128]` in `f64`, before its rounding to E4M3, and `lse` `[total_q, q_heads]`.
///
/// # Errors
/// [`Error::Argument`] when a slice has another length than its shape, or a length, offset or page lies outside its
/// tensor.
pub fn nvfp4_context(problem: &Nvfp4Context<'_>, numerics: Numerics) -> Result<(Vec<f64>, Vec<f64>)> {
    problem.validate()?;
    let rows = problem.q.len() / HEAD_DIM;
    let mut out = vec![0.0; rows * HEAD_DIM];
    let mut lse = vec![f64::NEG_INFINITY; rows];
    for request in 0..problem.seq_lens_kv.len() {
        let first = problem.cu_seqlens_q[request] as usize;
        let queries = problem.cu_seqlens_q[request + 1] as usize - first;
        let keys = problem.seq_lens_kv[request] as usize;
        let cache: Vec<Cache> = (0..problem.kv_heads).map(|head| problem.cache(request, head, keys)).collect();
        for query in 0..queries {
            let visible = (query + keys + 1).saturating_sub(queries).min(keys);
            for head in 0..problem.q_heads {
                let row = (first + query) * problem.q_heads + head;
                let q: Vec<f64> = problem.q[row * HEAD_DIM..][..HEAD_DIM].iter().map(|&b| e4m3_to_f64(b)).collect();
                let cache = &cache[head * problem.kv_heads / problem.q_heads];
                let sink = problem.sinks.map(|sinks| f64::from(sinks[head]));
                let attention = Row { problem, q: &q, cache, visible, sink };
                let (values, row_lse) = match numerics {
                    Numerics::Exact => attention.exact(),
                    Numerics::Kernel => attention.kernel(),
                };
                out[row * HEAD_DIM..][..HEAD_DIM].copy_from_slice(&values);
                lse[row] = row_lse;
            }
        }
    }
    Ok((out, lse))
}

/// The output as it is stored.
pub fn round_output(out: &[f64]) -> Vec<u8> {
    out.iter().map(|&value| e4m3_from_f64(value)).collect()
}

/// Decoded keys and values of one request and head, `[keys, 128]`.
struct Cache {
    k: Vec<f64>,
    v: Vec<f64>,
}

impl Nvfp4Context<'_> {
    fn validate(&self) -> Result<()> {
        if self.kv_heads == 0 || self.q_heads == 0 || !self.q_heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a positive multiple of {} KV heads", self.kv_heads);
            return Err(Error::value("q_heads", expected, self.q_heads));
        }
        let batch = self.seq_lens_kv.len();
        let pages = self.k_packed.len() / (self.kv_heads * PAGE_CODES);
        let total_q = self.cu_seqlens_q.last().copied().unwrap_or(0).max(0) as usize;
        for (argument, given, expected) in [
            ("q", self.q.len(), total_q * self.q_heads * HEAD_DIM),
            ("k_packed", self.k_packed.len(), pages * self.kv_heads * PAGE_CODES),
            ("v_packed", self.v_packed.len(), self.k_packed.len()),
            ("k_scale", self.k_scale.len(), pages * self.kv_heads * PAGE_SCALES),
            ("v_scale", self.v_scale.len(), self.k_scale.len()),
            ("page_table", self.page_table.len(), batch * self.max_pages),
            ("cu_seqlens_q", self.cu_seqlens_q.len(), batch + 1),
            ("sinks", self.sinks.map_or(self.q_heads, <[f32]>::len), self.q_heads),
        ] {
            if given != expected {
                return Err(Error::argument(argument, Property::Shape, format!("{expected} elements"), given));
            }
        }
        if self.cu_seqlens_q[0] != 0 || self.cu_seqlens_q.windows(2).any(|pair| pair[0] > pair[1]) {
            let given = format!("{:?}", self.cu_seqlens_q);
            return Err(Error::value("cu_seqlens_q", "offsets from 0 that never decrease", given));
        }
        for (request, &keys) in self.seq_lens_kv.iter().enumerate() {
            let limit = self.max_pages * PAGE_TOKENS;
            if !usize::try_from(keys).is_ok_and(|keys| keys <= limit) {
                return Err(Error::value("seq_lens_kv", format!("0..={limit} for request {request}"), keys));
            }
            let used = (keys as usize).div_ceil(PAGE_TOKENS);
            let row = &self.page_table[request * self.max_pages..][..used];
            if let Some(page) = row.iter().find(|&&page| !usize::try_from(page).is_ok_and(|page| page < pages)) {
                return Err(Error::value("page_table", format!("pages below {pages} for request {request}"), page));
            }
        }
        Ok(())
    }

    fn cache(&self, request: usize, head: usize, keys: usize) -> Cache {
        let table = &self.page_table[request * self.max_pages..][..keys.div_ceil(PAGE_TOKENS)];
        let decode = |packed: &[u8], scales: &[u8], side| -> Vec<f64> {
            let page_bytes = table.iter().flat_map(|&page| {
                let tile = page as usize * self.kv_heads + head;
                dequantise_page(
                    &packed[tile * PAGE_CODES..][..PAGE_CODES],
                    &scales[tile * PAGE_SCALES..][..PAGE_SCALES],
                    side,
                )
            });
            page_bytes.take(keys * HEAD_DIM).map(e4m3_to_f64).collect()
        };
        Cache { k: decode(self.k_packed, self.k_scale, Side::K), v: decode(self.v_packed, self.v_scale, Side::V) }
    }
}

/// One query row.
struct Row<'a> {
    problem: &'a Nvfp4Context<'a>,
    q: &'a [f64],
    cache: &'a Cache,
    visible: usize,
    sink: Option<f64>,
}

impl Row<'_> {
    fn product(&self, key: usize) -> f64 {
        self.q.iter().zip(&self.cache.k[key * HEAD_DIM..][..HEAD_DIM]).map(|(q, k)| q * k).sum()
    }

    /// `out += weight * v[key]`.
    fn add_value(&self, out: &mut [f64], weight: f64, key: usize) {
        for (out, v) in out.iter_mut().zip(&self.cache.v[key * HEAD_DIM..][..HEAD_DIM]) {
            *out += weight * v;
        }
    }

    fn nothing(&self) -> (Vec<f64>, f64) {
        (vec![0.0; HEAD_DIM], self.sink.unwrap_or(f64::NEG_INFINITY))
    }

    fn exact(&self) -> (Vec<f64>, f64) {
        if self.visible == 0 {
            return self.nothing();
        }
        let bmm1 = f64::from(self.problem.bmm1_scale);
        let logits: Vec<f64> = (0..self.visible).map(|key| bmm1 * self.product(key)).collect();
        let top = logits.iter().copied().chain(self.sink).fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = logits.iter().map(|logit| (logit - top).exp()).collect();
        let sum = weights.iter().sum::<f64>() + self.sink.map_or(0.0, |sink| (sink - top).exp());
        let mut out = vec![0.0; HEAD_DIM];
        for (key, weight) in weights.iter().enumerate() {
            self.add_value(&mut out, *weight, key);
        }
        let factor = f64::from(self.problem.bmm2_scale) / sum;
        (out.into_iter().map(|value| value * factor).collect(), top + sum.ln())
    }

    fn kernel(&self) -> (Vec<f64>, f64) {
        /// log2 448 as the kernels have it.
        const BIAS: f32 = 8.807_355;
        if self.visible == 0 {
            return self.nothing();
        }
        let bmm1 = f64::from(self.problem.bmm1_scale);
        let scale = f64::from((bmm1 * std::f64::consts::LOG2_E) as f32);
        let bias = f64::from(BIAS);
        let (mut top, mut sum, mut out) = (f64::NEG_INFINITY, 0.0, vec![0.0; HEAD_DIM]);
        for block in (0..self.visible.div_ceil(BLOCK_KEYS)).rev() {
            let keys = block * BLOCK_KEYS..self.visible.min((block + 1) * BLOCK_KEYS);
            let products: Vec<f64> = keys.clone().map(|key| self.product(key)).collect();
            let raised = products.iter().copied().fold(top, f64::max);
            let factor = if top == f64::NEG_INFINITY { 1.0 } else { ((top - raised) * scale).exp2() };
            top = raised;
            sum *= factor;
            out.iter_mut().for_each(|value| *value *= factor);
            for (key, product) in keys.zip(products) {
                let weight = f64::from((product * scale + (bias - top * scale)).exp2() as f32);
                sum += weight;
                self.add_value(&mut out, e4m3_to_f64(e4m3_from_f64(weight)), key);
            }
        }
        if let Some(sink) = self.sink {
            sum += (sink * std::f64::consts::LOG2_E - top * scale + bias).exp2();
        }
        let factor = f64::from(self.problem.bmm2_scale) / sum;
        let lse = top * bmm1 + sum.ln() - 448f64.ln();
        (out.into_iter().map(|value| value * factor).collect(), lse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: u8 = 0x38;
    const TWO: u8 = 0x40;

    /// One request, one head, two keys in one page: K rows 0 and 1 are `q` and 0, V rows 1 and 2.
    fn two_keys() -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        let mut k = vec![0u8; PAGE_CODES];
        k[..64].fill(0x22);
        let mut v = vec![0x22u8; PAGE_CODES];
        v[64..128].fill(0x44);
        (vec![ONE; HEAD_DIM], k, v)
    }

    fn run(queries: usize, lens: i32, bmm1: f32, sinks: Option<&[f32]>, numerics: Numerics) -> (Vec<f64>, Vec<f64>) {
        let (q, k, v) = two_keys();
        let problem = Nvfp4Context {
            q_heads: 1,
            kv_heads: 1,
            max_pages: 1,
            q: &q.repeat(queries),
            k_packed: &k,
            v_packed: &v,
            k_scale: &[ONE; PAGE_SCALES],
            v_scale: &[ONE; PAGE_SCALES],
            page_table: &[0],
            seq_lens_kv: &[lens],
            cu_seqlens_q: &[0, queries as i32],
            sinks,
            bmm1_scale: bmm1,
            bmm2_scale: 1.0,
        };
        nvfp4_context(&problem, numerics).unwrap()
    }

    /// Products 128 and 0; with bmm1 = ln 3 / 128 the weights are 3/4 and 1/4.
    #[test]
    fn weights_are_the_softmax_of_scaled_products() {
        let bmm1 = (3f64.ln() / 128.0) as f32;
        let (out, lse) = run(1, 2, bmm1, None, Numerics::Exact);
        assert!((out[0] - 1.25).abs() < 1e-7 && (lse[0] - 4f64.ln()).abs() < 1e-6, "{} {}", out[0], lse[0]);
        // 448 is exact; 448 / 3 = 149.3 rounds to 144, while the sum keeps it.
        let (out, lse) = run(1, 2, bmm1, None, Numerics::Kernel);
        let expected = (448.0 + 2.0 * 144.0) / (448.0 + 448.0 / 3.0);
        assert!((out[0] - expected).abs() < 1e-5 && (lse[0] - 4f64.ln()).abs() < 1e-6, "{} {}", out[0], lse[0]);
    }

    #[test]
    fn the_mask_is_aligned_to_the_last_query() {
        for numerics in [Numerics::Exact, Numerics::Kernel] {
            let (out, lse) = run(3, 2, 1.0, None, numerics);
            assert_eq!((out[0], lse[0]), (0.0, f64::NEG_INFINITY), "the first of three queries sees nothing");
            assert!((out[HEAD_DIM] - 1.0).abs() < 1e-6, "the second sees the first key");
            let (out, lse) = run(1, 0, 1.0, Some(&[2.5]), numerics);
            assert_eq!((out[0], lse[0]), (0.0, 2.5), "an empty cache leaves the sink");
        }
    }

    #[test]
    fn a_sink_takes_weight_without_value() {
        let bmm1 = (3f64.ln() / 128.0) as f32;
        let (out, lse) = run(1, 2, bmm1, Some(&[4f32.ln()]), Numerics::Exact);
        assert!((out[0] - 5.0 / 8.0).abs() < 1e-6 && (lse[0] - 8f64.ln()).abs() < 1e-6);
        let kernel = run(1, 2, bmm1, Some(&[4f32.ln()]), Numerics::Kernel);
        assert!(
            (kernel.0[0] - (448.0 + 288.0) / (448.0 * 8.0 / 3.0)).abs() < 1e-4
                && (kernel.1[0] - 8f64.ln()).abs() < 1e-6
        );
    }

    #[test]
    fn scales_of_v_are_interleaved_by_four_tokens() {
        let codes = [0x22u8; PAGE_CODES];
        let mut scales = [ONE; PAGE_SCALES];
        scales[32 + 3 * 4 + 2] = TWO;
        let v = dequantise_page(&codes, &scales, Side::V);
        let twos: Vec<usize> = (0..v.len()).filter(|&i| v[i] == TWO).collect();
        assert_eq!(twos, (0..16).map(|i| 6 * HEAD_DIM + 48 + i).collect::<Vec<_>>(), "token 6, dims 48..64");
        let k = dequantise_page(&codes, &scales, Side::K);
        let twos: Vec<usize> = (0..k.len()).filter(|&i| k[i] == TWO).collect();
        assert_eq!(twos, (0..16).map(|i| 5 * HEAD_DIM + 96 + i).collect::<Vec<_>>(), "byte 46: token 5, group 6");
    }

    #[test]
    fn bad_arguments_are_named() {
        let (q, k, v) = two_keys();
        let good = Nvfp4Context {
            q_heads: 1,
            kv_heads: 1,
            max_pages: 1,
            q: &q,
            k_packed: &k,
            v_packed: &v,
            k_scale: &[ONE; PAGE_SCALES],
            v_scale: &[ONE; PAGE_SCALES],
            page_table: &[0],
            seq_lens_kv: &[2],
            cu_seqlens_q: &[0, 1],
            sinks: None,
            bmm1_scale: 1.0,
            bmm2_scale: 1.0,
        };
        let message = |problem: Nvfp4Context<'_>| nvfp4_context(&problem, Numerics::Exact).unwrap_err().to_string();
        assert_eq!(
            message(Nvfp4Context { page_table: &[1], ..good }),
            "page_table: expected pages below 1 for request 0, got 1"
        );
        assert_eq!(
            message(Nvfp4Context { seq_lens_kv: &[17], ..good }),
            "seq_lens_kv: expected 0..=16 for request 0, got 17"
        );
        assert_eq!(
            message(Nvfp4Context { cu_seqlens_q: &[1, 1], ..good }),
            "cu_seqlens_q: expected offsets from 0 that never decrease, got [1, 1]"
        );
        assert_eq!(message(Nvfp4Context { q: &q[1..], ..good }), "q: expected 128 elements, got 127");
        assert_eq!(
            message(Nvfp4Context { q_heads: 0, ..good }),
            "q_heads: expected a positive multiple of 1 KV heads, got 0"
        );
    }
}
