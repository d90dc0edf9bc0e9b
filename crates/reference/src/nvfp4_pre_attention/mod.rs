//! NVFP4 pre-attention: RMSNorm, modulation, NVFP4 quantisation, and the NVFP4 QKV GEMM with its epilogue.
//!
//! Per token, with `row` its row of the modulation tables:
//!
//! ```text
//! n = bf16(x * rstd * w)          rstd = 1 / sqrt(mean(x^2) + eps)
//! h = bf16(n * bf16(1 + scale[row]) + shift[row])      -> codes and scales, encode scale gx
//! v = bf16(sum_k A[k] B[k] * alpha)                    A, B: code * block scale; alpha = 1 / (gx * gw)
//! ```
//!
//! and per head row of 128 words `v`: Q and K are normalised with a weight of their own and rotated; all three are
//! quantised to NVFP4 or E4M3 and grouped by destination.
//!
//! Unlike the other operations this one has results to the bit: every operation is the f32 one, rounded to nearest
//! even, in the order stated at each stage; so the reference computes in f32. Only the product has a free order. It is
//! summed in f64, and [`Gemm::determined`] says for which head rows any order of f32 additions gives the same words.
//!
//! | module | subject |
//! |---|---|
//! | [`norm`](mod@norm) | the first stage |
//! | [`gemm`](mod@gemm) | the product |
//! | [`epilogue`](mod@epilogue) | head rows |
//! | [`quantise`] | blocks of 16, and the layout of scales |

pub mod epilogue;
pub mod gemm;
pub mod norm;
pub mod quantise;
mod reciprocal_root;

use bakewell_core::error::Property;
use bakewell_core::{Error, Result};
use half::bf16;

pub use epilogue::{Epilogue, epilogue};
pub use gemm::{Gemm, Operand, alpha, gemm};
pub use norm::Norm;

/// Elements of a head.
pub const HEAD_DIM: usize = 128;
/// Elements that share a scale factor.
pub const GROUP: usize = 16;
/// Q, K, V.
pub const KINDS: usize = 3;

/// How the results are scaled, which also says in which format they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OutputScale {
    /// NVFP4, with one encode scale for all.
    Nvfp4(f32),
    /// E4M3, with a decode scale each for Q, K and V.
    E4m3([f32; KINDS]),
}

/// A problem; all slices row-major and contiguous. Weight rows are ordered `[head][kind][d]`.
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4PreAttention<'a> {
    /// Elements of a row of hidden states.
    pub hidden: usize,
    /// Heads, each with Q, K and V.
    pub heads: usize,
    /// Destinations among which the heads are divided.
    pub destinations: usize,
    /// Elements of a head that are rotated.
    pub rope_dim: usize,
    /// Added to every mean of squares.
    pub eps: f32,
    /// `[tokens, hidden]`.
    pub x: &'a [bf16],
    /// `[hidden]`.
    pub x_norm_weight: &'a [bf16],
    /// `[table_rows, hidden]`.
    pub adaln_scale: &'a [bf16],
    /// `[table_rows, hidden]`.
    pub adaln_shift: &'a [bf16],
    /// `[tokens]`; a row outside the tables gives zeros.
    pub adaln_index: &'a [i32],
    /// Encode scale of the activation.
    pub x_global_scale: f32,
    /// Packed codes, `[heads * 3 * 128, hidden / 2]`.
    pub qkv_weight_q: &'a [u8],
    /// E4M3 scales in tiles.
    pub qkv_weight_sf: &'a [u8],
    /// Encode scale of the weight.
    pub w_global_scale: f32,
    /// `[128]`.
    pub q_norm_weight: &'a [bf16],
    /// `[128]`.
    pub k_norm_weight: &'a [bf16],
    /// `[tokens, rope_dim]`: cosines, then sines.
    pub rope_cos_sin: &'a [bf16],
    /// Scales of the results.
    pub output: OutputScale,
}

/// Every stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Stages {
    /// The first stage.
    pub norm: Norm,
    /// The product.
    pub gemm: Gemm,
    /// The epilogue.
    pub epilogue: Epilogue,
}

/// Computes every stage.
///
/// # Errors
/// [`Error::Argument`] when a slice has another length than its shape.
pub fn nvfp4_pre_attention(problem: &Nvfp4PreAttention<'_>) -> Result<Stages> {
    problem.validate()?;
    let norm = norm::norm(problem);
    let activation = Operand { codes: &norm.codes, scales: &norm.scales };
    let weight_scales = quantise::unswizzle_scales(problem.qkv_weight_sf, problem.columns(), problem.hidden / GROUP);
    let weight = Operand { codes: problem.qkv_weight_q, scales: &weight_scales };
    let gemm = gemm(activation, weight, problem.hidden, alpha(problem.x_global_scale, problem.w_global_scale));
    let epilogue = epilogue(problem, &gemm.words);
    Ok(Stages { norm, gemm, epilogue })
}

impl Nvfp4PreAttention<'_> {
    fn columns(&self) -> usize {
        self.heads * KINDS * HEAD_DIM
    }

    fn validate(&self) -> Result<()> {
        let tokens = self.adaln_index.len();
        let scales = self.columns().next_multiple_of(128) * (self.hidden / GROUP).next_multiple_of(4);
        for (name, given, expected) in [
            ("x", self.x.len(), tokens * self.hidden),
            ("x_norm_weight", self.x_norm_weight.len(), self.hidden),
            ("adaln_shift", self.adaln_shift.len(), self.adaln_scale.len()),
            ("qkv_weight_q", self.qkv_weight_q.len(), self.columns() * self.hidden / 2),
            ("qkv_weight_sf", self.qkv_weight_sf.len(), scales),
            ("q_norm_weight", self.q_norm_weight.len(), HEAD_DIM),
            ("k_norm_weight", self.k_norm_weight.len(), HEAD_DIM),
            ("rope_cos_sin", self.rope_cos_sin.len(), tokens * self.rope_dim),
        ] {
            if given != expected {
                return Err(Error::argument(name, Property::Size, format!("{expected} elements"), given));
            }
        }
        let whole = |condition, name, expected: &str, given| match condition {
            true => Ok(()),
            false => Err(Error::value(name, expected, given)),
        };
        whole(
            self.hidden > 0 && self.hidden.is_multiple_of(GROUP),
            "hidden",
            "a positive multiple of 16",
            self.hidden,
        )?;
        whole(
            self.rope_dim <= HEAD_DIM && self.rope_dim.is_multiple_of(2),
            "rope_dim",
            "an even number up to 128",
            self.rope_dim,
        )?;
        whole(
            self.destinations > 0 && self.heads.is_multiple_of(self.destinations),
            "destinations",
            "a divisor of the heads",
            self.destinations,
        )
    }
}

/// To bf16 and back.
fn rounded(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}
