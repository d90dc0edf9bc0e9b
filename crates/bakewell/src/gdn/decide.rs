//! The pure planner: from problem, architecture and SM count to stages, geometry, tape and workspace.

use std::fmt;
use std::sync::Arc;

use bakewell_core::program::program_name;
use bakewell_core::route::{Considered, Facts, Route, choose};
use bakewell_core::schedule::Schedule as _;
use bakewell_core::schedule::gdn::{
    CHUNK_TOKENS, Choice, Chunk, Engine, Gdn as Schedule, Segment, Sequence, Stage, facts, prepare,
};
use bakewell_core::{Arch, Architecture, DType, Error, LaunchConfig, Operation, Result};

use super::split::{Load, segment_chunks};
use super::tables::Tables;
use super::tape::{Content, Planned};
use super::{Gdn, Input};
use crate::plan::check_sm_count;
use crate::workspace::WorkspaceLayout;

/// One of the two calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Outputs and final states.
    Forward,
    /// Gradients.
    Backward,
}

impl Pass {
    /// The inputs that the programs of a call read.
    pub(super) const fn inputs(self) -> &'static [Input] {
        match self {
            Pass::Forward => &[Input::Q, Input::K, Input::V, Input::G, Input::Beta],
            Pass::Backward => &[Input::Q, Input::K, Input::V, Input::Beta, Input::Do],
        }
    }
}

/// What a launch is for. One program may play several parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Copies an input that cannot be read in place.
    Copy(Input),
    /// Builds the tables from device offsets.
    Tables,
    /// Row norms, gate prefix, inverse of every chunk.
    Prepare,
    /// What every segment does to its start state.
    PreScan,
    /// Start states of segments.
    Compose,
    /// Outputs, and the states of the tape.
    Scan,
    /// The states of the tape again.
    States,
    /// What every segment does to the gradient of its final state.
    AdjointPreScan,
    /// Gradients of the final states of segments.
    AdjointCompose,
    /// Gradients of states.
    Adjoint,
    /// Gradients of the inputs.
    Tail,
}

impl Role {
    /// The stage of its program.
    pub const fn stage(self) -> Stage {
        match self {
            Role::Copy(_) => Stage::Copy,
            Role::Tables => Stage::Tables,
            Role::Prepare => Stage::Prepare,
            Role::PreScan => Stage::PreScan,
            Role::States => Stage::States,
            Role::Compose | Role::AdjointCompose => Stage::Compose,
            Role::Scan => Stage::Scan,
            Role::AdjointPreScan | Role::Adjoint => Stage::Adjoint,
            Role::Tail => Stage::Tail,
        }
    }
}

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What it is for.
    pub role: Role,
    /// Schedule of its program.
    pub schedule: &'static Schedule,
    /// Geometry.
    pub config: LaunchConfig,
}

/// How tokens are divided, for both calls of a problem alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Division {
    /// Entries of the chunk table.
    pub chunks: u64,
    /// Entries of the segment table.
    pub segments: u64,
    /// Sequences.
    pub sequences: u64,
    /// Longest segment in chunks; 0 for whole sequences.
    pub segment_chunks: u64,
    /// Whether any sequence may have more than one segment.
    pub cut: bool,
    /// The tables; `None` where the device builds them, into as many entries as its offsets may need.
    pub tables: Option<Arc<Tables>>,
}

/// What a plan is: everything about a call but the tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Architecture of the programs.
    pub arch: Arch,
    /// Call.
    pub pass: Pass,
    /// Engine of the scans.
    pub engine: Engine,
    /// Chunks, segments, sequences.
    pub division: Division,
    /// Launches in order; none when there is nothing to write.
    pub steps: Vec<Step>,
    /// What identifies the tape.
    pub content: Content,
    /// The tape; empty for a forward that leaves none.
    pub tape: WorkspaceLayout,
    /// The workspace.
    pub workspace: WorkspaceLayout,
    /// Tensors that a launch copies.
    pub copies: Vec<String>,
}

