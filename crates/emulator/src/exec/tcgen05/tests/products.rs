//! mma of every kind against a plain product.

use super::*;

const B_START: usize = 32768;
const SCALES: usize = 49152;

/// One kind with its operands in shared memory.
struct Case {
    target: Target,
    /// Text between `mma.` and the operands.
    op: &'static str,
    descriptor: u32,
    m: usize,
    n: usize,
    k: usize,
    /// Instructions along K.
    steps: usize,
    /// Descriptor units from one step to the next, of A and B.
    step_units: (u64, u64),
    a: (Code, Placement),
    b: (Code, Placement),
    /// Elements of a scale block and codes of the scales 1/2, 1, 2; ids are taken from the descriptor.
    scales: Option<(usize, [u8; 3])>,
}

fn scale_exponent(seed: usize, row: usize, index: usize) -> usize {
    (row * 5 + index * 2 + seed) % 3
}

impl Case {
    fn image(&self) -> Vec<u8> {
        let mut image = Vec::new();
        let k = self.k * self.steps;
        place(&mut image, 0, self.a.1, self.a.0, (self.m, k, 1));
        assert!(image.len() <= B_START);
        image.resize(B_START, 0);
        place(&mut image, B_START, self.b.1, self.b.0, (self.n, k, 2));
        assert!(image.len() <= SCALES);
        if let Some((block, codes)) = self.scales {
            image.resize(SCALES + 4096, codes[1]);
            for seed in [1, 2] {
                let rows = if seed == 1 { self.m } else { self.n };
                for row in 0..rows {
                    for s in 0..k / block {
                        let tile = SCALES + 2048 * (seed - 1) + s / 4 * 512;
                        image[tile + (row % 32) * 16 + (row / 32 % 4) * 4 + s % 4] =
                            codes[scale_exponent(seed, row, s)];
                    }
                }
            }
        }
        image
    }

    fn expected(&self, row: usize, column: usize) -> f64 {
        (0..self.k * self.steps)
            .map(|t| {
                let scale = self.scales.map_or(1.0, |(block, _)| {
                    let exponent = scale_exponent(1, row, t / block) + scale_exponent(2, column, t / block);
                    2f64.powi(exponent as i32 - 2)
                });
                value(1, row, t) * value(2, column, t) * scale
            })
            .sum()
    }

    /// The instructions; D is at column 0, scales from column 256 on.
    fn work(&self) -> String {
        let mut text = String::new();
        let mut operands = String::new();
        if let Some((block, _)) = self.scales {
            text.push_str("add.u32 %t23, %t20, 256; add.u32 %t24, %t20, 320;\n");
            for g in 0..(self.k * self.steps / block).div_ceil(4) {
                for (register, at) in [("%t23", 0), ("%t24", 2048)] {
                    let start = SCALES + at + 512 * g;
                    let bits = descriptor(Placement { width: 0, k_major: true, leading: 0, stride: 128 }, start);
                    text.push_str(&format!(
                        "mov.b64 %w0, {bits:#x}; @%p0 tcgen05.cp.cta_group::1.32x128b.warpx4 [{register} + {}], %w0;\n",
                        4 * g
                    ));
                }
            }
            operands = ", [%t23], [%t24]".to_string();
        }
        for step in 0..self.steps {
            let bits = |p: Placement, start: usize, units: u64| descriptor(p, start) + units * step as u64;
            text.push_str(&format!(
                "mov.b64 %w0, {:#x}; mov.b64 %w1, {:#x}; mov.b32 %t25, {:#x};\n",
                bits(self.a.1, 0, self.step_units.0),
                bits(self.b.1, B_START, self.step_units.1),
                self.descriptor
            ));
            let enable = if step == 0 { "%p4" } else { "%p3" };
            text.push_str(&format!("@%p0 tcgen05.mma.{} [%t20], %w0, %w1, %t25{operands}, {enable};\n", self.op));
        }
        text
    }

    fn check(&self) {
        let result = |x: f64| if self.op.contains("i8") { x as i32 as u32 } else { (x as f32).to_bits() };
        let halves = self.m == 64 && !self.op.starts_with("ws");
        let outs = if halves { self.n / 2 } else { self.n };
        let load = if halves {
            format!("tcgen05.ld.sync.aligned.16x32bx2.x{outs}.b32 {}, [%t22], {outs};", list("o", outs))
        } else {
            format!("tcgen05.ld.sync.aligned.32x32b.x{outs}.b32 {}, [%t22];", list("o", outs))
        };
        let image = self.image();
        let out = clean(&cta(self.target, &image, outs), &around(&self.work(), &load));
        for tid in 0..128 {
            for i in 0..outs {
                let (row, column) =
                    if halves { (tid / 32 * 16 + tid % 16, i + tid % 32 / 16 * outs) } else { (tid, i) };
                let expected = self.expected(row, column);
                assert_eq!(out[i][tid], result(expected), "{} [{row}][{column}] expected {expected}", self.op);
            }
        }
    }
}

