//! Matrices are placed by the formulas of the ISA notes written out here, and results compared with a plain product.
#![allow(clippy::needless_range_loop)] // threads and registers index results and expectations alike

use crate::async_engine::CompletionPolicy;
use crate::emulator::{Emulator, Launch, Module, Report};
use crate::finding::Kind;
use crate::isa::Target;
use crate::options::Options;
use half::{bf16, f16};

/// Program around a body that a CTA executes with its shared memory filled: `%tile` is the address of `image`, `%tid`
/// the thread, `%in0..` its input words, and `%o0..` what is given back, `outs` of them by thread.
pub(crate) struct Cta<'a> {
    pub(crate) target: Target,
    pub(crate) threads: u32,
    pub(crate) image: &'a [u8],
    pub(crate) inputs: &'a [Vec<u32>],
    pub(crate) outs: usize,
}

impl Cta<'_> {
    pub(crate) fn text(&self, body: &str) -> String {
        let bytes = self.image.len().next_multiple_of(16 * self.threads as usize);
        let mut text = format!(
            ".version 9.4\n.target {}\n.address_size 64\n.visible .entry k(.param .u64 image, .param .u64 in, .param .u64 out) {{\n\
             .reg .b32 %o<256>; .reg .b32 %in<256>; .reg .b32 %t<64>; .reg .b64 %g<16>; .reg .b32 %tile, %tid; .reg .pred %p<8>;\n\
             .reg .b64 %w<32>;\n.shared .align 1024 .b8 tile[{}];\n\
             mov.u32 %tile, tile; mov.u32 %tid, %tid.x;\n\
             ld.param.u64 %g0, [image]; mul.wide.u32 %g1, %tid, 16; add.u64 %g1, %g0, %g1;\n\
             mul.lo.u32 %t0, %tid, 16; add.u32 %t0, %t0, %tile;\n",
            self.target,
            bytes + 1024
        );
        for i in 0..bytes / (16 * self.threads as usize) {
            let at = i * 16 * self.threads as usize;
            text.push_str(&format!(
                "ld.global.v4.b32 {{%t1, %t2, %t3, %t4}}, [%g1 + {at}]; st.shared.v4.b32 [%t0 + {at}], {{%t1, %t2, %t3, %t4}};\n"
            ));
        }
        text.push_str("ld.param.u64 %g0, [in]; mul.wide.u32 %g1, %tid, 4; add.u64 %g1, %g0, %g1;\n");
        for i in 0..self.inputs.len() {
            text.push_str(&format!("ld.global.b32 %in{i}, [%g1 + {}];\n", i * 4 * self.threads as usize));
        }
        text.push_str("bar.sync 0;\n");
        text.push_str(body);
        text.push_str("\nld.param.u64 %g0, [out]; mul.wide.u32 %g1, %tid, 4; add.u64 %g1, %g0, %g1;\n");
        for i in 0..self.outs {
            text.push_str(&format!("st.global.b32 [%g1 + {}], %o{i};\n", i * 4 * self.threads as usize));
        }
        text + "ret; }\n"
    }

    /// Runs `body` and gives the report and `[output][thread]`.
    pub(crate) fn run(&self, body: &str, options: impl Fn(&mut Options)) -> (Report, Vec<Vec<u32>>) {
        self.try_run(body, options).unwrap()
    }

    pub(crate) fn try_run(&self, body: &str, options: impl Fn(&mut Options)) -> crate::Result<(Report, Vec<Vec<u32>>)> {
        let module = Module::parse(&self.text(body))?;
        let mut chosen = Options::new(self.target);
        // These programs order nothing with fences and mbarriers: they test data.
        chosen.checks.order = false;
        options(&mut chosen);
        let device = Emulator::new(self.target, chosen);
        let threads = self.threads as usize;
        let mut image = self.image.to_vec();
        image.resize(image.len().next_multiple_of(16 * threads).max(16), 0);
        let words: Vec<u8> = self.inputs.iter().flatten().flat_map(|w| w.to_le_bytes()).collect();
        let buffers = [image, words, vec![0; 4 * threads * self.outs.max(1)]];
        let mut params = Vec::new();
        let mut addresses = Vec::new();
        for (name, data) in ["image", "in", "out"].into_iter().zip(&buffers) {
            let address = device.allocate(name, data.len().max(16) as u64)?;
            device.write(address, data)?;
            params.extend(address.to_le_bytes());
            addresses.push(address);
        }
        let loaded = device.load(&module)?;
        let report = device.launch(&loaded, "k", Launch::linear(1, self.threads), &params)?;
        let bytes = device.read(addresses[2], buffers[2].len())?;
        let words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w)).collect();
        Ok((report, words.chunks(threads).map(<[u32]>::to_vec).collect()))
    }
}

