//! `cargo xtask test`: the test command of the README.
//!
//! Documentation tests first, then everything else, so that the output ends with the summary of the test runner.

use std::process::Command;

use anyhow::{Result, bail};

use crate::workspace::Workspace;

/// Runs every test of the workspace; `extra` goes to the runner.
pub(crate) fn run(workspace: &Workspace, extra: &[String]) -> Result<()> {
    let has_nextest =
        Command::new("cargo").args(["nextest", "--version"]).output().is_ok_and(|output| output.status.success());
    if has_nextest {
        cargo(workspace, &["test", "--workspace", "--doc", "--quiet"], &[])?;
        cargo(workspace, &["nextest", "run", "--workspace", "--no-fail-fast"], extra)
    } else {
        cargo(workspace, &["test", "--workspace", "--no-fail-fast"], extra)
    }
}

/// Runs cargo in the workspace and reports its failure.
pub(crate) fn cargo(workspace: &Workspace, arguments: &[&str], extra: &[String]) -> Result<()> {
    let status = Command::new("cargo").args(arguments).args(extra).current_dir(&workspace.root).status()?;
    if !status.success() {
        bail!("cargo {} failed ({status})", arguments.join(" "));
    }
    Ok(())
}
