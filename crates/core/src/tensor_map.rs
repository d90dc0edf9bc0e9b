//! Tensor maps: what a bulk tensor copy needs to know about a tensor, and the rules it must keep.
//!
//! Validation is common to every runtime, so that a request the emulator accepts is one the driver
//! accepts. Rules: CUDA driver API, `cuTensorMapEncodeTiled`; edge cases as measured on an H200.

use crate::error::Property;
use crate::{Arch, Error, Result};

/// The 128-byte record that a kernel receives by value. Its content belongs to the runtime that made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(128))]
pub struct TensorMap(pub [u64; 16]);

impl TensorMap {
    /// The record as bytes, in memory order.
    pub fn to_bytes(self) -> [u8; 128] {
        let mut bytes = [0; 128];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// Element type of a tensor map, with the numbering of the driver API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum MapType {
    U8 = 0,
    U16 = 1,
    U32 = 2,
    I32 = 3,
    U64 = 4,
    I64 = 5,
    F16 = 6,
    F32 = 7,
    F64 = 8,
    Bf16 = 9,
    F32Ftz = 10,
    Tf32 = 11,
    Tf32Ftz = 12,
    /// 16 four-bit values in 8 bytes, no padding.
    U4x16Align8 = 13,
    /// 16 four-bit values in 8 bytes, 8 bytes of gap in shared memory.
    U4x16Align16 = 14,
    /// 16 six-bit values in 12 bytes, 4 bytes of gap in shared memory.
    U6x16Align16 = 15,
}

impl MapType {
    /// Bits of one element in global memory.
    pub const fn bits(self) -> u64 {
        match self {
            MapType::U4x16Align8 | MapType::U4x16Align16 => 4,
            MapType::U6x16Align16 => 6,
            MapType::U8 => 8,
            MapType::U16 | MapType::F16 | MapType::Bf16 => 16,
            MapType::U32 | MapType::I32 | MapType::F32 | MapType::F32Ftz | MapType::Tf32 | MapType::Tf32Ftz => 32,
            MapType::U64 | MapType::I64 | MapType::F64 => 64,
        }
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            MapType::F16
                | MapType::F32
                | MapType::F64
                | MapType::Bf16
                | MapType::F32Ftz
                | MapType::Tf32
                | MapType::Tf32Ftz
        )
    }

    const fn is_align16(self) -> bool {
        matches!(self, MapType::U4x16Align16 | MapType::U6x16Align16)
    }

    const fn is_sub_byte(self) -> bool {
        self.bits() < 8
    }
}

/// Permutation of 16-byte (or larger) chunks in shared memory, with the numbering of the driver API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Swizzle {
    None = 0,
    B32 = 1,
    B64 = 2,
    B128 = 3,
    B128Atom32 = 4,
    B128Atom32Flip8 = 5,
    B128Atom64 = 6,
}

impl Swizzle {
    /// Largest inner box in bytes, `None` without swizzle.
    pub const fn span_bytes(self) -> Option<u64> {
        match self {
            Swizzle::None => None,
            Swizzle::B32 => Some(32),
            Swizzle::B64 => Some(64),
            Swizzle::B128 | Swizzle::B128Atom32 | Swizzle::B128Atom32Flip8 | Swizzle::B128Atom64 => Some(128),
        }
    }
}

/// Interleaved channel layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Interleave {
    None = 0,
    B16 = 1,
    B32 = 2,
}

/// What a load writes for elements outside the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OobFill {
    /// Zeros.
    Zeros = 0,
    /// A NaN that FMA treats as zero; floating-point types only.
    Nan = 1,
}

/// Hint for the second-level cache; never changes data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum L2Promotion {
    None = 0,
    B64 = 1,
    B128 = 2,
    B256 = 3,
}

/// A tensor map to encode. Dimension 0 is the innermost, as in the driver API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMapRequest {
    /// Element type.
    pub dtype: MapType,
    /// Global address in bytes.
    pub address: u64,
    /// Sizes in elements, innermost first; 1 to 5 of them.
    pub dims: Vec<u64>,
    /// Strides in bytes of dimensions 1.., one fewer than `dims`.
    pub strides: Vec<u64>,
    /// Box in elements, innermost first.
    pub box_dims: Vec<u32>,
    /// Steps between moved elements, innermost first; 1 to 8.
    pub element_strides: Vec<u32>,
    /// Interleaved layout.
    pub interleave: Interleave,
    /// Shared-memory swizzle.
    pub swizzle: Swizzle,
    /// Cache hint.
    pub l2_promotion: L2Promotion,
    /// Out-of-bounds fill.
    pub oob_fill: OobFill,
}

impl TensorMapRequest {
    /// A plain tiled map: element strides 1, no interleave, zero fill, 128-byte L2 promotion.
    pub fn tiled(
        dtype: MapType,
        address: u64,
        dims: &[u64],
        strides: &[u64],
        box_dims: &[u32],
        swizzle: Swizzle,
    ) -> Self {
        TensorMapRequest {
            dtype,
            address,
            dims: dims.to_vec(),
            strides: strides.to_vec(),
            box_dims: box_dims.to_vec(),
            element_strides: vec![1; dims.len()],
            interleave: Interleave::None,
            swizzle,
            l2_promotion: L2Promotion::B128,
            oob_fill: OobFill::Zeros,
        }
    }

