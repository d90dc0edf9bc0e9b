//! Rows and decoding of floating-point instructions.

use super::{Binary, Class, FloatOp, HalfOp, Mode, Unary};
use crate::decode::{Decoder, Refusal, types};
use crate::exec::Op;
use crate::isa::table::{BLACKWELL, Row};
use crate::isa::{Target, Type, Words};
use crate::numerics::arith::{Half, HalfType, MinMax};
use crate::numerics::format::Rounding;
use crate::parse::ast::{Instruction, Operand};

/// Targets that multiply e4m3 by e2m1.
const WITH_SCALED_FP4: u8 = Target::Sm100.bit() | Target::Sm103.bit();

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new("add {rn|rz|rm|rp} {ftz} {sat} f32", "d, a, b", binary, "9.7.3.3"),
    Row::new("add {rn|rz|rm|rp} f64", "d, a, b", binary, "9.7.3.3"),
    Row::new("add {rn|rz|rm|rp} {ftz} f32x2", "d, a, b", binary, "9.7.3.3").on(BLACKWELL, 86),
    Row::new("add {rn} {ftz} {sat} (f16|f16x2)", "d, a, b", half, "9.7.4.1"),
    Row::new("add {rn} (bf16|bf16x2)", "d, a, b", half, "9.7.4.1"),
    Row::new("add {rn|rz|rm|rp} {sat} f32 (f16|bf16)", "d, a, c", mixed, "9.7.5.1").on(BLACKWELL, 86),
    Row::new("sub {rn|rz|rm|rp} {ftz} {sat} f32", "d, a, b", binary, "9.7.3.4"),
    Row::new("sub {rn|rz|rm|rp} f64", "d, a, b", binary, "9.7.3.4"),
    Row::new("sub {rn|rz|rm|rp} {ftz} f32x2", "d, a, b", binary, "9.7.3.4").on(BLACKWELL, 86),
    Row::new("sub {rn} {ftz} {sat} (f16|f16x2)", "d, a, b", half, "9.7.4.2"),
    Row::new("sub {rn} (bf16|bf16x2)", "d, a, b", half, "9.7.4.2"),
    Row::new("sub {rn|rz|rm|rp} {sat} f32 (f16|bf16)", "d, a, c", mixed, "9.7.5.2").on(BLACKWELL, 86),
    Row::new("mul {rn|rz|rm|rp} {ftz} {sat} f32", "d, a, b", binary, "9.7.3.5"),
    Row::new("mul {rn|rz|rm|rp} f64", "d, a, b", binary, "9.7.3.5"),
    Row::new("mul {rn|rz|rm|rp} {ftz} f32x2", "d, a, b", binary, "9.7.3.5").on(BLACKWELL, 86),
    Row::new("mul {rn} {ftz} {sat} (f16|f16x2)", "d, a, b", half, "9.7.4.3"),
    Row::new("mul {rn} (bf16|bf16x2)", "d, a, b", half, "9.7.4.3"),
    Row::new("mul rn satfinite e4m3x4 (e2m1x4|e2m1p4x4) e4m3x4", "d, a, b", scale_fp4, "9.7.4")
        .on(WITH_SCALED_FP4, 86)
        .needs(Words::Exact),
    Row::new("fma (rn|rz|rm|rp) {ftz} {sat} f32", "d, a, b, c", fma, "9.7.3.6"),
    Row::new("fma (rn|rz|rm|rp) f64", "d, a, b, c", fma, "9.7.3.6"),
    Row::new("fma (rn|rz|rm|rp) {ftz} f32x2", "d, a, b, c", fma, "9.7.3.6").on(BLACKWELL, 86),
    Row::new("fma rn {ftz} {sat|relu} (f16|f16x2)", "d, a, b, c", half, "9.7.4.4"),
    Row::new("fma rn {relu} (bf16|bf16x2)", "d, a, b, c", half, "9.7.4.4"),
    Row::refused(
        "fma rn {relu} {oob} (f16|f16x2|bf16|bf16x2)",
        "d, a, b, c",
        "the NaN pattern of .oob is not documented",
        "9.7.4.4",
    ),
    Row::new("fma (rn|rz|rm|rp) {sat} f32 (f16|bf16)", "d, a, b, c", mixed, "9.7.5.3").on(BLACKWELL, 86),
    Row::new("mad (rn|rz|rm|rp) {ftz} {sat} f32", "d, a, b, c", fma, "9.7.3.7"),
    Row::new("mad (rn|rz|rm|rp) f64", "d, a, b, c", fma, "9.7.3.7"),
    Row::new("div (rn|rz|rm|rp|approx|full) {ftz} f32", "d, a, b", binary, "9.7.3.8"),
    Row::new("div (rn|rz|rm|rp) f64", "d, a, b", binary, "9.7.3.8"),
    Row::new("min {ftz} {NaN} {xorsign} {abs} f32", "d, a, b{, c}", min_max, "9.7.3.11"),
    Row::new("max {ftz} {NaN} {xorsign} {abs} f32", "d, a, b{, c}", min_max, "9.7.3.12"),
    Row::new("min f64", "d, a, b", min_max, "9.7.3.11"),
    Row::new("max f64", "d, a, b", min_max, "9.7.3.12"),
    Row::new("min {ftz} {NaN} {xorsign} {abs} (f16|f16x2|bf16|bf16x2)", "d, a, b{, c}", half, "9.7.4.7"),
    Row::new("max {ftz} {NaN} {xorsign} {abs} (f16|f16x2|bf16|bf16x2)", "d, a, b{, c}", half, "9.7.4.8"),
    Row::new("abs {ftz} f32", "d, a", unary, "9.7.3.9"),
    Row::new("abs f64", "d, a", unary, "9.7.3.9"),
    Row::new("abs {ftz} (f16|f16x2|bf16|bf16x2)", "d, a", half, "9.7.4.6"),
    Row::new("neg {ftz} f32", "d, a", unary, "9.7.3.10"),
    Row::new("neg f64", "d, a", unary, "9.7.3.10"),
    Row::new("neg {ftz} (f16|f16x2|bf16|bf16x2)", "d, a", half, "9.7.4.5"),
    Row::new("rcp (rn|rz|rm|rp|approx) {ftz} f32", "d, a", unary, "9.7.3.13"),
    Row::new("rcp (rn|rz|rm|rp) f64", "d, a", unary, "9.7.3.13"),
    Row::new("rcp approx ftz f64", "d, a", unary, "9.7.3.14"),
    Row::new("sqrt (rn|rz|rm|rp|approx) {ftz} f32", "d, a", unary, "9.7.3.15"),
    Row::new("sqrt (rn|rz|rm|rp) f64", "d, a", unary, "9.7.3.15"),
    Row::new("rsqrt approx {ftz} f32", "d, a", unary, "9.7.3.16"),
    Row::new("rsqrt approx f64", "d, a", unary, "9.7.3.16"),
    Row::new("rsqrt approx ftz f64", "d, a", unary, "9.7.3.17"),
    Row::new("ex2 approx {ftz} f32", "d, a", unary, "9.7.3.21"),
    Row::new("ex2 approx {ftz} (f16|f16x2|bf16|bf16x2)", "d, a", half, "9.7.4.10"),
    Row::new("lg2 approx {ftz} f32", "d, a", unary, "9.7.3.20"),
    Row::new("sin approx {ftz} f32", "d, a", unary, "9.7.3.18"),
    Row::new("cos approx {ftz} f32", "d, a", unary, "9.7.3.19"),
    Row::new("tanh approx f32", "d, a", unary, "9.7.3.22"),
    Row::new("tanh approx (f16|f16x2|bf16|bf16x2)", "d, a", half, "9.7.4.9"),
    Row::new("copysign (f32|f64)", "d, a, b", binary, "9.7.3.2"),
    Row::new("testp (finite|infinite|number|notanumber|normal|subnormal) (f32|f64)", "p, a", test, "9.7.3.1"),
];