fn plain(op: &'static str, descriptor: u32, k: usize, a: (Code, Placement), b: (Code, Placement)) -> Case {
    let (m, n) = ((descriptor as usize >> 24 & 31) * 16, (descriptor as usize >> 17 & 63) * 8);
    let (target, scales) = (Target::Sm100, None);
    Case { target, op, descriptor, m, n, k, steps: 1, step_units: (0, 0), a, b, scales }
}

const F16: &str = "cta_group::1.kind::f16";

/// N = 32.
const N32: u32 = 4 << 17;
const M128: u32 = 8 << 24;
const M64: u32 = 4 << 24;

#[test]
fn f16_in_every_layout() {
    let mn = |width, leading, stride| Placement { width, k_major: false, leading, stride };
    let core = |leading, stride| Placement { width: 0, k_major: true, leading, stride };
    let placements = [
        core(128, 256),
        core(2048, 128),
        k_major(128, 1024),
        k_major(64, 512),
        k_major(32, 256),
        mn(0, 128, 256),
        mn(128, 2048, 1024),
        mn(64, 1024, 512),
        mn(32, 512, 256),
    ];
    for (i, &a) in placements.iter().enumerate() {
        let b = placements[(i * 4 + 1) % placements.len()];
        let transposed = u32::from(!a.k_major) << 15 | u32::from(!b.k_major) << 16;
        for (code, bits) in [(Code::F16, 0x10), (Code::Bf16, 0x490)] {
            plain(F16, M128 | N32 | bits | transposed, 16, (code, a), (code, b)).check();
        }
    }
}

#[test]
fn steps_inside_a_swizzle_row() {
    let (a, b) = (k_major(128, 1024), k_major(128, 1024));
    let first = plain(F16, M128 | N32 | 0x490, 16, (Code::Bf16, a), (Code::Bf16, b));
    Case { steps: 4, step_units: (2, 2), ..first }.check();
}

#[test]
fn sixty_four_rows() {
    let p = k_major(64, 512);
    plain(F16, M64 | N32 | 0x10, 16, (Code::F16, p), (Code::F16, p)).check();
    plain("ws.cta_group::1.kind::f16", M128 | 8 << 17 | 0x10, 16, (Code::F16, p), (Code::F16, p)).check();
}

#[test]
fn other_plain_kinds() {
    let p = k_major(32, 256);
    plain("cta_group::1.kind::tf32", M128 | N32 | 0x910, 8, (Code::Tf32, p), (Code::Tf32, p)).check();
    plain("cta_group::1.kind::f8f6f4", M128 | N32 | 0x410, 32, (Code::E4m3, p), (Code::E5m2, p)).check();
    plain("cta_group::1.kind::f8f6f4", M128 | N32 | 0x1610, 32, (Code::PaddedE3m2, p), (Code::PaddedE2m1, p)).check();
    plain("cta_group::1.kind::i8", M128 | N32 | 0x4a0, 32, (Code::S8, p), (Code::S8, p)).check();
}

const UE8M0: [u8; 3] = [126, 127, 128];
const UE4M3: [u8; 3] = [0x30, 0x38, 0x40];

#[test]
fn block_scaled_kinds() {
    let (narrow, wide) = (k_major(32, 256), k_major(128, 1024));
    let fp4 = (Code::DenseE2m1, narrow);
    let scaled =
        |op, descriptor, k, a, b, scales| Case { scales: Some(scales), ..plain(op, M128 | N32 | descriptor, k, a, b) };
    let mx8 = "cta_group::1.kind::mxf8f6f4.block_scale.block32";
    scaled(mx8, 0x80_0000, 32, (Code::E4m3, narrow), (Code::E4m3, narrow), (32, UE8M0)).check();
    scaled(mx8, 0x80_1400, 32, (Code::E4m3, narrow), (Code::PaddedE2m1, narrow), (32, UE8M0)).check();
    scaled("cta_group::1.kind::mxf4.block_scale.scale_vec::2X", 0x80_0480, 64, fp4, fp4, (32, UE8M0)).check();
    let nv = "cta_group::1.kind::mxf4nvf4.block_scale.block16";
    scaled(nv, 0x480, 64, fp4, fp4, (16, UE4M3)).check();
    scaled(nv, 0x80_0480, 64, fp4, fp4, (16, UE8M0)).check();
    let two = scaled(nv, 0x480, 64, (Code::DenseE2m1, wide), (Code::DenseE2m1, wide), (16, UE4M3));
    // The scales of the second step lie in the second group: here each step is its own case of K = 64 from group 0.
    assert_eq!(two.k, 64);
    two.check();
}

