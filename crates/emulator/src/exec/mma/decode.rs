//! Decoding of `mma.sync`.

use super::{Fragment, Kind, MmaOp};
use crate::decode::{Decoder, Refusal};
use crate::exec::Op;
use crate::isa::table::Row;
use crate::layout::fragment;
use crate::parse::ast::{Instruction, Operand};

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new(
        "mma sync aligned (m16n8k8|m16n8k16) row col (f16|f32) f16 f16 (f16|f32)",
        "d, a, b, c",
        decode,
        "async 5.7",
    ),
    Row::new("mma sync aligned (m16n8k8|m16n8k16) row col f32 bf16 bf16 f32", "d, a, b, c", decode, "async 5.7"),
    Row::new("mma sync aligned (m16n8k4|m16n8k8) row col f32 tf32 tf32 f32", "d, a, b, c", decode, "async 5.7"),
    Row::new(
        "mma sync aligned (m16n8k16|m16n8k32) row col (f16|f32) (e4m3|e5m2) (e4m3|e5m2) (f16|f32)",
        "d, a, b, c",
        decode,
        "async 5.7",
    ),
    Row::new(
        "mma sync aligned (m8n8k4|m16n8k4|m16n8k8|m16n8k16) row col f64 f64 f64 f64",
        "d, a, b, c",
        decode,
        "async 5.7",
    ),
    Row::new(
        "mma sync aligned (m8n8k16|m16n8k16|m16n8k32) row col {satfinite} s32 (s8|u8) (s8|u8) s32",
        "d, a, b, c",
        decode,
        "async 5.7",
    ),
    Row::new(
        "mma sync aligned (m8n8k32|m16n8k32|m16n8k64) row col {satfinite} s32 (s4|u4) (s4|u4) s32",
        "d, a, b, c",
        decode,
        "async 5.7",
    ),
    Row::new(
        "mma sync aligned (m8n8k128|m16n8k128|m16n8k256) row col s32 b1 b1 s32 (xor|and) popc",
        "d, a, b, c",
        decode,
        "9.7.14.5",
    ),
    Row::refused(
        "mma sync aligned m8n8k4 (row|col) (row|col) (f16|f32) f16 f16 (f16|f32)",
        "d, a, b, c",
        "the fragments of Volta's m8n8k4 are not modelled",
        "9.7.14.5.1",
    ),
    Row::refused(
        "mma (sp|sp::ordered_metadata) sync aligned (m16n8k8|m16n8k16|m16n8k32|m16n8k64|m16n8k128) row col {satfinite} (f16|f32|s32) (f16|bf16|tf32|s8|u8|s4|u4|e4m3|e5m2) (f16|bf16|tf32|s8|u8|s4|u4|e4m3|e5m2) (f16|f32|s32)",
        "d, a, b, c, e, f",
        "sparse matrices are not modelled",
        "async 5.7",
    ),
    Row::refused(
        "mma sync aligned (kind::f8f6f4|kind::mxf8f6f4|kind::mxf4|kind::mxf4nvf4) {block_scale} {scale_vec::1X|scale_vec::2X|scale_vec::4X} (m16n8k32|m16n8k64) row col (f16|f32) (e4m3|e5m2|e3m2|e2m3|e2m1) (e4m3|e5m2|e3m2|e2m3|e2m1) (f16|f32) {ue8m0|ue4m3}",
        "d, a, b, c{, sfa, ida, sfb, idb}",
        "only sm_120 has these kinds of mma.sync",
        "async 8.3",
    ),
];

fn fragment_of(
    decoder: &mut Decoder<'_>,
    operand: &Operand,
    (wide, count): (bool, usize),
    write: bool,
) -> Result<Fragment, Refusal> {
    let elements = decoder.elements(operand);
    if elements.len() != count {
        return Refusal::invalid(format!("expected {count} registers, got {}", elements.len()));
    }
    Ok(if wide {
        let regs = elements.iter().map(|e| if write { decoder.dst64(e) } else { decoder.src64(e) });
        Fragment::W64(regs.collect::<Result<_, _>>()?)
    } else {
        let regs = elements.iter().map(|e| if write { decoder.dst32(e) } else { decoder.src32(e) });
        Fragment::W32(regs.collect::<Result<_, _>>()?)
    })
}

fn decode(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let shape = instruction.modifiers.iter().find_map(|m| shape_of(m));
    let Some(shape) = shape else {
        return Refusal::invalid("expected a shape");
    };
    let is_type = |word: &&str| Kind::parse(word).is_some() || matches!(*word, "f32" | "s32");
    let words: Vec<&str> = instruction.modifiers.iter().map(String::as_str).filter(is_type).collect();
    let Ok(words) = <[&str; 4]>::try_from(words) else {
        return Refusal::invalid("expected four element types");
    };
    let [d, a, b, c] = &instruction.operands[..] else {
        return Refusal::invalid("expected four operands");
    };
    decode_block(decoder, instruction, shape, words, [d, a, b, c]).map(|op| Op::Mma(Box::new(op)))
}

/// A product of `m` by 8 by `k`, with the element types and operands of D, A, B and C.
pub(in crate::exec) fn decode_block(
    decoder: &mut Decoder<'_>,
    instruction: &Instruction,
    (m, k): (u32, u32),
    [d_word, a_word, b_word, c_word]: [&str; 4],
    [d, a, b, c]: [&Operand; 4],
) -> Result<MmaOp, Refusal> {
    let (Some(mut a_kind), Some(b_kind)) = (Kind::parse(a_word), Kind::parse(b_word)) else {
        return Refusal::invalid("expected element types of A and B");
    };
    if let Kind::Bit { and } = &mut a_kind {
        *and = instruction.has("and");
    }
    let e = fragment::elements_per_register(a_kind.bits());
    let wide = a_kind == Kind::F64;
    let b_registers = (k / (4 * e)) as usize;
    let a_registers = b_registers * (m / 8) as usize;
    let accumulators = |word: &str| (wide, (m / 4) as usize / if word == "f16" { 2 } else { 1 });
    Ok(MmaOp {
        m,
        k,
        a_kind,
        b_kind,
        half_d: d_word == "f16",
        half_c: c_word == "f16",
        saturate: instruction.has("satfinite"),
        a: fragment_of(decoder, a, (wide, a_registers), false)?,
        b: fragment_of(decoder, b, (wide, b_registers), false)?,
        c: fragment_of(decoder, c, accumulators(c_word), false)?,
        d: fragment_of(decoder, d, accumulators(d_word), true)?,
        name: format!("mma.{a_word}"),
    })
}

/// M and K of `m16n8k16`.
fn shape_of(word: &str) -> Option<(u32, u32)> {
    let (m, rest) = word.strip_prefix('m')?.split_once("n8k")?;
    Some((m.parse().ok()?, rest.parse().ok()?))
}
