//! Floating-point formats: decoding is exact, narrowing rounds once.
//!
//! One [`Format`] describes every binary format the programs use. [`Format::decode`] is exact into `f32`, and
//! [`Format::narrow`] rounds an `f64` once, in any rounding mode, with `.relu` and `.satfinite`. Values that are not
//! exact in `f64` reach it rounded to odd (see [`super::arith`]), so that the single rounding stays single.

/// A binary floating-point format of at most 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// Exponent bits.
    pub exponent: u32,
    /// Stored significand bits.
    pub mantissa: u32,
    /// Exponent bias.
    pub bias: i32,
    /// Code of the largest finite magnitude.
    pub max: u32,
    /// Code of +infinity, where the format has one.
    pub infinity: Option<u32>,
    /// Canonical NaN code, where the format has NaN.
    pub nan: Option<u32>,
}

/// IEEE binary16.
pub const F16: Format =
    Format { exponent: 5, mantissa: 10, bias: 15, max: 0x7bff, infinity: Some(0x7c00), nan: Some(0x7fff) };
/// bfloat16.
pub const BF16: Format =
    Format { exponent: 8, mantissa: 7, bias: 127, max: 0x7f7f, infinity: Some(0x7f80), nan: Some(0x7fff) };
/// IEEE binary32.
pub const F32: Format = Format {
    exponent: 8,
    mantissa: 23,
    bias: 127,
    max: 0x7f7f_ffff,
    infinity: Some(0x7f80_0000),
    nan: Some(0x7fff_ffff),
};
/// TF32 as a 19-bit code: the upper bits of its 32-bit container.
pub const TF32: Format =
    Format { exponent: 8, mantissa: 10, bias: 127, max: 0x3_fbff, infinity: Some(0x3_fc00), nan: Some(0x3_ffff) };
/// FP8 E4M3: no infinity.
pub const E4M3: Format = Format { exponent: 4, mantissa: 3, bias: 7, max: 0x7e, infinity: None, nan: Some(0x7f) };
/// FP8 E5M2.
pub const E5M2: Format =
    Format { exponent: 5, mantissa: 2, bias: 15, max: 0x7b, infinity: Some(0x7c), nan: Some(0x7f) };
/// FP6 E2M3: neither infinity nor NaN.
pub const E2M3: Format = Format { exponent: 2, mantissa: 3, bias: 1, max: 0x1f, infinity: None, nan: None };
/// FP6 E3M2: neither infinity nor NaN.
pub const E3M2: Format = Format { exponent: 3, mantissa: 2, bias: 3, max: 0x1f, infinity: None, nan: None };
/// FP4 E2M1: neither infinity nor NaN.
pub const E2M1: Format = Format { exponent: 2, mantissa: 1, bias: 1, max: 0x7, infinity: None, nan: None };

/// Rounding of a result that is not representable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rounding {
    /// `.rn`: to nearest, ties to even.
    #[default]
    NearestEven,
    /// `.rz`: toward zero.
    TowardZero,
    /// `.rm`: toward minus infinity.
    Down,
    /// `.rp`: toward plus infinity.
    Up,
    /// `.rna`: to nearest, ties away from zero.
    NearestAway,
}

impl Rounding {
    /// All modes, in the order of the definition.
    pub const ALL: [Self; 5] = [Self::NearestEven, Self::TowardZero, Self::Down, Self::Up, Self::NearestAway];

    /// Whether a truncated magnitude moves up by one unit, given the discarded bits against half a unit.
    #[inline(always)]
    pub(super) fn increments(self, negative: bool, odd: bool, discarded: u128, half: u128) -> bool {
        match self {
            Self::NearestEven => discarded > half || (discarded == half && odd && half != 0),
            Self::NearestAway => discarded >= half && discarded != 0,
            Self::TowardZero => false,
            Self::Down => negative && discarded != 0,
            Self::Up => !negative && discarded != 0,
        }
    }

