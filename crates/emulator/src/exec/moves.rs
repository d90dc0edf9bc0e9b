//! mov, packing, addresses, special registers, cvta, isspacep.

use crate::decode::{Decoder, Refusal, SpecialRegister, types};
use crate::exec::compare::{CompareOp, Join, Relation};
use crate::exec::{Op, lanes};
use crate::isa::table::Row;
use crate::isa::{Bank, Type};
use crate::machine::{Cluster, Outcome, P, R32, Reg, WARP, Warp};
use crate::memory::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, Space, resolve_generic};
use crate::parse::ast::{Instruction, Operand};

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new(
        "mov (b16|b32|b64|b128|u16|u32|u64|s16|s32|s64|f16|bf16|f32|f64|pred|f16x2|bf16x2)",
        "d, a",
        decode_mov,
        "9.7.9.1",
    ),
    Row::new(
        "cvta (global|const|local|param|param::entry|shared|shared::cta|shared::cluster) (u32|u64)",
        "d, a",
        decode_cvta,
        "9.7.9.20",
    ),
    Row::new(
        "cvta to (global|const|local|param|param::entry|shared|shared::cta|shared::cluster) (u32|u64)",
        "d, a",
        decode_cvta,
        "9.7.9.20",
    ),
    Row::new(
        "isspacep (global|const|local|param|param::entry|shared|shared::cta|shared::cluster)",
        "p, a",
        decode_isspacep,
        "9.7.9.19",
    ),
];

/// A decoded move.
#[derive(Debug, Clone)]
pub enum MoveOp {
    /// Same-bank copy.
    Copy {
        /// Written.
        d: Reg,
        /// Read.
        a: Reg,
    },
    /// Zero-extending or truncating copy between banks.
    Resize {
        /// Written.
        d: Reg,
        /// Read.
        a: Reg,
    },
    /// A special register.
    Special {
        /// Written.
        d: Reg,
        /// Which one.
        special: SpecialRegister,
    },
    /// Address of shared memory in the cluster window.
    SharedAddress {
        /// Written.
        d: R32,
        /// Offset in the CTA, or from the start of the dynamic array.
        offset: u32,
        /// In the dynamic array.
        dynamic: bool,
    },
    /// Elements of `bits` bits from several registers into one, lowest first.
    Pack {
        /// Written.
        d: Reg,
        /// Read, lowest first.
        parts: Box<[Reg]>,
        /// Bits of an element.
        bits: u32,
    },
    /// One register into elements.
    Unpack {
        /// Written, lowest first; `None` is a sink.
        parts: Box<[Option<Reg>]>,
        /// Read.
        a: Reg,
        /// Bits of an element.
        bits: u32,
    },
    /// Adds a generic window: `cvta`.
    ToGeneric {
        /// Written.
        d: Reg,
        /// Read.
        a: Reg,
        /// Window base; 0 for global memory.
        window: u64,
    },
    /// Whether a generic address is in a space.
    InSpace {
        /// Written.
        p: P,
        /// Address.
        a: Reg,
        /// Space.
        space: Space,
        /// `.shared::cta`: only the own CTA's.
        own: bool,
    },
}

fn decode_mov(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let (d, a) = (&instruction.operands[0], &instruction.operands[1]);
    if let Operand::Vector(parts) = d {
        let bits = element_bits(parts.len(), ty)?;
        let element = element_type(bits)?;
        let parts = parts
            .iter()
            .map(|part| match part {
                Operand::Sink => Ok(None),
                part => decoder.dst(part, element).map(Some),
            })
            .collect::<Result<_, _>>()?;
        let a = decoder.src(a, ty)?;
        return Ok(Op::Move(MoveOp::Unpack { parts, a, bits }));
    }
    if ty == Type::Pred {
        let d = decoder.dst_pred(d)?;
        if *a == Operand::Name("%is_explicit_cluster".to_string()) {
            let word = decoder.fresh32();
            decoder.emit(Op::Move(MoveOp::Special { d: Reg::R32(word), special: SpecialRegister::IsExplicitCluster }));
            let (a, b) = (Reg::R32(word), Reg::R32(decoder.constant32(0)));
            let join = (Join::None, decoder.constant_pred(true), false);
            return Ok(Op::Compare(CompareOp::Integer {
                p: (d, None),
                a,
                b,
                ty: Type::U32,
                relation: Relation::Ne,
                join,
            }));
        }
        let (a, negated) = decoder.pred(a)?;
        return Ok(super::compare::pred_copy(d, a, negated));
    }
    if let Operand::Name(name) = a
        && let Some(special) = SpecialRegister::parse(name)
        && special.is_wide() == (ty.bank() == Bank::W64)
    {
        let d = decoder.dst(d, ty)?;
        return Ok(Op::Move(MoveOp::Special { d, special }));
    }
    if let Operand::Vector(parts) = a {
        let a = pack(decoder, parts, ty)?;
        let d = decoder.dst(d, ty)?;
        return Ok(Op::Move(MoveOp::Copy { d, a }));
    }
    let a = decoder.src(a, ty)?;
    let d = decoder.dst(d, ty)?;
    Ok(Op::Move(MoveOp::Copy { d, a }))
}

