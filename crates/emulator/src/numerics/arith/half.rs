//! Arithmetic of f16 and bf16.

use super::super::format::{BF16, F16, Format, Narrow, pow2};
use super::add_to_odd;

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
            Self::F16 => super::super::format::decode_f16(code),
            Self::Bf16 => super::super::format::decode_bf16(code),
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
    pub(super) fn output(self, x: f64, how: Half) -> u16 {
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
