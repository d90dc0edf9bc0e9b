//! `cvt`: packed narrow formats, scale formats, integers (ISA notes, section 7.2).
//!
//! Two-source forms put source `a` into the upper half of the result and `b` into the lower half.

use super::exact::Exact;
use super::format::{BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16, Format, Narrow, Rounding, TF32, decode_ue8m0};

/// An element type of a packed conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packed {
    /// IEEE binary16, two per 32-bit register.
    F16,
    /// bfloat16, two per 32-bit register.
    Bf16,
    /// FP8 E4M3, two per 16-bit register.
    E4m3,
    /// FP8 E5M2, two per 16-bit register.
    E5m2,
    /// FP6 E2M3 in bytes, two per 16-bit register.
    E2m3,
    /// FP6 E3M2 in bytes, two per 16-bit register.
    E3m2,
    /// FP4 E2M1, two per byte: `b` in the low nibble.
    E2m1,
}

impl Packed {
    /// The format of one element.
    pub const fn format(self) -> Format {
        match self {
            Self::F16 => F16,
            Self::Bf16 => BF16,
            Self::E4m3 => E4M3,
            Self::E5m2 => E5M2,
            Self::E2m3 => E2M3,
            Self::E3m2 => E3M2,
            Self::E2m1 => E2M1,
        }
    }

    /// Bits one element takes in a packed register.
    pub const fn container_bits(self) -> u32 {
        match self {
            Self::F16 | Self::Bf16 => 16,
            Self::E4m3 | Self::E5m2 | Self::E2m3 | Self::E3m2 => 8,
            Self::E2m1 => 4,
        }
    }

    /// Rounds one value into a code.
    #[inline(always)]
    pub fn narrow(self, x: f32, how: Narrow) -> u32 {
        match self {
            Self::F16 => F16.narrow_f32(x, how),
            Self::Bf16 => BF16.narrow_f32(x, how),
            Self::E4m3 => E4M3.narrow_f32(x, how),
            Self::E5m2 => E5M2.narrow_f32(x, how),
            Self::E2m3 => E2M3.narrow_f32(x, how),
            Self::E3m2 => E3M2.narrow_f32(x, how),
            Self::E2m1 => E2M1.narrow_f32(x, how),
        }
    }

    /// Packs `cvt d, a, b`: `a` high, `b` low.
    #[inline(always)]
    pub fn narrow_x2(self, a: f32, b: f32, how: Narrow) -> u32 {
        self.narrow(a, how) << self.container_bits() | self.narrow(b, how)
    }

    /// The two elements of a packed register, low one first, exactly.
    #[inline(always)]
    pub fn unpack_x2(self, register: u32) -> [f32; 2] {
        let format = self.format();
        [format.decode(register), format.decode(register >> self.container_bits())]
    }

    /// Converts a packed pair element by element. Exact when `to` is wider; a NaN becomes the canonical NaN of `to`.
    #[inline]
    pub fn convert_x2(self, register: u32, to: Self, how: Narrow) -> u32 {
        let [low, high] = self.unpack_x2(register);
        to.narrow_x2(high, low, how)
    }

    /// `cvt.rn.scaled::n2::ue8m0.bf16x2.T d, a, scale`: element `i` times `2^(byte i of scale - 127)`, rounded once to
    /// bf16.
    pub fn scale_to_bf16x2(self, register: u32, scale: u16, how: Narrow) -> u32 {
        let [low, high] = self.unpack_x2(register);
        let [s_low, s_high] = scale.to_le_bytes().map(|code| f64::from(decode_ue8m0(code)));
        let narrow = |x: f32, s: f64| BF16.narrow(f64::from(x) * s, how);
        narrow(high, s_high) << 16 | narrow(low, s_low)
    }

    /// `cvt.rs`: adds the random bits to the discarded significand bits and truncates, saturating. `random` holds as
    /// many bits as the position of the carry asks for: 16 for bf16, 13 for f16, 16 for FP8 and FP6, 8 for FP4, aligned
    /// to the top of the discarded bits.
    pub fn stochastic(self, x: f32, random: u32, how: Narrow) -> u32 {
        let width = match self {
            Self::F16 => 13,
            Self::E2m1 => 8,
            Self::Bf16 | Self::E4m3 | Self::E5m2 | Self::E2m3 | Self::E3m2 => 16,
        };
        if !x.is_finite() || x == 0.0 {
            return self.narrow(x, how);
        }
        let format = self.format();
        // The unit of the destination at |x|; below the smallest normal it stays that of the subnormals.
        let exponent = (((x.abs().to_bits() >> 23) as i32).max(1) - 127).max(format.min_exponent());
        let unit = f64::from(exponent - format.mantissa as i32).exp2();
        let noise = f64::from(random & ((1 << width) - 1)) / f64::from(1u32 << width) * unit;
        let moved = f64::from(x.abs()) + noise;
        let toward_zero = Narrow { rounding: Rounding::TowardZero, ..how };
        format.narrow(moved.copysign(f64::from(x)), toward_zero)
    }
}