/// Small integers of either sign, exact in every format.
pub(crate) fn value(seed: usize, row: usize, column: usize) -> f64 {
    ((row * 7 + column * 3 + seed * 5 + row * column) % 7) as f64 - 3.0
}

/// Where an operand lies: swizzle width 0, 32, 64 or 128, K- or MN-major, and the two offsets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placement {
    pub(crate) width: usize,
    pub(crate) k_major: bool,
    pub(crate) leading: usize,
    pub(crate) stride: usize,
}

impl Placement {
    /// Byte offset of element (`mn`, `k`) of `e` bytes from the start of the tile, which lies at a multiple of 1024.
    pub(crate) fn at(&self, mn: usize, k: usize, e: usize) -> usize {
        let (lbo, sbo, w, t) = (self.leading, self.stride, self.width, 16 / e);
        let a = match (self.k_major, w) {
            (true, 0) => (mn / 8) * sbo + (mn % 8) * 16 + (k / t) * lbo + (k % t) * e,
            (true, w) => (mn / 8) * sbo + (mn % 8) * w + k * e,
            (false, 0) => (mn % t) * e + (k % 8) * 16 + (mn / t) * sbo + (k / 8) * lbo,
            (false, w) => {
                let p = w / e;
                (mn % p) * e + (mn / p) * lbo + (k % 8) * w + (k / 8) * sbo
            }
        };
        let phase = match w {
            128 => a >> 7 & 7,
            64 => a >> 7 & 3,
            32 => a >> 7 & 1,
            _ => 0,
        };
        a ^ phase << 4
    }

    fn wgmma_bits(&self) -> u64 {
        let layout: u64 = match self.width {
            128 => 1,
            64 => 2,
            32 => 3,
            _ => 0,
        };
        layout << 62 | (self.stride as u64 >> 4) << 32 | (self.leading as u64 >> 4) << 16
    }
}

const fn k_major(width: usize, stride: usize) -> Placement {
    Placement { width, k_major: true, leading: 128, stride }
}

fn place(
    image: &mut Vec<u8>,
    start: usize,
    p: Placement,
    (rows, k, seed): (usize, usize, usize),
    code: &dyn Fn(f64) -> Vec<u8>,
) {
    for mn in 0..rows {
        for t in 0..k {
            let bytes = code(value(seed, mn, t));
            let at = start + p.at(mn, t, bytes.len());
            if image.len() < at + bytes.len() {
                image.resize(at + bytes.len(), 0);
            }
            image[at..at + bytes.len()].copy_from_slice(&bytes);
        }
    }
}

fn expected(k: usize, row: usize, column: usize) -> f64 {
    (0..k).map(|t| value(1, row, t) * value(2, column, t)).sum()
}

const B_START: usize = 16384;

/// Shared address of the image: the first byte that programs own, a multiple of 1024.
pub(crate) const TILE: u64 = 0x400;

/// `%w10` and `%w11` become the descriptors of A and B; the image starts at 0x400.
fn descriptors(a: Placement, b: Placement) -> String {
    let bits = |p: Placement, start: usize| p.wgmma_bits() | (TILE + start as u64) >> 4;
    format!("mov.b64 %w10, {:#x}; mov.b64 %w11, {:#x};\n", bits(a, 0), bits(b, B_START))
}

fn list(prefix: &str, n: usize) -> String {
    let names: Vec<_> = (0..n).map(|i| format!("%{prefix}{i}")).collect();
    format!("{{{}}}", names.join(", "))
}

struct Form<'a> {
    op: &'a str,
    k: usize,
    n: usize,
    tail: &'a str,
}