    /// Whether an overflow of this sign stays at the largest finite value.
    #[inline(always)]
    pub(super) fn overflow_stays_finite(self, negative: bool) -> bool {
        match self {
            Self::NearestEven | Self::NearestAway => false,
            Self::TowardZero => true,
            Self::Down => !negative,
            Self::Up => negative,
        }
    }
}

/// Modifiers of a narrowing conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Narrow {
    /// Rounding mode.
    pub rounding: Rounding,
    /// `.satfinite`: overflow and infinity give the largest finite value.
    pub satfinite: bool,
    /// `.relu`: negative values, including -0 and -infinity, give +0.
    pub relu: bool,
}

impl Narrow {
    /// Round to nearest even without saturation.
    pub const RN: Self = Self { rounding: Rounding::NearestEven, satfinite: false, relu: false };
    /// Round to nearest even with `.satfinite`, what every FP8, FP6 and FP4 destination requires.
    pub const RN_SATFINITE: Self = Self { rounding: Rounding::NearestEven, satfinite: true, relu: false };
}

/// `2^exponent` as `f32`, exact for -149..=127.
#[inline(always)]
pub const fn pow2(exponent: i32) -> f32 {
    if exponent >= -126 {
        f32::from_bits(((exponent + 127) as u32) << 23)
    } else {
        f32::from_bits(1 << (exponent + 149))
    }
}

impl Format {
    /// Bits of a code.
    pub const fn bits(&self) -> u32 {
        1 + self.exponent + self.mantissa
    }

    /// Bit of the sign.
    pub const fn sign(&self) -> u32 {
        1 << (self.exponent + self.mantissa)
    }

    /// Smallest normal exponent.
    pub const fn min_exponent(&self) -> i32 {
        1 - self.bias
    }

    /// Whether `code` is a NaN.
    pub const fn is_nan(&self, code: u32) -> bool {
        let magnitude = code & (self.sign() - 1);
        match (self.infinity, self.nan) {
            (Some(infinity), _) => magnitude > infinity,
            (None, Some(nan)) => magnitude == nan,
            (None, None) => false,
        }
    }

    /// The exact value of `code`; a NaN becomes the canonical `f32` NaN 0x7fffffff. Bits above the code are ignored.
    #[inline(always)]
    pub const fn decode(&self, code: u32) -> f32 {
        let magnitude = code & (self.sign() - 1);
        let negative = (code & self.sign() != 0) as u32;
        if self.is_nan(code) {
            return f32::from_bits(0x7fff_ffff);
        }
        if let Some(infinity) = self.infinity
            && magnitude == infinity
        {
            return f32::from_bits(0x7f80_0000 | (negative << 31));
        }
        let exponent = magnitude >> self.mantissa;
        let fraction = magnitude & ((1 << self.mantissa) - 1);
        let step = pow2(exponent.saturating_sub(1) as i32 + self.min_exponent() - self.mantissa as i32);
        let significand = if exponent == 0 { fraction } else { fraction | (1 << self.mantissa) };
        let value = significand as f32 * step;
        f32::from_bits(value.to_bits() | (negative << 31))
    }

    /// Rounds `x` once into this format: the algorithm of the ISA notes, section 7.2.
    ///
    /// NaN gives the canonical NaN; a format without NaN gives its positive maximum. Overflow gives infinity, or the
    /// NaN of a format without infinity, unless the rounding direction or `.satfinite` keeps the largest finite value.
    /// Subnormals of the destination are produced.
    #[inline(always)]
    pub fn narrow(&self, x: f64, how: Narrow) -> u32 {
        let code = match how.rounding {
            Rounding::NearestEven => self.nearest_magnitude(x),
            rounding => self.directed_magnitude(x, rounding),
        };
        self.finish(code, x.is_sign_negative(), x.is_nan(), x.is_finite(), how)
    }