/// `cvt.{rn,rna,rz}{.satfinite}{.relu}.tf32.f32`: the value in its 32-bit container with the low 13 bits zero.
///
/// NaN gives 0x7fffe000, except with `rna`, which only cuts its bits; `rna.satfinite` takes one unit off where the
/// exponent field is full, also from a NaN.
#[inline]
pub fn narrow_tf32(x: f32, how: Narrow) -> u32 {
    if how.rounding != Rounding::NearestAway || !x.is_nan() {
        return TF32.narrow_f32(x, how) << 13;
    }
    (x.to_bits() & !0x1fff) - if how.satfinite { 0x2000 } else { 0 }
}

/// `cvt.{rz,rp}{.satfinite}.ue8m0x2` of one element.
///
/// `rz` takes the exponent field of the magnitude. `rp` rounds up to the next power of two, magnitudes up to 2^-127
/// give code 0. NaN gives 0xff. A result past 0xfe is 0xfe with `satfinite` and 0xff without.
///
/// # Errors
/// `rp` of a negative value: the sources disagree about it.
pub fn narrow_ue8m0(x: f32, up: bool, satfinite: bool) -> Result<u8, Refused> {
    let magnitude = x.to_bits() & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return Ok(0xff);
    }
    if up && x.is_sign_negative() && magnitude != 0 {
        return Err(Refused("cvt.rp to ue8m0 of a negative value has no established result"));
    }
    let (exponent, fraction) = ((magnitude >> 23) as u8, magnitude & 0x7f_ffff);
    let step = up && fraction != 0 && magnitude > 0x0040_0000 && exponent != 0xff;
    let code = exponent + u8::from(step);
    Ok(if code == 0xff && satfinite { 0xfe } else { code })
}

/// A conversion whose result no source establishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub &'static str);

/// `mul.rn.satfinite.e4m3x4.e2m1x4.e4m3x4 d, a, b`: four products of an FP4 element (nibble `i` of `a`) and an E4M3
/// element (byte `i` of `b`), each rounded once to E4M3 with saturation.
pub fn mul_e4m3x4_e2m1x4_e4m3x4(a: u16, b: u32) -> u32 {
    (0..4).fold(0, |register, i| {
        let product = f64::from(E2M1.decode(u32::from(a >> (4 * i)))) * f64::from(E4M3.decode(b >> (8 * i)));
        register | E4M3.narrow(product, Narrow::RN_SATFINITE) << (8 * i)
    })
}

/// Rounds to an integral value: `.rni .rzi .rmi .rpi`, exactly.
#[inline(always)]
pub fn round_integral(x: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::NearestEven => x.round_ties_even(),
        Rounding::TowardZero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
        Rounding::NearestAway => x.round(),
    }
}

/// An integer type of `cvt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Integer {
    /// 8, 16, 32 or 64.
    pub bits: u32,
    /// Two's complement or unsigned.
    pub signed: bool,
}

/// Float to integer with clamping; the result is sign- or zero-extended to 64 bits.
///
/// NaN gives 0 when the source is not `f64` and the destination has at most 32 bits, otherwise the value with only the
/// top bit set.
pub fn float_to_integer(x: f64, source_is_f64: bool, to: Integer, rounding: Rounding) -> u64 {
    if x.is_nan() {
        if !source_is_f64 && to.bits < 64 {
            return 0;
        }
        let top = 1u64 << (to.bits - 1);
        return if to.signed { (top as i64).wrapping_shl(64 - to.bits).wrapping_shr(64 - to.bits) as u64 } else { top };
    }
    let integral = round_integral(x, rounding);
    if to.signed {
        let (low, high) = (i64::MIN >> (64 - to.bits), i64::MAX >> (64 - to.bits));
        (integral as i64).clamp(low, high) as u64
    } else {
        (integral as u64).min(u64::MAX >> (64 - to.bits))
    }
}

/// Integer (already extended to 64 bits) to `f32`.
pub fn integer_to_f32(x: u64, signed: bool, rounding: Rounding) -> f32 {
    integer(x, signed).to_f32(rounding)
}

/// Integer (already extended to 64 bits) to `f64`.
pub fn integer_to_f64(x: u64, signed: bool, rounding: Rounding) -> f64 {
    integer(x, signed).to_f64(rounding)
}

