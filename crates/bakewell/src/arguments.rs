//! The tensors of a call, and the checks on them that operations share.

use bakewell_core::error::Property;
use bakewell_core::{DType, Error, Memory, Result, TensorView};

use crate::workspace::WORKSPACE_ALIGNMENT;

/// Whether a launch only reads a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only reads it.
    Read,
    /// Writes it, perhaps reads it too.
    Write,
}

/// A tensor under the name that the operation's documentation gives it.
#[derive(Clone, Copy, Debug)]
pub struct Argument<'v, 'a> {
    /// Name.
    pub name: &'static str,
    /// The tensor.
    pub view: &'v TensorView<'a>,
    /// Use.
    pub access: Access,
}

impl<'v, 'a> Argument<'v, 'a> {
    /// A tensor that a launch only reads.
    pub fn read(name: &'static str, view: &'v TensorView<'a>) -> Argument<'v, 'a> {
        Argument { name, view, access: Access::Read }
    }

    /// A tensor that a launch writes.
    pub fn write(name: &'static str, view: &'v TensorView<'a>) -> Argument<'v, 'a> {
        Argument { name, view, access: Access::Write }
    }
}

/// The tensors of a call of some operation.
pub trait Arguments<'a>: Copy + Send + Sync {
    /// Every tensor that is there, but the workspace.
    fn tensors(&self) -> Vec<Argument<'_, 'a>>;

    /// The caller's workspace; `None` lets the binding allocate it.
    fn workspace(&self) -> Option<&TensorView<'a>>;
}

/// Address of a tensor; 0, the null pointer of the kernels, without one.
pub(crate) fn address_or_null(view: Option<&TensorView<'_>>) -> u64 {
    view.map_or(0, TensorView::address)
}

/// Checks that every tensor lies in the device's memory, and that nothing written overlaps anything else.
pub(crate) fn check_placement(memory: &dyn Memory, arguments: &[Argument<'_, '_>]) -> Result<()> {
    for argument in arguments.iter().filter(|argument| !argument.view.is_empty()) {
        let (address, bytes) = (argument.view.address(), argument.view.extent_bytes()?);
        if let Err(place) = memory.locate(address, bytes) {
            let expected = format!("memory of {}", memory.name());
            let given = format!("{bytes} bytes at {address:#x}: {place}");
            return Err(Error::argument(argument.name, Property::Location, expected, given));
        }
    }
    for (i, written) in arguments.iter().enumerate().filter(|(_, argument)| argument.access == Access::Write) {
        for (j, other) in arguments.iter().enumerate() {
            if i != j && written.view.overlaps(other.view) {
                let expected = format!("memory apart from {}", other.name);
                let given = format!("{:#x?} over {:#x?}", written.view.byte_range(), other.view.byte_range());
                return Err(Error::argument(written.name, Property::Alias, expected, given));
            }
        }
    }
    Ok(())
}

/// Checks layout and alignment of a tensor that must be contiguous. Empty tensors have neither.
pub(crate) fn check_contiguous(name: &'static str, view: &TensorView<'_>, alignment: u64) -> Result<()> {
    if view.is_empty() { Ok(()) } else { view.expect_contiguous(name, alignment) }
}

/// Checks a caller's workspace: bytes, enough of them, aligned.
pub(crate) fn check_workspace(workspace: &TensorView<'_>, needed: u64) -> Result<()> {
    workspace.expect("workspace", DType::U8, workspace.shape())?;
    check_contiguous("workspace", workspace, WORKSPACE_ALIGNMENT)?;
    let given = workspace.extent_bytes()?;
    if given < needed {
        return Err(Error::argument("workspace", Property::Size, format!("at least {needed} bytes"), given));
    }
    Ok(())
}

/// An optional tensor, there exactly when the problem wants it.
pub(crate) fn check_presence<'v, 'a>(
    name: &'static str,
    view: Option<&'v TensorView<'a>>,
    wanted: bool,
) -> Result<Option<&'v TensorView<'a>>> {
    match (view, wanted) {
        (Some(_), true) | (None, false) => Ok(view),
        (Some(_), false) => Err(Error::argument(name, Property::Presence, "no tensor, as planned", "a tensor")),
        (None, true) => Err(Error::argument(name, Property::Presence, "a tensor, as planned", "none")),
    }
}

/// Checks an optional tensor: there exactly when the problem wants it, contiguous and aligned to its elements.
pub(crate) fn check_optional(
    name: &'static str,
    view: Option<&TensorView<'_>>,
    wanted: bool,
    dtype: DType,
    shape: &[u64],
) -> Result<()> {
    check_presence(name, view, wanted)?.map_or(Ok(()), |view| check_dense(name, view, dtype, shape))
}

/// Checks type and shape of an E4M3 tensor, which may also come as bytes.
pub(crate) fn check_byte_type(name: &'static str, view: &TensorView<'_>, shape: &[u64]) -> Result<()> {
    let dtype = if view.dtype() == DType::U8 { DType::U8 } else { DType::E4m3 };
    view.expect(name, dtype, shape)
}

/// Checks a tensor of this type and shape that must be contiguous, aligned to its elements.
pub(crate) fn check_dense(name: &'static str, view: &TensorView<'_>, dtype: DType, shape: &[u64]) -> Result<()> {
    view.expect(name, dtype, shape)?;
    check_contiguous(name, view, dtype.bytes())
}

/// Query heads per KV head. `query_heads` comes with the name of its field.
pub(crate) fn group_size(query_heads: (&'static str, u64), kv_heads: u64) -> Result<u64> {
    let (name, heads) = query_heads;
    if kv_heads == 0 {
        return Err(Error::value("kv_heads", "at least 1", 0));
    }
    if heads == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(Error::value(name, format!("a positive multiple of the {kv_heads} KV heads"), heads));
    }
    Ok(heads / kv_heads)
}