/// K = 96: six scales, of which two lie in the next group of columns; the row of 48 bytes lies inside a 128-byte row.
#[test]
fn k96_on_sm_103() {
    let p = k_major(128, 1024);
    let fp4 = (Code::DenseE2m1, p);
    let op = "cta_group::1.kind::mxf4nvf4.block_scale.block16";
    let case = plain(op, 1 << 31 | M128 | N32 | 0x480, 96, fp4, fp4);
    let case = Case { target: Target::Sm103, scales: Some((16, UE4M3)), ..case };
    case.check();
    let image = case.image();
    let load = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%o0}, [%t22];";
    let (report, _) = run(&cta(Target::Sm100, &image, 1), &around(&case.work(), load));
    assert!(report.findings[0].message.contains("no K = 96"), "{}", report.findings[0]);
}

#[test]
fn f16_accumulators_negation_and_disabled_lanes() {
    let p = k_major(32, 256);
    let case = plain(F16, M128 | N32 | 1 << 13, 16, (Code::F16, p), (Code::F16, p));
    let image = case.image();
    // Lane 5 of every partition keeps what st wrote.
    let fill: String = (0..32).map(|i| format!("mov.b32 %in{i}, 7;\n")).collect();
    let work = format!(
        "{fill} tcgen05.st.sync.aligned.32x32b.x32.b32 [%t22], {}; tcgen05.wait::st.sync.aligned; bar.sync 0;\n\
         mov.b32 %t30, 32; {}",
        list("in", 32),
        case.work().replace(", %p4;", ", {%t30, %t30, %t30, %t30}, %p4;")
    );
    let load = format!("tcgen05.ld.sync.aligned.32x32b.x16.pack::16b.b32 {}, [%t22];", list("o", 16));
    let out = clean(&cta(Target::Sm100, &image, 16), &around(&work, &load));
    let code = |x: f64| u32::from(half::f16::from_f64(x).to_bits());
    for tid in 0..128 {
        for i in 0..16 {
            let pair = |c: usize| code(-case.expected(tid, c) + 0.0);
            let expected = if tid % 32 == 5 { 0x0007_0007 } else { pair(2 * i) | pair(2 * i + 1) << 16 };
            assert_eq!(out[i][tid], expected, "row {tid} pair {i}");
        }
    }
}

#[test]
fn a_in_tensor_memory_and_scaled_input() {
    let p = k_major(32, 256);
    let case = plain(F16, M128 | N32 | 0x10, 16, (Code::F16, p), (Code::F16, p));
    let image = case.image();
    let words: Vec<Vec<u32>> = (0..8)
        .map(|i| {
            let code = |row, k| u32::from(half::f16::from_f64(value(1, row, k)).to_bits());
            (0..128).map(|row| code(row, 2 * i) | code(row, 2 * i + 1) << 16).collect()
        })
        .collect();
    // Twice: D, then D / 4 + D.
    let mma = case.work().replace("%w0, %w1", "[%t26], %w1");
    let work = format!(
        "add.u32 %t26, %t20, 400; add.u32 %t27, %t22, 400;
         tcgen05.st.sync.aligned.32x32b.x8.b32 [%t27], {}; tcgen05.wait::st.sync.aligned; bar.sync 0; {mma} {}",
        list("in", 8),
        mma.replace(", %p4;", ", %p3, 2;")
    );
    let load = format!("tcgen05.ld.sync.aligned.32x32b.x32.b32 {}, [%t22];", list("o", 32));
    let out = clean(&Cta { inputs: &words, ..cta(Target::Sm100, &image, 32) }, &around(&work, &load));
    for tid in 0..128 {
        for i in 0..32 {
            assert_eq!(out[i][tid], (1.25 * case.expected(tid, i) as f32).to_bits(), "[{tid}][{i}]");
        }
    }
}
