//! cvt: between integers, floats, and packed narrow formats. Semantics are those of [`crate::numerics::convert`].

use super::{map1, map2};
use crate::decode::{Decoder, Refusal, types};
use crate::exec::Op;
use crate::finding::Kind;
use crate::isa::Type;
use crate::isa::table::{BLACKWELL, Row};
use crate::machine::{Cluster, Outcome, R32, Reg, Regs, WARP, Warp};
use crate::numerics::arith;
use crate::numerics::convert::{self, Integer, Packed};
use crate::numerics::format::{BF16, F16, F32, Narrow, Rounding, decode_bf16, decode_f16, decode_ue8m0};
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
        .on(BLACKWELL, 86),
    Row::new("cvt rn {relu} satfinite (e4m3x2|e5m2x2) (f16x2)", "d, a", decode_repack, "9.7.9.21"),
    Row::new("cvt rn {relu} satfinite (e4m3x2|e5m2x2) (bf16x2)", "d, a", decode_repack, "9.7.9.21").on(BLACKWELL, 90),
    Row::new("cvt rn {relu} satfinite (e2m1x2|e2m3x2|e3m2x2) (f16x2|bf16x2)", "d, a", decode_repack, "9.7.9.21")
        .on(BLACKWELL, 90),
    Row::new("cvt rn {relu} f16x2 (e4m3x2|e5m2x2)", "d, a", decode_repack, "9.7.9.21"),
    Row::new("cvt rn {relu} f16x2 (e2m1x2|e2m3x2|e3m2x2)", "d, a", decode_repack, "9.7.9.21").on(BLACKWELL, 86),
    Row::new(
        "cvt rn {relu} {satfinite} bf16x2 (e4m3x2|e5m2x2|e2m1x2|e2m3x2|e3m2x2)",
        "d, a",
        decode_repack,
        "9.7.9.21",
    )
    .on(BLACKWELL, 90),
    Row::new(
        "cvt rn {relu} {satfinite} scaled::n2::ue8m0 bf16x2 (e4m3x2|e5m2x2|e2m1x2|e2m3x2|e3m2x2)",
        "d, a, b",
        decode_scaled,
        "9.7.9.21",
    )
    .on(BLACKWELL, 90),
    Row::new("cvt (rz|rp) {satfinite} ue8m0x2 (f32)", "d, a, b", decode_to_scale, "9.7.9.21").on(BLACKWELL, 86),
    Row::new("cvt (rz|rp) {satfinite} ue8m0x2 (bf16x2)", "d, a", decode_to_scale, "9.7.9.21").on(BLACKWELL, 86),
    Row::new("cvt rn bf16x2 ue8m0x2", "d, a", decode_from_scale, "9.7.9.21").on(BLACKWELL, 86),
    Row::new("cvt rs {relu} {satfinite} (f16x2|bf16x2) f32", "d, a, b, r", decode_stochastic, "9.7.9.21")
        .on(STOCHASTIC, 87),
    Row::new(
        "cvt rs {relu} satfinite (e4m3x4|e5m2x4|e2m3x4|e3m2x4|e2m1x4) f32",
        "d, v, r",
        decode_stochastic,
        "9.7.9.21",
    )
    .on(STOCHASTIC, 87),
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

