//! `bakewell doctor`: what is here, what each operation would run, and whether anything is wrong.
//!
//! Wrong is: an embedded program whose bytes are not those of its manifest, an architecture without a program for an
//! operation, a driver that fails, a supported GPU whose architecture is not compiled in. A machine with no driver or
//! with a GPU that Bakewell does not support is told, and is not wrong.

use std::fmt::Write;

use bakewell::cuda::{self, DeviceFacts};
use bakewell::gdn::{Backward, Forward};
use bakewell::gqa_decode::GqaDecode;
use bakewell::nvfp4_context::Nvfp4Context;
use bakewell::nvfp4_pre_attention::Nvfp4PreAttention;
use bakewell::{Arch, Device, Error, Operation, Problem, architectures};
use serde::Serialize;

use crate::report::{Report, table};

/// Arguments of `doctor`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// All that was found.
#[derive(Serialize)]
struct Findings {
    version: &'static str,
    operations: Vec<Operation>,
    architectures: Vec<ArchitectureFindings>,
    driver: Driver,
    gpus: Vec<Gpu>,
    /// The device that `auto` stands for here.
    auto: String,
    /// What is wrong; empty on a healthy machine.
    problems: Vec<String>,
}

/// One architecture compiled in.
#[derive(Serialize)]
struct ArchitectureFindings {
    arch: Arch,
    programs: usize,
    on_hardware: usize,
    on_emulator: usize,
    compiled_only: usize,
    /// What the default problem of each operation would get on a typical device.
    routes: Vec<OperationRoute>,
}

/// The program that an operation would get.
#[derive(Serialize)]
struct OperationRoute {
    operation: Operation,
    plan: Option<String>,
    refusal: Option<String>,
    /// The other rows of the route tables: schedule, and why it is not taken.
    others: Vec<String>,
}

/// The driver library.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Driver {
    Version(String),
    Absent(String),
    Failing(String),
}

