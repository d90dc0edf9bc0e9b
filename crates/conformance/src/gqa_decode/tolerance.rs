//! How far an output may be from what is expected, and why.

use bakewell::{DType, Result};

use super::Inputs;
use crate::compare::Tolerance;

/// Tolerance of `out`.
///
/// f16: relative L2 1e-3 and `(2e-3 + 2^-11) * peak` per element: P and the output are each rounded to half an ulp,
/// 2^-11, and a few f32 roundings come on top. bf16 has three bits less: eight times as much.
pub fn out_tolerance(dtype: DType) -> Tolerance {
    let units = if dtype == DType::Bf16 { 8.0 } else { 1.0 };
    Tolerance { relative_l2: 1e-3 * units, absolute: 0.0, of_peak: (2e-3 + 2f64.powi(-11)) * units }
}

/// Tolerance of `lse`.
///
/// A score is a sum of `head_dim` products in f32 plus a scaling: at most `(head_dim + 2) * 2^-24` of its largest
/// magnitude. Weights may be rounded to the element type before they are summed: its unit roundoff of the sum, so as
/// much in its logarithm. The result is an f32.
///
/// # Errors
/// As [`Inputs::score_bound`].
pub fn lse_tolerance(inputs: &Inputs) -> Result<Tolerance> {
    let roundoff = if inputs.problem.dtype == DType::Bf16 { 2f64.powi(-8) } else { 2f64.powi(-11) };
    let scores = (inputs.problem.head_dim + 2) as f64 * 2f64.powi(-24) * inputs.score_bound()?;
    Ok(Tolerance { relative_l2: f64::INFINITY, absolute: scores + roundoff, of_peak: 2f64.powi(-24) })
}
