//! Tensor memory of one CTA: 128 lanes by 512 columns of 32 bits, on sm_107 64 more that exclusive allocations reach.

use super::BitSet;

/// Lanes (rows).
pub const LANES: u32 = 128;
/// Columns of 32 bits that are kept, of which most devices have [`SHARED_COLUMNS`].
pub const COLUMNS: u32 = 576;
/// Columns of 32 bits that allocations can share.
pub const SHARED_COLUMNS: u32 = 512;

/// State only; allocation rules and access rules live with the tcgen05 instructions.
#[derive(Debug, Clone)]
pub struct TensorMemory {
    /// Cell values, `lane * COLUMNS + column`.
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

    /// Index of a cell; `None` outside 128 lanes by `COLUMNS` columns.
    pub fn index(lane: u32, column: u32) -> Option<usize> {
        (lane < LANES && column < COLUMNS).then_some((lane * COLUMNS + column) as usize)
    }
}

impl Default for TensorMemory {
    fn default() -> Self {
        Self::new()
    }
}