    /// Checks every rule of the encoder; `tensor` names the tensor in the error.
    ///
    /// # Errors
    /// [`Error::Argument`] with dimension, rule and value.
    pub fn validate(&self, tensor: &'static str, arch: Arch) -> Result<()> {
        let rank = self.dims.len();
        let fail = |property, expected: String, given: String| Err(Error::argument(tensor, property, expected, given));
        if !(1..=5).contains(&rank) {
            return fail(Property::Rank, "1 to 5 dimensions in its tensor map".into(), rank.to_string());
        }
        for (name, len, want) in [
            ("strides", self.strides.len(), rank - 1),
            ("box sizes", self.box_dims.len(), rank),
            ("element strides", self.element_strides.len(), rank),
        ] {
            if len != want {
                return fail(Property::Rank, format!("{want} {name} in its tensor map"), len.to_string());
            }
        }
        if self.interleave != Interleave::None && rank < 3 {
            return fail(Property::Rank, "at least 3 dimensions with interleave".into(), rank.to_string());
        }
        if arch == Arch::Sm90 && (self.dtype.is_sub_byte() || self.swizzle as u32 > Swizzle::B128 as u32) {
            return fail(
                Property::Value,
                "a type and swizzle that sm90 has".into(),
                format!("{:?} with {:?}", self.dtype, self.swizzle),
            );
        }
        self.validate_addresses(tensor)?;
        self.validate_sizes(tensor)?;
        self.validate_modes(tensor)
    }

    fn validate_addresses(&self, tensor: &'static str) -> Result<()> {
        let alignment = if self.interleave == Interleave::B32 || self.dtype.is_align16() { 32 } else { 16 };
        if !self.address.is_multiple_of(alignment) {
            let expected = format!("an address that is a multiple of {alignment}");
            return Err(Error::argument(tensor, Property::Alignment, expected, format!("{:#x}", self.address)));
        }
        for (i, &stride) in self.strides.iter().enumerate() {
            if stride % alignment != 0 || stride >= 1 << 40 {
                let expected =
                    format!("a stride of dimension {} that is a multiple of {alignment} bytes below 2^40", i + 1);
                return Err(Error::argument(tensor, Property::Layout, expected, stride));
            }
        }
        Ok(())
    }

    fn validate_sizes(&self, tensor: &'static str) -> Result<()> {
        let fail = |property, expected: String, given: u64| Err(Error::argument(tensor, property, expected, given));
        for (i, &dim) in self.dims.iter().enumerate() {
            // As measured: dimension 0 reaches 2^32, the others 2^31.
            let largest = if i == 0 { 1u64 << 32 } else { 1 << 31 };
            if dim == 0 || dim > largest {
                return fail(Property::Shape, format!("a size of dimension {i} in 1..={largest}"), dim);
            }
        }
        let multiple = match self.dtype {
            MapType::U4x16Align16 | MapType::U6x16Align16 => 128,
            MapType::U4x16Align8 => 2,
            _ => 1,
        };
        if !self.dims[0].is_multiple_of(multiple) {
            return fail(
                Property::Shape,
                format!("a size of dimension 0 that is a multiple of {multiple}"),
                self.dims[0],
            );
        }
        for (i, (&size, &step)) in self.box_dims.iter().zip(&self.element_strides).enumerate() {
            if !(1..=256).contains(&size) {
                return fail(Property::Shape, format!("a box size of dimension {i} in 1..=256"), u64::from(size));
            }
            if !(1..=8).contains(&step) {
                return fail(Property::Value, format!("an element stride of dimension {i} in 1..=8"), u64::from(step));
            }
        }
        if self.dtype.is_align16() && self.box_dims[0] != 128 {
            return fail(Property::Shape, "a box of 128 elements in dimension 0".into(), u64::from(self.box_dims[0]));
        }
        let inner_bytes = self.inner_box_bytes();
        if self.interleave == Interleave::None && !inner_bytes.is_multiple_of(16) {
            return fail(Property::Shape, "an inner box that is a multiple of 16 bytes".into(), inner_bytes);
        }
        let box_bytes = inner_bytes * self.moved_rows();
        if box_bytes > 128 * 1024 {
            return fail(Property::Size, "a box of at most 131072 bytes".into(), box_bytes);
        }
        Ok(())
    }

