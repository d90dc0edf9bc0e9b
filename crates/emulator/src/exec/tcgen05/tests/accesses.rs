//! ld, st, cp, shift against cells computed here.

use super::*;
use crate::finding::Kind;

/// Every shape stores with one map and loads back through `.32x32b`.
#[test]
fn stores_of_every_shape_land_where_the_table_says() {
    type Map = fn(usize, usize) -> (usize, usize);
    let shapes: [(&str, usize, usize, Map); 4] = [
        ("32x32b.x8", 8, 8, |l, r| (l, r)),
        ("16x64b.x4", 4, 8, |l, r| (l / 4 + 8 * (l % 2), (l / 2) % 2 + 2 * r)),
        ("16x128b.x2", 4, 8, |l, r| (l / 4 + 8 * (r % 2), l % 4 + 4 * (r / 2))),
        ("16x256b.x1", 4, 8, |l, r| (l / 4 + 8 * (r / 2 % 2), r % 2 + 2 * (l % 4) + 8 * (r / 4))),
    ];
    for (shape, registers, columns, map) in shapes {
        let words: Vec<Vec<u32>> = (0..registers).map(|r| (0..128).map(|t| (1000 * r + t) as u32).collect()).collect();
        let half = if shape.starts_with("16") { 16 << 16 } else { 0 };
        let work = format!(
            "add.u32 %t28, %t22, {half}; tcgen05.st.sync.aligned.{shape}.b32 [%t28], {regs};
             tcgen05.wait::st.sync.aligned;",
            regs = list("in", registers)
        );
        let load = format!("tcgen05.ld.sync.aligned.32x32b.x8.b32 {}, [%t22];", list("o", 8));
        let (report, out) = run(&Cta { inputs: &words, ..cta(Target::Sm100, &[0; 16], 8) }, &around(&work, &load));
        assert!(report.is_clean());
        assert_eq!(report.findings.is_empty(), half == 0, "unwritten rows beside written ones are a warning");
        for warp in 0..4 {
            for lane in 0..32 {
                for r in 0..registers {
                    let (row, column) = map(lane, r);
                    assert!(column < columns);
                    let row = row + half / 65536;
                    let expected = (1000 * r + 32 * warp + lane) as u32;
                    assert_eq!(out[column][32 * warp + row], expected, "{shape} lane {lane} register {r}");
                }
            }
        }
    }
}

#[test]
fn split_halves_packing_and_offsets() {
    let words: Vec<Vec<u32>> =
        (0..4).map(|r| (0..128).map(|t| (r * 0x1000 + t) as u32 | 0xabcd_0000).collect()).collect();
    let work = "tcgen05.st.sync.aligned.16x32bx2.x2.unpack::16b.b32 [%t22], 64, {%in0, %in1};
                tcgen05.st.sync.aligned.32x32b.x2.b32 [%t22 + 128], {%in2, %in3}; tcgen05.wait::st.sync.aligned;";
    let load = "tcgen05.ld.sync.aligned.16x32bx2.x2.pack::16b.b32 {%o0, %o1}, [%t22], 64;
                tcgen05.ld.sync.aligned.32x32b.x2.b32 {%o2, %o3}, [%t22 + 128];
                tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {%o4}, [%t22], 66;";
    let out = clean(&Cta { inputs: &words, ..cta(Target::Sm100, &[0; 16], 5) }, &around(work, load));
    assert_eq!(out[..4], words[..]);
    for t in 0..128 {
        let expected = if t % 32 < 16 { words[0][t] } else { words[1][t] } & 0xffff;
        assert_eq!(out[4][t] & 0xffff, expected, "the low half of register 1 lies at 64 + 2");
    }
}

#[test]
fn reductions_over_a_thread() {
    let words: Vec<Vec<u32>> = [-3.5f32, 2.0, f32::NAN, 1.0].iter().map(|x| vec![x.to_bits(); 128]).collect();
    let work = "tcgen05.st.sync.aligned.32x32b.x4.b32 [%t22], {%in0, %in1, %in2, %in3}; tcgen05.wait::st.sync.aligned;";
    let load = "tcgen05.ld.red.sync.aligned.32x32b.x4.max.f32 {%o0, %o1, %o2, %o3}, %o4, [%t22];
                tcgen05.ld.red.sync.aligned.32x32b.x2.max.abs.f32 {%t1, %t2}, {%o5}, [%t22];
                tcgen05.ld.red.sync.aligned.32x32b.x4.min.NaN.f32 {%t3, %t4, %t5, %t6}, %o6, [%t22];
                tcgen05.ld.red.sync.aligned.32x32b.x4.min.s32 {%t7, %t8, %t9, %t10}, %o7, [%t22];";
    let out = clean(&Cta { inputs: &words, ..cta(Target::Sm103, &[0; 16], 8) }, &around(work, load));
    assert_eq!(out[..4], words[..]);
    assert_eq!(out[4][77], 2f32.to_bits());
    assert_eq!(out[5][77], 3.5f32.to_bits());
    assert_eq!(out[6][77], 0x7fff_ffff);
    assert_eq!(out[7][77], (-3.5f32).to_bits());
}

/// Byte `i` of a pattern that differs everywhere.
fn pattern(i: usize) -> u8 {
    (i * 7 + i / 251) as u8
}

