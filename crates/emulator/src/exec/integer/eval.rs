//! Integer operations on one lane: values are raw bits, zero-extended to 64.

use super::{Binary, Permute, Ternary, Unary};

/// The low `bits` bits.
#[inline(always)]
fn keep(bits: u32, value: u64) -> u64 {
    if bits >= 64 { value } else { value & ((1 << bits) - 1) }
}

/// The value as a signed or unsigned integer of `bits` bits.
#[inline(always)]
fn extend(bits: u32, signed: bool, value: u64) -> i128 {
    let value = keep(bits, value);
    if signed { i128::from((value << (64 - bits)) as i64 >> (64 - bits)) } else { i128::from(value) }
}

/// The value clamped to the range of the type.
fn clamp(bits: u32, signed: bool, value: i128) -> u64 {
    let (least, most) =
        if signed { (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) };
    keep(bits, value.clamp(least, most) as u64)
}

/// Operations of one source.
#[inline(always)]
pub(super) fn unary(op: Unary, bits: u32, signed: bool, a: u64) -> u64 {
    let a = keep(bits, a);
    match op {
        Unary::Abs => keep(bits, extend(bits, true, a).unsigned_abs() as u64),
        Unary::Neg => keep(bits, a.wrapping_neg()),
        Unary::Not => keep(bits, !a),
        Unary::Cnot => u64::from(a == 0),
        Unary::Popc => a.count_ones().into(),
        Unary::Clz => u64::from(a.leading_zeros()) - u64::from(64 - bits),
        Unary::Brev => a.reverse_bits() >> (64 - bits),
        Unary::Bfind | Unary::BfindShift => {
            let negative = signed && extend(bits, true, a) < 0;
            let found = if negative { keep(bits, !a) } else { a };
            if found == 0 {
                return u64::from(u32::MAX);
            }
            let position = 63 - found.leading_zeros();
            u64::from(if op == Unary::Bfind { position } else { bits - 1 - position })
        }
    }
}

/// Operations of two sources.
#[inline(always)]
pub(super) fn binary(op: Binary, bits: u32, signed: bool, a: u64, b: u64) -> u64 {
    let (x, y) = (extend(bits, signed, a), extend(bits, signed, b));
    // Shift amounts are 32 bits whatever the type.
    let amount = (b as u32).min(bits);
    match op {
        Binary::Add => keep(bits, a.wrapping_add(b)),
        Binary::AddSat => clamp(bits, signed, x + y),
        Binary::Sub => keep(bits, a.wrapping_sub(b)),
        Binary::SubSat => clamp(bits, signed, x - y),
        Binary::Mul => keep(bits, a.wrapping_mul(b)),
        Binary::MulHi => keep(bits, (x.wrapping_mul(y) >> bits) as u64),
        Binary::MulWide => keep(2 * bits, x.wrapping_mul(y) as u64),
        Binary::Mul24 => product24(signed, a, b) as u64 & 0xffff_ffff,
        Binary::Mul24Hi => (product24(signed, a, b) >> 16) as u64 & 0xffff_ffff,
        Binary::Div if y == 0 => keep(bits, u64::MAX),
        Binary::Div => keep(bits, (x / y) as u64),
        Binary::Rem if y == 0 => keep(bits, a),
        Binary::Rem => keep(bits, (x % y) as u64),
        Binary::Min => keep(bits, x.min(y) as u64),
        Binary::Max => keep(bits, x.max(y) as u64),
        Binary::MinRelu => keep(bits, x.min(y).max(0) as u64),
        Binary::MaxRelu => keep(bits, x.max(y).max(0) as u64),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::Shl => {
            if amount >= bits {
                0
            } else {
                keep(bits, a << amount)
            }
        }
        Binary::Shr => keep(bits, (x >> amount) as u64),
        Binary::BmskClamp | Binary::BmskWrap => {
            let (from, count) = if op == Binary::BmskWrap {
                (a as u32 & 31, b as u32 & 31)
            } else {
                ((a as u32).min(32), (b as u32).min(32))
            };
            let ones = (1u64 << count) - 1;
            (ones << from) & 0xffff_ffff
        }
        Binary::SzextClamp | Binary::SzextWrap => {
            let width = if op == Binary::SzextWrap { b as u32 & 31 } else { (b as u32).min(32) };
            if width == 0 { 0 } else { keep(32, extend(width, signed, a) as u64) }
        }
    }
}

fn product24(signed: bool, a: u64, b: u64) -> i128 {
    extend(24, signed, a) * extend(24, signed, b)
}

