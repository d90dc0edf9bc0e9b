//! Rows and decoding of integer instructions.

use super::{Binary, IntegerOp, Permute, Ternary, Unary};
use crate::decode::{Decoder, Refusal, types};
use crate::exec::Op;
use crate::isa::table::Row;
use crate::isa::{Bank, Type};
use crate::machine::{P, Reg};
use crate::parse::ast::Instruction;

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new("add {sat} (u16|u32|u64|s16|s32|s64|u16x2|s16x2)", "d, a, b", binary, "9.7.1.1"),
    Row::new("sub {sat} (u16|u32|u64|s16|s32|s64)", "d, a, b", binary, "9.7.1.2"),
    Row::new("mul (lo|hi) (u16|u32|u64|s16|s32|s64)", "d, a, b", binary, "9.7.1.3"),
    Row::new("mul wide (u16|u32|s16|s32)", "d, a, b", binary, "9.7.1.3"),
    Row::new("mul24 (lo|hi) (u32|s32)", "d, a, b", binary, "9.7.1.5"),
    Row::new("div (u16|u32|u64|s16|s32|s64)", "d, a, b", binary, "9.7.1.8"),
    Row::new("rem (u16|u32|u64|s16|s32|s64)", "d, a, b", binary, "9.7.1.9"),
    Row::new("min {relu} (u16|u32|u64|s16|s32|s64|u16x2|s16x2)", "d, a, b", binary, "9.7.1.12"),
    Row::new("max {relu} (u16|u32|u64|s16|s32|s64|u16x2|s16x2)", "d, a, b", binary, "9.7.1.13"),
    Row::new("and (b16|b32|b64)", "d, a, b", binary, "9.7.8.1"),
    Row::new("or (b16|b32|b64)", "d, a, b", binary, "9.7.8.2"),
    Row::new("xor (b16|b32|b64)", "d, a, b", binary, "9.7.8.3"),
    Row::new("shl (b16|b32|b64)", "d, a, b", binary, "9.7.8.7"),
    Row::new("shr (b16|b32|b64|u16|u32|u64|s16|s32|s64)", "d, a, b", binary, "9.7.8.8"),
    Row::new("bmsk (clamp|wrap) b32", "d, a, b", binary, "9.7.1.21"),
    Row::new("szext (clamp|wrap) (u32|s32)", "d, a, b", binary, "9.7.1.20"),
    Row::new("abs (s16|s32|s64)", "d, a", unary, "9.7.1.10"),
    Row::new("neg (s16|s32|s64)", "d, a", unary, "9.7.1.11"),
    Row::new("not (b16|b32|b64)", "d, a", unary, "9.7.8.4"),
    Row::new("cnot (b16|b32|b64)", "d, a", unary, "9.7.8.5"),
    Row::new("popc (b32|b64)", "d, a", unary, "9.7.1.14"),
    Row::new("clz (b32|b64)", "d, a", unary, "9.7.1.15"),
    Row::new("brev (b32|b64)", "d, a", unary, "9.7.1.18"),
    Row::new("bfind {shiftamt} (u32|u64|s32|s64)", "d, a", unary, "9.7.1.16"),
    Row::new("mad lo (u16|u32|u64|s16|s32|s64)", "d, a, b, c", ternary, "9.7.1.4"),
    Row::new("mad hi {sat} (u16|u32|u64|s16|s32|s64)", "d, a, b, c", ternary, "9.7.1.4"),
    Row::new("mad wide (u16|u32|s16|s32)", "d, a, b, c", ternary, "9.7.1.4"),
    Row::new("mad24 (lo|hi) (u32|s32)", "d, a, b, c", ternary, "9.7.1.6"),
    Row::new("mad24 hi sat s32", "d, a, b, c", ternary, "9.7.1.6"),
    Row::new("sad (u16|u32|u64|s16|s32|s64)", "d, a, b, c", ternary, "9.7.1.7"),
    Row::new("bfe (u32|u64|s32|s64)", "d, a, b, c", ternary, "9.7.1.19"),
    Row::new("fns b32", "d, a, b, c", ternary, "9.7.1.17"),
    Row::new("shf (l|r) (clamp|wrap) b32", "d, a, b, c", ternary, "9.7.8.6"),
    Row::new("prmt b32 {f4e|b4e|rc8|ecl|ecr|rc16}", "d, a, b, c", ternary, "9.7.9.7"),
    Row::new("bfi (b32|b64)", "f, a, b, c, d", bfi, "9.7.1.19"),
    Row::new("lop3 {and|or} b32", "d, a, b, c, lut{, q}", lop3, "9.7.8.5"),
    Row::new("add cc (u32|u64|s32|s64)", "d, a, b", carry, "9.7.2.1"),
    Row::new("addc {cc} (u32|u64|s32|s64)", "d, a, b", carry, "9.7.2.2"),
    Row::new("sub cc (u32|u64|s32|s64)", "d, a, b", carry, "9.7.2.3"),
    Row::new("subc {cc} (u32|u64|s32|s64)", "d, a, b", carry, "9.7.2.4"),
    Row::new("mad (lo|hi) cc (u32|u64|s32|s64)", "d, a, b, c", carry, "9.7.2.5"),
    Row::new("madc (lo|hi) {cc} (u32|u64|s32|s64)", "d, a, b, c", carry, "9.7.2.6"),
    Row::new("dp4a (u32|s32) (u32|s32)", "d, a, b, c", dot, "9.7.1.22"),
    Row::new("dp2a (lo|hi) (u32|s32) (u32|s32)", "d, a, b, c", dot, "9.7.1.23"),
];

