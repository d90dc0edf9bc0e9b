//! Edge rows of the integer family.

use crate::isa::Target;
use crate::testing::{lanes, run_on, run32, run64};

const EDGES: [u32; 8] = [0, 1, 0xffff_ffff, 0x8000_0000, 0x7fff_ffff, 0x0001_0000, 0x00ff_ff00, 12345];

#[test]
fn sums_and_products() {
    let a = lanes(&EDGES);
    let b = lanes(&[u32::MAX, 1, 2, 0x8000_0000, 3, 7, 11]);
    let out = run32(
        "add.s32 %o0, %r0, %r1; sub.s32 %o1, %r0, %r1; mul.lo.s32 %o2, %r0, %r1; mad.lo.s32 %o3, %r0, %r1, -5;
         add.sat.s32 %o4, %r0, %r1; sub.sat.s32 %o5, %r0, %r1; mul.hi.u32 %o6, %r0, %r1; mul.hi.s32 %o7, %r0, %r1;
         div.s32 %o8, %r0, %r1; rem.s32 %o9, %r0, %r1; div.u32 %o10, %r0, %r1; rem.u32 %o11, %r0, %r1;",
        &[a, b],
        12,
    );
    for lane in 0..32 {
        let (a, b) = (a[lane], b[lane]);
        let (x, y) = (a as i32, b as i32);
        assert_eq!(out[0][lane], a.wrapping_add(b));
        assert_eq!(out[1][lane], a.wrapping_sub(b));
        assert_eq!(out[2][lane], a.wrapping_mul(b));
        assert_eq!(out[3][lane], a.wrapping_mul(b).wrapping_sub(5));
        assert_eq!(out[4][lane], x.saturating_add(y) as u32);
        assert_eq!(out[5][lane], x.saturating_sub(y) as u32);
        assert_eq!(out[6][lane], ((u64::from(a) * u64::from(b)) >> 32) as u32);
        assert_eq!(out[7][lane], ((i64::from(x) * i64::from(y)) >> 32) as u32);
        assert_eq!(out[8][lane], x.wrapping_div(y) as u32);
        assert_eq!(out[9][lane], x.wrapping_rem(y) as u32);
        assert_eq!(out[10][lane], a / b);
        assert_eq!(out[11][lane], a % b);
    }
}

#[test]
fn wide_sums_and_shifts() {
    let a = lanes(&[u64::MAX, 1, 1 << 63, 0x1234_5678_9abc_def0]);
    let b = lanes(&[1, u64::MAX, 1 << 63]);
    let out = run64(
        "add.s64 %q0, %rd0, %rd1; mul.lo.u64 %q1, %rd0, %rd1; mul.hi.u64 %q2, %rd0, %rd1; shl.b64 %q3, %rd0, 12;
         shr.s64 %q4, %rd0, 63; shr.u64 %q5, %rd0, 64; max.s64 %q6, %rd0, %rd1; mul.hi.s64 %q7, %rd0, %rd1;",
        &[a, b],
        8,
    );
    for lane in 0..32 {
        let (a, b) = (a[lane], b[lane]);
        assert_eq!(out[0][lane], a.wrapping_add(b));
        assert_eq!(out[1][lane], a.wrapping_mul(b));
        assert_eq!(out[2][lane], ((u128::from(a) * u128::from(b)) >> 64) as u64);
        assert_eq!(out[3][lane], a << 12);
        assert_eq!(out[4][lane], (a as i64 >> 63) as u64);
        assert_eq!(out[5][lane], 0);
        assert_eq!(out[6][lane], (a as i64).max(b as i64) as u64);
        assert_eq!(out[7][lane], ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64);
    }
}

#[test]
fn sixteen_bit_values_stay_in_sixteen_bits() {
    let a = lanes(&[0xffffu32, 0x8000, 0x7fff, 1]);
    let out = run32(
        "cvt.u16.u32 %h0, %r0; add.s16 %h1, %h0, 1; shr.s16 %h2, %h0, 3; shr.u16 %h3, %h0, 3; mul.lo.s16 %h4, %h0, %h0;
         mul.wide.s16 %o4, %h0, %h0; neg.s16 %h5, %h0; shl.b16 %h6, %h0, 1;
         cvt.u32.u16 %o0, %h1; cvt.u32.u16 %o1, %h2; cvt.u32.u16 %o2, %h3; cvt.u32.u16 %o3, %h4;
         cvt.u32.u16 %o5, %h5; cvt.u32.u16 %o6, %h6;",
        &[a],
        7,
    );
    for lane in 0..32 {
        let a = a[lane] as u16;
        let s = a as i16;
        assert_eq!(out[0][lane], u32::from(a.wrapping_add(1)));
        assert_eq!(out[1][lane], u32::from((s >> 3) as u16));
        assert_eq!(out[2][lane], u32::from(a >> 3));
        assert_eq!(out[3][lane], u32::from(a.wrapping_mul(a)));
        assert_eq!(out[4][lane], (i32::from(s) * i32::from(s)) as u32);
        assert_eq!(out[5][lane], u32::from(a.wrapping_neg()));
        assert_eq!(out[6][lane], u32::from(a << 1));
    }
}