/// Operations of three sources. `c` has twice the width for wide products.
#[inline(always)]
pub(super) fn ternary(op: Ternary, bits: u32, signed: bool, a: u64, b: u64, c: u64) -> u64 {
    match op {
        Ternary::Mad => keep(bits, a.wrapping_mul(b).wrapping_add(c)),
        Ternary::MadHi => keep(bits, binary(Binary::MulHi, bits, signed, a, b).wrapping_add(c)),
        Ternary::MadHiSat => {
            let high = extend(bits, signed, binary(Binary::MulHi, bits, signed, a, b));
            clamp(bits, signed, high + extend(bits, signed, c))
        }
        Ternary::MadWide => keep(2 * bits, binary(Binary::MulWide, bits, signed, a, b).wrapping_add(c)),
        Ternary::Mad24 => keep(32, (product24(signed, a, b) as u64).wrapping_add(c)),
        Ternary::Mad24Hi => keep(32, ((product24(signed, a, b) >> 16) as u64).wrapping_add(c)),
        Ternary::Mad24HiSat => clamp(32, signed, (product24(signed, a, b) >> 16) + extend(32, signed, c)),
        Ternary::Sad => {
            let difference = (extend(bits, signed, a) - extend(bits, signed, b)).unsigned_abs() as u64;
            keep(bits, difference.wrapping_add(c))
        }
        Ternary::Bfe => bfe(bits, signed, a, b as u32, c as u32),
        Ternary::Fns => fns(a as u32, b as u32, c as u32 as i32).into(),
        Ternary::ShfLeftClamp => shf(a, b, (c as u32).min(32), true),
        Ternary::ShfLeftWrap => shf(a, b, c as u32 & 31, true),
        Ternary::ShfRightClamp => shf(a, b, (c as u32).min(32), false),
        Ternary::ShfRightWrap => shf(a, b, c as u32 & 31, false),
        Ternary::Prmt(mode) => prmt(mode, a as u32, b as u32, c as u32).into(),
    }
}

/// Funnel shift of the 64 bits `b:a`: the high word of a left shift, the low word of a right shift.
fn shf(a: u64, b: u64, amount: u32, left: bool) -> u64 {
    let both = (b << 32) | (a & 0xffff_ffff);
    if left { (both << amount) >> 32 } else { (both >> amount) & 0xffff_ffff }
}

/// Field of `len` bits from bit `pos`; positions and lengths count modulo 256, what lies beyond the top is the sign.
fn bfe(bits: u32, signed: bool, a: u64, pos: u32, len: u32) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    let top = bits - 1;
    let sign_at = (pos + len).wrapping_sub(1).min(top);
    let sign = signed && len != 0 && a >> sign_at & 1 != 0;
    let mut out = 0;
    for i in 0..bits {
        let bit = if i < len && pos + i <= top { a >> (pos + i) & 1 != 0 } else { sign };
        out |= u64::from(bit) << i;
    }
    out
}

/// Inserts `len` bits of `a` at `pos` of `b`.
pub(super) fn bfi(bits: u32, a: u64, b: u64, pos: u32, len: u32) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    if pos >= bits {
        return keep(bits, b);
    }
    let count = len.min(bits - pos);
    let ones = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
    keep(bits, b & !(ones << pos) | (a & ones) << pos)
}

/// Position of the `offset`-th set bit from `base`, upwards for positive offsets and downwards for negative ones.
fn fns(mask: u32, base: u32, offset: i32) -> u32 {
    if base > 31 {
        return u32::MAX;
    }
    if offset == 0 {
        return if mask >> base & 1 != 0 { base } else { u32::MAX };
    }
    let mut left = offset.unsigned_abs();
    let mut at = base as i32;
    while (0..32).contains(&at) {
        if mask >> at & 1 != 0 {
            left -= 1;
            if left == 0 {
                return at as u32;
            }
        }
        at += if offset > 0 { 1 } else { -1 };
    }
    u32::MAX
}

fn prmt(mode: Permute, a: u32, b: u32, c: u32) -> u32 {
    let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
    let s = (c & 3) as usize;
    let pick = |indices: [usize; 4]| u32::from_le_bytes(indices.map(|i| bytes[i & 7]));
    match mode {
        Permute::Index => u32::from_le_bytes(std::array::from_fn(|i| {
            let selector = c >> (4 * i);
            let byte = bytes[(selector & 7) as usize];
            if selector & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte }
        })),
        Permute::Forward4 => pick([s, s + 1, s + 2, s + 3]),
        Permute::Backward4 => pick([s, s + 7, s + 6, s + 5]),
        Permute::Replicate8 => pick([s; 4]),
        Permute::EdgeLeft => pick(std::array::from_fn(|i| i.max(s))),
        Permute::EdgeRight => pick(std::array::from_fn(|i| i.min(s))),
        Permute::Replicate16 => {
            let low = 2 * (s & 1);
            pick([low, low + 1, low, low + 1])
        }
    }
}

/// Sum or difference with carry in and out. The borrow is the carry of a difference.
pub(super) fn carry(bits: u32, a: u64, b: u64, sub: bool, carry: u32) -> (u64, u32) {
    let (a, b) = (i128::from(keep(bits, a)), i128::from(keep(bits, b)));
    let carry = i128::from(carry);
    let value = if sub { a - b - carry } else { a + b + carry };
    (keep(bits, value as u64), u32::from(value < 0 || value >> bits > 0))
}

/// `dp4a` and `dp2a`.
pub(super) fn dot(a: u32, b: u32, c: u32, (a_signed, b_signed): (bool, bool), halves: Option<bool>) -> u32 {
    let element =
        |word: u32, index: u32, bits: u32, signed: bool| extend(bits, signed, (word >> (index * bits)).into()) as i64;
    let sum: i64 = match halves {
        None => (0..4).map(|i| element(a, i, 8, a_signed) * element(b, i, 8, b_signed)).sum(),
        Some(high) => {
            let first = if high { 2 } else { 0 };
            (0..2).map(|i| element(a, i, 16, a_signed) * element(b, first + i, 8, b_signed)).sum()
        }
    };
    c.wrapping_add(sum as u32)
}
