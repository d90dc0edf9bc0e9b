//! Tensor memory: which lane and column a register, matrix element or copied unit occupies (ISA notes, tcgen05 2 to 4
//! and 7).
//!
//! Lanes and columns are relative to the address of the instruction. A column is 32 bits wide.

/// Lane (0..128) and 32-bit column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Row of tensor memory.
    pub lane: u32,
    /// 32-bit column.
    pub column: u32,
}

const fn cell(lane: u32, column: u32) -> Cell {
    Cell { lane, column }
}

/// Lanes of tensor memory.
pub const LANES: u32 = 128;
/// Columns of tensor memory.
pub const COLUMNS: u32 = 512;

/// Splits a tensor-memory address.
pub const fn address(address: u32) -> Cell {
    cell(address >> 16, address & 0xffff)
}

/// Shape of `tcgen05.ld` and `tcgen05.st`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessShape {
    /// `.32x32b`
    X32b32,
    /// `.16x64b`
    X64b16,
    /// `.16x128b`
    X128b16,
    /// `.16x256b`
    X256b16,
    /// `.16x32bx2`
    X32b2x16,
}

impl AccessShape {
    /// Registers per thread of `.xN`.
    pub const fn registers(self, repeat: u32) -> u32 {
        match self {
            Self::X32b32 | Self::X64b16 | Self::X32b2x16 => repeat,
            Self::X128b16 => 2 * repeat,
            Self::X256b16 => 4 * repeat,
        }
    }

    /// Largest N of `.xN`.
    pub const fn max_repeat(self) -> u32 {
        128 / self.registers(1)
    }

    /// Row and logical column of register `register` of lane `lane`. Not for [`Self::X32b2x16`], whose second half is
    /// placed by an offset: see [`Self::cell`].
    const fn logical(self, lane: u32, r: u32) -> Cell {
        match self {
            Self::X32b32 => cell(lane, r),
            Self::X64b16 => cell(lane / 4 + 8 * (lane % 2), (lane / 2) % 2 + 2 * r),
            Self::X128b16 => cell(lane / 4 + 8 * (r % 2), lane % 4 + 4 * (r / 2)),
            Self::X256b16 => cell(lane / 4 + 8 * ((r / 2) % 2), r % 2 + 2 * (lane % 4) + 8 * (r / 4)),
            Self::X32b2x16 => cell(lane % 16, r),
        }
    }

    /// First physical cell of register `register` of lane `lane`, relative to the address. With `packed` (`.pack::16b`,
    /// `.unpack::16b`) the register's halves are the low halves of this cell and the next column.
    ///
    /// `split` is the immediate of `.16x32bx2`, a distance in physical columns with and without packing.
    #[inline]
    pub const fn cell(self, lane: u32, register: u32, split: u32, packed: bool) -> Cell {
        let Cell { lane: row, column } = self.logical(lane, register);
        let column = if packed { 2 * column } else { column };
        let half = if matches!(self, Self::X32b2x16) { (lane / 16) * split } else { 0 };
        cell(row, column + half)
    }

    /// Physical columns of one contiguous range from the address; `.16x32bx2` touches a second one of the same width at
    /// `split`.
    pub const fn columns(self, repeat: u32, packed: bool) -> u32 {
        let columns = match self {
            Self::X32b32 | Self::X32b2x16 => repeat,
            Self::X64b16 => 2 * repeat,
            Self::X128b16 => 4 * repeat,
            Self::X256b16 => 8 * repeat,
        };
        if packed { 2 * columns } else { columns }
    }

    /// Lanes touched, from the lane of the address.
    pub const fn lanes(self) -> u32 {
        if matches!(self, Self::X32b32) { 32 } else { 16 }
    }
}

/// Shape and multicast of `tcgen05.cp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CopyShape {
    /// `.128x256b`
    X256b128,
    /// `.4x256b`
    X256b4,
    /// `.128x128b`
    X128b128,
    /// `.64x128b.warpx2::02_13`
    X128b64Pairs02,
    /// `.64x128b.warpx2::01_23`
    X128b64Pairs01,
    /// `.32x128b.warpx4`
    X128b32,
}

impl CopyShape {
    /// Source rows.
    pub const fn rows(self) -> u32 {
        match self {
            Self::X256b128 | Self::X128b128 => 128,
            Self::X256b4 => 4,
            Self::X128b64Pairs02 | Self::X128b64Pairs01 => 64,
            Self::X128b32 => 32,
        }
    }

    /// 16-byte units per source row; each fills four columns.
    pub const fn units(self) -> u32 {
        match self {
            Self::X256b128 | Self::X256b4 => 2,
            _ => 1,
        }
    }

    /// Lanes that row `row` is written to.
    pub fn lanes(self, row: u32) -> impl Iterator<Item = u32> {
        let (first, step, copies) = match self {
            Self::X256b128 | Self::X128b128 => (row, 0, 1),
            Self::X256b4 => (32 * row, 0, 1),
            Self::X128b64Pairs02 => (row, 64, 2),
            Self::X128b64Pairs01 => (64 * (row / 32) + row % 32, 32, 2),
            Self::X128b32 => (row, 32, 4),
        };
        (0..copies).map(move |copy| first + step * copy)
    }
}