fn element_bits(parts: usize, ty: Type) -> Result<u32, Refusal> {
    let parts = parts as u32;
    if !matches!(parts, 1 | 2 | 4 | 8) || !ty.bits().is_multiple_of(parts) {
        return Refusal::invalid(format!("{parts} elements do not fill .{}", ty.word()));
    }
    Ok(ty.bits() / parts)
}

fn element_type(bits: u32) -> Result<Type, Refusal> {
    Ok(match bits {
        8 => Type::B8,
        16 => Type::B16,
        32 => Type::B32,
        64 => Type::B64,
        _ => return Refusal::invalid(format!("elements of {bits} bits")),
    })
}

/// Emits the packing of `{a, b, ..}` into a new register of type `ty`.
pub(crate) fn pack(decoder: &mut Decoder<'_>, parts: &[Operand], ty: Type) -> Result<Reg, Refusal> {
    let bits = element_bits(parts.len(), ty)?;
    let element = element_type(bits)?;
    let parts = parts.iter().map(|part| decoder.src(part, element)).collect::<Result<_, _>>()?;
    let d = decoder.fresh(ty);
    decoder.emit(Op::Move(MoveOp::Pack { d, parts, bits }));
    Ok(d)
}

fn space_word(instruction: &Instruction) -> Result<(Space, bool), Refusal> {
    instruction
        .choose(&[
            ("global", (Space::Global, false)),
            ("const", (Space::Global, false)),
            ("local", (Space::Local, false)),
            ("param", (Space::Param, false)),
            ("param::entry", (Space::Param, false)),
            ("shared", (Space::Shared, true)),
            ("shared::cta", (Space::Shared, true)),
            ("shared::cluster", (Space::Shared, false)),
        ])
        .map_or_else(|| Refusal::invalid("expected a state space"), Ok)
}

fn decode_cvta(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    if ty != Type::U64 {
        return Refusal::refuse("32-bit generic addresses do not exist on these targets");
    }
    let to = instruction.has("to");
    let (space, _) = space_word(instruction)?;
    let a = decoder.src(&instruction.operands[1], ty)?;
    let d = decoder.dst(&instruction.operands[0], ty)?;
    let window = match space {
        Space::Shared => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        Space::Param => PARAM_WINDOW,
        Space::Global | Space::Tensor => 0,
    };
    if to {
        // Loads and stores of a windowed space use the low 32 bits of the address.
        if window == 0 {
            return Ok(Op::Move(MoveOp::Copy { d, a }));
        }
        let low = Reg::R32(decoder.fresh32());
        decoder.emit(Op::Move(MoveOp::Resize { d: low, a }));
        return Ok(Op::Move(MoveOp::Resize { d, a: low }));
    }
    Ok(Op::Move(MoveOp::ToGeneric { d, a, window }))
}

fn decode_isspacep(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let (space, own) = space_word(instruction)?;
    let p = decoder.dst_pred(&instruction.operands[0])?;
    let a = decoder.src(&instruction.operands[1], Type::U64)?;
    Ok(Op::Move(MoveOp::InSpace { p, a, space, own }))
}

