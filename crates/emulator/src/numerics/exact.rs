//! Finite values as integer significand times a power of two: the slow, obviously exact path behind [`super::arith`].
//!
//! Every operation is exact, or keeps a sticky lowest bit far below any target precision, so that one later rounding in
//! any direction is the correctly rounded result.

use super::format::Rounding;

/// A finite value `(-1)^negative * significand * 2^exponent`. The lowest significand bit may stand for discarded
/// nonzero bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exact {
    pub(super) negative: bool,
    pub(super) exponent: i32,
    pub(super) significand: u128,
}

/// Position of the leading bit after [`Exact::normalised`]: leaves room for one carry, and at least 18 bits below a
/// product of two 53-bit significands.
const TOP: u32 = 124;

impl Exact {
    /// From a finite `f64`.
    pub(super) fn from_f64(x: f64) -> Self {
        let bits = x.to_bits();
        let biased = ((bits >> 52) & 0x7ff) as i32;
        let fraction = bits & ((1 << 52) - 1);
        let (exponent, significand) =
            if biased == 0 { (-1074, fraction) } else { (biased - 1075, fraction | (1 << 52)) };
        Self { negative: bits >> 63 != 0, exponent, significand: u128::from(significand) }
    }

    /// From an integer.
    pub(super) fn from_integer(negative: bool, magnitude: u64) -> Self {
        Self { negative, exponent: 0, significand: u128::from(magnitude) }
    }

    fn normalised(self) -> Self {
        let shift = 127 - TOP;
        let leading = self.significand.leading_zeros();
        if self.significand == 0 || leading < shift {
            return self;
        }
        let left = leading - shift;
        Self { significand: self.significand << left, exponent: self.exponent - left as i32, ..self }
    }

    /// Exact product of two significands of at most 64 bits.
    pub(super) fn times(self, other: Self) -> Self {
        Self {
            negative: self.negative != other.negative,
            exponent: self.exponent + other.exponent,
            significand: self.significand * other.significand,
        }
    }

    /// Sum; an exact zero result has `significand == 0` and its sign is left to the caller.
    pub(super) fn plus(self, other: Self) -> Self {
        if self.significand == 0 {
            return other;
        }
        if other.significand == 0 {
            return self;
        }
        let (a, b) = (self.normalised(), other.normalised());
        let (large, small) = if a.exponent >= b.exponent { (a, b) } else { (b, a) };
        let distance = (large.exponent - small.exponent) as u32;
        let aligned = if distance >= 127 {
            1
        } else {
            let lost = small.significand & ((1u128 << distance) - 1);
            (small.significand >> distance) | u128::from(lost != 0)
        };
        let (negative, significand) = if large.negative == small.negative {
            (large.negative, large.significand + aligned)
        } else if large.significand >= aligned {
            (large.negative, large.significand - aligned)
        } else {
            (small.negative, aligned - large.significand)
        };
        Self { negative, exponent: large.exponent, significand }
    }

    /// Quotient with a sticky bit; the divisor is not zero and both significands have at most 53 bits.
    pub(super) fn over(self, divisor: Self) -> Self {
        let left = 70;
        let numerator = self.significand << left;
        let sticky = u128::from(!numerator.is_multiple_of(divisor.significand));
        Self {
            negative: self.negative != divisor.negative,
            exponent: self.exponent - divisor.exponent - left,
            significand: (numerator / divisor.significand) | sticky,
        }
    }

    /// Square root with a sticky bit, of a value that is not negative.
    pub(super) fn square_root(self) -> Self {
        let a = self.normalised();
        let (exponent, significand) =
            if a.exponent % 2 == 0 { (a.exponent, a.significand) } else { (a.exponent + 1, a.significand >> 1) };
        let root = significand.isqrt();
        let sticky = u128::from(root * root != significand);
        // One more bit, so that the sticky bit is below the root and cannot spoil an exact one.
        Self { negative: false, exponent: exponent / 2 - 1, significand: (root << 1) | sticky }
    }

    /// Rounds once to a binary format of `mantissa` stored bits and the given exponent width; gives the bit pattern
    /// without sign handling surprises: zero keeps the sign.
    pub(super) fn pack(self, exponent_bits: u32, mantissa: u32, rounding: Rounding) -> u64 {
        let bias = (1i32 << (exponent_bits - 1)) - 1;
        let emin = 1 - bias;
        let sign = u64::from(self.negative) << (exponent_bits + mantissa);
        if self.significand == 0 {
            return sign;
        }
        let leading = self.exponent + 127 - self.significand.leading_zeros() as i32;
        let unit = leading.max(emin) - mantissa as i32;
        let shift = unit - self.exponent;
        let quotient = if shift <= 0 {
            (self.significand as u64) << -shift
        } else if shift > 126 {
            u64::from(rounding.increments(self.negative, false, 1, 2))
        } else {
            let discarded = self.significand & ((1 << shift) - 1);
            let quotient = (self.significand >> shift) as u64;
            quotient + u64::from(rounding.increments(self.negative, quotient & 1 != 0, discarded, 1 << (shift - 1)))
        };
        let infinity = ((1u64 << exponent_bits) - 1) << mantissa;
        let code = (((leading.max(emin) - emin) as u64) << mantissa) + quotient;
        sign | if code < infinity {
            code
        } else if rounding.overflow_stays_finite(self.negative) {
            infinity - 1
        } else {
            infinity
        }
    }

    pub(super) fn to_f64(self, rounding: Rounding) -> f64 {
        f64::from_bits(self.pack(11, 52, rounding))
    }

    pub(super) fn to_f32(self, rounding: Rounding) -> f32 {
        f32::from_bits(self.pack(8, 23, rounding) as u32)
    }
}
