//! setp, set, selp, slct and predicate logic.

use crate::decode::{Decoder, Refusal, types};
use crate::exec::Op;
use crate::isa::Type;
use crate::isa::table::Row;
use crate::machine::{Outcome, P, R32, R64, Reg, Regs, WARP};
use crate::parse::ast::Instruction;

/// Rows of the family.
pub static ROWS: &[Row] = &[Row::new(
    "setp (eq|ne|lt|le|gt|ge|lo|ls|hi|hs) {and|or|xor} (b16|b32|b64|u16|u32|u64|s16|s32|s64)",
    "p, a, b{, c}",
    decode_setp,
    "9.7.6.1",
)];

/// Relation of two integers.
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

/// `mov.pred` and `not.pred`.
pub(crate) fn pred_copy(d: P, a: P, negated: bool) -> Op {
    Op::Compare(CompareOp::Copy { d, a, negated })
}

fn relation_of(instruction: &Instruction) -> Result<Relation, Refusal> {
    instruction
        .choose(&[
            ("eq", Relation::Eq),
            ("ne", Relation::Ne),
            ("lt", Relation::Lt),
            ("le", Relation::Le),
            ("gt", Relation::Gt),
            ("ge", Relation::Ge),
            ("lo", Relation::Lt),
            ("ls", Relation::Le),
            ("hi", Relation::Gt),
            ("hs", Relation::Ge),
        ])
        .map_or_else(|| Refusal::invalid("expected a comparison"), Ok)
}

fn decode_setp(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let (p, q) = decoder.pair(&instruction.operands[0]);
    let a = decoder.src(&instruction.operands[1], ty)?;
    let b = decoder.src(&instruction.operands[2], ty)?;
    let join = instruction.choose(&[("and", Join::And), ("or", Join::Or), ("xor", Join::Xor)]).unwrap_or(Join::None);
    let (c, negated) = match instruction.operands.get(3) {
        Some(operand) => decoder.pred(operand)?,
        None => (decoder.constant_pred(true), false),
    };
    let p = decoder.dst_pred(p)?;
    let q = q.map(|q| decoder.dst_pred(q)).transpose()?;
    Ok(Op::Compare(CompareOp::Integer {
        p: (p, q),
        a,
        b,
        ty,
        relation: relation_of(instruction)?,
        join: (join, c, negated),
    }))
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

/// Writes the result of a comparison, joined as asked.
fn conclude(regs: &mut Regs, mask: u32, p: (P, Option<P>), found: u32, (join, c, negated): (Join, P, bool)) {
    let c = regs.pred[c.0 as usize] ^ if negated { u32::MAX } else { 0 };
    let joined = |value: u32| match join {
        Join::None => value,
        Join::And => value & c,
        Join::Or => value | c,
        Join::Xor => value ^ c,
    };
    regs.set_pred(p.0, mask, joined(found));
    if let Some(q) = p.1 {
        regs.set_pred(q, mask, joined(!found));
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
            conclude(regs, mask, p, found, join);
        }
        CompareOp::Copy { d, a, negated } => {
            let value = regs.pred[a.0 as usize] ^ if negated { u32::MAX } else { 0 };
            regs.set_pred(d, mask, value);
        }
    }
    Outcome::Next
}