/// Executes a move.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &MoveOp) -> Outcome {
    let regs = &mut warp.regs;
    match *op {
        MoveOp::Copy { d, a } => match (d, a) {
            (Reg::R32(d), Reg::R32(a)) => {
                let value = *regs.get::<u32>(a);
                regs.set::<u32>(d, mask, &value);
            }
            (Reg::R64(d), Reg::R64(a)) => {
                let value = *regs.get::<u64>(a);
                regs.set::<u64>(d, mask, &value);
            }
            (Reg::R128(d), Reg::R128(a)) => {
                let value = *regs.get::<u128>(a);
                regs.set::<u128>(d, mask, &value);
            }
            _ => resize(warp, mask, d, a),
        },
        MoveOp::Resize { d, a } => resize(warp, mask, d, a),
        MoveOp::Special { d, special } => {
            let values = special_values(machine, warp, special);
            match d {
                Reg::R32(d) => warp.regs.set::<u32>(d, mask, &values.map(|v| v as u32)),
                Reg::R64(d) => warp.regs.set::<u64>(d, mask, &values),
                _ => {}
            }
        }
        MoveOp::SharedAddress { d, offset, dynamic } => {
            let start = if dynamic { machine.program.dynamic_start() } else { 0 };
            let address = (warp.cta << 24) | start.wrapping_add(offset) & 0x00ff_ffff;
            regs.set::<u32>(d, mask, &[address; WARP]);
        }
        MoveOp::Pack { d, ref parts, bits } => match (d, parts.as_ref(), bits) {
            (Reg::R64(d), &[Reg::R32(low), Reg::R32(high)], 32) => {
                return super::map2::<u32, u32, u64>(regs, mask, d, low, high, |l, h| {
                    u64::from(l) | u64::from(h) << 32
                });
            }
            (Reg::R32(d), &[Reg::R32(low), Reg::R32(high)], 16) => {
                return super::map2::<u32, u32, u32>(regs, mask, d, low, high, |l, h| l & 0xffff | h << 16);
            }
            _ => {
                for lane in lanes(mask) {
                    let mut value: u128 = 0;
                    for (i, &part) in parts.iter().enumerate() {
                        value |= (regs.lane_bits(part, lane) & ((1 << bits) - 1)) << (bits * i as u32);
                    }
                    regs.set_lane_bits(d, lane, value);
                }
            }
        },
        MoveOp::Unpack { ref parts, a, bits } => match (a, parts.as_ref(), bits) {
            (Reg::R64(a), &[low, high], 32) => {
                let value = *regs.get::<u64>(a);
                if let Some(Reg::R32(low)) = low {
                    regs.set::<u32>(low, mask, &value.map(|v| v as u32));
                }
                if let Some(Reg::R32(high)) = high {
                    regs.set::<u32>(high, mask, &value.map(|v| (v >> 32) as u32));
                }
            }
            (Reg::R32(a), &[low, high], 16) => {
                let value = *regs.get::<u32>(a);
                if let Some(Reg::R32(low)) = low {
                    regs.set::<u32>(low, mask, &value.map(|v| v & 0xffff));
                }
                if let Some(Reg::R32(high)) = high {
                    regs.set::<u32>(high, mask, &value.map(|v| v >> 16));
                }
            }
            _ => {
                for lane in lanes(mask) {
                    let value = regs.lane_bits(a, lane);
                    for (i, part) in parts.iter().enumerate() {
                        if let Some(part) = *part {
                            let element = value >> (bits * i as u32) & ((1 << bits) - 1);
                            regs.set_lane_bits(part, lane, element);
                        }
                    }
                }
            }
        },
        MoveOp::ToGeneric { d, a, window } => {
            let values = regs.wide(a).map(|v| v.wrapping_add(window));
            if let Reg::R64(d) = d {
                regs.set::<u64>(d, mask, &values);
            }
        }
        MoveOp::InSpace { p, a, space, own } => {
            let cta = warp.cta;
            let addresses = regs.wide(a);
            let mut bits = 0;
            for (lane, &address) in addresses.iter().enumerate() {
                let (found, at) = resolve_generic(address);
                let inside = found == space && !(own && at as u32 >> 24 != cta);
                bits |= u32::from(inside) << lane;
            }
            regs.set_pred(p, mask, bits);
        }
    }
    Outcome::Next
}

fn resize(warp: &mut Warp, mask: u32, d: Reg, a: Reg) {
    let regs = &mut warp.regs;
    match (d, a) {
        (Reg::R64(d), Reg::R32(a)) => {
            let value = regs.get::<u32>(a).map(u64::from);
            regs.set::<u64>(d, mask, &value);
        }
        (Reg::R32(d), Reg::R64(a)) => {
            let value = regs.get::<u64>(a).map(|v| v as u32);
            regs.set::<u32>(d, mask, &value);
        }
        _ => {
            for lane in lanes(mask) {
                let value = regs.lane_bits(a, lane);
                regs.set_lane_bits(d, lane, value);
            }
        }
    }
}

