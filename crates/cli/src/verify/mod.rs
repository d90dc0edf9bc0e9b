//! `bakewell verify`: every golden case on a device, compared, and what that proves about each program.
//!
//! | module | cases |
//! |---|---|
//! | [`case`] | any operation: what is run, and what counts |
//! | [`gqa_decode`] | grouped-query decode attention |
//! | [`nvfp4_context`] | NVFP4 paged-context attention |
//! | [`nvfp4_pre_attention`] | NVFP4 pre-attention |
//! | [`gdn`] | Gated DeltaNet training |

mod case;
mod gdn;
mod gqa_decode;
mod nvfp4_context;
mod nvfp4_pre_attention;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context;
use bakewell::program::{Evidence, Sha256Hex};
use bakewell::{Arch, Device, DeviceName, Operation};
use serde::Serialize;

use self::case::CaseOutcome;
use crate::args::{Opened, open_runs, operations};
use crate::environment;
use crate::report::{Report, table};

/// Arguments of `verify`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Operation; all of them if none is named.
    #[arg(value_parser = operations())]
    operation: Option<Operation>,
    /// Folder of golden files, or of one folder per operation. Without it: the goldens and the generated cases of the
    /// source tree, looked for in the current directory and above it, then where this program was built.
    #[arg(long)]
    cases: Option<PathBuf>,
    /// auto | cuda:N | emulated:smNN | reference.
    #[arg(long, default_value = "auto")]
    device: DeviceName,
    /// Runs per case; their bits must agree.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    seeds: u32,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// The whole outcome.
#[derive(Serialize)]
struct Verification {
    device: String,
    name: Option<String>,
    driver: Option<String>,
    date: String,
    runs_per_case: u32,
    cases: Vec<CaseOutcome>,
    /// What the outcome says about each program that ran.
    programs: Vec<ProgramOutcome>,
    passed: bool,
}

/// One program: passed when every case that ran it did.
#[derive(Clone, Serialize)]
struct ProgramOutcome {
    operation: Operation,
    variant: String,
    arch: Arch,
    /// Digest of the bytes that ran: the cubin on a GPU, the PTX on the emulator.
    sha256: Sha256Hex,
    evidence: Evidence,
    cases: usize,
    passed: bool,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<Report> {
    let opened = open_runs(args.device, args.seeds)?;
    let devices: Vec<Device> = opened.iter().map(|opened| opened.device.clone()).collect();
    let (device, others) = devices.split_first().context("seeds: expected at least 1")?;
    let mut outcomes = Vec::new();
    let mut programs = BTreeMap::new();
    for operation in args.operation.map_or(Operation::ALL.to_vec(), |operation| vec![operation]) {
        let cases = match operation {
            Operation::GqaDecode => gqa_decode::cases(args, device)?,
            Operation::Nvfp4Context => nvfp4_context::cases(args, device)?,
            Operation::Nvfp4PreAttention => nvfp4_pre_attention::cases(args, device)?,
            Operation::Gdn => gdn::cases(args, device)?,
        };
        for case in cases {
            let mut outcome = case.outcome(device, others);
            outcome.warnings = warnings(&opened);
            credit(&mut programs, device, args.seeds, &outcome)?;
            outcomes.push(outcome);
        }
    }
    if let (Some(folder), true) = (&args.cases, outcomes.is_empty()) {
        anyhow::bail!("cases: expected inputs with their goldens, got none in {}", folder.display());
    }
    let gpu = gpu_name(device);
    let verification = Verification {
        device: device.name(),
        driver: gpu.as_ref().and_then(|_| environment::driver()),
        name: gpu,
        date: environment::date(),
        runs_per_case: args.seeds,
        passed: outcomes.iter().all(|case| case.failure.is_none()),
        cases: outcomes,
        programs: programs.into_values().collect(),
    };
    let failed = !verification.passed;
    if args.json {
        return Report::json(&verification, failed);
    }
    Ok(Report { text: render(&verification), failed })
}

/// What emulators warned of since they were last asked, each warning once.
fn warnings(opened: &[Opened]) -> Vec<String> {
    let reports = opened.iter().filter_map(|opened| Some(opened.emulator.as_ref()?.take_report()));
    let findings = reports.flat_map(|report| report.findings).filter(|finding| finding.warning);
    findings.map(|finding| finding.to_string()).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Product name of a GPU; `None` for other devices.
fn gpu_name(device: &Device) -> Option<String> {
    let name = device.name();
    let devices = bakewell::cuda::devices().ok()?;
    devices.into_iter().find(|facts| name == format!("cuda:{}", facts.ordinal)).map(|facts| facts.name)
}

/// Notes what a case says about its program.
fn credit(
    programs: &mut BTreeMap<(Operation, String), ProgramOutcome>,
    device: &Device,
    seeds: u32,
    case: &CaseOutcome,
) -> anyhow::Result<()> {
    let Some(library) = device.library()? else { return Ok(()) };
    for variant in &case.variants {
        let Ok(program) = library.program(case.operation, variant) else { continue };
        let (sha256, evidence) = match gpu_name(device) {
            Some(name) => {
                let driver = environment::driver().unwrap_or_default();
                (&program.record.cubin.sha256, Evidence::Hardware { device: name, driver, date: environment::date() })
            }
            None => (&program.record.ptx.sha256, Evidence::Emulator { seeds }),
        };
        let outcome = programs.entry((case.operation, variant.clone())).or_insert_with(|| ProgramOutcome {
            operation: case.operation,
            variant: variant.clone(),
            arch: library.arch,
            sha256: sha256.clone(),
            evidence,
            cases: 0,
            passed: true,
        });
        outcome.cases += 1;
        outcome.passed &= case.failure.is_none();
    }
    Ok(())
}

/// The folder of an operation's goldens, and with the source tree's the file of its generated cases.
fn folders(args: &Args, operation: Operation) -> anyhow::Result<(PathBuf, Option<PathBuf>)> {
    let name = operation.name();
    Ok(match &args.cases {
        Some(folder) if folder.join(name).is_dir() => (folder.join(name), None),
        Some(folder) => (folder.clone(), None),
        None => {
            let tests = tests_folder(name)?;
            (tests.join("golden").join(name), Some(tests.join("cases").join(format!("{name}.json"))))
        }
    })
}

/// The `tests` folder of the source tree: above the current directory, or where this program was built.
fn tests_folder(operation: &str) -> anyhow::Result<PathBuf> {
    let here = std::env::current_dir()?;
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    here.ancestors()
        .chain([built.as_path()])
        .map(|folder| folder.join("tests"))
        .find(|tests| tests.join("golden").join(operation).is_dir())
        .ok_or_else(|| {
            anyhow::anyhow!(
                "cases: no tests/golden/{operation} in {} or above it; name a folder with --cases",
                here.display()
            )
        })
}

fn render(verification: &Verification) -> String {
    let mut rows = table(&["case", "against", "program", "relative L2", "absolute", "verdict"]);
    let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.2e}"));
    for case in &verification.cases {
        rows.add_row([
            format!("{}/{}", case.operation, case.case),
            case.against.to_owned(),
            case.program.clone().unwrap_or_default(),
            number(case.figures.as_ref().map(|figures| figures.relative_l2)),
            number(case.figures.as_ref().map(|figures| figures.max_absolute)),
            match (&case.failure, &case.skipped) {
                (Some(failure), _) => format!("FAILED: {failure}"),
                (None, Some(reason)) => format!("skipped: {reason}"),
                (None, None) => "passed".to_owned(),
            },
        ]);
    }
    let failed = verification.cases.iter().filter(|case| case.failure.is_some()).count();
    let skipped = verification.cases.iter().filter(|case| case.skipped.is_some()).count();
    let passed = verification.cases.len() - failed - skipped;
    let warnings: String = verification
        .cases
        .iter()
        .flat_map(|case| {
            case.warnings.iter().map(move |warning| format!("{}/{}: {warning}\n", case.operation, case.case))
        })
        .collect();
    let name = verification.name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
    let device = &verification.device;
    format!("{rows}\n{warnings}verify on {device}{name}: {passed} passed, {failed} failed, {skipped} skipped\n")
}

#[cfg(test)]
mod tests {
    use bakewell::gqa_decode::GqaDecode;
    use bakewell_conformance::gqa_decode::{Distribution, Inputs};
    use bakewell_conformance::{HostTensor, Judged, TensorFile};

