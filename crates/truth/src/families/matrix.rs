//! ldmatrix, stmatrix, movmatrix, and mma.sync of every type, with probes of its accumulation.

use crate::case::{Case, Input};
use crate::values::{Element, Source};

/// CTAs of a product; each draws its operands from a wider range of exponents.
const SPREADS: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 7, 9, 200, 200, 5];

/// Registers of `element`, `count` of them, for the spreads of [`SPREADS`].
pub(super) fn fragments(name: &str, threads: usize, parts: &[(Element, u32, usize)]) -> Vec<Input> {
    let mut source = Source::named(name);
    let mut inputs = Vec::new();
    for &(element, bits, count) in parts {
        for _ in 0..count {
            let mut values = Vec::new();
            for spread in SPREADS {
                // FP8 has few exponents, and accumulators reach further than products.
                let most = match element {
                    Element::E4m3 => 6,
                    Element::E5m2 | Element::F16 => 13,
                    _ => 20,
                };
                let spread = if spread > 100 { spread } else { spread.min(most) };
                values.extend((0..threads).map(|_| element.register(&mut source, spread, bits)));
            }
            inputs.push(Input { bits, values });
        }
    }
    inputs
}

fn list(prefix: &str, from: usize, count: usize) -> String {
    let names: Vec<String> = (from..from + count).map(|i| format!("%{prefix}{i}")).collect();
    if count == 1 && prefix == "x" { names[0].clone() } else { format!("{{{}}}", names.join(", ")) }
}

struct Product {
    form: &'static str,
    a: (Element, usize),
    b: (Element, usize),
    c: (Element, usize),
    bits: u32,
}

fn product(p: &Product) -> Case {
    let op = format!("mma.sync.aligned.{}", p.form);
    let (a, b, c) = (p.a.1, p.b.1, p.c.1);
    let body = format!("{op} {}, {}, {}, {};", list("o", 0, c), list("i", 0, a), list("i", a, b), list("i", a + b, c));
    let mut case = Case::new(op, 32, body);
    case.ctas = SPREADS.len() as u32;
    let bits = |element: Element| if element == Element::F64 { 64 } else { 32 };
    let parts = [(p.a.0, bits(p.a.0), a), (p.b.0, bits(p.b.0), b), (p.c.0, bits(p.c.0), c)];
    case.inputs = fragments(&case.name, 32, &parts);
    case.outs = vec![p.bits; c];
    case
}

