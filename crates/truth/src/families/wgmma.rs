//! wgmma: every swizzle, both majors of both operands, A from shared memory and registers, every type, accumulation
//! probes.

use super::matrix::fragments;
use crate::case::Case;
use crate::values::{Element, Source};

/// Where an operand lies: mode of the descriptor, whether K runs along rows, and the two offsets in bytes.
#[derive(Clone, Copy)]
struct Placement {
    swizzle: u32,
    k_major: bool,
    leading: u64,
    stride: u64,
}

impl Placement {
    fn descriptor(self) -> u64 {
        let mode = match self.swizzle {
            128 => 1,
            64 => 2,
            32 => 3,
            _ => 0u64,
        };
        mode << 62 | (self.stride >> 4) << 32 | (self.leading >> 4) << 16
    }
}

const fn at(swizzle: u32, k_major: bool, leading: u64, stride: u64) -> Placement {
    Placement { swizzle, k_major, leading, stride }
}

const K_MAJOR: [Placement; 8] = [
    at(0, true, 128, 256),
    at(0, true, 1024, 128),
    at(128, true, 16, 1024),
    at(128, true, 16, 2048),
    at(64, true, 16, 512),
    at(64, true, 16, 1024),
    at(32, true, 16, 256),
    at(32, true, 16, 512),
];

const MN_MAJOR: [Placement; 7] = [
    at(0, false, 128, 256),
    at(0, false, 1024, 128),
    at(128, false, 4096, 1024),
    at(64, false, 512, 1024),
    at(64, false, 1024, 512),
    at(32, false, 256, 1024),
    at(32, false, 512, 256),
];

/// Bytes of shared memory of each operand.
const OPERAND: usize = 16 * 1024;

struct Form {
    name: String,
    op: &'static str,
    tail: String,
    n: usize,
    /// Element of A and B, spread of its exponents.
    element: (Element, Element),
    accumulator: Element,
    spreads: &'static [u32],
    a_in_registers: bool,
    placements: (Placement, Placement),
}