fn check(form: Form<'_>, (a, b): (Placement, Placement), code: &dyn Fn(f64) -> Vec<u8>, result: &dyn Fn(f64) -> u32) {
    let mut image = Vec::new();
    place(&mut image, 0, a, (64, form.k, 1), code);
    assert!(image.len() <= B_START);
    image.resize(B_START, 0);
    place(&mut image, B_START, b, (form.n, form.k, 2), code);
    let outs = form.n / 2;
    let cta = Cta { target: Target::Sm90, threads: 128, image: &image, inputs: &[], outs };
    let mut body = descriptors(a, b);
    for i in 0..outs {
        body.push_str(&format!("mov.b32 %o{i}, 0x7fffffff;\n"));
    }
    // The first ignores D, the second adds to it.
    let d = list("o", outs);
    body.push_str(&format!(
        "setp.ne.u32 %p0, %tile, 0; setp.eq.u32 %p1, %tile, 0; wgmma.fence.sync.aligned;\n\
         wgmma.mma_async.sync.aligned.{op} {d}, %w10, %w11, %p1{tail};\n\
         wgmma.mma_async.sync.aligned.{op} {d}, %w10, %w11, %p0{tail};\n\
         wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;",
        op = form.op,
        tail = form.tail
    ));
    for policy in [CompletionPolicy::Eager, CompletionPolicy::Lazy] {
        let (report, out) = cta.run(&body, |options| options.policy = policy);
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        for tid in 0..128 {
            let (w, t) = (tid / 32, tid % 32);
            for i in 0..outs {
                let (row, column) = (16 * w + t / 4 + 8 * ((i >> 1) & 1), 8 * (i >> 2) + 2 * (t % 4) + (i & 1));
                let sum = 2.0 * expected(form.k, row, column);
                assert_eq!(out[i][tid], result(sum), "{} {a:?} {b:?} [{row}][{column}]", form.op);
            }
        }
    }
}

fn f32_bits(x: f64) -> u32 {
    (x as f32).to_bits()
}

#[test]
fn bf16_in_every_layout_that_was_measured() {
    let mn = |width, leading, stride| Placement { width, k_major: false, leading, stride };
    let core = |leading, stride| Placement { width: 0, k_major: true, leading, stride };
    let code = |x: f64| bf16::from_f64(x).to_bits().to_le_bytes().to_vec();
    let k_majors = [
        core(128, 256),
        core(1024, 128),
        k_major(128, 1024),
        k_major(128, 2048),
        k_major(64, 512),
        k_major(64, 1024),
        k_major(32, 256),
        k_major(32, 512),
    ];
    let mn_majors = [
        mn(0, 128, 256),
        mn(0, 1024, 128),
        mn(128, 4096, 1024),
        mn(64, 512, 1024),
        mn(64, 1024, 512),
        mn(32, 256, 1024),
        mn(32, 512, 256),
    ];
    for (i, &a) in k_majors.iter().chain(&mn_majors).enumerate() {
        let all = k_majors.len() + mn_majors.len();
        let b = *k_majors.iter().chain(&mn_majors).nth((i * 7 + 3) % all).unwrap();
        let tail = format!(", 1, 1, {}, {}", u32::from(!a.k_major), u32::from(!b.k_major));
        let form = Form { op: "m64n64k16.f32.bf16.bf16", k: 16, n: 64, tail: &tail };
        check(form, (a, b), &code, &f32_bits);
    }
}

#[test]
fn other_types() {
    let rows = (k_major(32, 256), k_major(32, 256));
    let half = |x: f64| f16::from_f64(x).to_bits().to_le_bytes().to_vec();
    let e4m3 = |x: f64| vec![[0x00, 0x38, 0x40, 0x44][x.abs() as usize] | if x < 0.0 { 0x80 } else { 0 }];
    let tf32 = |x: f64| (x as f32).to_le_bytes().to_vec();
    let s8 = |x: f64| vec![x as i8 as u8];
    check(Form { op: "m64n24k16.f32.f16.f16", k: 16, n: 24, tail: ", 1, 1, 0, 0" }, rows, &half, &f32_bits);
    check(Form { op: "m64n16k16.f32.f16.f16", k: 16, n: 16, tail: ", -1, -1, 0, 0" }, rows, &half, &f32_bits);
    check(Form { op: "m64n16k16.f32.f16.f16", k: 16, n: 16, tail: ", -1, 1, 0, 0" }, rows, &half, &|x| {
        f32_bits(0.0 - x)
    });
    check(Form { op: "m64n8k32.f32.e4m3.e4m3", k: 32, n: 8, tail: ", 1, 1" }, rows, &e4m3, &f32_bits);
    check(Form { op: "m64n8k8.f32.tf32.tf32", k: 8, n: 8, tail: ", 1, 1" }, rows, &tf32, &f32_bits);
    check(Form { op: "m64n32k32.s32.s8.s8", k: 32, n: 32, tail: "" }, rows, &s8, &|x| x as i32 as u32);
}

