//! The forward call: outputs, final states, and the tape.

#[cfg(feature = "reference")]
use std::sync::Arc;

use bakewell_core::error::Property;
use bakewell_core::route::Considered;
use bakewell_core::schedule::Schedule;
use bakewell_core::{Architecture, Buffer, DType, Error, Operation, Result, TensorView};
#[cfg(feature = "reference")]
use bakewell_reference::HostMemory;
use serde::Serialize;

use super::decide::{Decision, Pass, Role, consider, decide};
use super::inputs::dense;
use super::tape::Content;
use super::values::{Values, launch, shared};
use super::{Gdn, Input, Tape};
use crate::arguments::{Argument, Arguments};
use crate::binder::Binder;
#[cfg(feature = "reference")]
use crate::bound::HostWork;
use crate::plan::{Plan, Problem, sealed::Sealed};
use crate::workspace::WorkspaceLayout;

/// The forward call of a problem.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Forward(pub Gdn);

/// The tensors of a forward call; shapes as in the [module documentation](super).
#[derive(Clone, Copy, Debug)]
pub struct ForwardArgs<'a> {
    /// Queries.
    pub q: TensorView<'a>,
    /// Keys.
    pub k: TensorView<'a>,
    /// Values.
    pub v: TensorView<'a>,
    /// Logarithms of decays; present exactly when the problem has gates.
    pub g: Option<TensorView<'a>>,
    /// Write strengths.
    pub beta: TensorView<'a>,
    /// First token of each sequence, and the end; needed where only the device knows them.
    pub cu_seqlens: Option<TensorView<'a>>,
    /// Start states; present exactly when the problem has them.
    pub h0: Option<TensorView<'a>>,
    /// Output; like every output it must not overlap any other tensor.
    pub o: TensorView<'a>,
    /// Final states; present exactly when the problem wants them.
    pub ht: Option<TensorView<'a>>,
    /// Where the tape goes; present exactly when the problem is one of training.
    pub tape: Option<Tape<'a>>,
    /// Workspace of at least [`Plan::workspace_bytes`] bytes, u8, 256-byte aligned; `None` lets the binding allocate
    /// it.
    pub workspace: Option<TensorView<'a>>,
}

impl<'a> ForwardArgs<'a> {
    /// The tensor of an input.
    pub(super) fn input(&self, input: Input) -> Option<TensorView<'a>> {
        match input {
            Input::Q => Some(self.q),
            Input::K => Some(self.k),
            Input::V => Some(self.v),
            Input::G => self.g,
            Input::Beta => Some(self.beta),
            Input::Do => None,
        }
    }
}

impl<'a> Arguments<'a> for ForwardArgs<'a> {
    fn tensors(&self) -> Vec<Argument<'_, 'a>> {
        let mut tensors = vec![
            Argument::read("q", &self.q),
            Argument::read("k", &self.k),
            Argument::read("v", &self.v),
            Argument::read("beta", &self.beta),
            Argument::write("o", &self.o),
        ];
        tensors.extend(self.g.iter().map(|view| Argument::read("g", view)));
        tensors.extend(self.cu_seqlens.iter().map(|view| Argument::read("cu_seqlens", view)));
        tensors.extend(self.h0.iter().map(|view| Argument::read("h0", view)));
        tensors.extend(self.ht.iter().map(|view| Argument::write("ht", view)));
        tensors.extend(self.tape.iter().map(|tape| Argument::write("tape", &tape.view)));
        tensors
    }

    fn workspace(&self) -> Option<&TensorView<'a>> {
        self.workspace.as_ref()
    }
}

impl Sealed for Forward {}

impl Problem for Forward {
    const OPERATION: Operation = Operation::Gdn;
    type Decision = Decision;
    type Args<'a> = ForwardArgs<'a>;

    fn validate(&self) -> Result<()> {
        self.0.validate()
    }

