//! Decoding of loads and stores.

use super::{AccessOp, MemoryOp, MemorySpace};
use crate::check::{Order, Scope};
use crate::decode::{Addr, Decoder, Refusal, types};
use crate::exec::Op;
use crate::isa::Type;
use crate::isa::table::{BLACKWELL, Row};
use crate::machine::Reg;
use crate::parse::ast::{Instruction, Operand};

/// Rows of the family.
pub static ROWS: &[Row] = &[
    // The store is performed at once, one of the times at which it may be.
    Row::new(
        "st async {mmio} release (cluster|gpu|sys) {global} (b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64)",
        "[a], b",
        decode_store,
        "9.7.9.12",
    )
    .on(BLACKWELL, 87),
    Row::new(
        "ld {mmio} {weak|relaxed|acquire|volatile} {cta|cluster|gpu|sys} {global|const|local|param|param::entry|param::func|shared|shared::cta|shared::cluster} {nc} {ca|cg|cs|lu|cv} {L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate} {L2::evict_normal|L2::evict_first|L2::evict_last} {L2::cache_hint} {L2::64B|L2::128B|L2::256B} {v2|v4|v8} (b8|b16|b32|b64|b128|u8|u16|u32|u64|s8|s16|s32|s64|f16|bf16|f16x2|bf16x2|f32|f64)",
        "d, [a]{, policy}",
        decode_load,
        "9.7.9.8",
    ),
    Row::new(
        "ldu {global} {v2|v4} (b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64)",
        "d, [a]",
        decode_load,
        "9.7.9.10",
    ),
    Row::new(
        "st {mmio} {weak|relaxed|release|volatile} {cta|cluster|gpu|sys} {global|local|param|param::func|shared|shared::cta|shared::cluster} {wb|cg|cs|wt} {L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate} {L2::evict_normal|L2::evict_first|L2::evict_last} {L2::cache_hint} {v2|v4|v8} (b8|b16|b32|b64|b128|u8|u16|u32|u64|s8|s16|s32|s64|f16|bf16|f16x2|bf16x2|f32|f64)",
        "[a], b{, policy}",
        decode_store,
        "9.7.9.11",
    ),
    Row::new("st bulk {weak} {shared::cta}", "[a], size, zero", decode_store_bulk, "9.7.9.13").on(BLACKWELL, 86),
];

pub(crate) fn space_of(instruction: &Instruction) -> MemorySpace {
    instruction
        .choose(&[
            ("global", MemorySpace::Global),
            ("const", MemorySpace::Global),
            ("local", MemorySpace::Local),
            ("param", MemorySpace::Param),
            ("param::entry", MemorySpace::Param),
            ("param::func", MemorySpace::Local),
            ("shared", MemorySpace::SharedCta),
            ("shared::cta", MemorySpace::SharedCta),
            ("shared::cluster", MemorySpace::SharedCluster),
        ])
        .unwrap_or(MemorySpace::Generic)
}

pub(crate) fn scope_of(instruction: &Instruction) -> Option<Scope> {
    instruction.choose(&[("cta", Scope::Cta), ("cluster", Scope::Cluster), ("gpu", Scope::Gpu), ("sys", Scope::Sys)])
}

fn order_of(instruction: &Instruction) -> Order {
    let scope = scope_of(instruction).unwrap_or(Scope::Sys);
    instruction
        .choose(&[
            ("relaxed", Order::Relaxed(scope)),
            ("acquire", Order::Acquire(scope)),
            ("release", Order::Release(scope)),
            ("volatile", Order::Relaxed(Scope::Sys)),
        ])
        .unwrap_or(Order::Weak)
}

pub(crate) fn access(decoder: &mut Decoder<'_>, instruction: &Instruction, load: bool) -> Result<AccessOp, Refusal> {
    let ty = types(instruction)[0];
    let (value, address) = if load { (0, 1) } else { (1, 0) };
    let address_operand = &instruction.operands[address];
    let mut space = space_of(instruction);
    // `.param` of a call or function is thread-private, that of the entry is the parameter block.
    if space == MemorySpace::Param && !decoder.is_entry_param(address_operand) {
        let named = matches!(address_operand, Operand::Address(a) if a.base.as_deref().is_some_and(|n| decoder.register(n).is_none()));
        if named {
            space = MemorySpace::Local;
        }
    }
    if space == MemorySpace::Param && !load {
        return Refusal::invalid("kernel parameters cannot be written");
    }
    let address = decoder.address(address_operand)?;
    let width = instruction.choose(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1);
    let total = ty.bytes() * width;
    if total > 32 || (total == 32 && !matches!(space, MemorySpace::Global)) {
        return Refusal::invalid(format!("vectors of {total} bytes in this space"));
    }
    if total == 32 {
        decoder.expect_targets(BLACKWELL, "a vector of 32 bytes")?;
    }
    let elements = decoder.elements(&instruction.operands[value]);
    if elements.len() != width as usize && !(width == 1 && ty.bytes() >= 4) {
        return Refusal::invalid(format!("expected {width} elements, got {}", elements.len()));
    }
    let regs = if elements.len() == width as usize {
        elements
            .iter()
            .map(|element| {
                let found = match (load, element) {
                    (true, Operand::Sink) => Ok((decoder.fresh(ty), ty)),
                    (true, element) => decoder.dst_any(element, ty),
                    (false, element) => decoder.src_any(element, ty),
                };
                found.map(|(reg, _)| reg)
            })
            .collect::<Result<_, _>>()?
    } else {
        return Refusal::invalid(format!("expected {width} elements, got {}", elements.len()));
    };
    let order = order_of(instruction);
    Ok(AccessOp {
        space,
        address,
        ty,
        regs,
        order,
        spins: load && matches!(order, Order::Relaxed(_) | Order::Acquire(_)),
    })
}

fn decode_load(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    access(decoder, instruction, true).map(|op| Op::Memory(MemoryOp::Load(Box::new(op))))
}

fn decode_store(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    access(decoder, instruction, false).map(|op| Op::Memory(MemoryOp::Store(Box::new(op))))
}

fn decode_store_bulk(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    if decoder.immediate(&instruction.operands[2])? != 0 {
        return Refusal::invalid("expected the value 0");
    }
    let address = decoder.address(&instruction.operands[0])?;
    let size = decoder.src64(&instruction.operands[1])?;
    Ok(Op::Memory(MemoryOp::StoreBulk { address, size }))
}

/// A store of a register to local memory at a constant offset.
pub(crate) fn store_local(offset: u32, reg: Reg, ty: Type) -> Op {
    Op::Memory(MemoryOp::Store(Box::new(local(offset, reg, ty))))
}

/// A load from local memory at a constant offset.
pub(crate) fn load_local(offset: u32, reg: Reg, ty: Type) -> Op {
    Op::Memory(MemoryOp::Load(Box::new(local(offset, reg, ty))))
}

pub(super) fn local(offset: u32, reg: Reg, ty: Type) -> AccessOp {
    AccessOp {
        space: MemorySpace::Local,
        address: Addr { base: None, offset: offset.into() },
        ty,
        regs: Box::new([reg]),
        order: Order::Weak,
        spins: false,
    }
}
