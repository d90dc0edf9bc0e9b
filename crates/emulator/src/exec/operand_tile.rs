//! Operands of matrix instructions as rows of values: units of 16 bytes, read from shared memory through a descriptor
//! or from the registers of four lanes.

use crate::check::{Access, Actor, Bytes, Order, Proxy, Use};
use crate::finding::Kind;
use crate::layout::instruction_descriptor::Element;
use crate::layout::operand::{Major, Operand};
use crate::machine::{Cluster, Fault, R32, Warp};
use crate::memory::{AccessError, Space};

/// Elements as they lie in a 16-byte unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Container {
    /// Element type.
    pub(crate) element: Element,
    /// Two 4-bit elements in a byte, as the mxf4 kinds have; otherwise 4- and 6-bit elements take 16 to a unit, packed
    /// at its low end.
    pub(crate) dense_fp4: bool,
}

impl Container {
    /// Elements of a unit.
    pub(crate) const fn per_unit(self) -> usize {
        match self.element.bits() {
            32 => 4,
            16 => 8,
            4 if self.dense_fp4 => 32,
            _ => 16,
        }
    }

    /// Bytes of a unit that hold data.
    const fn data_bytes(self) -> usize {
        match self.element.bits() {
            4 if !self.dense_fp4 => 8,
            6 => 12,
            _ => 16,
        }
    }

    /// Bits of one element for the rules of descriptors: 8 for padded containers.
    pub(crate) const fn container_bits(self) -> u32 {
        match self.element.bits() {
            4 if self.dense_fp4 => 4,
            4 | 6 => 8,
            bits => bits,
        }
    }
}

/// Rows of `k` values from fragments: four lanes of a register hold elements side by side, from row (or column of B)
/// and k of `first(lane, register)` on.
pub(crate) fn from_registers(
    warp: &Warp,
    regs: &[R32],
    element: Element,
    k: usize,
    first: impl Fn(u32, u32) -> (u32, u32),
    out: &mut [f32],
) {
    let elements = 128 / element.bits() as usize;
    for (register, reg) in (0..).zip(regs) {
        for (lane, unit) in (0..).step_by(4).zip(warp.regs.get::<u32>(*reg).as_chunks().0) {
            let (row, column) = first(lane, register);
            element.unpack(*unit, &mut out[row as usize * k + column as usize..][..elements]);
        }
    }
}

/// Unpacked operands that are kept: the warps of a warpgroup read the same B one after the other, a few at a time.
const KEPT: usize = 16;

/// Operands and their values, reused while the same units are read again.
#[derive(Debug, Default)]
pub(crate) struct Unpacked {
    tiles: Vec<Tile>,
    /// The one that is replaced next.
    oldest: usize,
}

#[derive(Debug)]
struct Tile {
    container: Container,
    major: Major,
    /// First row, rows, k.
    shape: (usize, usize, usize),
    units: Vec<[u32; 4]>,
    values: Vec<f32>,
}

impl Unpacked {
    /// Keeps the values of an operand.
    fn keep(&mut self, tile: Tile) {
        if let Some(slot) = self.tiles.get_mut(self.oldest) {
            *slot = tile;
        } else {
            self.tiles.push(tile);
        }
        self.oldest = (self.oldest + 1) % KEPT;
    }
}

/// The values of `shape.1` rows of `shape.2` values in units that were read line by line.
fn unpack(
    container: Container,
    major: Major,
    (first, rows, k): (usize, usize, usize),
    units: &[[u32; 4]],
    out: &mut [f32],
) {
    let per = container.per_unit();
    match major {
        Major::K => {
            let mut units = units.iter();
            for out in out.chunks_exact_mut(k) {
                for (out, unit) in out.chunks_mut(per).zip(&mut units) {
                    container.element.unpack(*unit, out);
                }
            }
        }
        Major::Mn => {
            let mut values = [0.0; 32];
            let side = first / per..(first + rows).div_ceil(per);
            for (line, units) in units.chunks_exact(side.len()).enumerate() {
                for (unit, words) in side.clone().zip(units) {
                    container.element.unpack(*words, &mut values);
                    for (i, &value) in values[..per].iter().enumerate() {
                        if let Some(row) = (unit * per + i).checked_sub(first)
                            && row < rows
                        {
                            out[row * k + line] = value;
                        }
                    }
                }
            }
        }
    }
}

