//! Video instructions: arithmetic of bytes and halves with selection, saturation, and a merge or sum with a third
//! operand.
//!
//! `vadd`, `vadd2` and `vadd4` are one operation over one, two or four parts. Selectors are written behind the
//! registers: `a.b3`, `a.h1` pick one part; `a.h10`, `a.b7654` name a part of the pair `b:a` for each result, highest
//! first; behind `d` they say which results are kept.

use crate::decode::{Decoder, Refusal};
use crate::exec::Op;
use crate::exec::compare::Relation;
use crate::isa::table::Row;
use crate::machine::{Outcome, R32, Regs, WARP};
use crate::parse::ast::{Instruction, Operand};

/// What records of a device say of some forms.
const DIFFERS: &str = "an H200 does not do what the manual says of this form";

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new("vadd (u32|s32) (u32|s32) (u32|s32) {sat} {add|min|max}", "d, a, b{, c}", decode, "9.7.18.1.1"),
    Row::new("vsub (u32|s32) (u32|s32) (u32|s32) {sat} {add|min|max}", "d, a, b{, c}", decode, "9.7.18.1.1"),
    Row::new("vabsdiff (u32|s32) (u32|s32) (u32|s32) {sat} {add|min|max}", "d, a, b{, c}", decode, "9.7.18.1.1"),
    Row::new("vmin (u32|s32) (u32|s32) (u32|s32) {sat} {add|min|max}", "d, a, b{, c}", decode, "9.7.18.1.1"),
    Row::new("vmax (u32|s32) (u32|s32) (u32|s32) {sat} {add|min|max}", "d, a, b{, c}", decode, "9.7.18.1.1"),
    Row::new("vset (u32|s32) (u32|s32) (eq|ne|lt|le|gt|ge) {add|min|max}", "d, a, b{, c}", decode, "9.7.18.1.4"),
    Row::new("vadd2 (u32|s32) (u32|s32) (u32|s32) {sat} {add}", "d, a, b, c", decode, "9.7.18.2.1"),
    Row::new("vsub2 (u32|s32) (u32|s32) (u32|s32) {sat} {add}", "d, a, b, c", decode, "9.7.18.2.1"),
    Row::new("vavrg2 (u32|s32) (u32|s32) (u32|s32) {sat} {add}", "d, a, b, c", decode, "9.7.18.2.1"),
    Row::new("vabsdiff2 (u32|s32) (u32|s32) (u32|s32) {sat} {add}", "d, a, b, c", decode, "9.7.18.2.1"),
    Row::new("vmin2 (u32|s32) (u32|s32) (u32|s32) {sat} {add}", "d, a, b, c", decode, "9.7.18.2.1"),
    Row::new("vmax2 (u32|s32) (u32|s32) (u32|s32) {sat} {add}", "d, a, b, c", decode, "9.7.18.2.1"),
    Row::new("vset2 (u32|s32) (u32|s32) (eq|ne|lt|le|gt|ge) {add}", "d, a, b, c", decode, "9.7.18.2.2"),
    Row::new("vadd4 (u32|s32) (u32|s32) (u32|s32) {sat} {add}", "d, a, b, c", decode, "9.7.18.2.3"),
    Row::new("vsub4 (u32|s32) (u32|s32) (u32|s32) {sat} {add}", "d, a, b, c", decode, "9.7.18.2.3"),
    Row::new("vavrg4 (u32|s32) (u32|s32) (u32|s32) {sat} {add}", "d, a, b, c", decode, "9.7.18.2.3"),
    Row::new("vabsdiff4 (u32|s32) (u32|s32) (u32|s32) {sat} {add}", "d, a, b, c", decode, "9.7.18.2.3"),
    Row::new("vmin4 (u32|s32) (u32|s32) (u32|s32) {sat} {add}", "d, a, b, c", decode, "9.7.18.2.3"),
    Row::new("vmax4 (u32|s32) (u32|s32) (u32|s32) {sat} {add}", "d, a, b, c", decode, "9.7.18.2.3"),
    Row::new("vset4 (u32|s32) (u32|s32) (eq|ne|lt|le|gt|ge) {add}", "d, a, b, c", decode, "9.7.18.2.4"),
    Row::new("vshl (u32|s32) (u32|s32) u32 {sat} (clamp|wrap) {add|min|max}", "d, a, b{, c}", decode, "9.7.18.1.2"),
    Row::new("vshr (u32|s32) (u32|s32) u32 {sat} (clamp|wrap) {add|min|max}", "d, a, b{, c}", decode, "9.7.18.1.2"),
    Row::new("vmad (u32|s32) (u32|s32) (u32|s32) {po}", "d, a, b, c", decode_multiply, "9.7.18.1.3"),
    Row::refused("vmad (u32|s32) (u32|s32) (u32|s32) {po} {sat} {shr7|shr15}", "d, a, b, c", DIFFERS, "9.7.18.1.3"),
];

