//! One number into one number, between any two types.

use super::super::map1;
use super::ScalarMode;
use crate::isa::Type;
use crate::machine::{Outcome, Reg, Regs};
use crate::numerics::arith;
use crate::numerics::convert::{self, Integer};
use crate::numerics::format::{BF16, F16, F32, Narrow, Rounding, decode_bf16, decode_f16};

pub(super) fn scalar(regs: &mut Regs, mask: u32, d: Reg, a: Reg, (to, from): (Type, Type), how: ScalarMode) -> Outcome {
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
            for lane in super::super::lanes(mask) {
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
pub(super) fn one(bits: u64, to: Type, from: Type, how: ScalarMode) -> u64 {
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

/// A NaN of another format. To and from `f64`, and from bf16 to `f32`, sign and payload are kept; otherwise it is
/// canonical.
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