fn binary(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let sat = instruction.has("sat");
    let relu = instruction.has("relu");
    let wrap = instruction.has("wrap");
    let op = match (instruction.mnemonic.as_str(), instruction.choose(&[("hi", 'h'), ("wide", 'w')])) {
        ("add", _) => {
            if sat {
                Binary::AddSat
            } else {
                Binary::Add
            }
        }
        ("sub", _) => {
            if sat {
                Binary::SubSat
            } else {
                Binary::Sub
            }
        }
        ("mul", None) => Binary::Mul,
        ("mul", Some('h')) => Binary::MulHi,
        ("mul", _) => Binary::MulWide,
        ("mul24", None) => Binary::Mul24,
        ("mul24", _) => Binary::Mul24Hi,
        ("div", _) => Binary::Div,
        ("rem", _) => Binary::Rem,
        ("min", _) => {
            if relu {
                Binary::MinRelu
            } else {
                Binary::Min
            }
        }
        ("max", _) => {
            if relu {
                Binary::MaxRelu
            } else {
                Binary::Max
            }
        }
        ("and", _) => Binary::And,
        ("or", _) => Binary::Or,
        ("xor", _) => Binary::Xor,
        ("shl", _) => Binary::Shl,
        ("shr", _) => Binary::Shr,
        ("bmsk", _) => {
            if wrap {
                Binary::BmskWrap
            } else {
                Binary::BmskClamp
            }
        }
        ("szext", _) => {
            if wrap {
                Binary::SzextWrap
            } else {
                Binary::SzextClamp
            }
        }
        (other, _) => return Refusal::missing(format!("{other} as an integer operation")),
    };
    if sat && ty != Type::S32 {
        return Refusal::invalid(".sat needs .s32");
    }
    if relu && !matches!(ty, Type::S32 | Type::S16x2) {
        return Refusal::invalid(".relu needs .s32 or .s16x2");
    }
    let [d, a, b] = &instruction.operands[..] else {
        return Refusal::invalid("expected three operands");
    };
    if matches!(ty, Type::U16x2 | Type::S16x2) {
        let (a, b) = (decoder.src32(a)?, decoder.src32(b)?);
        let d = decoder.dst32(d)?;
        return Ok(Op::Integer(IntegerOp::Packed16 { op, signed: ty == Type::S16x2, d, a, b }));
    }
    let a = decoder.src(a, ty)?;
    let b = match op {
        Binary::Shl | Binary::Shr => decoder.src(b, Type::U32)?,
        _ => decoder.src(b, ty)?,
    };
    let d = decoder.dst(d, result_type(ty, op == Binary::MulWide))?;
    Ok(Op::Integer(IntegerOp::Binary { op, ty, d, a, b }))
}

/// The type of a result: twice the width for wide products.
fn result_type(ty: Type, wide: bool) -> Type {
    match (wide, ty.bytes()) {
        (true, 2) => Type::B32,
        (true, _) => Type::B64,
        (false, _) => ty,
    }
}

fn unary(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let op = match instruction.mnemonic.as_str() {
        "abs" => Unary::Abs,
        "neg" => Unary::Neg,
        "not" => Unary::Not,
        "cnot" => Unary::Cnot,
        "popc" => Unary::Popc,
        "clz" => Unary::Clz,
        "brev" => Unary::Brev,
        _ if instruction.has("shiftamt") => Unary::BfindShift,
        _ => Unary::Bfind,
    };
    let counts = matches!(op, Unary::Popc | Unary::Clz | Unary::Bfind | Unary::BfindShift);
    let a = decoder.src(&instruction.operands[1], ty)?;
    let d = decoder.dst(&instruction.operands[0], if counts { Type::U32 } else { ty })?;
    Ok(Op::Integer(IntegerOp::Unary { op, ty, d, a }))
}

