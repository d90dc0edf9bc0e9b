//! The backward call: gradients of everything that the forward read.

#[cfg(feature = "reference")]
use std::sync::Arc;

use bakewell_core::error::Property;
use bakewell_core::schedule::Schedule;
use bakewell_core::{Architecture, DType, Error, Operation, Result, TensorView};
#[cfg(feature = "reference")]
use bakewell_reference::HostMemory;
use serde::Serialize;

use super::decide::{Decision, Pass, Role, decide};
use super::inputs::dense;
use super::tape::Content;
use super::values::{Values, launch, shared};
use super::{Gdn, Input, Tape};
use crate::arguments::{Argument, Arguments, check_optional};
use crate::binder::Binder;
#[cfg(feature = "reference")]
use crate::bound::HostWork;
use crate::plan::{Problem, sealed::Sealed};
use crate::workspace::WorkspaceLayout;

/// The backward call of a problem.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Backward(pub Gdn);

/// The tensors of a backward call; shapes as in the [module documentation](super).
#[derive(Clone, Copy, Debug)]
pub struct BackwardArgs<'a> {
    /// Queries, as the forward read them.
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
    /// What the forward left.
    pub tape: Tape<'a>,
    /// Gradient of `o`.
    pub d_o: TensorView<'a>,
    /// Gradient of `ht`, zero without; only where the problem wants final states.
    pub dht: Option<TensorView<'a>>,
    /// Gradient of `q`; like every output it must not overlap any other tensor.
    pub dq: TensorView<'a>,
    /// Gradient of `k`.
    pub dk: TensorView<'a>,
    /// Gradient of `v`.
    pub dv: TensorView<'a>,
    /// Gradient of `g`; present exactly when the problem has gates.
    pub dg: Option<TensorView<'a>>,
    /// Gradient of `beta`.
    pub dbeta: TensorView<'a>,
    /// Gradient of `h0`; present exactly when the problem has start states.
    pub dh0: Option<TensorView<'a>>,
    /// Workspace of at least [`Plan::workspace_bytes`](crate::Plan::workspace_bytes) bytes, u8, 256-byte aligned;
    /// `None` lets the binding allocate it.
    pub workspace: Option<TensorView<'a>>,
}

impl<'a> BackwardArgs<'a> {
    pub(super) fn input(&self, input: Input) -> Option<TensorView<'a>> {
        match input {
            Input::Q => Some(self.q),
            Input::K => Some(self.k),
            Input::V => Some(self.v),
            Input::G => self.g,
            Input::Beta => Some(self.beta),
            Input::Do => Some(self.d_o),
        }
    }
}

/// The inputs of a backward; the tape has what its programs need of the gates.
const INPUTS: &[Input] = &[Input::Q, Input::K, Input::V, Input::G, Input::Beta, Input::Do];

impl<'a> Arguments<'a> for BackwardArgs<'a> {
    fn tensors(&self) -> Vec<Argument<'_, 'a>> {
        let mut tensors = vec![
            Argument::read("q", &self.q),
            Argument::read("k", &self.k),
            Argument::read("v", &self.v),
            Argument::read("beta", &self.beta),
            Argument::read("do", &self.d_o),
            Argument::read("tape", &self.tape.view),
            Argument::write("dq", &self.dq),
            Argument::write("dk", &self.dk),
            Argument::write("dv", &self.dv),
            Argument::write("dbeta", &self.dbeta),
        ];
        tensors.extend(self.g.iter().map(|view| Argument::read("g", view)));
        tensors.extend(self.dg.iter().map(|view| Argument::write("dg", view)));
        tensors.extend(self.cu_seqlens.iter().map(|view| Argument::read("cu_seqlens", view)));
        tensors.extend(self.h0.iter().map(|view| Argument::read("h0", view)));
        tensors.extend(self.dht.iter().map(|view| Argument::read("dht", view)));
        tensors.extend(self.dh0.iter().map(|view| Argument::write("dh0", view)));
        tensors
    }

    fn workspace(&self) -> Option<&TensorView<'a>> {
        self.workspace.as_ref()
    }
}

impl Sealed for Backward {}

