//! Integer arithmetic and bit operations.

use crate::decode::{Decoder, Refusal, types};
use crate::exec::{Op, map2, map3};
use crate::isa::table::Row;
use crate::isa::{Bank, Type};
use crate::machine::{Outcome, R32, R64, Regs};
use crate::parse::ast::Instruction;

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new("add (u16|u32|u64|s16|s32|s64)", "d, a, b", decode_binary, "9.7.1.1"),
    Row::new("sub (u16|u32|u64|s16|s32|s64)", "d, a, b", decode_binary, "9.7.1.2"),
    Row::new("mul lo (u16|u32|u64|s16|s32|s64)", "d, a, b", decode_binary, "9.7.1.3"),
    Row::new("and (b16|b32|b64)", "d, a, b", decode_binary, "9.7.8.1"),
    Row::new("or (b16|b32|b64)", "d, a, b", decode_binary, "9.7.8.2"),
    Row::new("xor (b16|b32|b64)", "d, a, b", decode_binary, "9.7.8.3"),
    Row::new("mul wide (u32|s32)", "d, a, b", decode_wide, "9.7.1.3"),
    Row::new("mad lo (u32|u64|s32|s64)", "d, a, b, c", decode_mad, "9.7.1.4"),
];

/// Operations of two sources of one width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Low half of the product.
    Mul,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
}

/// A decoded integer operation.
#[derive(Debug, Clone)]
pub enum IntegerOp {
    /// 16 and 32 bits; `mask` keeps the low bits of narrow types.
    Binary32 {
        /// What.
        op: Binary,
        /// Written.
        d: R32,
        /// Read.
        a: R32,
        /// Read.
        b: R32,
        /// Bits kept.
        keep: u32,
    },
    /// 64 bits.
    Binary64 {
        /// What.
        op: Binary,
        /// Written.
        d: R64,
        /// Read.
        a: R64,
        /// Read.
        b: R64,
    },
    /// 32 by 32 to 64 bits.
    MulWide {
        /// Written.
        d: R64,
        /// Read.
        a: R32,
        /// Read.
        b: R32,
        /// `.s32`
        signed: bool,
    },
    /// `a * b + c`, 32 bits.
    Mad32 {
        /// Written.
        d: R32,
        /// Read.
        abc: (R32, R32, R32),
    },
    /// `a * b + c`, 64 bits.
    Mad64 {
        /// Written.
        d: R64,
        /// Read.
        abc: (R64, R64, R64),
    },
}

fn decode_binary(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let op = match instruction.mnemonic.as_str() {
        "add" => Binary::Add,
        "sub" => Binary::Sub,
        "mul" => Binary::Mul,
        "and" => Binary::And,
        "or" => Binary::Or,
        _ => Binary::Xor,
    };
    let [d, a, b] = &instruction.operands[..] else {
        return Refusal::invalid("expected three operands");
    };
    if ty.bank() == Bank::W64 {
        let (a, b) = (decoder.src64(a)?, decoder.src64(b)?);
        let d = decoder.dst64(d)?;
        return Ok(Op::Integer(IntegerOp::Binary64 { op, d, a, b }));
    }
    let (a, b) = (decoder.src32(a)?, decoder.src32(b)?);
    let d = decoder.dst32(d)?;
    let keep = if ty.bytes() == 2 { 0xffff } else { u32::MAX };
    Ok(Op::Integer(IntegerOp::Binary32 { op, d, a, b, keep }))
}

fn decode_wide(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let signed = types(instruction)[0] == Type::S32;
    let a = decoder.src32(&instruction.operands[1])?;
    let b = decoder.src32(&instruction.operands[2])?;
    let d = decoder.dst64(&instruction.operands[0])?;
    Ok(Op::Integer(IntegerOp::MulWide { d, a, b, signed }))
}

