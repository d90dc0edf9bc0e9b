//! Integer arithmetic, shifts, logic and bit fields.

mod decode;
mod eval;
#[cfg(test)]
mod tests;

pub use decode::ROWS;

use super::{map1, map2, map3};
use crate::isa::Type;
use crate::machine::{Outcome, P, R32, Reg, Regs};

/// Operations of one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unary {
    /// Magnitude; the least value stays.
    Abs,
    /// Negation.
    Neg,
    /// Bitwise complement.
    Not,
    /// 1 where the source is 0.
    Cnot,
    /// Set bits.
    Popc,
    /// Leading zeros.
    Clz,
    /// Bits in reverse order.
    Brev,
    /// Position of the highest bit that differs from the sign; all ones when there is none.
    Bfind,
    /// Left shift that brings that bit to the top.
    BfindShift,
}

/// Operations of two sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// Sum.
    Add,
    /// Sum clamped to the type.
    AddSat,
    /// Difference.
    Sub,
    /// Difference clamped to the type.
    SubSat,
    /// Low half of the product.
    Mul,
    /// High half of the product.
    MulHi,
    /// Product of twice the width.
    MulWide,
    /// Bits 31:0 of the product of 24-bit values.
    Mul24,
    /// Bits 47:16 of the product of 24-bit values.
    Mul24Hi,
    /// Quotient toward zero; by zero all ones.
    Div,
    /// Remainder with the dividend's sign; by zero the dividend.
    Rem,
    /// Smaller.
    Min,
    /// Larger.
    Max,
    /// Smaller, at least 0.
    MinRelu,
    /// Larger, at least 0.
    MaxRelu,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Left shift, amounts clamped to the width.
    Shl,
    /// Right shift, arithmetic for signed types, amounts clamped to the width.
    Shr,
    /// Mask of `b` bits from bit `a`, amounts clamped.
    BmskClamp,
    /// Mask of `b` bits from bit `a`, amounts modulo 32.
    BmskWrap,
    /// Sign- or zero-extension from bit `b`, clamped.
    SzextClamp,
    /// Sign- or zero-extension from bit `b`, modulo 32.
    SzextWrap,
}

/// Operations of three sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ternary {
    /// Low half of the product plus `c`.
    Mad,
    /// High half of the product plus `c`.
    MadHi,
    /// As `MadHi`, clamped (`.s32`).
    MadHiSat,
    /// Product of twice the width plus `c`.
    MadWide,
    /// 24-bit product plus `c`.
    Mad24,
    /// High part of the 24-bit product plus `c`.
    Mad24Hi,
    /// [`Self::Mad24Hi`], clamped.
    Mad24HiSat,
    /// `c + |a - b|`
    Sad,
    /// Field of `c` bits from bit `b` of `a`.
    Bfe,
    /// Position of the `c`-th set bit of `a` from bit `b`.
    Fns,
    /// Funnel shift left of `b:a`, amount clamped.
    ShfLeftClamp,
    /// Funnel shift left, amount modulo 32.
    ShfLeftWrap,
    /// Funnel shift right, amount clamped.
    ShfRightClamp,
    /// Funnel shift right, amount modulo 32.
    ShfRightWrap,
    /// Byte permutation, by mode.
    Prmt(Permute),
}

/// Mode of `prmt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permute {
    /// Selectors in `c`.
    Index,
    /// Four bytes forward from byte `c`.
    Forward4,
    /// Four bytes backward from byte `c`.
    Backward4,
    /// Byte `c` four times.
    Replicate8,
    /// Edge clamp left.
    EdgeLeft,
    /// Edge clamp right.
    EdgeRight,
    /// Half-word `c` twice.
    Replicate16,
}

