//! Grouped-query decode attention: one new token per request attends to its cached prefix.
//!
//! ```text
//! out[b, h] = softmax_t(q_scale / sqrt(head_dim) * q[b, h] . K[b, h / group, t]) . V[b, h / group, t]
//!             t < sequence_lengths[b],  group = query_heads / kv_heads
//! ```
//!
//! | tensor | dtype | shape |
//! |---|---|---|
//! | `q`, `out` | `dtype` | `[batch, query_heads, head_dim]` |
//! | `kv` | `dtype` | `[batch, 2, kv_heads, capacity, head_dim]`, 0 = K, 1 = V |
//! | `sequence_lengths` | i32 | `[batch]`, each in `0..=capacity` |
//! | `lse` (optional) | f32 | `[batch, query_heads]`, natural logarithm of the sum of `exp(score)` |
//!
//! All are contiguous. Lengths stay on the device: they may change between launches, also between replays of a graph. A
//! length outside `0..=capacity` counts as the bound next to it, so that no launch reads past `kv`; only the reference,
//! which sees the lengths on the host, refuses it. A request of length 0 gives zeros and log-sum-exp -inf. Cache slots
//! at or past the length may hold anything, NaN included. The same inputs give the same bits; the plan depends on
//! sizes, the architecture and its SM count only.
//!
//! [`mod@decide`] is the pure planner: route, splits, geometry, workspace.

mod call;
pub mod decide;
#[cfg(feature = "reference")]
mod reference;

use bakewell_core::error::Property;
use bakewell_core::schedule::gqa_decode::REQUESTABLE_SPLITS;
use bakewell_core::{DType, Dims, Error, Result};
use serde::{Deserialize, Serialize};

use crate::arguments::group_size;

pub use call::GqaDecodeArgs;
pub use decide::{Decision, consider, decide};

/// A planned problem on a device.
pub type Plan = crate::Plan<GqaDecode>;

/// A problem: sizes, element type, and what is wanted. The default is the shape of an 8B model in f16 with one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GqaDecode {
    /// Requests.
    pub batch: u64,
    /// Key slots per request.
    pub capacity: u64,
    /// Query heads, a multiple of `kv_heads`.
    pub query_heads: u64,
    /// KV heads.
    pub kv_heads: u64,
    /// Elements of a head.
    pub head_dim: u64,
    /// Element type of `q`, `kv` and `out`: f16 or bf16.
    pub dtype: DType,
    /// Split the keys of a request over this many CTAs: 1, 2, 4, 8, 10 or 16; `None` lets the route table decide.
    pub num_splits: Option<u32>,
    /// Multiplies the standard `1 / sqrt(head_dim)`; finite, positive.
    pub q_scale: f32,
    /// Whether the log-sum-exp is wanted.
    pub lse: bool,
}

impl Default for GqaDecode {
    fn default() -> GqaDecode {
        GqaDecode {
            batch: 1,
            capacity: 1024,
            query_heads: 32,
            kv_heads: 8,
            head_dim: 128,
            dtype: DType::F16,
            num_splits: None,
            q_scale: 1.0,
            lse: false,
        }
    }
}

impl GqaDecode {
    /// Shape of `q` and `out`.
    pub fn q_shape(&self) -> [u64; 3] {
        [self.batch, self.query_heads, self.head_dim]
    }

    /// Shape of `kv`.
    pub fn kv_shape(&self) -> [u64; 5] {
        [self.batch, 2, self.kv_heads, self.capacity, self.head_dim]
    }

    /// Shape of `sequence_lengths`.
    pub fn sequence_lengths_shape(&self) -> [u64; 1] {
        [self.batch]
    }

    /// Shape of `lse`.
    pub fn lse_shape(&self) -> [u64; 2] {
        [self.batch, self.query_heads]
    }

    /// Query heads per KV head.
    ///
    /// # Errors
    /// As [`GqaDecode::validate`].
    pub fn group_size(&self) -> Result<u64> {
        group_size(("query_heads", self.query_heads), self.kv_heads)
    }

    /// Checks what does not depend on a device.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the field.
    pub fn validate(&self) -> Result<()> {
        self.group_size()?;
        if self.head_dim == 0 {
            return Err(Error::value("head_dim", "at least 1", 0));
        }
        if !matches!(self.dtype, DType::F16 | DType::Bf16) {
            return Err(Error::argument("dtype", Property::DType, "f16 or bf16", self.dtype));
        }
        if self.capacity == 0 && self.batch > 0 {
            return Err(Error::value("capacity", "at least 1", 0));
        }
        if !(self.q_scale.is_finite() && self.q_scale > 0.0) {
            return Err(Error::value("q_scale", "a finite positive number", self.q_scale));
        }
        if let Some(splits) = self.num_splits
            && !REQUESTABLE_SPLITS.contains(&splits)
        {
            return Err(Error::value("num_splits", format!("one of {REQUESTABLE_SPLITS:?}"), splits));
        }
        for (argument, shape) in [("q", self.q_shape().as_slice()), ("kv", self.kv_shape().as_slice())] {
            let bytes = Dims::new(shape)?.product().ok().and_then(|elements| elements.checked_mul(self.dtype.bytes()));
            if bytes.and_then(|bytes| i64::try_from(bytes).ok()).is_none() {
                let given = format!("shape {shape:?} of {}", self.dtype);
                return Err(Error::argument(argument, Property::Size, "fewer than 2^63 bytes", given));
            }
        }
        Ok(())
    }
}
