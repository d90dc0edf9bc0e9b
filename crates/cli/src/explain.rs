//! `bakewell explain`: the plan for a shape, and what every row of the route table says to it.

use std::fmt::Write;

use bakewell::gdn::{Backward, Forward, Gdn};
use bakewell::gqa_decode::{GqaDecode, consider};
use bakewell::nvfp4_context::Nvfp4Context;
use bakewell::nvfp4_pre_attention::Nvfp4PreAttention;
use bakewell::route::Route;
use bakewell::schedule::gqa_decode::{Choice, Splits};
use bakewell::{Arch, Architecture, Device, DeviceName, Operation, Problem, architectures};
use serde::Serialize;

use crate::args::{operations, problem};
use crate::report::{Report, table};

/// Arguments of `explain`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Operation.
    #[arg(value_parser = operations())]
    operation: Operation,
    /// Fields of the problem: `batch=4,capacity=256`. What is not named keeps its default.
    #[arg(long, default_value = "")]
    shape: String,
    /// auto | cuda:N | emulated:smNN | reference. An emulated device need not be there: a plan is pure.
    #[arg(long, default_value = "auto")]
    device: DeviceName,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<Report> {
    let target = target(args.device)?;
    let text = match args.operation {
        Operation::GqaDecode => {
            let problem = problem(&args.shape)?;
            let routes =
                target.map(|(arch, sm_count)| routes(&problem, architectures::find(arch)?.architecture, sm_count));
            plan(&problem, target)? + &routes.transpose()?.unwrap_or_default()
        }
        Operation::Nvfp4Context => plan::<Nvfp4Context>(&problem(&args.shape)?, target)?,
        Operation::Nvfp4PreAttention => plan::<Nvfp4PreAttention>(&problem(&args.shape)?, target)?,
        Operation::Gdn => {
            let problem: Gdn = problem(&args.shape)?;
            let forward = plan(&Forward(problem.clone()), target)?;
            forward + &if problem.training { plan(&Backward(problem), target)? } else { String::new() }
        }
    };
    Ok(Report::fine(text))
}

/// Architecture and SM count that a plan is made for; `None` for the reference, which has no programs.
fn target(device: DeviceName) -> anyhow::Result<Option<(Arch, u32)>> {
    if let DeviceName::Emulated(arch) = device {
        return Ok(Some((arch, arch.typical_sm_count())));
    }
    let device = Device::open(device)?;
    Ok(device.arch().zip(device.sm_count()))
}

/// A problem, and the decision about it with its workspace, region by region.
fn plan<P: Problem + Serialize>(problem: &P, target: Option<(Arch, u32)>) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(text, "problem  {}", serde_json::to_string(problem)?)?;
    let Some((arch, sm_count)) = target else {
        writeln!(text, "plan     {}", Device::reference()?.plan(problem)?)?;
        return Ok(text);
    };
    let decision = problem.decide(architectures::find(arch)?.architecture, sm_count)?;
    writeln!(text, "device   {arch} with {sm_count} SMs")?;
    writeln!(text, "plan     {decision}")?;
    for region in &P::workspace(&decision).regions {
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
