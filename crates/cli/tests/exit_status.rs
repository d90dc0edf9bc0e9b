//! The program as users meet it: exit status, and one line on standard error for what cannot be done.

use std::path::Path;
use std::process::{Command, Output};

fn bakewell(arguments: &[&str]) -> Output {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gqa_decode");
    Command::new(env!("CARGO_BIN_EXE_bakewell")).args(arguments).current_dir(golden).output().unwrap()
}

#[test]
fn what_cannot_be_done_is_one_line_and_status_2() {
    for (arguments, part) in [
        (vec!["fly"], "unrecognized subcommand"),
        (vec!["run", "gqa_decode"], "--input"),
        (vec!["run", "gqa_decode", "--input", "nowhere.safetensors"], "nowhere.safetensors"),
        (vec!["run", "gqa_decode", "--input", "one_key.safetensors", "--device", "cuda:4000000000"], "cuda"),
        (vec!["run", "gqa_decode", "--input", "one_key.safetensors", "--device", "tpu"], "auto, cuda:N"),
        (vec!["explain", "gqa_decode", "--shape", "capacity=0", "--device", "emulated:sm90"], "capacity"),
        (vec!["explain", "gqa_decode", "--shape", "batches=4"], "batches"),
        (vec!["verify", "--cases", "nowhere"], "nowhere"),
        (vec!["verify", "--seeds", "0"], "--seeds"),
        (vec!["bench", "gqa_decode", "--device", "reference"], "cuda:N"),
        (vec!["bench", "gqa_decode", "--device", "cuda:4000000000"], "cuda"),
        (vec!["programs", "--arch", "sm120"], "sm120"),
    ] {
        let output = bakewell(&arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(said.starts_with("bakewell: ") && said.contains(part), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_golden_runs_and_verifies_on_the_reference() {
    let output = bakewell(&["run", "gqa_decode", "--input", "pair_100.safetensors", "--device", "reference"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    for part in ["device   reference", "plan     ", "time     ", "golden   relative L2", "passed"] {
        assert!(said.contains(part), "{part} is missing in {said}");
    }
    let output = bakewell(&["verify", "gqa_decode", "--cases", ".", "--device", "reference", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), json["passed"].as_bool()), (Some(0), Some(true)), "{json}");
    assert_eq!(json["cases"].as_array().map(Vec::len), Some(10));
}

#[test]
fn doctor_and_programs_speak_json() {
    let doctor: serde_json::Value = serde_json::from_slice(&bakewell(&["doctor", "--json"]).stdout).unwrap();
    assert_eq!(doctor["operations"][0], "gqa_decode");
    assert_eq!(doctor["architectures"].as_array().map(Vec::len), Some(5));
    let programs: serde_json::Value = serde_json::from_slice(&bakewell(&["programs", "--json"]).stdout).unwrap();
    let embedded: u64 = doctor["architectures"].as_array().unwrap().iter().filter_map(|a| a["programs"].as_u64()).sum();
    assert_eq!(programs.as_array().map(|list| list.len() as u64), Some(embedded));
}
