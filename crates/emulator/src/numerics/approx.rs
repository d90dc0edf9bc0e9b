//! Approximate functions (ISA notes, section 7.4): computed in `f64`, rounded once to nearest, with the documented
//! special values and flushes.
//!
//! The device uses interpolation tables that are not public for these architectures. Results here are within half a
//! unit of the true value, so tests of programs must accept the documented bound of the instruction.
//! [`Approximation::jitter`] moves every result that is not a special value by -1, 0 or +1 unit, chosen from a seed and
//! the operand, to prove that they do.

use super::arith::{HalfType, NAN_F32, flush};
use super::format::{Narrow, pow2};

/// How approximate functions are evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Approximation {
    /// Seed of the perturbation; `None` leaves the nearest value. The perturbation depends on seed, function and
    /// operand only, so schedules cannot change it.
    pub jitter: Option<u64>,
}

/// Function number in the perturbation.
#[derive(Debug, Clone, Copy)]
enum Function {
    Ex2 = 1,
    Lg2,
    Rcp,
    Rsqrt,
    Sqrt,
    Sin,
    Cos,
    Tanh,
}

impl Approximation {
    /// Rounds to `f32`, perturbs, flushes.
    #[inline(always)]
    fn finish(self, function: Function, operand: u32, value: f64, ftz: bool) -> f32 {
        let result = value as f32;
        let result = match self.jitter {
            Some(seed) if result.is_finite() && result != 0.0 => {
                f32::from_bits(result.to_bits().wrapping_add_signed(step(seed, function, operand)))
            }
            _ => result,
        };
        if ftz { flush(result) } else { result }
    }

    /// `ex2.approx{.ftz}.f32`. Zeros and subnormals give exactly 1, infinities +0 and +infinity.
    #[inline(always)]
    pub fn ex2(self, x: f32, ftz: bool) -> f32 {
        let result = exp2(f64::from(x)) as f32;
        let result = match self.jitter {
            Some(_) if x.abs() >= f32::MIN_POSITIVE => self.finish(Function::Ex2, x.to_bits(), f64::from(result), ftz),
            _ => result,
        };
        super::arith::canonical(if ftz { flush(result) } else { result })
    }

    /// `lg2.approx{.ftz}.f32`. Zeros give -infinity, negative values NaN.
    pub fn lg2(self, x: f32, ftz: bool) -> f32 {
        let x = if ftz { flush(x) } else { x };
        if x.is_nan() || x < 0.0 {
            return NAN_F32;
        }
        if x == 0.0 {
            return f32::NEG_INFINITY;
        }
        if x == f32::INFINITY || x == 1.0 {
            return if x == 1.0 { 0.0 } else { x };
        }
        self.finish(Function::Lg2, x.to_bits(), f64::from(x).log2(), ftz)
    }

    /// `rcp.approx{.ftz}.f32`.
    #[inline]
    pub fn rcp(self, x: f32, ftz: bool) -> f32 {
        let x = if ftz { flush(x) } else { x };
        if x.is_nan() {
            return NAN_F32;
        }
        if x == 0.0 || x.is_infinite() {
            return 1.0 / x;
        }
        self.finish(Function::Rcp, x.to_bits(), 1.0 / f64::from(x), ftz)
    }

    /// `rsqrt.approx{.ftz}.f32`. -0 gives -infinity, negative values NaN.
    pub fn rsqrt(self, x: f32, ftz: bool) -> f32 {
        let x = if ftz { flush(x) } else { x };
        if x.is_nan() || x < 0.0 {
            return NAN_F32;
        }
        if x == 0.0 || x.is_infinite() {
            return 1.0 / x;
        }
        self.finish(Function::Rsqrt, x.to_bits(), 1.0 / f64::from(x).sqrt(), ftz)
    }