/// Values of a special register in the 32 lanes.
fn special_values(machine: &Cluster, warp: &Warp, special: SpecialRegister) -> [u64; WARP] {
    use SpecialRegister as S;
    let shape = &machine.grid.shape;
    let cta = &machine.ctas[warp.cta as usize];
    let per_lane = |f: &dyn Fn(u64) -> u64| std::array::from_fn(|lane| f(lane as u64));
    let thread = |lane: u64| u64::from(warp.index) * WARP as u64 + lane;
    let [bx, by, _] = shape.block.map(u64::from);
    let all = |value: u64| [value; WARP];
    let in_cluster: [u32; 3] = std::array::from_fn(|i| cta.index[i] % shape.cluster[i]);
    match special {
        S::TidX => per_lane(&|lane| thread(lane) % bx),
        S::TidY => per_lane(&|lane| thread(lane) / bx % by),
        S::TidZ => per_lane(&|lane| thread(lane) / (bx * by)),
        S::NtidX => all(shape.block[0].into()),
        S::NtidY => all(shape.block[1].into()),
        S::NtidZ => all(shape.block[2].into()),
        S::CtaidX => all(cta.index[0].into()),
        S::CtaidY => all(cta.index[1].into()),
        S::CtaidZ => all(cta.index[2].into()),
        S::NctaidX => all(shape.grid[0].into()),
        S::NctaidY => all(shape.grid[1].into()),
        S::NctaidZ => all(shape.grid[2].into()),
        S::Laneid => per_lane(&|lane| lane),
        S::Warpid => all(warp.index.into()),
        S::Nwarpid => all(shape.threads().div_ceil(32).into()),
        S::Smid => all(machine.linear % u64::from(machine.options.sm_count.max(1))),
        S::Nsmid => all(machine.options.sm_count.into()),
        S::Gridid => all(machine.grid.id),
        S::ClusteridX => all(machine.index[0].into()),
        S::ClusteridY => all(machine.index[1].into()),
        S::ClusteridZ => all(machine.index[2].into()),
        S::NclusteridX => all(shape.clusters()[0].into()),
        S::NclusteridY => all(shape.clusters()[1].into()),
        S::NclusteridZ => all(shape.clusters()[2].into()),
        S::ClusterCtaidX => all(in_cluster[0].into()),
        S::ClusterCtaidY => all(in_cluster[1].into()),
        S::ClusterCtaidZ => all(in_cluster[2].into()),
        S::ClusterNctaidX => all(shape.cluster[0].into()),
        S::ClusterNctaidY => all(shape.cluster[1].into()),
        S::ClusterNctaidZ => all(shape.cluster[2].into()),
        S::ClusterCtarank => all(cta.rank.into()),
        S::ClusterNctarank => all(shape.cluster_size().into()),
        S::IsExplicitCluster => all(shape.explicit_cluster.into()),
        S::LanemaskEq => per_lane(&|lane| 1 << lane),
        S::LanemaskLe => per_lane(&|lane| (2 << lane) - 1),
        S::LanemaskLt => per_lane(&|lane| (1 << lane) - 1),
        S::LanemaskGe => per_lane(&|lane| u64::from(u32::MAX << lane)),
        S::LanemaskGt => per_lane(&|lane| u64::from(!(((2u64 << lane) - 1) as u32))),
        S::Clock | S::GlobaltimerLo => all(machine.clock & 0xffff_ffff),
        S::ClockHi | S::GlobaltimerHi => all(machine.clock >> 32),
        S::Clock64 | S::Globaltimer => all(machine.clock),
        S::DynamicSmemSize => all(shape.dynamic_shared.into()),
        S::TotalSmemSize | S::AggrSmemSize => all(shape.shared_bytes.into()),
        S::GridWorkspaceHigh => all(machine.grid.workspace >> 32),
        S::GridWorkspaceLow => all(machine.grid.workspace & 0xffff_ffff),
        S::CurrentGraphExec => all(0),
        S::ReservedSmemBegin => all(0),
        S::ReservedSmemEnd | S::ReservedSmemCap => all(crate::memory::SHARED_START.into()),
    }
}