/// A decoded conversion.
#[derive(Debug, Clone)]
pub enum ConvertOp {
    /// One scalar to another.
    Scalar {
        /// Written; may be wider than `to`.
        d: Reg,
        /// Read; may be wider than `from`.
        a: Reg,
        /// Destination type.
        to: Type,
        /// Source type.
        from: Type,
        /// How.
        how: ScalarMode,
    },
    /// f32 to TF32.
    Tf32 {
        /// Written.
        d: R32,
        /// Read.
        a: R32,
        /// How.
        how: Narrow,
    },
    /// Two f32 to a packed pair, `a` high.
    Pair {
        /// Element type.
        to: Packed,
        /// Written.
        d: R32,
        /// High element.
        a: R32,
        /// Low element.
        b: R32,
        /// How.
        how: Narrow,
    },
    /// A packed pair to another.
    Repack {
        /// Source elements.
        from: Packed,
        /// Destination elements.
        to: Packed,
        /// Written.
        d: R32,
        /// Read.
        a: R32,
        /// How.
        how: Narrow,
    },
    /// A packed pair times two power-of-two scales, to bf16x2.
    Scaled {
        /// Source elements.
        from: Packed,
        /// Written.
        d: R32,
        /// Elements.
        a: R32,
        /// Scales, ue8m0x2.
        scale: R32,
        /// How.
        how: Narrow,
    },
    /// To two ue8m0, `a` high; without `b` the source is bf16x2.
    ToScale {
        /// Written.
        d: R32,
        /// High element, or both.
        a: R32,
        /// Low element.
        b: Option<R32>,
        /// `.rp`
        up: bool,
        /// `.satfinite`
        satfinite: bool,
    },
    /// ue8m0x2 to bf16x2.
    FromScale {
        /// Written.
        d: R32,
        /// Read.
        a: R32,
    },
    /// f32 with random bits: two or four elements, highest first.
    Stochastic {
        /// Element type.
        to: Packed,
        /// Written.
        d: R32,
        /// Elements, highest first.
        sources: Box<[R32]>,
        /// Random bits.
        random: R32,
        /// How.
        how: Narrow,
    },
    /// `cvt.pack.sat`
    SaturatingPack {
        /// Bits of an element.
        bits: u32,
        /// Signed elements.
        signed: bool,
        /// Written.
        d: R32,
        /// Upper new element.
        a: R32,
        /// Lower new element.
        b: R32,
        /// What moves up.
        c: Option<R32>,
    },
}

/// Modifiers of a scalar conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScalarMode {
    /// Rounding to the destination's precision.
    pub rounding: Rounding,
    /// Rounding to an integral value.
    pub integral: Option<Rounding>,
    /// `.ftz`
    pub ftz: bool,
    /// `.sat`
    pub sat: bool,
    /// `.relu`
    pub relu: bool,
    /// `.satfinite`
    pub satfinite: bool,
}

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

/// Executes a conversion.
#[inline]
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &ConvertOp) -> Outcome {
    let regs = &mut warp.regs;
    let value = f32::from_bits;
    match *op {
        ConvertOp::Scalar { d, a, to, from, how } => scalar(regs, mask, d, a, (to, from), how),
        ConvertOp::Tf32 { d, a, how } => map1::<u32, u32>(regs, mask, d, a, |a| convert::narrow_tf32(value(a), how)),
        ConvertOp::Pair { to, d, a, b, how } => pair(regs, mask, to, d, (a, b), how),
        ConvertOp::Repack { from, to, d, a, how } => {
            map1::<u32, u32>(regs, mask, d, a, |a| from.convert_x2(a, to, how))
        }
        ConvertOp::Scaled { from, d, a, scale, how } => {
            map2::<u32, u32, u32>(regs, mask, d, a, scale, |a, s| from.scale_to_bf16x2(a, s as u16, how))
        }
        ConvertOp::FromScale { d, a } => map1::<u32, u32>(regs, mask, d, a, |a| {
            let one = |code: u32| {
                if code == 0xff { 0x7fff } else { BF16.narrow_f32(decode_ue8m0(code as u8), Narrow::RN) }
            };
            one(a & 0xff) | one(a >> 8 & 0xff) << 16
        }),
        ConvertOp::ToScale { d, a, b, up, satfinite } => {
            let mut out = [0; WARP];
            let (a, b) = (*regs.get::<u32>(a), b.map(|b| *regs.get::<u32>(b)));
            for lane in super::lanes(mask) {
                let (high, low) = match b {
                    Some(b) => (value(a[lane]), value(b[lane])),
                    None => (decode_bf16((a[lane] >> 16) as u16), decode_bf16(a[lane] as u16)),
                };
                let codes = convert::narrow_ue8m0(high, up, satfinite)
                    .and_then(|high| Ok((high, convert::narrow_ue8m0(low, up, satfinite)?)));
                match codes {
                    Ok((high, low)) => out[lane] = u32::from(high) << 8 | u32::from(low),
                    Err(refused) => return machine.fault(Kind::Undefined, warp, 1 << lane, refused.to_string()),
                }
            }
            warp.regs.set::<u32>(d, mask, &out);
            Outcome::Next
        }
        ConvertOp::Stochastic { to, d, ref sources, random, how } => {
            let random = *regs.get::<u32>(random);
            let bits = to.container_bits();
            let mut out = [0; WARP];
            for (i, &source) in sources.iter().enumerate() {
                let source = *regs.get::<u32>(source);
                let position = (sources.len() - 1 - i) as u32;
                for lane in 0..WARP {
                    let noise = random_bits(to, sources.len(), i, random[lane]);
                    out[lane] |= to.stochastic(value(source[lane]), noise, how) << (bits * position);
                }
            }
            regs.set::<u32>(d, mask, &out);
            Outcome::Next
        }
        ConvertOp::SaturatingPack { bits, signed, d, a, b, c } => {
            let clamp = |x: u32| {
                let (least, most) =
                    if signed { (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1) } else { (0, (1i64 << bits) - 1) };
                (i64::from(x as i32).clamp(least, most) as u32) & ((1u64 << bits) - 1) as u32
            };
            let (a, b) = (*regs.get::<u32>(a), *regs.get::<u32>(b));
            let c = c.map_or([0; WARP], |c| *regs.get::<u32>(c));
            let out = std::array::from_fn(|lane| {
                let above = if bits == 16 { 0 } else { c[lane] << (2 * bits) };
                above | clamp(a[lane]) << bits | clamp(b[lane])
            });
            regs.set::<u32>(d, mask, &out);
            Outcome::Next
        }
    }
}

