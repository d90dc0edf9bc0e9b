//! Arithmetic that the ISA rounds once: `f32`, `f64`, `f16` and `bf16` in every rounding mode, and the min/max rules.
//!
//! Round-to-nearest uses the processor. The other modes of `f32` and all 16-bit operations go through an `f64` sum
//! rounded *to odd*, which keeps at least two bits below the target and therefore makes the final rounding the only
//! one. Directed `f64` goes through `exact`. NaN results are canonical up to `f32` (ISA notes, section 7.3); `f64`
//! operations pass an operand's NaN on, made quiet.

mod half;
mod min_max;

use super::exact::Exact;
use super::format::{F32, Narrow, Rounding};

pub use half::{Half, HalfType};
pub use min_max::{MinMax, min_max, min_max_f64, min_max_half, min_max3};

/// The NaN every `f32` operation returns.
pub const NAN_F32: f32 = f32::from_bits(0x7fff_ffff);

/// The NaN of approximate `f64` functions.
pub const NAN_F64: f64 = f64::from_bits(0x7fff_ffff_ffff_ffff);

/// The NaN of `f64` operations that are invalid though no operand is a NaN.
const INVALID_F64: f64 = f64::from_bits(0xfff8_0000_0000_0000);

/// `.ftz`: a subnormal becomes zero of the same sign.
#[inline(always)]
pub fn flush(x: f32) -> f32 {
    if x.to_bits() & 0x7f80_0000 == 0 { f32::from_bits(x.to_bits() & 0x8000_0000) } else { x }
}

/// `.sat`: clamps to [0, 1]; NaN and -0 give +0.
#[inline(always)]
pub fn saturate(x: f32) -> f32 {
    if x > 0.0 { x.min(1.0) } else { 0.0 }
}

/// `.sat` for `f64`.
#[inline(always)]
pub fn saturate_f64(x: f64) -> f64 {
    if x > 0.0 { x.min(1.0) } else { 0.0 }
}

/// Replaces any NaN by the canonical one. The test is one of integers: compilers may take NaN values for each other.
#[inline(always)]
pub fn canonical(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { NAN_F32.to_bits() } else { bits })
}

/// Replaces any NaN by the canonical one.
#[inline(always)]
pub fn canonical_f64(x: f64) -> f64 {
    let bits = x.to_bits();
    f64::from_bits(if bits & !(1 << 63) > 0x7ff << 52 { NAN_F64.to_bits() } else { bits })
}

/// A quiet NaN with the sign and payload of a NaN; other values stay.
#[inline(always)]
pub fn quiet_f64(bits: u64) -> u64 {
    if bits & !(1 << 63) > 0x7ff << 52 { bits | 1 << 51 } else { bits }
}

/// The first NaN among the operands, quiet; else `result`, whose NaN then means an invalid operation.
#[inline(always)]
fn propagate(operands: &[f64], result: f64) -> f64 {
    match operands.iter().find(|x| x.is_nan()) {
        Some(nan) => f64::from_bits(quiet_f64(nan.to_bits())),
        None if result.is_nan() => INVALID_F64,
        None => result,
    }
}

/// `.ftz` decides before rounding: a result whose exact magnitude is below the smallest normal number is zero even
/// where it would round up to that number. `exact` is asked only then.
#[inline(always)]
pub fn flush_exactly(x: f32, exact: impl FnOnce() -> bool) -> f32 {
    if x.abs() == f32::MIN_POSITIVE && exact() { f32::from_bits(x.to_bits() & 0x8000_0000) } else { flush(x) }
}

/// Whether the exact product is subnormal.
#[inline(always)]
pub fn product_is_subnormal(a: f32, b: f32) -> bool {
    (f64::from(a) * f64::from(b)).abs() < f64::from(f32::MIN_POSITIVE)
}

/// Whether the exact quotient is subnormal.
#[inline(always)]
pub fn quotient_is_subnormal(a: f32, b: f32) -> bool {
    f64::from(a).abs() < f64::from(f32::MIN_POSITIVE) * f64::from(b).abs()
}

/// Whether the exact `a * b + c` is subnormal.
#[inline(always)]
pub fn fma_is_subnormal(a: f32, b: f32, c: f32) -> bool {
    add_to_odd(f64::from(a) * f64::from(b), f64::from(c)).abs() < f64::from(f32::MIN_POSITIVE)
}

/// `a + b` rounded to odd, without branches. Finite operands need exponents that leave room for the error term (they
/// came from `f32` or products of `f32`); infinities, NaN and exact sums, zeros included, are those of `a + b`.
#[inline(always)]
fn add_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let b_part = sum - a;
    let error = (a - (sum - b_part)) + (b - b_part);
    let bits = sum.to_bits();
    // An even, inexact sum moves to its odd neighbour on the side of the error. NaN errors compare false.
    let inexact = (error < 0.0) | (error > 0.0);
    let away = 1u64.wrapping_sub((bits ^ error.to_bits()) >> 63 << 1);
    let even = !bits & 1;
    f64::from_bits(bits.wrapping_add(if inexact { away & even.wrapping_neg() } else { 0 }))
}

/// Sign of an exact zero sum: kept when both terms agree, else negative only when rounding down.
#[inline(always)]
fn zero_sum(a_negative: bool, b_negative: bool, rounding: Rounding) -> f32 {
    let negative = if a_negative == b_negative { a_negative } else { rounding == Rounding::Down };
    if negative { -0.0 } else { 0.0 }
}