/// Rounding, `.ftz`, `.sat`.
fn mode(instruction: &Instruction) -> Mode {
    Mode {
        rounding: instruction
            .choose(&[
                ("rn", Rounding::NearestEven),
                ("rz", Rounding::TowardZero),
                ("rm", Rounding::Down),
                ("rp", Rounding::Up),
            ])
            .unwrap_or_default(),
        ftz: instruction.has("ftz"),
        sat: instruction.has("sat"),
    }
}

fn binary(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let mode = mode(instruction);
    let op = match instruction.mnemonic.as_str() {
        "add" => Binary::Add,
        "sub" => Binary::Sub,
        "mul" => Binary::Mul,
        "copysign" => Binary::CopySign,
        _ if instruction.has("approx") => Binary::DivApprox,
        _ if instruction.has("full") => Binary::DivFull,
        _ => Binary::Div,
    };
    let [d, a, b] = &instruction.operands[..] else {
        return Refusal::invalid("expected three operands");
    };
    if ty == Type::F32 {
        let (a, b) = (float32(decoder, a)?, float32(decoder, b)?);
        let d = decoder.dst32(d)?;
        return Ok(Op::Float(FloatOp::Binary32 { op, mode, d, a, b }));
    }
    let (a, b) = (float64(decoder, a, ty)?, float64(decoder, b, ty)?);
    let d = decoder.dst64(d)?;
    Ok(Op::Float(if ty == Type::F64 {
        FloatOp::Binary64 { op, rounding: mode.rounding, d, a, b }
    } else {
        FloatOp::Packed32 { op, mode, d, a, b }
    }))
}

