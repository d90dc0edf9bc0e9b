//! `cargo xtask`: all build work of the workspace that is not `cargo build`.
//!
//! | module | subject |
//! |---|---|
//! | `workspace` | paths, and the units of work that the architecture crates define |
//! | `toolchain` | the pinned kernel compiler |
//! | `render` | schedules and parameter layouts as C++ |
//! | `sources` | closure hashes |
//! | `compile`, `resources` | one unit to PTX, cubin and measured resources |
//! | `build`, `artifacts` | every stale unit, and the files of the architecture crates |
//! | `check` | what ships is what the sources and schedules say |
//! | `support`, `evidence` | what ships and how far it is proven |
//! | `docs`, `tidy` | generated documentation, and rules about text |
//! | `test`, `ci` | the test command, and everything a change must pass |

#![forbid(unsafe_code)]

mod artifacts;
mod build;
mod check;
mod ci;
mod compile;
mod docs;
mod evidence;
mod render;
mod resources;
mod sources;
mod support;
mod test;
mod tidy;
mod toolchain;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use bakewell_core::{Arch, Operation};
use clap::{Parser, Subcommand};

use crate::build::Selection;
use crate::check::rebuild::Extent;
use crate::workspace::Workspace;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Build work of the Bakewell workspace")]
struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Provision the pinned kernel compiler in target/toolchain
    Toolchain,
    /// Compile kernels and write the programs of the architecture crates
    Build {
        /// Only this architecture: sm90, sm100, ...
        #[arg(long, value_parser = Arch::parse)]
        arch: Option<Arch>,
        /// Only this operation: gqa_decode, ...
        #[arg(long, value_parser = Operation::parse)]
        op: Option<Operation>,
        /// Only variants whose name contains this
        #[arg(long)]
        variant_filter: Option<String>,
        /// Also programs that are up to date
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        jobs: Jobs,
    },
    /// Prove that the shipped programs are those of the sources and schedules
    Check {
        /// Only this architecture: sm90, sm100, ...
        #[arg(long, value_parser = Arch::parse)]
        arch: Option<Arch>,
        /// Also compile everything again and compare every byte
        #[arg(long)]
        rebuild: bool,
        #[command(flatten)]
        jobs: Jobs,
    },
    /// Take over what `bakewell verify --json` proved
    Evidence {
        /// The report
        #[arg(long)]
        from: PathBuf,
    },
    /// Write the generated parts of the documentation
    Docs,
    /// Check rules about the text of the repository
    Tidy,
    /// Run every test
    Test {
        /// Arguments for the test runner
        #[arg(last = true)]
        extra: Vec<String>,
    },
    /// Run everything that a change must pass
    Ci {
        #[command(flatten)]
        jobs: Jobs,
    },
}

#[derive(clap::Args)]
struct Jobs {
    /// Programs compiled at once; default: one per core
    #[arg(long)]
    jobs: Option<usize>,
}

impl Jobs {
    fn count(&self) -> usize {
        self.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }
}

fn main() -> ExitCode {
    match run(Flags::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    let workspace = Workspace::here();
    match command {
        Command::Toolchain => {
            toolchain::ensure(&workspace)?;
            for (package, version) in toolchain::versions() {
                println!("{package} {version}");
            }
            Ok(())
        }
        Command::Build { arch, op, variant_filter, force, jobs } => {
            let selection = Selection { arch, operation: op, variant: variant_filter };
            build::build(&workspace, &selection, jobs.count(), force)
        }
        Command::Check { arch, rebuild, jobs } => {
            let extent = if rebuild { Extent::Everything } else { Extent::Nothing };
            check::run(&workspace, arch, extent, jobs.count())
        }
        Command::Evidence { from } => evidence::merge(&workspace, &from),
        Command::Docs => docs::write(&workspace),
        Command::Tidy => tidy::run(&workspace),
        Command::Test { extra } => test::run(&workspace, &extra),
        Command::Ci { jobs } => ci::run(&workspace, jobs.count()),
    }
}
