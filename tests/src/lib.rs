//! The harness of the conformance tests: where the data lies, which engines there are, and a runtime that records.
//!
//! Cases are data, engines are code: `golden/OP/` and `cases/OP.json` run on every engine that is
//! present, and an absent one is counted and named.
//!
//! | module | subject |
//! |---|---|
//! | [`contract`] | what every operation promises about tensors, bindings and launches |
//! | [`plans`] | what every planner promises |
#![cfg_attr(feature = "emulator", doc = "| [`damage`] | shipped programs with a line changed |")]
#![cfg_attr(feature = "emulator", doc = "| [`emulated`] | the emulator under chosen options |")]
#![cfg_attr(feature = "cuda", doc = "| [`graphs`] | captured launches |")]
//! | [`recording`] | a runtime that executes nothing and remembers everything |
//! | [`runs`] | runs on an engine, and what they must give |
//!
//! ```
//! assert!(bakewell_tests::data("golden/gqa_decode").join("one_key.safetensors").exists());
//! ```

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use bakewell::Device;
use bakewell_conformance::engines::Engines;
use serde::de::DeserializeOwned;

pub mod contract;
#[cfg(feature = "emulator")]
pub mod damage;
#[cfg(feature = "emulator")]
pub mod emulated;
#[cfg(feature = "cuda")]
pub mod graphs;
pub mod plans;
pub mod recording;
pub mod runs;

/// A file or folder of this package: where it was built, or below `tests/` or the current directory for a test binary
/// that was carried to another machine.
pub fn data(path: &str) -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    [built.clone(), Path::new("tests").join(path), PathBuf::from(path)]
        .into_iter()
        .find(|candidate| candidate.exists())
        .unwrap_or(built)
}

/// The content of a case file.
///
/// # Panics
/// When it is missing or malformed: a test without its cases must fail.
pub fn cases<T: DeserializeOwned>(operation: &str) -> T {
    let path = data(&format!("cases/{operation}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs a check on every engine present; prints which were absent. Fails when any check fails, after all have run.
///
/// # Panics
/// With one line per engine that failed.
pub fn on_every_engine(check: impl Fn(&Device) -> Result<(), String>) {
    let engines = Engines::find();
    print!("{}", engines.skipped());
    let mut failures = Vec::new();
    for device in &engines.present {
        match check(device) {
            Ok(()) => println!("ran on {device}"),
            Err(failure) => failures.push(format!("{device}: {failure}")),
        }
    }
    println!("{} engines ran, {} skipped", engines.present.len(), engines.absent.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
