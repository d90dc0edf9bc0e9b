//! Paged-context attention over an NVFP4 cache: FP8 queries, FP4 keys and values in pages of 16 tokens, FP8 output.
//!
//! ```text
//! logit[i, j] = bmm1_scale * q[i] . k[j]                    j <= i + kv_len - q_len (bottom-right causal)
//! out[i]      = E4M3(bmm2_scale * softmax(logit[i]) . v)    k, v: E4M3(code * scale), one rounding
//! ```
//!
//! | tensor | dtype | shape | layout |
//! |---|---|---|---|
//! | `q` | e4m3 | `[total_q, q_heads, 128]` | last stride 1, others multiples of 16 bytes |
//! | `k_packed`, `v_packed` | u8 | `[num_pages, kv_heads, 16, 64]` | last stride 1, others multiples of 16 bytes |
//! | `k_scale`, `v_scale` | e4m3 | `[num_pages, kv_heads, 16, 8]` | 128 contiguous bytes per page and head |
//! | `page_table` | i32 or u32 | `[batch, max_pages]` | unit stride along pages |
//! | `seq_lens_kv` | i32 | `[batch]` | contiguous; the new tokens count |
//! | `cu_seqlens_q` | i32 | `[batch + 1]` | contiguous, from 0, not decreasing, ends at `total_q` |
//! | `out` | e4m3 | `[total_q, q_heads, 128]` | contiguous |
//! | `lse` (optional) | f32 | `[total_q, q_heads]` | contiguous; natural logarithm |
//! | `sinks` (optional) | f32 | `[q_heads]` | contiguous; logits without value |
//!
//! E4M3 tensors may also come as u8. Bytes: element `2i` of a row lies in the low nibble of byte `i`. Scales of K lie
//! `[token][group of 16]`, those of V `[token / 4][group][token % 4]`. Base addresses are multiples of 16.
//!
//! Lengths, offsets and page ids stay on the device. Table entries past a request's last page are never followed, and
//! cache slots past its length may hold anything. A row that sees nothing is zero, with log-sum-exp -inf.
//! `softmax_scale`, the scales of q and of the K tensor belong into `bmm1_scale`, those of V and of the output into
//! `bmm2_scale`: FP8 output of small values needs an output scale.
//!
//! Without split, the same inputs give the same bytes of a family for any SM count, page order and batch, and on every
//! schedule of the architectures with tensor memory. A split adds the order of the splits, which the plan fixes. The
//! paged family rounds the weights to E4M3 as they enter the second product, decode to f16. The expanded family, for
//! many query rows, gives the bytes of the paged one; it expands the cache into the workspace first, 256 bytes for each
//! token and KV head of `batch * max_kv_len`.
//!
//! [`mod@decide`] is the pure planner: pack, splits, geometry, workspace. [`debug`] shows what kernels make of a cache.

mod call;
pub mod debug;
pub mod decide;
#[cfg(feature = "reference")]
mod reference;
mod tensors;

use bakewell_core::error::Property;
use bakewell_core::schedule::nvfp4_context::{HEAD_DIM, MAX_SPLITS, PAGE_TOKENS, SCALE_GROUP};
use bakewell_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::arguments::group_size;

pub use bakewell_core::schedule::nvfp4_context::Family;
pub use call::{Nvfp4ContextArgs, Scale};
pub use decide::{Decision, Expansion, Merge, consider, decide};

/// What every count of a problem is below: kernels hold them, and the sum of a token and two lengths, in 32 bits.
const MAX_COUNT: u64 = 1 << 30;

/// A planned problem on a device.
pub type Plan = crate::Plan<Nvfp4Context>;

/// Order of the dimensions of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheLayout {
    /// `[page, head, token, dim]`.
    #[default]
    Hnd,
    /// `[page, token, head, dim]`; no program reads it.
    Nhd,
}

/// A problem: sizes, and what is wanted. The default is one request of one token over 4096 keys, 32 / 8 heads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nvfp4Context {
    /// Requests.
    pub batch: u64,
    /// Query tokens of all requests.
    pub total_q: u64,
    /// Query heads, a multiple of `kv_heads`.
    pub q_heads: u64,
    /// KV heads.
    pub kv_heads: u64,
    /// Pages of the pool.
    pub num_pages: u64,
    /// Entries of a page-table row.
    pub max_pages: u64,
    /// Upper bound of a request's query tokens.
    pub max_q_len: u64,
    /// Upper bound of a request's keys.
    pub max_kv_len: u64,
    /// Elements of a head: 128.
    pub head_dim: u64,
    /// Tokens of a page: 16.
    pub page_tokens: u64,
    /// Order of the cache's dimensions: HND.
    pub layout: CacheLayout,
    /// Bottom-right causal mask: true.
    pub causal: bool,
    /// Sliding window in tokens: none.
    pub sliding_window: Option<u64>,
    /// CTAs that share a tile's keys: 1 for none; `None` lets the planner decide.
    pub num_splits: Option<u32>,
    /// How the kernel works; `None` lets the route table decide.
    pub family: Option<Family>,
    /// Name of the schedules to take; `None` lets the route table decide.
    pub schedule: Option<String>,
    /// Whether the log-sum-exp is wanted.
    pub lse: bool,
    /// Whether there are sinks.
    pub sinks: bool,
}

