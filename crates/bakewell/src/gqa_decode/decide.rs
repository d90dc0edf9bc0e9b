//! The pure planner: from problem, architecture and SM count to program, geometry and workspace.

use std::fmt;

use bakewell_core::program::program_name;
use bakewell_core::route::{Considered, Facts, Route};
use bakewell_core::schedule::Schedule as _;
use bakewell_core::schedule::gqa_decode::{Choice, GqaDecode as Schedule, facts};
use bakewell_core::{Arch, Architecture, DType, Error, LaunchConfig, Operation, Result};

use super::GqaDecode;
use crate::plan::{check_sm_count, count, describe};
use crate::workspace::WorkspaceLayout;

/// What a plan is: everything about a launch but the tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Architecture of the program.
    pub arch: Arch,
    /// Schedule of the program.
    pub schedule: &'static Schedule,
    /// CTAs per request and KV head: clusters times CTAs of a cluster.
    pub splits: u32,
    /// CTAs of a cluster.
    pub cluster: u32,
    /// Tiles of each split that the L2 is asked for while earlier grids still run.
    pub early_tiles: u32,
    /// Geometry; `None` for an empty problem, which launches nothing.
    pub launch: Option<LaunchConfig>,
    /// `partial_out`, `partial_max`, `partial_sum` and `completed` where clusters merge through global memory.
    pub workspace: WorkspaceLayout,
    /// Tensors that a launch would copy. This operation copies none.
    pub copies: Vec<String>,
}

impl Decision {
    /// Name of the program: `sm90/gqa_decode-stream_g4_d128_f16`.
    pub fn program(&self) -> String {
        program_name(self.arch, Operation::GqaDecode, &self.schedule.variant())
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let details = format_args!("splits {}", self.splits);
        describe(f, &self.program(), self.launch.as_ref(), details, &self.workspace, &self.copies)
    }
}

/// Asks every row of the route table. The first without an objection is taken.
///
/// # Errors
/// As [`decide()`], except [`Error::NoProgram`].
pub fn consider(problem: &GqaDecode, architecture: &'static Architecture, sm_count: u32) -> Result<Vec<Considered>> {
    let facts = checked_facts(problem, sm_count)?;
    let considered = |route: &'static Route<Choice>| Considered {
        table: "decode",
        when: route.when,
        schedule: route.then.schedule,
        details: route.then.details(),
        objection: verdict(problem, architecture, &facts, route, sm_count).err(),
    };
    Ok(architecture.gqa_decode.routes.iter().map(considered).collect())
}

/// What the rows of the route table are about, of a problem that was checked.
fn checked_facts(problem: &GqaDecode, sm_count: u32) -> Result<Facts> {
    problem.validate()?;
    check_sm_count(sm_count)?;
    Ok(Facts(vec![
        (facts::BATCH, problem.batch),
        (facts::CAPACITY, problem.capacity),
        (facts::KV_HEADS, problem.kv_heads),
        (facts::ROWS, problem.batch.saturating_mul(problem.kv_heads)),
        (facts::SM_COUNT, u64::from(sm_count)),
        (facts::REQUESTED_SPLITS, problem.num_splits.map_or(0, u64::from)),
    ]))
}

/// The schedule that a row leads to, or why the row does not serve the problem.
fn verdict(
    problem: &GqaDecode,
    architecture: &'static Architecture,
    facts: &Facts,
    route: &Route<Choice>,
    sm_count: u32,
) -> Result<&'static Schedule, String> {
    if let Some(bound) = route.objection(facts) {
        return Err(format!("needs {bound}"));
    }
    let name = route.then.schedule;
    let group_size = problem.group_size().map_err(|error| error.to_string())?;
    let mut schedules = architecture.gqa_decode.schedules.iter().filter(|schedule| schedule.name == name);
    let schedule = schedules
        .find(|schedule| schedule.serves(group_size, problem.head_dim, problem.dtype))
        .ok_or_else(|| format!("{name} is not compiled for {}", wanted(problem, group_size)))?;
    let (_, splits) = split(problem, &route.then, sm_count);
    match schedule.max_capacity(splits) {
        Some(keys) if problem.capacity > keys => Err(format!("{splits} CTAs of {name} read {keys} keys")),
        _ => Ok(schedule),
    }
}