/// The random bits of element `index` (highest first) of `count`, ISA notes 7.2.
fn random_bits(to: Packed, count: usize, index: usize, random: u32) -> u32 {
    match (to, count) {
        (Packed::F16, _) => (if index == 0 { random >> 16 } else { random }) & 0x1fff,
        (Packed::Bf16, _) => {
            if index == 0 {
                random >> 16
            } else {
                random & 0xffff
            }
        }
        // Four values a, b, e, f: the upper half serves a and b, the lower e and f.
        (Packed::E2m1, _) => (if index < 2 { random >> 24 } else { random >> 8 }) & 0xff,
        _ => {
            if index < 2 {
                random >> 16
            } else {
                random & 0xffff
            }
        }
    }
}

fn pair(regs: &mut Regs, mask: u32, to: Packed, d: R32, (a, b): (R32, R32), how: Narrow) -> Outcome {
    macro_rules! run {
        ($to:expr, $how:expr) => {
            map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| $to.narrow_x2(f32::from_bits(a), f32::from_bits(b), $how))
        };
    }
    match (to, how) {
        (Packed::Bf16, Narrow::RN) => run!(Packed::Bf16, Narrow::RN),
        (Packed::F16, Narrow::RN) => run!(Packed::F16, Narrow::RN),
        (Packed::E4m3, Narrow::RN_SATFINITE) => run!(Packed::E4m3, Narrow::RN_SATFINITE),
        (Packed::E2m1, Narrow::RN_SATFINITE) => run!(Packed::E2m1, Narrow::RN_SATFINITE),
        _ => run!(to, how),
    }
}