    /// `sqrt.approx{.ftz}.f32`. -0 stays -0, negative values give NaN.
    pub fn sqrt(self, x: f32, ftz: bool) -> f32 {
        let x = if ftz { flush(x) } else { x };
        if x.is_nan() || x < 0.0 {
            return NAN_F32;
        }
        if x == 0.0 || x.is_infinite() {
            return x;
        }
        self.finish(Function::Sqrt, x.to_bits(), f64::from(x).sqrt(), ftz)
    }

    /// `sin.approx{.ftz}.f32`. Infinities give NaN; zeros, and operands up to 2 pi times the smallest normal number,
    /// give zero of the same sign.
    pub fn sin(self, x: f32, ftz: bool) -> f32 {
        let x = if ftz { flush(x) } else { x };
        if !x.is_finite() {
            return NAN_F32;
        }
        // The operand is first divided by 2 pi, and the quotient flushed.
        if f64::from(x.abs()) < std::f64::consts::TAU * f64::from(f32::MIN_POSITIVE) {
            return 0f32.copysign(x);
        }
        self.finish(Function::Sin, x.to_bits(), f64::from(x).sin(), ftz)
    }

    /// `cos.approx{.ftz}.f32`. Infinities give NaN, zeros 1.
    pub fn cos(self, x: f32, ftz: bool) -> f32 {
        let x = if ftz { flush(x) } else { x };
        if !x.is_finite() {
            return NAN_F32;
        }
        if x == 0.0 { 1.0 } else { self.finish(Function::Cos, x.to_bits(), f64::from(x).cos(), ftz) }
    }

    /// `tanh.approx.f32`. Subnormals pass through, infinities give +-1.
    pub fn tanh(self, x: f32) -> f32 {
        if x.is_nan() {
            return NAN_F32;
        }
        if x.abs() < f32::MIN_POSITIVE || x.is_infinite() {
            return if x.is_infinite() { 1f32.copysign(x) } else { x };
        }
        self.finish(Function::Tanh, x.to_bits(), f64::from(x).tanh(), false).clamp(-1.0, 1.0)
    }

    /// `ex2.approx.f16`, `ex2.approx.ftz.bf16`: bf16 flushes subnormal operands and results.
    pub fn ex2_half(self, kind: HalfType, code: u16) -> u16 {
        self.half(kind, code, Function::Ex2, kind == HalfType::Bf16, exp2)
    }

    /// `tanh.approx.{f16,bf16}`.
    pub fn tanh_half(self, kind: HalfType, code: u16) -> u16 {
        self.half(kind, code, Function::Tanh, false, f64::tanh)
    }

    fn half(self, kind: HalfType, code: u16, function: Function, ftz: bool, f: impl Fn(f64) -> f64) -> u16 {
        let format = kind.format();
        let flushed = |code: u16| {
            let exponent = ((1 << format.exponent) - 1) << format.mantissa;
            if ftz && u32::from(code) & exponent == 0 { code & 0x8000 } else { code }
        };
        let x = kind.decode(flushed(code));
        if x.is_nan() {
            return 0x7fff;
        }
        let result = format.narrow(f(f64::from(x)), Narrow::RN) as u16;
        let magnitude = u32::from(result & 0x7fff);
        let one = format.narrow(1.0, Narrow::RN);
        let result = match self.jitter {
            Some(seed) if magnitude != 0 && magnitude < format.max && magnitude != one => {
                result.wrapping_add_signed(step(seed, function, u32::from(code)) as i16)
            }
            _ => result,
        };
        flushed(result)
    }

    /// `div.approx{.ftz}.f32`: the dividend times the approximate reciprocal.
    pub fn div(self, a: f32, b: f32, ftz: bool) -> f32 {
        let a = if ftz { flush(a) } else { a };
        let result = super::arith::canonical(a * self.rcp(b, ftz));
        if ftz { flush(result) } else { result }
    }