impl Default for Nvfp4Context {
    fn default() -> Nvfp4Context {
        Nvfp4Context {
            batch: 1,
            total_q: 1,
            q_heads: 32,
            kv_heads: 8,
            num_pages: 256,
            max_pages: 256,
            max_q_len: 1,
            max_kv_len: 4096,
            head_dim: HEAD_DIM.into(),
            page_tokens: PAGE_TOKENS.into(),
            layout: CacheLayout::Hnd,
            causal: true,
            sliding_window: None,
            num_splits: None,
            family: None,
            schedule: None,
            lse: false,
            sinks: false,
        }
    }
}

impl Nvfp4Context {
    /// Most splits of a tile.
    pub const MAX_SPLITS: u32 = MAX_SPLITS;

    /// Shape of `q` and `out`.
    pub fn q_shape(&self) -> [u64; 3] {
        [self.total_q, self.q_heads, self.head_dim]
    }

    /// Shape of `k_packed` and `v_packed`.
    pub fn packed_shape(&self) -> [u64; 4] {
        [self.num_pages, self.kv_heads, self.page_tokens, self.head_dim / 2]
    }

    /// Shape of `k_scale` and `v_scale`.
    pub fn scale_shape(&self) -> [u64; 4] {
        [self.num_pages, self.kv_heads, self.page_tokens, self.head_dim / u64::from(SCALE_GROUP)]
    }

    /// Shape of `page_table`.
    pub fn page_table_shape(&self) -> [u64; 2] {
        [self.batch, self.max_pages]
    }

    /// Shape of `seq_lens_kv`.
    pub fn seq_lens_kv_shape(&self) -> [u64; 1] {
        [self.batch]
    }

    /// Shape of `cu_seqlens_q`.
    pub fn cu_seqlens_q_shape(&self) -> [u64; 1] {
        [self.batch + 1]
    }

    /// Shape of `lse`.
    pub fn lse_shape(&self) -> [u64; 2] {
        [self.total_q, self.q_heads]
    }

    /// Shape of `sinks`.
    pub fn sinks_shape(&self) -> [u64; 1] {
        [self.q_heads]
    }

    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.batch == 0 || self.total_q == 0 || self.max_q_len == 0
    }

    /// Query heads per KV head.
    ///
    /// # Errors
    /// As [`Nvfp4Context::validate`].
    pub fn group_size(&self) -> Result<u64> {
        group_size(("q_heads", self.q_heads), self.kv_heads)
    }

    /// Checks what does not depend on a device.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the field.
    pub fn validate(&self) -> Result<()> {
        self.group_size()?;
        for (argument, given, expected) in
            [("head_dim", self.head_dim, HEAD_DIM), ("page_tokens", self.page_tokens, PAGE_TOKENS)]
        {
            if given != u64::from(expected) {
                return Err(Error::value(argument, expected, given));
            }
        }
        if self.layout != CacheLayout::Hnd {
            return Err(Error::value("layout", "hnd", "nhd"));
        }
        if !self.causal {
            return Err(Error::value("causal", true, false));
        }
        if let Some(window) = self.sliding_window {
            return Err(Error::value("sliding_window", "none", window));
        }
        for (argument, given) in [
            ("batch", self.batch),
            ("total_q", self.total_q),
            ("q_heads", self.q_heads),
            ("num_pages", self.num_pages),
            ("max_pages", self.max_pages),
            ("max_q_len", self.max_q_len),
            ("max_kv_len", self.max_kv_len),
        ] {
            if given >= MAX_COUNT {
                return Err(Error::argument(argument, Property::Size, "less than 2^30", given));
            }
        }
        let pages = self.max_kv_len.div_ceil(self.page_tokens);
        if self.batch > 0 && self.max_pages < pages {
            let expected = format!("at least {pages} entries per request for max_kv_len {}", self.max_kv_len);
            return Err(Error::value("max_pages", expected, self.max_pages));
        }
        if let Some(splits) = self.num_splits
            && !(1..=Self::MAX_SPLITS).contains(&splits)
        {
            return Err(Error::value("num_splits", format!("1..={}", Self::MAX_SPLITS), splits));
        }
        Ok(())
    }
}
