//! Decoding of conversions.

use super::{ConvertOp, ScalarMode};
use crate::decode::{Decoder, Refusal, types};
use crate::exec::Op;
use crate::isa::table::{BLACKWELL, Row};
use crate::isa::{Type, Words};
use crate::machine::{R32, Reg};
use crate::numerics::convert::Packed;
use crate::numerics::format::{Narrow, Rounding};
use crate::parse::ast::{Instruction, Operand};

/// Targets with stochastic rounding: 100a, 103a, 107a.
const STOCHASTIC: u8 = crate::isa::table::FAMILY_100;

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new(
        "cvt {sat} (u8|u16|u32|u64|s8|s16|s32|s64) (u8|u16|u32|u64|s8|s16|s32|s64)",
        "d, a",
        decode_scalar,
        "9.7.9.21",
    ),
    Row::new(
        "cvt (rn|rz|rm|rp) {sat} (f16|bf16|f32|f64) (u8|u16|u32|u64|s8|s16|s32|s64)",
        "d, a",
        decode_scalar,
        "9.7.9.21",
    ),
    Row::new(
        "cvt (rni|rzi|rmi|rpi) {ftz} {sat} (u8|u16|u32|u64|s8|s16|s32|s64) (f16|bf16|f32|f64)",
        "d, a",
        decode_scalar,
        "9.7.9.21",
    ),
    Row::new(
        "cvt {rn|rz|rm|rp|rni|rzi|rmi|rpi} {ftz} {sat} {relu} {satfinite} (f16|bf16|f32|f64) (f16|bf16|f32|f64)",
        "d, a",
        decode_scalar,
        "9.7.9.21",
    ),
    Row::new("cvt (rn|rz|rna) {relu} {satfinite} tf32 f32", "d, a", decode_tf32, "9.7.9.21"),
    Row::new("cvt (rn|rz) {relu} {satfinite} (f16x2|bf16x2) f32", "d, a, b", decode_pair, "9.7.9.21"),
    Row::new("cvt rn {relu} satfinite (e4m3x2|e5m2x2) f32", "d, a, b", decode_pair, "9.7.9.21"),
    Row::new("cvt rn {relu} satfinite (e2m1x2|e2m3x2|e3m2x2) f32", "d, a, b", decode_pair, "9.7.9.21")
        .on(BLACKWELL, 86)
        .needs(Words::Family),
    Row::new("cvt rn {relu} satfinite (e4m3x2|e5m2x2) (f16x2)", "d, a", decode_repack, "9.7.9.21"),
    Row::new("cvt rn {relu} satfinite (e4m3x2|e5m2x2) (bf16x2)", "d, a", decode_repack, "9.7.9.21")
        .on(BLACKWELL, 90)
        .needs(Words::Family),
    Row::new("cvt rn {relu} satfinite (e2m1x2|e2m3x2|e3m2x2) (f16x2|bf16x2)", "d, a", decode_repack, "9.7.9.21")
        .on(BLACKWELL, 90)
        .needs(Words::Family),
    Row::new("cvt rn {relu} f16x2 (e4m3x2|e5m2x2)", "d, a", decode_repack, "9.7.9.21"),
    Row::new("cvt rn {relu} f16x2 (e2m1x2|e2m3x2|e3m2x2)", "d, a", decode_repack, "9.7.9.21")
        .on(BLACKWELL, 86)
        .needs(Words::Family),
    Row::new(
        "cvt rn {relu} {satfinite} bf16x2 (e4m3x2|e5m2x2|e2m1x2|e2m3x2|e3m2x2)",
        "d, a",
        decode_repack,
        "9.7.9.21",
    )
    .on(BLACKWELL, 90)
    .needs(Words::Family),
    Row::new(
        "cvt rn {relu} {satfinite} scaled::n2::ue8m0 bf16x2 (e4m3x2|e5m2x2|e2m1x2|e2m3x2|e3m2x2)",
        "d, a, b",
        decode_scaled,
        "9.7.9.21",
    )
    .on(BLACKWELL, 90)
    .needs(Words::Family),
    Row::new("cvt (rz|rp) {satfinite} ue8m0x2 (f32)", "d, a, b", decode_to_scale, "9.7.9.21")
        .on(BLACKWELL, 86)
        .needs(Words::Family),
    Row::new("cvt (rz|rp) {satfinite} ue8m0x2 (bf16x2)", "d, a", decode_to_scale, "9.7.9.21")
        .on(BLACKWELL, 86)
        .needs(Words::Family),
    Row::new("cvt rn bf16x2 ue8m0x2", "d, a", decode_from_scale, "9.7.9.21").on(BLACKWELL, 86).needs(Words::Family),
    Row::new("cvt rs {relu} {satfinite} (f16x2|bf16x2) f32", "d, a, b, r", decode_stochastic, "9.7.9.21")
        .on(STOCHASTIC, 87)
        .needs(Words::Exact),
    Row::new(
        "cvt rs {relu} satfinite (e4m3x4|e5m2x4|e2m3x4|e3m2x4|e2m1x4) f32",
        "d, v, r",
        decode_stochastic,
        "9.7.9.21",
    )
    .on(STOCHASTIC, 87)
    .needs(Words::Exact),
    Row::refused(
        "cvt {rn|rz} {relu} {satfinite} {scaled::n2::ue8m0} (s2f6x2|bf16x2) (f32|bf16x2|s2f6x2)",
        "d, a{, b, c}",
        "the s2f6 format has no established semantics",
        "9.7.9.21",
    ),
    Row::refused(
        "cvt (rz|rp) {satfinite} (e4m3x2|e5m2x2|e2m1x2|ue5m3x2) (f32|f16x2|bf16x2)",
        "d, a{, b}",
        "the sm_107 roundings to FP8 and FP4 have no established semantics",
        "9.7.9.21",
    ),
    Row::new("cvt pack sat (u16|s16) s32", "d, a, b", decode_saturating_pack, "9.7.9.22"),
    Row::new("cvt pack sat (u2|s2|u4|s4|u8|s8) s32 b32", "d, a, b, c", decode_saturating_pack, "9.7.9.22"),
];

