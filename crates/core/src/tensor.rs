//! Strided views of tensors in device memory.

use std::fmt;
use std::marker::PhantomData;

use crate::error::Property;
use crate::{DType, Error, Result};

/// Largest rank of a tensor.
pub const MAX_RANK: usize = 6;

/// Sizes or strides of up to [`MAX_RANK`] dimensions, outermost first.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dims {
    rank: usize,
    values: [u64; MAX_RANK],
}

impl Dims {
    /// Dimensions from a slice.
    ///
    /// # Errors
    /// [`Error::Argument`] when there are more than [`MAX_RANK`].
    pub fn new(values: &[u64]) -> Result<Dims> {
        if values.len() > MAX_RANK {
            return Err(Error::argument("shape", Property::Rank, "at most 6 dimensions", values.len()));
        }
        let mut dims = Dims { rank: values.len(), values: [0; MAX_RANK] };
        dims.values[..values.len()].copy_from_slice(values);
        Ok(dims)
    }

    /// The values, outermost first.
    pub fn as_slice(&self) -> &[u64] {
        &self.values[..self.rank]
    }

    /// Product of the values, in elements.
    ///
    /// # Errors
    /// [`Error::Argument`] when it does not fit 64 bits.
    pub fn product(&self) -> Result<u64> {
        self.as_slice()
            .iter()
            .try_fold(1u64, |product, &value| product.checked_mul(value))
            .ok_or_else(|| Error::argument("shape", Property::Size, "an element count below 2^64", self))
    }

    /// Row-major strides of a contiguous tensor of these sizes, in elements.
    pub fn contiguous_strides(&self) -> Dims {
        let mut strides = *self;
        let mut step = 1u64;
        for (stride, &size) in strides.values[..self.rank].iter_mut().zip(&self.values[..self.rank]).rev() {
            *stride = step;
            step = step.saturating_mul(size.max(1));
        }
        strides
    }
}

impl fmt::Display for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_slice())
    }
}

impl fmt::Debug for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A view of a tensor in the memory of one device: address, element type, sizes, strides.
///
/// A view owns nothing. `'a` ties it to the [`Buffer`](crate::Buffer) it came from; views made from
/// raw pointers carry the promise of their maker instead. Strides are 64-bit and count elements. That of a
/// dimension of size 1 means nothing and may be anything: a view forgets it, and has one as if the dimension were
/// packed.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    address: u64,
    dtype: DType,
    shape: Dims,
    strides: Dims,
    owner: PhantomData<&'a ()>,
}

impl<'a> TensorView<'a> {
    /// A view of device memory that somebody else owns.
    ///
    /// `shape` and `strides` are outermost first and count elements.
    ///
    /// # Safety
    /// * `address` is memory of the device on which the view will be used, valid for every element
    ///   that `shape` and `strides` reach, until all work that uses the view has finished.
    /// * While such work runs, nothing else writes the elements, and nothing else reads those of an output.
    ///
    /// # Errors
    /// [`Error::Argument`] when ranks differ or exceed [`MAX_RANK`], or the extent does not fit 64 bits.
    #[allow(unsafe_code)]
    pub unsafe fn from_raw(address: u64, dtype: DType, shape: &[u64], strides: &[u64]) -> Result<TensorView<'a>> {
        TensorView::unowned(address, dtype, shape, strides)
    }

    /// The view that [`Buffer::view`](crate::Buffer::view) checks against its allocation.
    pub(crate) fn unowned(address: u64, dtype: DType, shape: &[u64], strides: &[u64]) -> Result<TensorView<'a>> {
        if shape.len() != strides.len() {
            return Err(Error::argument("strides", Property::Rank, format!("{} strides", shape.len()), strides.len()));
        }
        let shape = Dims::new(shape)?;
        let view = TensorView { address, dtype, shape, strides: meaningful(shape, strides)?, owner: PhantomData };
        let extent = view.extent_bytes()?;
        if address.checked_add(extent).is_none() {
            return Err(Error::argument("shape", Property::Size, "an end address below 2^64", view.shape));
        }
        Ok(view)
    }

    /// Address of element `[0, 0, ...]` in bytes.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes in elements, outermost first.
    pub fn shape(&self) -> &[u64] {
        self.shape.as_slice()
    }

    /// Strides in elements, outermost first; of a dimension of size 0 or 1 what a packed one would have.
    pub fn strides(&self) -> &[u64] {
        self.strides.as_slice()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.shape().contains(&0)
    }

    /// Whether elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.is_empty() || self.strides == self.shape.contiguous_strides()
    }

    /// Bytes from the first element to the end of the last one; 0 when empty.
    ///
    /// # Errors
    /// [`Error::Argument`] when it does not fit 64 bits.
    pub fn extent_bytes(&self) -> Result<u64> {
        if self.is_empty() {
            return Ok(0);
        }
        let last = self
            .shape()
            .iter()
            .zip(self.strides())
            .try_fold(0u64, |sum, (&size, &stride)| sum.checked_add((size - 1).checked_mul(stride)?));
        last.and_then(|last| last.checked_add(1)?.checked_mul(self.dtype.bytes()))
            .ok_or_else(|| Error::argument("strides", Property::Size, "an extent below 2^64 bytes", self.strides))
    }

    /// The bytes from first to last element, as addresses `[start, end)`.
    pub fn byte_range(&self) -> std::ops::Range<u64> {
        self.address..self.address + self.extent_bytes().unwrap_or(0)
    }

    /// Whether the byte ranges of two views meet.
    pub fn overlaps(&self, other: &TensorView<'_>) -> bool {
        let (a, b) = (self.byte_range(), other.byte_range());
        !a.is_empty() && !b.is_empty() && a.start < b.end && b.start < a.end
    }

    /// Checks element type and shape.
    ///
    /// # Errors
    /// [`Error::Argument`] that names `argument`.
    pub fn expect(&self, argument: &'static str, dtype: DType, shape: &[u64]) -> Result<()> {
        if self.dtype != dtype {
            return Err(Error::argument(argument, Property::DType, dtype, self.dtype));
        }
        if self.shape().len() != shape.len() {
            let expected = format!("{} dimensions {shape:?}", shape.len());
            return Err(Error::argument(
                argument,
                Property::Rank,
                expected,
                format!("{} {}", self.shape().len(), self.shape),
            ));
        }
        if self.shape() != shape {
            return Err(Error::argument(argument, Property::Shape, format!("shape {shape:?}"), self.shape));
        }
        Ok(())
    }

    /// Checks that the view is contiguous and starts at a multiple of `alignment` bytes.
    ///
    /// # Errors
    /// [`Error::Argument`] that names `argument`.
    pub fn expect_contiguous(&self, argument: &'static str, alignment: u64) -> Result<()> {
        if !self.is_contiguous() {
            let expected = format!("contiguous strides {}", self.shape.contiguous_strides());
            return Err(Error::argument(argument, Property::Layout, expected, self.strides));
        }
        if !self.address.is_multiple_of(alignment) {
            let expected = format!("an address that is a multiple of {alignment}");
            return Err(Error::argument(argument, Property::Alignment, expected, format!("{:#x}", self.address)));
        }
        Ok(())
    }
}