fn scalar(regs: &mut Regs, mask: u32, d: Reg, a: Reg, (to, from): (Type, Type), how: ScalarMode) -> Outcome {
    match (d, a, to, from) {
        (Reg::R32(d), Reg::R32(a), Type::F32, Type::Bf16) if how == ScalarMode::default() => {
            map1::<u32, u32>(regs, mask, d, a, |a| a << 16)
        }
        (Reg::R32(d), Reg::R32(a), Type::F32, Type::F16) if how == ScalarMode::default() => {
            map1::<u32, u32>(regs, mask, d, a, |a| decode_f16(a as u16).to_bits())
        }
        (Reg::R32(d), Reg::R32(a), Type::F32, Type::S32) if how == ScalarMode::default() => {
            map1::<u32, u32>(regs, mask, d, a, |a| (a as i32 as f32).to_bits())
        }
        (Reg::R32(d), Reg::R32(a), Type::F32, Type::U32) if how == ScalarMode::default() => {
            map1::<u32, u32>(regs, mask, d, a, |a| (a as f32).to_bits())
        }
        (Reg::R64(d), Reg::R32(a), Type::U64 | Type::S64, Type::U32) if !how.sat => {
            map1::<u32, u64>(regs, mask, d, a, u64::from)
        }
        (Reg::R64(d), Reg::R32(a), Type::U64 | Type::S64, Type::S32) if !how.sat => {
            map1::<u32, u64>(regs, mask, d, a, |a| a as i32 as u64)
        }
        (Reg::R32(d), Reg::R64(a), Type::U32 | Type::S32, Type::U64 | Type::S64) if !how.sat => {
            map1::<u64, u32>(regs, mask, d, a, |a| a as u32)
        }
        _ => {
            let source = regs.wide(a);
            for lane in super::lanes(mask) {
                let value = one(source[lane], to, from, how);
                regs.set_lane_bits(d, lane, value.into());
            }
            Outcome::Next
        }
    }
}

/// Sign- or zero-extends the low bits of an integer type to 64.
fn extend(ty: Type, bits: u64) -> u64 {
    let shift = 64 - ty.bits();
    if ty.is_signed() { ((bits << shift) as i64 >> shift) as u64 } else { bits << shift >> shift }
}

/// One scalar conversion; integer results are extended to 64 bits.
fn one(bits: u64, to: Type, from: Type, how: ScalarMode) -> u64 {
    match (to.is_float(), from.is_float()) {
        (false, false) => {
            let value = extend(from, bits);
            if !how.sat {
                return extend(to, value);
            }
            let value = if from.is_signed() { i128::from(value as i64) } else { i128::from(value) };
            let width = to.bits();
            let (least, most) = if to.is_signed() {
                (-(1i128 << (width - 1)), (1i128 << (width - 1)) - 1)
            } else {
                (0, (1i128 << width) - 1)
            };
            value.clamp(least, most) as u64
        }
        (true, false) => {
            let (value, signed) = (extend(from, bits), from.is_signed());
            let result = match to {
                Type::F32 => u64::from(convert::integer_to_f32(value, signed, how.rounding).to_bits()),
                Type::F64 => convert::integer_to_f64(value, signed, how.rounding).to_bits(),
                Type::F16 => convert::integer_to_half(value, signed, F16, how.rounding).into(),
                _ => convert::integer_to_half(value, signed, BF16, how.rounding).into(),
            };
            if how.sat { saturate(to, result) } else { result }
        }
        (false, true) => {
            let to_integer = Integer { bits: to.bits(), signed: to.is_signed() };
            let rounding = how.integral.unwrap_or(Rounding::TowardZero);
            convert::float_to_integer(exact(from, bits, how.ftz), from == Type::F64, to_integer, rounding)
        }
        (true, true) if is_nan(from, bits) && !how.sat && !how.relu && !how.satfinite => {
            nan_payload(bits, to, from, how)
        }
        (true, true) => {
            // f16 has subnormals in every mode: `.ftz` flushes neither the operand nor the result.
            let mut value = exact(from, bits, how.ftz && to != Type::F16);
            if let Some(rounding) = how.integral {
                value = convert::round_integral(value, rounding);
            }
            let narrow = Narrow { rounding: how.rounding, satfinite: how.satfinite, relu: how.relu };
            let result = match to {
                Type::F16 => F16.narrow(value, narrow).into(),
                Type::Bf16 => BF16.narrow(value, narrow).into(),
                Type::F32 => {
                    let narrowed = f32::from_bits(F32.narrow(value, narrow));
                    u64::from(if how.ftz { arith::flush(narrowed) } else { narrowed }.to_bits())
                }
                _ => arith::canonical_f64(value).to_bits(),
            };
            if how.sat { saturate(to, result) } else { result }
        }
    }
}

fn is_nan(ty: Type, bits: u64) -> bool {
    exact(ty, bits, false).is_nan()
}

