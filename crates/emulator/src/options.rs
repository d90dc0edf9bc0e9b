//! What can be chosen: seed, completion times, checks, numerics, hooks.

use std::sync::Arc;

use crate::async_engine::CompletionPolicy;
use crate::check::Observer;
use crate::decode::Program;
use crate::isa::Target;
use crate::machine::LaunchShape;
use crate::numerics::approx::Approximation;

/// How tensor-core sums are modelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MatrixNumerics {
    /// As measured or documented for the target. The default, and what evidence about a program rests on.
    #[default]
    Hardware,
    /// Exact products, one rounding to f32 per instruction: several times faster where products dominate, for tests
    /// whose subject is order, addresses or control flow.
    Plain,
}

/// Which checkers run. Turning one off never changes results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Checks {
    /// Reads of bytes that nobody wrote.
    pub uninitialised: bool,
    /// Happens-before: races, missing fences, lifetime.
    pub order: bool,
    /// Warnings about missing `tcgen05.fence`, which some compilers never emit.
    pub tensor_fences: bool,
    /// Warnings about generic reads of shared memory that an asynchronous copy overwrites without a proxy fence
    /// between.
    pub read_fences: bool,
    /// Warnings about mbarriers that a CTA leaves in a phase with some of its arrivals and not all (MB11). A program
    /// may mean it: nobody waits for the phase.
    pub open_phases: bool,
}

impl Default for Checks {
    fn default() -> Self {
        Checks { uninitialised: true, order: true, tensor_fences: false, read_fences: false, open_phases: false }
    }
}

/// Makes the checker of one cluster.
pub type ObserverFactory = Arc<dyn Fn(&LaunchShape, &Program) -> Box<dyn Observer> + Send + Sync>;

/// Changes the text of a program of this name.
pub type Patch = Arc<dyn Fn(&str, String) -> String + Send + Sync>;

/// The first cluster of a launch that runs, from the kernel's name and the number of clusters.
pub type FirstCluster = Arc<dyn Fn(&str, u64) -> u64 + Send + Sync>;

/// Options of an emulator.
#[derive(Clone)]
pub struct Options {
    /// Seed of every choice.
    pub seed: u64,
    /// When asynchronous work completes.
    pub policy: CompletionPolicy,
    /// Host threads; 1 makes whole launches deterministic, also between clusters.
    pub workers: usize,
    /// Checkers.
    pub checks: Checks,
    /// SMs of the device.
    pub sm_count: u32,
    /// Tensor-core sums.
    pub numerics: MatrixNumerics,
    /// Approximate functions, perturbed from a seed or not.
    pub approximation: Approximation,
    /// Most warp instructions of one cluster: beyond, a launch ends with [`Kind::InstructionLimit`](crate::Kind). A
    /// core executes some 20 to 40 million a second.
    pub instruction_limit: u64,
    /// Counts how often each line is executed: [`Report::executed`](crate::Report::executed).
    pub profile: bool,
    /// Warnings fail a launch of [`EmulatedRuntime`](crate::EmulatedRuntime) as faults do, but those about values of
    /// the inputs.
    pub deny_warnings: bool,
    /// A launch ends with its first finding, warnings included: for tests that ask whether there is one.
    pub stop_at_finding: bool,
    /// Changes the PTX of a program, by name, before [`EmulatedRuntime`](crate::EmulatedRuntime) loads it: for tests
    /// that damage one.
    pub patch: Option<Patch>,
    /// Leaves out the first clusters of launches that are too large to run as a whole.
    pub first_cluster: Option<FirstCluster>,
    /// Makes a checker for each cluster in place of the one that `checks.order` asks for.
    pub observer: Option<ObserverFactory>,
}

impl Options {
    /// Seed 0, random completion, all host threads, all checks, the target's SM count.
    pub fn new(target: Target) -> Options {
        Options {
            seed: 0,
            policy: CompletionPolicy::Random,
            workers: rayon::current_num_threads(),
            checks: Checks::default(),
            sm_count: target.sm_count(),
            numerics: MatrixNumerics::Hardware,
            approximation: Approximation::default(),
            instruction_limit: 20_000_000_000,
            profile: false,
            deny_warnings: false,
            stop_at_finding: false,
            patch: None,
            first_cluster: None,
            observer: None,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("seed", &self.seed)
            .field("policy", &self.policy)
            .field("workers", &self.workers)
            .field("checks", &self.checks)
            .field("sm_count", &self.sm_count)
            .field("numerics", &self.numerics)
            .finish_non_exhaustive()
    }
}
