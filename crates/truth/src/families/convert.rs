//! Conversions between integers and floating-point formats: every operand kind over its edge values, and dense sweeps.

use super::{elementwise, program};
use crate::case::Case;
use crate::values::Kind::{self, *};

const INTEGERS: [&str; 6] = ["u16", "s16", "u32", "s32", "u64", "s64"];
const FLOATS: [(&str, Kind); 4] = [("f16", F16), ("bf16", Bf16), ("f32", F32), ("f64", F64)];

fn integer(ty: &str) -> Kind {
    match &ty[1..] {
        "16" => I16,
        "64" => I64,
        _ => I32,
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for from in INTEGERS {
        for to in INTEGERS.into_iter().filter(|&to| to != from) {
            for sat in ["", ".sat"] {
                // Saturation is legal only where the target does not hold every value.
                let (wide, narrow) = (integer(to).bits(), integer(from).bits());
                let holds = from[..1] == to[..1] && wide >= narrow || from.starts_with('u') && wide > narrow;
                if sat.is_empty() || !holds {
                    cases.push(elementwise(&format!("cvt{sat}.{to}.{from}"), &[integer(from)], wide));
                }
            }
        }
        for (to, kind) in FLOATS {
            for rounding in ["rn", "rz", "rm", "rp"] {
                cases.push(elementwise(&format!("cvt.{rounding}.{to}.{from}"), &[integer(from)], kind.bits()));
            }
        }
    }
    for ty in ["u8", "s8"] {
        let body = format!(
            "cvt.{ty}.s32 %h0, %i0; cvt.s32.{ty} %o0, %h0; cvt.rn.f32.{ty} %o1, %h0; cvt.sat.{ty}.s32 %h1, %i0; cvt.s32.{ty} %o2, %h1; cvt.rzi.{ty}.f32 %h2, %i1; cvt.s32.{ty} %o3, %h2;"
        );
        cases.push(program(&format!("cvt.{ty}"), &[I32, F32], &[32; 4], &body));
    }
    for (from, kind) in FLOATS {
        for to in INTEGERS {
            for rounding in ["rni", "rzi", "rmi", "rpi"] {
                for flush in if from == "f32" { &["", ".ftz"][..] } else { &[""] } {
                    cases.push(elementwise(&format!("cvt.{rounding}{flush}.{to}.{from}"), &[kind], integer(to).bits()));
                }
            }
        }
        for rounding in ["rni", "rzi", "rmi", "rpi"] {
            if from != "bf16" {
                cases.push(elementwise(&format!("cvt.{rounding}.{from}.{from}"), &[kind], kind.bits()));
            }
        }
    }
    between_floats(&mut cases);
    packed(&mut cases);
    cases
}

fn between_floats(cases: &mut Vec<Case>) {
    for rounding in ["rn", "rz", "rm", "rp"] {
        for sat in ["", ".sat"] {
            cases.push(elementwise(&format!("cvt.{rounding}{sat}.f32.f64"), &[F64], 32));
            cases.push(elementwise(&format!("cvt.{rounding}{sat}.f16.f64"), &[F64], 16));
            cases.push(elementwise(&format!("cvt.{rounding}{sat}.f16.f32"), &[F32], 16));
            cases.push(elementwise(&format!("cvt.{rounding}.ftz{sat}.f16.f32"), &[F32], 16));
        }
        cases.push(elementwise(&format!("cvt.{rounding}.ftz.f32.f64"), &[F64], 32));
        cases.push(elementwise(&format!("cvt.{rounding}.bf16.f32"), &[F32], 16));
        cases.push(elementwise(&format!("cvt.{rounding}.bf16.f64"), &[F64], 16));
        cases.push(elementwise(&format!("cvt.{rounding}.bf16.f16"), &[F16], 16));
        cases.push(elementwise(&format!("cvt.{rounding}.f16.bf16"), &[Bf16], 16));
    }
    for form in ["", ".ftz", ".sat", ".ftz.sat"] {
        cases.push(elementwise(&format!("cvt{form}.f32.f16"), &[F16], 32));
        cases.push(elementwise(&format!("cvt{form}.f64.f32"), &[F32], 64));
    }
    cases.push(elementwise("cvt.f64.f16", &[F16], 64));
    cases.push(elementwise("cvt.f32.bf16", &[Bf16], 32));
    cases.push(elementwise("cvt.f64.bf16", &[Bf16], 64));
    cases.push(elementwise("cvt.sat.f32.f32", &[F32], 32));
    cases.push(elementwise("cvt.ftz.f32.f32", &[F32], 32));
    for form in ["rna", "rna.satfinite", "rn", "rz", "rn.relu", "rz.relu"] {
        cases.push(elementwise(&format!("cvt.{form}.tf32.f32"), &[F32], 32));
    }
    for form in ["rn.relu", "rz.relu", "rn.satfinite", "rn.relu.satfinite"] {
        for to in ["f16", "bf16"] {
            cases.push(elementwise(&format!("cvt.{form}.{to}.f32"), &[F32], 16));
        }
    }
    // A dense sweep: every 2 * 65521-th code of f32, and every code of the narrow formats.
    for form in ["rn.f16", "rz.f16", "rm.f16", "rp.f16", "rn.bf16", "rz.bf16", "rna.tf32", "rn.tf32", "rz.tf32"] {
        let out = if form.ends_with("tf32") { 32 } else { 16 };
        let body = format!("mul.lo.u32 %r0, %at, 131042; cvt.{form}.f32 %o0, %r0;");
        let mut case = program(&format!("cvt.{form}.f32/sweep"), &[], &[out], &body);
        case.ctas = 128;
        cases.push(case);
    }
}

fn packed(cases: &mut Vec<Case>) {
    for to in ["f16x2", "bf16x2"] {
        for form in ["rn", "rz", "rn.relu", "rz.relu", "rn.satfinite", "rn.relu.satfinite"] {
            cases.push(elementwise(&format!("cvt.{form}.{to}.f32"), &[F32, F32], 32));
        }
    }
    for fp8 in ["e4m3x2", "e5m2x2"] {
        for relu in ["", ".relu"] {
            cases.push(elementwise(&format!("cvt.rn.satfinite{relu}.{fp8}.f32"), &[F32, F32], 16));
            cases.push(elementwise(&format!("cvt.rn.satfinite{relu}.{fp8}.f16x2"), &[F16x2], 16));
            cases.push(elementwise(&format!("cvt.rn{relu}.f16x2.{fp8}"), &[Fp8x2], 32));
        }
        let body = format!(
            "mul.lo.u32 %r0, %at, 131042; xor.b32 %r1, %r0, 0x55555; cvt.rn.satfinite.{fp8}.f32 %o0, %r0, %r1;"
        );
        let mut case = program(&format!("cvt.rn.satfinite.{fp8}.f32/sweep"), &[], &[16], &body);
        case.ctas = 128;
        cases.push(case);
        let body = format!("mad.lo.u32 %r0, %at, 0x20002, 0x10000; cvt.rn.satfinite.{fp8}.f16x2 %o0, %r0;");
        let mut case = program(&format!("cvt.rn.satfinite.{fp8}.f16x2/every"), &[], &[16], &body);
        case.ctas = 128;
        cases.push(case);
    }
    for ty in ["u16", "s16"] {
        cases.push(elementwise(&format!("cvt.pack.sat.{ty}.s32"), &[I32, I32], 32));
    }
    for ty in ["u8", "s8", "u4", "s4", "u2", "s2"] {
        cases.push(elementwise(&format!("cvt.pack.sat.{ty}.s32.b32"), &[I32, I32, I32], 32));
    }
}
