//! Products against plain sums over fragments written from the tables.

#![allow(clippy::needless_range_loop)] // lanes and registers index results and expectations alike

use crate::isa::Target;
use crate::testing::{run_on, run32};
use half::{bf16, f16};

/// Small integers of either sign, exact in every format.
fn value(seed: usize, row: usize, column: usize) -> f64 {
    ((row * 7 + column * 3 + seed * 5 + row * column) % 7) as f64 - 3.0
}

fn product(m: usize, k: usize, unsigned: bool) -> Vec<Vec<f64>> {
    let v = |s, r, c| if unsigned { value(s, r, c) + 3.0 } else { value(s, r, c) };
    let cell = |i, j| (0..k).map(|t| v(1, i, t) * v(2, t, j)).sum::<f64>() + value(3, i, j);
    (0..m).map(|i| (0..8).map(|j| cell(i, j)).collect()).collect()
}

/// A and B of 16-row shapes from the table of the ISA notes, element index `i` as there.
fn pack(count: usize, per: usize, code: impl Fn(usize, usize) -> u32) -> Vec<[u32; 32]> {
    let bits = 32 / per;
    (0..count)
        .map(|j| std::array::from_fn(|t| (0..per).fold(0, |word, x| word | code(t, j * per + x) << (bits * x))))
        .collect()
}

fn check(op: &str, (per, k): (usize, usize), unsigned: bool, code: impl Fn(f64) -> u32, result: impl Fn(f64) -> u32) {
    let v = |s, r, c| if unsigned { value(s, r, c) + 3.0 } else { value(s, r, c) };
    let registers = k / (4 * per);
    let a = pack(2 * registers, per, |t, i| {
        let (g, q) = (t / 4, t % 4);
        let (j, x) = (i / per, i % per);
        code(v(1, g + 8 * (j % 2), q * per + x + 4 * per * (j / 2)))
    });
    let b = pack(registers, per, |t, i| {
        let (j, x) = (i / per, i % per);
        code(v(2, (t % 4) * per + x + 4 * per * j, t / 4))
    });
    let c = pack(4, 1, |t, i| result(value(3, t / 4 + 8 * (i / 2), 2 * (t % 4) + i % 2)));
    let inputs: Vec<_> = a.iter().chain(&b).chain(&c).copied().collect();
    let list = |from: usize, n: usize| {
        let names: Vec<_> = (from..from + n).map(|i| format!("%r{i}")).collect();
        format!("{{{}}}", names.join(", "))
    };
    let body = format!(
        "mma.sync.aligned.{op} {{%o0, %o1, %o2, %o3}}, {}, {}, {};",
        list(0, 2 * registers),
        list(2 * registers, registers),
        list(3 * registers, 4)
    );
    let out = run32(&body, &inputs, 4);
    let expected = product(16, k, unsigned);
    for t in 0..32 {
        for i in 0..4 {
            let (row, column) = (t / 4 + 8 * (i / 2), 2 * (t % 4) + i % 2);
            assert_eq!(out[i][t], result(expected[row][column]), "{op} [{row}][{column}]");
        }
    }
}

#[test]
fn float_shapes() {
    let f32_bits = |x: f64| (x as f32).to_bits();
    let half = |x: f64| u32::from(f16::from_f64(x).to_bits());
    let brain = |x: f64| u32::from(bf16::from_f64(x).to_bits());
    // Values -3..=3 in FP8: sign, exponent and fraction written out.
    let e4m3 = |x: f64| [0x00, 0x38, 0x40, 0x44][x.abs() as usize] | if x < 0.0 { 0x80 } else { 0 };
    let e5m2 = |x: f64| [0x00, 0x3c, 0x40, 0x42][x.abs() as usize] | if x < 0.0 { 0x80 } else { 0 };
    check("m16n8k8.row.col.f32.f16.f16.f32", (2, 8), false, half, f32_bits);
    check("m16n8k16.row.col.f32.f16.f16.f32", (2, 16), false, half, f32_bits);
    check("m16n8k16.row.col.f32.bf16.bf16.f32", (2, 16), false, brain, f32_bits);
    check("m16n8k8.row.col.f32.tf32.tf32.f32", (1, 8), false, f32_bits, f32_bits);
    check("m16n8k4.row.col.f32.tf32.tf32.f32", (1, 4), false, f32_bits, f32_bits);
    check("m16n8k32.row.col.f32.e4m3.e4m3.f32", (4, 32), false, e4m3, f32_bits);
    check("m16n8k16.row.col.f32.e5m2.e5m2.f32", (4, 16), false, e5m2, f32_bits);
}