#[test]
fn bits_and_fields() {
    let a = lanes(&EDGES);
    let out = run32(
        "popc.b32 %o0, %r0; clz.b32 %o1, %r0; brev.b32 %o2, %r0; bfind.u32 %o3, %r0; bfind.s32 %o4, %r0;
         bfind.shiftamt.u32 %o5, %r0; bfe.u32 %o6, %r0, 4, 8; bfe.s32 %o7, %r0, 28, 8; bfi.b32 %o8, %r0, 0x55555555, 8, 12;
         not.b32 %o9, %r0; cnot.b32 %o10, %r0; abs.s32 %o11, %r0;",
        &[a],
        12,
    );
    for lane in 0..32 {
        let a = a[lane];
        assert_eq!(out[0][lane], a.count_ones());
        assert_eq!(out[1][lane], a.leading_zeros());
        assert_eq!(out[2][lane], a.reverse_bits());
        assert_eq!(out[3][lane], if a == 0 { u32::MAX } else { 31 - a.leading_zeros() });
        let found = if (a as i32) < 0 { !a } else { a };
        assert_eq!(out[4][lane], if found == 0 { u32::MAX } else { 31 - found.leading_zeros() });
        assert_eq!(out[5][lane], if a == 0 { u32::MAX } else { a.leading_zeros() });
        assert_eq!(out[6][lane], a >> 4 & 0xff);
        assert_eq!(out[7][lane], (a as i32 >> 28) as u32);
        assert_eq!(out[8][lane], 0x5555_5555 & !0x000f_ff00 | (a & 0xfff) << 8);
        assert_eq!(out[9][lane], !a);
        assert_eq!(out[10][lane], u32::from(a == 0));
        assert_eq!(out[11][lane], (a as i32).wrapping_abs() as u32);
    }
}

#[test]
fn permutations_and_funnels() {
    let a = lanes(&[0x4433_2211u32]);
    let b = lanes(&[0x8877_6655u32]);
    let out = run32(
        "prmt.b32 %o0, %r0, %r1, 0x7531; prmt.b32 %o1, %r0, %r1, 0xf000; prmt.b32.f4e %o2, %r0, %r1, 3;
         prmt.b32.b4e %o3, %r0, %r1, 1; prmt.b32.rc8 %o4, %r0, %r1, 2; prmt.b32.ecl %o5, %r0, %r1, 2;
         prmt.b32.ecr %o6, %r0, %r1, 1; prmt.b32.rc16 %o7, %r0, %r1, 1; shf.l.wrap.b32 %o8, %r0, %r1, 40;
         shf.r.clamp.b32 %o9, %r0, %r1, 40; shf.l.clamp.b32 %o10, %r0, %r1, 32; lop3.b32 %o11, %r0, %r1, 0xff00ff00, 0xca;",
        &[a, b],
        12,
    );
    let at = |i: usize| out[i][5];
    assert_eq!(at(0), 0x8866_4422);
    assert_eq!(at(1), 0xff11_1111);
    assert_eq!(at(2), 0x7766_5544);
    assert_eq!(at(3), 0x7788_1122);
    assert_eq!(at(4), 0x3333_3333);
    assert_eq!(at(5), 0x4433_3333);
    assert_eq!(at(6), 0x2222_2211);
    assert_eq!(at(7), 0x4433_4433);
    assert_eq!(at(8), 0x7766_5544);
    assert_eq!(at(9), 0x8877_6655);
    assert_eq!(at(10), 0x4433_2211);
    // 0xca selects b where a is set, c elsewhere.
    assert_eq!(at(11), 0x4433_2211 & 0x8877_6655 | !0x4433_2211 & 0xff00_ff00);
}

