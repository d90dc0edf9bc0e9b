//! setp, set, selp, slct and predicate logic.
//!
//! Float relations are false with a NaN operand, those of the `u` forms true; `.ftz` flushes operands first.

use crate::decode::{Decoder, Refusal, types};
use crate::exec::Op;
use crate::isa::Type;
use crate::isa::table::Row;
use crate::machine::{Outcome, P, R32, R64, Reg, Regs, WARP, Word};
use crate::numerics::arith::{self, HalfType};
use crate::numerics::format::{decode_bf16, decode_f16};
use crate::parse::ast::Instruction;

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new(
        "setp (eq|ne|lt|le|gt|ge|lo|ls|hi|hs) {and|or|xor} (b16|b32|b64|u16|u32|u64|s16|s32|s64)",
        "p, a, b{, c}",
        decode_setp,
        "9.7.6.2",
    ),
    Row::new(
        "setp (eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan) {and|or|xor} {ftz} (f32|f64|f16|f16x2|bf16|bf16x2)",
        "p, a, b{, c}",
        decode_setp,
        "9.7.6.2",
    ),
    Row::new(
        "set (eq|ne|lt|le|gt|ge|lo|ls|hi|hs) {and|or|xor} (u32|s32|f32) (b16|b32|b64|u16|u32|u64|s16|s32|s64)",
        "d, a, b{, c}",
        decode_set,
        "9.7.6.1",
    ),
    Row::new(
        "set (eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan) {and|or|xor} {ftz} (u16|s16|u32|s32|f16|bf16|f32|f16x2|bf16x2) (f32|f64|f16|f16x2|bf16|bf16x2)",
        "d, a, b{, c}",
        decode_set,
        "9.7.6.1",
    ),
    Row::new("selp (b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64)", "d, a, b, c", decode_selp, "9.7.6.3"),
    Row::new(
        "slct {ftz} (b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64) (s32|f32)",
        "d, a, b, c",
        decode_slct,
        "9.7.6.4",
    ),
    Row::new("and pred", "p, a, b", decode_logic, "9.7.8.1"),
    Row::new("or pred", "p, a, b", decode_logic, "9.7.8.2"),
    Row::new("xor pred", "p, a, b", decode_logic, "9.7.8.3"),
    Row::new("not pred", "p, a", decode_logic, "9.7.8.4"),
];

/// Relation of two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
    /// Neither is NaN.
    Num,
    /// One is NaN.
    Nan,
}

/// How a comparison is joined with a predicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// Not at all.
    None,
    /// `.and`
    And,
    /// `.or`
    Or,
    /// `.xor`
    Xor,
}

/// A decoded comparison.
#[derive(Debug, Clone)]
pub enum CompareOp {
    /// `setp` on integers: sources are extended to 64 bits as `ty` says.
    Integer {
        /// Result and negated result.
        p: (P, Option<P>),
        /// Sources.
        a: Reg,
        /// Sources.
        b: Reg,
        /// Type.
        ty: Type,
        /// Relation.
        relation: Relation,
        /// Joined predicate, whether negated.
        join: (Join, P, bool),
    },
    /// `setp` on floats.
    Float {
        /// Result and negated result; for packed types those of the low and the high element.
        p: (P, Option<P>),
        /// Sources.
        a: Reg,
        /// Sources.
        b: Reg,
        /// How they compare.
        test: FloatTest,
        /// Joined predicate, whether negated.
        join: (Join, P, bool),
    },
    /// Logic of two predicates.
    Logic {
        /// What.
        join: Join,
        /// Written.
        d: P,
        /// Read, whether negated.
        a: (P, bool),
        /// Read, whether negated.
        b: (P, bool),
    },
    /// Makes the value of `set` from the predicates of a `setp`.
    Set {
        /// Written.
        d: R32,
        /// Value where the low predicate is true.
        yes: u32,
        /// Predicates of the low and, for packed types, the high element.
        p: (P, Option<P>),
        /// Value where the high predicate is true.
        yes_high: u32,
    },
    /// `selp`
    Select {
        /// Written.
        d: Reg,
        /// Where true.
        a: Reg,
        /// Where false.
        b: Reg,
        /// Predicate, whether negated.
        p: (P, bool),
    },
    /// `slct`: `a` where `c >= 0`.
    SelectSign {
        /// Written.
        d: Reg,
        /// Where not negative.
        a: Reg,
        /// Where negative or NaN.
        b: Reg,
        /// Sign.
        c: R32,
        /// `c` is f32.
        float: bool,
        /// `.ftz`
        ftz: bool,
    },
    /// Copy of a predicate.
    Copy {
        /// Written.
        d: P,
        /// Read.
        a: P,
        /// `!a`
        negated: bool,
    },
}

