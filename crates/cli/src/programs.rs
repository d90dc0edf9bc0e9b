//! `bakewell programs`: every embedded program.

use bakewell::program::{Evidence, ProgramRecord};
use bakewell::{Arch, architectures};
use serde::Serialize;

use crate::report::{Report, table};

/// Arguments of `programs`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this architecture, `smNN`.
    #[arg(long, value_parser = Arch::parse)]
    arch: Option<Arch>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// One program as JSON.
#[derive(Serialize)]
struct Listed<'a> {
    name: String,
    arch: Arch,
    evidence: Evidence,
    #[serde(flatten)]
    record: &'a ProgramRecord,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<Report> {
    let mut listed = Vec::new();
    if let Some(arch) = args.arch {
        architectures::find(arch)?;
    }
    for compiled in architectures::compiled() {
        let library = compiled.library()?;
        if args.arch.is_some_and(|arch| arch != library.arch) {
            continue;
        }
        for program in &library.programs {
            let (name, evidence) = (program.name(), library.evidence(program));
            listed.push(Listed { name, arch: library.arch, evidence, record: program.record });
        }
    }
    if args.json { Report::json(&listed, false) } else { Ok(Report::fine(render(&listed))) }
}

fn render(listed: &[Listed<'_>]) -> String {
    let mut table = table(&[
        "program",
        "schedule",
        "threads",
        "registers",
        "shared bytes",
        "barrier bytes",
        "cubin sha256",
        "evidence",
    ]);
    for Listed { name, evidence, record, .. } in listed {
        let shared = record.budgets.dynamic_shared_bytes + record.resources.static_shared_bytes;
        table.add_row([
            name.clone(),
            facts(&record.schedule),
            record.budgets.threads.to_string(),
            record.resources.registers.to_string(),
            shared.to_string(),
            record.budgets.barrier_bytes.to_string(),
            record.cubin.sha256.short().to_owned(),
            evidence.to_string(),
        ]);
    }
    format!("{table}\nprograms: {}\n", listed.len())
}

/// The schedule's own facts in one line; its name and shape stand in the program's name already.
fn facts(schedule: &serde_json::Value) -> String {
    let Some(fields) = schedule.as_object() else {
        return schedule.to_string();
    };
    let told = ["name", "element", "group_size", "head_dim", "threads"];
    let own = fields.iter().filter(|(name, _)| !told.contains(&name.as_str()));
    own.map(|(name, value)| format!("{name} {}", value.as_str().map_or(value.to_string(), str::to_owned)))
        .collect::<Vec<_>>()
        .join(", ")
}