#[test]
fn a_from_registers_and_f16_accumulators() {
    let b = k_major(32, 256);
    let half = |x: f64| f16::from_f64(x).to_bits().to_le_bytes().to_vec();
    let mut image = vec![0; B_START];
    place(&mut image, B_START, b, (8, 16, 2), &half);
    let code = |x: f64| u32::from(f16::from_f64(x).to_bits());
    let inputs: Vec<Vec<u32>> = (0..4)
        .map(|j| {
            (0..128)
                .map(|tid| {
                    let (w, t) = (tid / 32, tid % 32);
                    let (row, k) = (16 * w + t / 4 + 8 * (j % 2), 2 * (t % 4) + 8 * (j / 2));
                    code(value(1, row, k)) | code(value(1, row, k + 1)) << 16
                })
                .collect()
        })
        .collect();
    let cta = Cta { target: Target::Sm90, threads: 128, image: &image, inputs: &inputs, outs: 2 };
    let body = descriptors(b, b)
        + "wgmma.fence.sync.aligned;
           wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%o0, %o1}, {%in0, %in1, %in2, %in3}, %w11, 0, 1, 1, 0;
           wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;";
    let (report, out) = cta.run(&body, |_| ());
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    for tid in 0..128 {
        let (w, t) = (tid / 32, tid % 32);
        for j in 0..2 {
            let (row, column) = (16 * w + t / 4 + 8 * j, 2 * (t % 4));
            let pair = code(expected(16, row, column)) | code(expected(16, row, column + 1)) << 16;
            assert_eq!(out[j][tid], pair, "[{row}][{column}]");
        }
    }
}

/// Accumulators that are used without a wait, or changed without a fence, are told; products are finished as assemblers
/// do.
#[test]
fn missing_waits_and_fences_are_warnings() {
    let b = k_major(32, 256);
    let half = |x: f64| f16::from_f64(x).to_bits().to_le_bytes().to_vec();
    let mut image = Vec::new();
    place(&mut image, 0, b, (64, 16, 1), &half);
    image.resize(B_START, 0);
    place(&mut image, B_START, b, (8, 16, 2), &half);
    let cta = Cta { target: Target::Sm90, threads: 128, image: &image, inputs: &[], outs: 4 };
    let body = descriptors(b, b)
        + "mov.b32 %o0, 77; wgmma.fence.sync.aligned;
           wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%o0, %o1, %o2, %o3}, %w10, %w11, 0, 1, 1, 0, 0;
           wgmma.commit_group.sync.aligned;";
    for policy in [CompletionPolicy::Lazy, CompletionPolicy::Eager] {
        let (report, out) = cta.run(&body, |options| options.policy = policy);
        assert!(!report.findings.is_empty());
        assert!(
            report.findings.iter().all(|f| f.warning && f.message.contains("wgmma.wait_group")),
            "{:?}",
            report.findings
        );
        for (tid, &word) in out[0].iter().enumerate() {
            let (w, t) = (tid / 32, tid % 32);
            assert_eq!(f64::from(f32::from_bits(word)), expected(16, 16 * w + t / 4, 2 * (t % 4)), "thread {tid}");
        }
    }
    let waits = format!("{body} wgmma.wait_group.sync.aligned 0;");
    assert_eq!(cta.run(&waits, |_| ()).0.findings, []);
    let late =
        waits.replace("mov.b32 %o0, 77; wgmma.fence.sync.aligned;", "wgmma.fence.sync.aligned; mov.b32 %o0, 77;");
    let none = waits.replace("wgmma.fence.sync.aligned;", "");
    for (text, words) in [(late, "between another use"), (none, "before the first")] {
        let (report, _) = cta.run(&text, |_| ());
        let found = report.findings.iter().any(|f| f.warning && f.kind == Kind::Wgmma && f.message.contains(words));
        assert!(found, "{words}: {:?}", report.findings);
    }
    let bad = body.replace("%w11, 0,", "%w10, 0,");
    let broken = format!("or.b64 %w10, %w10, {:#x};\n", 1u64 << 52);
    let at = bad.find("mov.b32 %o0, 77").unwrap();
    let bad = format!("{}{broken}{} wgmma.wait_group.sync.aligned 0;", &bad[..at], &bad[at..]);
    let (report, _) = cta.run(&bad, |_| ());
    assert_eq!(report.findings[0].kind, Kind::Wgmma, "reserved descriptor bit");
}
