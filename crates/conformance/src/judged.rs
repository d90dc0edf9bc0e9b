//! Whether outputs are right: goldens, the reference, and verdicts.

use std::path::Path;
use std::time::Duration;

use bakewell::schedule::Schedule;
use bakewell::{Device, Operation, Plan, Problem, Result};

use crate::TensorFile;
use crate::compare::Comparison;
use crate::file::load_folder;
use crate::staged::Outputs;

/// Inputs of an operation, from whose calls outputs come that can be judged.
pub trait Judged: Clone {
    /// The operation.
    const OPERATION: Operation;

    /// What should come out.
    type Expected;

    /// Inputs from a file with the operation's tensors, scalar parameters in its metadata.
    ///
    /// # Errors
    /// [`bakewell::Error::Argument`] that names what is missing or has another rank than it must.
    fn from_file(file: &TensorFile) -> Result<Self>;

    /// The outputs that a file holds beside its inputs, computed independently of any kernel; `None` without.
    ///
    /// # Errors
    /// [`bakewell::Error::Argument`] for an incomplete set of them.
    fn golden(file: &TensorFile) -> Result<Option<Self::Expected>>;

    /// What the reference computes.
    ///
    /// # Errors
    /// The reference's.
    fn expected(&self) -> Result<Self::Expected>;

    /// The same with every optional output.
    fn complete(&self) -> Self;

    /// Other ways to ask for the same, in which the outputs that they share must have the same bits.
    fn variations(&self) -> Vec<(&'static str, Self)>;

    /// What a device would do.
    ///
    /// # Errors
    /// The plan's.
    fn plan(&self, device: &Device) -> Result<Planned>;

    /// Runs every call of the operation once. The time is from launch to the end of the work, without planning, binding
    /// and copies.
    ///
    /// # Errors
    /// Those of [`Staged`](crate::Staged).
    fn run(&self, device: &Device) -> Result<(Outputs, Duration)>;

    /// Compares the outputs of a device with what is expected.
    ///
    /// # Errors
    /// [`bakewell::Error::Argument`] for outputs of another type or size.
    fn judge(&self, outputs: &Outputs, expected: &Self::Expected, device: &Device) -> Result<Verdict>;

    /// Bytes that any kernel must move.
    ///
    /// # Errors
    /// [`bakewell::Error::Argument`] for lengths of another type.
    fn live_bytes(&self) -> Result<u64>;
}

/// The plans of an operation's calls, in order.
#[derive(Clone, Default)]
pub struct Planned {
    /// Each plan in a line.
    pub lines: Vec<String>,
    /// Schedules of the programs, those included that binding runs.
    pub schedules: Vec<&'static dyn Schedule>,
    /// Names of the programs that are launched.
    pub programs: Vec<String>,
}

impl Planned {
    /// These plans and another.
    pub fn and<P: Problem>(mut self, plan: &Plan<P>) -> Planned {
        self.lines.push(plan.to_string());
        self.schedules.extend(plan.preparations());
        self.schedules.extend(plan.schedules());
        self.programs.extend(plan.programs());
        self
    }
}

/// How right outputs are.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The main output against the exact values.
    pub comparison: Comparison,
    /// The measured errors in words.
    pub summary: String,
    /// What is not as it must be.
    pub failure: Option<String>,
}

/// Inputs and outputs computed in float64, independently of any kernel.
#[derive(Clone, Debug)]
pub struct Golden<I: Judged> {
    /// Name of the case.
    pub name: String,
    /// Inputs.
    pub inputs: I,
    /// Outputs.
    pub expected: I::Expected,
}

impl<I: Judged> Golden<I> {
    /// Every golden of a folder with outputs in it, by name.
    ///
    /// # Errors
    /// [`bakewell::Error::Argument`] for a folder without any, or a file that is no golden.
    pub fn load_all(folder: &Path) -> Result<Vec<Golden<I>>> {
        let mut goldens = Vec::new();
        for (name, file) in load_folder(folder)? {
            if let Some(expected) = I::golden(&file)? {
                goldens.push(Golden { name, inputs: I::from_file(&file)?, expected });
            }
        }
        Ok(goldens)
    }
}