/// A decoded integer operation. Types say width and sign; 16-bit values lie zero-extended in 32-bit registers.
#[derive(Debug, Clone)]
pub enum IntegerOp {
    /// One source.
    Unary {
        /// What.
        op: Unary,
        /// Type of the source.
        ty: Type,
        /// Written.
        d: Reg,
        /// Read.
        a: Reg,
    },
    /// Two sources.
    Binary {
        /// What.
        op: Binary,
        /// Type of the sources.
        ty: Type,
        /// Written.
        d: Reg,
        /// Read.
        a: Reg,
        /// Read.
        b: Reg,
    },
    /// Three sources.
    Ternary {
        /// What.
        op: Ternary,
        /// Type of the first two sources.
        ty: Type,
        /// Written.
        d: Reg,
        /// Read.
        a: Reg,
        /// Read.
        b: Reg,
        /// Read.
        c: Reg,
    },
    /// Two 16-bit elements: sum, difference, minimum, maximum.
    Packed16 {
        /// What.
        op: Binary,
        /// `.s16x2` or `.u16x2`.
        signed: bool,
        /// Written.
        d: R32,
        /// Read.
        a: R32,
        /// Read.
        b: R32,
    },
    /// Inserts the low `len` bits of `a` at bit `pos` of `b`.
    Bfi {
        /// Type: b32 or b64.
        ty: Type,
        /// Written.
        d: Reg,
        /// Field.
        a: Reg,
        /// Base.
        b: Reg,
        /// First bit.
        pos: R32,
        /// Bits.
        len: R32,
    },
    /// Any logic function of three words.
    Lop3 {
        /// Written.
        d: R32,
        /// Read.
        abc: (R32, R32, R32),
        /// Truth table: bit `4a + 2b + c`.
        lut: u8,
        /// `.and` / `.or` form: predicate written, whether or, predicate joined, negated.
        joined: Option<(P, bool, P, bool)>,
    },
    /// Sum or difference with carry.
    Carry {
        /// b32 or b64.
        ty: Type,
        /// Written.
        d: Reg,
        /// Read.
        a: Reg,
        /// Read; for `mad` the product's half is computed before.
        b: Reg,
        /// Difference.
        sub: bool,
        /// The carry is read.
        uses: bool,
        /// The carry is written.
        sets: bool,
        /// The carry flag of each lane.
        flag: P,
    },
    /// Dot product of bytes, plus `c`.
    Dp4a {
        /// Written.
        d: R32,
        /// Read.
        abc: (R32, R32, R32),
        /// Signs of `a` and `b`.
        signed: (bool, bool),
        /// `dp2a`: 16-bit elements of `a` with two bytes of `b`; true for the high ones.
        halves: Option<bool>,
    },
}