    /// [`Self::narrow`] of an `f32`, faster and without branches for rounding to nearest.
    #[inline(always)]
    pub fn narrow_f32(&self, x: f32, how: Narrow) -> u32 {
        if how.rounding != Rounding::NearestEven {
            return self.narrow(f64::from(x), how);
        }
        let magnitude = x.to_bits() & 0x7fff_ffff;
        let code = if self.exponent == 8 {
            // The exponent range of f32: round the bits. Past infinity only NaN, which is replaced.
            let shift = 23 - self.mantissa;
            if shift == 0 {
                magnitude
            } else {
                (magnitude + (1 << (shift - 1)) - 1 + (magnitude >> shift & 1)) >> shift
            }
        } else {
            self.nearest_magnitude_f32(x.abs())
        };
        self.finish(code, x.is_sign_negative(), x.is_nan(), x.is_finite(), how)
    }

    /// Overflow, sign and NaN of a rounded magnitude.
    #[inline(always)]
    fn finish(&self, code: u32, negative: bool, nan: bool, finite: bool, how: Narrow) -> u32 {
        let overflow = if how.satfinite || (how.rounding.overflow_stays_finite(negative) && finite) {
            self.max
        } else {
            self.infinity.or(self.nan).unwrap_or(self.max)
        };
        let code = if code <= self.max { code } else { overflow };
        let sign = if negative { self.sign() } else { 0 };
        let signed = if how.relu && negative { 0 } else { code | sign };
        if nan { self.nan.unwrap_or(self.max) } else { signed }
    }

    /// [`Self::nearest_magnitude`] in `f32`, for formats whose units times `2^23` are in its range.
    #[inline(always)]
    fn nearest_magnitude_f32(&self, magnitude: f32) -> u32 {
        let power = |e: i32| f32::from_bits(((e + 127) as u32) << 23);
        let limit = power(self.min_exponent() + (1 << self.exponent));
        let magnitude = if magnitude < limit { magnitude } else { limit };
        let lowest = power(self.min_exponent());
        let binade = if magnitude < lowest { lowest } else { magnitude }.to_bits() >> 23;
        let magic = f32::from_bits((binade + 23 - self.mantissa) << 23);
        let units = (magnitude + magic).to_bits().wrapping_sub(magic.to_bits());
        let steps = binade.wrapping_sub((self.min_exponent() + 127) as u32);
        (steps << self.mantissa).wrapping_add(units)
    }

    /// Code of the nearest magnitude, ties to even, above `max` on overflow; no branches. Adding `2^52` destination
    /// units makes the processor round `|x|` to a whole number of units, which then stands in the low bits of the sum.
    #[inline(always)]
    fn nearest_magnitude(&self, x: f64) -> u32 {
        let power = |e: i32| f64::from_bits(((e + 1023) as u64) << 52);
        let limit = power(self.min_exponent() + (1 << self.exponent));
        let magnitude = if x.abs() < limit { x.abs() } else { limit };
        let lowest = power(self.min_exponent());
        let binade = if magnitude < lowest { lowest } else { magnitude }.to_bits() >> 52;
        let magic = f64::from_bits((binade + u64::from(52 - self.mantissa)) << 52);
        let units = (magnitude + magic).to_bits().wrapping_sub(magic.to_bits());
        let steps = (binade as u32).wrapping_sub((self.min_exponent() + 1023) as u32);
        (steps << self.mantissa).wrapping_add(units as u32)
    }

    /// Code of the magnitude rounded in the direction of `rounding`, above `max` on overflow.
    fn directed_magnitude(&self, x: f64, rounding: Rounding) -> u32 {
        let magnitude = x.to_bits() & (u64::MAX >> 1);
        let biased = (magnitude >> 52) as i32;
        if biased == 0x7ff {
            return u32::MAX;
        }
        let fraction = magnitude & ((1 << 52) - 1);
        let (exponent, significand) =
            if biased == 0 { (-1022, fraction) } else { (biased - 1023, fraction | (1 << 52)) };
        let emin = self.min_exponent();
        let shift = (52 - self.mantissa + (emin - exponent).max(0) as u32).min(60);
        let discarded = significand & ((1 << shift) - 1);
        let quotient = significand >> shift;
        let up = rounding.increments(x.is_sign_negative(), quotient & 1 != 0, u128::from(discarded), 1 << (shift - 1));
        let steps = ((exponent.max(emin) - emin) as u64) << self.mantissa;
        (steps + quotient + u64::from(up)).min(u64::from(u32::MAX)) as u32
    }
}