/// Plans a problem for a device with `sm_count` SMs of an architecture. Pure: equal arguments give equal decisions.
///
/// # Errors
/// [`Error::Argument`] for a problem that breaks the contract or does not fit a grid, [`Error::NoProgram`] when none of
/// the architecture's programs serves it.
pub fn decide(problem: &GqaDecode, architecture: &'static Architecture, sm_count: u32) -> Result<Decision> {
    let facts = checked_facts(problem, sm_count)?;
    let serves =
        |route: &'static Route<Choice>| Some((route, verdict(problem, architecture, &facts, route, sm_count).ok()?));
    let Some((route, schedule)) = architecture.gqa_decode.routes.iter().find_map(serves) else {
        return Err(no_program(problem, architecture));
    };
    let (cluster, splits) = split(problem, &route.then, sm_count);
    Ok(Decision {
        arch: architecture.arch,
        schedule,
        splits,
        cluster,
        early_tiles: route.then.early_tiles,
        launch: geometry(problem, architecture.arch, schedule, cluster, splits)?,
        workspace: workspace(problem, splits / cluster)?,
        copies: Vec::new(),
    })
}

/// CTAs of a cluster, and CTAs per request and KV head. A caller's split count keeps the cluster if it is a multiple.
fn split(problem: &GqaDecode, choice: &Choice, sm_count: u32) -> (u32, u32) {
    match problem.num_splits {
        Some(splits) if splits.is_multiple_of(choice.cluster) => (choice.cluster, splits),
        Some(splits) => (1, splits),
        None => {
            let rows = problem.batch.saturating_mul(problem.kv_heads);
            (choice.cluster, choice.cluster * choice.global_splits(rows, problem.capacity, sm_count))
        }
    }
}

/// Grid `[batch, splits, kv_heads]`; the CTAs of a cluster are neighbouring splits.
fn geometry(
    problem: &GqaDecode,
    arch: Arch,
    schedule: &Schedule,
    cluster: u32,
    splits: u32,
) -> Result<Option<LaunchConfig>> {
    if problem.batch == 0 {
        return Ok(None);
    }
    let [requests, most_splits, heads] = LaunchConfig::MAX_GRID;
    let config = LaunchConfig {
        grid: [
            count("batch", problem.batch, requests, "requests")?,
            count("num_splits", splits.into(), most_splits, "splits")?,
            count("kv_heads", problem.kv_heads, heads, "heads")?,
        ],
        cluster: [1, cluster, 1],
        block: schedule.threads,
        dynamic_shared_bytes: schedule.dynamic_shared_bytes(),
        programmatic_serialization: schedule.pdl,
    };
    config.validate(arch)?;
    Ok(Some(config))
}

/// Global partials, one per cluster; none when a single cluster has all keys.
fn workspace(problem: &GqaDecode, partials: u32) -> Result<WorkspaceLayout> {
    let mut layout = WorkspaceLayout::default();
    if partials > 1 && problem.batch > 0 {
        let [batch, heads, head_dim] = problem.q_shape();
        let partials = u64::from(partials);
        layout.push("partial_out", DType::F32, &[batch, heads, partials, head_dim])?;
        layout.push("partial_max", DType::F32, &[batch, heads, partials])?;
        layout.push("partial_sum", DType::F32, &[batch, heads, partials])?;
        layout.push("completed", DType::U32, &[batch, problem.kv_heads])?;
    }
    Ok(layout)
}

fn wanted(problem: &GqaDecode, group_size: u64) -> String {
    format!("group_size {group_size}, head_dim {}, {}", problem.head_dim, problem.dtype)
}

fn no_program(problem: &GqaDecode, architecture: &Architecture) -> Error {
    let schedules = architecture.gqa_decode.schedules.iter();
    let available =
        schedules.map(|s| format!("group_size {}, head_dim {}, {}", s.group_size, s.head_dim, s.element.dtype()));
    let wanted = wanted(problem, problem.query_heads / problem.kv_heads);
    Error::no_program(Operation::GqaDecode, architecture.arch, wanted, available)
}
