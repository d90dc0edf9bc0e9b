//! Whole words of all lanes at once, between memory and registers.

use super::AccessOp;
use super::access::shared_bytes;
use crate::exec::{lanes, side_by_side};
use crate::machine::{Cluster, Reg, WARP, Warp};
use crate::memory::Space;

/// Whether every lane of the access is whole words of one space; then the lanes move together.
pub(super) fn in_words(mask: u32, op: &AccessOp, spaces: &[Space; WARP]) -> Option<Space> {
    let space = spaces[mask.trailing_zeros() as usize];
    let whole = op.ty.bytes() >= 4 && lanes(mask).all(|lane| spaces[lane] == space);
    (whole && matches!(space, Space::Global | Space::Shared)).then_some(space)
}

/// Reads words for the lanes that need no special treatment and returns the others.
pub(super) fn gather_words(
    machine: &Cluster,
    mask: u32,
    space: Space,
    at: &[u64; WARP],
    words: usize,
    out: &mut [[u32; 8]; WARP],
) -> u32 {
    if space == Space::Global {
        return machine.global.gather(mask, at, words, out, machine.global.check_init);
    }
    if side_by_side(mask, at, 4 * words as u32)
        && let Ok(run) = shared_bytes(machine, at[0] as u32, 128 * words, true)
    {
        for (lane, bytes) in out.iter_mut().zip(run.chunks_exact(4 * words)) {
            for (word, bytes) in lane.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(*bytes);
            }
        }
        return 0;
    }
    let mut rest = 0;
    for lane in lanes(mask) {
        match shared_bytes(machine, at[lane] as u32, 4 * words, true) {
            Ok(bytes) => {
                for (word, bytes) in out[lane].iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *word = u32::from_le_bytes(*bytes);
                }
            }
            Err(_) => rest |= 1 << lane,
        }
    }
    rest
}

/// Words into registers. Sign extension only concerns types narrower than a word, or words in 64-bit registers.
pub(super) fn spread_words(warp: &mut Warp, mask: u32, op: &AccessOp, words: &[[u32; 8]; WARP]) {
    let per = op.ty.bytes() as usize / 4;
    for (i, &reg) in op.regs.iter().enumerate() {
        match (reg, per) {
            (Reg::R32(r), 1) => {
                let values = std::array::from_fn(|lane| words[lane][i]);
                warp.regs.set::<u32>(r, mask, &values);
            }
            (Reg::R64(r), 2) => {
                let values =
                    std::array::from_fn(|lane| u64::from(words[lane][2 * i]) | u64::from(words[lane][2 * i + 1]) << 32);
                warp.regs.set::<u64>(r, mask, &values);
            }
            _ => {
                for lane in lanes(mask) {
                    let part = &words[lane][per * i..per * (i + 1)];
                    let bits = part.iter().rev().fold(0u128, |bits, &word| bits << 32 | u128::from(word));
                    let shift = 128 - 32 * per as u32;
                    let bits = if op.ty.is_signed() { ((bits << shift) as i128 >> shift) as u128 } else { bits };
                    warp.regs.set_lane_bits(reg, lane, bits);
                }
            }
        }
    }
}

/// Registers as words, lane by lane.
pub(super) fn collect_words(warp: &Warp, op: &AccessOp) -> [[u32; 8]; WARP] {
    let mut words = [[0; 8]; WARP];
    let per = op.ty.bytes() as usize / 4;
    for (i, &reg) in op.regs.iter().enumerate() {
        match (reg, per) {
            (Reg::R32(r), 1) => {
                let values = warp.regs.get::<u32>(r);
                (0..WARP).for_each(|lane| words[lane][i] = values[lane]);
            }
            (Reg::R64(r), 2) => {
                let values = warp.regs.get::<u64>(r);
                for lane in 0..WARP {
                    words[lane][2 * i] = values[lane] as u32;
                    words[lane][2 * i + 1] = (values[lane] >> 32) as u32;
                }
            }
            _ => {
                for (lane, words) in words.iter_mut().enumerate() {
                    let bits = warp.regs.lane_bits(reg, lane);
                    for (k, word) in words[per * i..per * (i + 1)].iter_mut().enumerate() {
                        *word = (bits >> (32 * k)) as u32;
                    }
                }
            }
        }
    }
    words
}

/// Writes words for the lanes that need no special treatment and returns the others.
pub(super) fn scatter_words(
    machine: &mut Cluster,
    mask: u32,
    space: Space,
    at: &[u64; WARP],
    words: usize,
    values: &[[u32; 8]; WARP],
) -> u32 {
    if space == Space::Global {
        return machine.global.scatter(mask, at, words, values);
    }
    if side_by_side(mask, at, 4 * words as u32)
        && let Some(cta) = machine.ctas.get_mut(Cluster::rank_of(at[0] as u32) as usize)
        && let Ok(run) = cta.shared.write_run(at[0] as u32 & 0x00ff_ffff, 128 * words)
    {
        for (lane, bytes) in values.iter().zip(run.chunks_exact_mut(4 * words)) {
            for (word, bytes) in lane.iter().zip(bytes.as_chunks_mut::<4>().0) {
                *bytes = word.to_le_bytes();
            }
        }
        return 0;
    }
    let mut rest = 0;
    for lane in lanes(mask) {
        let mut bytes = [0; 32];
        for (bytes, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(&values[lane]) {
            *bytes = word.to_le_bytes();
        }
        let rank = Cluster::rank_of(at[lane] as u32) as usize;
        let written = machine
            .ctas
            .get_mut(rank)
            .is_some_and(|cta| cta.shared.write(at[lane] as u32 & 0x00ff_ffff, &bytes[..4 * words]).is_ok());
        if !written {
            rest |= 1 << lane;
        }
    }
    rest
}
