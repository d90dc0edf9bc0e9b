//! IEEE arithmetic of every format in all roundings, minima and maxima, comparison.

use super::{elementwise, program};
use crate::case::Case;
use crate::values::Kind::{self, *};

const ROUNDINGS: [&str; 4] = ["rn", "rz", "rm", "rp"];
const RELATIONS: [&str; 14] =
    ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for rounding in ROUNDINGS {
        for flush in ["", ".ftz"] {
            for op in ["add", "sub", "mul"] {
                for sat in ["", ".sat"] {
                    cases.push(elementwise(&format!("{op}.{rounding}{flush}{sat}.f32"), &[F32, F32], 32));
                }
            }
            for sat in ["", ".sat"] {
                cases.push(elementwise(&format!("fma.{rounding}{flush}{sat}.f32"), &[F32, F32, F32], 32));
            }
            cases.push(elementwise(&format!("div.{rounding}{flush}.f32"), &[F32, F32], 32));
            for op in ["rcp", "sqrt"] {
                cases.push(elementwise(&format!("{op}.{rounding}{flush}.f32"), &[F32], 32));
            }
        }
        for op in ["add", "sub", "mul", "div"] {
            cases.push(elementwise(&format!("{op}.{rounding}.f64"), &[F64, F64], 64));
        }
        cases.push(elementwise(&format!("fma.{rounding}.f64"), &[F64, F64, F64], 64));
        for op in ["rcp", "sqrt"] {
            cases.push(elementwise(&format!("{op}.{rounding}.f64"), &[F64], 64));
        }
    }
    for flush in ["", ".ftz"] {
        for op in ["min", "max"] {
            for mode in ["", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"] {
                cases.push(elementwise(&format!("{op}{flush}{mode}.f32"), &[F32, F32], 32));
            }
        }
        for op in ["abs", "neg"] {
            cases.push(elementwise(&format!("{op}{flush}.f32"), &[F32], 32));
        }
        for relation in RELATIONS {
            cases.push(elementwise(&format!("set.{relation}{flush}.u32.f32"), &[F32, F32], 32));
        }
        cases.push(elementwise(&format!("set.lt{flush}.f32.f32"), &[F32, F32], 32));
        cases.push(elementwise(&format!("slct{flush}.f32.f32"), &[F32, F32, F32], 32));
    }
    for op in ["min", "max"] {
        cases.push(elementwise(&format!("{op}.f64"), &[F64, F64], 64));
    }
    for op in ["abs", "neg"] {
        cases.push(elementwise(&format!("{op}.f64"), &[F64], 64));
    }
    for relation in RELATIONS {
        cases.push(elementwise(&format!("set.{relation}.u32.f64"), &[F64, F64], 32));
    }
    cases.push(elementwise("copysign.f32", &[F32, F32], 32));
    cases.push(elementwise("copysign.f64", &[F64, F64], 64));
    for class in ["finite", "infinite", "number", "notanumber", "normal", "subnormal"] {
        for (ty, kind) in [("f32", F32), ("f64", F64)] {
            let body = format!("testp.{class}.{ty} %p0, %i0; selp.u32 %o0, 1, 0, %p0;");
            cases.push(program(&format!("testp.{class}.{ty}"), &[kind], &[32], &body));
        }
    }
    for (ty, kind) in [("f16", F16), ("f16x2", F16x2), ("bf16", Bf16), ("bf16x2", Bf16x2)] {
        half(&mut cases, ty, kind);
    }
    cases
}

fn half(cases: &mut Vec<Case>, ty: &str, kind: Kind) {
    let bits = kind.bits();
    let is_f16 = ty.starts_with("f16");
    let flushes: &[&str] = if is_f16 { &["", ".ftz"] } else { &[""] };
    for op in ["add", "sub", "mul"] {
        for flush in flushes {
            for sat in if is_f16 { &["", ".sat"][..] } else { &[""] } {
                cases.push(elementwise(&format!("{op}{}{flush}{sat}.{ty}", ".rn"), &[kind, kind], bits));
            }
        }
    }
    for flush in flushes {
        for mode in if is_f16 { &["", ".sat", ".relu"][..] } else { &["", ".relu"] } {
            cases.push(elementwise(&format!("fma.rn{flush}{mode}.{ty}"), &[kind, kind, kind], bits));
        }
        for op in ["min", "max"] {
            for mode in ["", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"] {
                cases.push(elementwise(&format!("{op}{flush}{mode}.{ty}"), &[kind, kind], bits));
            }
        }
        for op in ["abs", "neg"] {
            cases.push(elementwise(&format!("{op}{flush}.{ty}"), &[kind], bits));
        }
        if bits == 16 {
            for relation in RELATIONS {
                let name = format!("setp.{relation}{flush}.{ty}");
                let body = format!("{name} %p0, %i0, %i1; selp.u32 %o0, 1, 0, %p0;");
                cases.push(program(&name, &[kind, kind], &[32], &body));
            }
        } else {
            for relation in ["lt", "neu", "nan"] {
                let name = format!("setp.{relation}{flush}.{ty}");
                let body = format!(
                    "{name} %p0|%p1, %i0, %i1; selp.u32 %r0, 1, 0, %p0; selp.u32 %r1, 2, 0, %p1; or.b32 %o0, %r0, %r1;"
                );
                cases.push(program(&name, &[kind, kind], &[32], &body));
                cases.push(elementwise(&format!("set.{relation}{flush}.{ty}.{ty}"), &[kind, kind], 32));
            }
        }
    }
}
