//! The command line of Bakewell. Its forms are stable.
//!
//! | module | command |
//! |---|---|
//! | [`doctor`] | what is here, and whether anything is wrong |
//! | [`programs`] | every embedded program |
//! | [`explain`] | a plan, without running it |
//! | [`run`] | an operation on tensors from a file |
//! | [`verify`] | every golden case |
//! | [`mod@bench`] | times beside the ceilings of the same run |
//! | [`environment`] | facts that a record must hold |
//! | [`emulate`] | any PTX on the emulator, with its checkers |
//! | [`args`] | arguments that commands share |
//! | [`report`] | what commands give back: text and a verdict |
//!
//! Exit status: 0 when all is well, 1 when a check found something wrong, 2 for bad input or a device that cannot be
//! used.

#![deny(unsafe_code)]

mod args;
mod bench;
mod doctor;
mod emulate;
mod environment;
mod explain;
mod programs;
mod report;
mod run;
mod verify;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Attention and linear-attention kernels for NVIDIA Blackwell and Hopper.
#[derive(Parser)]
#[command(name = "bakewell", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Say more: -v loads and launches, -vv route decisions. `RUST_LOG` overrides.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Subcommand)]
enum Command {
    /// What is here: programs, driver, GPUs, and what each operation would run there.
    Doctor(doctor::Args),
    /// Every embedded program.
    Programs(programs::Args),
    /// The plan for a shape, without running it.
    Explain(explain::Args),
    /// An operation on tensors from a file.
    Run(run::Args),
    /// Every golden case, compared.
    Verify(verify::Args),
    /// Times beside the ceilings measured in the same run.
    Bench(bench::Args),
    /// Any PTX on the emulator, with its checkers.
    Emulate(emulate::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => return refuse(&error.to_string()),
        Err(help) => help.exit(),
    };
    let level = ["warn", "info", "debug"][usize::from(cli.verbose.min(2))];
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
    let outcome = match cli.command {
        Command::Doctor(args) => doctor::main(&args),
        Command::Programs(args) => programs::main(&args),
        Command::Explain(args) => explain::main(&args),
        Command::Run(args) => run::main(&args),
        Command::Verify(args) => verify::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::Emulate(args) => emulate::main(&args),
    };
    match outcome {
        Ok(report) => {
            // A reader that has seen enough, as in `bakewell programs | head`, is no failure of ours.
            let _ = std::io::stdout().write_all(report.text.as_bytes());
            if report.failed { ExitCode::from(1) } else { ExitCode::SUCCESS }
        }
        Err(error) => refuse(&report::one_line(&error)),
    }
}

/// Prints the message's first paragraph as one line. Status 2: nothing was checked.
fn refuse(message: &str) -> ExitCode {
    let message = message.trim_start_matches("error: ");
    let lines: Vec<&str> = message.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    eprintln!("bakewell: {}", lines.join(" "));
    ExitCode::from(2)
}