fn narrow_of(instruction: &Instruction) -> Narrow {
    Narrow {
        rounding: instruction
            .choose(&[
                ("rn", Rounding::NearestEven),
                ("rz", Rounding::TowardZero),
                ("rm", Rounding::Down),
                ("rp", Rounding::Up),
                ("rna", Rounding::NearestAway),
            ])
            .unwrap_or_default(),
        satfinite: instruction.has("satfinite"),
        relu: instruction.has("relu"),
    }
}

fn packed_of(ty: Type) -> Result<Packed, Refusal> {
    Ok(match ty {
        Type::F16x2 => Packed::F16,
        Type::Bf16x2 => Packed::Bf16,
        Type::E4m3x2 | Type::E4m3x4 => Packed::E4m3,
        Type::E5m2x2 | Type::E5m2x4 => Packed::E5m2,
        Type::E2m3x2 | Type::E2m3x4 => Packed::E2m3,
        Type::E3m2x2 | Type::E3m2x4 => Packed::E3m2,
        Type::E2m1x2 | Type::E2m1x4 => Packed::E2m1,
        other => return Refusal::invalid(format!(".{} is not a packed type", other.word())),
    })
}

fn decode_scalar(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let [to, from] = types(instruction)[..] else {
        return Refusal::invalid("expected two types");
    };
    let integral = instruction.choose(&[
        ("rni", Rounding::NearestEven),
        ("rzi", Rounding::TowardZero),
        ("rmi", Rounding::Down),
        ("rpi", Rounding::Up),
    ]);
    let narrow = narrow_of(instruction);
    let how = ScalarMode {
        rounding: narrow.rounding,
        integral,
        ftz: instruction.has("ftz"),
        sat: instruction.has("sat"),
        relu: narrow.relu,
        satfinite: narrow.satfinite,
    };
    let (a, _) = decoder.src_any(&instruction.operands[1], from)?;
    let (d, _) = decoder.dst_any(&instruction.operands[0], to)?;
    Ok(Op::Convert(ConvertOp::Scalar { d, a, to, from, how }))
}

/// A register of at most 32 bits to write that holds `ty`.
fn dst_narrow(decoder: &mut Decoder<'_>, operand: &Operand, ty: Type) -> Result<R32, Refusal> {
    match decoder.dst_any(operand, ty)? {
        (Reg::R32(r), _) => Ok(r),
        (other, _) => Refusal::invalid(format!("expected a register of at most 32 bits, got {other:?}")),
    }
}

