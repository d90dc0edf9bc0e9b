//! Device memory that a plan needs besides the tensors of the call.

use std::fmt;

use bakewell_core::error::Property;
use bakewell_core::{DType, Dims, Error, Result};

/// Alignment of a workspace and of every region in it, in bytes.
pub const WORKSPACE_ALIGNMENT: u64 = 256;

/// A tensor in the workspace, contiguous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Name, as in the kernel's parameter block.
    pub name: &'static str,
    /// Element type.
    pub dtype: DType,
    /// Sizes in elements, outermost first.
    pub shape: Dims,
    /// Offset from the start of the workspace in bytes.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// The regions of a workspace, one after another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceLayout {
    /// Regions in order; empty when the plan needs none.
    pub regions: Vec<Region>,
    /// Bytes of the whole.
    pub bytes: u64,
}

impl WorkspaceLayout {
    /// Adds a region at the next aligned offset.
    ///
    /// # Errors
    /// [`Error::Argument`] when the size does not fit 63 bits.
    pub(crate) fn push(&mut self, name: &'static str, dtype: DType, shape: &[u64]) -> Result<()> {
        let shape = Dims::new(shape)?;
        let offset = self.bytes;
        let bytes = shape.product()?.checked_mul(dtype.bytes());
        let end = bytes.and_then(|bytes| offset.checked_add(bytes)?.checked_next_multiple_of(WORKSPACE_ALIGNMENT));
        match (bytes, end) {
            (Some(bytes), Some(end)) if i64::try_from(end).is_ok() => {
                self.regions.push(Region { name, dtype, shape, offset, bytes });
                self.bytes = end;
                Ok(())
            }
            _ => Err(Error::argument("workspace", Property::Size, "fewer than 2^63 bytes", shape)),
        }
    }

    /// The region of a name.
    pub fn region(&self, name: &str) -> Option<&Region> {
        self.regions.iter().find(|region| region.name == name)
    }

    /// Address of a region in a workspace at `base`; 0, the null pointer of the kernels, when there is none.
    pub(crate) fn address(&self, name: &str, base: u64) -> u64 {
        self.region(name).map_or(0, |region| base + region.offset)
    }
}

impl fmt::Display for WorkspaceLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "workspace {} bytes", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_aligned_and_disjoint() {
        let mut layout = WorkspaceLayout::default();
        layout.push("a", DType::F32, &[3, 5]).unwrap();
        layout.push("b", DType::U32, &[65]).unwrap();
        assert_eq!((layout.region("b").unwrap().offset, layout.bytes), (256, 256 + 512));
        assert_eq!((layout.address("b", 0x1000), layout.address("c", 0x1000)), (0x1100, 0));
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        for shape in [[u64::MAX, 2], [1 << 62, 1], [1 << 61, 1]] {
            let error = WorkspaceLayout::default().push("a", DType::F32, &shape).unwrap_err();
            assert!(matches!(error, Error::Argument { property: Property::Size, .. }), "{error}");
        }
    }
}
