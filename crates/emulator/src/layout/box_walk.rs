//! Tensor copies as runs of contiguous bytes (ISA notes, section 2.2).
//!
//! A copy engine asks for the runs of a box and moves each with one slice copy. Runs end at swizzle chunks, at the
//! edges of the tensor and, for padded sub-byte types, at every 16-value unit, whose gap in shared memory no run
//! touches.

use bakewell_core::tensor_map::MapType;

use super::swizzle::Pattern;
use super::tensor_map::{Map, MapError, NO_INTERLEAVE};
use crate::numerics::convert::narrow_tf32;
use crate::numerics::format::Narrow;

/// Contiguous bytes of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Physical shared address (CTA-relative or with rank bits: whatever `shared` the walk was given).
    pub shared: u32,
    /// Bytes, the same in both spaces.
    pub bytes: u32,
    /// Global address; `None` outside the tensor: loads fill, stores skip.
    pub global: Option<u64>,
}

/// Sizes of one row of a box, in bytes.
struct RowShape {
    /// Elements, values for sub-byte types.
    elements: i64,
    /// Shared bytes from one row to the next.
    pitch: u32,
    /// Global (and transferred) bytes of 16 elements.
    global_per_16: i64,
    /// Shared bytes of 16 elements, gaps included.
    shared_per_16: i64,
}

impl Map {
    /// Bits one element takes in shared memory, gaps included.
    fn shared_bits(&self) -> u64 {
        match self.element {
            MapType::U4x16Align16 | MapType::U6x16Align16 => 8,
            other => other.bits(),
        }
    }

    fn row_shape(&self) -> RowShape {
        RowShape {
            elements: i64::from(self.box_dims[0]),
            pitch: (u64::from(self.box_dims[0]) * self.shared_bits() / 8) as u32,
            global_per_16: (self.element.bits() * 2) as i64,
            shared_per_16: (self.shared_bits() * 2) as i64,
        }
    }

    /// Whether the copies of this emulator model the map.
    ///
    /// # Errors
    /// [`MapError::Refused`]: interleave, a swizzled box narrower than its span (its placement is not established),
    /// stores of padded types.
    pub fn check_copy(&self, store: bool) -> Result<(), MapError> {
        let refuse = |reason: String| Err(MapError::Refused(reason));
        if self.interleave != NO_INTERLEAVE {
            return refuse("interleaved layouts are not modelled".into());
        }
        let row = self.row_shape().pitch;
        if let Some(span) = self.pattern.span()
            && row != span
        {
            return refuse(format!(
                "the inner box has {row} bytes and the swizzle spans {span}: only boxes as wide as the span have an \
                 established placement"
            ));
        }
        if !row.is_multiple_of(16) {
            return refuse(format!("the inner box has {row} bytes, not a multiple of 16"));
        }
        match self.element {
            MapType::U4x16Align16 if store => refuse("16-value padded 4-bit types have no store".into()),
            MapType::U6x16Align16 if store => refuse("packing stores of 6-bit types are not modelled".into()),
            _ => Ok(()),
        }
    }

    /// What a load does to whole elements: TF32 is rounded to, to nearest even. The `Ftz` types keep subnormals, as on
    /// an H200.
    pub fn convert(&self, bytes: &mut [u8]) {
        if matches!(self.element, MapType::Tf32 | MapType::Tf32Ftz) {
            for element in bytes.as_chunks_mut::<4>().0 {
                *element = narrow_tf32(f32::from_le_bytes(*element), Narrow::RN).to_le_bytes();
            }
        }
    }

    /// The tensor as stores and reductions see it: its rows end at the next 16 bytes, as on an H200.
    pub fn stored(mut self) -> Self {
        self.dims[0] = self.dims[0].next_multiple_of(128 / self.element.bits());
        self
    }

    /// Bytes of one moved row that count as transferred: data without the gaps of padded types.
    pub fn row_bytes(&self) -> u32 {
        (u64::from(self.box_dims[0]) * self.element.bits() / 8) as u32
    }

    /// Bytes a tile copy adds to the barrier or group: the full box, whatever lies outside the tensor.
    pub fn transaction_bytes(&self) -> u32 {
        self.row_bytes() * self.moved().iter().product::<u32>()
    }

    /// Bytes of shared memory a tile occupies, gaps included.
    pub fn shared_bytes(&self) -> u32 {
        self.row_shape().pitch * self.moved().iter().product::<u32>()
    }

    /// Moved elements of dimensions 1..5.
    fn moved(&self) -> [u32; 4] {
        std::array::from_fn(|i| self.box_dims[i + 1].div_ceil(self.element_strides[i + 1]))
    }