/// How two floats compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FloatTest {
    /// Type of the sources.
    pub ty: Type,
    /// Relation.
    pub relation: Relation,
    /// True with a NaN operand.
    pub unordered: bool,
    /// `.ftz`
    pub ftz: bool,
}

/// `mov.pred` and `not.pred`.
pub(crate) fn pred_copy(d: P, a: P, negated: bool) -> Op {
    Op::Compare(CompareOp::Copy { d, a, negated })
}

/// The relation and whether it is an unordered one.
fn relation_of(instruction: &Instruction) -> Result<(Relation, bool), Refusal> {
    instruction
        .choose(&[
            ("eq", (Relation::Eq, false)),
            ("ne", (Relation::Ne, false)),
            ("lt", (Relation::Lt, false)),
            ("le", (Relation::Le, false)),
            ("gt", (Relation::Gt, false)),
            ("ge", (Relation::Ge, false)),
            ("lo", (Relation::Lt, false)),
            ("ls", (Relation::Le, false)),
            ("hi", (Relation::Gt, false)),
            ("hs", (Relation::Ge, false)),
            ("equ", (Relation::Eq, true)),
            ("neu", (Relation::Ne, true)),
            ("ltu", (Relation::Lt, true)),
            ("leu", (Relation::Le, true)),
            ("gtu", (Relation::Gt, true)),
            ("geu", (Relation::Ge, true)),
            ("num", (Relation::Num, false)),
            ("nan", (Relation::Nan, true)),
        ])
        .map_or_else(|| Refusal::invalid("expected a comparison"), Ok)
}

fn is_packed(ty: Type) -> bool {
    matches!(ty, Type::F16x2 | Type::Bf16x2)
}

/// The comparison of an instruction whose source type is `ty`, into predicates `p`.
fn comparison(
    decoder: &mut Decoder<'_>,
    instruction: &Instruction,
    ty: Type,
    p: (P, Option<P>),
) -> Result<CompareOp, Refusal> {
    let (relation, unordered) = relation_of(instruction)?;
    let a = decoder.src(&instruction.operands[1], ty)?;
    let b = decoder.src(&instruction.operands[2], ty)?;
    let join = instruction.choose(&[("and", Join::And), ("or", Join::Or), ("xor", Join::Xor)]).unwrap_or(Join::None);
    let (c, negated) = match instruction.operands.get(3) {
        Some(operand) => decoder.pred(operand)?,
        None => (decoder.constant_pred(true), false),
    };
    let join = (join, c, negated);
    if ty.is_float() || is_packed(ty) {
        let test = FloatTest { ty, relation, unordered, ftz: instruction.has("ftz") };
        return Ok(CompareOp::Float { p, a, b, test, join });
    }
    Ok(CompareOp::Integer { p, a, b, ty, relation, join })
}

fn decode_setp(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let (p, q) = decoder.pair(&instruction.operands[0]);
    let p = decoder.dst_pred(p)?;
    let q = q.map(|q| decoder.dst_pred(q)).transpose()?;
    comparison(decoder, instruction, ty, (p, q)).map(Op::Compare)
}

