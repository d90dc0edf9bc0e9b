//! `ldmatrix`, `stmatrix`, `movmatrix`: which byte of which row a register byte is (ISA notes, async 5.6).
//!
//! Row addresses come from the lanes: row `r` of matrix `m` from lane `rows() * m + r`. Rows are 16 bytes.

/// A matrix form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixForm {
    /// `.m8n8.b16`: 8 rows of 8 16-bit elements, one register per matrix.
    M8N8,
    /// `.m8n8.trans.b16`.
    M8N8Trans,
    /// `ldmatrix.m16n16.trans.b8`: 16 rows of 16 bytes, two registers per matrix.
    M16N16Trans,
    /// `stmatrix.m16n8.trans.b8`: 8 memory rows of 16 bytes, one register per matrix.
    M16N8Trans,
    /// `ldmatrix.m8n16`: 8 rows of 16 unpacked bytes, one register per matrix.
    M8N16,
}

/// Packing of a row in shared memory, undone by `ldmatrix`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowPacking {
    /// 16 bytes as they are.
    Bytes,
    /// `.b8x16.b4x16_p64`: 16 nibbles in 8 bytes; each becomes bits `5:2` of a byte.
    Nibbles,
    /// `.b8x16.b6x16_p32`: 16 six-bit values in 12 bytes; each becomes bits `5:0` of a byte.
    SixBit,
}

impl RowPacking {
    /// Bytes of a memory row that are read.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bytes => 16,
            Self::Nibbles => 8,
            Self::SixBit => 12,
        }
    }

    /// The 16 element bytes of a row.
    pub fn unpack(self, row: &[u8; 16]) -> [u8; 16] {
        let bits = u128::from_le_bytes(*row);
        let field = |i: usize, width: usize| (bits >> (i * width)) as u8 & ((1 << width) - 1);
        match self {
            Self::Bytes => *row,
            Self::Nibbles => std::array::from_fn(|i| field(i, 4) << 2),
            Self::SixBit => std::array::from_fn(|i| field(i, 6)),
        }
    }
}

impl MatrixForm {
    /// Rows of one matrix, each with an address from one lane.
    pub const fn rows(self) -> u32 {
        if matches!(self, Self::M16N16Trans) { 16 } else { 8 }
    }

    /// Registers of one matrix in each lane.
    pub const fn registers(self) -> u32 {
        if matches!(self, Self::M16N16Trans) { 2 } else { 1 }
    }

    /// Row and byte of byte `byte` (0..4) of register `register` (of one matrix) of lane `lane`.
    #[inline]
    pub const fn source(self, lane: u32, register: u32, byte: u32) -> (u32, u32) {
        let (g, q, half) = (lane / 4, lane % 4, byte / 2);
        match self {
            Self::M8N8 => (g, 4 * q + byte),
            Self::M8N8Trans => (2 * q + half, 2 * g + byte % 2),
            Self::M16N16Trans => (4 * q + byte, g + 8 * register),
            Self::M16N8Trans => (2 * q + byte % 2, g + 8 * half),
            Self::M8N16 => (g, 4 * q + byte),
        }
    }

    /// The register of a lane, gathered from the rows of one matrix.
    #[inline]
    pub fn load(self, rows: &[[u8; 16]], lane: u32, register: u32) -> u32 {
        let bytes = std::array::from_fn(|byte| {
            let (row, column) = self.source(lane, register, byte as u32);
            rows[row as usize][column as usize]
        });
        u32::from_le_bytes(bytes)
    }

    /// Scatters the register of a lane into the rows of one matrix.
    #[inline]
    pub fn store(self, rows: &mut [[u8; 16]], lane: u32, register: u32, value: u32) {
        for (byte, value) in (0..).zip(value.to_le_bytes()) {
            let (row, column) = self.source(lane, register, byte);
            rows[row as usize][column as usize] = value;
        }
    }
}

/// `movmatrix.m8n8.trans.b16`: the transposed 8x8 matrix of 16-bit elements, one register per lane.
pub fn transpose_m8n8(registers: &[u32; 32]) -> [u32; 32] {
    let mut rows = [[0; 16]; 8];
    for (lane, &value) in (0..).zip(registers) {
        MatrixForm::M8N8.store(&mut rows, lane, 0, value);
    }
    std::array::from_fn(|lane| MatrixForm::M8N8Trans.load(&rows, lane as u32, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_once() {
        use MatrixForm::*;
        for form in [M8N8, M8N8Trans, M16N16Trans, M16N8Trans, M8N16] {
            let mut seen = vec![[false; 16]; form.rows() as usize];
            for lane in 0..32 {
                for register in 0..form.registers() {
                    for byte in 0..4 {
                        let (row, column) = form.source(lane, register, byte);
                        assert!(!std::mem::replace(&mut seen[row as usize][column as usize], true), "{form:?}");
                    }
                }
            }
            assert!(seen.iter().flatten().all(|&s| s));
        }
    }

    #[test]
    fn elements_of_the_b16_forms() {
        let rows: [[u8; 16]; 8] = std::array::from_fn(|r| std::array::from_fn(|c| (16 * r + c) as u8));
        let element = |r: u32, c: u32| {
            u32::from(rows[r as usize][2 * c as usize]) | u32::from(rows[r as usize][2 * c as usize + 1]) << 8
        };
        for t in 0..32 {
            let plain = element(t / 4, 2 * (t % 4)) | element(t / 4, 2 * (t % 4) + 1) << 16;
            let trans = element(2 * (t % 4), t / 4) | element(2 * (t % 4) + 1, t / 4) << 16;
            assert_eq!(MatrixForm::M8N8.load(&rows, t, 0), plain);
            assert_eq!(MatrixForm::M8N8Trans.load(&rows, t, 0), trans);
        }
        let registers: [u32; 32] = std::array::from_fn(|t| MatrixForm::M8N8.load(&rows, t as u32, 0));
        let moved = transpose_m8n8(&registers);
        assert_eq!(moved, std::array::from_fn(|t| MatrixForm::M8N8Trans.load(&rows, t as u32, 0)));
        assert_eq!(transpose_m8n8(&moved), registers);
    }

    /// An accumulator-like fragment {(r, c), (r, c + 1), (r + 8, c), (r + 8, c + 1)} is stored transposed.
    #[test]
    fn m16n8_stores_the_transposed_accumulator() {
        let mut rows = [[0; 16]; 8];
        for lane in 0..32u32 {
            let (r, c) = (lane / 4, 2 * (lane % 4));
            let value = |r: u32, c: u32| (16 * c + r) as u8;
            let bytes = [value(r, c), value(r, c + 1), value(r + 8, c), value(r + 8, c + 1)];
            MatrixForm::M16N8Trans.store(&mut rows, lane, 0, u32::from_le_bytes(bytes));
        }
        for (c, row) in rows.iter().enumerate() {
            assert_eq!(*row, std::array::from_fn(|r| (16 * c + r) as u8));
        }
    }

    #[test]
    fn unpacking() {
        let mut row = [0; 16];
        row[..8].copy_from_slice(&[0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe]);
        assert_eq!(RowPacking::Nibbles.unpack(&row), std::array::from_fn(|i| (i as u8) << 2));
        let bits = (0..16u128).fold(0, |bits, i| bits | (3 * i + 1) << (6 * i));
        assert_eq!(RowPacking::SixBit.unpack(&bits.to_le_bytes()), std::array::from_fn(|i| 3 * i as u8 + 1));
    }
}
