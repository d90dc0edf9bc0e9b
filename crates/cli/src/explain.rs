//! `bakewell explain`: the plan for a shape, and what every row of the route tables says to it.

use std::fmt::Write;

use bakewell::gdn::{Backward, Forward, Gdn};
use bakewell::gqa_decode::GqaDecode;
use bakewell::nvfp4_context::Nvfp4Context;
use bakewell::nvfp4_pre_attention::Nvfp4PreAttention;
use bakewell::route::Considered;
use bakewell::{Arch, Device, DeviceName, Operation, Problem, architectures};
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
        Operation::GqaDecode => plan::<GqaDecode>(&problem(&args.shape)?, target)?,
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

/// A problem, the decision about it with its workspace, region by region, and what led to it.
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
    text += &routes(&problem.consider(architectures::find(arch)?.architecture, sm_count)?);
    Ok(text)
}

/// Every row of the route tables: its conditions, its choice, and whether it is taken or why not.
fn routes(considered: &[Considered]) -> String {
    if considered.is_empty() {
        return String::new();
    }
    let mut rows = table(&["table", "when", "then", "verdict"]);
    let mut taken = None;
    for row in considered {
        let said = match &row.objection {
            Some(objection) => objection.clone(),
            None if taken == Some(row.table) => "would do, but an earlier row is taken".to_owned(),
            None => {
                taken = Some(row.table);
                "taken".to_owned()
            }
        };
        let when: Vec<String> = row.when.iter().map(ToString::to_string).collect();
        let details = if row.details.is_empty() { String::new() } else { format!(", {}", row.details) };
        rows.add_row([
            row.table.to_owned(),
            if when.is_empty() { "always".to_owned() } else { when.join(", ") },
            format!("{}{details}", row.schedule),
            said,
        ]);
    }
    format!("{rows}\n")
}