/// A NaN of another format. To and from `f64`, and from bf16 to `f32`, sign and payload are kept; otherwise it is canonical.
fn nan_payload(bits: u64, to: Type, from: Type, how: ScalarMode) -> u64 {
    // Sign and fraction, the fraction at the top of a word.
    let (sign, fraction) = match from {
        Type::F16 => (bits >> 15 & 1, bits << 54),
        Type::Bf16 => (bits >> 15 & 1, bits << 57),
        // `.ftz` is an f32 operation of its own before.
        Type::F32 if how.ftz && to == Type::F64 => (0, u64::from(u32::MAX) << 41),
        Type::F32 => (bits >> 31 & 1, bits << 41),
        _ => (bits >> 63, bits << 12),
    };
    let quiet = fraction | 1 << 63;
    match (to, from) {
        (Type::F64, _) => sign << 63 | 0x7ff << 52 | quiet >> 12,
        (Type::F32, Type::F64) => sign << 31 | 0xff << 23 | quiet >> 41,
        (Type::F16, Type::F64) => sign << 15 | 0x1f << 10 | quiet >> 54,
        (Type::Bf16, Type::F64) => sign << 15 | 0xff << 7 | quiet >> 57,
        (Type::F32, Type::Bf16) => bits << 16,
        (Type::F32, _) => 0x7fff_ffff,
        _ => 0x7fff,
    }
}

/// The exact value of a float; NaN is a NaN.
fn exact(ty: Type, bits: u64, ftz: bool) -> f64 {
    match ty {
        Type::F16 => decode_f16(bits as u16).into(),
        Type::Bf16 => decode_bf16(bits as u16).into(),
        Type::F32 => {
            let value = f32::from_bits(bits as u32);
            f64::from(if ftz { arith::flush(value) } else { value })
        }
        _ => f64::from_bits(bits),
    }
}