#[test]
fn integer_shapes() {
    let bits = |x: f64| x as i32 as u32;
    check("m16n8k32.row.col.s32.s8.s8.s32", (4, 32), false, |x| bits(x) & 0xff, bits);
    check("m16n8k16.row.col.satfinite.s32.u8.u8.s32", (4, 16), true, |x| bits(x) & 0xff, bits);
    check("m16n8k64.row.col.s32.s4.s4.s32", (8, 64), false, |x| bits(x) & 0xf, bits);
    check("m16n8k32.row.col.s32.u4.u4.s32", (8, 32), true, |x| bits(x) & 0xf, bits);
}

#[test]
fn bits_are_counted() {
    // Word i of lane t of A, B and C.
    let word = |seed: u32, t: usize, i: usize| (t as u32 * 4 + i as u32 + seed).wrapping_mul(0x9e37_79b9);
    let inputs: Vec<[u32; 32]> = (0..4)
        .map(|i| std::array::from_fn(|t| word(1, t, i)))
        .chain((0..2).map(|i| std::array::from_fn(|t| word(2, t, i))))
        .chain((0..4).map(|i| std::array::from_fn(|t| (t + i) as u32)))
        .collect();
    for (op, and) in [("and", true), ("xor", false)] {
        let body = format!(
            "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.{op}.popc {{%o0, %o1, %o2, %o3}}, {{%r0, %r1, %r2, %r3}}, {{%r4, %r5}}, {{%r6, %r7, %r8, %r9}};
             mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.{op}.popc {{%o4, %o5}}, {{%r0}}, {{%r4}}, {{%r6, %r7}};"
        );
        let out = run32(&body, &inputs, 6);
        for t in 0..32 {
            for i in 0..6 {
                // The second instruction has one block of k, and the first two results.
                let (blocks, i, result) = if i < 4 { (2, i, i) } else { (1, i - 4, i) };
                let (row, column) = (t / 4 + 8 * (i / 2), 2 * (t % 4) + i % 2);
                let mut sum = (t + i) as u32;
                for block in 0..blocks {
                    for q in 0..4 {
                        let x = word(1, row % 8 * 4 + q, 2 * block + row / 8);
                        let y = word(2, column * 4 + q, block);
                        sum += if and { x & y } else { x ^ y }.count_ones();
                    }
                }
                assert_eq!(out[result][t], sum, "{op} lane {t} result {result}");
            }
        }
    }
}

#[test]
fn f16_accumulators_are_packed() {
    // A is all ones, B all ones, C = lane number in every element: D = C + 16.
    let ones = [0x3c00_3c00; 32];
    let c = std::array::from_fn(|t| u32::from(f16::from_f32(t as f32).to_bits()) * 0x1_0001);
    let body =
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%o0, %o1}, {%r0, %r0, %r0, %r0}, {%r0, %r0}, {%r1, %r1};";
    let out = run32(body, &[ones, c], 2);
    for t in 0..32 {
        let expected = u32::from(f16::from_f32(t as f32 + 16.0).to_bits()) * 0x1_0001;
        assert_eq!((out[0][t], out[1][t]), (expected, expected));
    }
}

#[test]
fn f64_m8n8k4_and_m16n8k8() {
    let wide = |f: &dyn Fn(usize) -> f64| -> [u64; 32] { std::array::from_fn(|t| f(t).to_bits()) };
    let inputs = [
        wide(&|t| value(1, t / 4, t % 4)),
        wide(&|t| value(1, t / 4 + 8, t % 4)),
        wide(&|t| value(1, t / 4, t % 4 + 4)),
        wide(&|t| value(1, t / 4 + 8, t % 4 + 4)),
        wide(&|t| value(2, t % 4, t / 4)),
        wide(&|t| value(2, t % 4 + 4, t / 4)),
        wide(&|t| value(3, t / 4, 2 * (t % 4))),
        wide(&|t| value(3, t / 4, 2 * (t % 4) + 1)),
        wide(&|t| value(3, t / 4 + 8, 2 * (t % 4))),
        wide(&|t| value(3, t / 4 + 8, 2 * (t % 4) + 1)),
    ];
    let body = "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%q0, %q1, %q2, %q3}, {%rd0, %rd1, %rd2, %rd3}, {%rd4, %rd5}, {%rd6, %rd7, %rd8, %rd9};
                mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%q4, %q5}, {%rd0}, {%rd4}, {%rd6, %rd7};";
    let ran = run_on(Target::Sm90, body, (&[], &inputs), (0, 6));
    assert!(ran.report.findings.is_empty(), "{:?}", ran.report.findings);
    let (eight, four) = (product(16, 8, false), product(8, 4, false));
    for t in 0..32 {
        for i in 0..4 {
            let expected = eight[t / 4 + 8 * (i / 2)][2 * (t % 4) + i % 2];
            assert_eq!(f64::from_bits(ran.wide[i][t]), expected);
        }
        for i in 0..2 {
            assert_eq!(f64::from_bits(ran.wide[4 + i][t]), four[t / 4][2 * (t % 4) + i]);
        }
    }
}
