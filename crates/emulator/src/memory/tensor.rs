//! Tensor memory of one CTA: 128 lanes by 512 columns of 32 bits.

use super::BitSet;

/// Lanes (rows).
pub const LANES: u32 = 128;
/// Columns of 32 bits.
pub const COLUMNS: u32 = 512;

/// State only; allocation rules and access rules live with the tcgen05 instructions.
#[derive(Debug, Clone)]
pub struct TensorMemory {
    /// Cell values, `lane * 512 + column`.
    pub cells: Vec<u32>,
    /// Written bits per cell.
    pub init: BitSet,
    /// Owner id of each column, 0 when free.
    pub owner: Vec<u32>,
    /// Allocations, accesses and operations in flight.
    pub state: crate::exec::tcgen05::State,
}

impl TensorMemory {
    /// Nothing allocated, nothing written.
    pub fn new() -> TensorMemory {
        let cells = (LANES * COLUMNS) as usize;
        TensorMemory {
            cells: vec![0; cells],
            init: BitSet::new(cells),
            owner: vec![0; COLUMNS as usize],
            state: Default::default(),
        }
    }

    /// Index of a cell; `None` outside 128 lanes by 512 columns.
    pub fn index(lane: u32, column: u32) -> Option<usize> {
        (lane < LANES && column < COLUMNS).then_some((lane * COLUMNS + column) as usize)
    }
}

impl Default for TensorMemory {
    fn default() -> Self {
        Self::new()
    }
}
