//! How far an output may be from what is expected, and why.
//!
//! The weights are rounded to E4M3 on purpose, so that only part of the bytes equal those of the exact answer. A kernel
//! that keeps the reference's order and roundings differs from the *model* only where an f32 sum or an approximate
//! exponential falls on the other side of a rounding: few bytes, and those by one code. FP8 sums on Hopper keep 13 bits
//! below their largest term, which moves a few more. A split changes the running maxima and so the binades in which
//! weights are rounded, and decode rounds weights to f16: only the exact answer can judge them.

use bakewell::nvfp4_context::Family;
use bakewell::{Arch, Result};

use super::{Expected, Inputs};
use crate::staged::Outputs;
use crate::tensor::e4m3_values;

/// Shares of bytes that must equal the model's, and be within one code of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gates {
    /// Equal.
    pub equal: f64,
    /// Equal or neighbouring codes.
    pub neighbouring: f64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// Share of bytes equal to the model's.
    pub equal: f64,
    /// Share within one code.
    pub neighbouring: f64,
    /// Cosine of the angle to the exact answer.
    pub cosine: f64,
    /// Largest error against the exact answer, in units of what is allowed there.
    pub worst: f64,
    /// What is not as it must be.
    pub failure: Option<String>,
}

impl Gates {
    /// Gates of a program; `None` for a split one and for decode, which the model does not describe.
    pub fn of(arch: Option<Arch>, family: Family, splits: u32) -> Option<Gates> {
        match (family, arch, splits) {
            (Family::Decode, ..) | (_, _, 2..) => None,
            (Family::Paged | Family::Expanded, Some(Arch::Sm90), _) => Some(Gates { equal: 0.95, neighbouring: 0.99 }),
            (Family::Paged | Family::Expanded, ..) => Some(Gates { equal: 0.98, neighbouring: 0.995 }),
        }
    }
}

/// Compares outputs with what is expected.
///
/// # Errors
/// [`bakewell::Error::Argument`] for outputs of another type.
pub fn judge(inputs: &Inputs, outputs: &Outputs, expected: &Expected, gates: Option<Gates>) -> Result<Judgement> {
    let out = &outputs["out"].bytes;
    let got = e4m3_values(out);
    let bytes = got.len().max(1) as f64;
    let distances = out.iter().zip(&expected.model).map(|(&a, &b)| (ordered(a) - ordered(b)).abs());
    let within =
        |limit: i32, distances: &mut dyn Iterator<Item = i32>| distances.filter(|&d| d <= limit).count() as f64;
    let mut judgement = Judgement {
        equal: if got.is_empty() { 1.0 } else { within(0, &mut distances.clone()) / bytes },
        neighbouring: if got.is_empty() { 1.0 } else { within(1, &mut distances.clone()) / bytes },
        cosine: cosine(&got, &expected.exact),
        worst: 0.0,
        failure: None,
    };
    let peak = expected.exact.iter().fold(0.0f64, |peak, x| peak.max(x.abs()));
    let mut worst_at = None;
    for (i, (&got, &want)) in got.iter().zip(&expected.exact).enumerate() {
        let allowed = 0.07 * (peak / 4.0).max(1.0) + 0.05 * want.abs();
        let error = (got - want).abs() / allowed;
        // A NaN compares with nothing: it must fail.
        if error.is_nan() || error > judgement.worst {
            judgement.worst = if error.is_nan() { f64::INFINITY } else { error };
            worst_at = Some((i, got, want));
        }
    }
    judgement.failure = failure(inputs, outputs, expected, gates, &judgement, worst_at)?;
    Ok(judgement)
}

