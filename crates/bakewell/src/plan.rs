//! From a problem to a launch: the one way that every operation goes.
//!
//! An operation implements [`Problem`] with what is its own: the pure decision, the checks on its tensors, its launches
//! and their parameter blocks, and its plain loops for the reference. [`Plan`] does what is the same for all.

use std::fmt;
use std::sync::Arc;

use bakewell_core::error::Property;
use bakewell_core::program::program_name;
use bakewell_core::route::Considered;
use bakewell_core::schedule::Schedule;
use bakewell_core::{Architecture, Error, LaunchConfig, Operation, Result, Stream};
#[cfg(feature = "reference")]
use bakewell_reference::HostMemory;

use crate::arguments::{Access, Argument, Arguments, check_placement, check_workspace};
use crate::binder::Binder;
use crate::bound::Bound;
#[cfg(feature = "reference")]
use crate::bound::HostWork;
use crate::device::{Device, Engine, Programs};
use crate::workspace::WorkspaceLayout;

/// A problem of some operation: plain data that can be planned. The operations of this crate implement it.
pub trait Problem: sealed::Sealed + Clone + fmt::Debug + Send + Sync + 'static {
    /// The operation.
    const OPERATION: Operation;

    /// What is decided about a launch before there are tensors. `Display` is one line.
    type Decision: Clone + fmt::Debug + fmt::Display + Send + Sync;

    /// The tensors of a call.
    type Args<'a>: Arguments<'a>;

    /// Checks what does not depend on a device.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the field.
    fn validate(&self) -> Result<()>;

    /// Plans for a device with `sm_count` SMs of an architecture. Pure: equal arguments give equal decisions.
    ///
    /// # Errors
    /// As [`Problem::validate`], and [`Error::NoProgram`] for a problem that no
    /// program serves.
    fn decide(&self, architecture: &'static Architecture, sm_count: u32) -> Result<Self::Decision>;

    /// Asks every row of the route tables, table by table. None where an operation does not say why a row is not taken.
    ///
    /// # Errors
    /// As [`Problem::decide`], except [`Error::NoProgram`].
    fn consider(&self, _architecture: &'static Architecture, _sm_count: u32) -> Result<Vec<Considered>> {
        Ok(Vec::new())
    }

    /// The workspace of a decision; empty for an empty problem.
    fn workspace(decision: &Self::Decision) -> &WorkspaceLayout;

    /// Schedules of the programs that a launch runs, in order; none for an empty problem.
    fn schedules(decision: &Self::Decision) -> Vec<&'static dyn Schedule>;

    /// Schedules of the programs that binding runs, once, to prepare what launches read.
    fn preparations(_decision: &Self::Decision) -> Vec<&'static dyn Schedule> {
        Vec::new()
    }

    /// Checks type, shape and layout of every tensor but the workspace. Where tensors lie and what they overlap is
    /// checked afterwards, for all operations alike.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the tensor.
    fn check(&self, args: &Self::Args<'_>) -> Result<()>;

    /// Checks what a tensor carries of the plan that it was made for, after [`Problem::check`]. There is no decision on
    /// the reference.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the tensor.
    fn check_planned(&self, _decision: Option<&Self::Decision>, _args: &Self::Args<'_>) -> Result<()> {
        Ok(())
    }

    /// Adds the launches of a call, in order, and does once what must be done before the first. Nothing is added for an
    /// empty problem.
    ///
    /// # Errors
    /// Those of the binder.
    fn bind(&self, decision: &Self::Decision, args: &Self::Args<'_>, binder: &mut Binder<'_>) -> Result<()>;

    /// The call as plain loops over host memory.
    ///
    /// # Errors
    /// [`Error::Argument`] for values that a binding reads.
    #[cfg(feature = "reference")]
    fn bind_reference<'a>(&self, memory: Arc<HostMemory>, args: Self::Args<'a>) -> Result<HostWork<'a>>;
}

pub(crate) mod sealed {
    /// Keeps [`Problem`](super::Problem) to this crate, so that features may add methods to it.
    pub trait Sealed {}
}

/// A planned problem on a device. Reusable for any number of bindings.
///
/// `Display` is the route in one line.
#[derive(Clone, Debug)]
pub struct Plan<P: Problem> {
    problem: P,
    device: Device,
    route: Route<P::Decision>,
}

/// Which engine, and what was decided for it.
#[derive(Clone, Debug)]
enum Route<D> {
    #[cfg(feature = "reference")]
    Reference(Arc<HostMemory>),
    Programs(Arc<Programs>, D),
}