    /// `div.full{.ftz}.f32`: as [`Self::div`] with both operands scaled by 1/4 when the divisor is above 2^126.
    pub fn div_full(self, a: f32, b: f32, ftz: bool) -> f32 {
        let scale = if b.abs() > pow2(126) && b.is_finite() { 0.25 } else { 1.0 };
        self.div(a * scale, b * scale, ftz)
    }
}

/// -1, 0 or +1 from a seed, function and operand.
fn step(seed: u64, function: Function, operand: u32) -> i32 {
    let mut x = seed ^ (u64::from(operand) << 8 | function as u64);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x >> 33) % 3) as i32 - 1
}

/// `2^x` with a relative error below 2^-40, for results between 2^-1000 and 2^1000, the limits past which it is
/// constant.
///
/// Splits `x` into the nearest integer and a rest, `|r| <= ln 2 / 2`, whose exponential is the Taylor series to degree
/// 10; the remainder is below `0.35^11 / 11! < 2^-41`. Free of branches and library calls: every platform gives the
/// same bits, and loops over it vectorise.
#[inline(always)]
pub fn exp2(x: f64) -> f64 {
    const SHIFT: f64 = 6755399441055744.0; // 1.5 * 2^52: adding it rounds to an integer in the low bits
    let x = if x > 1000.0 { 1000.0 } else { x };
    let x = if x < -1000.0 { -1000.0 } else { x };
    let shifted = x + SHIFT;
    let r = (x - (shifted - SHIFT)) * std::f64::consts::LN_2;
    let mut sum = COEFFICIENTS[0];
    for c in &COEFFICIENTS[1..] {
        sum = sum * r + c;
    }
    sum * f64::from_bits((shifted.to_bits().wrapping_add(1023)) << 52)
}

/// `1/k!` for k = 10 down to 0.
const COEFFICIENTS: [f64; 11] = {
    let mut values = [1.0; 11];
    let (mut k, mut factorial) = (1, 1.0);
    while k < 11 {
        factorial *= k as f64;
        values[10 - k] = 1.0 / factorial;
        k += 1;
    }
    values
};

#[cfg(test)]
mod tests {
    use super::*;

    const A: Approximation = Approximation { jitter: None };