fn decode_set(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let [to, from] = types(instruction)[..] else {
        return Refusal::invalid("expected two types");
    };
    let p = decoder.fresh_pred();
    let q = is_packed(from).then(|| decoder.fresh_pred());
    let op = comparison(decoder, instruction, from, (p, q))?;
    decoder.emit(Op::Compare(op));
    let yes = match to {
        Type::F32 => 1f32.to_bits(),
        Type::F16 => 0x3c00,
        Type::Bf16 => 0x3f80,
        Type::F16x2 => 0x3c00,
        Type::Bf16x2 => 0x3f80,
        Type::U16 | Type::S16 => 0xffff,
        // Packed sources give 16 ones for each element.
        _ if q.is_some() => 0xffff,
        _ => u32::MAX,
    };
    let d = match decoder.dst(&instruction.operands[0], to)? {
        Reg::R32(d) => d,
        other => return Refusal::invalid(format!("expected a register of at most 32 bits, got {other:?}")),
    };
    Ok(Op::Compare(CompareOp::Set { d, yes, p: (p, q), yes_high: yes << 16 }))
}

fn decode_selp(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let a = decoder.src(&instruction.operands[1], ty)?;
    let b = decoder.src(&instruction.operands[2], ty)?;
    let p = decoder.pred(&instruction.operands[3])?;
    let d = decoder.dst(&instruction.operands[0], ty)?;
    Ok(Op::Compare(CompareOp::Select { d, a, b, p }))
}

fn decode_slct(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let [ty, sign] = types(instruction)[..] else {
        return Refusal::invalid("expected two types");
    };
    let a = decoder.src(&instruction.operands[1], ty)?;
    let b = decoder.src(&instruction.operands[2], ty)?;
    let c = match decoder.src(&instruction.operands[3], sign)? {
        Reg::R32(c) => c,
        other => return Refusal::invalid(format!("expected a 32-bit value, got {other:?}")),
    };
    let d = decoder.dst(&instruction.operands[0], ty)?;
    let (float, ftz) = (sign == Type::F32, instruction.has("ftz"));
    Ok(Op::Compare(CompareOp::SelectSign { d, a, b, c, float, ftz }))
}

fn decode_logic(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let a = decoder.pred(&instruction.operands[1])?;
    let Some(b) = instruction.operands.get(2) else {
        let d = decoder.dst_pred(&instruction.operands[0])?;
        return Ok(pred_copy(d, a.0, !a.1));
    };
    let b = decoder.pred(b)?;
    let d = decoder.dst_pred(&instruction.operands[0])?;
    let join = match instruction.mnemonic.as_str() {
        "and" => Join::And,
        "or" => Join::Or,
        _ => Join::Xor,
    };
    Ok(Op::Compare(CompareOp::Logic { join, d, a, b }))
}

/// Bits of the lanes where `f` holds.
#[inline(always)]
fn bits<W: Copy>(a: &[W; WARP], b: &[W; WARP], f: impl Fn(W, W) -> bool) -> u32 {
    let mut out = 0;
    for lane in 0..WARP {
        out |= u32::from(f(a[lane], b[lane])) << lane;
    }
    out
}

#[inline(always)]
fn relate<W: Copy + Ord>(a: &[W; WARP], b: &[W; WARP], relation: Relation) -> u32 {
    match relation {
        Relation::Eq => bits(a, b, |a, b| a == b),
        Relation::Ne => bits(a, b, |a, b| a != b),
        Relation::Lt => bits(a, b, |a, b| a < b),
        Relation::Le => bits(a, b, |a, b| a <= b),
        Relation::Gt => bits(a, b, |a, b| a > b),
        Relation::Ge => bits(a, b, |a, b| a >= b),
        // Integers are never NaN.
        Relation::Num => u32::MAX,
        Relation::Nan => 0,
    }
}