/// One GPU.
#[derive(Serialize)]
struct Gpu {
    device: String,
    name: String,
    compute_capability: String,
    sm_count: u32,
    memory_bytes: u64,
    arch: Option<Arch>,
    /// Why Bakewell does not use it.
    refusal: Option<String>,
    routes: Vec<OperationRoute>,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<Report> {
    let findings = examine();
    let failed = !findings.problems.is_empty();
    if args.json { Report::json(&findings, failed) } else { Ok(Report { text: render(&findings)?, failed }) }
}

fn examine() -> Findings {
    let mut problems = Vec::new();
    let architectures =
        architectures::compiled().iter().map(|compiled| architecture(compiled, &mut problems)).collect();
    let driver = driver(&mut problems);
    let gpus = match cuda::devices() {
        Ok(devices) => devices.iter().map(|facts| gpu(facts, &mut problems)).collect(),
        Err(Error::NoDriver { .. }) => Vec::new(),
        Err(error) => {
            problems.push(error.to_string());
            Vec::new()
        }
    };
    Findings {
        version: env!("CARGO_PKG_VERSION"),
        operations: Operation::ALL.to_vec(),
        architectures,
        driver,
        gpus,
        auto: Device::best().map_or_else(|error| error.to_string(), |device| device.name()),
        problems,
    }
}

fn driver(problems: &mut Vec<String>) -> Driver {
    match cuda::driver_version() {
        Ok((major, minor)) => Driver::Version(format!("{major}.{minor}")),
        Err(Error::NoDriver { searched }) => Driver::Absent(searched),
        Err(error) => {
            problems.push(error.to_string());
            Driver::Failing(error.to_string())
        }
    }
}

/// Unpacks every program, so that damage shows here and not at the first launch.
fn architecture(compiled: &'static architectures::Compiled, problems: &mut Vec<String>) -> ArchitectureFindings {
    let arch = compiled.architecture.arch;
    let mut found = ArchitectureFindings {
        arch,
        programs: 0,
        on_hardware: 0,
        on_emulator: 0,
        compiled_only: 0,
        routes: routes(arch, arch.typical_sm_count()),
    };
    problems.extend(found.routes.iter().filter_map(|route| route.refusal.clone()));
    let library = match compiled.library() {
        Ok(library) => library,
        Err(error) => {
            problems.push(error.to_string());
            return found;
        }
    };
    for program in &library.programs {
        found.programs += 1;
        match library.evidence(program) {
            bakewell::program::Evidence::Hardware { .. } => found.on_hardware += 1,
            bakewell::program::Evidence::Emulator { .. } => found.on_emulator += 1,
            bakewell::program::Evidence::CompiledOnly => found.compiled_only += 1,
        }
        problems.extend(program.cubin().err().map(|error| error.to_string()));
        problems.extend(program.ptx().err().map(|error| error.to_string()));
    }
    found
}

fn gpu(facts: &DeviceFacts, problems: &mut Vec<String>) -> Gpu {
    let (major, minor) = facts.compute_capability;
    let device = format!("cuda:{}", facts.ordinal);
    let arch = facts.arch();
    let routes = arch.as_ref().map(|&arch| routes(arch, facts.sm_count)).unwrap_or_default();
    let refused = routes.iter().filter_map(|route| route.refusal.as_ref());
    problems.extend(refused.map(|refusal| format!("{device}: {refusal}")));
    Gpu {
        device,
        name: facts.name.clone(),
        compute_capability: format!("{major}.{minor}"),
        sm_count: facts.sm_count,
        memory_bytes: facts.memory_bytes,
        refusal: arch.as_ref().err().map(ToString::to_string),
        arch: arch.ok(),
        routes,
    }
}

/// What the default problem of every operation gets.
fn routes(arch: Arch, sm_count: u32) -> Vec<OperationRoute> {
    let route = |operation: Operation| {
        let plan = match operation {
            Operation::GqaDecode => planned::<GqaDecode>(arch, sm_count),
            Operation::Nvfp4Context => planned::<Nvfp4Context>(arch, sm_count),
            Operation::Nvfp4PreAttention => planned::<Nvfp4PreAttention>(arch, sm_count),
            Operation::Gdn => planned::<Forward>(arch, sm_count)
                .and_then(|forward| Ok(format!("{forward}; {}", planned::<Backward>(arch, sm_count)?))),
        };
        let (plan, refusal) = match plan {
            Ok(plan) => (Some(plan), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let others = match operation {
            Operation::GqaDecode => others::<GqaDecode>(arch, sm_count),
            Operation::Nvfp4Context => others::<Nvfp4Context>(arch, sm_count),
            Operation::Nvfp4PreAttention => others::<Nvfp4PreAttention>(arch, sm_count),
            Operation::Gdn => [others::<Forward>(arch, sm_count), others::<Backward>(arch, sm_count)].concat(),
        };
        OperationRoute { operation, plan, refusal, others }
    };
    Operation::ALL.into_iter().map(route).collect()
}

/// The plan of the default problem, all of whose programs are there.
fn planned<P: Problem + Default>(arch: Arch, sm_count: u32) -> bakewell::Result<String> {
    let compiled = architectures::find(arch)?;
    let decision = P::default().decide(compiled.architecture, sm_count)?;
    for schedule in P::preparations(&decision).into_iter().chain(P::schedules(&decision)) {
        compiled.library()?.program(P::OPERATION, &schedule.variant())?;
    }
    Ok(decision.to_string())
}

/// The rows of the route tables that the default problem does not take, and why.
fn others<P: Problem + Default>(arch: Arch, sm_count: u32) -> Vec<String> {
    let considered = architectures::find(arch)
        .and_then(|compiled| P::default().consider(compiled.architecture, sm_count))
        .unwrap_or_default();
    let mut taken = None;
    let others = considered.into_iter().filter_map(|row| {
        let why = match row.objection {
            Some(objection) => objection,
            None if taken == Some(row.table) => "an earlier row is taken".to_owned(),
            None => {
                taken = Some(row.table);
                return None;
            }
        };
        Some(format!("{}: {why}", row.schedule))
    });
    others.collect()
}

fn render(findings: &Findings) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(text, "bakewell {}", findings.version)?;
    let mut rows = table(&["architecture", "programs", "run on hardware", "run on the emulator", "compiled only"]);
    for found in &findings.architectures {
        let counts = [found.programs, found.on_hardware, found.on_emulator, found.compiled_only];
        rows.add_row([vec![found.arch.to_string()], counts.map(|count| count.to_string()).to_vec()].concat());
    }
    writeln!(text, "{rows}")?;
    match &findings.driver {
        Driver::Version(version) => writeln!(text, "driver   CUDA {version}")?,
        Driver::Absent(searched) => writeln!(text, "driver   none: {searched}")?,
        Driver::Failing(error) => writeln!(text, "driver   {error}")?,
    }
    for gpu in &findings.gpus {
        let gib = gpu.memory_bytes as f64 / f64::from(1 << 30);
        write!(text, "{}   {}, compute capability {}", gpu.device, gpu.name, gpu.compute_capability)?;
        writeln!(text, ", {} SMs, {gib:.0} GiB", gpu.sm_count)?;
        if let Some(refusal) = &gpu.refusal {
            writeln!(text, "         not used: {refusal}")?;
        }
        render_routes(&mut text, &gpu.routes)?;
    }
    if findings.gpus.is_empty() {
        writeln!(text, "gpus     none")?;
        for found in &findings.architectures {
            writeln!(
                text,
                "on {} with {} SMs the default problem would get",
                found.arch,
                found.arch.typical_sm_count()
            )?;
            render_routes(&mut text, &found.routes)?;
        }
    }
    writeln!(text, "auto     {}", findings.auto)?;
    match findings.problems.as_slice() {
        [] => writeln!(text, "nothing is wrong")?,
        problems => problems.iter().try_for_each(|problem| writeln!(text, "wrong    {problem}"))?,
    }
    Ok(text)
}

fn render_routes(text: &mut String, routes: &[OperationRoute]) -> std::fmt::Result {
    routes.iter().try_for_each(|route| {
        let said = route.plan.as_ref().or(route.refusal.as_ref());
        writeln!(text, "         {}: {}", route.operation, said.map_or("", String::as_str))?;
        route.others.iter().try_for_each(|other| writeln!(text, "             not {other}"))
    })
}