#[test]
fn copies_of_every_shape() {
    let image: Vec<u8> = (0..8192).map(pattern).collect();
    type Source = fn(usize) -> Option<usize>;
    let shapes: [(&str, usize, Source); 5] = [
        ("128x256b", 8, |lane| Some(lane)),
        ("128x128b", 4, |lane| Some(lane)),
        ("64x128b.warpx2::02_13", 4, |lane| Some(lane % 64)),
        ("64x128b.warpx2::01_23", 4, |lane| Some(lane / 64 * 32 + lane % 32)),
        ("32x128b.warpx4", 4, |lane| Some(lane % 32)),
    ];
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| image[at + i]));
    for (shape, columns, source) in shapes {
        // 8-row groups 512 bytes apart, units of a row 128 bytes apart.
        let bits = descriptor(Placement { width: 0, k_major: true, leading: 128, stride: 512 }, 0);
        let work = format!("mov.b64 %w0, {bits:#x}; @%p0 tcgen05.cp.cta_group::1.{shape} [%t20], %w0;");
        let load = format!("tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {}, [%t22];", list("o", columns));
        let out = clean(&cta(Target::Sm100, &image, columns), &around(&work, &load));
        for lane in 0..128 {
            let Some(row) = source(lane) else { continue };
            for column in 0..columns {
                let at = row % 8 * 16 + row / 8 * 512 + column / 4 * 128 + column % 4 * 4;
                assert_eq!(out[column][lane], word(at), "{shape} lane {lane} column {column}");
            }
        }
    }
}

#[test]
fn decompression_and_shift() {
    let image: Vec<u8> = (0..512).map(pattern).collect();
    let bits = descriptor(Placement { width: 0, k_major: true, leading: 0, stride: 128 }, 0);
    let work = format!(
        "mov.b64 %w0, {bits:#x}; @%p0 tcgen05.cp.cta_group::1.32x128b.warpx4.b8x16.b4x16_p64 [%t20], %w0;
         @%p0 tcgen05.cp.cta_group::1.32x128b.warpx4 [%t20 + 4], %w0;
         @%p0 tcgen05.shift.cta_group::1.down [%t20];"
    );
    let load = "tcgen05.ld.sync.aligned.32x32b.x8.b32 {%o0, %o1, %o2, %o3, %o4, %o5, %o6, %o7}, [%t22];";
    let out = clean(&cta(Target::Sm100, &image, 8), &around(&work, load));
    for t in 0..128 {
        let row = (t % 32 + 1).min(31);
        let nibbles = u64::from_le_bytes(std::array::from_fn(|i| image[row * 16 + i]));
        for c in 0..4 {
            let expected = (0..4).fold(0, |w, i| w | ((nibbles >> (4 * (4 * c + i)) & 15) as u32) << 2 << (8 * i));
            assert_eq!(out[c][t], expected);
            let plain = u32::from_le_bytes(std::array::from_fn(|i| image[row * 16 + 4 * c + i]));
            assert_eq!(out[4 + c][t], plain);
        }
    }
}

#[test]
fn loaded_registers_are_used_behind_the_wait() {
    let words: Vec<Vec<u32>> = (0..4).map(|r| (0..128).map(|t| 1000 * r + t).collect()).collect();
    let store =
        "tcgen05.st.sync.aligned.32x32b.x4.b32 [%t22], {%in0, %in1, %in2, %in3}; tcgen05.wait::st.sync.aligned;";
    let load = |between: &str| {
        format!(
            "tcgen05.ld.sync.aligned.32x32b.x2.b32 {{%o0, %o1}}, [%t22];
             tcgen05.ld.sync.aligned.32x32b.x2.b32 {{%o2, %o3}}, [%t22 + 2]; {between}"
        )
    };
    // Other registers, and instructions that no lane executes, may come between.
    let apart = load("mov.b32 %in0, %in1; @%p4 mov.b32 %o0, %o1; tcgen05.wait::ld.sync.aligned; xor.b32 %o2, %o2, 1;");
    let out = clean(&Cta { inputs: &words, ..cta(Target::Sm100, &[0; 16], 4) }, &around(store, &apart));
    assert_eq!(out[2], words[2].iter().map(|word| word ^ 1).collect::<Vec<u32>>());
    for (between, line) in [
        ("\nxor.b32 %o2, %o2, 1;", "xor.b32 %o2"),
        ("\n@%p0 mov.b32 %o1, 5;", "@%p0 mov.b32 %o1"),
        ("\nmov.b64 %tq, {%in0, %o3};", "mov.b64 %tq"),
        ("\ntcgen05.ld.sync.aligned.32x32b.x1.b32 {%o0}, [%t22 + 3];", "x1.b32 {%o0}"),
    ] {
        let body = format!(".reg .b64 %tq;\n{}", around(store, &load(between)));
        let (report, _) = run(&Cta { inputs: &words, ..cta(Target::Sm100, &[0; 16], 4) }, &body);
        let found: Vec<_> = report.findings.iter().map(|f| (f.kind, f.warning, f.ptx.contains(line))).collect();
        assert_eq!(found, [(Kind::TensorMemory, true, true)], "{:?}", report.findings);
        assert!(report.findings[0].message.contains("no tcgen05.wait::ld came behind that"), "{}", report.findings[0]);
    }
}