pub(super) fn cases() -> Vec<Case> {
    use Element::*;
    let p = |form, a, b, c| Product { form, a, b, c, bits: if matches!(c, (F64, _)) { 64 } else { 32 } };
    let products = [
        p("m16n8k8.row.col.f32.f16.f16.f32", (F16, 2), (F16, 1), (F32, 4)),
        p("m16n8k16.row.col.f32.f16.f16.f32", (F16, 4), (F16, 2), (F32, 4)),
        p("m16n8k8.row.col.f16.f16.f16.f16", (F16, 2), (F16, 1), (F16, 2)),
        p("m16n8k16.row.col.f16.f16.f16.f16", (F16, 4), (F16, 2), (F16, 2)),
        p("m16n8k8.row.col.f32.bf16.bf16.f32", (Bf16, 2), (Bf16, 1), (F32, 4)),
        p("m16n8k16.row.col.f32.bf16.bf16.f32", (Bf16, 4), (Bf16, 2), (F32, 4)),
        p("m16n8k4.row.col.f32.tf32.tf32.f32", (Tf32, 2), (Tf32, 1), (F32, 4)),
        p("m16n8k8.row.col.f32.tf32.tf32.f32", (Tf32, 4), (Tf32, 2), (F32, 4)),
        p("m16n8k32.row.col.f32.e4m3.e4m3.f32", (E4m3, 4), (E4m3, 2), (F32, 4)),
        p("m16n8k32.row.col.f32.e5m2.e5m2.f32", (E5m2, 4), (E5m2, 2), (F32, 4)),
        p("m16n8k32.row.col.f32.e4m3.e5m2.f32", (E4m3, 4), (E5m2, 2), (F32, 4)),
        p("m16n8k16.row.col.f32.e4m3.e4m3.f32", (E4m3, 2), (E4m3, 1), (F32, 4)),
        p("m16n8k32.row.col.f16.e4m3.e4m3.f16", (E4m3, 4), (E4m3, 2), (F16, 2)),
        p("m16n8k16.row.col.f16.e5m2.e5m2.f16", (E5m2, 2), (E5m2, 1), (F16, 2)),
        p("m8n8k4.row.col.f64.f64.f64.f64", (F64, 1), (F64, 1), (F64, 2)),
        p("m16n8k4.row.col.f64.f64.f64.f64", (F64, 2), (F64, 1), (F64, 4)),
        p("m16n8k8.row.col.f64.f64.f64.f64", (F64, 4), (F64, 2), (F64, 4)),
        p("m16n8k16.row.col.f64.f64.f64.f64", (F64, 8), (F64, 4), (F64, 4)),
        p("m8n8k16.row.col.s32.s8.s8.s32", (I8, 1), (I8, 1), (I32, 2)),
        p("m16n8k16.row.col.s32.s8.u8.s32", (I8, 2), (I8, 1), (I32, 4)),
        p("m16n8k32.row.col.s32.s8.s8.s32", (I8, 4), (I8, 2), (I32, 4)),
        p("m16n8k32.row.col.satfinite.s32.u8.s8.s32", (I8, 4), (I8, 2), (I32, 4)),
        p("m8n8k32.row.col.s32.s4.s4.s32", (I8, 1), (I8, 1), (I32, 2)),
        p("m16n8k32.row.col.s32.u4.s4.s32", (I8, 2), (I8, 1), (I32, 4)),
        p("m16n8k64.row.col.satfinite.s32.s4.s4.s32", (I8, 4), (I8, 2), (I32, 4)),
    ];
    let mut cases: Vec<Case> = products.iter().map(product).collect();
    moves(&mut cases);
    cases
}

fn moves(cases: &mut Vec<Case>) {
    for count in [1, 2, 4] {
        for trans in ["", ".trans"] {
            let vector = list("o", 0, count);
            let fill = "mov.u32 %r0, tile; mad.lo.u32 %r1, %lane, 16, %r0; st.shared.v4.b32 [%r1], {%i0, %i1, %i2, %i3}; bar.sync 0;";
            // Rows in an order that is not that of their addresses.
            let row = "mad.lo.u32 %r2, %lane, 5, 3; and.b32 %r2, %r2, 31; mad.lo.u32 %r2, %r2, 16, %r0;";
            let op = format!("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16");
            cases.push(tile(&op, count, &format!("{fill} {row} {op} {vector}, [%r2];")));
            let op = format!("stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16");
            let source = list("i", 0, count);
            let read = "bar.sync 0; ld.shared.v4.b32 {%o0, %o1, %o2, %o3}, [%r1];";
            cases.push(tile(&op, 4, &format!("{fill} {row} {op} [%r2], {source}; {read}")));
        }
    }
    let op = "movmatrix.sync.aligned.m8n8.trans.b16";
    cases.push(tile(op, 1, &format!("{op} %o0, %i0;")));
}

fn tile(name: &str, outs: usize, body: &str) -> Case {
    let mut case = Case::new(name, 32, body);
    case.variables = ".shared .align 128 .b8 tile[512];\n".into();
    let mut source = Source::named(name);
    let mut input = || Input { bits: 32, values: (0..32).map(|_| source.bits() & 0xffff_ffff).collect() };
    case.inputs = (0..4).map(|_| input()).collect();
    case.outs = vec![32; outs];
    case
}