/// An f32 to read: literals take the type f32.
fn float32(decoder: &mut Decoder<'_>, operand: &Operand) -> Result<crate::machine::R32, Refusal> {
    match decoder.src(operand, Type::F32)? {
        crate::machine::Reg::R32(r) => Ok(r),
        other => Refusal::invalid(format!("expected a 32-bit value, got {other:?}")),
    }
}

/// An f64 or f32x2 to read.
fn float64(decoder: &mut Decoder<'_>, operand: &Operand, ty: Type) -> Result<crate::machine::R64, Refusal> {
    match decoder.src(operand, ty)? {
        crate::machine::Reg::R64(r) => Ok(r),
        other => Refusal::invalid(format!("expected a 64-bit value, got {other:?}")),
    }
}

fn fma(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let mode = mode(instruction);
    let [d, a, b, c] = &instruction.operands[..] else {
        return Refusal::invalid("expected four operands");
    };
    if ty == Type::F32 {
        let abc = (float32(decoder, a)?, float32(decoder, b)?, float32(decoder, c)?);
        let d = decoder.dst32(d)?;
        return Ok(Op::Float(FloatOp::Fma32 { mode, d, abc }));
    }
    let abc = (float64(decoder, a, ty)?, float64(decoder, b, ty)?, float64(decoder, c, ty)?);
    let d = decoder.dst64(d)?;
    Ok(Op::Float(if ty == Type::F64 {
        FloatOp::Fma64 { rounding: mode.rounding, d, abc }
    } else {
        FloatOp::PackedFma32 { mode, d, abc }
    }))
}

fn how(instruction: &Instruction) -> MinMax {
    MinMax {
        max: instruction.mnemonic == "max",
        nan: instruction.has("NaN"),
        abs: instruction.has("abs") && !instruction.has("xorsign"),
        xorsign: instruction.has("xorsign"),
        ftz: instruction.has("ftz"),
    }
}

fn min_max(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let how = how(instruction);
    let operands = &instruction.operands;
    if ty == Type::F64 {
        let (a, b) = (float64(decoder, &operands[1], ty)?, float64(decoder, &operands[2], ty)?);
        let d = decoder.dst64(&operands[0])?;
        return Ok(Op::Float(FloatOp::MinMax64 { how, d, a, b }));
    }
    let (a, b) = (float32(decoder, &operands[1])?, float32(decoder, &operands[2])?);
    let c = operands.get(3).map(|c| float32(decoder, c)).transpose()?;
    if c.is_some() {
        three_operands(decoder)?;
    }
    let d = decoder.dst32(&operands[0])?;
    Ok(Op::Float(FloatOp::MinMax32 { how, d, a, b, c }))
}

fn three_operands(decoder: &Decoder<'_>) -> Result<(), Refusal> {
    decoder.expect_targets(BLACKWELL, "min or max of three operands")
}

fn unary(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let mode = mode(instruction);
    let approx = instruction.has("approx");
    let op = match instruction.mnemonic.as_str() {
        "abs" => Unary::Abs,
        "neg" => Unary::Neg,
        "rcp" if approx => Unary::RcpApprox,
        "rcp" => Unary::Rcp,
        "sqrt" if approx => Unary::SqrtApprox,
        "sqrt" => Unary::Sqrt,
        "rsqrt" => Unary::Rsqrt,
        "ex2" => Unary::Ex2,
        "lg2" => Unary::Lg2,
        "sin" => Unary::Sin,
        "cos" => Unary::Cos,
        _ => Unary::Tanh,
    };
    if ty == Type::F64 {
        let a = float64(decoder, &instruction.operands[1], ty)?;
        let d = decoder.dst64(&instruction.operands[0])?;
        return Ok(Op::Float(FloatOp::Unary64 { op, mode, d, a }));
    }
    let a = float32(decoder, &instruction.operands[1])?;
    let d = decoder.dst32(&instruction.operands[0])?;
    Ok(Op::Float(FloatOp::Unary32 { op, mode, d, a }))
}

