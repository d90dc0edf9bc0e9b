//! Comparison of a result with what it should be.

use std::fmt;

use bakewell::error::Property;
use bakewell::{Dims, Error, Result};

/// Share of the peak below which a value is too small for its relative error to mean anything.
const TINY: f64 = 1e-3;

/// What differs, and by how much.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Elements compared.
    pub elements: u64,
    /// Elements where one side is NaN or infinite and the other is not the same.
    pub special_mismatches: u64,
    /// The first of those.
    pub first_special: Option<Deviation>,
    /// Largest absolute error.
    pub max_absolute: f64,
    /// Largest relative error where the wanted value is not tiny against the peak.
    pub max_relative: f64,
    /// Norm of the error over the norm of what is wanted.
    pub relative_l2: f64,
    /// Largest finite magnitude wanted.
    pub peak: f64,
    /// Where the absolute error is largest; `None` when every element is exact.
    pub worst: Option<Deviation>,
}

/// One element that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Deviation {
    /// Its coordinates.
    pub index: Vec<u64>,
    /// As computed.
    pub got: f64,
    /// As wanted.
    pub want: f64,
}

/// What may differ. Both conditions must hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Largest relative L2 error; infinite to ask for nothing.
    pub relative_l2: f64,
    /// Largest absolute error ...
    pub absolute: f64,
    /// ... plus this share of the peak.
    pub of_peak: f64,
}

impl Tolerance {
    /// Nothing may differ.
    pub const EXACT: Tolerance = Tolerance { relative_l2: 0.0, absolute: 0.0, of_peak: 0.0 };
}

/// Compares element by element. Special values are matched by position first and take no part in the errors.
///
/// # Errors
/// [`Error::Argument`] when a side does not have the elements of `shape`.
pub fn compare(shape: &[u64], got: &[f64], want: &[f64]) -> Result<Comparison> {
    let elements = Dims::new(shape)?.product()?;
    for (side, len) in [("got", got.len()), ("want", want.len())] {
        if len as u64 != elements {
            return Err(Error::argument(side, Property::Shape, format!("the {elements} elements of {shape:?}"), len));
        }
    }
    let mut result = Comparison {
        elements,
        special_mismatches: 0,
        first_special: None,
        max_absolute: 0.0,
        max_relative: 0.0,
        relative_l2: 0.0,
        peak: want.iter().filter(|x| x.is_finite()).fold(0.0, |peak, x| peak.max(x.abs())),
        worst: None,
    };
    let (mut error_norm, mut want_norm) = (0.0, 0.0);
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let deviation = || Deviation { index: coordinates(shape, i as u64), got, want };
        if !(got.is_finite() && want.is_finite()) {
            if got != want && !(got.is_nan() && want.is_nan()) {
                result.special_mismatches += 1;
                result.first_special.get_or_insert_with(deviation);
            }
            continue;
        }
        let error = (got - want).abs();
        error_norm += error * error;
        want_norm += want * want;
        if error > result.max_absolute {
            result.max_absolute = error;
            result.worst = Some(deviation());
        }
        if want.abs() > TINY * result.peak {
            result.max_relative = result.max_relative.max(error / want.abs());
        }
    }
    if error_norm > 0.0 {
        result.relative_l2 = (error_norm / want_norm).sqrt();
    }
    Ok(result)
}

