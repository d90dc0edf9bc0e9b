//! `bakewell verify`: every golden case on a device, compared, and what that proves about each program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bakewell::program::{Evidence, Sha256Hex};
use bakewell::{Arch, Device, DeviceName, Operation};
use bakewell_conformance::compare::{Comparison, compare};
use bakewell_conformance::gqa_decode::{self, Case, Expected, Golden, Inputs, Outputs, lse_tolerance, out_tolerance};
use serde::Serialize;

use crate::args::{OperationArg, open};
use crate::environment;
use crate::report::{Report, table};

/// Seed of generated inputs.
const INPUT_SEED: u64 = 17;

/// Arguments of `verify`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Operation; all of them if none is named.
    operation: Option<OperationArg>,
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

/// One case.
#[derive(Serialize)]
struct CaseOutcome {
    operation: Operation,
    case: String,
    /// `golden` or `reference`: what the output was compared with.
    against: &'static str,
    program: Option<String>,
    relative_l2: Option<f64>,
    max_absolute: Option<f64>,
    max_relative: Option<f64>,
    worst: Option<String>,
    /// Why the case failed: an error beyond tolerance, a finding of the checker, an error of the device.
    failure: Option<String>,
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
    let device = open(args.device)?;
    let mut cases = Vec::new();
    let mut programs = BTreeMap::new();
    for operation in args.operation.map_or(OperationArg::ALL.to_vec(), |operation| vec![operation]) {
        match operation {
            OperationArg::GqaDecode => {
                for case in gqa_decode_cases(args)? {
                    let (outcome, plan) = case.verify(&device, args.seeds);
                    if let Some(decision) = plan.as_ref().and_then(|plan| plan.decision()) {
                        let variant = bakewell::schedule::Schedule::variant(decision.schedule);
                        credit(
                            &mut programs,
                            &device,
                            args.seeds,
                            operation.operation(),
                            &variant,
                            outcome.failure.is_none(),
                        )?;
                    }
                    cases.push(outcome);
                }
            }
        }
    }
    let gpu = gpu_name(&device);
    let verification = Verification {
        device: device.name(),
        driver: gpu.as_ref().and_then(|_| environment::driver()),
        name: gpu,
        date: environment::date(),
        runs_per_case: args.seeds,
        passed: cases.iter().all(|case| case.failure.is_none()),
        cases,
        programs: programs.into_values().collect(),
    };
    let failed = !verification.passed;
    if args.json {
        return Report::json(&verification, failed);
    }
    Ok(Report { text: render(&verification), failed })
}

/// Product name of a GPU; `None` for other devices.
fn gpu_name(device: &Device) -> Option<String> {
    let name = device.name();
    let devices = bakewell::cuda::devices().ok()?;
    devices.into_iter().find(|facts| name == format!("cuda:{}", facts.ordinal)).map(|facts| facts.name)
}

/// Notes that a program ran a case.
fn credit(
    programs: &mut BTreeMap<(Operation, String), ProgramOutcome>,
    device: &Device,
    seeds: u32,
    operation: Operation,
    variant: &str,
    passed: bool,
) -> anyhow::Result<()> {
    let Some(library) = device.library()? else {
        return Ok(());
    };
    let Ok(program) = library.program(operation, variant) else {
        return Ok(());
    };
    let (sha256, evidence) = match gpu_name(device) {
        Some(name) => {
            let driver = environment::driver().unwrap_or_default();
            (&program.record.cubin.sha256, Evidence::Hardware { device: name, driver, date: environment::date() })
        }
        None => (&program.record.ptx.sha256, Evidence::Emulator { seeds }),
    };
    let outcome = programs.entry((operation, variant.to_owned())).or_insert_with(|| ProgramOutcome {
        operation,
        variant: variant.to_owned(),
        arch: library.arch,
        sha256: sha256.clone(),
        evidence,
        cases: 0,
        passed: true,
    });
    outcome.cases += 1;
    outcome.passed &= passed;
    Ok(())
}

/// One case of grouped-query decode attention.
struct GqaDecodeCase {
    name: String,
    against: &'static str,
    inputs: Inputs,
    expected: Expected,
}

impl GqaDecodeCase {
    fn from_golden(golden: Golden) -> anyhow::Result<GqaDecodeCase> {
        // A golden has no log-sum-exp: the reference gives it.
        let lse = golden.inputs.expected()?.lse;
        let expected = Expected { lse, ..golden.expected };
        Ok(GqaDecodeCase { name: golden.name, against: "golden", inputs: golden.inputs, expected })
    }

    fn generated(case: &Case) -> anyhow::Result<GqaDecodeCase> {
        let inputs = case.inputs(INPUT_SEED)?;
        Ok(GqaDecodeCase { name: case.name.clone(), against: "reference", expected: inputs.expected()?, inputs })
    }