#[inline(always)]
fn to_f32(x: f64, rounding: Rounding) -> f32 {
    if rounding == Rounding::NearestEven {
        x as f32
    } else {
        f32::from_bits(F32.narrow(x, Narrow { rounding, ..Narrow::RN }))
    }
}

/// `a + b` of `f32`.
#[inline(always)]
pub fn add(a: f32, b: f32, rounding: Rounding) -> f32 {
    if rounding == Rounding::NearestEven || !(a.is_finite() && b.is_finite()) {
        return canonical(a + b);
    }
    let sum = add_to_odd(f64::from(a), f64::from(b));
    if sum == 0.0 {
        return zero_sum(a.is_sign_negative(), b.is_sign_negative(), rounding);
    }
    to_f32(sum, rounding)
}

/// `a * b` of `f32`.
#[inline(always)]
pub fn mul(a: f32, b: f32, rounding: Rounding) -> f32 {
    if rounding == Rounding::NearestEven || !(a.is_finite() && b.is_finite()) {
        return canonical(a * b);
    }
    to_f32(f64::from(a) * f64::from(b), rounding)
}

/// `a * b + c` of `f32` with one rounding.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32, rounding: Rounding) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    if rounding == Rounding::NearestEven {
        return canonical(add_to_odd(product, c) as f32);
    }
    let sum = product + c;
    if !sum.is_finite() {
        return canonical(sum as f32);
    }
    if sum == 0.0 {
        return zero_sum(product.is_sign_negative(), c.is_sign_negative(), rounding);
    }
    to_f32(add_to_odd(product, c), rounding)
}

/// `a / b` of `f32`.
pub fn div(a: f32, b: f32, rounding: Rounding) -> f32 {
    if rounding == Rounding::NearestEven || !(a.is_finite() && b.is_finite()) || b == 0.0 {
        return canonical(a / b);
    }
    Exact::from_f64(f64::from(a)).over(Exact::from_f64(f64::from(b))).to_f32(rounding)
}

/// Square root of an `f32`; -0 stays -0, negative values give NaN.
pub fn sqrt(a: f32, rounding: Rounding) -> f32 {
    if rounding == Rounding::NearestEven || !a.is_finite() || a <= 0.0 {
        return canonical(a.sqrt());
    }
    Exact::from_f64(f64::from(a)).square_root().to_f32(rounding)
}

/// `a - b` of `f64`. A NaN keeps its sign.
pub fn sub_f64(a: f64, b: f64, rounding: Rounding) -> f64 {
    add_f64(a, if b.is_nan() { b } else { -b }, rounding)
}

/// `a + b` of `f64`.
pub fn add_f64(a: f64, b: f64, rounding: Rounding) -> f64 {
    if rounding == Rounding::NearestEven || !(a.is_finite() && b.is_finite()) {
        return propagate(&[b, a], a + b);
    }
    finish_sum(Exact::from_f64(a).plus(Exact::from_f64(b)), a, b, rounding)
}

fn finish_sum(sum: Exact, a: f64, b: f64, rounding: Rounding) -> f64 {
    if sum.significand == 0 {
        return f64::from(zero_sum(a.is_sign_negative(), b.is_sign_negative(), rounding));
    }
    sum.to_f64(rounding)
}

/// `a * b` of `f64`.
pub fn mul_f64(a: f64, b: f64, rounding: Rounding) -> f64 {
    if rounding == Rounding::NearestEven || !(a.is_finite() && b.is_finite()) {
        return propagate(&[b, a], a * b);
    }
    Exact::from_f64(a).times(Exact::from_f64(b)).to_f64(rounding)
}

/// `a * b + c` of `f64` with one rounding.
pub fn fma_f64(a: f64, b: f64, c: f64, rounding: Rounding) -> f64 {
    if rounding == Rounding::NearestEven || !(a.is_finite() && b.is_finite() && c.is_finite()) {
        return propagate(&[b, c, a], a.mul_add(b, c));
    }
    let product = Exact::from_f64(a).times(Exact::from_f64(b));
    let sign = if product.negative { -0.0 } else { 0.0 };
    finish_sum(product.plus(Exact::from_f64(c)), sign, c, rounding)
}

/// `a / b` of `f64`.
pub fn div_f64(a: f64, b: f64, rounding: Rounding) -> f64 {
    if rounding == Rounding::NearestEven || !(a.is_finite() && b.is_finite()) || b == 0.0 {
        return propagate(&[a, b], a / b);
    }
    let mut divisor = Exact::from_f64(b);
    let mut dividend = Exact::from_f64(a);
    for value in [&mut divisor, &mut dividend] {
        // Subnormals: the quotient needs a full-width divisor and dividend for 53 bits and a sticky one.
        let left = (value.significand.leading_zeros() - 75).min(52);
        value.significand <<= left;
        value.exponent -= left as i32;
    }
    dividend.over(divisor).to_f64(rounding)
}

/// Square root of an `f64`.
pub fn sqrt_f64(a: f64, rounding: Rounding) -> f64 {
    if rounding == Rounding::NearestEven || !a.is_finite() || a <= 0.0 {
        return propagate(&[a], a.sqrt());
    }
    Exact::from_f64(a).square_root().to_f64(rounding)
}

#[cfg(test)]
mod tests;
