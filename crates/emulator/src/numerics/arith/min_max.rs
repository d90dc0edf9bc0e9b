//! The smaller and the larger number, with the rules for NaN, signs and magnitudes.

use super::half::{Half, HalfType};
use super::{NAN_F32, flush, propagate};

/// Modifiers of `min` and `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MinMax {
    /// The larger instead of the smaller.
    pub max: bool,
    /// `.NaN`: a NaN operand gives the canonical NaN instead of being ignored.
    pub nan: bool,
    /// `.abs`: compare and return magnitudes.
    pub abs: bool,
    /// `.xorsign.abs`: magnitudes, with the exclusive or of both signs.
    pub xorsign: bool,
    /// `.ftz`.
    pub ftz: bool,
}

/// `min` or `max` of two `f64`.
#[inline(always)]
pub fn min_max_f64(a: f64, b: f64, how: MinMax) -> f64 {
    let sign = if how.xorsign { (a.to_bits() ^ b.to_bits()) & 1 << 63 } else { 0 };
    let (a, b) = if how.abs || how.xorsign { (a.abs(), b.abs()) } else { (a, b) };
    let (any, both) = (a.is_nan() | b.is_nan(), a.is_nan() & b.is_nan());
    // Equal operands differ at most in the sign of zero: -0 is below +0.
    let equal = if how.max { a.to_bits() & b.to_bits() } else { a.to_bits() | b.to_bits() };
    let take_a = (if how.max { a > b } else { a < b }) | b.is_nan();
    let result = if a == b {
        equal
    } else if take_a {
        a.to_bits()
    } else {
        b.to_bits()
    };
    if both | (how.nan & any) {
        return propagate(&[b, a], b);
    }
    f64::from_bits(result | sign)
}

/// `min` or `max` of two `f32`.
#[inline(always)]
pub fn min_max(a: f32, b: f32, how: MinMax) -> f32 {
    let (a, b) = if how.ftz { (flush(a), flush(b)) } else { (a, b) };
    let sign = if how.xorsign { (a.to_bits() ^ b.to_bits()) & 1 << 31 } else { 0 };
    let (a, b) = if how.abs || how.xorsign { (a.abs(), b.abs()) } else { (a, b) };
    let (any, both) = (a.is_nan() | b.is_nan(), a.is_nan() & b.is_nan());
    let equal = if how.max { a.to_bits() & b.to_bits() } else { a.to_bits() | b.to_bits() };
    let take_a = (if how.max { a > b } else { a < b }) | b.is_nan();
    let result = if a == b {
        equal
    } else if take_a {
        a.to_bits()
    } else {
        b.to_bits()
    };
    if both | (how.nan & any) { NAN_F32 } else { f32::from_bits(result | sign) }
}

/// Three-operand `min` or `max` of `f32` (sm_100 and later).
#[inline(always)]
pub fn min_max3(a: f32, b: f32, c: f32, how: MinMax) -> f32 {
    min_max(min_max(a, b, how), c, how)
}

/// `min` or `max` of two 16-bit values.
#[inline(always)]
pub fn min_max_half(kind: HalfType, a: u16, b: u16, how: MinMax) -> u16 {
    let (a, b) = if how.ftz { (kind.flush(a), kind.flush(b)) } else { (a, b) };
    let plain = MinMax { ftz: false, xorsign: false, abs: how.abs || how.xorsign, ..how };
    let result = kind.output(f64::from(min_max(kind.decode(a), kind.decode(b), plain)), Half::default());
    // The signs are those of the codes, also of a NaN.
    let sign = if how.xorsign && !kind.format().is_nan(result.into()) { (a ^ b) & 0x8000 } else { 0 };
    result | sign
}
