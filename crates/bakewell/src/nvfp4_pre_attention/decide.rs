//! The pure planner: from problem, architecture and SM count to schedules, geometry and workspace.

use std::fmt;

use bakewell_core::architecture::Table;
use bakewell_core::program::program_name;
use bakewell_core::route::{Considered, Facts, Route, choose};
use bakewell_core::schedule::Schedule;
use bakewell_core::schedule::nvfp4_pre_attention::norm::{Norm, ROWS_PER_CTA};
use bakewell_core::schedule::nvfp4_pre_attention::{Choice, SCALE_TILE_ROWS, facts};
use bakewell_core::{Arch, Architecture, Error, LaunchConfig, Operation, Result};

use super::Nvfp4PreAttention;
use super::gemm::Gemm;
use crate::plan::{check_sm_count, count, describe};
use crate::workspace::WorkspaceLayout;

/// What a plan is: everything about its launches but the tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Architecture of the programs.
    pub arch: Arch,
    /// Schedule of the first launch.
    pub norm: &'static Norm,
    /// Schedule of the second launch.
    pub gemm: Gemm,
    /// Geometry of both; `None` for an empty problem, which launches nothing.
    pub launches: Option<Launches>,
    /// What the second kernel reads besides the tensors of the call, written by the first.
    pub workspace: WorkspaceLayout,
    /// Tensors that a launch would copy. This operation copies none.
    pub copies: Vec<String>,
}

/// Geometry of the two launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launches {
    /// The first.
    pub norm: LaunchConfig,
    /// The second.
    pub gemm: LaunchConfig,
}

impl Decision {
    /// Names of the programs: `sm103/nvfp4_pre_attention-norm_h5376`, then the GEMM's.
    pub fn programs(&self) -> [String; 2] {
        let name = |schedule: &dyn Schedule| program_name(self.arch, schedule.operation(), &schedule.variant());
        [name(self.norm), name(self.gemm.schedule())]
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [norm, gemm] = self.programs();
        let programs = match &self.launches {
            Some(launches) => format!("{norm}: {}; {gemm}", launches.norm),
            None => format!("{norm}, {gemm}"),
        };
        let launch = self.launches.map(|launches| launches.gemm);
        describe(f, &programs, launch.as_ref(), "two launches", &self.workspace, &self.copies)
    }
}

/// Plans a problem for a device with `sm_count` SMs of an architecture. Pure: equal arguments give equal decisions.
///
/// # Errors
/// [`Error::Argument`] for a problem that breaks the contract or needs more CTAs than a grid has,
/// [`Error::NoProgram`] when the architecture has none.
pub fn decide(problem: &Nvfp4PreAttention, architecture: &'static Architecture, sm_count: u32) -> Result<Decision> {
    problem.validate()?;
    check_sm_count(sm_count)?;
    let arch = architecture.arch;
    let tables = &architecture.nvfp4_pre_attention;
    let facts = facts(problem, sm_count);
    let norm = chosen(&tables.norm, &facts, |norm, choice| norm.name == choice.schedule)
        .ok_or_else(|| no_program(architecture, "the norm of any problem"))?;
    let gemm = Gemm::choose(tables, &facts, problem.out_format)
        .ok_or_else(|| no_program(architecture, "the GEMM of any problem"))?;
    let launches = match problem.is_empty() {
        true => None,
        false => Some(Launches { norm: norm_launch(problem, norm)?, gemm: gemm.launch(problem, sm_count)? }),
    };
    let preparation = gemm.preparation(problem);
    for launch in launches.iter().flat_map(|launches| [launches.norm, launches.gemm]).chain(preparation) {
        launch.validate(arch)?;
    }
    let workspace = if launches.is_some() { gemm.workspace(problem)? } else { WorkspaceLayout::default() };
    Ok(Decision { arch, norm, gemm, launches, workspace, copies: Vec::new() })
}

/// Asks every row of the route tables: of the norm kernel, then of the GEMM. The first without an objection is taken.
///
/// # Errors
/// As [`decide()`], except [`Error::NoProgram`].
pub fn consider(
    problem: &Nvfp4PreAttention,
    architecture: &'static Architecture,
    sm_count: u32,
) -> Result<Vec<Considered>> {
    problem.validate()?;
    check_sm_count(sm_count)?;
    let facts = facts(problem, sm_count);
    let tables = &architecture.nvfp4_pre_attention;
    let say = |table: &'static str, route: &'static Route<Choice>| Considered {
        table,
        when: route.when,
        schedule: route.then.schedule,
        details: String::new(),
        objection: route.objection(&facts).map(|bound| format!("needs {bound}")),
    };
    let norm = tables.norm.routes.iter().map(|route| say("norm", route));
    let gemm = tables.tcgen05.routes.iter().chain(tables.wgmma.routes).map(|route| say("GEMM", route));
    Ok(norm.chain(gemm).collect())
}

fn facts(problem: &Nvfp4PreAttention, sm_count: u32) -> Facts {
    /// Three stages of K = 256.
    const WINDOW: u64 = 768;
    Facts(vec![
        (facts::TOKENS, problem.tokens),
        (facts::HIDDEN, problem.hidden),
        (facts::K_TAIL, problem.hidden % WINDOW),
        (facts::HEADS, problem.heads),
        (facts::DESTINATIONS, problem.destinations),
        (facts::ROPE_DIM, problem.rope_dim),
        (facts::ROW_BYTES, problem.out_format.row_bytes().into()),
        (facts::SM_COUNT, sm_count.into()),
    ])
}

/// The schedule that a table's route names.
pub(super) fn chosen<S>(
    table: &Table<S, Choice>,
    facts: &Facts,
    is: impl Fn(&S, Choice) -> bool,
) -> Option<&'static S> {
    let choice = choose(table.routes, facts)?.then;
    table.schedules.iter().find(|schedule| is(schedule, choice))
}

fn norm_launch(problem: &Nvfp4PreAttention, norm: &Norm) -> Result<LaunchConfig> {
    let rows = problem.tokens.next_multiple_of(SCALE_TILE_ROWS.into());
    Ok(config(norm, [ctas(rows / u64::from(ROWS_PER_CTA))?, 1, 1], 1))
}

/// A number of CTAs in x.
pub(super) fn ctas(value: u64) -> Result<u32> {
    count("tokens", value, LaunchConfig::MAX_GRID[0], "CTAs")
}

/// Geometry of a launch of a schedule's program.
pub(super) fn config(schedule: &dyn Schedule, grid: [u32; 3], cluster: u32) -> LaunchConfig {
    let budgets = schedule.budgets();
    LaunchConfig {
        grid,
        cluster: [cluster, 1, 1],
        block: budgets.threads,
        dynamic_shared_bytes: budgets.dynamic_shared_bytes,
        programmatic_serialization: false,
    }
}

fn no_program(architecture: &Architecture, wanted: &str) -> Error {
    let available = architecture.nvfp4_pre_attention.schedules().map(|schedule| schedule.variant());
    Error::no_program(Operation::Nvfp4PreAttention, architecture.arch, wanted, available)
}