    fn validate_modes(&self, tensor: &'static str) -> Result<()> {
        let fail = |expected: &str, given: String| Err(Error::value(tensor, expected, given));
        if self.interleave == Interleave::B32 && self.swizzle != Swizzle::B32 {
            return fail("32-byte swizzle with 32-byte interleave", format!("{:?}", self.swizzle));
        }
        if let (Some(span), Interleave::None) = (self.swizzle.span_bytes(), self.interleave)
            && self.inner_box_bytes() > span
        {
            return fail(
                &format!("an inner box of at most {span} bytes with {:?} swizzle", self.swizzle),
                self.inner_box_bytes().to_string(),
            );
        }
        if self.oob_fill == OobFill::Nan && !self.dtype.is_float() {
            return fail("zero fill with integer types", format!("NaN fill with {:?}", self.dtype));
        }
        let allowed = match self.dtype {
            MapType::U4x16Align16 => matches!(self.swizzle, Swizzle::None | Swizzle::B128 | Swizzle::B128Atom32),
            MapType::U6x16Align16 => {
                self.interleave == Interleave::None
                    && matches!(self.swizzle, Swizzle::None | Swizzle::B128 | Swizzle::B128Atom32 | Swizzle::B128Atom64)
            }
            _ => true,
        };
        if !allowed {
            return fail(
                "a swizzle that the padded sub-byte type allows",
                format!("{:?} with {:?}", self.dtype, self.swizzle),
            );
        }
        Ok(())
    }

    /// Bytes of the innermost box row in shared memory (padded types: with their gaps).
    pub fn inner_box_bytes(&self) -> u64 {
        let bits = if self.dtype.is_align16() { 8 } else { self.dtype.bits() };
        u64::from(self.box_dims[0]) * bits / 8
    }

    /// Rows that one copy moves: the product of the outer box sizes over their element strides, rounded up.
    pub fn moved_rows(&self) -> u64 {
        let outer = self.box_dims.iter().zip(&self.element_strides).skip(1);
        outer.map(|(&size, &step)| u64::from(size.div_ceil(step))).product()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(dims: &[u64], strides: &[u64], box_dims: &[u32], swizzle: Swizzle) -> TensorMapRequest {
        TensorMapRequest::tiled(MapType::F16, 0x1000, dims, strides, box_dims, swizzle)
    }

    fn property(request: &TensorMapRequest) -> Property {
        match request.validate("k", Arch::Sm90) {
            Err(Error::Argument { property, argument: "k", .. }) => property,
            other => panic!("{other:?}"),
        }
    }

    /// Verdicts as measured on an H200 with driver 580.
    #[test]
    fn measured_verdicts_are_reproduced() {
        map(&[64, 100], &[128], &[64, 8], Swizzle::B128).validate("k", Arch::Sm90).unwrap();
        map(&[64, 100], &[0], &[64, 8], Swizzle::B128).validate("k", Arch::Sm90).unwrap();
        map(&[8, 4], &[16], &[64, 8], Swizzle::B128).validate("k", Arch::Sm90).unwrap();
        map(&[64, 100], &[(1 << 40) - 16], &[64, 8], Swizzle::None).validate("k", Arch::Sm90).unwrap();
        map(&[1 << 32, 1 << 31], &[128], &[64, 8], Swizzle::None).validate("k", Arch::Sm90).unwrap();
        map(&[256, 256], &[512], &[256, 256], Swizzle::None).validate("k", Arch::Sm90).unwrap();

        assert_eq!(property(&map(&[64, 100], &[1 << 40], &[64, 8], Swizzle::None)), Property::Layout);
        assert_eq!(property(&map(&[64, 100], &[136], &[64, 8], Swizzle::None)), Property::Layout);
        assert_eq!(property(&map(&[(1 << 32) + 1, 1], &[128], &[64, 8], Swizzle::None)), Property::Shape);
        assert_eq!(property(&map(&[64, (1 << 31) + 1], &[128], &[64, 8], Swizzle::None)), Property::Shape);
        assert_eq!(property(&map(&[0, 1], &[128], &[64, 8], Swizzle::None)), Property::Shape);
        assert_eq!(property(&map(&[64, 100], &[128], &[64, 257], Swizzle::None)), Property::Shape);
        assert_eq!(property(&map(&[64, 100], &[128], &[4, 8], Swizzle::None)), Property::Shape);
        assert_eq!(property(&map(&[64, 100], &[128], &[64, 8], Swizzle::B64)), Property::Value);
        assert_eq!(property(&map(&[64, 100], &[128], &[64, 8], Swizzle::B128Atom32)), Property::Value);
        let misplaced = TensorMapRequest { address: 0x1008, ..map(&[64, 100], &[128], &[64, 8], Swizzle::None) };
        assert_eq!(property(&misplaced), Property::Alignment);
        let wide = TensorMapRequest { dtype: MapType::F32, ..map(&[256, 256], &[1024], &[256, 256], Swizzle::None) };
        assert_eq!(property(&wide), Property::Size);
        let nan = TensorMapRequest {
            dtype: MapType::U16,
            oob_fill: OobFill::Nan,
            ..map(&[64, 8], &[128], &[64, 8], Swizzle::None)
        };
        assert_eq!(property(&nan), Property::Value);
        let flat = TensorMapRequest { interleave: Interleave::B16, ..map(&[64, 8], &[128], &[64, 8], Swizzle::None) };
        assert_eq!(property(&flat), Property::Rank);
    }
}
