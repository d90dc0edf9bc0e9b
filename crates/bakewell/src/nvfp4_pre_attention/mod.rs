//! NVFP4 pre-attention: norm, modulation, quantisation of the hidden states, and the NVFP4 QKV GEMM with its epilogue,
//! in two launches.
//!
//! ```text
//! n = bf16(x * rstd * x_norm_weight)                       rstd = 1 / sqrt(mean(x^2) + eps)
//! h = bf16(n * bf16(1 + adaln_scale[row]) + adaln_shift[row])                row = adaln_index[token]
//! activation = NVFP4(h), encode scale x_global_scale
//! v = bf16(activation . weight / (x_global_scale * w_global_scale))          128 words per token, head and kind
//! Q, K: v normalised with q_norm_weight, k_norm_weight, then rotated;  V: as it is
//! out = NVFP4 or E4M3 of Q, K and V, grouped by destination
//! ```
//!
//! | tensor | dtype | shape | |
//! |---|---|---|---|
//! | `x` | bf16 | `[tokens, hidden]` | |
//! | `x_norm_weight` | bf16 | `[hidden]` | |
//! | `adaln_scale`, `adaln_shift` | bf16 | `[table_rows, hidden]` | |
//! | `adaln_index` | i32 | `[tokens]` | a row outside the tables gives a zero activation |
//! | `x_global_scale`, `w_global_scale` | f32 | `[1]` | encode scales, positive and finite; read when binding |
//! | `qkv_weight_q` | u8 | `[heads * 384, hidden / 2]` | codes; rows ordered `[head][Q, K, V][128]` |
//! | `qkv_weight_sf` | u8 | `[heads * 384 * hidden / 16]` | E4M3 in tiles of 128 rows x 4 blocks; read when binding |
//! | `q_norm_weight`, `k_norm_weight` | bf16 | `[128]` | |
//! | `rope_cos_sin` | bf16 | `[tokens, rope_dim]` | cosines, then sines, of the pairs `(d, d + rope_dim / 2)` |
//! | `out_global_scale` | f32 | `[1]` | NVFP4 only: encode scale of Q, K and V |
//! | `qkv_scales` | f32 | `[3]` | E4M3 only: decode scales, positive and finite; read when binding |
//! | `out_q` | u8 or e4m3 | `[destinations, tokens, heads / destinations, 3, 64 or 128]` | output |
//! | `out_sf` | u8 | `[destinations, rows * 8]` | NVFP4 only: output, in tiles; rows rounded up to 128 |
//! | `activation_q` | u8 | `[tokens, hidden / 2]` | written by the first launch, read by the second |
//! | `activation_sf` | u8 | `[tokens * hidden / 16]`, tokens rounded up to 128 | likewise, in tiles |
//! | `debug_adaln_bf16` | bf16 | `[tokens, hidden]` | optional output: `h` |
//! | `debug_q_bf16`, `debug_k_bf16` | bf16 | `[tokens, heads, 128]` | optional outputs: before quantisation |
//!
//! All are contiguous; addresses are multiples of 16, of `out_sf` of 8, of indices and scales of 4. Scale bytes may
//! also come as e4m3, and E4M3 results as u8. What is read when binding has no effect when it changes afterwards,
//! except that changing `x_global_scale` is not supported; all other tensors may change between launches.
//!
//! E4M3 holds magnitudes of 2^-9 to 448 with one scale per kind: results far below 1 need a `qkv_scales` as small, or
//! they come out as 0.
//!
//! The activation and its scales are the same bytes everywhere. So are `out_q` and `out_sf` in every head row whose
//! sums fit 24 bits in whatever order they are added; in other rows the last bit of a word may differ between
//! architectures, not between launches. [`crate::nvfp4`] makes and reads such tensors on the host.
//!
//! [`mod@decide`] is the pure planner: schedules, geometry, workspace; [`gemm`] is what the families of the second
//! kernel do differently.