fn compare32(regs: &Regs, a: R32, b: R32, ty: Type, relation: Relation) -> u32 {
    let (a, b) = (regs.get::<u32>(a), regs.get::<u32>(b));
    match ty {
        Type::S32 => relate(&a.map(|v| v as i32), &b.map(|v| v as i32), relation),
        Type::S16 => relate(&a.map(|v| v as i16), &b.map(|v| v as i16), relation),
        Type::B16 | Type::U16 => relate(&a.map(|v| v as u16), &b.map(|v| v as u16), relation),
        _ => relate(a, b, relation),
    }
}

fn compare64(regs: &Regs, a: R64, b: R64, ty: Type, relation: Relation) -> u32 {
    let (a, b) = (regs.get::<u64>(a), regs.get::<u64>(b));
    match ty {
        Type::S64 => relate(&a.map(|v| v as i64), &b.map(|v| v as i64), relation),
        _ => relate(a, b, relation),
    }
}

#[inline(always)]
fn relate_float<W: Copy + PartialOrd>(a: &[W; WARP], b: &[W; WARP], test: FloatTest) -> u32 {
    // A value that does not equal itself is NaN.
    let nan = bits(a, b, |a, b| (a.partial_cmp(&a).is_none()) | (b.partial_cmp(&b).is_none()));
    let found = match test.relation {
        Relation::Eq => bits(a, b, |a, b| a == b),
        Relation::Ne => bits(a, b, |a, b| a != b),
        Relation::Lt => bits(a, b, |a, b| a < b),
        Relation::Le => bits(a, b, |a, b| a <= b),
        Relation::Gt => bits(a, b, |a, b| a > b),
        Relation::Ge => bits(a, b, |a, b| a >= b),
        Relation::Num => u32::MAX,
        Relation::Nan => 0,
    };
    if test.unordered { found | nan } else { found & !nan }
}

/// Lanes where the low and the high element (of packed types) satisfy the relation.
fn compare_float(regs: &Regs, a: Reg, b: Reg, test: FloatTest) -> (u32, u32) {
    match (a, b) {
        (Reg::R64(a), Reg::R64(b)) => {
            let (a, b) = (regs.get::<u64>(a).map(f64::from_bits), regs.get::<u64>(b).map(f64::from_bits));
            (relate_float(&a, &b, test), 0)
        }
        (Reg::R32(a), Reg::R32(b)) => {
            let (a, b) = (regs.get::<u32>(a), regs.get::<u32>(b));
            let flush = |x: f32| if test.ftz { arith::flush(x) } else { x };
            let low = |bits: u32| match test.ty {
                Type::F16 | Type::F16x2 if test.ftz => decode_f16(HalfType::F16.flush(bits as u16)),
                Type::F16 | Type::F16x2 => decode_f16(bits as u16),
                Type::Bf16 | Type::Bf16x2 => decode_bf16(bits as u16),
                _ => flush(f32::from_bits(bits)),
            };
            let found = relate_float(&a.map(low), &b.map(low), test);
            if !is_packed(test.ty) {
                return (found, 0);
            }
            let high = |bits: u32| low(bits >> 16);
            (found, relate_float(&a.map(high), &b.map(high), test))
        }
        _ => (0, 0),
    }
}

/// Writes the results of a comparison, joined as asked.
fn conclude(regs: &mut Regs, mask: u32, p: (P, Option<P>), found: (u32, u32), (join, c, negated): (Join, P, bool)) {
    let c = regs.pred[c.0 as usize] ^ if negated { u32::MAX } else { 0 };
    regs.set_pred(p.0, mask, joined(join, found.0, c));
    if let Some(q) = p.1 {
        regs.set_pred(q, mask, joined(join, found.1, c));
    }
}

fn joined(join: Join, value: u32, c: u32) -> u32 {
    match join {
        Join::None => value,
        Join::And => value & c,
        Join::Or => value | c,
        Join::Xor => value ^ c,
    }
}

fn read_pred(regs: &Regs, (p, negated): (P, bool)) -> u32 {
    regs.pred[p.0 as usize] ^ if negated { u32::MAX } else { 0 }
}