fn decode_mad(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let [d, a, b, c] = &instruction.operands[..] else {
        return Refusal::invalid("expected four operands");
    };
    if types(instruction)[0].bank() == Bank::W64 {
        let abc = (decoder.src64(a)?, decoder.src64(b)?, decoder.src64(c)?);
        let d = decoder.dst64(d)?;
        return Ok(Op::Integer(IntegerOp::Mad64 { d, abc }));
    }
    let abc = (decoder.src32(a)?, decoder.src32(b)?, decoder.src32(c)?);
    let d = decoder.dst32(d)?;
    Ok(Op::Integer(IntegerOp::Mad32 { d, abc }))
}

/// Executes an integer operation.
pub fn execute(regs: &mut Regs, mask: u32, op: &IntegerOp) -> Outcome {
    match *op {
        IntegerOp::Binary32 { op, d, a, b, keep } => match op {
            Binary::Add => map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| a.wrapping_add(b) & keep),
            Binary::Sub => map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| a.wrapping_sub(b) & keep),
            Binary::Mul => map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| a.wrapping_mul(b) & keep),
            Binary::And => map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| a & b),
            Binary::Or => map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| a | b),
            Binary::Xor => map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| a ^ b),
        },
        IntegerOp::Binary64 { op, d, a, b } => match op {
            Binary::Add => map2::<u64, u64, u64>(regs, mask, d, a, b, u64::wrapping_add),
            Binary::Sub => map2::<u64, u64, u64>(regs, mask, d, a, b, u64::wrapping_sub),
            Binary::Mul => map2::<u64, u64, u64>(regs, mask, d, a, b, u64::wrapping_mul),
            Binary::And => map2::<u64, u64, u64>(regs, mask, d, a, b, |a, b| a & b),
            Binary::Or => map2::<u64, u64, u64>(regs, mask, d, a, b, |a, b| a | b),
            Binary::Xor => map2::<u64, u64, u64>(regs, mask, d, a, b, |a, b| a ^ b),
        },
        IntegerOp::MulWide { d, a, b, signed } => {
            if signed {
                map2::<u32, u32, u64>(regs, mask, d, a, b, |a, b| (i64::from(a as i32) * i64::from(b as i32)) as u64)
            } else {
                map2::<u32, u32, u64>(regs, mask, d, a, b, |a, b| u64::from(a) * u64::from(b))
            }
        }
        IntegerOp::Mad32 { d, abc } => {
            map3::<u32, u32, u32, u32>(regs, mask, d, abc, |a, b, c| a.wrapping_mul(b).wrapping_add(c))
        }
        IntegerOp::Mad64 { d, abc } => {
            map3::<u64, u64, u64, u64>(regs, mask, d, abc, |a, b, c| a.wrapping_mul(b).wrapping_add(c))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{lanes, run32, run64};

    #[test]
    fn sums_and_products_wrap() {
        let a = lanes(&[0, 1, u32::MAX, 0x8000_0000, 0x7fff_ffff]);
        let b = lanes(&[u32::MAX, 1, 2, 0x8000_0000, 3, 7, 11]);
        let out = run32(
            "add.s32 %o0, %r0, %r1; sub.s32 %o1, %r0, %r1; mul.lo.s32 %o2, %r0, %r1; mad.lo.s32 %o3, %r0, %r1, -5;",
            &[a, b],
            4,
        );
        for lane in 0..32 {
            let (a, b) = (a[lane], b[lane]);
            assert_eq!(out[0][lane], a.wrapping_add(b));
            assert_eq!(out[1][lane], a.wrapping_sub(b));
            assert_eq!(out[2][lane], a.wrapping_mul(b));
            assert_eq!(out[3][lane], a.wrapping_mul(b).wrapping_sub(5));
        }
    }

    #[test]
    fn wide_sums_wrap() {
        let a = lanes(&[u64::MAX, 1, 1 << 63, 0x1234_5678_9abc_def0]);
        let b = lanes(&[1, u64::MAX, 1 << 63]);
        let out = run64("add.s64 %q0, %rd0, %rd1; mul.lo.u64 %q1, %rd0, %rd1;", &[a, b], 2);
        for lane in 0..32 {
            assert_eq!(out[0][lane], a[lane].wrapping_add(b[lane]));
            assert_eq!(out[1][lane], a[lane].wrapping_mul(b[lane]));
        }
    }
}