/// Executes an integer operation.
#[inline]
pub fn execute(regs: &mut Regs, mask: u32, op: &IntegerOp) -> Outcome {
    match *op {
        IntegerOp::Binary { op, ty, d: Reg::R32(d), a: Reg::R32(a), b: Reg::R32(b) } if ty.bytes() == 4 => {
            binary32(regs, mask, (op, ty), d, a, b)
        }
        IntegerOp::Binary { op, ty, d: Reg::R64(d), a: Reg::R64(a), b: Reg::R64(b) } => {
            let signed = ty.is_signed();
            match op {
                Binary::Add => map2::<u64, u64, u64>(regs, mask, d, a, b, u64::wrapping_add),
                Binary::Sub => map2::<u64, u64, u64>(regs, mask, d, a, b, u64::wrapping_sub),
                Binary::And => map2::<u64, u64, u64>(regs, mask, d, a, b, |a, b| a & b),
                Binary::Or => map2::<u64, u64, u64>(regs, mask, d, a, b, |a, b| a | b),
                Binary::Xor => map2::<u64, u64, u64>(regs, mask, d, a, b, |a, b| a ^ b),
                Binary::Mul => map2::<u64, u64, u64>(regs, mask, d, a, b, u64::wrapping_mul),
                _ => map2::<u64, u64, u64>(regs, mask, d, a, b, |a, b| eval::binary(op, 64, signed, a, b)),
            }
        }
        IntegerOp::Binary { op: Binary::MulWide, ty, d: Reg::R64(d), a: Reg::R32(a), b: Reg::R32(b) } => {
            if ty.is_signed() {
                map2::<u32, u32, u64>(regs, mask, d, a, b, |a, b| (i64::from(a as i32) * i64::from(b as i32)) as u64)
            } else {
                map2::<u32, u32, u64>(regs, mask, d, a, b, |a, b| u64::from(a) * u64::from(b))
            }
        }
        IntegerOp::Binary { op: Binary::Shl, d: Reg::R64(d), a: Reg::R64(a), b: Reg::R32(b), .. } => {
            map2::<u64, u32, u64>(regs, mask, d, a, b, |a, b| if b < 64 { a << b } else { 0 })
        }
        IntegerOp::Binary { op, ty, d, a, b } => {
            generic(regs, mask, d, [a, b, b], |[a, b, _]| eval::binary(op, ty.bits(), ty.is_signed(), a, b))
        }
        IntegerOp::Unary { op, ty, d: Reg::R32(d), a: Reg::R32(a) } => {
            let (bits, signed) = (ty.bits(), ty.is_signed());
            map1::<u32, u32>(regs, mask, d, a, |a| eval::unary(op, bits, signed, a.into()) as u32)
        }
        IntegerOp::Unary { op, ty, d, a } => {
            generic(regs, mask, d, [a; 3], |[a, _, _]| eval::unary(op, ty.bits(), ty.is_signed(), a))
        }
        IntegerOp::Ternary { op, ty, d: Reg::R32(d), a: Reg::R32(a), b: Reg::R32(b), c: Reg::R32(c) }
            if ty.bytes() == 4 =>
        {
            ternary32(regs, mask, (op, ty), d, (a, b, c))
        }
        IntegerOp::Ternary { op, ty, d, a, b, c } => {
            generic(regs, mask, d, [a, b, c], |[a, b, c]| eval::ternary(op, ty.bits(), ty.is_signed(), a, b, c))
        }
        IntegerOp::Packed16 { op, signed, d, a, b } => map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| {
            let half = |shift: u32| {
                eval::binary(op, 16, signed, (a >> shift & 0xffff).into(), (b >> shift & 0xffff).into()) as u32
            };
            half(0) | half(16) << 16
        }),
        IntegerOp::Bfi { ty, d, a, b, pos, len } => {
            let (pos, len) = (*regs.get::<u32>(pos), *regs.get::<u32>(len));
            let mut lane = 0;
            generic(regs, mask, d, [a, b, b], |[a, b, _]| {
                let result = eval::bfi(ty.bits(), a, b, pos[lane], len[lane]);
                lane += 1;
                result
            })
        }
        IntegerOp::Lop3 { d, abc, lut, joined } => {
            lop3(regs, mask, d, abc, lut);
            if let Some((p, or, q, negated)) = joined {
                let words = regs.get::<u32>(d);
                let mut bits = 0;
                for (lane, &word) in words.iter().enumerate() {
                    bits |= u32::from(word != 0) << lane;
                }
                let q = regs.pred[q.0 as usize] ^ if negated { u32::MAX } else { 0 };
                regs.set_pred(p, mask, if or { bits | q } else { bits & q });
            }
            Outcome::Next
        }
        IntegerOp::Carry { ty, d, a, b, sub, uses, sets, flag } => {
            let carry = if uses { regs.pred[flag.0 as usize] } else { 0 };
            let mut out = 0;
            let mut lane = 0;
            let outcome = generic(regs, mask, d, [a, b, b], |[a, b, _]| {
                let (value, c) = eval::carry(ty.bits(), a, b, sub, carry >> lane & 1);
                out |= c << lane;
                lane += 1;
                value
            });
            if sets {
                regs.set_pred(flag, mask, out);
            }
            outcome
        }
        IntegerOp::Dp4a { d, abc, signed, halves } => {
            map3::<u32, u32, u32, u32>(regs, mask, d, abc, |a, b, c| eval::dot(a, b, c, signed, halves))
        }
    }
}