/// f16 and bf16, scalar and packed.
fn half(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let (kind, packed) = match ty {
        Type::F16 => (HalfType::F16, false),
        Type::F16x2 => (HalfType::F16, true),
        Type::Bf16 => (HalfType::Bf16, false),
        _ => (HalfType::Bf16, true),
    };
    let ftz = instruction.has("ftz");
    let modifiers = Half { ftz, sat: instruction.has("sat"), relu: instruction.has("relu") };
    let operands = &instruction.operands;
    let op = match instruction.mnemonic.as_str() {
        "add" => HalfOp::Add(modifiers),
        "sub" => HalfOp::Sub(modifiers),
        "mul" => HalfOp::Mul(modifiers),
        "fma" => HalfOp::Fma(modifiers),
        "min" | "max" => HalfOp::MinMax(how(instruction), operands.len() == 4),
        "abs" => HalfOp::Abs(ftz),
        "neg" => HalfOp::Neg(ftz),
        "ex2" => HalfOp::Ex2,
        _ => HalfOp::Tanh,
    };
    if matches!(op, HalfOp::MinMax(_, true)) {
        three_operands(decoder)?;
    }
    let bits = if packed { Type::B32 } else { Type::B16 };
    let mut sources = Vec::with_capacity(3);
    for operand in &operands[1..] {
        match decoder.src(operand, bits)? {
            crate::machine::Reg::R32(r) => sources.push(r),
            other => return Refusal::invalid(format!("expected a 16- or 32-bit value, got {other:?}")),
        }
    }
    let first = sources[0];
    let abc = (first, sources.get(1).copied().unwrap_or(first), sources.get(2).copied().unwrap_or(first));
    let d = match decoder.dst(&operands[0], bits)? {
        crate::machine::Reg::R32(r) => r,
        other => return Refusal::invalid(format!("expected a 16- or 32-bit register, got {other:?}")),
    };
    Ok(Op::Float(FloatOp::Half { op, kind, packed, d, abc }))
}

fn mixed(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let kind = if types(instruction)[1] == Type::F16 { HalfType::F16 } else { HalfType::Bf16 };
    let mode = mode(instruction);
    let [d, a, rest @ ..] = &instruction.operands[..] else {
        return Refusal::invalid("expected a result and sources");
    };
    let narrow = |decoder: &mut Decoder<'_>, operand| match decoder.src(operand, Type::B16)? {
        crate::machine::Reg::R32(r) => Ok(r),
        other => Refusal::invalid(format!("expected a 16-bit value, got {other:?}")),
    };
    let a = narrow(decoder, a)?;
    let (op, abc) = match rest {
        [b, c] => (Binary::Mul, (a, narrow(decoder, b)?, float32(decoder, c)?)),
        [c] => {
            let c = float32(decoder, c)?;
            (if instruction.mnemonic == "add" { Binary::Add } else { Binary::Sub }, (a, c, c))
        }
        _ => return Refusal::invalid("expected two or three sources"),
    };
    let d = decoder.dst32(d)?;
    Ok(Op::Float(FloatOp::Mixed { op, kind, mode, d, abc }))
}

fn test(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let class = instruction
        .choose(&[
            ("finite", Class::Finite),
            ("infinite", Class::Infinite),
            ("number", Class::Number),
            ("notanumber", Class::NotANumber),
            ("normal", Class::Normal),
            ("subnormal", Class::Subnormal),
        ])
        .unwrap_or(Class::Finite);
    let (a, wide) = if ty == Type::F64 {
        (decoder.constant32(0), Some(float64(decoder, &instruction.operands[1], ty)?))
    } else {
        (float32(decoder, &instruction.operands[1])?, None)
    };
    let p = decoder.dst_pred(&instruction.operands[0])?;
    Ok(Op::Float(FloatOp::Test { class, p, a, wide }))
}

fn scale_fp4(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let a = match decoder.src_any(&instruction.operands[1], Type::B16)? {
        (crate::machine::Reg::R32(r), _) => r,
        (other, _) => return Refusal::invalid(format!("expected a 16-bit value, got {other:?}")),
    };
    let b = decoder.src32(&instruction.operands[2])?;
    let d = decoder.dst32(&instruction.operands[0])?;
    Ok(Op::Float(FloatOp::ScaleFp4 { d, a, b }))
}