/// Clamps a float to [0, 1]; NaN gives +0.
fn saturate(ty: Type, bits: u64) -> u64 {
    match ty {
        Type::F64 => arith::saturate_f64(f64::from_bits(bits)).to_bits(),
        Type::F32 => arith::saturate(f32::from_bits(bits as u32)).to_bits().into(),
        _ => {
            let format = if ty == Type::F16 { F16 } else { BF16 };
            let clamped = arith::saturate(exact(ty, bits, false) as f32);
            format.narrow_f32(clamped, Narrow::RN).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Target;
    use crate::testing::{lanes, run_on, run32};

    #[test]
    fn integers_truncate_extend_and_saturate() {
        let a = lanes(&[0u32, 0x80, 0x7f, 0xffff_ff80, 0x1_0000, 0xffff_ffff]);
        let ran = run_on(
            Target::Sm90,
            "cvt.s32.s8 %o0, %r0; cvt.u32.u8 %o1, %r0; cvt.sat.s8.s32 %o2, %r0; cvt.sat.u8.s32 %o3, %r0; cvt.u32.u16 %o4, %r0;
             cvt.s64.s32 %q0, %r0; cvt.u64.u32 %q1, %r0; cvt.s16.s8 %h0, %r0; cvt.u32.u16 %o5, %h0;",
            (&[a], &[]),
            (6, 2),
        );
        assert!(ran.report.is_clean());
        for lane in 0..32 {
            let a = a[lane];
            assert_eq!(ran.words[0][lane], a as i8 as u32);
            assert_eq!(ran.words[1][lane], a as u8 as u32);
            assert_eq!(ran.words[2][lane], (a as i32).clamp(-128, 127) as u32);
            assert_eq!(ran.words[3][lane], (a as i32).clamp(0, 255) as u32);
            assert_eq!(ran.words[4][lane], a as u16 as u32);
            assert_eq!(ran.words[5][lane], a as i8 as i16 as u16 as u32);
            assert_eq!(ran.wide[0][lane], a as i32 as i64 as u64);
            assert_eq!(ran.wide[1][lane], u64::from(a));
        }
    }

    #[test]
    fn floats_to_integers_clamp() {
        let x = lanes(&[1.5f32, 2.5, -1.5, 3e9, -3e9, f32::NAN, f32::INFINITY, -0.6]).map(f32::to_bits);
        let out = run32(
            "cvt.rni.s32.f32 %o0, %r0; cvt.rzi.u32.f32 %o1, %r0; cvt.rpi.s32.f32 %o2, %r0; cvt.rmi.f32.f32 %o3, %r0; cvt.rn.f32.s32 %o4, %r1; cvt.rn.f32.u32 %o5, %r1; cvt.rz.f32.u32 %o6, %r1;",
            &[x, lanes(&[0xffff_ffff, 16_777_217, 7])],
            7,
        );
        assert_eq!(
            out[0][..8],
            [2, 2, -2i32 as u32, i32::MAX as u32, i32::MIN as u32, 0, i32::MAX as u32, -1i32 as u32]
        );
        assert_eq!(out[1][..8], [1, 2, 0, 3_000_000_000, 0, 0, u32::MAX, 0]);
        assert_eq!(out[2][..8], [2, 3, -1i32 as u32, i32::MAX as u32, i32::MIN as u32, 0, i32::MAX as u32, 0]);
        assert_eq!(f32::from_bits(out[3][7]), -1.0);
        assert_eq!([out[4][0], out[4][1]].map(f32::from_bits), [-1.0, 16_777_216.0]);
        assert_eq!(f32::from_bits(out[5][0]), 4_294_967_296.0);
        assert_eq!(f32::from_bits(out[6][0]), 4_294_967_040.0);
    }

    #[test]
    fn packed_formats() {
        let f = |x: f32| lanes(&[x.to_bits()]);
        let out = run32(
            "cvt.rn.bf16x2.f32 %o0, %r0, %r1; cvt.rn.f16x2.f32 %o1, %r0, %r1; cvt.rn.satfinite.e4m3x2.f32 %h0, %r0, %r2;
             cvt.u32.u16 %o2, %h0; cvt.rn.f16x2.e4m3x2 %o3, %h0; cvt.rna.tf32.f32 %o4, %r3; cvt.rp.satfinite.ue8m0x2.f32 %h1, %r0, %r3;
             cvt.u32.u16 %o5, %h1; cvt.rn.bf16x2.ue8m0x2 %o6, %h1; cvt.rn.relu.bf16x2.f32 %o7, %r1, %r0;
             cvt.rn.f16.f32 %h2, %r0; cvt.f32.f16 %o8, %h2; cvt.rn.satfinite.e5m2x2.f16x2 %h3, %o1; cvt.u32.u16 %o9, %h3;",
            &[f(1.5), f(-2.0), f(1000.0), f(1.000_4)],
            10,
        );
        let at = |i: usize| out[i][17];
        assert_eq!(at(0), 0x3fc0_c000);
        assert_eq!(at(1), 0x3e00_c000);
        assert_eq!(at(2), 0x3c7e);
        assert_eq!(at(3), 0x3e00_5f00);
        assert_eq!(f32::from_bits(at(4)), 1.0);
        assert_eq!(at(5), 0x8080);
        assert_eq!(at(6), 0x4000_4000);
        assert_eq!(at(7), 0x0000_3fc0);
        assert_eq!(f32::from_bits(at(8)), 1.5);
        assert_eq!(at(9), 0x3ec0);
    }

    #[test]
    fn fp4_pairs_fill_a_byte() {
        let out = run32(
            ".reg .b8 %b<3>; cvt.rn.satfinite.e2m1x2.f32 %b0, %r0, %r1; cvt.u32.u8 %o0, %b0; cvt.rn.f16x2.e2m1x2 %o1, %b0;
             cvt.rn.satfinite.e2m1x2.f32 %b1, %r1, %r0; mov.b16 %h0, {%b0, %b1}; cvt.u32.u16 %o2, %h0;",
            &[lanes(&[3.0f32.to_bits()]), lanes(&[(-0.5f32).to_bits()])],
            3,
        );
        assert_eq!(out[0][0], 0x59);
        assert_eq!(out[1][0], 0x4200_b800);
        assert_eq!(out[2][0], 0x9559);
    }
}
