//! Integer arithmetic, bit operations, carries, comparison and selection.

use super::{elementwise, program};
use crate::case::Case;
use crate::values::Kind::{self, *};

fn of(ty: &str) -> Kind {
    match &ty[1..] {
        "16" => I16,
        "64" => I64,
        _ => I32,
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ty in ["u16", "s16", "u32", "s32", "u64", "s64"] {
        let kind = of(ty);
        let bits = kind.bits();
        for op in ["add", "sub", "mul.lo", "mul.hi", "min", "max"] {
            cases.push(elementwise(&format!("{op}.{ty}"), &[kind, kind], bits));
        }
        // Division by zero has no defined result.
        for op in ["div", "rem"] {
            let body = format!("or.b{bits} %i1, %i1, 1; {op}.{ty} %o0, %i0, %i1;");
            cases.push(program(&format!("{op}.{ty}"), &[kind, kind], &[bits], &body));
        }
        for op in ["mad.lo", "mad.hi", "sad"] {
            cases.push(elementwise(&format!("{op}.{ty}"), &[kind, kind, kind], bits));
        }
        cases.push(elementwise(&format!("shr.{ty}"), &[kind, Count], bits));
        for relation in ["eq", "ne", "lt", "le", "gt", "ge"] {
            cases.push(elementwise(&format!("set.{relation}.u32.{ty}"), &[kind, kind], 32));
        }
        if bits < 64 {
            cases.push(elementwise(&format!("mul.wide.{ty}"), &[kind, kind], 2 * bits));
            let wide = if bits == 16 { I32 } else { I64 };
            cases.push(elementwise(&format!("mad.wide.{ty}"), &[kind, kind, wide], 2 * bits));
        }
    }
    for ty in ["u16x2", "s16x2"] {
        for op in ["add", "min", "max"] {
            cases.push(elementwise(&format!("{op}.{ty}"), &[I32, I32], 32));
        }
    }
    for op in ["add.sat.s32", "sub.sat.s32", "min.relu.s32", "max.relu.s32", "min.relu.s16x2", "max.relu.s16x2"] {
        cases.push(elementwise(op, &[I32, I32], 32));
    }
    cases.push(elementwise("mad.hi.sat.s32", &[I32, I32, I32], 32));
    for ty in ["u32", "s32"] {
        for half in ["lo", "hi"] {
            cases.push(elementwise(&format!("mul24.{half}.{ty}"), &[I32, I32], 32));
            cases.push(elementwise(&format!("mad24.{half}.{ty}"), &[I32, I32, I32], 32));
            for other in ["u32", "s32"] {
                cases.push(elementwise(&format!("dp2a.{half}.{ty}.{other}"), &[I32, I32, I32], 32));
            }
        }
        for other in ["u32", "s32"] {
            cases.push(elementwise(&format!("dp4a.{ty}.{other}"), &[I32, I32, I32], 32));
        }
    }
    bits(&mut cases);
    carries(&mut cases);
    video(&mut cases);
    cases
}

/// Scalar video instructions: parts, merges, shifts, products, and the saturation that follows the manual.
fn video(cases: &mut Vec<Case>) {
    let mut add = |form: &str, operands: &str| {
        let body = format!("{form} {operands};");
        cases.push(program(&format!("{form}/{operands}").replace(", ", ","), &[I32, I32, I32], &[32], &body));
    };
    for ty in ["u32.u32.u32", "s32.s32.s32", "s32.u32.s32", "u32.s32.u32"] {
        for op in ["vadd", "vsub", "vabsdiff", "vmin", "vmax"] {
            if ty.starts_with('s') || !matches!(op, "vadd" | "vabsdiff") {
                add(&format!("{op}.{ty}.sat"), "%o0, %i0, %i1");
                add(&format!("{op}.{ty}.sat.max"), "%o0, %i0.b2, %i1.h0, %i2");
            }
        }
        for operands in ["%o0, %i0.h0, %i1.h1, %i2", "%o0, -%i0, %i1, %i2", "%o0, %i0.b3, %i1, -%i2"] {
            add(&format!("vmad.{ty}"), operands);
        }
    }
    for ty in ["u32.u32.u32", "s32.s32.u32", "s32.u32.u32", "u32.s32.u32"] {
        for op in ["vshl", "vshr"] {
            let modes: &[&str] = match op {
                "vshl" => &[".clamp", ".wrap"],
                _ => &[".clamp", ".wrap", ".sat.wrap", ".sat.clamp"],
            };
            for mode in modes {
                add(&format!("{op}.{ty}{mode}"), "%o0, %i0, %i1.b0");
                add(&format!("{op}.{ty}{mode}.add"), "%o0, %i0.h1, %i1.b1, %i2");
            }
        }
    }
}

fn bits(cases: &mut Vec<Case>) {
    for width in [16, 32, 64] {
        let kind = of(&format!("b{width}"));
        for op in ["and", "or", "xor"] {
            cases.push(elementwise(&format!("{op}.b{width}"), &[kind, kind], width));
        }
        for op in ["not", "cnot"] {
            cases.push(elementwise(&format!("{op}.b{width}"), &[kind], width));
        }
        for op in ["abs", "neg"] {
            cases.push(elementwise(&format!("{op}.s{width}"), &[kind], width));
        }
        cases.push(elementwise(&format!("shl.b{width}"), &[kind, Count], width));
        cases.push(program(
            &format!("selp.b{width}"),
            &[kind, kind, I32],
            &[width],
            &format!("setp.lt.s32 %p0, %i2, 0; selp.b{width} %o0, %i0, %i1, %p0;"),
        ));
        cases.push(elementwise(&format!("slct.b{width}.s32"), &[kind, kind, I32], width));
        cases.push(elementwise(&format!("slct.b{width}.f32"), &[kind, kind, F32], width));
    }
    for width in [32, 64] {
        let kind = of(&format!("b{width}"));
        cases.push(elementwise(&format!("brev.b{width}"), &[kind], width));
        for op in ["popc", "clz"] {
            cases.push(elementwise(&format!("{op}.b{width}"), &[kind], 32));
        }
        for sign in ["u", "s"] {
            for form in ["bfind", "bfind.shiftamt"] {
                cases.push(elementwise(&format!("{form}.{sign}{width}"), &[kind], 32));
            }
            cases.push(elementwise(&format!("bfe.{sign}{width}"), &[kind, Count, Count], width));
        }
        cases.push(elementwise(&format!("bfi.b{width}"), &[kind, kind, Count, Count], width));
    }
    for direction in ["l", "r"] {
        for mode in ["clamp", "wrap"] {
            cases.push(elementwise(&format!("shf.{direction}.{mode}.b32"), &[I32, I32, Count], 32));
        }
    }
    for mode in ["clamp", "wrap"] {
        cases.push(elementwise(&format!("bmsk.{mode}.b32"), &[Count, Count], 32));
        for sign in ["u32", "s32"] {
            cases.push(elementwise(&format!("szext.{mode}.{sign}"), &[I32, Count], 32));
        }
    }
    for mode in ["", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"] {
        cases.push(elementwise(&format!("prmt.b32{mode}"), &[I32, I32, I32], 32));
    }
    for table in [0x00, 0x1e, 0x80, 0x96, 0xca, 0xd8, 0xe8, 0xfe, 0xff] {
        let body = format!("lop3.b32 %o0, %i0, %i1, %i2, {table:#x};");
        cases.push(program(&format!("lop3.b32/{table:#04x}"), &[I32, I32, I32], &[32], &body));
    }
    let body = "and.b32 %i1, %i1, 31; shr.s32 %i2, %i2, 26; fns.b32 %o0, %i0, %i1, %i2;";
    cases.push(program("fns.b32", &[I32, I32, I32], &[32], body));
}

fn carries(cases: &mut Vec<Case>) {
    for width in [32, 64] {
        let kind = of(&format!("b{width}"));
        let program = |name: &str, body: String| {
            let name = format!("{name}.u{width}");
            program(&name, &[kind; 4], &[width; 3], &body.replace("TY", &format!("u{width}")))
        };
        cases.push(program(
            "add.cc-addc",
            "add.cc.TY %o0, %i0, %i1; addc.cc.TY %o1, %i2, %i3; addc.TY %o2, %i0, 0;".into(),
        ));
        cases.push(program(
            "sub.cc-subc",
            "sub.cc.TY %o0, %i0, %i1; subc.cc.TY %o1, %i2, %i3; subc.TY %o2, %i0, 0;".into(),
        ));
        cases.push(program(
            "mad.cc-madc",
            "mad.lo.cc.TY %o0, %i0, %i1, %i2; madc.hi.cc.TY %o1, %i0, %i1, %i3; addc.TY %o2, %i0, 0;".into(),
        ));
        cases.push(program(
            "mad.hi.cc-madc.lo",
            "mad.hi.cc.TY %o0, %i0, %i1, %i2; madc.lo.cc.TY %o1, %i2, %i1, %i3; madc.hi.TY %o2, %i0, %i3, %i1;".into(),
        ));
    }
}