/// What is done to two parts.
#[derive(Debug, Clone, Copy)]
enum Function {
    Add,
    Sub,
    AbsDiff,
    Min,
    Max,
    /// Half the sum, a half rounded up unless the sum is negative.
    Average,
    Set(Relation),
    /// Counts above 32 are 32, or taken modulo 32.
    ShiftLeft {
        wrap: bool,
    },
    ShiftRight {
        wrap: bool,
    },
}

/// What is done with the results.
#[derive(Debug, Clone, Copy)]
enum Second {
    /// They replace parts of `c`.
    Merge,
    /// Their sum is added to `c`.
    Add,
    Min,
    Max,
}

/// A part of `b:a`: its first bit and its width.
type Part = (u32, u32);

/// A decoded video instruction.
#[derive(Debug, Clone)]
pub struct VideoOp {
    function: Function,
    second: Second,
    d: R32,
    a: R32,
    b: R32,
    c: R32,
    /// Whether results, `a` and `b` are signed.
    signed: [bool; 3],
    saturate: bool,
    /// Parts of `a`, `b` and the place in `d`, for each result that is kept.
    parts: Vec<[Part; 3]>,
    /// Bits of a result.
    width: u32,
}

/// A register and the selector behind it.
fn selected(operand: &Operand) -> (Operand, Option<&str>) {
    if let Operand::Name(text) = operand
        && let Some((name, selector)) = text.rsplit_once('.')
        && let Some(digits) = selector.strip_prefix(['b', 'h'])
        && digits.bytes().all(|digit| digit.is_ascii_digit())
        && !digits.is_empty()
    {
        return (Operand::Name(name.to_string()), Some(selector));
    }
    (operand.clone(), None)
}

/// Parts that a selector names, lowest result first.
fn parts_of(selector: &str, width: u32) -> Result<Vec<Part>, Refusal> {
    let (kind, digits) = selector.split_at(1);
    let bits = match kind {
        "b" => 8,
        "h" => 16,
        _ => return Refusal::invalid(format!("expected a selector of bytes or halves, got .{selector}")),
    };
    if width != 32 && bits != width {
        return Refusal::invalid(format!("expected parts of {width} bits, got .{selector}"));
    }
    let part = |digit: char| match digit.to_digit(10) {
        Some(index) if index * bits < 64 => Ok((index * bits, bits)),
        _ => Refusal::invalid(format!("expected parts of a pair of words, got .{selector}")),
    };
    digits.chars().rev().map(part).collect()
}