const fn table(format: Format) -> [f32; 256] {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = format.decode(code as u32);
        code += 1;
    }
    values
}

/// Value of every E4M3 code.
pub static E4M3_VALUES: [f32; 256] = table(E4M3);
/// Value of every E5M2 code.
pub static E5M2_VALUES: [f32; 256] = table(E5M2);
/// Value of every E2M3 code; bits `7:6` are ignored.
pub static E2M3_VALUES: [f32; 256] = table(E2M3);
/// Value of every E3M2 code; bits `7:6` are ignored.
pub static E3M2_VALUES: [f32; 256] = table(E3M2);
/// Value of every E2M1 code; bits `7:4` are ignored.
pub static E2M1_VALUES: [f32; 256] = table(E2M1);

/// Value of a UE8M0 code, `2^(code - 127)`; 0xff is NaN. Exact: code 0 is the `f32` subnormal `2^-127`.
#[inline]
pub const fn decode_ue8m0(code: u8) -> f32 {
    if code == 0xff { f32::from_bits(0x7fff_ffff) } else { pow2(code as i32 - 127) }
}

/// Value of a UE4M3 code: E4M3 with the sign bit ignored.
#[inline]
pub fn decode_ue4m3(code: u8) -> f32 {
    E4M3_VALUES[usize::from(code & 0x7f)]
}

/// Value of an f16 code.
#[inline(always)]
pub fn decode_f16(code: u16) -> f32 {
    decode_f16_field(code.into())
}

/// The same of a code without bits above it: 32-bit operations alone, which suit vectors.
#[inline(always)]
pub fn decode_f16_field(code: u32) -> f32 {
    let magnitude = (code & 0x7fff) as i32;
    // The fraction and exponent in place, and the difference of the biases added; a subnormal is an integer times
    // 2^-24, which no step makes a subnormal `f32`: processors are slow at those.
    let normal = ((magnitude << 13) + (112 << 23)) as u32;
    let small = (magnitude as f32 * pow2(-24)).to_bits();
    let bits = if magnitude < 0x400 { small } else { normal };
    let bits = if magnitude >= 0x7c00 { f32::INFINITY.to_bits() } else { bits };
    let bits = bits | (code & 0x8000) << 16;
    f32::from_bits(if magnitude > 0x7c00 { 0x7fff_ffff } else { bits })
}

/// Value of a bf16 code; a NaN becomes canonical.
#[inline(always)]
pub fn decode_bf16(code: u16) -> f32 {
    let value = f32::from_bits(u32::from(code) << 16);
    if value.is_nan() { f32::from_bits(0x7fff_ffff) } else { value }
}

