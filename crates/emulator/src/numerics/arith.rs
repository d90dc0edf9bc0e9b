//! Arithmetic that the ISA rounds once: `f32`, `f64`, `f16` and `bf16` in every rounding mode, and the min/max rules.
//!
//! Round-to-nearest uses the processor. The other modes of `f32` and all 16-bit operations go through an `f64` sum rounded *to
//! odd*, which keeps at least two bits below the target and therefore makes the final rounding the only one. Directed `f64`
//! goes through `exact`. NaN results are canonical up to `f32` (ISA notes, section 7.3); `f64` operations pass an
//! operand's NaN on, made quiet.

use super::exact::Exact;
use super::format::{BF16, F16, F32, Format, Narrow, Rounding, pow2};

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

/// `.ftz` decides before rounding: a result whose exact magnitude is below the smallest normal number is zero even where it
/// would round up to that number. `exact` is asked only then.
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

/// `a + b` rounded to odd, without branches. Finite operands need exponents that leave room for the error term (they came from
/// `f32` or products of `f32`); infinities, NaN and exact sums, zeros included, are those of `a + b`.
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

/// A 16-bit operation's modifiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Half {
    /// `.ftz`, f16 only: subnormal inputs and results become zero.
    pub ftz: bool,
    /// `.sat`: clamp the result to [0, 1].
    pub sat: bool,
    /// `.relu`: clamp negative results to zero; NaN stays.
    pub relu: bool,
}