/// A register of at most 32 bits to read that holds `ty`.
fn src_narrow(decoder: &mut Decoder<'_>, operand: &Operand, ty: Type) -> Result<R32, Refusal> {
    match decoder.src_any(operand, ty)? {
        (Reg::R32(r), _) => Ok(r),
        (other, _) => Refusal::invalid(format!("expected a value of at most 32 bits, got {other:?}")),
    }
}

fn decode_tf32(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let a = src_narrow(decoder, &instruction.operands[1], Type::F32)?;
    let d = dst_narrow(decoder, &instruction.operands[0], Type::B32)?;
    Ok(Op::Convert(ConvertOp::Tf32 { d, a, how: narrow_of(instruction) }))
}

fn decode_pair(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let a = src_narrow(decoder, &instruction.operands[1], Type::F32)?;
    let b = src_narrow(decoder, &instruction.operands[2], Type::F32)?;
    let d = dst_narrow(decoder, &instruction.operands[0], ty)?;
    Ok(Op::Convert(ConvertOp::Pair { to: packed_of(ty)?, d, a, b, how: narrow_of(instruction) }))
}

fn decode_repack(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let [to, from] = types(instruction)[..] else {
        return Refusal::invalid("expected two types");
    };
    let a = src_narrow(decoder, &instruction.operands[1], from)?;
    let d = dst_narrow(decoder, &instruction.operands[0], to)?;
    Ok(Op::Convert(ConvertOp::Repack { from: packed_of(from)?, to: packed_of(to)?, d, a, how: narrow_of(instruction) }))
}

fn decode_scaled(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let from = types(instruction)[1];
    let a = src_narrow(decoder, &instruction.operands[1], from)?;
    let scale = src_narrow(decoder, &instruction.operands[2], Type::B16)?;
    let d = dst_narrow(decoder, &instruction.operands[0], Type::B32)?;
    Ok(Op::Convert(ConvertOp::Scaled { from: packed_of(from)?, d, a, scale, how: narrow_of(instruction) }))
}

fn decode_to_scale(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let a = decoder.src32(&instruction.operands[1])?;
    let b = instruction.operands.get(2).map(|b| decoder.src32(b)).transpose()?;
    let d = dst_narrow(decoder, &instruction.operands[0], Type::B16)?;
    let (up, satfinite) = (instruction.has("rp"), instruction.has("satfinite"));
    Ok(Op::Convert(ConvertOp::ToScale { d, a, b, up, satfinite }))
}

fn decode_from_scale(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let a = src_narrow(decoder, &instruction.operands[1], Type::B16)?;
    let d = decoder.dst32(&instruction.operands[0])?;
    Ok(Op::Convert(ConvertOp::FromScale { d, a }))
}

fn decode_stochastic(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let operands = &instruction.operands;
    let (values, random) = match operands.as_slice() {
        [_, Operand::Vector(values), random] => (values.as_slice(), random),
        [_, _, _, random] => (&operands[1..3], random),
        _ => return Refusal::invalid("expected values and random bits"),
    };
    let expected = if matches!(ty, Type::F16x2 | Type::Bf16x2) { 2 } else { 4 };
    if values.len() != expected {
        return Refusal::invalid(format!("expected {expected} values, got {}", values.len()));
    }
    let sources = values.iter().map(|v| src_narrow(decoder, v, Type::F32)).collect::<Result<_, _>>()?;
    let random = decoder.src32(random)?;
    let d = dst_narrow(decoder, &operands[0], ty)?;
    Ok(Op::Convert(ConvertOp::Stochastic { to: packed_of(ty)?, d, sources, random, how: narrow_of(instruction) }))
}

fn decode_saturating_pack(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let found = instruction.choose(&[
        ("u2", (2, false)),
        ("s2", (2, true)),
        ("u4", (4, false)),
        ("s4", (4, true)),
        ("u8", (8, false)),
        ("s8", (8, true)),
        ("u16", (16, false)),
        ("s16", (16, true)),
    ]);
    let Some((bits, signed)) = found else {
        return Refusal::invalid("expected an element type");
    };
    let a = decoder.src32(&instruction.operands[1])?;
    let b = decoder.src32(&instruction.operands[2])?;
    let c = instruction.operands.get(3).map(|c| decoder.src32(c)).transpose()?;
    let d = decoder.dst32(&instruction.operands[0])?;
    Ok(Op::Convert(ConvertOp::SaturatingPack { bits, signed, d, a, b, c }))
}
