//! `cargo xtask ci`: everything that a change must pass, in one command.
//!
//! Every step runs even when an earlier one failed. A step that this machine cannot take is said out loud, never
//! passed over. The tests come last, so that the output ends with their summary.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::check::{self, embedded::PACKAGE_BYTES, rebuild::Extent};
use crate::test::{self, cargo};
use crate::tidy;
use crate::workspace::Workspace;

/// Feature sets of `bakewell` that must compile besides the default.
const FEATURE_SETS: &[&str] = &["", "sm110,cuda", "sm90,reference", "sm103,emulator"];

/// Targets that must compile, where their standard library is installed.
const TARGETS: &[&str] = &["aarch64-unknown-linux-gnu", "x86_64-pc-windows-msvc"];

/// What became of a step.
enum Outcome {
    Passed,
    NotChecked(String),
}

/// A step: what it is called and what it does.
type Step<'s> = (&'s str, Box<dyn Fn() -> Result<Outcome> + 's>);

/// Runs the steps.
pub(crate) fn run(workspace: &Workspace, jobs: usize) -> Result<()> {
    let cargo_step =
        |arguments: &'static [&'static str]| move || cargo(workspace, arguments, &[]).map(|()| Outcome::Passed);
    let steps: Vec<Step<'_>> = vec![
        ("format", Box::new(|| component(workspace, "fmt", &["fmt", "--all", "--check"]))),
        (
            "lints",
            Box::new(|| {
                component(workspace, "clippy", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
            }),
        ),
        ("documentation", Box::new(|| documentation(workspace))),
        ("tidy", Box::new(|| tidy::run(workspace).map(|()| Outcome::Passed))),
        ("programs", Box::new(|| check::run(workspace, None, Extent::Nothing, jobs).map(|()| Outcome::Passed))),
        ("programs, rebuilt", Box::new(|| rebuild(workspace, jobs))),
        ("features", Box::new(|| features(workspace))),
        ("targets", Box::new(|| targets(workspace))),
        ("packages", Box::new(|| packages(workspace))),
        ("command line", Box::new(cargo_step(&["run", "--quiet", "-p", "bakewell-cli", "--", "--version"]))),
        ("tests", Box::new(|| test::run(workspace, &[]).map(|()| Outcome::Passed))),
    ];
    let last = steps.len() - 1;
    let mut failed = Vec::new();
    let mut not_checked = Vec::new();
    for (index, (name, step)) in steps.into_iter().enumerate() {
        if index == last {
            // The runner's own summary must be the end of the output.
            report(&failed, &not_checked);
        }
        println!("== {name}");
        match step() {
            Ok(Outcome::Passed) => {}
            Ok(Outcome::NotChecked(reason)) => {
                println!("== {name} NOT CHECKED: {reason}");
                not_checked.push(format!("{name}: {reason}"));
            }
            Err(error) => {
                eprintln!("== {name} FAILED: {error:#}");
                failed.push(name.to_owned());
            }
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn report(failed: &[String], not_checked: &[String]) {
    println!("== before the tests: {} steps failed, {} not checked here", failed.len(), not_checked.len());
    for step in failed {
        println!("   failed: {step}");
    }
    for step in not_checked {
        println!("   not checked: {step}");
    }
}

/// A step of a rustup component that a machine may lack.
fn component(workspace: &Workspace, name: &str, arguments: &[&str]) -> Result<Outcome> {
    let there = Command::new("cargo").args([name, "--version"]).output().is_ok_and(|output| output.status.success());
    if !there {
        return Ok(Outcome::NotChecked(format!("cargo {name} is not installed")));
    }
    cargo(workspace, arguments, &[]).map(|()| Outcome::Passed)
}

fn documentation(workspace: &Workspace) -> Result<Outcome> {
    let status = Command::new("cargo")
        .args(["doc", "--workspace", "--no-deps", "--lib"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .current_dir(&workspace.root)
        .status()?;
    if !status.success() {
        bail!("cargo doc failed ({status})");
    }
    Ok(Outcome::Passed)
}

/// One program of each kernel on each architecture: all of them take longer than the tests.
///
/// Needs Python with pip and a host compiler for the preprocessor; a machine without them cannot rebuild.
fn rebuild(workspace: &Workspace, jobs: usize) -> Result<Outcome> {
    let host_compiler = Command::new("g++").arg("--version").output().is_ok_and(|output| output.status.success());
    if !host_compiler {
        return Ok(Outcome::NotChecked("no g++, which the kernel compiler preprocesses with".to_owned()));
    }
    if let Err(error) = crate::toolchain::ensure(workspace) {
        return Ok(Outcome::NotChecked(format!("the kernel compiler cannot be provisioned: {error:#}")));
    }
    check::run(workspace, None, Extent::OnePerSource, jobs).map(|()| Outcome::Passed)
}

/// Tests of what is embedded, and of the errors about what is not, for each set of features.
fn features(workspace: &Workspace) -> Result<Outcome> {
    for set in FEATURE_SETS {
        let arguments = ["test", "-p", "bakewell", "--lib", "--no-default-features", "--features", set];
        cargo(workspace, &arguments, &[])?;
    }
    Ok(Outcome::Passed)
}

fn targets(workspace: &Workspace) -> Result<Outcome> {
    let installed = Command::new("rustup").args(["target", "list", "--installed"]).output();
    let installed = installed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let mut missing = Vec::new();
    for target in TARGETS {
        if installed.lines().any(|line| line == *target) {
            cargo(workspace, &["check", "-p", "bakewell", "-p", "bakewell-cli", "--target", target], &[])?;
        } else {
            missing.push(*target);
        }
    }
    if !missing.is_empty() {
        return Ok(Outcome::NotChecked(format!("no standard library for {}", missing.join(", "))));
    }
    Ok(Outcome::Passed)
}

/// The files that `cargo package` takes are small enough for a registry, before compression.
fn packages(workspace: &Workspace) -> Result<Outcome> {
    for entry in std::fs::read_dir(workspace.root.join("crates"))? {
        let folder = entry?.path();
        let manifest = folder.join("Cargo.toml");
        if !manifest.exists() {
            continue;
        }
        let output = Command::new("cargo")
            .args(["package", "--list", "--allow-dirty", "--manifest-path"])
            .arg(&manifest)
            .current_dir(&workspace.root)
            .output()?;
        if !output.status.success() {
            bail!("cargo package --list of {}: {}", folder.display(), String::from_utf8_lossy(&output.stderr).trim());
        }
        let files = String::from_utf8(output.stdout).context("file names of a package")?;
        let sizes = files.lines().filter_map(|file| std::fs::metadata(folder.join(file)).ok());
        let bytes: u64 = sizes.map(|meta| meta.len()).sum();
        println!("{:>10} bytes in {}", bytes, folder.file_name().unwrap_or_default().to_string_lossy());
        if bytes > PACKAGE_BYTES {
            bail!("{} has {bytes} bytes; a package may have {PACKAGE_BYTES}", folder.display());
        }
    }
    Ok(Outcome::Passed)
}