impl Decision {
    /// Names of the programs in the order of their launches: `sm90/gdn-prepare`.
    pub fn programs(&self) -> Vec<String> {
        self.steps.iter().map(|step| self.program(step)).collect()
    }

    fn program(&self, step: &Step) -> String {
        program_name(self.arch, Operation::Gdn, &step.schedule.variant())
    }

    /// The launch of a role.
    pub fn step(&self, role: Role) -> Option<&Step> {
        self.steps.iter().find(|step| step.role == role)
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pass = if self.pass == Pass::Forward { "forward" } else { "backward" };
        write!(f, "{}/{} {pass}: ", self.arch, Operation::Gdn)?;
        if self.steps.is_empty() {
            write!(f, "empty, launches nothing")?;
        }
        for (i, Step { role, schedule, config }) in self.steps.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{role:?} {} x{}", schedule.variant(), config.ctas())?;
        }
        let Division { chunks, segments, sequences, segment_chunks, cut, tables } = &self.division;
        write!(f, "; {sequences} sequences in {chunks} chunks")?;
        match cut {
            true => write!(f, " and {segments} segments of at most {segment_chunks} chunks")?,
            false => write!(f, ", not cut")?,
        }
        if tables.is_none() {
            write!(f, ", tables from the device")?;
        }
        write!(f, "; tape {} bytes, {}, ", self.tape.bytes, self.workspace)?;
        match self.copies.as_slice() {
            [] => f.write_str("no copies"),
            copies => write!(f, "copies {}", copies.join(", ")),
        }
    }
}

/// Plans one call of a problem for a device with `sm_count` SMs of an architecture. Pure: equal arguments give equal
/// decisions, and both calls of a problem get the same division and tape.
///
/// # Errors
/// [`Error::Argument`] for a problem that breaks the contract, [`Error::NoProgram`] when a stage has none.
pub fn decide(problem: &Gdn, pass: Pass, architecture: &'static Architecture, sm_count: u32) -> Result<Decision> {
    problem.validate()?;
    check_sm_count(sm_count)?;
    if pass == Pass::Backward && !problem.training {
        return Err(Error::value("training", "a problem whose forward leaves a tape", false));
    }
    let planner = Planner::new(problem, architecture, sm_count)?;
    let division = planner.divide()?;
    let tape = if problem.training { planner.tape(&division)? } else { WorkspaceLayout::default() };
    let steps = planner.steps(pass, &division)?;
    let workspace = if steps.is_empty() { WorkspaceLayout::default() } else { planner.workspace(pass, &division)? };
    let copies = steps.iter().filter_map(|step| match step.role {
        Role::Copy(input) => Some(input.name().to_owned()),
        _ => None,
    });
    Ok(Decision {
        arch: architecture.arch,
        pass,
        engine: planner.choice.engine,
        content: Content::new(
            problem,
            Some(Planned {
                engine: planner.choice.engine,
                chunks: division.chunks,
                segments: division.segments,
                segment_chunks: if division.cut { division.segment_chunks } else { 0 },
                // A device that builds the tables keeps the caller's order.
                longest_first: division.cut && division.tables.is_some() && problem.pins.longest_first,
                forget_after: if division.cut && planner.forgets() { problem.pins.forget_after() } else { 0 },
            }),
        ),
        copies: copies.collect(),
        steps,
        tape,
        workspace,
        division,
    })
}