impl Problem for Backward {
    const OPERATION: Operation = Operation::Gdn;
    type Decision = Decision;
    type Args<'a> = BackwardArgs<'a>;

    fn validate(&self) -> Result<()> {
        self.0.validate()
    }

    fn decide(&self, architecture: &'static Architecture, sm_count: u32) -> Result<Decision> {
        decide(&self.0, Pass::Backward, architecture, sm_count)
    }

    fn workspace(decision: &Decision) -> &WorkspaceLayout {
        &decision.workspace
    }

    fn schedules(decision: &Decision) -> Vec<&'static dyn Schedule> {
        decision.steps.iter().map(|step| step.schedule as &'static dyn Schedule).collect()
    }

    fn check(&self, args: &BackwardArgs<'_>) -> Result<()> {
        let problem = &self.0;
        problem.check_inputs(INPUTS, |input| args.input(input), args.cu_seqlens.as_ref())?;
        problem.check_state("h0", args.h0.as_ref(), problem.initial_state)?;
        if args.dht.is_some() && !problem.final_state {
            let expected = "none: the forward made no final state";
            return Err(Error::argument("dht", Property::Presence, expected, "a tensor"));
        }
        problem.check_state("dht", args.dht.as_ref(), args.dht.is_some())?;
        dense("dq", &args.dq, DType::Bf16, &problem.q_shape())?;
        dense("dk", &args.dk, DType::Bf16, &problem.q_shape())?;
        dense("dv", &args.dv, DType::Bf16, &problem.v_shape())?;
        check_optional("dg", args.dg.as_ref(), problem.gate, DType::F32, &problem.gate_shape())?;
        dense("dbeta", &args.dbeta, problem.beta, &problem.gate_shape())?;
        problem.check_state("dh0", args.dh0.as_ref(), problem.initial_state)
    }

    fn check_planned(&self, decision: Option<&Decision>, args: &BackwardArgs<'_>) -> Result<()> {
        args.tape.expect(Content::of(&self.0, decision))
    }

    fn bind(&self, decision: &Decision, args: &BackwardArgs<'_>, binder: &mut Binder<'_>) -> Result<()> {
        let problem = &self.0;
        let mut values = Values::new(problem, decision, Some(&args.tape), binder)?;
        let view = |input| args.input(input);
        values.inputs(problem, INPUTS, view, binder)?;
        for (name, view) in [("dq", &args.dq), ("dk", &args.dk), ("dv", &args.dv), ("dbeta", &args.dbeta)] {
            values.tensor(name, Some(view));
        }
        // Without gates their gradient is made all the same, and dropped.
        values.point("dg", args.dg.map_or_else(|| binder.region("dg"), |dg| dg.address()));
        values.tensor("h0", args.h0.as_ref());
        values.tensor("dht", args.dht.as_ref());
        values.tensor("dh0", args.dh0.as_ref());
        values.tensor("boundary", args.dht.as_ref());
        values.number("adjoint", 1);
        values.number("m_of_first", 0);
        values.number("m_of_last", 0);
        for step in &decision.steps {
            let of_role = match step.role {
                // The forward's start states, no output, and nothing of a pre-scan.
                Role::States => values.without(&["o", "ht", "segment_state", "m"]),
                Role::AdjointPreScan => adjoint(&values, binder).without(&["dht", "dv", "dh", "dh0", "start"]),
                Role::Adjoint => adjoint(&values, binder).without(&["segment_state"]),
                Role::AdjointCompose => adjoint(&values, binder),
                _ => shared(problem, step, &values, view, args.cu_seqlens.as_ref(), binder),
            };
            launch(step, &of_role, binder)?;
        }
        Ok(())
    }

    #[cfg(feature = "reference")]
    fn bind_reference<'a>(&self, memory: Arc<HostMemory>, args: Self::Args<'a>) -> Result<HostWork<'a>> {
        let problem = self.0.clone();
        Ok(Box::new(move || super::reference::backward(&problem, &memory, &args)))
    }
}

/// Values of the stages that go from the last segment to the first: `start` is the gradient of a segment's final state.
fn adjoint(values: &Values, binder: &Binder<'_>) -> Values {
    let mut values = values.clone();
    values.point("start", binder.region("adjoint_start"));
    values
}
