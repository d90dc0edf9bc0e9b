//! The tensors of a call by name: what they are, buffers for them, and the arguments made of them.

use std::borrow::Cow;
use std::fmt;

use bakewell::error::Property;
use bakewell::{Buffer, DType, Device, Error, Problem, Result, TensorView};

use crate::HostTensor;

/// A tensor of a call, as the operation's documentation names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name.
    pub name: &'static str,
    /// Element type.
    pub dtype: DType,
    /// Sizes in elements, outermost first.
    pub shape: Vec<u64>,
    /// Whether a launch writes it.
    pub output: bool,
}

impl TensorSpec {
    /// A tensor that a launch reads.
    pub fn input(name: &'static str, dtype: DType, shape: &[u64]) -> TensorSpec {
        TensorSpec { name, dtype, shape: shape.to_vec(), output: false }
    }

    /// A tensor that a launch writes.
    pub fn output(name: &'static str, dtype: DType, shape: &[u64]) -> TensorSpec {
        TensorSpec { name, dtype, shape: shape.to_vec(), output: true }
    }

    /// Size of the contiguous tensor in bytes.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.dtype.bytes()
    }
}

/// The inputs of one call of some operation, on the host.
pub trait CallInputs: Clone + fmt::Debug {
    /// Its problem.
    type Problem: Problem;

    /// The problem.
    fn problem(&self) -> &Self::Problem;

    /// Every tensor of the call but the workspace, outputs in the order in which they are shown.
    fn specs(&self) -> Vec<TensorSpec>;

    /// An input; `None` for a name that is none.
    fn tensor(&self, name: &str) -> Option<Cow<'_, HostTensor>>;

    /// The arguments of the call. Views have the names of the specs, the workspace is `workspace`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a view that must be there and is not.
    fn args<'a>(&self, views: &Views<'a>) -> Result<<Self::Problem as Problem>::Args<'a>>;
}

/// Views of the tensors of a call by name.
#[derive(Clone, Debug, Default)]
pub struct Views<'a>(Vec<(&'static str, TensorView<'a>)>);

impl<'a> Views<'a> {
    /// The view of a name.
    pub fn get(&self, name: &str) -> Option<TensorView<'a>> {
        self.0.iter().find(|(there, _)| *there == name).map(|(_, view)| *view)
    }

    /// The view of a name that must be there.
    ///
    /// # Errors
    /// [`Error::Argument`] that names it.
    pub fn need(&self, name: &'static str) -> Result<TensorView<'a>> {
        self.get(name).ok_or_else(|| Error::argument(name, Property::Presence, "a tensor", "none"))
    }

    /// Puts a view under a name, in the place of the one that is there.
    pub fn put(&mut self, name: &'static str, view: TensorView<'a>) {
        self.remove(name);
        self.0.push((name, view));
    }

    /// Takes the view of a name away.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(there, _)| *there != name);
    }
}

/// A buffer for each of some tensors.
#[derive(Debug)]
pub struct Buffers(Vec<(TensorSpec, Buffer)>);

impl Buffers {
    /// Buffers with `spare` bytes behind each tensor. Content is undefined.
    ///
    /// # Errors
    /// The device's.
    pub fn new(device: &Device, specs: Vec<TensorSpec>, spare: impl Fn(&TensorSpec) -> u64) -> Result<Buffers> {
        let buffer = |spec: TensorSpec| {
            let buffer = device.buffer(spec.bytes() + spare(&spec))?;
            Ok((spec, buffer))
        };
        Ok(Buffers(specs.into_iter().map(buffer).collect::<Result<_>>()?))
    }

    /// The inputs on a device, with the type and shape that they have: the binding says what is wrong with them.
    ///
    /// # Errors
    /// The device's, or [`Error::Argument`] for an input that is not there.
    pub fn upload(device: &Device, inputs: &impl CallInputs) -> Result<Buffers> {
        let upload = |spec: TensorSpec| {
            let missing = || Error::argument(spec.name, Property::Presence, "a tensor", "none");
            let tensor = inputs.tensor(spec.name).ok_or_else(missing)?;
            let buffer = tensor.upload(device)?;
            Ok((TensorSpec { dtype: tensor.dtype, shape: tensor.shape.clone(), ..spec }, buffer))
        };
        let inputs = inputs.specs().into_iter().filter(|spec| !spec.output);
        Ok(Buffers(inputs.map(upload).collect::<Result<_>>()?))
    }

    /// The buffer of a name.
    ///
    /// # Errors
    /// [`Error::Argument`] for a name that is none.
    pub fn get(&self, name: &str) -> Result<&Buffer> {
        self.entry(name).map(|(_, buffer)| buffer)
    }

    fn entry(&self, name: &str) -> Result<&(TensorSpec, Buffer)> {
        let found = self.0.iter().find(|(spec, _)| spec.name == name);
        found.ok_or_else(|| Error::value("buffers", "the name of a tensor", name))
    }

    /// Views of all tensors.
    ///
    /// # Errors
    /// None of its own.
    pub fn views(&self) -> Result<Views<'_>> {
        let views = self.0.iter().map(|(spec, buffer)| Ok((spec.name, buffer.view(spec.dtype, &spec.shape)?)));
        Ok(Views(views.collect::<Result<_>>()?))
    }

    /// A tensor on the host.
    ///
    /// # Errors
    /// As [`Buffers::get`], or the device's.
    pub fn download(&self, name: &str) -> Result<HostTensor> {
        let (spec, buffer) = self.entry(name)?;
        HostTensor::download(buffer, spec.dtype, &spec.shape)
    }

    /// Place of the first byte of a tensor, or behind it, that differs from those wanted at `at`.
    ///
    /// # Errors
    /// As [`Buffers::get`], or the device's.
    pub fn differing(&self, device: &Device, name: &str, at: u64, wanted: &[u8]) -> Result<Option<u64>> {
        let mut got = vec![0; wanted.len()];
        device.memory().read(self.get(name)?.address() + at, &mut got)?;
        if got == wanted {
            return Ok(None);
        }
        Ok(got.iter().zip(wanted).position(|(got, wanted)| got != wanted).map(|byte| at + byte as u64))
    }
}