/// Asks every row of the route table, which chooses the engine of both calls. The first without an objection is taken.
///
/// # Errors
/// [`Error::Argument`] for a problem that breaks the contract.
pub fn consider(problem: &Gdn, architecture: &'static Architecture, sm_count: u32) -> Result<Vec<Considered>> {
    problem.validate()?;
    check_sm_count(sm_count)?;
    let facts = facts(problem, sm_count);
    let considered = |route: &'static Route<Choice>| Considered {
        table: "engine",
        when: route.when,
        schedule: route.then.engine.name(),
        details: String::new(),
        objection: match problem.pins.engine {
            Some(pin) if pin == route.then.engine => None,
            Some(pin) => Some(format!("the problem is pinned to {}", pin.name())),
            None => route.objection(&facts).map(|bound| format!("needs {bound}")),
        },
    };
    Ok(architecture.gdn.routes.iter().map(considered).collect())
}

fn facts(problem: &Gdn, sm_count: u32) -> Facts {
    Facts(vec![
        (facts::TOKENS, problem.total_tokens()),
        (facts::SEQUENCES, problem.sequence_count()),
        (facts::HEADS, problem.heads),
        (facts::VALUE_HEADS, problem.value_heads),
        (facts::SM_COUNT, sm_count.into()),
    ])
}

/// A problem on an architecture, with the engine chosen.
struct Planner<'p> {
    problem: &'p Gdn,
    architecture: &'static Architecture,
    sm_count: u64,
    choice: Choice,
}