fn failure(
    inputs: &Inputs,
    outputs: &Outputs,
    expected: &Expected,
    gates: Option<Gates>,
    judgement: &Judgement,
    worst_at: Option<(usize, f64, f64)>,
) -> Result<Option<String>> {
    let heads = inputs.problem.q_heads as usize;
    let place = |i: usize| format!("[{}, {}, {}]", i / 128 / heads, i / 128 % heads, i % 128);
    if let Some(row) = zero_row_violation(outputs, expected) {
        return Ok(Some(format!("row [{}, {}] sees nothing and must be zero bytes", row / heads, row % heads)));
    }
    if judgement.worst > 1.0 {
        let (i, got, want) = worst_at.unwrap_or_default();
        return Ok(Some(format!(
            "out at {}: {got} for {want}, {:.2} times what is allowed",
            place(i),
            judgement.worst
        )));
    }
    if judgement.cosine < 0.999 {
        return Ok(Some(format!("cosine to the exact answer {:.6} below 0.999", judgement.cosine)));
    }
    if let Some(gates) = gates {
        if judgement.equal < gates.equal {
            return Ok(Some(format!("{:.3} % of bytes equal the model's", judgement.equal * 100.0)));
        }
        if judgement.neighbouring < gates.neighbouring {
            return Ok(Some(format!("{:.3} % of bytes are within a code", judgement.neighbouring * 100.0)));
        }
    }
    if let Some(lse) = outputs.get("lse") {
        for (row, (got, &want)) in lse.to_f64()?.into_iter().zip(&expected.lse).enumerate() {
            let fine = if want.is_finite() { (got - want).abs() <= 1e-3 + 1e-3 * want.abs() } else { got == want };
            if !fine {
                return Ok(Some(format!("lse at [{}, {}]: {got} for {want}", row / heads, row % heads)));
            }
        }
    }
    Ok(None)
}

/// The first row that sees no key and is not all zero bytes. Such rows have an exact answer of zeros and log-sum-exp
/// -inf, or the sink, which no row with keys has as an all-zero answer.
fn zero_row_violation(outputs: &Outputs, expected: &Expected) -> Option<usize> {
    let rows = outputs["out"].bytes.chunks_exact(128).zip(expected.exact.chunks_exact(128));
    let mut nothing = rows.enumerate().filter(|(_, (_, exact))| exact.iter().all(|&x| x == 0.0));
    nothing.find(|(_, (bytes, _))| bytes.iter().any(|&byte| byte != 0)).map(|(row, _)| row)
}

/// E4M3 codes as integers in the order of their values; both zeros are 0.
fn ordered(byte: u8) -> i32 {
    let magnitude = i32::from(byte & 0x7F);
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    let norms = dot(a, a).sqrt() * dot(b, b).sqrt();
    if norms == 0.0 { 1.0 } else { dot(a, b) / norms }
}

#[cfg(test)]
mod tests {
    use super::super::Spec;
    use super::*;
    use crate::{HostTensor, Judged};

    fn case() -> (Inputs, Outputs, Expected) {
        let spec = Spec { q_heads: 2, kv_heads: 1, q_lens: vec![3, 2], kv_lens: vec![140, 0], sinks: false };
        let inputs = Inputs::generate(&spec, 3);
        let expected = inputs.expected().unwrap();
        let lse: Vec<f32> = expected.lse.iter().map(|&x| x as f32).collect();
        let out = HostTensor { dtype: bakewell::DType::E4m3, shape: vec![5, 2, 128], bytes: expected.model.clone() };
        let outputs = Outputs(vec![("out", out), ("lse", HostTensor::of(&[5, 2], &lse))]);
        (inputs, outputs, expected)
    }

    fn fails(output: &str, change: impl Fn(&mut [u8])) -> String {
        let (inputs, mut outputs, expected) = case();
        change(&mut outputs.get_mut(output).unwrap().bytes);
        let judgement = judge(&inputs, &outputs, &expected, Gates::of(None, Family::Paged, 1)).unwrap();
        judgement.failure.expect("the comparison notices")
    }

    #[test]
    fn the_model_passes() {
        let (inputs, outputs, expected) = case();
        let judgement = judge(&inputs, &outputs, &expected, Gates::of(None, Family::Paged, 1)).unwrap();
        assert_eq!((judgement.failure, judgement.equal), (None, 1.0));
    }

    #[test]
    fn corrupted_outputs_fail() {
        assert!(fails("out", |bytes| bytes.fill(0x38)).contains("sees nothing"));
        assert!(fails("out", |bytes| bytes[0..128].fill(0x7F)).contains("times what is allowed"), "NaN");
        // A few bytes by one code, which only the model notices.
        let failure = fails("out", |bytes| bytes.iter_mut().take(272).step_by(8).for_each(|byte| *byte ^= 1));
        assert!(failure.contains("equal the model's"), "{failure}");
        let minus_zero = fails("out", |bytes| bytes[3 * 256] = 0x80);
        assert!(minus_zero.contains("row [3, 0] sees nothing"), "minus zero is not a zero byte: {minus_zero}");
        let nine = fails("lse", |bytes| bytes[0..4].copy_from_slice(&9f32.to_le_bytes()));
        assert!(nine.contains("lse at [0, 0]"), "{nine}");
        let zero = fails("lse", |bytes| bytes[24..28].fill(0));
        assert!(zero.contains("lse at [3, 0]: 0 for -inf"), "{zero}");
    }
}
