//! The mask of CTAs of a multicast: 16 bits, or 32 where `.multicast::cluster::32b` says so.

use super::lanes;
use crate::decode::{Decoder, Refusal};
use crate::isa::Type;
use crate::machine::{Cluster, R32, Reg, WARP, Warp};
use crate::parse::ast::{Instruction, Operand};

/// A decoded mask.
#[derive(Debug, Clone, Copy)]
pub struct Multicast {
    register: R32,
    bits: u32,
}

/// Whether the instruction is a multicast.
pub(crate) fn asked(instruction: &Instruction) -> bool {
    ["multicast::cluster", "multicast::cluster::16b", "multicast::cluster::32b"]
        .iter()
        .any(|word| instruction.has(word))
}

impl Multicast {
    /// # Errors
    /// The operand is no mask of the instruction's width.
    pub(crate) fn decode(
        decoder: &mut Decoder<'_>,
        instruction: &Instruction,
        operand: &Operand,
    ) -> Result<Multicast, Refusal> {
        let (ty, bits) = if instruction.has("multicast::cluster::32b") { (Type::B32, 32) } else { (Type::B16, 16) };
        match decoder.src_any(operand, ty)?.0 {
            Reg::R32(register) => Ok(Multicast { register, bits }),
            _ => Refusal::invalid(format!("expected a mask of {bits} bits")),
        }
    }

    /// Masks of the lanes.
    pub(crate) fn masks(&self, warp: &Warp) -> [u32; WARP] {
        warp.regs.get::<u32>(self.register).map(|mask| mask & u32::MAX >> (32 - self.bits))
    }
}

/// A shared address in each CTA of a mask.
pub(crate) fn addresses(address: u32, ranks: u32) -> impl Iterator<Item = u32> {
    lanes(ranks).map(move |rank| (rank as u32) << 24 | address & 0x00ff_ffff)
}

/// The rank of an address alone, as a mask.
pub(crate) fn only(address: u32) -> u32 {
    1 << Cluster::rank_of(address)
}