    /// Writes the out-of-bounds fill: zeros, or the two bytes that make a NaN of an H200 in every float type.
    pub fn fill(&self, bytes: &mut [u8]) {
        let pattern = if self.fill_nan { [0xf7, 0x7f] } else { [0; 2] };
        for (byte, &value) in bytes.iter_mut().zip(pattern.iter().cycle()) {
            *byte = value;
        }
    }

    /// Visits the runs of a tile whose first element has the coordinates `origin`, innermost first, placed at `shared`.
    ///
    /// Runs come in order of their unswizzled address. Coordinates past the rank are ignored.
    ///
    /// # Errors
    /// [`MapError::Refused`] for a first coordinate that the sub-byte type does not allow.
    pub fn tile(&self, origin: [i32; 5], shared: u32, mut visit: impl FnMut(Run)) -> Result<(), MapError> {
        self.check_column(origin[0])?;
        let row = self.row_shape();
        let n = self.moved();
        let mut at = shared;
        for k4 in 0..n[3] {
            for k3 in 0..n[2] {
                for k2 in 0..n[1] {
                    for k1 in 0..n[0] {
                        let base = self.row_address(&origin, [k1, k2, k3, k4]);
                        self.row(&row, origin[0], base, at, &mut visit);
                        at += row.pitch;
                    }
                }
            }
        }
        Ok(())
    }

    /// Visits the runs of the four rows of a gather4 or scatter4 at column `column`.
    ///
    /// # Errors
    /// [`MapError::Refused`] when the map is not two-dimensional with one row per box, or for a bad column.
    pub fn rows4(&self, column: i32, rows: [i32; 4], shared: u32, mut visit: impl FnMut(Run)) -> Result<(), MapError> {
        if self.rank != 2 || self.box_dims[1] != 1 {
            let reason = format!(
                "four-row copies need rank 2 and one row per box, got rank {}, {} rows",
                self.rank, self.box_dims[1]
            );
            return Err(MapError::Refused(reason));
        }
        self.check_column(column)?;
        let shape = self.row_shape();
        for (i, row) in (0..).zip(rows) {
            let base = self.row_address(&[column, row, 0, 0, 0], [0; 4]);
            self.row(&shape, column, base, shared + i * shape.pitch, &mut visit);
        }
        Ok(())
    }

    fn check_column(&self, column: i32) -> Result<(), MapError> {
        let multiple = match self.element {
            MapType::U4x16Align16 | MapType::U6x16Align16 => 128,
            MapType::U4x16Align8 => 2,
            _ => 1,
        };
        if column.rem_euclid(multiple) != 0 {
            return Err(MapError::Refused(format!("first coordinate {column} is not a multiple of {multiple}")));
        }
        Ok(())
    }

    /// Address of column 0 of a row, `None` when an outer coordinate is outside the tensor.
    fn row_address(&self, origin: &[i32; 5], steps: [u32; 4]) -> Option<u64> {
        let mut address = self.address;
        for i in 1..self.rank {
            let coordinate = i64::from(origin[i]) + i64::from(steps[i - 1]) * i64::from(self.element_strides[i]);
            if coordinate < 0 || coordinate as u64 >= self.dims[i] {
                return None;
            }
            address = address.wrapping_add((coordinate as u64).wrapping_mul(self.strides[i]));
        }
        Some(address)
    }

    /// Runs of one row: fill before the tensor, data, fill after it.
    fn row(&self, shape: &RowShape, column: i32, base: Option<u64>, shared: u32, visit: &mut impl FnMut(Run)) {
        let column = i64::from(column);
        let (first, last) = match base {
            Some(_) => {
                let first = (-column).clamp(0, shape.elements);
                (first, (self.dims[0] as i64 - column).clamp(first, shape.elements))
            }
            None => (shape.elements, shape.elements),
        };
        let base = base.unwrap_or(0);
        for (from, to, inside) in [(0, first, false), (first, last, true), (last, shape.elements, false)] {
            if from < to {
                // Both signs of `column` are exact: sub-byte columns are multiples of a whole byte.
                let global = base.wrapping_add_signed((column + from) * shape.global_per_16 / 16);
                self.segment(shape, from, to, inside.then_some(global), shared, visit);
            }
        }
    }

