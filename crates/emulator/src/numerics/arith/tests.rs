//! Against exact arithmetic, and edge rows.

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
                        assert!(same(fma(a, b, c, rounding), sum.to_f32(rounding)), "{a:e} {b:e} {c:e} {rounding:?}");
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
        let codes: Vec<u16> =
            (0..=u16::MAX).step_by(331).chain([0, 1, 0x8000, 0x8001, 0x0400, 0x3c00, 0x3f80, 0x7bff, 0x7f7f]).collect();
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