fn decode(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let name = instruction.mnemonic.trim_end_matches(['2', '4']);
    let count = match instruction.mnemonic.as_bytes().last() {
        Some(b'2') => 2,
        Some(b'4') => 4,
        _ => 1,
    };
    let width = 32 / count;
    let function = match name {
        "vadd" => Function::Add,
        "vsub" => Function::Sub,
        "vabsdiff" => Function::AbsDiff,
        "vmin" => Function::Min,
        "vmax" => Function::Max,
        "vavrg" => Function::Average,
        "vshl" => Function::ShiftLeft { wrap: instruction.has("wrap") },
        "vshr" => Function::ShiftRight { wrap: instruction.has("wrap") },
        _ => Function::Set(
            instruction
                .choose(&[
                    ("eq", Relation::Eq),
                    ("ne", Relation::Ne),
                    ("lt", Relation::Lt),
                    ("le", Relation::Le),
                    ("gt", Relation::Gt),
                    ("ge", Relation::Ge),
                ])
                .map_or_else(|| Refusal::invalid("expected a comparison"), Ok)?,
        ),
    };
    let second = instruction.choose(&[("add", Second::Add), ("min", Second::Min), ("max", Second::Max)]);
    let types: Vec<bool> =
        instruction.modifiers.iter().filter(|m| matches!(m.as_str(), "u32" | "s32")).map(|m| m == "s32").collect();
    let signed = match types[..] {
        [d, a, b] => [d, a, b],
        [a, b] => [false, a, b],
        _ => return Refusal::invalid("expected the types of d, a and b"),
    };
    let o = &instruction.operands;
    let (a, a_selector) = selected(&o[1]);
    let (b, b_selector) = selected(&o[2]);
    let (d, mask) = selected(&o[0]);
    let unsure = match function {
        Function::ShiftLeft { .. } => true,
        Function::Add | Function::AbsDiff => mask.is_some() || !signed[0],
        _ => mask.is_some(),
    };
    if count == 1 && instruction.has("sat") && unsure {
        return Refusal::refuse(DIFFERS);
    }
    let whole = |first: u32| (0..count).map(|i| (first + i * width, width)).collect::<Vec<Part>>();
    // Of `b:a`, `a` is the low word; one part of b alone is counted from its own lowest bit.
    let single = |selector: Option<&str>, first: u32| -> Result<Vec<Part>, Refusal> {
        match selector {
            None => Ok(whole(first)),
            Some(selector) if count == 1 => {
                Ok(parts_of(selector, width)?.into_iter().map(|(at, bits)| (at + first, bits)).collect())
            }
            Some(selector) => parts_of(selector, width),
        }
    };
    let (a_parts, b_parts) = (single(a_selector, 0)?, single(b_selector, 32)?);
    let kept: Vec<Part> = mask.map_or_else(|| Ok(whole(0)), |mask| parts_of(mask, width))?;
    if a_parts.len() != count as usize || b_parts.len() != count as usize || kept.is_empty() {
        return Refusal::invalid(format!("expected selectors of {count} parts"));
    }
    let parts = kept
        .iter()
        .map(|&place| {
            let result = if count == 1 { 0 } else { (place.0 / width) as usize };
            match (a_parts.get(result), b_parts.get(result)) {
                (Some(&a), Some(&b)) => Ok([a, b, place]),
                _ => Refusal::invalid("expected a result of this instruction in the mask"),
            }
        })
        .collect::<Result<_, _>>()?;
    let c = match o.get(3) {
        Some(c) => decoder.src32(c)?,
        None if second.is_none() && mask.is_none() => decoder.constant32(0),
        None => return Refusal::invalid("expected a third source"),
    };
    Ok(Op::Video(Box::new(VideoOp {
        function,
        second: second.unwrap_or(Second::Merge),
        a: decoder.src32(&a)?,
        b: decoder.src32(&b)?,
        c,
        d: decoder.dst32(&d)?,
        signed,
        saturate: instruction.has("sat"),
        parts,
        width,
    })))
}

/// A field of a pair of words, extended.
fn field(pair: u64, (at, width): Part, signed: bool) -> i64 {
    let top = (pair << (64 - at - width)) as i64;
    if signed { top >> (64 - width) } else { (top as u64 >> (64 - width)) as i64 }
}

/// The nearest value of `width` bits.
fn clamp(value: i64, width: u32, signed: bool) -> i64 {
    let (least, most) = if signed { (-(1 << (width - 1)), (1 << (width - 1)) - 1) } else { (0, (1 << width) - 1) };
    value.clamp(least, most)
}

impl VideoOp {
    fn result(&self, a: i64, b: i64) -> i64 {
        let count = |wrap: bool| if wrap { b & 31 } else { b.min(32) };
        let value = match self.function {
            Function::ShiftLeft { wrap } => a << count(wrap),
            Function::ShiftRight { wrap } => a >> count(wrap),
            Function::Add => a + b,
            Function::Sub => a - b,
            Function::AbsDiff => (a - b).abs(),
            Function::Min => a.min(b),
            Function::Max => a.max(b),
            Function::Average => (a + b + i64::from(a + b >= 0)) >> 1,
            Function::Set(relation) => i64::from(match relation {
                Relation::Eq => a == b,
                Relation::Ne => a != b,
                Relation::Lt => a < b,
                Relation::Le => a <= b,
                Relation::Gt => a > b,
                _ => a >= b,
            }),
        };
        if self.saturate { clamp(value, self.width, self.signed[0]) } else { value }
    }

    fn evaluate(&self, a: u32, b: u32, c: u32) -> u32 {
        let pair = u64::from(b) << 32 | u64::from(a);
        let signed = self.signed[0];
        let third = if signed { i64::from(c as i32) } else { i64::from(c) };
        let (mut merged, mut sum) = (c, c);
        let mut last = 0;
        for &[from_a, from_b, (at, width)] in &self.parts {
            last = self.result(field(pair, from_a, self.signed[1]), field(pair, from_b, self.signed[2]));
            let bits = (u32::MAX >> (32 - width)) << at;
            merged = merged & !bits | (last as u32) << at & bits;
            sum = sum.wrapping_add(field(last as u64, (0, self.width), signed) as u32);
        }
        let low = field(last as u64, (0, 32), signed);
        match self.second {
            Second::Merge => merged,
            Second::Add => sum,
            Second::Min => low.min(third) as u32,
            Second::Max => low.max(third) as u32,
        }
    }
}