    fn decide(&self, architecture: &'static Architecture, sm_count: u32) -> Result<Decision> {
        decide(&self.0, Pass::Forward, architecture, sm_count)
    }

    fn consider(&self, architecture: &'static Architecture, sm_count: u32) -> Result<Vec<Considered>> {
        consider(&self.0, architecture, sm_count)
    }

    fn workspace(decision: &Decision) -> &WorkspaceLayout {
        &decision.workspace
    }

    fn schedules(decision: &Decision) -> Vec<&'static dyn Schedule> {
        decision.steps.iter().map(|step| step.schedule as &'static dyn Schedule).collect()
    }

    fn check(&self, args: &ForwardArgs<'_>) -> Result<()> {
        let problem = &self.0;
        problem.check_inputs(Pass::Forward.inputs(), |input| args.input(input), args.cu_seqlens.as_ref())?;
        problem.check_state("h0", args.h0.as_ref(), problem.initial_state)?;
        dense("o", &args.o, DType::Bf16, &problem.v_shape())?;
        problem.check_state("ht", args.ht.as_ref(), problem.final_state)?;
        match (args.tape, problem.training) {
            (Some(_), false) => {
                Err(Error::argument("tape", Property::Presence, "none, as planned without training", "a tape"))
            }
            (None, true) => Err(Error::argument("tape", Property::Presence, "a tape, as planned", "none")),
            _ => Ok(()),
        }
    }

    fn check_planned(&self, decision: Option<&Decision>, args: &ForwardArgs<'_>) -> Result<()> {
        args.tape.map_or(Ok(()), |tape| tape.expect(Content::of(&self.0, decision)))
    }

    fn bind(&self, decision: &Decision, args: &ForwardArgs<'_>, binder: &mut Binder<'_>) -> Result<()> {
        let problem = &self.0;
        let mut values = Values::new(problem, decision, args.tape.as_ref(), binder)?;
        let view = |input| args.input(input);
        values.inputs(problem, Pass::Forward.inputs(), view, binder)?;
        values.tensor("o", Some(&args.o));
        values.tensor("h0", args.h0.as_ref());
        values.tensor("ht", args.ht.as_ref());
        values.tensor("boundary", args.h0.as_ref());
        values.number("adjoint", 0);
        values.number("m_of_first", u32::from(problem.initial_state));
        values.number("m_of_last", u32::from(problem.training && problem.final_state));
        for step in &decision.steps {
            let of_role = match step.role {
                Role::PreScan => values.without(&["o", "v_new", "h", "h0", "ht", "start"]),
                Role::Scan => values.without(&["segment_state", "m"]),
                _ => shared(problem, step, &values, view, args.cu_seqlens.as_ref(), binder),
            };
            launch(step, &of_role, binder)?;
        }
        Ok(())
    }

    #[cfg(feature = "reference")]
    fn bind_reference<'a>(&self, memory: Arc<HostMemory>, args: Self::Args<'a>) -> Result<HostWork<'a>> {
        let problem = self.0.clone();
        Ok(Box::new(move || super::reference::forward(&problem, &memory, &args)))
    }
}

impl Plan<Forward> {
    /// Bytes of the tape; 0 without training, and on the reference.
    pub fn tape_bytes(&self) -> u64 {
        self.decision().map_or(0, |decision| decision.tape.bytes)
    }

    /// Memory for a tape.
    ///
    /// # Errors
    /// The device's.
    pub fn tape_buffer(&self) -> Result<Buffer> {
        self.device().buffer(self.tape_bytes())
    }

    /// The tape of this plan in memory of at least [`Plan::tape_bytes`] bytes, u8, 256-byte aligned.
    ///
    /// # Errors
    /// [`Error::Argument`] for memory that does not do.
    pub fn tape<'a>(&self, view: TensorView<'a>) -> Result<Tape<'a>> {
        Tape::new(view, self.tape_bytes(), Content::of(&self.problem().0, self.decision()))
    }
}