mod call;
pub mod decide;
pub mod gemm;
#[cfg(feature = "reference")]
mod reference;
mod scales;
mod tensors;

use bakewell_core::error::Property;
use bakewell_core::schedule::nvfp4_pre_attention::{HEAD_DIM, KINDS, SCALE_GROUP, SCALE_TILE_ROWS};
use bakewell_core::{Error, Result};
use serde::{Deserialize, Serialize};

pub use bakewell_core::schedule::nvfp4_pre_attention::OutputFormat;
pub use decide::{Decision, Launches, consider, decide};
pub use tensors::Nvfp4PreAttentionArgs;

/// A planned problem on a device.
pub type Plan = crate::Plan<Nvfp4PreAttention>;

/// Scale bytes of a head row.
const ROW_GROUPS: u64 = (HEAD_DIM / SCALE_GROUP) as u64;

/// A problem: sizes, and what is wanted. The default is the model that the operation was made for, 6096 tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nvfp4PreAttention {
    /// Tokens.
    pub tokens: u64,
    /// Elements of a token's hidden state, a multiple of 64.
    pub hidden: u64,
    /// Heads, an even number.
    pub heads: u64,
    /// Destinations that the heads are shared out over: 1, 2, 4 or 8.
    pub destinations: u64,
    /// Elements of a head: 128.
    pub head_dim: u64,
    /// Elements of a head that are rotated, a multiple of 16.
    pub rope_dim: u64,
    /// Rows of the modulation tables.
    pub table_rows: u64,
    /// Format of the results.
    pub out_format: OutputFormat,
    /// Added to every mean of squares; positive, finite.
    pub eps: f32,
    /// Whether the intermediates are wanted.
    pub debug: bool,
}

impl Default for Nvfp4PreAttention {
    fn default() -> Nvfp4PreAttention {
        Nvfp4PreAttention {
            tokens: 6096,
            hidden: 5376,
            heads: 56,
            destinations: 1,
            head_dim: HEAD_DIM.into(),
            rope_dim: 96,
            table_rows: 9,
            out_format: OutputFormat::Nvfp4,
            eps: 1e-5,
            debug: false,
        }
    }
}

impl Nvfp4PreAttention {
    /// Columns of the GEMM: a head row each of Q, K and V per head.
    pub fn columns(&self) -> u64 {
        self.heads * u64::from(KINDS) * self.head_dim
    }

    /// Head rows that a destination receives.
    pub fn rows_per_destination(&self) -> u64 {
        self.tokens * (self.heads / self.destinations) * u64::from(KINDS)
    }

    /// Shape of `x` and `debug_adaln_bf16`.
    pub fn x_shape(&self) -> [u64; 2] {
        [self.tokens, self.hidden]
    }

    /// Shape of `adaln_scale` and `adaln_shift`.
    pub fn table_shape(&self) -> [u64; 2] {
        [self.table_rows, self.hidden]
    }

    /// Shape of `qkv_weight_q`.
    pub fn weight_shape(&self) -> [u64; 2] {
        [self.columns(), self.hidden / 2]
    }

    /// Shape of `qkv_weight_sf`.
    pub fn weight_scales_shape(&self) -> [u64; 1] {
        [self.columns() * self.hidden / u64::from(SCALE_GROUP)]
    }

    /// Shape of `rope_cos_sin`.
    pub fn rope_shape(&self) -> [u64; 2] {
        [self.tokens, self.rope_dim]
    }

    /// Shape of `out_q`.
    pub fn out_shape(&self) -> [u64; 5] {
        let row = self.out_format.row_bytes().into();
        [self.destinations, self.tokens, self.heads / self.destinations, KINDS.into(), row]
    }

    /// Shape of `out_sf`.
    pub fn out_scales_shape(&self) -> [u64; 2] {
        [self.destinations, self.rows_per_destination().next_multiple_of(SCALE_TILE_ROWS.into()) * ROW_GROUPS]
    }