    /// Runs with and without the log-sum-exp, `runs` times each, and compares.
    fn verify(&self, device: &Device, runs: u32) -> (CaseOutcome, Option<bakewell::gqa_decode::Plan>) {
        let mut outcome = CaseOutcome {
            operation: Operation::GqaDecode,
            case: self.name.clone(),
            against: self.against,
            program: None,
            relative_l2: None,
            max_absolute: None,
            max_relative: None,
            worst: None,
            failure: None,
        };
        let plan = device.plan(&self.inputs.problem).ok();
        outcome.program = plan.as_ref().and_then(|plan| plan.decision()).map(|decision| decision.program());
        match self.run(device, runs) {
            Ok(outputs) => match self.judge(&outputs) {
                Ok((comparison, verdict)) => {
                    outcome.relative_l2 = Some(comparison.relative_l2);
                    outcome.max_absolute = Some(comparison.max_absolute);
                    outcome.max_relative = Some(comparison.max_relative);
                    outcome.worst = comparison.worst.as_ref().map(ToString::to_string);
                    outcome.failure = verdict.err();
                }
                Err(error) => outcome.failure = Some(error.to_string()),
            },
            Err(failure) => outcome.failure = Some(format!("{failure:#}")),
        }
        (outcome, plan)
    }

    /// The outputs, if every run gave the same bits.
    fn run(&self, device: &Device, runs: u32) -> anyhow::Result<Outputs> {
        let mut wanted = self.inputs.clone();
        wanted.problem.lse = true;
        let first = gqa_decode::run(device, &wanted)?.outputs;
        for _ in 1..runs {
            anyhow::ensure!(gqa_decode::run(device, &wanted)?.outputs == first, "two runs gave different bits");
        }
        wanted.problem.lse = false;
        let without = gqa_decode::run(device, &wanted)?.outputs;
        anyhow::ensure!(without.out == first.out, "asking for the log-sum-exp changed the bits of the output");
        Ok(first)
    }

    /// The comparison of the output, and the verdict on output and log-sum-exp.
    fn judge(&self, outputs: &Outputs) -> bakewell::Result<(Comparison, Result<(), String>)> {
        let out = compare(&outputs.out.shape, &outputs.out.to_f64()?, &self.expected.out)?;
        let mut verdict =
            out.verdict(&out_tolerance(self.inputs.problem.dtype)).map_err(|reason| format!("out: {reason}"));
        if let (Ok(()), Some(lse), Some(expected)) = (&verdict, &outputs.lse, &self.expected.lse) {
            let lse = compare(&lse.shape, &lse.to_f64()?, expected)?;
            verdict = lse.verdict(&lse_tolerance(&self.inputs)?).map_err(|reason| format!("lse: {reason}"));
        }
        Ok((out, verdict))
    }
}

/// Goldens, and with the source tree's also the generated cases.
fn gqa_decode_cases(args: &Args) -> anyhow::Result<Vec<GqaDecodeCase>> {
    let name = Operation::GqaDecode.name();
    let (folder, generated) = match &args.cases {
        Some(folder) if folder.join(name).is_dir() => (folder.join(name), None),
        Some(folder) => (folder.clone(), None),
        None => {
            let tests = tests_folder(name)?;
            (tests.join("golden").join(name), Some(tests.join("cases").join(format!("{name}.json"))))
        }
    };
    let mut cases =
        Golden::load_all(&folder)?.into_iter().map(GqaDecodeCase::from_golden).collect::<Result<Vec<_>, _>>()?;
    if let Some(text) = generated.and_then(|path| std::fs::read_to_string(path).ok()) {
        let generated: Vec<Case> = serde_json::from_str(&text)?;
        for case in &generated {
            cases.push(GqaDecodeCase::generated(case)?);
        }
    }
    Ok(cases)
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
            number(case.relative_l2),
            number(case.max_absolute),
            case.failure.as_ref().map_or("passed".to_owned(), |failure| format!("FAILED: {failure}")),
        ]);
    }
    let failed = verification.cases.iter().filter(|case| case.failure.is_some()).count();
    let name = verification.name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
    format!(
        "{rows}\n{} on {}{name}: {} passed, {failed} failed\n",
        "verify",
        verification.device,
        verification.cases.len() - failed
    )
}

#[cfg(test)]
mod tests {
    use bakewell::gqa_decode::GqaDecode;
    use bakewell_conformance::gqa_decode::Distribution;
    use bakewell_conformance::{HostTensor, TensorFile};

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
        file.save(&folder.join("small.safetensors")).unwrap();
        folder
    }

    fn verify(folder: &Path, json: bool) -> Report {
        let args =
            Args { operation: None, cases: Some(folder.to_owned()), device: DeviceName::Reference, seeds: 2, json };
        main(&args).unwrap()
    }

    #[test]
    fn right_goldens_pass_wrong_ones_fail_and_json_says_the_same() {
        let (good, wrong) = (golden_folder("good", 0.0), golden_folder("wrong", 0.1));
        let report = verify(&good, false);
        assert!(
            !report.failed && report.text.ends_with("verify on reference: 1 passed, 0 failed\n"),
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
