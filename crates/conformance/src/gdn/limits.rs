//! How far outputs and gradients may be from what is expected, and why.
//!
//! Two ratios per tensor: `rms(error) / rms(expected)` and `max |error| / max |expected|`. Chunked kernels round
//! operands of products to bf16 (the inverse of a chunk, states, `v_new`, decayed copies of them); emulating exactly
//! those roundings over the goldens and held-back cases gave the worst ratios below, and the limits lie a quarter to
//! twice above them. The worst cases have little decay, correlated keys and `beta` near 1.
//!
//! | | o | ht | dq | dk | dv | dg | dbeta | dh0 |
//! |---|---|---|---|---|---|---|---|---|
//! | worst emulated rms | 7.9e-3 | 4.0e-3 | 4.9e-3 | 6.6e-3 | 8.2e-3 | 1.1e-2 | 1.0e-2 | 4.2e-3 |
//! | limit of rms | 1.0e-2 | 6e-3 | 8e-3 | 9e-3 | 1.1e-2 | 1.6e-2 | 1.5e-2 | 6e-3 |
//!
//! The largest emulated max-ratio is 1.7e-2; its limit is 3e-2. The reference rounds each result once, by up to
//! 2^-8 = 3.9e-3 to bf16 and 2^-24 to f32; scale and expected values in files were rounded to f32 as well.
//!
//! A `dbeta` is a sum of 128 products of two rounded factors. Where it is far smaller than they are, the
//! roundings show; a larger tensor averages that out. One of fewer than 16 elements is held against the norm of its
//! products instead: factors rounded by up to 2^-8 leave up to 2^-8 sqrt(2) of that norm, as a random sum.
//!
//! `dg` is judged per value head as well, against the size of that head's own gradient, so that a head of strong decay
//! cannot hide behind one of weak decay.

use bakewell::{Arch, DType, Result};

use super::inputs::DBETA_TERMS;
use super::{Expected, Inputs};
use crate::{HostTensor, Outputs};

/// Limits of one tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Largest rms of the error over the rms of what is expected.
    pub rms: f64,
    /// Largest error over the largest magnitude expected.
    pub max: f64,
}

impl Limits {
    /// Limits of an output on an architecture; of the reference without.
    pub fn of(output: &str, dtype: DType, arch: Option<Arch>) -> Limits {
        if arch.is_none() {
            let unit = if dtype == DType::Bf16 { 4.0e-3 } else { 2.4e-7 };
            return Limits { rms: unit, max: unit };
        }
        let rms = match output {
            "ht" | "dh0" => 6e-3,
            "dq" => 8e-3,
            "dk" => 9e-3,
            "o" => 1e-2,
            "dv" => 1.1e-2,
            "dbeta" => 1.5e-2,
            _ => 1.6e-2,
        };
        Limits { rms, max: 3e-2 }
    }
}

/// The two ratios of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratios {
    /// Of root mean squares.
    pub rms: f64,
    /// Of maxima.
    pub max: f64,
}

impl Ratios {
    /// Ratios of a result; infinite where it is NaN or infinite, or not zero where zero is expected.
    pub fn of(got: &[f64], want: &[f64]) -> Ratios {
        let errors = || got.iter().zip(want).map(|(got, want)| got - want);
        if errors().any(|error| !error.is_finite()) {
            return Ratios { rms: f64::INFINITY, max: f64::INFINITY };
        }
        let largest = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, |largest: f64, x| largest.max(x.abs()));
        let (error, peak) = (largest(&mut errors()), largest(&mut want.iter().copied()));
        if error == 0.0 {
            return Ratios { rms: 0.0, max: 0.0 };
        }
        // Relative to the peak, so that squares of tiny gradients do not underflow.
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| (x / peak).powi(2)).sum::<f64>().sqrt();
        Ratios { rms: norm(&mut errors()) / norm(&mut want.iter().copied()), max: error / peak }
    }

    fn within(&self, limits: Limits) -> bool {
        self.rms <= limits.rms && self.max <= limits.max
    }
}