#[test]
fn carries_chain() {
    let ran = run_on(
        Target::Sm100,
        "add.cc.u32 %o0, %r0, %r1; addc.cc.u32 %o1, %r2, %r3; addc.u32 %o2, 0, 0;
         sub.cc.u32 %o3, %r0, %r1; subc.u32 %o4, %r2, %r3; mad.lo.cc.u32 %o5, %r0, %r1, %r2; madc.hi.u32 %o6, %r0, %r1, %r3;",
        (&[lanes(&[u32::MAX, 5]), lanes(&[1, 7, u32::MAX]), lanes(&[u32::MAX, 0]), lanes(&[0, 3])], &[]),
        (7, 0),
    );
    assert!(ran.report.is_clean());
    for lane in 0..32 {
        let [a0, b0, a1, b1] =
            [[u32::MAX, 5][lane % 2], [1, 7, u32::MAX][lane % 3], [u32::MAX, 0][lane % 2], [0, 3][lane % 2]];
        let a = u64::from(a1) << 32 | u64::from(a0);
        let b = u64::from(b1) << 32 | u64::from(b0);
        let sum = u128::from(a) + u128::from(b);
        let w = &ran.words;
        assert_eq!((w[0][lane], w[1][lane], w[2][lane]), (sum as u32, (sum >> 32) as u32, (sum >> 64) as u32));
        let difference = a.wrapping_sub(b);
        assert_eq!((w[3][lane], w[4][lane]), (difference as u32, (difference >> 32) as u32));
        let product = (u64::from(a0) * u64::from(b0)).wrapping_add(u64::from(b1) << 32 | u64::from(a1));
        assert_eq!((w[5][lane], w[6][lane]), (product as u32, (product >> 32) as u32));
    }
}

#[test]
fn dot_products_of_bytes() {
    let out = run32(
        "dp4a.s32.s32 %o0, %r0, %r1, 10; dp4a.u32.u32 %o1, %r0, %r1, 10; dp4a.s32.u32 %o2, %r0, %r1, 0; dp2a.lo.s32.s32 %o3, %r0, %r1, 1;
         dp2a.hi.s32.u32 %o4, %r0, %r1, 1; sad.s32 %o5, %r0, %r1, 3; fns.b32 %o6, 0x00008421, 1, 2; fns.b32 %o7, 0x00008421, 9, -1;",
        &[lanes(&[0x80ff_0102]), lanes(&[0x7f02_fe03])],
        8,
    );
    let s = |w: u32, i: u32| i64::from((w >> (8 * i)) as u8 as i8);
    let u = |w: u32, i: u32| i64::from((w >> (8 * i)) as u8);
    let h = |w: u32, i: u32| i64::from((w >> (16 * i)) as u16 as i16);
    let (a, b) = (0x80ff_0102u32, 0x7f02_fe03u32);
    assert_eq!(out[0][0], (10 + (0..4).map(|i| s(a, i) * s(b, i)).sum::<i64>()) as u32);
    assert_eq!(out[1][0], (10 + (0..4).map(|i| u(a, i) * u(b, i)).sum::<i64>()) as u32);
    assert_eq!(out[2][0], (0..4).map(|i| s(a, i) * u(b, i)).sum::<i64>() as u32);
    assert_eq!(out[3][0], (1 + h(a, 0) * s(b, 0) + h(a, 1) * s(b, 1)) as u32);
    assert_eq!(out[4][0], (1 + h(a, 0) * u(b, 2) + h(a, 1) * u(b, 3)) as u32);
    assert_eq!(out[5][0], ((i64::from(a as i32) - i64::from(b as i32)).unsigned_abs() as u32).wrapping_add(3));
    assert_eq!(out[6][0], 10);
    assert_eq!(out[7][0], 5);
}

#[test]
fn products_of_24_bits() {
    let out = run32(
        "mad24.hi.s32 %o0, %r0, %r1, %r2; mad24.hi.sat.s32 %o1, %r0, %r1, %r2; mad24.lo.u32 %o2, %r0, %r1, %r2; mul24.hi.s32 %o3, %r0, %r1;",
        &[lanes(&[0x7f_ffff, 0x80_0000]), lanes(&[0x7f_ffff]), lanes(&[0x7fff_ffff, 0x8000_0001])],
        4,
    );
    for (lane, (a, b, c)) in
        [(0x7f_ffffi64, 0x7f_ffffi64, 0x7fff_ffffi64), (-0x80_0000, 0x7f_ffff, -0x7fff_ffff)].into_iter().enumerate()
    {
        let high = (a * b) >> 16;
        assert_eq!(out[0][lane], (high + c) as u32);
        assert_eq!(out[1][lane] as i32, if lane == 0 { i32::MAX } else { i32::MIN }, "the sum is out of range");
        assert_eq!(out[2][lane], ((a & 0xff_ffff) * b + c) as u32);
        assert_eq!(out[3][lane], high as u32);
    }
}