/// 32-bit operations of two sources; the frequent ones run on whole registers.
#[inline]
fn binary32(regs: &mut Regs, mask: u32, (op, ty): (Binary, Type), d: R32, a: R32, b: R32) -> Outcome {
    let signed = ty.is_signed();
    match (op, signed) {
        (Binary::Add, _) => map2::<u32, u32, u32>(regs, mask, d, a, b, u32::wrapping_add),
        (Binary::Sub, _) => map2::<u32, u32, u32>(regs, mask, d, a, b, u32::wrapping_sub),
        (Binary::Mul, _) => map2::<u32, u32, u32>(regs, mask, d, a, b, u32::wrapping_mul),
        (Binary::And, _) => map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| a & b),
        (Binary::Or, _) => map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| a | b),
        (Binary::Xor, _) => map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| a ^ b),
        (Binary::Min, true) => map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| (a as i32).min(b as i32) as u32),
        (Binary::Min, false) => map2::<u32, u32, u32>(regs, mask, d, a, b, u32::min),
        (Binary::Max, true) => map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| (a as i32).max(b as i32) as u32),
        (Binary::Max, false) => map2::<u32, u32, u32>(regs, mask, d, a, b, u32::max),
        (Binary::Shl, _) => map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| if b < 32 { a << (b & 31) } else { 0 }),
        (Binary::Shr, true) => map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| ((a as i32) >> b.min(31)) as u32),
        (Binary::Shr, false) => {
            map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| if b < 32 { a >> (b & 31) } else { 0 })
        }
        (Binary::MulHi, false) => {
            map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32)
        }
        _ => map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| eval::binary(op, 32, signed, a.into(), b.into()) as u32),
    }
}

fn ternary32(regs: &mut Regs, mask: u32, (op, ty): (Ternary, Type), d: R32, abc: (R32, R32, R32)) -> Outcome {
    let signed = ty.is_signed();
    match op {
        Ternary::Mad => map3::<u32, u32, u32, u32>(regs, mask, d, abc, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        _ => map3::<u32, u32, u32, u32>(regs, mask, d, abc, |a, b, c| {
            eval::ternary(op, 32, signed, a.into(), b.into(), c.into()) as u32
        }),
    }
}

/// `d = f(a)` for registers of any bank; `f` is called for every lane in order.
fn generic(regs: &mut Regs, mask: u32, d: Reg, sources: [Reg; 3], mut f: impl FnMut([u64; 3]) -> u64) -> Outcome {
    let sources = sources.map(|reg| regs.wide(reg));
    let [first, second, third] = sources;
    for (lane, ((a, b), c)) in first.into_iter().zip(second).zip(third).enumerate() {
        let value = f([a, b, c]);
        if mask >> lane & 1 != 0 {
            regs.set_lane_bits(d, lane, value.into());
        }
    }
    Outcome::Next
}

fn lop3(regs: &mut Regs, mask: u32, d: R32, abc: (R32, R32, R32), lut: u8) {
    let term = |bit: u32| if lut >> bit & 1 != 0 { u32::MAX } else { 0 };
    let terms: [u32; 8] = std::array::from_fn(|bit| term(bit as u32));
    map3::<u32, u32, u32, u32>(regs, mask, d, abc, |a, b, c| {
        // Select by a, then b, then c.
        let high = (b & ((c & terms[7]) | (!c & terms[6]))) | (!b & ((c & terms[5]) | (!c & terms[4])));
        let low = (b & ((c & terms[3]) | (!c & terms[2]))) | (!b & ((c & terms[1]) | (!c & terms[0])));
        (a & high) | (!a & low)
    });
}