/// `vmad`: the low 32 bits of `a * b + c`.
#[derive(Debug, Clone, Copy)]
pub struct MultiplyOp {
    d: R32,
    sources: [R32; 3],
    /// Parts of `a` and `b`.
    parts: [Part; 2],
    /// Whether `a` and `b` are signed.
    signed: [bool; 2],
    /// The product's or the addend's sign is turned.
    negate_product: bool,
    negate_c: bool,
    /// `.po`: one more.
    plus_one: bool,
}

fn decode_multiply(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let mut negative = [false; 3];
    let mut parts = [(0, 32); 2];
    let mut sources = Vec::new();
    for (i, operand) in instruction.operands[1..].iter().enumerate() {
        let operand = match operand {
            Operand::Negated(name) => {
                negative[i] = true;
                Operand::Name(name.clone())
            }
            other => other.clone(),
        };
        let (register, selector) = selected(&operand);
        match (selector.map(|selector| parts_of(selector, 32)).transpose()?.as_deref(), parts.get_mut(i)) {
            (None, _) => {}
            (Some(&[part]), Some(slot)) => *slot = part,
            _ => return Refusal::invalid("expected one part of a and of b"),
        }
        sources.push(decoder.src32(&register)?);
    }
    let plus_one = instruction.has("po");
    if plus_one && negative.contains(&true) {
        return Refusal::invalid("expected no negative operand with .po");
    }
    let types: Vec<bool> =
        instruction.modifiers.iter().filter(|m| matches!(m.as_str(), "u32" | "s32")).map(|m| m == "s32").collect();
    let (&[a, b, c], &[_, sign_a, sign_b]) = (&sources[..], &types[..]) else {
        return Refusal::invalid("expected three sources and the types of d, a and b");
    };
    Ok(Op::VideoMultiply(Box::new(MultiplyOp {
        d: decoder.dst32(&instruction.operands[0])?,
        sources: [a, b, c],
        parts,
        signed: [sign_a, sign_b],
        negate_product: negative[0] != negative[1],
        negate_c: negative[2],
        plus_one,
    })))
}

impl MultiplyOp {
    fn evaluate(&self, a: u32, b: u32, c: u32) -> u32 {
        let part = |value: u32, i: usize| field(value.into(), self.parts[i], self.signed[i]) as u32;
        let turned = |value: u32, turn: bool| if turn { value.wrapping_neg() } else { value };
        turned(part(a, 0).wrapping_mul(part(b, 1)), self.negate_product)
            .wrapping_add(turned(c, self.negate_c))
            .wrapping_add(self.plus_one.into())
    }
}

/// Executes `vmad`.
pub fn execute_multiply(regs: &mut Regs, mask: u32, op: &MultiplyOp) -> Outcome {
    let [a, b, c] = op.sources.map(|source| *regs.get::<u32>(source));
    let values: [u32; WARP] = std::array::from_fn(|lane| op.evaluate(a[lane], b[lane], c[lane]));
    regs.set::<u32>(op.d, mask, &values);
    Outcome::Next
}

/// Executes a video instruction.
pub fn execute(regs: &mut Regs, mask: u32, op: &VideoOp) -> Outcome {
    let (a, b, c) = (*regs.get::<u32>(op.a), *regs.get::<u32>(op.b), *regs.get::<u32>(op.c));
    let values: [u32; WARP] = std::array::from_fn(|lane| op.evaluate(a[lane], b[lane], c[lane]));
    regs.set::<u32>(op.d, mask, &values);
    Outcome::Next
}

#[cfg(test)]
mod tests {
    use crate::testing::{lanes, run32};

    fn one(body: &str, a: u32, b: u32, c: u32) -> u32 {
        run32(body, &[lanes(&[a]), lanes(&[b]), lanes(&[c])], 1)[0][5]
    }