/// Integer (already extended to 64 bits) to a 16-bit float.
pub fn integer_to_half(x: u64, signed: bool, format: Format, rounding: Rounding) -> u16 {
    integer(x, signed).pack(format.exponent, format.mantissa, rounding) as u16
}

fn integer(x: u64, signed: bool) -> Exact {
    let negative = signed && (x as i64) < 0;
    Exact::from_integer(negative, if negative { (x as i64).unsigned_abs() } else { x })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RN: Narrow = Narrow::RN;
    const SAT: Narrow = Narrow::RN_SATFINITE;

    #[test]
    fn source_a_goes_high() {
        assert_eq!(Packed::F16.narrow_x2(1.0, 2.0, RN), 0x3c00_4000);
        assert_eq!(Packed::Bf16.narrow_x2(1.0, -2.0, RN), 0x3f80_c000);
        assert_eq!(Packed::E4m3.narrow_x2(1.0, 448.0, SAT), 0x387e);
        assert_eq!(Packed::E5m2.narrow_x2(-1.0, 1e9, SAT), 0xbc7b);
        assert_eq!(Packed::E2m1.narrow_x2(6.0, 0.5, SAT), 0x71);
        assert_eq!(Packed::E2m3.narrow_x2(7.5, 0.125, SAT), 0x1f01);
        assert_eq!(Packed::E3m2.narrow_x2(28.0, -0.0625, SAT), 0x1f21);
    }

    #[test]
    fn widening_is_exact_and_nans_are_canonical() {
        assert_eq!(Packed::E4m3.convert_x2(0x7f38, Packed::F16, RN), 0x7fff_3c00);
        assert_eq!(Packed::E4m3.convert_x2(0xff01, Packed::Bf16, RN), 0x7fff_3b00);
        assert_eq!(Packed::E5m2.convert_x2(0x7cfc, Packed::F16, RN), 0x7c00_fc00);
        assert_eq!(Packed::E2m1.convert_x2(0xf1, Packed::F16, RN), 0xc600_3800);
        assert_eq!(Packed::F16.convert_x2(0x3c00_bc00, Packed::E2m1, SAT), 0x2a);
        for code in 0..=255u32 {
            let wide = Packed::E4m3.convert_x2(code << 8 | code, Packed::F16, RN);
            if !E4M3.is_nan(code) {
                assert_eq!(Packed::F16.convert_x2(wide, Packed::E4m3, SAT), code << 8 | code);
            }
        }
    }

    #[test]
    fn tf32() {
        assert_eq!(narrow_tf32(1.0, RN), 0x3f80_0000);
        assert_eq!(narrow_tf32(f32::from_bits(0x3f80_1000), RN), 0x3f80_0000);
        let rna = Narrow { rounding: Rounding::NearestAway, ..RN };
        assert_eq!(narrow_tf32(f32::from_bits(0x3f80_1000), rna), 0x3f80_2000);
        assert_eq!(narrow_tf32(f32::from_bits(0x3f80_3000), RN), 0x3f80_4000);
        assert_eq!(narrow_tf32(f32::from_bits(0xffc0_0001), RN), 0x7fff_e000);
        assert_eq!(narrow_tf32(f32::from_bits(0x7fe4_b2d3), rna), 0x7fe4_a000);
        assert_eq!(narrow_tf32(f32::from_bits(0x7fac_d30a), Narrow { satfinite: true, ..rna }), 0x7fac_a000);
        assert_eq!(narrow_tf32(f32::MAX, SAT), 0x7f7f_e000);
        assert_eq!(narrow_tf32(f32::MAX, RN), 0x7f80_0000);
    }

    #[test]
    fn ue8m0() {
        let rz = |bits| narrow_ue8m0(f32::from_bits(bits), false, false).unwrap();
        let rp = |bits, sat| narrow_ue8m0(f32::from_bits(bits), true, sat).unwrap();
        assert_eq!([rz(0), rz(0x3f80_0000), rz(0xbfff_ffff), rz(0x007f_ffff), rz(0x7f80_0000)], [0, 127, 127, 0, 255]);
        assert_eq!(narrow_ue8m0(f32::INFINITY, false, true), Ok(0xfe));
        assert_eq!(rp(0x3f80_0000, false), 127);
        assert_eq!(rp(0x3f80_0001, false), 128);
        assert_eq!(rp(0x0040_0000, false), 0, "exactly 2^-127");
        assert_eq!(rp(0x0040_0001, false), 1);
        assert_eq!(rp(0x7f7f_ffff, false), 0xff);
        assert_eq!(rp(0x7f7f_ffff, true), 0xfe);
        assert_eq!(rp(0x7fc0_0000, true), 0xff);
        assert!(narrow_ue8m0(-1.0, true, true).is_err());
    }

    #[test]
    fn scaled_widening() {
        assert_eq!(Packed::E2m1.scale_to_bf16x2(0x27, 0x7f80, RN), 0x3f80_4140, "6 * 2 low, 1 * 1 high");
        assert_eq!(Packed::E4m3.scale_to_bf16x2(0x3838, 0xff7f, RN), 0x7fff_3f80);
    }

    #[test]
    fn stochastic_rounding_carries_when_the_random_bits_reach_the_discarded_ones() {
        let quarter = f32::from_bits(0x3f80_4000); // 1 + 2^-9: a quarter of a bf16 unit
        assert_eq!(Packed::Bf16.stochastic(quarter, 0xbfff, SAT), 0x3f80);
        assert_eq!(Packed::Bf16.stochastic(quarter, 0xc000, SAT), 0x3f81);
        assert_eq!(Packed::E2m1.stochastic(1.25, 0x7f, SAT), 0x2);
        assert_eq!(Packed::E2m1.stochastic(1.25, 0x80, SAT), 0x3);
        assert_eq!(Packed::E2m1.stochastic(-1.25, 0x80, SAT), 0xb);
        assert_eq!(Packed::E4m3.stochastic(f32::NAN, 0, SAT), 0x7f);
    }

    #[test]
    fn fp4_times_fp8() {
        // 6 * 448 saturates, 0.5 * 1, 1.5 * -2, 0 * 1
        assert_eq!(mul_e4m3x4_e2m1x4_e4m3x4(0x7130, 0x7e38_c038), 0x7e30_c400);
    }

    #[test]
    fn float_to_integer_clamps() {
        let (s32, u32_, s8, u8_, s64, u64_) = (
            Integer { bits: 32, signed: true },
            Integer { bits: 32, signed: false },
            Integer { bits: 8, signed: true },
            Integer { bits: 8, signed: false },
            Integer { bits: 64, signed: true },
            Integer { bits: 64, signed: false },
        );
        let rz = Rounding::TowardZero;
        let to = |x, t, r| float_to_integer(x, false, t, r);
        assert_eq!(to(1e20, s32, rz), i32::MAX as u64);
        assert_eq!(to(-1e20, s32, rz), i64::from(i32::MIN) as u64);
        assert_eq!(to(-1.0, u32_, rz), 0);
        assert_eq!(to(4294967296.0, u32_, rz), 0xffff_ffff);
        assert_eq!(to(200.0, s8, rz), 127);
        assert_eq!(to(300.0, u8_, rz), 255);
        assert_eq!(to(f64::NAN, s32, rz), 0);
        assert_eq!(to(f64::NAN, s64, rz), 1 << 63);
        assert_eq!(to(f64::NAN, u64_, rz), 1 << 63);
        assert_eq!(float_to_integer(f64::NAN, true, s32, rz), 0xffff_ffff_8000_0000);
        assert_eq!(float_to_integer(f64::NAN, true, u32_, rz), 0x8000_0000);
        for (x, rn, z, m, p) in [(2.5, 2, 2, 2, 3), (3.5, 4, 3, 3, 4), (-2.5, -2, -2, -3, -2), (-0.4, 0, 0, -1, 0)] {
            let got = [Rounding::NearestEven, rz, Rounding::Down, Rounding::Up].map(|r| to(x, s32, r) as i64);
            assert_eq!(got, [rn, z, m, p]);
        }
    }

    #[test]
    fn integer_to_float_in_every_mode() {
        for x in [0u64, 1, 0xff_ffff, 0x100_0001, 0x100_0003, u64::MAX, i64::MIN as u64, 0x7fff_ffff_ffff_fdff] {
            let rn = Rounding::NearestEven;
            assert_eq!(integer_to_f32(x, false, rn), x as f32);
            assert_eq!(integer_to_f32(x, true, rn), x as i64 as f32);
            assert_eq!(integer_to_f64(x, false, rn), x as f64);
            assert_eq!(integer_to_f64(x, true, rn), x as i64 as f64);
            assert_eq!(integer_to_half(x, true, F16, rn), F16.narrow(x as i64 as f64, RN) as u16);
        }
        assert_eq!(integer_to_f32(0x100_0001, false, Rounding::Up), 16777218.0);
        assert_eq!(integer_to_f32(0x100_0001, false, Rounding::Down), 16777216.0);
        assert_eq!(integer_to_f32((-0x100_0001i64) as u64, true, Rounding::Down), -16777218.0);
        assert_eq!(integer_to_half(1 << 20, false, F16, Rounding::NearestEven), 0x7c00);
        assert_eq!(integer_to_half(1 << 20, false, F16, Rounding::TowardZero), 0x7bff);
    }
}