/// Decompression of `tcgen05.cp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CopyFormat {
    /// Bytes as they are.
    Bytes,
    /// `.b8x16.b4x16_p64`: nibbles to bits `5:2` of a byte.
    Nibbles,
    /// `.b8x16.b6x16_p32`: six-bit values to bits `5:0` of a byte.
    SixBit,
}

impl CopyFormat {
    /// The 16 destination bytes of a source unit.
    pub fn unpack(self, unit: &[u8; 16]) -> [u8; 16] {
        use super::matrix::RowPacking;
        match self {
            Self::Bytes => *unit,
            Self::Nibbles => RowPacking::Nibbles.unpack(unit),
            Self::SixBit => RowPacking::SixBit.unpack(unit),
        }
    }
}

/// Layout of D: the letters of the PTX ISA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Pair, M = 256.
    A,
    /// Pair, M = 128.
    B,
    /// One CTA, M = 128.
    D,
    /// One CTA, weight stationary, M = 64.
    E,
    /// One CTA, M = 64.
    F,
    /// One CTA, weight stationary, M = 32.
    G,
}

impl Layout {
    /// Layout of a dense instruction; `None` for a shape that does not exist.
    pub const fn of(group: u32, m: u32, weight_stationary: bool) -> Option<Self> {
        Some(match (group, m, weight_stationary) {
            (2, 256, false) => Self::A,
            (2, 128, false) => Self::B,
            (1, 128, _) => Self::D,
            (1, 64, true) => Self::E,
            (1, 64, false) => Self::F,
            (1, 32, true) => Self::G,
            _ => return None,
        })
    }

    /// CTA of the pair (0 or 1) and cell of element (`row`, `column`) of D with `n` columns.
    #[inline]
    pub const fn element(self, row: u32, column: u32, n: u32) -> (u32, Cell) {
        match self {
            Self::A => (row / 128, cell(row % 128, column)),
            Self::B => (row / 64, cell(row % 64 + 64 * (column / (n / 2)), column % (n / 2))),
            Self::D => (0, cell(row, column)),
            Self::E => (0, cell(row + 64 * (column / (n / 2)), column % (n / 2))),
            Self::F => (0, cell(32 * (row / 16) + row % 16, column)),
            Self::G => (0, cell(row + 32 * (column / (n / 4)), column % (n / 4))),
        }
    }

    /// Columns that D with `n` columns occupies.
    pub const fn columns(self, n: u32) -> u32 {
        match self {
            Self::A | Self::D | Self::F => n,
            Self::B | Self::E => n / 2,
            Self::G => n / 4,
        }
    }

    /// Whether the lane field of the addresses of D and A may be 16 as well as 0.
    pub const fn allows_lane_16(self) -> bool {
        matches!(self, Self::F)
    }

    /// CTA of the pair and the lane that holds row `row` of A; layouts whose halves or banks each need their own copy
    /// take `bank` (B and E: 0..2, G: 0..4), others ignore it.
    pub const fn a_lane(self, row: u32, bank: u32) -> (u32, u32) {
        match self {
            Self::A => (row / 128, row % 128),
            Self::B => (row / 64, row % 64 + 64 * bank),
            Self::D => (0, row),
            Self::E => (0, row + 64 * bank),
            Self::F => (0, 32 * (row / 16) + row % 16),
            Self::G => (0, row + 32 * bank),
        }
    }

    /// Copies of A in tensor memory.
    pub const fn a_banks(self) -> u32 {
        match self {
            Self::A | Self::D | Self::F => 1,
            Self::B | Self::E => 2,
            Self::G => 4,
        }
    }
}

/// Groups of scale columns along N for B: the step of one group of four scales.
pub const fn scale_group_columns_b(n: u32) -> u32 {
    if n <= 128 { 4 } else { 8 }
}

/// Step of one group of four scales of A.
pub const SCALE_GROUP_COLUMNS_A: u32 = 4;

