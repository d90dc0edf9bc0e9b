//! Edge rows of the floating-point family.

use crate::testing::{lanes, run32, run64};

const EDGES: [f32; 12] = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    f32::MAX,
    f32::MIN_POSITIVE,
    1e-40,
    -1e-45,
    3.402_823e38,
];

fn bits(values: &[f32]) -> [u32; 32] {
    lanes(values).map(f32::to_bits)
}

/// IEEE result with the canonical NaN.
fn canonical(x: f32) -> u32 {
    if x.is_nan() { 0x7fff_ffff } else { x.to_bits() }
}

#[test]
fn f32_sums_are_ieee_with_canonical_nan() {
    let (a, b) = (bits(&EDGES), bits(&[1.0, -1e-40, f32::INFINITY, 2.5, -0.0]));
    let out = run32(
        "add.f32 %o0, %r0, %r1; sub.f32 %o1, %r0, %r1; mul.f32 %o2, %r0, %r1; fma.rn.f32 %o3, %r0, %r1, %r0; div.rn.f32 %o4, %r0, %r1;",
        &[a, b],
        5,
    );
    for lane in 0..32 {
        let (x, y) = (f32::from_bits(a[lane]), f32::from_bits(b[lane]));
        assert_eq!(out[0][lane], canonical(x + y), "{x} + {y}");
        assert_eq!(out[1][lane], canonical(x - y), "{x} - {y}");
        assert_eq!(out[2][lane], canonical(x * y), "{x} * {y}");
        assert_eq!(out[3][lane], canonical(x.mul_add(y, x)), "fma {x} {y}");
        assert_eq!(out[4][lane], canonical(x / y), "{x} / {y}");
    }
}

#[test]
fn ftz_and_sat() {
    let a = bits(&EDGES);
    let out = run32(
        "add.ftz.f32 %o0, %r0, 0f00000000; mul.ftz.f32 %o1, %r0, 0f3F000000; add.sat.f32 %o2, %r0, 0f00000000; abs.ftz.f32 %o3, %r0; neg.f32 %o4, %r0;",
        &[a],
        5,
    );
    let flush = |x: f32| if x.is_subnormal() { 0.0f32.copysign(x) } else { x };
    for lane in 0..32 {
        let x = f32::from_bits(a[lane]);
        assert_eq!(out[0][lane], canonical(flush(x) + 0.0));
        assert_eq!(out[1][lane], canonical(flush(flush(x) * 0.5)));
        let expected = if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) + 0.0 };
        assert_eq!(out[2][lane], expected.to_bits());
        assert_eq!(out[3][lane] & 0x7fff_ffff, out[3][lane]);
        assert_eq!(out[4][lane], canonical(-x), "a NaN becomes canonical, as recorded on the device");
    }
}

#[test]
fn directed_rounding() {
    let out = run32(
        "add.rz.f32 %o0, %r0, %r1; add.rp.f32 %o1, %r0, %r1; add.rm.f32 %o2, %r0, %r1; add.rn.f32 %o3, %r0, %r1; mul.rp.f32 %o4, %r2, %r2; mul.rm.f32 %o5, %r2, %r2;",
        &[bits(&[1.0]), bits(&[1e-10, -1e-10]), bits(&[1.000_000_1])],
        6,
    );
    let one = 1f32.to_bits();
    assert_eq!([out[0][0], out[1][0], out[2][0], out[3][0]], [one, one + 1, one, one]);
    assert_eq!([out[0][1], out[1][1], out[2][1], out[3][1]], [one - 1, one, one - 1, one]);
    assert_eq!(out[4][0], out[5][0] + 1);
}

#[test]
fn min_max_and_nan() {
    let out = run32(
        "min.f32 %o0, %r0, %r1; max.f32 %o1, %r0, %r1; min.NaN.f32 %o2, %r0, %r1; max.xorsign.abs.f32 %o3, %r0, %r1; min.f32 %o4, %r0, %r1, 0fC0000000;",
        &[bits(&[f32::NAN, -0.0, 3.0]), bits(&[2.0, 0.0, -4.0])],
        5,
    );
    let f = |o: usize, lane: usize| f32::from_bits(out[o][lane]);
    assert_eq!((f(0, 0), f(1, 0), out[2][0]), (2.0, 2.0, 0x7fff_ffff));
    assert_eq!((out[0][1], out[1][1]), ((-0f32).to_bits(), 0));
    assert_eq!((f(0, 2), f(1, 2), f(3, 2), f(4, 2)), (-4.0, 3.0, -4.0, -4.0));
}