/// Value a matrix operation sees in a TF32 container: the low 13 bits are ignored.
#[inline(always)]
pub fn decode_tf32(container: u32) -> f32 {
    f32::from_bits(container & 0xffff_e000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: [Format; 5] = [E4M3, E5M2, E2M3, E3M2, E2M1];

    #[test]
    fn decodes_known_values() {
        assert_eq!(E2M1_VALUES[..8], [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert_eq!(E2M1_VALUES[9], -0.5);
        assert_eq!(E4M3.decode(0x7e), 448.0);
        assert_eq!(E4M3.decode(0x08), 2f32.powi(-6));
        assert_eq!(E4M3.decode(0x01), 2f32.powi(-9));
        assert_eq!(E5M2.decode(0x7b), 57344.0);
        assert_eq!(E5M2.decode(0xfc), f32::NEG_INFINITY);
        assert_eq!(E5M2.decode(0x01), 2f32.powi(-16));
        assert_eq!(E2M3.decode(0x1f), 7.5);
        assert_eq!(E2M3.decode(0x01), 0.125);
        assert_eq!(E3M2.decode(0x1f), 28.0);
        assert_eq!(E3M2.decode(0x01), 0.0625);
        assert_eq!(decode_ue8m0(0).to_bits(), 0x0040_0000);
        assert_eq!(decode_ue8m0(0xfe), 2f32.powi(127));
        assert!(decode_ue8m0(0xff).is_nan());
        assert_eq!(decode_ue4m3(0xfe), 448.0);
        assert!(decode_ue4m3(0x7f).is_nan() && decode_ue4m3(0xff).is_nan());
        assert_eq!(decode_f16(0x8000).to_bits(), 0x8000_0000);
        assert_eq!(decode_f16(1), 2f32.powi(-24));
        assert_eq!(decode_tf32(0x3f80_1fff), 1.0);
    }

    #[test]
    fn sixteen_bit_codes_match_the_half_crate_and_round_trip() {
        for code in 0..=u16::MAX {
            let (f, b) = (half::f16::from_bits(code), half::bf16::from_bits(code));
            if f.is_nan() {
                assert_eq!(decode_f16(code).to_bits(), 0x7fff_ffff);
            } else {
                assert_eq!(decode_f16(code).to_bits(), f.to_f32().to_bits());
                assert_eq!(F16.narrow(f.to_f64(), Narrow::RN), u32::from(code));
            }
            if b.is_nan() {
                assert_eq!(decode_bf16(code).to_bits(), 0x7fff_ffff);
            } else {
                assert_eq!(decode_bf16(code).to_bits(), b.to_f32().to_bits());
                assert_eq!(BF16.decode(u32::from(code)).to_bits(), b.to_f32().to_bits());
                assert_eq!(BF16.narrow(b.to_f64(), Narrow::RN), u32::from(code));
            }
        }
    }

    #[test]
    fn small_codes_round_trip_in_every_mode() {
        for format in SMALL {
            for code in 0..1u32 << format.bits() {
                let value = format.decode(code);
                if value.is_nan() {
                    assert_eq!(format.narrow(f64::from(value), Narrow::RN_SATFINITE), format.nan.unwrap());
                    continue;
                }
                for rounding in Rounding::ALL {
                    let how = Narrow { rounding, satfinite: value.is_finite(), relu: false };
                    assert_eq!(format.narrow(f64::from(value), how), code, "{format:?} {code:#x}");
                }
            }
        }
    }

    /// Every midpoint between neighbours, and one f64 unit to each side of it.
    #[test]
    fn ties_and_their_neighbours() {
        for format in SMALL.into_iter().chain([F16]) {
            for code in 0..format.max {
                let (low, high) = (f64::from(format.decode(code)), f64::from(format.decode(code + 1)));
                let middle = (low + high) / 2.0;
                let up = |x: f64| f64::from_bits(x.to_bits() + 1);
                let down = |x: f64| f64::from_bits(x.to_bits() - 1);
                let rn = |x| format.narrow(x, Narrow::RN);
                assert_eq!(rn(middle), code + (code & 1));
                assert_eq!(rn(up(middle)), code + 1);
                assert_eq!(rn(down(middle)), code);
                assert_eq!(rn(-middle), format.sign() | (code + (code & 1)));
                let with = |x, rounding| format.narrow(x, Narrow { rounding, ..Narrow::RN });
                assert_eq!(with(middle, Rounding::NearestAway), code + 1);
                assert_eq!(with(down(middle), Rounding::NearestAway), code);
                assert_eq!(with(middle, Rounding::TowardZero), code);
                assert_eq!(with(middle, Rounding::Up), code + 1);
                assert_eq!(with(middle, Rounding::Down), code);
                assert_eq!(with(-middle, Rounding::Up), format.sign() | code);
                assert_eq!(with(-middle, Rounding::Down), format.sign() | (code + 1));
            }
        }
    }

    #[test]
    fn f32_rounding_matches_the_processor() {
        let mut state = 1u64;
        for _ in 0..200_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Exponents around the f32 range, so that subnormals and overflow occur.
            let exponent = 1023 - 160 + (state >> 40) % 300;
            let x = f64::from_bits((state & 1 << 63) | (exponent << 52) | (state.rotate_left(20) & ((1 << 52) - 1)));
            assert_eq!(F32.narrow(x, Narrow::RN), (x as f32).to_bits(), "{x:e}");
        }
    }

    /// The `f32` path against the `f64` path over a grid of bit patterns and every midpoint of the 16-bit formats.
    #[test]
    fn f32_and_f64_paths_agree() {
        let hows = [Narrow::RN, Narrow::RN_SATFINITE, Narrow { relu: true, ..Narrow::RN }];
        for format in SMALL.into_iter().chain([F16, BF16, TF32]) {
            for how in hows {
                for bits in (0..=u32::MAX).step_by(0xfff7).chain((0..=u32::MAX).step_by(0x1000).skip(7).step_by(13)) {
                    let x = f32::from_bits(bits);
                    assert_eq!(format.narrow_f32(x, how), format.narrow(f64::from(x), how), "{format:?} {how:?} {x:e}");
                }
                for code in 0..format.max.min(0x7fff) {
                    let x = (format.decode(code) + format.decode(code + 1)) / 2.0;
                    assert_eq!(format.narrow_f32(x, how), format.narrow(f64::from(x), how), "{format:?} {how:?} {x:e}");
                }
            }
        }
    }

    #[test]
    fn saturation_ends() {
        let sat = Narrow::RN_SATFINITE;
        assert_eq!(E4M3.narrow(464.0, Narrow::RN), 0x7e, "464 ties to the even code 0x7e");
        assert_eq!(E4M3.narrow(464.1, Narrow::RN), 0x7f, "overflow without infinity is NaN");
        assert_eq!(E4M3.narrow(1e9, sat), 0x7e);
        assert_eq!(E4M3.narrow(f64::NEG_INFINITY, sat), 0xfe);
        assert_eq!(E4M3.narrow(f64::NAN, sat), 0x7f);
        assert_eq!(E5M2.narrow(f64::INFINITY, Narrow::RN), 0x7c);
        assert_eq!(E5M2.narrow(f64::INFINITY, sat), 0x7b);
        assert_eq!(E2M1.narrow(f64::NAN, sat), 0x7);
        assert_eq!(E2M1.narrow(-f64::NAN, sat), 0x7);
        assert_eq!(E2M1.narrow(-100.0, sat), 0xf);
        assert_eq!(F16.narrow(65519.99, Narrow::RN), 0x7bff);
        assert_eq!(F16.narrow(65520.0, Narrow::RN), 0x7c00);
        let rz = Narrow { rounding: Rounding::TowardZero, ..Narrow::RN };
        assert_eq!(F16.narrow(1e9, rz), 0x7bff);
        assert_eq!(F16.narrow(f64::INFINITY, rz), 0x7c00);
        assert_eq!(F16.narrow(1e9, Narrow { rounding: Rounding::Down, ..Narrow::RN }), 0x7bff);
        assert_eq!(F16.narrow(-1e9, Narrow { rounding: Rounding::Down, ..Narrow::RN }), 0xfc00);
        let relu = Narrow { relu: true, ..Narrow::RN_SATFINITE };
        assert_eq!(F16.narrow(-0.0, relu), 0);
        assert_eq!(F16.narrow(f64::NEG_INFINITY, relu), 0);
        assert_eq!(F16.narrow(-f64::NAN, relu), 0x7fff);
        assert_eq!(F16.narrow(1e-300, Narrow { rounding: Rounding::Up, ..Narrow::RN }), 1);
        assert_eq!(F16.narrow(f64::from_bits(1), Narrow::RN), 0);
    }
}