/// What the comparison of all outputs says.
#[derive(Clone, Debug, Default)]
pub struct Judgement {
    /// Ratios by output.
    pub ratios: Vec<(&'static str, Ratios)>,
    /// The first output beyond its limits, or missing.
    pub failure: Option<String>,
}

/// Compares every expected output.
///
/// # Errors
/// [`bakewell::Error::Argument`] for an output whose elements are no numbers.
pub fn judge(inputs: &Inputs, outputs: &Outputs, expected: &Expected, arch: Option<Arch>) -> Result<Judgement> {
    let mut judgement = Judgement::default();
    let mut fail = |failure: String| {
        judgement.failure.get_or_insert(failure);
    };
    for name in super::inputs::OUTPUTS {
        let (want, tensor) = match (expected.get(name), outputs.get(name)) {
            (Some(want), Some(tensor)) => (want, tensor),
            (Some(_), None) => {
                fail(format!("{name}: missing"));
                continue;
            }
            _ => continue,
        };
        let got = tensor.to_f64()?;
        if got.len() != want.len() {
            fail(format!("{name}: {} elements for {}", got.len(), want.len()));
            continue;
        }
        let limits = Limits::of(name, tensor.dtype, arch);
        let ratios = Ratios::of(&got, want);
        judgement.ratios.push((name, ratios));
        if !(ratios.within(limits) || vanishes(&got, want) || name == "dbeta" && cancels(inputs, &got, want)?) {
            fail(format!("{name}: {}", beyond(ratios, limits, tensor, &got, want)));
        }
        if name == "dg" {
            for head in 0..inputs.problem.value_heads as usize {
                let of_head = |values: &[f64]| -> Vec<f64> {
                    values.iter().skip(head).step_by(inputs.problem.value_heads as usize).copied().collect()
                };
                let (got, want) = (of_head(&got), of_head(want));
                let ratios = Ratios::of(&got, &want);
                if !ratios.within(limits) && !vanishes(&got, &want) {
                    fail(format!("dg of value head {head}: {}", beyond(ratios, limits, tensor, &got, &want)));
                }
            }
        }
    }
    Ok(judgement)
}

/// Whether the errors of `dbeta` are those of rounded factors, with respect to the norms of its products.
fn cancels(inputs: &Inputs, got: &[f64], want: &[f64]) -> Result<bool> {
    const FEW: usize = 16;
    const ROUNDED_FACTORS: f64 = std::f64::consts::SQRT_2 / 256.0;
    if got.len() >= FEW {
        return Ok(false);
    }
    let expected = inputs.expected()?;
    let terms = expected.get(DBETA_TERMS).map_or(&[][..], Vec::as_slice);
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let error = norm(&mut got.iter().zip(want).map(|(got, want)| got - want));
    Ok(error <= ROUNDED_FACTORS * norm(&mut terms.iter().copied()))
}

/// Whether everything is below what exponentials that flush to zero, and f32 sums of them, can represent.
fn vanishes(got: &[f64], want: &[f64]) -> bool {
    const SMALLEST: f64 = 1e-35;
    got.iter().chain(want).all(|x| x.abs() < SMALLEST)
}

fn beyond(ratios: Ratios, limits: Limits, tensor: &HostTensor, got: &[f64], want: &[f64]) -> String {
    let error = |i: &usize| (got[*i] - want[*i]).abs();
    let not_finite = (0..got.len()).find(|i| !error(i).is_finite());
    let worst = not_finite.or_else(|| (0..got.len()).max_by(|a, b| error(a).total_cmp(&error(b)))).unwrap_or(0);
    format!(
        "rms ratio {:.2e} (limit {:.2e}), max ratio {:.2e} (limit {:.2e}), worst element {worst} of {:?}: {} for {}",
        ratios.rms, limits.rms, ratios.max, limits.max, tensor.shape, got[worst], want[worst]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_about_errors_and_specials_never_pass() {
        let want = [1.0, -2.0, 2.0, 0.0];
        assert_eq!(Ratios::of(&want, &want), Ratios { rms: 0.0, max: 0.0 });
        let off = Ratios::of(&[1.0, -2.0, 2.0, 0.3], &want);
        assert!((off.rms - 0.1).abs() < 1e-12 && (off.max - 0.15).abs() < 1e-12, "{off:?}");
        let tiny = [1e-200, 2e-200];
        let off = Ratios::of(&[1e-200, 2.02e-200], &tiny);
        assert!((off.max - 0.01).abs() < 1e-9 && (off.rms - 0.02 / 5f64.sqrt()).abs() < 1e-9, "{off:?}");
        for wrong in [f64::NAN, f64::INFINITY] {
            assert_eq!(Ratios::of(&[1.0, -2.0, 2.0, wrong], &want).rms, f64::INFINITY);
        }
        assert!(!Ratios::of(&[1e-30], &[0.0]).within(Limits { rms: 1.0, max: 1.0 }), "zero is wanted exactly");
    }
}
