//! Checks on the tensors of a call that every operation makes.

use bakewell_core::error::Property;
use bakewell_core::{DType, Error, Memory, Result, TensorView};

use crate::workspace::WORKSPACE_ALIGNMENT;

/// Whether a launch only reads a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A tensor under the name that the operation's documentation gives it.
#[derive(Clone, Copy)]
pub(crate) struct Argument<'v, 'a> {
    pub(crate) name: &'static str,
    pub(crate) view: &'v TensorView<'a>,
    pub(crate) access: Access,
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
