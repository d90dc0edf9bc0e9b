//! multimem: accesses through the address of a multicast object.
//!
//! Here such an object has one device, this one, so that its addresses are ordinary global addresses: a load reduces
//! one value, a store and a reduction reach one place. Without qualifiers the accesses are relaxed at system scope.

use super::Op;
use super::memory::{MemoryOp, MemorySpace, decode_access, scope_of};
use crate::check::{Order, Scope};
use crate::decode::{Decoder, Refusal};
use crate::isa::table::Row;
use crate::parse::ast::Instruction;

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new(
        "multimem ld_reduce {weak|relaxed|acquire} {cta|cluster|gpu|sys} {global} (min|max|add|and|or|xor) {acc::f32} {v2|v4|v8} (b32|b64|u32|u64|s32|s64|f16|f16x2|bf16|bf16x2|f32|f64)",
        "d, [a]",
        decode_load,
        "9.7.9.14",
    ),
    Row::new(
        "multimem st {weak|relaxed|release} {cta|cluster|gpu|sys} {global} {v2|v4|v8} (b32|b64|u32|u64|s32|s64|f16|f16x2|bf16|bf16x2|f32|f64)",
        "[a], b",
        decode_store,
        "9.7.9.14",
    ),
    Row::new(
        "multimem red {relaxed|release} {cta|cluster|gpu|sys} {global} (min|max|add|and|or|xor) {v2|v4|v8} (b32|b64|u32|u64|s32|s64|f16|f16x2|bf16|bf16x2|f32|f64)",
        "[a], b",
        super::atomic::decode_red,
        "9.7.9.14",
    ),
    Row::refused("multimem *", "a, b{, c, d}", "only plain elements of multicast addresses are modelled", "9.7.9.14"),
    Row::refused("fabric *", "a{, b, c, d, e, f, g}", "transfers between devices are not modelled", "9.7.10"),
];

fn decode_load(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    decode(decoder, instruction, true)
}

fn decode_store(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    decode(decoder, instruction, false)
}

fn decode(decoder: &mut Decoder<'_>, instruction: &Instruction, load: bool) -> Result<Op, Refusal> {
    let mut op = decode_access(decoder, instruction, load)?;
    op.space = MemorySpace::Global;
    if op.order == Order::Weak && !instruction.has("weak") {
        op.order = Order::Relaxed(scope_of(instruction).unwrap_or(Scope::Sys));
    }
    let op = Box::new(op);
    Ok(Op::Memory(if load { MemoryOp::Load(op) } else { MemoryOp::Store(op) }))
}

#[cfg(test)]
mod tests {
    use crate::testing::{lanes, run32};

    #[test]
    fn an_object_of_one_device() {
        let out = run32(
            "multimem.st.relaxed.sys.global.v2.f32 [%io_at], {0f3F800000, 0f40000000};
             multimem.red.release.sys.global.add.f32 [%io_at], 0f40400000;
             multimem.ld_reduce.acquire.sys.global.add.v2.f32 {%o0, %o1}, [%io_at];
             multimem.red.relaxed.gpu.global.add.v2.f16x2 [%io_at], {0x3c003c00, 0x3c003c00};
             multimem.ld_reduce.weak.global.add.acc::f32.v2.f16x2 {%o2, %o3}, [%io_at];
             multimem.st.weak.global.u32 [%io_at], %r0; multimem.red.max.u32 [%io_at], 9;
             multimem.ld_reduce.min.u32 %o4, [%io_at];",
            &[lanes(&[7, 12])],
            5,
        );
        assert_eq!((out[0][3], out[1][3]), (4f32.to_bits(), 2f32.to_bits()));
        // 4.0 is 2.25 and 0 as halves, 2.0 is 2 and 0; one is added to each.
        assert_eq!((out[2][3], out[3][3]), (0x4280_3c00, 0x4200_3c00));
        assert_eq!(out[4][..2], [9, 12]);
    }
}