/// Fills shared memory from the data of the CTA, multiplies, gives the accumulators back.
fn case(form: &Form) -> Case {
    let registers = form.n / if form.accumulator == Element::F16 { 4 } else { 2 };
    let a_registers = if form.a_in_registers { 4 } else { 0 };
    let names = |prefix: char, from: usize, count: usize| -> String {
        let list: Vec<String> = (from..from + count).map(|i| format!("%{prefix}{i}")).collect();
        format!("{{{}}}", list.join(", "))
    };
    let moves: String = (0..registers).map(|i| format!("mov.b32 %o{i}, %i{};\n", a_registers + i)).collect();
    let a = if form.a_in_registers { names('i', 0, 4) } else { "%rd1".into() };
    let body = format!(
        "mov.u32 %r0, tile; mad.lo.u32 %r1, %thread, 16, %r0; mul.wide.u32 %rd0, %thread, 16; add.u64 %rd0, %rd0, %data; mul.wide.u32 %rd3, %cta, {image}; add.u64 %rd0, %rd0, %rd3; mov.u32 %r2, 0;
         FILL: ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd0]; st.shared.v4.b32 [%r1], {{%r4, %r5, %r6, %r7}}; add.u64 %rd0, %rd0, 2048; add.u32 %r1, %r1, 2048; add.u32 %r2, %r2, 1; setp.lt.u32 %p0, %r2, {rounds}; @%p0 bra FILL;
         fence.proxy.async.shared::cta; bar.sync 0;
         shr.u32 %r3, %r0, 4; cvt.u64.u32 %rd1, %r3; or.b64 %rd1, %rd1, {a_bits:#x};
         add.u32 %r3, %r0, {OPERAND}; shr.u32 %r3, %r3, 4; cvt.u64.u32 %rd2, %r3; or.b64 %rd2, %rd2, {b_bits:#x};
         setp.eq.u32 %p1, %r0, %r0;
         {moves}
         wgmma.fence.sync.aligned;
         wgmma.mma_async.sync.aligned.{op} {d}, {a}, %rd2, %p1{tail};
         wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;",
        image = 2 * OPERAND,
        rounds = 2 * OPERAND / 2048,
        a_bits = form.placements.0.descriptor(),
        b_bits = form.placements.1.descriptor(),
        op = form.op,
        d = names('o', 0, registers),
        tail = form.tail,
    );
    let mut case = Case::new(format!("wgmma.{}/{}", form.op, form.name), 128, body);
    case.variables = format!(".shared .align 1024 .b8 tile[{}];\n", 2 * OPERAND);
    case.ctas = form.spreads.len() as u32;
    let mut parts = Vec::new();
    if form.a_in_registers {
        parts.push((form.element.0, 32, 4));
    }
    parts.push((form.accumulator, 32, registers));
    case.inputs = fragments(&case.name, 128, &parts);
    for input in &mut case.inputs {
        input.values.truncate(case.threads as usize * form.spreads.len());
    }
    let mut source = Source::named(&case.name);
    case.data.clear();
    for &spread in form.spreads {
        for element in [form.element.0, form.element.1] {
            let bytes = element.bits() as usize / 8;
            for _ in 0..OPERAND / bytes {
                case.data.extend_from_slice(&element.draw(&mut source, spread).to_le_bytes()[..bytes]);
            }
        }
    }
    case.outs = vec![32; registers];
    case
}

fn majors(a: Placement, b: Placement) -> String {
    format!(", 1, 1, {}, {}", u32::from(!a.k_major), u32::from(!b.k_major))
}

pub(super) fn cases() -> Vec<Case> {
    use Element::*;
    let mut cases = Vec::new();
    let every: Vec<Placement> = K_MAJOR.into_iter().chain(MN_MAJOR).collect();
    for (i, &a) in every.iter().enumerate() {
        let b = every[(i * 7 + 3) % every.len()];
        let describe =
            |p: Placement| format!("{}{}-{}-{}", if p.k_major { "k" } else { "mn" }, p.swizzle, p.leading, p.stride);
        cases.push(case(&Form {
            name: format!("{}-{}", describe(a), describe(b)),
            op: "m64n64k16.f32.bf16.bf16",
            tail: majors(a, b),
            n: 64,
            element: (Bf16, Bf16),
            accumulator: F32,
            spreads: &[0],
            a_in_registers: false,
            placements: (a, b),
        }));
    }
    let swizzled = [at(128, true, 16, 1024), at(64, true, 16, 512), at(32, true, 16, 256)];
    for (i, (op, element, accumulator, tail)) in [
        ("m64n16k16.f32.f16.f16", (F16, F16), F32, ", 1, 1, 0, 0"),
        ("m64n16k16.f32.bf16.bf16", (Bf16, Bf16), F32, ", 1, 1, 0, 0"),
        ("m64n16k16.f32.bf16.bf16", (Bf16, Bf16), F32, ", -1, 1, 0, 0"),
        ("m64n16k16.f16.f16.f16", (F16, F16), F16, ", 1, 1, 0, 0"),
        ("m64n16k8.f32.tf32.tf32", (Tf32, Tf32), F32, ", 1, 1"),
        ("m64n16k32.f32.e4m3.e4m3", (E4m3, E4m3), F32, ", 1, 1"),
        ("m64n16k32.f32.e5m2.e5m2", (E5m2, E5m2), F32, ", 1, 1"),
        ("m64n16k32.f32.e4m3.e5m2", (E4m3, E5m2), F32, ", 1, 1"),
        ("m64n16k32.f16.e4m3.e4m3", (E4m3, E4m3), F16, ", 1, 1"),
        ("m64n16k32.s32.s8.s8", (I8, I8), I32, ""),
        ("m64n16k32.s32.u8.s8", (I8, I8), I32, ""),
        ("m64n16k32.satfinite.s32.s8.s8", (I8, I8), I32, ""),
    ]
    .into_iter()
    .enumerate()
    {
        let placement = swizzled[i % 3];
        for registers in [false, true] {
            let mut tail = tail.to_owned();
            // With A in registers only B has a major.
            if registers && tail.len() > 8 {
                tail.truncate(tail.len() - 3);
            }
            cases.push(case(&Form {
                name: format!(
                    "{}{}",
                    if registers { "registers" } else { "shared" },
                    if tail.contains('-') { "-negated" } else { "" }
                ),
                op,
                tail,
                n: 16,
                element,
                accumulator,
                spreads: &[0, 1, 2, 3, 4, 5, 6, 8, 200],
                a_in_registers: registers,
                placements: (placement, placement),
            }));
        }
    }
    cases
}