impl Planner<'_> {
    fn new<'p>(problem: &'p Gdn, architecture: &'static Architecture, sm_count: u32) -> Result<Planner<'p>> {
        let facts = facts(problem, sm_count);
        let routes = architecture.gdn.routes;
        let choice = match problem.pins.engine {
            None => choose(routes, &facts),
            Some(engine) => routes.iter().find(|route| route.then.engine == engine),
        };
        let wanted = || problem.pins.engine.map_or("any engine".to_owned(), |engine| format!("engine {engine:?}"));
        let choice = choice.ok_or_else(|| no_program(architecture, wanted()))?.then;
        Ok(Planner { problem, architecture, sm_count: sm_count.into(), choice })
    }

    /// The program of a role whose CTAs come `ctas` at a time per value column split: as many splits as the SMs hold at
    /// once, or as the pin says. Of the engine, or of registers where the engine has none and bits may differ.
    fn program(&self, role: Role, ctas: u64) -> Result<&'static Schedule> {
        let (engine, stage) = (self.engine(role), self.stage(role));
        let mut found = self.programs(stage, engine);
        // States that are made again must be those of the scan.
        if found.is_empty() && role != Role::States {
            found = self.programs(stage, Engine::Registers);
        }
        let pinned = |schedule: &&&Schedule| Some(schedule.value_columns) == self.problem.pins.value_columns;
        let fits = |schedule: &&&Schedule| ctas * u64::from(schedule.value_splits()) <= self.sm_count;
        let chosen = found.iter().find(pinned).or_else(|| found.iter().rev().find(fits)).or(found.first());
        chosen.copied().ok_or_else(|| no_program(self.architecture, format!("{role:?} of engine {engine:?}")))
    }

    /// The program of the stage `prepare`: of the engine's or that on registers, the one with the most value heads to a
    /// CTA that divide those of a key head.
    fn prepare(&self) -> Result<&'static Schedule> {
        let group = self.problem.value_heads / self.problem.heads;
        let divides = |schedule: &&Schedule| group.is_multiple_of(prepare::value_heads(schedule).into());
        let engines = [self.choice.engine, Engine::Registers];
        let found = engines.into_iter().flat_map(|engine| self.programs(Stage::Prepare, engine)).filter(divides);
        let chosen = found.max_by_key(|schedule| prepare::value_heads(schedule));
        chosen.ok_or_else(|| no_program(self.architecture, format!("{:?} of {group} value heads", Role::Prepare)))
    }

    /// Pre-scans give what no other launch repeats: they are on registers where the engine has none.
    fn engine(&self, role: Role) -> Engine {
        match (role, self.choice.engine) {
            (Role::AdjointPreScan, _) | (Role::PreScan, Engine::Tcgen05) => Engine::Registers,
            _ => self.choice.engine,
        }
    }

    /// But on registers one program leaves a tape, with or without outputs, and another none. States and maps are of
    /// one program there.
    fn stage(&self, role: Role) -> Stage {
        let states = self.problem.training && self.problem.pins.save_state;
        match (role, self.engine(role)) {
            (Role::Scan, Engine::Wgmma | Engine::Tcgen05) if states => Stage::States,
            (Role::PreScan, Engine::Registers) => Stage::States,
            _ => role.stage(),
        }
    }

    /// Whether pre-scans may forget: their engine can, and keys have a norm of at most 1.
    fn forgets(&self) -> bool {
        self.choice.costs.remembered > 0 && self.problem.l2norm && self.problem.pins.forget_after() > 0
    }

    /// Programs of a stage, fewest value column splits first.
    fn programs(&self, stage: Stage, engine: Engine) -> Vec<&'static Schedule> {
        let of_stage = |schedule: &&Schedule| schedule.stage == stage && schedule.engine == engine;
        let mut found: Vec<_> = self.architecture.gdn.schedules.iter().filter(of_stage).collect();
        found.sort_by_key(|schedule| schedule.value_splits());
        found
    }

    fn divide(&self) -> Result<Division> {
        let problem = self.problem;
        let sequences = problem.sequence_count();
        let tokens = u64::from(CHUNK_TOKENS);
        let offsets = problem.sequences.offsets(problem.batch, problem.tokens);
        let chunks: Vec<u64> = match &offsets {
            Some(offsets) => offsets.windows(2).map(|pair| (pair[1] - pair[0]).div_ceil(tokens)).collect(),
            // As if one sequence had nearly all tokens.
            None => (0..sequences).map(|i| if i == 0 { problem.tokens / tokens + 1 } else { 1 }).collect(),
        };
        let segment_chunks = match problem.pins.segment_chunks {
            Some(pinned) => pinned.into(),
            None => self.segment_chunks(&chunks)?,
        };
        let longest = chunks.iter().copied().max().unwrap_or(0);
        let cut = segment_chunks > 0 && longest > segment_chunks;
        Ok(match offsets {
            Some(offsets) => {
                let tables = Tables::new(&offsets, segment_chunks, problem.pins.longest_first);
                let (chunks, segments) = (tables.chunks.len() as u64, tables.segments.len() as u64);
                Division { chunks, segments, sequences, segment_chunks, cut, tables: Some(Arc::new(tables)) }
            }
            None => {
                let chunks = problem.tokens / tokens + sequences;
                let segments = sequences + chunks.checked_div(segment_chunks).unwrap_or(0);
                Division { chunks, segments, sequences, segment_chunks, cut, tables: None }
            }
        })
    }

    fn segment_chunks(&self, chunks: &[u64]) -> Result<u64> {
        let value_heads = self.problem.value_heads;
        let load = |segments: u64, before: u64| -> Result<Load> {
            let scan = self.program(Role::Scan, segments * value_heads)?;
            let steps = self.choice.costs.scan_steps;
            let known = steps.iter().find(|(columns, _)| *columns == scan.value_columns).or(steps.first());
            let splits = u64::from(scan.value_splits());
            // Half of the CTAs of a pre-scan scan the values, half the identity, which may have nothing to do.
            let prescan_splits = self.program(Role::PreScan, 2 * before * value_heads)?.value_splits();
            let prescan_splits = u64::from(prescan_splits) * if self.forgets() { 1 } else { 2 };
            Ok(Load {
                step: known.map_or(0, |(_, nanoseconds)| *nanoseconds),
                rounds: (segments * value_heads * splits).div_ceil(self.sm_count),
                prescan_rounds: (before * value_heads * prescan_splits).div_ceil(self.sm_count),
            })
        };
        // Both programs exist or neither choice can be costed.
        load(1, 0)?;
        let known = |segments, before| load(segments, before).unwrap_or(Load { step: 0, rounds: 0, prescan_rounds: 0 });
        Ok(segment_chunks(chunks, &self.choice.costs, self.forgets(), known))
    }

    fn steps(&self, pass: Pass, division: &Division) -> Result<Vec<Step>> {
        let problem = self.problem;
        let Division { chunks, segments, cut, .. } = *division;
        let tokens = problem.total_tokens();
        let scans = segments * problem.value_heads;
        let states = if pass == Pass::Forward { problem.final_state } else { problem.initial_state };
        if tokens == 0 && !states {
            return Ok(Vec::new());
        }
        let mut steps = Vec::new();
        let mut push = |role, ctas: u64, per_split: u64| -> Result<()> {
            let (schedule, ctas) = match role {
                Role::Prepare => self.prepare().map(|one| (one, ctas / u64::from(prepare::value_heads(one))))?,
                _ => {
                    let schedule = self.program(role, ctas * per_split)?;
                    (schedule, ctas * per_split * u64::from(schedule.value_splits()))
                }
            };
            if let Some(config) = geometry(self.architecture.arch, schedule, ctas)? {
                steps.push(Step { role, schedule, config });
            }
            Ok(())
        };
        for &input in pass.inputs().iter().filter(|&&input| problem.copied(input)) {
            push(Role::Copy(input), tokens, 1)?;
        }
        if division.tables.is_none() {
            push(Role::Tables, 1, 1)?;
        }
        match pass {
            Pass::Forward => {
                push(Role::Prepare, chunks * problem.value_heads, 1)?;
                if cut {
                    push(Role::PreScan, scans, 2)?;
                    push(Role::Compose, scans, 1)?;
                }
                push(Role::Scan, scans, 1)?;
            }
            Pass::Backward => {
                if !problem.pins.save_state {
                    push(Role::States, scans, 1)?;
                }
                if cut {
                    push(Role::AdjointPreScan, scans, 1)?;
                    push(Role::AdjointCompose, scans, 1)?;
                }
                push(Role::Adjoint, scans, 1)?;
                // A CTA takes items in turn, and one fits an SM.
                push(Role::Tail, (chunks * problem.heads).min(self.sm_count), 1)?;
            }
        }
        Ok(steps)
    }

    /// What a forward computes and its backward reads.
    fn tape(&self, division: &Division) -> Result<WorkspaceLayout> {
        let mut layout = WorkspaceLayout::default();
        self.push_chunk_facts(&mut layout, division)?;
        if self.problem.pins.save_state {
            self.push_states(&mut layout, division)?;
        }
        if division.cut {
            self.push_maps(&mut layout, division)?;
            if !self.problem.pins.save_state {
                layout.push("start", DType::F32, &self.segment_states(division))?;
            }
        }
        Ok(layout)
    }

    fn workspace(&self, pass: Pass, division: &Division) -> Result<WorkspaceLayout> {
        let problem = self.problem;
        let mut layout = WorkspaceLayout::default();
        let segment_states = self.segment_states(division);
        match pass {
            Pass::Forward => {
                if !problem.training {
                    self.push_chunk_facts(&mut layout, division)?;
                }
                if division.cut {
                    layout.push("segment_state", DType::F32, &segment_states)?;
                    if !problem.training {
                        self.push_maps(&mut layout, division)?;
                    }
                    if !problem.training || problem.pins.save_state {
                        layout.push("start", DType::F32, &segment_states)?;
                    }
                }
            }
            Pass::Backward => {
                layout.push("dh", DType::Bf16, &[division.chunks, problem.value_heads, 128, 128])?;
                if !problem.gate {
                    layout.push("dg", DType::F32, &problem.gate_shape())?;
                }
                if !problem.pins.save_state {
                    self.push_states(&mut layout, division)?;
                }
                if division.cut {
                    layout.push("segment_state", DType::F32, &segment_states)?;
                    layout.push("adjoint_start", DType::F32, &segment_states)?;
                }
            }
        }
        for &input in pass.inputs().iter().filter(|&&input| problem.copied(input)) {
            let (dtype, shape) = problem.input(input);
            layout.push(input.region(), dtype, &shape)?;
        }
        if division.tables.is_none() {
            layout.push("chunks", DType::U8, &[division.chunks * Chunk::BYTES])?;
            layout.push("segments", DType::U8, &[division.segments * Segment::BYTES])?;
            layout.push("sequences", DType::U8, &[division.sequences * Sequence::BYTES])?;
        }
        Ok(layout)
    }

    fn push_chunk_facts(&self, layout: &mut WorkspaceLayout, division: &Division) -> Result<()> {
        let (problem, tokens) = (self.problem, self.problem.total_tokens());
        layout.push("rq", DType::F32, &[tokens, problem.heads])?;
        layout.push("rk", DType::F32, &[tokens, problem.heads])?;
        layout.push("gate", DType::F32, &[tokens, problem.value_heads])?;
        layout.push("a", DType::Bf16, &[division.chunks, problem.value_heads, 64, 64])
    }

    fn push_states(&self, layout: &mut WorkspaceLayout, division: &Division) -> Result<()> {
        let (problem, tokens) = (self.problem, self.problem.total_tokens());
        layout.push("v_new", DType::Bf16, &[tokens, problem.value_heads, 128])?;
        layout.push("h", DType::Bf16, &[division.chunks, problem.value_heads, 128, 128])
    }

    fn push_maps(&self, layout: &mut WorkspaceLayout, division: &Division) -> Result<()> {
        let value_heads = self.problem.value_heads;
        layout.push("m", DType::F32, &self.segment_states(division))?;
        if self.forgets() {
            layout.push("carries", DType::U32, &[division.segments, value_heads])?;
            layout.push("fade", DType::F32, &[division.chunks, value_heads])?;
        }
        Ok(())
    }

    fn segment_states(&self, division: &Division) -> [u64; 4] {
        [division.segments, self.problem.value_heads, 128, 128]
    }
}