    #[test]
    fn bytes_and_halves() {
        let (a, b) = (0x80ff_017f, 0x7f01_0281);
        assert_eq!(one("vadd4.u32.u32.u32 %o0, %r0, %r1, %r2;", a, b, 0), 0xff00_0300);
        assert_eq!(one("vadd4.u32.u32.u32.sat %o0, %r0, %r1, %r2;", a, b, 0), 0xffff_03ff);
        assert_eq!(one("vsub4.s32.s32.s32.sat %o0, %r0, %r1, %r2;", a, b, 0), 0x80fe_ff7f);
        assert_eq!(one("vabsdiff4.u32.u32.u32 %o0, %r0, %r1, %r2;", a, b, 0), 0x01fe_0102);
        // 1 + 254 + 1 + 2, and 5.
        assert_eq!(one("vabsdiff4.u32.u32.u32.add %o0, %r0, %r1, %r2;", a, b, 5), 263);
        assert_eq!(one("vavrg2.s32.s32.s32 %o0, %r0, %r1, %r2;", 0x0003_fffe, 0x0004_ffff, 0), 0x0004_fffe);
        assert_eq!(one("vmax2.s32.s32.s32 %o0, %r0, %r1, %r2;", 0x8000_0001, 0x7fff_ffff, 0), 0x7fff_0001);
        assert_eq!(one("vmin2.u32.u32.u32 %o0, %r0, %r1, %r2;", 0x8000_0001, 0x7fff_ffff, 0), 0x7fff_0001);
        assert_eq!(one("vset4.u32.u32.gt %o0, %r0, %r1, %r2;", a, b, 0), 0x0101_0000);
        assert_eq!(one("vset4.s32.s32.lt.add %o0, %r0, %r1, %r2;", a, b, 100), 103);
    }

    #[test]
    fn selectors_masks_and_merges() {
        let (a, b) = (0x4433_2211, 0x8877_6655);
        // Reversed bytes of a plus bytes of b; the upper two replace those of c.
        assert_eq!(one("vadd4.u32.u32.u32 %o0.b32, %r0.b0123, %r1.b7654, %r2;", a, b, 0xdead_beef), 0x9999_beef);
        assert_eq!(one("vadd2.u32.u32.u32 %o0.h0, %r0.h33, %r1.h01, %r2;", a, b, 0xdead_beef), 0xdead_ccaa);
        assert_eq!(one("vadd.s32.u32.s32 %o0, %r0.b3, %r1.h1;", a, b, 0), 0x44u32.wrapping_sub(0x7789));
        assert_eq!(one("vsub.u32.u32.u32.sat %o0, %r0.h0, %r1.h0;", a, b, 0), 0);
        assert_eq!(one("vadd.u32.u32.u32 %o0.b2, %r0.b0, %r1.b0, %r2;", a, b, 0xdead_beef), 0xde66_beef);
        assert_eq!(one("vmax.s32.s32.s32.min %o0, %r0, %r1, %r2;", 3, 9, 7), 7);
        assert_eq!(one("vset.s32.u32.lt %o0, %r0, %r1;", u32::MAX, 0, 0), 1);
    }

    #[test]
    fn shifts() {
        assert_eq!(one("vshl.u32.u32.u32.clamp.add %o0, %r0, %r1, %r2;", 3, 4, 5), 53);
        assert_eq!(one("vshl.u32.u32.u32.clamp %o0, %r0, %r1;", 3, 33, 0), 0);
        assert_eq!(one("vshl.u32.u32.u32.wrap %o0, %r0, %r1;", 3, 33, 0), 6);
        assert_eq!(one("vshl.s32.s32.u32.wrap.max %o0, %r0.b0, %r1, %r2;", 0x80, 24, 3), 3);
        assert_eq!(one("vshr.s32.s32.u32.clamp %o0, %r0, %r1;", 0x8000_0000, 200, 0), u32::MAX);
        assert_eq!(one("vshr.u32.s32.u32.wrap.min %o0, %r0.h1, %r1.b0, %r2;", 0x8000_0000, 0x22, 7), 7);
        assert_eq!(
            one("vshr.u32.u32.u32.clamp %o0.h1, %r0, %r1.b3, %r2;", 0x8765_4321, 0x0400_0000, 0xdead_beef),
            0x5432_beef
        );
    }

    #[test]
    fn products_and_sums() {
        assert_eq!(one("vmad.u32.u32.u32 %o0, %r0.b1, %r1.h1, %r2;", 0x0000_ff00, 0x0102_0000, 9), 255 * 258 + 9);
        assert_eq!(one("vmad.s32.s32.s32 %o0, %r0.b0, %r1, %r2;", 0xfe, 3, 1), -5i32 as u32);
        assert_eq!(one("vmad.s32.u32.u32 %o0, -%r0, %r1, %r2;", u32::MAX, 2, 0), 2);
        assert_eq!(one("vmad.s32.u32.u32 %o0, %r0, %r1, -%r2;", 5, 6, 7), 23);
        assert_eq!(one("vmad.u32.u32.u32.po %o0, %r0, %r1, %r2;", 127, 2, 5), 260);
    }
}