#[test]
fn packed_pairs_are_two_operations() {
    let pack = |low: f32, high: f32| u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32;
    let out = run64(
        "add.rn.f32x2 %q0, %rd0, %rd1; mul.rn.ftz.f32x2 %q1, %rd0, %rd1; fma.rn.f32x2 %q2, %rd0, %rd1, %rd0; sub.rn.ftz.f32x2 %q3, %rd0, %rd1;",
        &[lanes(&[pack(1.5, -2.0)]), lanes(&[pack(0.25, 8.0)])],
        4,
    );
    assert_eq!(
        [out[0][3], out[1][3], out[2][3], out[3][3]],
        [pack(1.75, 6.0), pack(0.375, -16.0), pack(1.875, -18.0), pack(1.25, -10.0)]
    );
}

#[test]
fn sixteen_bit_pairs() {
    // f16 1.0 = 3c00, 2.0 = 4000, 0.5 = 3800; bf16 1.0 = 3f80, 2.0 = 4000, 3.0 = 4040
    let out = run32(
        "add.rn.f16x2 %o0, %r0, %r1; mul.rn.f16x2 %o1, %r0, %r1; fma.rn.bf16x2 %o2, %r2, %r3, %r2; max.bf16x2 %o3, %r2, %r3; abs.bf16x2 %o4, %r4; neg.bf16x2 %o5, %r2;",
        &[
            lanes(&[0x3c00_4000]),
            lanes(&[0x3800_3c00]),
            lanes(&[0x3f80_4000]),
            lanes(&[0x4000_3f80]),
            lanes(&[0xbf80_4000]),
        ],
        6,
    );
    assert_eq!(out[0][0], 0x3e00_4200);
    assert_eq!(out[1][0], 0x3800_4000);
    assert_eq!(out[2][0], 0x4040_4080);
    assert_eq!(out[3][0], 0x4000_4000);
    assert_eq!(out[4][0], 0x3f80_4000);
    assert_eq!(out[5][0], 0xbf80_c000);
}

#[test]
fn double_precision() {
    let out = run64(
        "add.f64 %q0, %rd0, %rd1; mul.rn.f64 %q1, %rd0, %rd1; fma.rn.f64 %q2, %rd0, %rd1, %rd0; div.rn.f64 %q3, %rd0, %rd1; sqrt.rn.f64 %q4, %rd1; max.f64 %q5, %rd0, %rd1; neg.f64 %q6, %rd0;",
        &[lanes(&[3.5f64.to_bits()]), lanes(&[7.0f64.to_bits()])],
        7,
    );
    let expected = [10.5, 24.5, 28.0, 0.5, 7f64.sqrt(), 7.0, -3.5];
    for (out, expected) in out.iter().zip(expected) {
        assert_eq!(f64::from_bits(out[9]), expected);
    }
}

#[test]
fn approximations_are_within_their_bounds() {
    let x = bits(&[0.3, 1.0, 2.7, 9.0]);
    let out = run32(
        "ex2.approx.ftz.f32 %o0, %r0; lg2.approx.f32 %o1, %r0; rcp.approx.ftz.f32 %o2, %r0; rsqrt.approx.f32 %o3, %r0; sqrt.approx.f32 %o4, %r0; tanh.approx.f32 %o5, %r0;",
        &[x],
        6,
    );
    for lane in 0..4 {
        let x = f64::from(f32::from_bits(x[lane]));
        let expected = [x.exp2(), x.log2(), 1.0 / x, 1.0 / x.sqrt(), x.sqrt(), x.tanh()];
        // Largest bound of the six, relative: tanh 2^-11; the others 2^-22.
        let bounds = [2f64.powi(-22); 5].into_iter().chain([2f64.powi(-11)]);
        for ((out, expected), bound) in out.iter().zip(expected).zip(bounds) {
            let got = f64::from(f32::from_bits(out[lane]));
            assert!((got - expected).abs() <= bound * expected.abs().max(1e-30), "{got} {expected}");
        }
    }
}

/// The upper 32 bits of the result, and zeros for subnormals.
#[test]
fn coarse_reciprocals_of_f64() {
    let values = [4.0, 3.0, 0.0, -0.0, f64::MIN_POSITIVE / 2.0, -f64::MIN_POSITIVE / 2.0, f64::INFINITY, -1.0];
    let inputs = lanes(&values.map(f64::to_bits));
    let out = run64("rsqrt.approx.ftz.f64 %q0, %rd0; rcp.approx.ftz.f64 %q1, %rd0;", &[inputs], 2);
    let upper = |x: f64| x.to_bits() >> 32 << 32;
    let (infinity, nan) = (f64::INFINITY.to_bits(), 0x7fff_ffff_0000_0000);
    let roots = [
        0.5f64.to_bits(),
        upper(1.0 / 3f64.sqrt()),
        infinity,
        1 << 63 | infinity,
        infinity,
        1 << 63 | infinity,
        0,
        nan,
    ];
    let reciprocals =
        [upper(0.25), upper(1.0 / 3.0), infinity, 1 << 63 | infinity, infinity, 1 << 63 | infinity, 0, upper(-1.0)];
    assert_eq!(out[0][..8], roots);
    assert_eq!(out[1][..8], reciprocals);
}