/// Geometry of CTAs in x; `None` for none.
///
/// # Errors
/// [`Error::Argument`] about `grid` for more CTAs than a grid may have.
fn geometry(arch: Arch, schedule: &Schedule, ctas: u64) -> Result<Option<LaunchConfig>> {
    if ctas == 0 {
        return Ok(None);
    }
    let config = LaunchConfig {
        // What does not fit is more than any grid may have, and refused as such.
        grid: [u32::try_from(ctas).unwrap_or(u32::MAX), 1, 1],
        cluster: [1, 1, 1],
        block: schedule.threads,
        dynamic_shared_bytes: schedule.dynamic_shared_bytes(),
        programmatic_serialization: false,
    };
    config.validate(arch)?;
    Ok(Some(config))
}

fn no_program(architecture: &Architecture, wanted: String) -> Error {
    let available = architecture.gdn.schedules.iter().map(|schedule| schedule.name.to_owned());
    Error::no_program(Operation::Gdn, architecture.arch, wanted, available)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step that does not fit is an error, never left out.
    #[test]
    fn a_grid_has_all_its_ctas_or_none_is_planned() {
        let grid = |ctas| geometry(Arch::Sm90, &Schedule::COPY, ctas).map(|config| config.map(|config| config.grid[0]));
        assert_eq!(grid(0).unwrap(), None);
        assert_eq!(grid(1).unwrap(), Some(1));
        assert_eq!(grid(i32::MAX as u64).unwrap(), Some(i32::MAX as u32));
        for ctas in [1 << 31, u64::from(u32::MAX), 1 << 32, (1 << 32) + 1, u64::MAX] {
            let error = grid(ctas).unwrap_err();
            assert!(error.to_string().starts_with("grid: expected 1..=2147483647 CTAs in x"), "{error}");
        }
    }
}