/// Column and byte of scale `scale` of operand row `row`, with selector `id`; `group` is the step of one group. The
/// lane is `row % 32` of any partition: all four hold the same.
#[inline]
pub const fn scale(row: u32, scale: u32, id: u32, group: u32) -> (u32, u32) {
    let q = id + scale;
    ((q / 4) * group + row / 32, q % 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const SHAPES: [AccessShape; 5] =
        [AccessShape::X32b32, AccessShape::X64b16, AccessShape::X128b16, AccessShape::X256b16, AccessShape::X32b2x16];

    #[test]
    fn accesses_are_bijections_onto_their_range() {
        for shape in SHAPES {
            for repeat in [1, 2, 8, shape.max_repeat()] {
                for packed in [false, true] {
                    let columns = shape.columns(repeat, packed);
                    let split = columns + 3;
                    let mut seen = HashSet::new();
                    for lane in 0..32 {
                        for r in 0..shape.registers(repeat) {
                            let first = shape.cell(lane, r, split, packed);
                            for column in [Some(first.column), packed.then_some(first.column + 1)].into_iter().flatten()
                            {
                                let inside = column < columns
                                    || (shape == AccessShape::X32b2x16 && (split..split + columns).contains(&column));
                                assert!(inside && first.lane < shape.lanes(), "{shape:?} x{repeat} {first:?}");
                                assert!(seen.insert(cell(first.lane, column)), "{shape:?} x{repeat} twice");
                            }
                        }
                    }
                    let halves = if shape == AccessShape::X32b2x16 { 2 } else { 1 };
                    assert_eq!(seen.len() as u32, shape.lanes() * columns * halves);
                }
            }
        }
    }

    #[test]
    fn known_cells() {
        assert_eq!(AccessShape::X64b16.cell(7, 3, 0, false), cell(1 + 8, 1 + 6));
        assert_eq!(AccessShape::X128b16.cell(7, 3, 0, false), cell(1 + 8, 3 + 4));
        assert_eq!(AccessShape::X256b16.cell(7, 6, 0, false), cell(1 + 8, 6 + 8));
        assert_eq!(AccessShape::X32b2x16.cell(20, 3, 32, true), cell(4, 6 + 32), "the split is physical");
        assert_eq!(AccessShape::X32b32.cell(5, 3, 0, true), cell(5, 6));
        assert_eq!(address(0x0040_0020), cell(64, 32));
    }

    /// `.16x256b` has the accumulator pattern of mma.sync.
    #[test]
    fn x256b_is_the_accumulator_fragment() {
        for lane in 0..32 {
            for r in 0..4 {
                let (row, column) = super::super::fragment::c(lane, r);
                assert_eq!(AccessShape::X256b16.cell(lane, r, 0, false), cell(row, column));
            }
        }
    }

    #[test]
    fn copies_cover_their_lanes_once() {
        use CopyShape::*;
        for shape in [X256b128, X128b128, X128b64Pairs02, X128b64Pairs01, X128b32] {
            let lanes: HashSet<u32> = (0..shape.rows()).flat_map(|row| shape.lanes(row)).collect();
            assert_eq!(lanes.len(), 128, "{shape:?}");
        }
        assert_eq!((0..4).flat_map(|row| X256b4.lanes(row)).collect::<Vec<_>>(), [0, 32, 64, 96]);
        assert_eq!(X128b64Pairs02.lanes(40).collect::<Vec<_>>(), [40, 104]);
        assert_eq!(X128b64Pairs01.lanes(40).collect::<Vec<_>>(), [72, 104]);
        assert_eq!(X128b32.lanes(3).collect::<Vec<_>>(), [3, 35, 67, 99]);
        let mut unit = [0; 16];
        unit[0] = 0xa5;
        assert_eq!(CopyFormat::Nibbles.unpack(&unit)[..2], [0x5 << 2, 0xa << 2]);
        assert_eq!(CopyFormat::SixBit.unpack(&unit)[..2], [0x25, 0x02]);
    }

    #[test]
    fn accumulator_layouts_are_injective() {
        for (group, m, ws, n) in [
            (2, 256, false, 64),
            (2, 128, false, 64),
            (1, 128, false, 24),
            (1, 128, true, 64),
            (1, 64, true, 64),
            (1, 64, false, 8),
            (1, 32, true, 64),
        ] {
            let layout = Layout::of(group, m, ws).unwrap();
            let mut seen = HashSet::new();
            for row in 0..m {
                for column in 0..n {
                    let (cta, at) = layout.element(row, column, n);
                    assert!(cta < group && at.lane < 128 && at.column < layout.columns(n), "{layout:?}");
                    assert!(seen.insert((cta, at)), "{layout:?}");
                    let lanes: Vec<_> = (0..layout.a_banks()).map(|bank| layout.a_lane(row, bank)).collect();
                    assert!(lanes.contains(&(cta, at.lane)), "{layout:?}: the row of A lies in the lane of its D");
                }
            }
        }
        assert_eq!(Layout::of(1, 256, false), None);
        assert_eq!(Layout::F.element(17, 5, 8), (0, cell(33, 5)));
        assert_eq!(Layout::B.element(70, 40, 64), (1, cell(6 + 64, 8)));
    }

    /// Global tile -> shared tile -> cp -> tensor memory -> what the instruction reads.
    #[test]
    fn scales_arrive_where_they_are_read() {
        for m in 0..128u32 {
            for s in 0..4u32 {
                let byte = (m % 32) * 16 + (m / 32 % 4) * 4 + s % 4;
                let (row, inside) = (byte / 16, byte % 16);
                let lanes: Vec<_> = CopyShape::X128b32.lanes(row).collect();
                assert!(lanes.iter().all(|lane| lane % 32 == m % 32));
                assert_eq!(scale(m, s, 0, 4), (inside / 4, inside % 4));
            }
        }
        assert_eq!(scale(130, 0, 2, scale_group_columns_b(256)), (4, 2));
        assert_eq!(scale(40, 3, 2, SCALE_GROUP_COLUMNS_A), (4 + 1, 1), "K = 96 runs into the next group");
        assert_eq!(scale(40, 3, 2, scale_group_columns_b(256)), (8 + 1, 1));
    }
}