    use super::*;

    fn golden_folder(name: &str, error: f64) -> PathBuf {
        let problem = GqaDecode { capacity: 5, ..GqaDecode::default() };
        let inputs = Inputs::generate(&problem, &[4, 0], Distribution::Normal, 1).unwrap();
        let out: Vec<f64> = inputs.expected().unwrap().out.iter().map(|value| value + error).collect();
        let mut file = TensorFile::default();
        file.tensors
            .insert("out_f32".into(), HostTensor::rounded(bakewell::DType::F32, &inputs.q.shape, &out).unwrap());
        file.tensors.insert("q".into(), inputs.q);
        file.tensors.insert("kv".into(), inputs.kv);
        file.tensors.insert("sequence_lengths".into(), inputs.sequence_lengths);
        let folder = std::env::temp_dir().join(format!("bakewell-verify-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        file.save("output", &folder.join("small.safetensors")).unwrap();
        folder
    }

    fn verify(folder: &Path, json: bool) -> Report {
        let args =
            Args { operation: None, cases: Some(folder.to_owned()), device: DeviceName::Reference, seeds: 2, json };
        main(&args).unwrap()
    }

    #[test]
    fn a_folder_without_a_golden_is_no_success() {
        let folder = golden_folder("none", 0.0);
        let path = folder.join("small.safetensors");
        let mut file = TensorFile::load("input", &path).unwrap();
        file.tensors.remove("out_f32");
        file.save("output", &path).unwrap();
        let args = Args {
            operation: Some(Operation::GqaDecode),
            cases: Some(folder.clone()),
            device: DeviceName::Reference,
            seeds: 1,
            json: false,
        };
        let error = main(&args).err().unwrap().to_string();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(error, format!("cases: expected inputs with their goldens, got none in {}", folder.display()));
    }

    #[test]
    fn right_goldens_pass_wrong_ones_fail_and_json_says_the_same() {
        let (good, wrong) = (golden_folder("good", 0.0), golden_folder("wrong", 0.1));
        let report = verify(&good, false);
        assert!(
            !report.failed && report.text.ends_with("verify on reference: 1 passed, 0 failed, 0 skipped\n"),
            "{}",
            report.text
        );
        let report = verify(&wrong, true);
        assert!(report.failed);
        let json: serde_json::Value = serde_json::from_str(&report.text).unwrap();
        assert_eq!((json["passed"].clone(), json["cases"][0]["case"].clone()), (false.into(), "small".into()));
        assert!(json["cases"][0]["failure"].as_str().unwrap().starts_with("out: absolute error"), "{json}");
        for folder in [good, wrong] {
            std::fs::remove_dir_all(folder).unwrap();
        }
    }
}