/// Strides, those of dimensions of size 0 and 1 as if they were packed around the dimensions inside.
fn meaningful(shape: Dims, strides: &[u64]) -> Result<Dims> {
    let mut strides = Dims::new(strides)?;
    let mut packed = 1u64;
    for (stride, &size) in strides.values[..strides.rank].iter_mut().zip(shape.as_slice()).rev() {
        if size <= 1 {
            *stride = packed;
        }
        packed = stride.saturating_mul(size.max(1));
    }
    Ok(strides)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(address: u64, shape: &[u64], strides: &[u64]) -> TensorView<'static> {
        TensorView::unowned(address, DType::F16, shape, strides).unwrap()
    }

    #[test]
    fn extent_counts_the_last_element_and_nothing_for_empty_tensors() {
        assert_eq!(view(0, &[2, 3], &[10, 1]).extent_bytes().unwrap(), (10 + 2 + 1) * 2);
        assert_eq!(view(0, &[2, 0], &[10, 1]).extent_bytes().unwrap(), 0);
        assert_eq!(view(0, &[1 << 20, 1 << 20], &[1 << 20, 1]).extent_bytes().unwrap(), 1 << 41);
    }

    #[test]
    fn size_one_dimensions_may_carry_any_stride() {
        assert!(view(0, &[4, 1, 8], &[8, 12345, 1]).is_contiguous());
        assert!(!view(0, &[4, 2, 8], &[8, 12345, 1]).is_contiguous());
        assert!(view(0, &[1, 8], &[0, 1]).is_contiguous());
        let gapped = view(0, &[1, 4, 1, 8, 1], &[u64::MAX, 20, 7, 2, 0]);
        assert_eq!((gapped.strides(), gapped.is_contiguous()), ([80, 20, 16, 2, 1].as_slice(), false));
        assert_eq!(gapped.extent_bytes().unwrap(), (3 * 20 + 7 * 2 + 1) * 2);
    }

    #[test]
    fn overflowing_extents_are_refused() {
        let error = TensorView::unowned(0, DType::F32, &[u64::MAX, 2], &[2, 1]).unwrap_err();
        assert!(matches!(error, Error::Argument { property: Property::Size, .. }), "{error}");
        let error = TensorView::unowned(u64::MAX - 4, DType::F32, &[4], &[1]).unwrap_err();
        assert!(matches!(error, Error::Argument { property: Property::Size, .. }), "{error}");
    }

    #[test]
    fn overlap_is_about_bytes() {
        let a = view(100, &[8], &[1]);
        assert!(a.overlaps(&view(114, &[8], &[1])));
        assert!(!a.overlaps(&view(116, &[8], &[1])));
        assert!(!a.overlaps(&view(104, &[0], &[1])));
    }

    #[test]
    fn expectations_name_argument_and_both_sides() {
        let v = view(8, &[4, 2], &[2, 1]);
        assert_eq!(v.expect("q", DType::F16, &[4, 3]).unwrap_err().to_string(), "q: expected shape [4, 3], got [4, 2]");
        assert_eq!(v.expect("q", DType::Bf16, &[4, 2]).unwrap_err().to_string(), "q: expected bf16, got f16");
        assert_eq!(
            v.expect("q", DType::F16, &[8]).unwrap_err().to_string(),
            "q: expected 1 dimensions [8], got 2 [4, 2]"
        );
        assert!(v.expect_contiguous("q", 16).unwrap_err().to_string().contains("multiple of 16"));
    }
}