    #[test]
    fn special_values() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let bits = |x: f32| x.to_bits();
        assert_eq!(
            [A.ex2(-inf, true), A.ex2(-0.0, true), A.ex2(inf, true), A.ex2(f32::from_bits(5), true)],
            [0.0, 1.0, inf, 1.0]
        );
        assert_eq!([A.rcp(-0.0, true), A.rcp(-inf, true)].map(bits), [0xff80_0000, 0x8000_0000]);
        assert_eq!(A.rcp(f32::from_bits(1), true), inf, "flushed operand");
        assert_eq!([A.rsqrt(-0.0, false), A.rsqrt(0.0, false), A.rsqrt(inf, false)], [-inf, inf, 0.0]);
        assert_eq!([A.sqrt(-0.0, false), A.sqrt(inf, false)].map(bits), [0x8000_0000, 0x7f80_0000]);
        assert_eq!([A.lg2(0.0, true), A.lg2(-0.0, true), A.lg2(1.0, true)], [-inf, -inf, 0.0]);
        assert_eq!([A.tanh(inf), A.tanh(-inf), A.tanh(f32::from_bits(3))], [1.0, -1.0, f32::from_bits(3)]);
        let nans = [
            A.ex2(nan, true),
            A.lg2(-1.0, true),
            A.rcp(nan, true),
            A.rsqrt(-1.0, true),
            A.sqrt(-1.0, true),
            A.sin(inf, true),
            A.cos(-inf, true),
            A.tanh(-nan),
        ];
        assert_eq!(nans.map(bits), [0x7fff_ffff; 8]);
        assert_eq!([A.sin(-0.0, false), A.cos(0.0, false)].map(bits), [0x8000_0000, 0x3f80_0000]);
    }

    #[test]
    fn nearest_values_and_flushes() {
        assert_eq!(A.ex2(-1.0, true), 0.5);
        assert_eq!(A.ex2(0.5, true), std::f32::consts::SQRT_2);
        assert_eq!(A.ex2(-127.0, true), 0.0);
        assert_eq!(A.ex2(-127.0, false).to_bits(), 0x0040_0000);
        assert_eq!(A.ex2(-149.0, false).to_bits(), 1);
        assert_eq!(A.ex2(-151.0, false), 0.0);
        assert_eq!(A.ex2(128.0, true), f32::INFINITY);
        assert_eq!(A.ex2(-3.0e38, false), 0.0);
        assert_eq!(A.rcp(3.0, true), 1.0 / 3.0);
        assert_eq!(A.rcp(f32::MAX, true), 0.0);
        assert_eq!(A.rcp(f32::MAX, false).to_bits(), 0x0020_0000);
        assert_eq!(A.lg2(8.0, true), 3.0);
        assert_eq!(A.lg2(f32::from_bits(1), false), -149.0);
        assert_eq!(A.lg2(f32::from_bits(1), true), f32::NEG_INFINITY);
        assert_eq!(A.rsqrt(4.0, true), 0.5);
        assert_eq!(A.sqrt(2.0, true), std::f32::consts::SQRT_2);
        assert_eq!(A.div(1.0, 4.0, false), 0.25);
        assert_eq!(A.div_full(1.5 * 2f32.powi(127), 1.5 * 2f32.powi(127), true), 1.0);
        assert_eq!(A.div(1.0, f32::INFINITY, true), 0.0);
    }

    /// The `f64` exponential against the standard library, relative error.
    #[test]
    fn exponential_is_accurate() {
        for i in -40_000..40_000 {
            let x = f64::from(i) * 0.003_717;
            let (ours, theirs) = (exp2(x), x.exp2());
            assert!((ours / theirs - 1.0).abs() < 2f64.powi(-40), "{x}: {ours:e} {theirs:e}");
        }
    }

    #[test]
    fn sixteen_bit_functions() {
        assert_eq!(A.ex2_half(HalfType::F16, 0x3c00), 0x4000);
        assert_eq!(A.ex2_half(HalfType::F16, 0xfc00), 0);
        assert_eq!(A.ex2_half(HalfType::F16, 0x7c01), 0x7fff);
        assert_eq!(A.ex2_half(HalfType::F16, 0xce00), 1, "2^-24 is subnormal and kept");
        assert_eq!(A.ex2_half(HalfType::Bf16, 0xc2fe), 0, "2^-127 is flushed");
        assert_eq!(A.ex2_half(HalfType::Bf16, 0x7f80), 0x7f80);
        assert_eq!(A.tanh_half(HalfType::F16, 0x7c00), 0x3c00);
        assert_eq!(A.tanh_half(HalfType::Bf16, 0xff80), 0xbf80);
        assert_eq!(A.tanh_half(HalfType::F16, 0x0001), 0x0001);
        assert_eq!(A.tanh_half(HalfType::Bf16, 0x3f00), 0x3eed, "0.46212 is 236.6 units of 2^-9");
    }

    #[test]
    fn jitter_moves_by_at_most_one_unit_and_reaches_all_three() {
        let jittered = Approximation { jitter: Some(7) };
        let mut seen = [0; 3];
        for i in 1..400 {
            let x = i as f32 * 0.01;
            let distance = jittered.ex2(x, true).to_bits() as i32 - A.ex2(x, true).to_bits() as i32;
            assert!(distance.abs() <= 1);
            seen[(distance + 1) as usize] += 1;
            assert_eq!(jittered.ex2(x, true).to_bits(), jittered.ex2(x, true).to_bits());
        }
        assert!(seen.iter().all(|&count| count > 50), "{seen:?}");
        assert_eq!(jittered.ex2(0.0, true), 1.0);
        assert_eq!(jittered.rcp(0.0, true), f32::INFINITY);
    }
}
