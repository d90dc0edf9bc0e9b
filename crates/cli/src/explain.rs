//! `bakewell explain`: the plan for a shape, and what every row of the route table says to it.

use std::fmt::{Display, Write};

use bakewell::gqa_decode::{GqaDecode, consider, decide};
use bakewell::nvfp4_context::{self, Nvfp4Context};
use bakewell::route::Route;
use bakewell::schedule::gqa_decode::{Choice, Splits};
use bakewell::workspace::WorkspaceLayout;
use bakewell::{Arch, Architecture, Device, DeviceName, architectures};

use crate::args::{OperationArg, problem};
use crate::report::{Report, table};

/// Arguments of `explain`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Operation.
    operation: OperationArg,
    /// Fields of the problem: `batch=4,capacity=256`. What is not named keeps its default.
    #[arg(long, default_value = "")]
    shape: String,
    /// auto | cuda:N | emulated:smNN | reference. An emulated device need not be there: a plan is pure.
    #[arg(long, default_value = "auto")]
    device: DeviceName,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<Report> {
    match args.operation {
        OperationArg::GqaDecode => gqa_decode(&problem(&args.shape)?, args.device),
        OperationArg::Nvfp4Context => nvfp4_context(&problem(&args.shape)?, args.device),
    }
}

/// Architecture and SM count that a plan is made for; `None` for the reference, which has no programs.
fn target(device: DeviceName) -> anyhow::Result<Option<(Arch, u32)>> {
    if let DeviceName::Emulated(arch) = device {
        return Ok(Some((arch, arch.typical_sm_count())));
    }
    let device = Device::open(device)?;
    Ok(device.arch().zip(device.sm_count()))
}

fn gqa_decode(problem: &GqaDecode, device: DeviceName) -> anyhow::Result<Report> {
    let mut text = String::new();
    writeln!(text, "problem  {}", serde_json::to_string(problem)?)?;
    let Some((arch, sm_count)) = target(device)? else {
        problem.validate()?;
        writeln!(text, "plan     reference: plain loops on the host, no workspace, no copies")?;
        return Ok(Report::fine(text));
    };
    let architecture: &'static Architecture = architectures::find(arch)?.architecture;
    let decision = decide(problem, architecture, sm_count)?;
    text.push_str(&plan(arch, sm_count, &decision, &decision.workspace)?);
    text.push_str(&routes(problem, architecture, sm_count)?);
    Ok(Report::fine(text))
}

fn nvfp4_context(problem: &Nvfp4Context, device: DeviceName) -> anyhow::Result<Report> {
    let mut text = String::new();
    writeln!(text, "problem  {}", serde_json::to_string(problem)?)?;
    match target(device)? {
        None => {
            problem.validate()?;
            writeln!(text, "plan     reference: plain loops on the host, no workspace, no copies")?;
        }
        Some((arch, sm_count)) => {
            let decision = nvfp4_context::decide(problem, architectures::find(arch)?.architecture, sm_count)?;
            text.push_str(&plan(arch, sm_count, &decision, &decision.workspace)?);
        }
    }
    Ok(Report::fine(text))
}

/// A decision and its workspace, region by region.
fn plan(arch: Arch, sm_count: u32, decision: &dyn Display, workspace: &WorkspaceLayout) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(text, "device   {arch} with {sm_count} SMs")?;
    writeln!(text, "plan     {decision}")?;
    for region in &workspace.regions {
        writeln!(
            text,
            "         {} {} {}: {} bytes at {}",
            region.name, region.dtype, region.shape, region.bytes, region.offset
        )?;
    }
    Ok(text)
}

/// Every row of the route table: its conditions, its choice, and whether it is taken or why not.
fn routes(problem: &GqaDecode, architecture: &'static Architecture, sm_count: u32) -> anyhow::Result<String> {
    let mut rows = table(&["when", "then", "verdict"]);
    let mut taken = false;
    for verdict in consider(problem, architecture, sm_count)? {
        let said = match verdict.outcome {
            Ok(_) if taken => "would do, but an earlier row is taken".to_owned(),
            Ok(_) => {
                taken = true;
                "taken".to_owned()
            }
            Err(objection) => objection,
        };
        let Route { when, then } = verdict.route;
        rows.add_row([
            if when.is_empty() {
                "always".to_owned()
            } else {
                when.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            },
            choice(then),
            said,
        ]);
    }
    Ok(format!("{rows}\n"))
}

/// A row's choice in words.
fn choice(choice: &Choice) -> String {
    let splits = match choice.splits {
        Splits::Fixed(splits) => format!("{splits} global splits"),
        Splits::Fill { ctas_per_sm, min_keys, max } => {
            format!("splits of at least {min_keys} keys, at most {max}, for {ctas_per_sm} CTAs per SM")
        }
    };
    format!("{}, clusters of {}, {splits}", choice.schedule, choice.cluster)
}