impl<P: Problem> Plan<P> {
    /// Decides on a device with programs; the reference takes every valid problem.
    pub(crate) fn new(problem: &P, device: &Device) -> Result<Plan<P>> {
        let _span = tracing::debug_span!("plan", operation = P::OPERATION.name()).entered();
        let route = match &device.engine {
            #[cfg(feature = "reference")]
            Engine::Reference(memory) => {
                problem.validate()?;
                Route::Reference(memory.clone())
            }
            Engine::Programs(programs) => {
                let decision = problem.decide(programs.compiled.architecture, programs.runtime.sm_count())?;
                Route::Programs(programs.clone(), decision)
            }
        };
        let plan = Plan { problem: problem.clone(), device: device.clone(), route };
        tracing::debug!(%device, "{plan}");
        Ok(plan)
    }

    /// The problem.
    pub fn problem(&self) -> &P {
        &self.problem
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Program, geometry and workspace; `None` on the reference, which has no programs.
    pub fn decision(&self) -> Option<&P::Decision> {
        match &self.route {
            #[cfg(feature = "reference")]
            Route::Reference(_) => None,
            Route::Programs(_, decision) => Some(decision),
        }
    }

    /// Schedules of the programs that a launch runs; none on the reference and for an empty problem.
    pub fn schedules(&self) -> Vec<&'static dyn Schedule> {
        self.decision().map(P::schedules).unwrap_or_default()
    }

    /// Schedules of the programs that binding runs; none on the reference and for an empty problem.
    pub fn preparations(&self) -> Vec<&'static dyn Schedule> {
        self.decision().map(P::preparations).unwrap_or_default()
    }

    /// Names of the programs that a launch runs: `sm90/gqa_decode-stream_g4_d128_f16`.
    pub fn programs(&self) -> Vec<String> {
        let arch = self.device.arch();
        let name = |schedule: &dyn Schedule| Some(program_name(arch?, schedule.operation(), &schedule.variant()));
        self.schedules().into_iter().filter_map(name).collect()
    }

    /// Bytes of workspace that a binding needs.
    pub fn workspace_bytes(&self) -> u64 {
        self.decision().map_or(0, |decision| P::workspace(decision).bytes)
    }

    /// Checks the tensors, takes or allocates the workspace, loads the programs and writes their parameter blocks.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the tensor,
    /// [`Error::NoProgram`] and [`Error::Corrupt`] about
    /// a program, or the device's error.
    pub fn bind<'a>(&self, args: P::Args<'a>) -> Result<Bound<'a>> {
        self.check(&args)?;
        match &self.route {
            #[cfg(feature = "reference")]
            Route::Reference(memory) => {
                let work = self.problem.bind_reference(memory.clone(), args)?;
                Ok(Bound::host(P::OPERATION, work))
            }
            Route::Programs(programs, decision) => {
                let mut binder = Binder::new(programs, P::workspace(decision), args.workspace())?;
                self.problem.bind(decision, &args, &mut binder)?;
                Ok(binder.finish(P::OPERATION))
            }
        }
    }

    /// Binds and launches.
    ///
    /// # Errors
    /// As [`Plan::bind`] and [`Bound::launch`].
    pub fn launch(&self, stream: Stream, args: P::Args<'_>) -> Result<()> {
        self.bind(args)?.launch(stream)
    }

    fn check(&self, args: &P::Args<'_>) -> Result<()> {
        self.problem.check(args)?;
        self.problem.check_planned(self.decision(), args)?;
        let mut arguments = args.tensors();
        if let Some(workspace) = args.workspace() {
            check_workspace(workspace, self.workspace_bytes())?;
            arguments.push(Argument { name: "workspace", view: workspace, access: Access::Write });
        }
        check_placement(&*self.device.memory(), &arguments)
    }
}

impl<P: Problem> fmt::Display for Plan<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decision() {
            Some(decision) => fmt::Display::fmt(decision, f),
            None => f.write_str("reference: plain loops on the host, no workspace, no copies"),
        }
    }
}

/// Refuses a device without SMs.
pub(crate) fn check_sm_count(sm_count: u32) -> Result<()> {
    if sm_count == 0 { Err(Error::value("sm_count", "at least 1", 0)) } else { Ok(()) }
}

/// A count of what a problem makes (`of_what`) that kernels hold, or a grid takes, up to `limit`.
pub(crate) fn count(argument: &'static str, value: u64, limit: u32, of_what: &str) -> Result<u32> {
    let fits = u32::try_from(value).ok().filter(|&value| value <= limit);
    fits.ok_or_else(|| Error::argument(argument, Property::Size, format!("at most {limit} {of_what}"), value))
}

/// Writes a decision in one line: programs, launches (none for an empty problem), what the operation adds, workspace,
/// copies.
pub(crate) fn describe(
    f: &mut fmt::Formatter<'_>,
    program: &str,
    launch: Option<&LaunchConfig>,
    details: impl fmt::Display,
    workspace: &WorkspaceLayout,
    copies: &[String],
) -> fmt::Result {
    match launch {
        Some(launch) => write!(f, "{program}: {launch}, {details}, {workspace}")?,
        None => write!(f, "{program}: empty, launches nothing")?,
    }
    match copies {
        [] => f.write_str(", no copies"),
        copies => write!(f, ", copies {}", copies.join(", ")),
    }
}