/// An asynchronous operation that reads operands: who issued it and its number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Issuer {
    pub(crate) actor: Actor,
    pub(crate) operation: u64,
}

impl Issuer {
    /// Tells the checkers that the operation reads `bytes` of a CTA's shared memory at each offset, through the async
    /// proxy.
    pub(crate) fn observe_units(&self, machine: &mut Cluster, rank: u32, offsets: &[u32], bytes: usize) {
        let Some(observer) = &mut machine.observer else { return };
        let starts: Vec<u64> = offsets.iter().map(|offset| u64::from(rank << 24 | offset)).collect();
        let access = Access {
            space: Space::Shared,
            usage: Use::Read,
            proxy: Proxy::Async,
            order: Order::Weak,
            bytes: Bytes::Runs(&starts, bytes as u64),
            operation: self.operation,
        };
        observer.access(&self.actor, &access);
    }

    /// Reads a unit of a CTA's shared memory; unwritten bytes are reported and read as they are.
    pub(crate) fn read_unit(
        &self,
        machine: &mut Cluster,
        rank: u32,
        offset: u32,
        data_bytes: usize,
    ) -> Result<[u8; 16], Fault> {
        let shared = &machine.ctas[rank as usize].shared;
        let mut unit = [0; 16];
        match shared.read(offset, data_bytes) {
            Ok(bytes) => {
                unit[..data_bytes].copy_from_slice(bytes);
                Ok(unit)
            }
            Err(AccessError::Uninitialised(text)) => {
                unit[..data_bytes].copy_from_slice(shared.peek(offset, data_bytes).unwrap_or(&[0; 16][..data_bytes]));
                let finding = machine.finding_of(Kind::Uninitialised, &self.actor, format!("nobody wrote {text}"));
                machine.report(*finding);
                Ok(unit)
            }
            Err(AccessError::OutOfBounds(text) | AccessError::Misaligned(text)) => {
                Err(machine.finding_of(Kind::OutOfBounds, &self.actor, format!("matrix operand: {text}")))
            }
        }
    }

    /// Rows `first..first + rows` of an operand in the CTA `rank`, `k` values each, as `out[row][k]`.
    ///
    /// Rows are rows of A or columns of B. With an MN-major operand `first` and `rows` are multiples of the elements of
    /// a unit.
    pub(crate) fn fetch(
        &self,
        machine: &mut Cluster,
        (rank, operand, major): (u32, &Operand, Major),
        container: Container,
        (first, rows, k): (usize, usize, usize),
        out: &mut Vec<f32>,
    ) -> Result<(), Fault> {
        let (per, shape) = (container.per_unit(), (first, rows, k));
        let (lines, side, bytes) = match major {
            Major::K => (first..first + rows, 0..k.div_ceil(per), container.data_bytes()),
            Major::Mn => (0..k, first / per..(first + rows).div_ceil(per), 16),
        };
        let mut offsets = Vec::with_capacity(lines.len() * side.len());
        for line in lines {
            offsets.extend(side.clone().map(|unit| operand.unit(major, line as u32, unit as u32)));
        }
        self.observe_units(machine, rank, &offsets, bytes);
        let mut units = Vec::with_capacity(offsets.len());
        for offset in offsets {
            let unit = self.read_unit(machine, rank, offset, bytes)?;
            let word = |i: usize| u32::from_le_bytes([unit[i], unit[i + 1], unit[i + 2], unit[i + 3]]);
            units.push([word(0), word(4), word(8), word(12)]);
        }
        out.clear();
        let same =
            |tile: &&Tile| (tile.container, tile.major, tile.shape) == (container, major, shape) && tile.units == units;
        if let Some(tile) = machine.unpacked.tiles.iter().find(same) {
            out.extend_from_slice(&tile.values);
            return Ok(());
        }
        out.resize(rows * k, 0.0);
        unpack(container, major, shape, &units, out);
        machine.unpacked.keep(Tile { container, major, shape, units, values: out.clone() });
        Ok(())
    }
}