fn select<W: Word>(regs: &mut Regs, mask: u32, d: W::Index, (a, b): (W::Index, W::Index), truth: u32) -> Outcome {
    let (a, b) = (regs.get::<W>(a), regs.get::<W>(b));
    let out = std::array::from_fn(|lane| if truth >> lane & 1 != 0 { a[lane] } else { b[lane] });
    regs.set::<W>(d, mask, &out);
    Outcome::Next
}

fn select_any(regs: &mut Regs, mask: u32, d: Reg, a: Reg, b: Reg, truth: u32) -> Outcome {
    match (d, a, b) {
        (Reg::R32(d), Reg::R32(a), Reg::R32(b)) => select::<u32>(regs, mask, d, (a, b), truth),
        (Reg::R64(d), Reg::R64(a), Reg::R64(b)) => select::<u64>(regs, mask, d, (a, b), truth),
        (Reg::R128(d), Reg::R128(a), Reg::R128(b)) => select::<u128>(regs, mask, d, (a, b), truth),
        _ => Outcome::Next,
    }
}

/// Executes a comparison.
pub fn execute(regs: &mut Regs, mask: u32, op: &CompareOp) -> Outcome {
    match *op {
        CompareOp::Integer { p, a, b, ty, relation, join } => {
            let found = match (a, b) {
                (Reg::R32(a), Reg::R32(b)) => compare32(regs, a, b, ty, relation),
                (Reg::R64(a), Reg::R64(b)) => compare64(regs, a, b, ty, relation),
                _ => 0,
            };
            conclude(regs, mask, p, (found, !found), join);
        }
        CompareOp::Float { p, a, b, test, join } => {
            let (low, high) = compare_float(regs, a, b, test);
            let second = if is_packed(test.ty) { high } else { !low };
            conclude(regs, mask, p, (low, second), join);
        }
        CompareOp::Logic { join, d, a, b } => {
            let value = joined(join, read_pred(regs, a), read_pred(regs, b));
            regs.set_pred(d, mask, value);
        }
        CompareOp::Set { d, yes, p, yes_high } => {
            let low = regs.pred[p.0.0 as usize];
            let high = p.1.map_or(0, |q| regs.pred[q.0 as usize]);
            let out = std::array::from_fn(|lane| {
                let low = if low >> lane & 1 != 0 { yes } else { 0 };
                let high = if high >> lane & 1 != 0 { yes_high } else { 0 };
                low | high
            });
            regs.set::<u32>(d, mask, &out);
        }
        CompareOp::Select { d, a, b, p } => {
            let truth = read_pred(regs, p);
            return select_any(regs, mask, d, a, b, truth);
        }
        CompareOp::SelectSign { d, a, b, c, float, ftz } => {
            let mut truth = 0;
            for (lane, &bits) in regs.get::<u32>(c).iter().enumerate() {
                let value = f32::from_bits(bits);
                let value = if ftz { arith::flush(value) } else { value };
                let positive = if float { value >= 0.0 } else { bits as i32 >= 0 };
                truth |= u32::from(positive) << lane;
            }
            return select_any(regs, mask, d, a, b, truth);
        }
        CompareOp::Copy { d, a, negated } => {
            let value = regs.pred[a.0 as usize] ^ if negated { u32::MAX } else { 0 };
            regs.set_pred(d, mask, value);
        }
    }
    Outcome::Next
}

#[cfg(test)]
mod tests {
    use crate::testing::{lanes, run32};