fn ternary(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let high = instruction.has("hi");
    let wrap = instruction.has("wrap");
    let op = match instruction.mnemonic.as_str() {
        "mad" if instruction.has("wide") => Ternary::MadWide,
        "mad" if high && instruction.has("sat") => Ternary::MadHiSat,
        "mad" if high => Ternary::MadHi,
        "mad" => Ternary::Mad,
        "mad24" if instruction.has("sat") => Ternary::Mad24HiSat,
        "mad24" if high => Ternary::Mad24Hi,
        "mad24" => Ternary::Mad24,
        "sad" => Ternary::Sad,
        "bfe" => Ternary::Bfe,
        "fns" => Ternary::Fns,
        "shf" => match (instruction.has("l"), wrap) {
            (true, true) => Ternary::ShfLeftWrap,
            (true, false) => Ternary::ShfLeftClamp,
            (false, true) => Ternary::ShfRightWrap,
            (false, false) => Ternary::ShfRightClamp,
        },
        _ => Ternary::Prmt(
            instruction
                .choose(&[
                    ("f4e", Permute::Forward4),
                    ("b4e", Permute::Backward4),
                    ("rc8", Permute::Replicate8),
                    ("ecl", Permute::EdgeLeft),
                    ("ecr", Permute::EdgeRight),
                    ("rc16", Permute::Replicate16),
                ])
                .unwrap_or(Permute::Index),
        ),
    };
    if op == Ternary::MadHiSat && ty != Type::S32 {
        return Refusal::invalid(".sat needs .s32");
    }
    let wide = op == Ternary::MadWide;
    let [d, a, b, c] = &instruction.operands[..] else {
        return Refusal::invalid("expected four operands");
    };
    let (b_type, c_type) = match op {
        Ternary::Bfe => (Type::U32, Type::U32),
        _ => (ty, result_type(ty, wide)),
    };
    let a = decoder.src(a, ty)?;
    let b = decoder.src(b, b_type)?;
    let c = decoder.src(c, c_type)?;
    let d = decoder.dst(d, result_type(ty, wide))?;
    Ok(Op::Integer(IntegerOp::Ternary { op, ty, d, a, b, c }))
}

fn bfi(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let [f, a, b, pos, len] = &instruction.operands[..] else {
        return Refusal::invalid("expected five operands");
    };
    let (a, b) = (decoder.src(a, ty)?, decoder.src(b, ty)?);
    let (pos, len) = (decoder.src32(pos)?, decoder.src32(len)?);
    let d = decoder.dst(f, ty)?;
    Ok(Op::Integer(IntegerOp::Bfi { ty, d, a, b, pos, len }))
}

fn lop3(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let [d, a, b, c, lut, rest @ ..] = &instruction.operands[..] else {
        return Refusal::invalid("expected five operands");
    };
    let lut =
        u8::try_from(decoder.immediate(lut)?).or_else(|_| Refusal::invalid("expected a truth table from 0 to 255"))?;
    let abc = (decoder.src32(a)?, decoder.src32(b)?, decoder.src32(c)?);
    let (d, p) = decoder.pair(d);
    let joined = match (instruction.choose(&[("or", true), ("and", false)]), p, rest.first()) {
        (None, None, None) => None,
        (Some(or), Some(p), Some(q)) => {
            let (q, negated) = decoder.pred(q)?;
            Some((decoder.dst_pred(p)?, or, q, negated))
        }
        _ => return Refusal::invalid("expected d|p and q with .and or .or"),
    };
    let d = decoder.dst32(d)?;
    Ok(Op::Integer(IntegerOp::Lop3 { d, abc, lut, joined }))
}

impl Decoder<'_> {
    /// The carry flag: one bit per lane, kept between `.cc` instructions.
    fn carry_flag(&mut self) -> P {
        if let Some(flag) = self.carry {
            return flag;
        }
        let flag = self.fresh_pred();
        self.carry = Some(flag);
        flag
    }
}

fn carry(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let name = instruction.mnemonic.as_str();
    let operands = &instruction.operands;
    let (a, b) = if name.starts_with("mad") {
        let op = if instruction.has("hi") { Binary::MulHi } else { Binary::Mul };
        let (a, b) = (decoder.src(&operands[1], ty)?, decoder.src(&operands[2], ty)?);
        let product = decoder.fresh(ty);
        decoder.emit(Op::Integer(IntegerOp::Binary { op, ty, d: product, a, b }));
        (product, decoder.src(&operands[3], ty)?)
    } else {
        (decoder.src(&operands[1], ty)?, decoder.src(&operands[2], ty)?)
    };
    let d: Reg = decoder.dst(&operands[0], ty)?;
    let flag = decoder.carry_flag();
    Ok(Op::Integer(IntegerOp::Carry {
        ty: if ty.bank() == Bank::W64 { Type::B64 } else { Type::B32 },
        d,
        a,
        b,
        sub: name.starts_with("sub"),
        uses: name.ends_with('c') && name.len() == 4,
        sets: instruction.has("cc"),
        flag,
    }))
}

fn dot(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let tys = types(instruction);
    let [d, a, b, c] = &instruction.operands[..] else {
        return Refusal::invalid("expected four operands");
    };
    let abc = (decoder.src32(a)?, decoder.src32(b)?, decoder.src32(c)?);
    let d = decoder.dst32(d)?;
    let halves = (instruction.mnemonic == "dp2a").then(|| instruction.has("hi"));
    Ok(Op::Integer(IntegerOp::Dp4a { d, abc, signed: (tys[0].is_signed(), tys[1].is_signed()), halves }))
}