/// A 16-bit format as an operand type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HalfType {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl HalfType {
    /// The format.
    pub const fn format(self) -> Format {
        match self {
            Self::F16 => F16,
            Self::Bf16 => BF16,
        }
    }

    /// Exact value of a code.
    #[inline(always)]
    pub fn decode(self, code: u16) -> f32 {
        match self {
            Self::F16 => super::format::decode_f16(code),
            Self::Bf16 => super::format::decode_bf16(code),
        }
    }

    /// `.ftz`: a subnormal becomes zero of the same sign.
    #[inline(always)]
    pub fn flush(self, code: u16) -> u16 {
        let exponent = match self {
            Self::F16 => 0x7c00,
            Self::Bf16 => 0x7f80,
        };
        if code & exponent == 0 { code & 0x8000 } else { code }
    }

    #[inline(always)]
    fn input(self, code: u16, how: Half) -> f64 {
        f64::from(self.decode(if how.ftz { self.flush(code) } else { code }))
    }

    #[inline(always)]
    fn output(self, x: f64, how: Half) -> u16 {
        // `.ftz` decides before rounding.
        let tiny = how.ftz && x.abs() < f64::from(pow2(self.format().min_exponent()));
        let x = if tiny { 0f64.copysign(x) } else { x };
        let code = match self {
            Self::F16 => F16.narrow(x, Narrow::RN),
            Self::Bf16 => BF16.narrow(x, Narrow::RN),
        } as u16;
        if how.sat {
            let one = self.format().narrow(1.0, Narrow::RN) as u16;
            return if code > 0x8000 - 1 || self.format().is_nan(u32::from(code)) { 0 } else { code.min(one) };
        }
        if how.relu && code & 0x8000 != 0 { 0 } else { code }
    }

    /// `a + b`, rounded once to nearest even.
    #[inline(always)]
    pub fn add(self, a: u16, b: u16, how: Half) -> u16 {
        self.sum(self.input(a, how), self.input(b, how), how)
    }

    /// `a - b`, rounded once to nearest even.
    #[inline(always)]
    pub fn sub(self, a: u16, b: u16, how: Half) -> u16 {
        self.sum(self.input(a, how), -self.input(b, how), how)
    }

    /// `a * b`, rounded once to nearest even.
    #[inline(always)]
    pub fn mul(self, a: u16, b: u16, how: Half) -> u16 {
        self.output(self.input(a, how) * self.input(b, how), how)
    }

    /// `a * b + c`, rounded once to nearest even.
    #[inline(always)]
    pub fn fma(self, a: u16, b: u16, c: u16, how: Half) -> u16 {
        self.sum(self.input(a, how) * self.input(b, how), self.input(c, how), how)
    }

    #[inline(always)]
    fn sum(self, a: f64, b: f64, how: Half) -> u16 {
        self.output(add_to_odd(a, b), how)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    const EDGES: [u32; 22] = [
        0,
        1,
        2,
        0x007f_ffff,
        0x0080_0000,
        0x0080_0001,
        0x3300_0000,
        0x3380_0000,
        0x3f00_0000,
        0x3f7f_ffff,
        0x3f80_0000,
        0x3f80_0001,
        0x4000_0000,
        0x4b80_0000,
        0x4b80_0001,
        0x5f80_0000,
        0x7f00_0000,
        0x7f7f_fffe,
        0x7f7f_ffff,
        0x7f80_0000,
        0x7fc0_0000,
        0x1f80_0001,
    ];

    fn edges() -> impl Iterator<Item = f32> + Clone {
        EDGES.into_iter().flat_map(|bits| [f32::from_bits(bits), f32::from_bits(bits | 1 << 31)])
    }

    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || (a.is_nan() && b.to_bits() == 0x7fff_ffff)
    }

    const DIRECTED: [Rounding; 3] = [Rounding::TowardZero, Rounding::Down, Rounding::Up];

    #[test]
    fn fma_to_nearest_matches_the_processor() {
        for a in edges() {
            for b in edges() {
                for c in edges() {
                    let ours = fma(a, b, c, Rounding::NearestEven);
                    assert!(same(a.mul_add(b, c), ours), "{a:e} * {b:e} + {c:e}: {ours:e}");
                }
            }
        }
    }

    /// Integer arithmetic and the round-to-odd path are independent of each other.
    #[test]
    fn directed_f32_matches_integer_arithmetic() {
        for a in edges().filter(|x| x.is_finite()) {
            for b in edges().filter(|x| x.is_finite()) {
                for rounding in DIRECTED {
                    let (x, y) = (Exact::from_f64(f64::from(a)), Exact::from_f64(f64::from(b)));
                    let sum = x.plus(y);
                    if sum.significand != 0 {
                        assert!(same(add(a, b, rounding), sum.to_f32(rounding)), "{a:e} + {b:e} {rounding:?}");
                    }
                    assert!(same(mul(a, b, rounding), x.times(y).to_f32(rounding)), "{a:e} * {b:e} {rounding:?}");
                    for c in edges().filter(|x| x.is_finite()) {
                        let sum = x.times(y).plus(Exact::from_f64(f64::from(c)));
                        if sum.significand != 0 {
                            assert!(
                                same(fma(a, b, c, rounding), sum.to_f32(rounding)),
                                "{a:e} {b:e} {c:e} {rounding:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn integer_arithmetic_rounds_to_nearest_like_the_processor() {
        let rn = Rounding::NearestEven;
        let f64s = [
            0.0,
            1.0,
            -1.0,
            0.1,
            1e300,
            -1e300,
            1e-300,
            5e-324,
            1.5e-320,
            f64::MAX,
            f64::MIN_POSITIVE,
            3.0,
            1e16,
            1.0 + f64::EPSILON,
        ];
        for a in f64s {
            for b in f64s {
                let (x, y) = (Exact::from_f64(a), Exact::from_f64(b));
                if a + b != 0.0 {
                    assert_eq!(x.plus(y).to_f64(rn).to_bits(), (a + b).to_bits(), "{a:e} + {b:e}");
                }
                assert_eq!(x.times(y).to_f64(rn).to_bits(), (a * b).to_bits(), "{a:e} * {b:e}");
                if b != 0.0 {
                    assert_eq!(div_f64_exactly(a, b), (a / b).to_bits(), "{a:e} / {b:e}");
                }
                for c in f64s {
                    if a.mul_add(b, c) != 0.0 {
                        let ours = x.times(y).plus(Exact::from_f64(c)).to_f64(rn);
                        assert_eq!(ours.to_bits(), a.mul_add(b, c).to_bits(), "{a:e} * {b:e} + {c:e}");
                    }
                }
            }
            if a > 0.0 {
                assert_eq!(Exact::from_f64(a).square_root().to_f64(rn).to_bits(), a.sqrt().to_bits(), "sqrt {a:e}");
            }
        }
    }

    /// `div_f64` bypasses the integer path for round-to-nearest; up and down bracket the nearest result.
    fn div_f64_exactly(a: f64, b: f64) -> u64 {
        let (down, up) = (div_f64(a, b, Rounding::Down), div_f64(a, b, Rounding::Up));
        let nearest = a / b;
        assert!(down <= nearest && nearest <= up, "{a:e} / {b:e}: {down:e} {nearest:e} {up:e}");
        assert!(down == up || up.to_bits().abs_diff(down.to_bits()) == 1 || down == 0.0 || up == 0.0);
        if down.to_bits() == nearest.to_bits() { down.to_bits() } else { up.to_bits() }
    }

    #[test]
    fn directed_division_and_root() {
        assert_eq!(div(1.0, 3.0, Rounding::Down).to_bits(), 0x3eaa_aaaa);
        assert_eq!(div(1.0, 3.0, Rounding::Up).to_bits(), 0x3eaa_aaab);
        assert_eq!(div(-1.0, 3.0, Rounding::TowardZero).to_bits(), 0xbeaa_aaaa);
        assert_eq!(div(6.0, 3.0, Rounding::Up), 2.0);
        assert_eq!(div(1.0, 0.0, Rounding::Up), f32::INFINITY);
        assert_eq!(sqrt(4.0, Rounding::Up), 2.0);
        assert_eq!(sqrt(2.0, Rounding::Down).to_bits(), 0x3fb5_04f3);
        assert_eq!(sqrt(2.0, Rounding::Up).to_bits(), 0x3fb5_04f4);
        assert_eq!(sqrt(-0.0, Rounding::Up).to_bits(), 0x8000_0000);
        assert_eq!(sqrt(-1.0, Rounding::Up).to_bits(), 0x7fff_ffff);
        assert_eq!(add_f64(1.0, 1e-30, Rounding::Up), 1.0 + f64::EPSILON);
        assert_eq!(add_f64(1.0, -1e-30, Rounding::TowardZero), 1.0 - f64::EPSILON / 2.0);
        assert_eq!(fma_f64(1e-200, 1e-200, 1.0, Rounding::Up), 1.0 + f64::EPSILON);
    }

    #[test]
    fn zero_results_take_the_sign_of_the_mode() {
        for (rounding, bits) in
            [(Rounding::NearestEven, 0), (Rounding::TowardZero, 0), (Rounding::Up, 0), (Rounding::Down, 1u32 << 31)]
        {
            assert_eq!(add(1.5, -1.5, rounding).to_bits(), bits);
            assert_eq!(fma(1.5, 2.0, -3.0, rounding).to_bits(), bits);
            assert_eq!(add_f64(1.5, -1.5, rounding).to_bits() >> 32, u64::from(bits));
            assert_eq!(add(-0.0, -0.0, rounding).to_bits(), 1 << 31);
            assert_eq!(add(0.0, 0.0, rounding).to_bits(), 0);
        }
    }

    /// All pairs on a grid of codes, against integer arithmetic rounded to the format.
    #[test]
    fn sixteen_bit_arithmetic_rounds_once() {
        for kind in [HalfType::F16, HalfType::Bf16] {
            let format = kind.format();
            let codes: Vec<u16> = (0..=u16::MAX)
                .step_by(331)
                .chain([0, 1, 0x8000, 0x8001, 0x0400, 0x3c00, 0x3f80, 0x7bff, 0x7f7f])
                .collect();
            let how = Half::default();
            for &a in &codes {
                for &b in &codes {
                    let (x, y) = (f64::from(kind.decode(a)), f64::from(kind.decode(b)));
                    if !(x.is_finite() && y.is_finite()) {
                        continue;
                    }
                    let exact = |e: Exact| e.pack(format.exponent, format.mantissa, Rounding::NearestEven) as u16;
                    let (ex, ey) = (Exact::from_f64(x), Exact::from_f64(y));
                    assert_eq!(kind.mul(a, b, how), exact(ex.times(ey)), "{kind:?} {a:#x} * {b:#x}");
                    if x + y != 0.0 {
                        assert_eq!(kind.add(a, b, how), exact(ex.plus(ey)), "{kind:?} {a:#x} + {b:#x}");
                    }
                    let c = codes[usize::from(a ^ b) % codes.len()];
                    let z = f64::from(kind.decode(c));
                    let sum = ex.times(ey).plus(Exact::from_f64(if z.is_finite() { z } else { 0.0 }));
                    if z.is_finite() && sum.significand != 0 {
                        assert_eq!(kind.fma(a, b, c, how), exact(sum), "{kind:?} {a:#x} * {b:#x} + {c:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn sixteen_bit_modifiers() {
        let f16 = HalfType::F16;
        assert_eq!(f16.add(0x3c00, 0x7c01, Half::default()), 0x7fff, "NaN is canonical");
        assert_eq!(f16.add(0x7c00, 0xfc00, Half::default()), 0x7fff);
        assert_eq!(f16.add(0x7bff, 0x7bff, Half::default()), 0x7c00);
        assert_eq!(f16.add(1, 0, Half { ftz: true, ..Half::default() }), 0);
        assert_eq!(f16.add(0x4000, 0x4000, Half { sat: true, ..Half::default() }), 0x3c00);
        assert_eq!(f16.sub(0, 0x4000, Half { sat: true, ..Half::default() }), 0);
        assert_eq!(f16.fma(0x7e00, 0, 0, Half { sat: true, ..Half::default() }), 0);
        assert_eq!(f16.fma(0xbc00, 0x3c00, 0, Half { relu: true, ..Half::default() }), 0);
        assert_eq!(f16.fma(0x7e00, 0x3c00, 0, Half { relu: true, ..Half::default() }), 0x7fff);
    }

    #[test]
    fn min_and_max() {
        let (min, max) = (MinMax::default(), MinMax { max: true, ..MinMax::default() });
        assert_eq!(min_max(0.0, -0.0, min).to_bits(), 1 << 31);
        assert_eq!(min_max(-0.0, 0.0, max).to_bits(), 0);
        assert_eq!(min_max(f32::NAN, 3.0, min), 3.0);
        assert_eq!(min_max(3.0, f32::NAN, max), 3.0);
        assert_eq!(min_max(f32::from_bits(0xffc0_1234), f32::NAN, max).to_bits(), 0x7fff_ffff);
        assert_eq!(min_max(f32::NAN, 3.0, MinMax { nan: true, ..min }).to_bits(), 0x7fff_ffff);
        assert_eq!(min_max(-4.0, 3.0, MinMax { abs: true, ..max }), 4.0);
        assert_eq!(min_max(-4.0, 3.0, MinMax { xorsign: true, ..max }), -4.0);
        assert_eq!(min_max(-4.0, -3.0, MinMax { xorsign: true, ..min }), 3.0);
        assert_eq!(min_max(f32::from_bits(1), -1.0, MinMax { ftz: true, ..max }).to_bits(), 0);
        assert_eq!(min_max3(1.0, f32::NAN, -5.0, MinMax { abs: true, ..max }), 5.0);
        assert_eq!(min_max_half(HalfType::Bf16, 0x7f81, 0x3f80, max), 0x3f80);
        assert_eq!(min_max_half(HalfType::Bf16, 0x7f81, 0x3f80, MinMax { nan: true, ..max }), 0x7fff);
    }

    #[test]
    fn flush_and_saturate() {
        assert_eq!(flush(f32::from_bits(0x807f_ffff)).to_bits(), 0x8000_0000);
        assert_eq!(flush(f32::MIN_POSITIVE), f32::MIN_POSITIVE);
        assert_eq!(saturate(-0.0).to_bits(), 0);
        assert_eq!(saturate(f32::NAN).to_bits(), 0);
        assert_eq!(saturate(2.0), 1.0);
        assert_eq!(saturate(0.25), 0.25);
    }
}