    /// Shape of `activation_q`.
    pub fn activation_shape(&self) -> [u64; 2] {
        [self.tokens, self.hidden / 2]
    }

    /// Shape of `activation_sf`.
    pub fn activation_scales_shape(&self) -> [u64; 1] {
        [self.tokens.next_multiple_of(SCALE_TILE_ROWS.into()) * self.hidden / u64::from(SCALE_GROUP)]
    }

    /// Shape of `debug_q_bf16` and `debug_k_bf16`.
    pub fn debug_shape(&self) -> [u64; 3] {
        [self.tokens, self.heads, self.head_dim]
    }

    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    /// Checks what does not depend on a device.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the field.
    pub fn validate(&self) -> Result<()> {
        /// Rows of 2^24 elements have a length that is exact in f32.
        const MOST_HIDDEN: u64 = 1 << 24;
        /// So that a weight row's number fits 32 bits.
        const MOST_HEADS: u64 = 1 << 22;
        let head_dim = u64::from(HEAD_DIM);
        let check = |holds: bool, name: &'static str, expected: &str, given: u64| match holds {
            true => Ok(()),
            false => Err(Error::value(name, expected, given)),
        };
        let hidden = self.hidden;
        check(
            hidden.is_multiple_of(64) && (256..=MOST_HIDDEN).contains(&hidden),
            "hidden",
            "a multiple of 64 in 256..=16777216",
            hidden,
        )?;
        check(
            self.heads.is_multiple_of(2) && (2..=MOST_HEADS).contains(&self.heads),
            "heads",
            "an even number in 2..=4194304",
            self.heads,
        )?;
        check(
            [1, 2, 4, 8].contains(&self.destinations) && self.heads.is_multiple_of(self.destinations),
            "destinations",
            "1, 2, 4 or 8, and a divisor of the heads",
            self.destinations,
        )?;
        check(self.head_dim == head_dim, "head_dim", "128", self.head_dim)?;
        let rope_dim = self.rope_dim;
        check(
            rope_dim.is_multiple_of(16) && (16..=head_dim).contains(&rope_dim),
            "rope_dim",
            "a multiple of 16 in 16..=128",
            rope_dim,
        )?;
        let table_rows = i32::try_from(self.table_rows).is_ok() && self.table_rows > 0;
        check(table_rows, "table_rows", "1..=2147483647 rows", self.table_rows)?;
        if !(self.eps.is_finite() && self.eps > 0.0) {
            return Err(Error::value("eps", "a positive finite number", self.eps));
        }
        // Every byte of a destination's scales has a number below 2^31.
        let most = (i32::MAX as u64 / ROW_GROUPS / u64::from(SCALE_TILE_ROWS) * u64::from(SCALE_TILE_ROWS))
            / (self.heads / self.destinations * u64::from(KINDS));
        if self.tokens > most {
            let expected =
                format!("at most {most} tokens, so that a destination's scales number fewer than 2^31 bytes");
            return Err(Error::argument("tokens", Property::Size, expected, self.tokens));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_of_the_default() {
        let problem = Nvfp4PreAttention { destinations: 4, tokens: 130, ..Default::default() };
        assert_eq!((problem.columns(), problem.rows_per_destination()), (21_504, 130 * 14 * 3));
        assert_eq!(problem.out_shape(), [4, 130, 14, 3, 64]);
        assert_eq!(problem.out_scales_shape(), [4, 5504 * 8]);
        assert_eq!(problem.activation_scales_shape(), [256 * 336]);
    }

    #[test]
    fn the_most_tokens_of_the_production_shape() {
        let most = Nvfp4PreAttention { tokens: 1_597_829, ..Default::default() };
        most.validate().unwrap();
        assert!(most.out_scales_shape()[1] < 1 << 31);
        let more = Nvfp4PreAttention { tokens: 1_597_830, ..Default::default() };
        assert!(matches!(more.validate(), Err(Error::Argument { argument: "tokens", property: Property::Size, .. })));
    }
}