    fn segment(
        &self,
        shape: &RowShape,
        from: i64,
        to: i64,
        global: Option<u64>,
        shared: u32,
        visit: &mut impl FnMut(Run),
    ) {
        let padded = shape.shared_per_16 != shape.global_per_16;
        let chunk = if padded { Some(16) } else { self.pattern.chunk() };
        let mut at = shared + (from * shape.shared_per_16 / 16) as u32;
        let end = shared + (to * shape.shared_per_16 / 16) as u32;
        let mut global = global;
        while at < end {
            let next = chunk.map_or(end, |chunk| ((at / chunk + 1) * chunk).min(end));
            let bytes = if padded { shape.global_per_16 as u32 } else { next - at };
            let physical = if self.pattern == Pattern::None { at } else { self.pattern.apply(at) };
            visit(Run { shared: physical, bytes, global });
            global = global.map(|address| address + u64::from(bytes));
            at = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tensor_map::{decode, encode};
    use super::*;
    use bakewell_core::tensor_map::{Swizzle, TensorMapRequest};
    use std::collections::BTreeMap;

    fn map(dtype: MapType, dims: &[u64], strides: &[u64], box_dims: &[u32], swizzle: Swizzle) -> Map {
        let request = TensorMapRequest::tiled(dtype, 0x10000, dims, strides, box_dims, swizzle);
        request.validate("t", bakewell_core::Arch::Sm100).unwrap();
        decode(&encode(&request).to_bytes()).unwrap()
    }

    /// Shared byte -> global byte (or fill), collected from runs.
    fn bytes(runs: &[Run]) -> BTreeMap<u32, Option<u64>> {
        let mut out = BTreeMap::new();
        for run in runs {
            for i in 0..run.bytes {
                let previous = out.insert(run.shared + i, run.global.map(|g| g + u64::from(i)));
                assert!(previous.is_none(), "byte {:#x} written twice", run.shared + i);
            }
        }
        out
    }

    fn tile(map: &Map, origin: [i32; 5], shared: u32) -> BTreeMap<u32, Option<u64>> {
        let mut runs = Vec::new();
        map.tile(origin, shared, |run| runs.push(run)).unwrap();
        bytes(&runs)
    }

    /// The algorithm of the ISA notes, element by element.
    fn naive(map: &Map, origin: [i32; 5], shared: u32) -> BTreeMap<u32, Option<u64>> {
        let es = map.element.bits() / 8;
        let n: Vec<i64> = (0..5).map(|i| i64::from(map.box_dims[i].div_ceil(map.element_strides[i]))).collect();
        let row = i64::from(map.box_dims[0]) * es as i64;
        let mut out = BTreeMap::new();
        for index in 0..n.iter().product::<i64>() {
            let k: Vec<i64> = (0..5)
                .scan(index, |rest, i| {
                    let d = *rest % n[i];
                    *rest /= n[i];
                    Some(d)
                })
                .collect();
            let g: Vec<i64> = (0..5)
                .map(|i| i64::from(origin[i]) * i64::from(i < map.rank) + k[i] * i64::from(map.element_strides[i]))
                .collect();
            let line = ((k[4] * n[3] + k[3]) * n[2] + k[2]) * n[1] + k[1];
            let inside = (0..map.rank).all(|i| g[i] >= 0 && (g[i] as u64) < map.dims[i]);
            let source = map.address as i64
                + g[0] * es as i64
                + (1..map.rank).map(|i| g[i] * map.strides[i] as i64).sum::<i64>();
            for byte in 0..es as i64 {
                let at = shared + (line * row + k[0] * es as i64 + byte) as u32;
                out.insert(map.pattern.apply(at), inside.then_some((source + byte) as u64));
            }
        }
        out
    }

    #[test]
    fn tiles_match_the_element_loop() {
        let swizzles = [
            (Swizzle::None, 64),
            (Swizzle::B32, 16),
            (Swizzle::B64, 32),
            (Swizzle::B128, 64),
            (Swizzle::B128Atom32, 64),
            (Swizzle::B128Atom32Flip8, 64),
            (Swizzle::B128Atom64, 64),
        ];
        for (swizzle, inner) in swizzles {
            let plain = map(MapType::F16, &[100, 37, 5], &[208, 8000], &[inner, 6, 2], swizzle);
            let stepped = Map { element_strides: [1, 3, 2, 1, 1], ..plain };
            for map in [plain, stepped] {
                for origin in
                    [[0, 0, 0, 0, 0], [80, 33, 4, 0, 0], [-5, -2, 0, 0, 0], [1000, 0, 0, 0, 0], [3, 1, -7, 0, 0]]
                {
                    for shared in [0x400, 0x480, 0x600] {
                        assert_eq!(tile(&map, origin, shared), naive(&map, origin, shared), "{swizzle:?} {origin:?}");
                    }
                }
                assert_eq!(map.transaction_bytes() as usize, tile(&map, [0; 5], 0).len());
            }
        }
    }

    #[test]
    fn one_and_five_dimensions() {
        let flat = map(MapType::U8, &[1000], &[], &[256], Swizzle::None);
        let mut runs = Vec::new();
        flat.tile([900, 0, 0, 0, 0], 0x400, |run| runs.push(run)).unwrap();
        let expected = [
            Run { shared: 0x400, bytes: 100, global: Some(0x10000 + 900) },
            Run { shared: 0x464, bytes: 156, global: None },
        ];
        assert_eq!(runs, expected);
        let five = map(MapType::F32, &[8, 3, 4, 5, 6], &[32, 96, 384, 1920], &[4, 2, 3, 2, 2], Swizzle::None);
        for origin in [[0; 5], [6, 2, 2, 4, 5], [-1, -1, -1, -1, -1]] {
            assert_eq!(tile(&five, origin, 0x400), naive(&five, origin, 0x400));
        }
    }

    #[test]
    fn padded_four_and_six_bit_rows_leave_gaps() {
        for (dtype, data) in [(MapType::U4x16Align16, 8), (MapType::U6x16Align16, 12)] {
            let map = map(dtype, &[256, 10], &[data * 16], &[128, 4], Swizzle::B128);
            assert_eq!(map.transaction_bytes(), data as u32 * 8 * 4);
            assert_eq!(map.shared_bytes(), 512);
            let mut runs = Vec::new();
            map.tile([128, 8, 0, 0, 0], 0x400, |run| runs.push(run)).unwrap();
            assert_eq!(runs.len(), 32);
            let unit = |row: u64, u: u64| Some(0x10000 + (8 + row) * data * 16 + (8 + u) * data);
            assert_eq!(runs[0], Run { shared: 0x400, bytes: data as u32, global: unit(0, 0) });
            assert_eq!(runs[11], Run { shared: 0x480 + ((3 ^ 1) << 4), bytes: data as u32, global: unit(1, 3) });
            assert_eq!(runs[16].global, None, "row 10 is outside");
            assert!(map.tile([64, 0, 0, 0, 0], 0x400, |_| ()).is_err());
            assert!(map.check_copy(false).is_ok() && map.check_copy(true).is_err());
        }
        let packed = map(MapType::U4x16Align8, &[64, 4], &[32], &[64, 4], Swizzle::B32);
        let mut runs = Vec::new();
        packed.tile([0, 1, 0, 0, 0], 0x400, |run| runs.push(run)).unwrap();
        assert_eq!(runs[3], Run { shared: 0x430, bytes: 16, global: Some(0x10000 + 2 * 32 + 16) });
        assert_eq!(packed.transaction_bytes(), 128);
    }

    #[test]
    fn gathered_rows() {
        let map = map(MapType::Bf16, &[64, 20], &[128], &[64, 1], Swizzle::B128);
        let mut runs = Vec::new();
        map.rows4(0, [19, 3, 20, -1], 0x400, |run| runs.push(run)).unwrap();
        assert_eq!(runs.len(), 32);
        assert_eq!(runs[0], Run { shared: 0x400, bytes: 16, global: Some(0x10000 + 19 * 128) });
        assert_eq!(runs[8], Run { shared: 0x490, bytes: 16, global: Some(0x10000 + 3 * 128) });
        assert!(runs[16..].iter().all(|run| run.global.is_none()));
        assert!(Map { box_dims: [64, 2, 1, 1, 1], ..map }.rows4(0, [0; 4], 0x400, |_| ()).is_err());
    }

    #[test]
    fn refusals_fill_and_conversion() {
        let narrow = map(MapType::F16, &[64, 8], &[128], &[32, 8], Swizzle::B128);
        assert!(matches!(narrow.check_copy(false), Err(MapError::Refused(reason)) if reason.contains("64 bytes")));
        let mut eight = [1; 8];
        narrow.fill(&mut eight);
        assert_eq!(eight, [0; 8]);
        Map { fill_nan: true, ..narrow }.fill(&mut eight);
        assert_eq!(eight, [0xf7, 0x7f, 0xf7, 0x7f, 0xf7, 0x7f, 0xf7, 0x7f]);
        let converted = |element, bits: u32| {
            let mut value = bits.to_le_bytes();
            Map { element, ..narrow }.convert(&mut value);
            u32::from_le_bytes(value)
        };
        assert_eq!(converted(MapType::F32Ftz, 1), 1);
        assert_eq!(converted(MapType::Tf32, 0x3f80_1001), 0x3f80_2000);
        assert_eq!(converted(MapType::Tf32Ftz, 0x007f_ffff), 0x0080_0000);
        assert_eq!(narrow.stored().dims[0], 64);
        assert_eq!(Map { dims: [50, 8, 1, 1, 1], ..narrow }.stored().dims[0], 56);
    }
}