    #[test]
    fn integer_relations_with_sign_and_width() {
        let a = lanes(&[0u32, 1, 0xffff_ffff, 0x8000]);
        let b = lanes(&[1u32, 0xffff_ffff, 0x7fff]);
        let out = run32(
            "setp.lt.s32 %p0, %r0, %r1; selp.u32 %o0, 1, 0, %p0; setp.hi.u32 %p1, %r0, %r1; selp.u32 %o1, 1, 0, %p1;
             cvt.u16.u32 %h0, %r0; cvt.u16.u32 %h1, %r1; setp.gt.s16 %p2, %h0, %h1; selp.b32 %o2, 7, 9, %p2;
             setp.eq.and.s32 %p3|%p4, %r0, %r1, !%p0; selp.u32 %o3, 1, 0, %p3; selp.u32 %o4, 1, 0, %p4;
             set.le.u32.s32 %o5, %r0, %r1; slct.s32.s32 %o6, 3, 4, %r0; xor.pred %p5, %p0, %p1; selp.u32 %o7, 1, 0, %p5;",
            &[a, b],
            8,
        );
        for lane in 0..32 {
            let (a, b) = (a[lane], b[lane]);
            let less = (a as i32) < b as i32;
            assert_eq!(out[0][lane], u32::from(less));
            assert_eq!(out[1][lane], u32::from(a > b));
            assert_eq!(out[2][lane], if (a as i16) > b as i16 { 7 } else { 9 });
            assert_eq!(out[3][lane], u32::from(a == b && !less));
            assert_eq!(out[4][lane], u32::from(a != b && !less));
            assert_eq!(out[5][lane], if a as i32 <= b as i32 { u32::MAX } else { 0 });
            assert_eq!(out[6][lane], if a as i32 >= 0 { 3 } else { 4 });
            assert_eq!(out[7][lane], u32::from(less ^ (a > b)));
        }
    }

    #[test]
    fn float_relations_with_nan() {
        let values = [1.0f32, f32::NAN, -0.0, 1e-40];
        let others = [1.0f32, 1.0, 0.0, 0.0];
        let out = run32(
            "setp.eq.f32 %p0, %r0, %r1; selp.u32 %o0, 1, 0, %p0; setp.neu.f32 %p1, %r0, %r1; selp.u32 %o1, 1, 0, %p1;
             setp.ne.f32 %p2, %r0, %r1; selp.u32 %o2, 1, 0, %p2; setp.leu.f32 %p3, %r0, %r1; selp.u32 %o3, 1, 0, %p3;
             setp.nan.f32 %p4, %r0, %r1; selp.u32 %o4, 1, 0, %p4; setp.gt.ftz.f32 %p5, %r0, %r1; selp.u32 %o5, 1, 0, %p5;
             set.eq.f32.f32 %o6, %r0, %r1; setp.num.f32 %p6, %r0, %r1; selp.u32 %o7, 1, 0, %p6;",
            &[lanes(&values).map(f32::to_bits), lanes(&others).map(f32::to_bits)],
            8,
        );
        let row = |i: usize| [out[i][0], out[i][1], out[i][2], out[i][3]];
        assert_eq!(row(0), [1, 0, 1, 0]);
        assert_eq!(row(1), [0, 1, 0, 1]);
        assert_eq!(row(2), [0, 0, 0, 1]);
        assert_eq!(row(3), [1, 1, 1, 0]);
        assert_eq!(row(4), [0, 1, 0, 0]);
        assert_eq!(row(5), [0, 0, 0, 0]);
        assert_eq!(row(6).map(f32::from_bits), [1.0, 0.0, 1.0, 0.0]);
        assert_eq!(row(7), [1, 0, 1, 1]);
    }

    #[test]
    fn packed_relations_give_two_predicates() {
        // f16: 1.0 = 3c00, 2.0 = 4000, NaN = 7e00
        let out = run32(
            "setp.lt.f16x2 %p0|%p1, %r0, %r1; selp.u32 %o0, 1, 0, %p0; selp.u32 %o1, 1, 0, %p1; set.ltu.f16x2.f16x2 %o2, %r0, %r1;",
            &[lanes(&[0x7e00_3c00]), lanes(&[0x4000_4000])],
            3,
        );
        assert_eq!([out[0][0], out[1][0], out[2][0]], [1, 0, 0x3c00_3c00]);
    }
}
