//! The tensors that both calls read: checks, places and strides.

use bakewell_core::error::Property;
use bakewell_core::{DType, Error, Result, TensorView};

use super::{Gdn, Input, Sequences};
use crate::arguments::{check_contiguous, check_optional};

/// Alignment of rows of bf16 and of states in bytes: kernels move 16-byte vectors.
pub(super) const VECTOR_BYTES: u64 = 16;

/// Where kernels find a tensor `[batch, tokens, heads, ...]`, batch rows one token stride apart. Strides in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) address: u64,
    pub(super) token_stride: u64,
    pub(super) head_stride: u64,
}

impl Gdn {
    /// Element type and shape of an input.
    pub(super) fn input(&self, input: Input) -> (DType, Vec<u64>) {
        match input {
            Input::Q | Input::K => (DType::Bf16, self.q_shape().to_vec()),
            Input::V | Input::Do => (DType::Bf16, self.v_shape().to_vec()),
            Input::G => (DType::F32, self.gate_shape().to_vec()),
            Input::Beta => (self.beta, self.gate_shape().to_vec()),
        }
    }

    /// Checks the inputs of a call, and the offsets that go with them.
    ///
    /// # Errors
    /// [`Error::Argument`] naming the first that does not do.
    pub(super) fn check_inputs<'a>(
        &self,
        inputs: &[Input],
        view: impl Fn(Input) -> Option<TensorView<'a>>,
        cu_seqlens: Option<&TensorView<'_>>,
    ) -> Result<()> {
        inputs.iter().try_for_each(|&input| self.check_input(input, view(input).as_ref()))?;
        self.check_cu_seqlens(cu_seqlens)
    }

    /// Checks an input: presence, type, shape, and unless it is copied whether it can be read in place.
    fn check_input(&self, input: Input, view: Option<&TensorView<'_>>) -> Result<()> {
        let wanted = self.gate || input != Input::G;
        let presence = |expected, given| Err(Error::argument(input.name(), Property::Presence, expected, given));
        let view = match (view, wanted) {
            (Some(view), true) => view,
            (None, false) => return Ok(()),
            (Some(_), false) => return presence("no tensor, as planned", "a tensor"),
            (None, true) => return presence("a tensor, as planned", "none"),
        };
        let (dtype, shape) = self.input(input);
        view.expect(input.name(), dtype, &shape)?;
        if view.is_empty() || self.copied(input) {
            return Ok(());
        }
        let refuse = |property, expected: &str, given: String| {
            let expected = format!("{expected}, or {} among the copies", input.name());
            Err(Error::argument(input.name(), property, expected, given))
        };
        let alignment = if shape.len() == 4 { VECTOR_BYTES } else { dtype.bytes() };
        let strides = view.strides();
        let last = shape.len() - 1;
        if strides[last] != 1 {
            return refuse(Property::Layout, "unit stride of the last dimension", format!("{strides:?}"));
        }
        // The last dimension of a gate is its heads.
        let stepped = |dimension: &usize| shape[*dimension] > 1;
        let mut outer = (0..last).filter(stepped).map(|dimension| strides[dimension]);
        if outer.any(|stride| stride == 0 || !(stride * dtype.bytes()).is_multiple_of(alignment)) {
            let expected = format!("strides that are positive multiples of {alignment} bytes");
            return refuse(Property::Layout, &expected, format!("{strides:?} elements"));
        }
        if shape[0] > 1 && shape[1] > 1 && strides[0] != shape[1] * strides[1] {
            let expected = format!("a batch stride of {} token strides", shape[1]);
            return refuse(Property::Layout, &expected, format!("{strides:?}"));
        }
        if !view.address().is_multiple_of(alignment) {
            let expected = format!("an address that is a multiple of {alignment}");
            return refuse(Property::Alignment, &expected, format!("{:#x}", view.address()));
        }
        Ok(())
    }

    /// Where kernels find an input that [`Gdn::check_input`] passed; `copy` is the address of its copy.
    pub(super) fn rows(&self, input: Input, view: &TensorView<'_>, copy: u64) -> Rows {
        let (_, shape) = self.input(input);
        let heads = shape[2];
        let dim = shape.get(3).copied().unwrap_or(1);
        if self.copied(input) {
            return Rows { address: copy, token_stride: heads * dim, head_stride: dim };
        }
        let strides = view.strides();
        Rows {
            address: view.address(),
            token_stride: if self.tokens > 1 { strides[1] } else { strides[0] },
            head_stride: strides[2],
        }
    }

    /// Checks `cu_seqlens`: there for offsets that only the device knows; otherwise it is not read.
    fn check_cu_seqlens(&self, view: Option<&TensorView<'_>>) -> Result<()> {
        let Some(view) = view else {
            return match self.sequences {
                Sequences::Device(_) => {
                    Err(Error::argument("cu_seqlens", Property::Presence, "a tensor, as planned", "none"))
                }
                _ => Ok(()),
            };
        };
        if self.sequences == Sequences::Batch {
            let expected = "no tensor: every batch row is a sequence";
            return Err(Error::argument("cu_seqlens", Property::Presence, expected, "a tensor"));
        }
        let dtype = if view.dtype() == DType::I64 { DType::I64 } else { DType::I32 };
        if view.dtype() != dtype {
            return Err(Error::argument("cu_seqlens", Property::DType, "i32 or i64", view.dtype()));
        }
        view.expect("cu_seqlens", dtype, &self.cu_seqlens_shape())?;
        check_contiguous("cu_seqlens", view, dtype.bytes())
    }

    /// Checks an optional state: there exactly when it is wanted.
    pub(super) fn check_state(&self, name: &'static str, view: Option<&TensorView<'_>>, wanted: bool) -> Result<()> {
        check_optional(name, view, wanted, DType::F32, &self.state_shape())?;
        view.map_or(Ok(()), |view| check_contiguous(name, view, VECTOR_BYTES))
    }
}

/// Checks a contiguous tensor that kernels move in vectors.
pub(super) fn dense(name: &'static str, view: &TensorView<'_>, dtype: DType, shape: &[u64]) -> Result<()> {
    view.expect(name, dtype, shape)?;
    check_contiguous(name, view, if shape.len() == 4 { VECTOR_BYTES } else { dtype.bytes() })
}