impl Comparison {
    /// Whether it is within a tolerance.
    ///
    /// # Errors
    /// A sentence that says which condition fails and where.
    pub fn verdict(&self, tolerance: &Tolerance) -> Result<(), String> {
        if let Some(special) = &self.first_special {
            return Err(format!("{} special values differ, first {special}", self.special_mismatches));
        }
        let worst = self.worst.as_ref().map(Deviation::to_string).unwrap_or_default();
        let allowed = tolerance.absolute + tolerance.of_peak * self.peak;
        if self.max_absolute > allowed {
            return Err(format!("absolute error {:.3e} above {allowed:.3e}, worst {worst}", self.max_absolute));
        }
        if self.relative_l2 > tolerance.relative_l2 {
            return Err(format!(
                "relative L2 error {:.3e} above {:.3e}, worst {worst}",
                self.relative_l2, tolerance.relative_l2
            ));
        }
        Ok(())
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "relative L2 {:.3e}, absolute {:.3e}, relative {:.3e}",
            self.relative_l2, self.max_absolute, self.max_relative
        )?;
        if let Some(worst) = &self.worst {
            write!(f, ", worst {worst}")?;
        }
        if let Some(special) = &self.first_special {
            write!(f, ", {} special values differ, first {special}", self.special_mismatches)?;
        }
        Ok(())
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:?}: {} for {}", self.index, self.got, self.want)
    }
}

/// Coordinates of the `i`-th element in row-major order.
fn coordinates(shape: &[u64], mut i: u64) -> Vec<u64> {
    let mut index = vec![0; shape.len()];
    for (index, &size) in index.iter_mut().zip(shape).rev() {
        *index = i % size;
        i /= size;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOSE: Tolerance = Tolerance { relative_l2: 1e-2, absolute: 0.0, of_peak: 1e-2 };

    #[test]
    fn errors_are_measured_and_located() {
        let result = compare(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.5, 6.0], &[1.0, 2.0, 3.0, 4.0, 5.0, -6.0]).unwrap();
        assert_eq!(result.worst, Some(Deviation { index: vec![1, 2], got: 6.0, want: -6.0 }));
        assert_eq!((result.max_absolute, result.max_relative, result.peak), (12.0, 2.0, 6.0));
        let norms = (0.25f64 + 144.0) / (1.0 + 4.0 + 9.0 + 16.0 + 25.0 + 36.0);
        assert!((result.relative_l2 - norms.sqrt()).abs() < 1e-15);
    }

    #[test]
    fn special_values_must_be_the_same_and_at_the_same_place() {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let verdict = |got: &[f64], want: &[f64]| compare(&[2], got, want).unwrap().verdict(&LOOSE);
        assert!(verdict(&[nan, inf], &[nan, inf]).is_ok());
        assert!(verdict(&[nan, 1.0], &[1.0, 1.0]).is_err());
        assert!(verdict(&[1.0, 1.0], &[nan, 1.0]).is_err());
        assert!(verdict(&[inf, 1.0], &[-inf, 1.0]).is_err());
        assert!(verdict(&[inf, 1.0], &[nan, 1.0]).is_err());
    }

    #[test]
    fn zeros_are_wanted_exactly() {
        let verdict = |got: f64| compare(&[1], &[got], &[0.0]).unwrap().verdict(&LOOSE);
        assert!(verdict(0.0).is_ok() && verdict(-0.0).is_ok());
        assert!(verdict(1e-30).is_err(), "nothing is relative to zero");
    }

    #[test]
    fn each_condition_fails_on_its_own() {
        let want = [1.0; 100];
        let mut got = want;
        got[7] = 1.02;
        let result = compare(&[100], &got, &want).unwrap();
        assert!(result.verdict(&LOOSE).unwrap_err().contains("absolute error"), "one element, small norm");
        let shifted = compare(&[100], &[1.005; 100], &want).unwrap();
        assert!(shifted.verdict(&LOOSE).is_ok());
        let strict = Tolerance { relative_l2: 1e-3, ..LOOSE };
        assert!(shifted.verdict(&strict).unwrap_err().contains("relative L2"), "every element, below the peak's share");
        assert!(shifted.verdict(&Tolerance::EXACT).is_err());
        assert!(compare(&[100], &want, &want).unwrap().verdict(&Tolerance::EXACT).is_ok());
    }

    #[test]
    fn sides_must_have_the_shape() {
        assert!(compare(&[3], &[1.0; 3], &[1.0; 2]).is_err());
        assert!(compare(&[2], &[1.0; 3], &[1.0; 2]).is_err());
        assert_eq!(compare(&[0, 4], &[], &[]).unwrap().elements, 0);
    }
}
