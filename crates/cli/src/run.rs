//! `bakewell run`: an operation on tensors from a file.

use std::fmt::{Display, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bakewell::{Device, DeviceName};
use bakewell_conformance::compare::compare;
use bakewell_conformance::gqa_decode::{self, Expected, Inputs, Run, out_tolerance};
use bakewell_conformance::nvfp4_context::{self, ScaleOrigin};
use bakewell_conformance::{HostTensor, TensorFile};

use crate::args::{Opened, OperationArg, open};
use crate::report::Report;

/// Arguments of `run`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Operation.
    operation: OperationArg,
    /// Safetensors file with the input tensors; scalar parameters in its metadata.
    #[arg(long)]
    input: PathBuf,
    /// Where the outputs go, as safetensors.
    #[arg(long)]
    output: Option<PathBuf>,
    /// auto | cuda:N | emulated:smNN | reference.
    #[arg(long, default_value = "auto")]
    device: DeviceName,
    /// Order of an emulator's asynchronous work; any gives the same bits.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Also print what was moved and how fast, and an emulator's counters.
    #[arg(long)]
    stats: bool,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<Report> {
    let file = TensorFile::load(&args.input)?;
    let opened = open(args.device, args.seed)?;
    if args.seed != 0 && opened.emulator.is_none() {
        tracing::warn!(device = %opened.device, "a seed changes nothing here: only an emulator has an order to choose");
    }
    match args.operation {
        OperationArg::GqaDecode => gqa_decode(args, &file, &opened),
        OperationArg::Nvfp4Context => nvfp4_context(args, &file, &opened),
    }
}

fn nvfp4_context(args: &Args, file: &TensorFile, opened: &Opened) -> anyhow::Result<Report> {
    let device = &opened.device;
    let mut inputs = nvfp4_context::Inputs::from_file(file)?;
    inputs.problem.lse = true;
    let run = nvfp4_context::run(device, &inputs, ScaleOrigin::Host)?;
    let outputs = &run.outputs;
    if let Some(path) = &args.output {
        save(path, args.operation, device, &outputs.out, outputs.lse.as_ref())?;
    }
    let mut text = heading(device, &run.plan, run.time)?;
    let values = HostTensor::of(&outputs.out.shape, &nvfp4_context::inputs::decode(&outputs.out.bytes));
    writeln!(text, "out      {}", preview(&values)?)?;
    if let Some(lse) = &outputs.lse {
        writeln!(text, "lse      {}", preview(lse)?)?;
    }
    emulator_report(&mut text, args, opened)?;
    let mut failed = false;
    if let Some(golden) = nvfp4_context::Golden::from_file("input", file)? {
        let splits = run.plan.decision().map_or(1, |decision| decision.splits);
        let gates = nvfp4_context::Gates::of(device.arch(), splits);
        let judgement = nvfp4_context::judge(&inputs, outputs, &golden.expected, gates)?;
        writeln!(
            text,
            "golden   {:.2} % of bytes equal the model's, {:.2} % within a code, cosine to the exact answer {:.6}",
            judgement.equal * 100.0,
            judgement.neighbouring * 100.0,
            judgement.cosine
        )?;
        failed = judgement.failure.is_some();
        match judgement.failure {
            None => writeln!(text, "passed   within the gates of the operation")?,
            Some(reason) => writeln!(text, "FAILED   {reason}")?,
        }
    }
    Ok(Report { text, failed })
}

/// Device, plan and time of a run.
fn heading(device: &Device, plan: &dyn Display, time: Duration) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(text, "device   {device}")?;
    writeln!(text, "plan     {plan}")?;
    writeln!(text, "time     {:.1} us from launch to the end of the work, cold", time.as_secs_f64() * 1e6)?;
    Ok(text)
}

/// What an emulator found, and with `--stats` what it counted.
fn emulator_report(text: &mut String, args: &Args, opened: &Opened) -> anyhow::Result<()> {
    if let Some(emulator) = &opened.emulator {
        let report = emulator.take_report();
        report.findings.iter().try_for_each(|finding| writeln!(text, "{finding}"))?;
        if args.stats {
            text.push_str(&crate::emulate::stats(&report.counters)?);
        }
    }
    Ok(())
}

fn gqa_decode(args: &Args, file: &TensorFile, opened: &Opened) -> anyhow::Result<Report> {
    let device = &opened.device;
    let mut inputs = Inputs::from_file(file)?;
    inputs.problem.lse = true;
    let run = gqa_decode::run(device, &inputs)?;
    if let Some(path) = &args.output {
        save(path, args.operation, device, &run.outputs.out, run.outputs.lse.as_ref())?;
    }
    let mut text = heading(device, &run.plan, run.time)?;
    writeln!(text, "out      {}", preview(&run.outputs.out)?)?;
    if let Some(lse) = &run.outputs.lse {
        writeln!(text, "lse      {}", preview(lse)?)?;
    }
    if args.stats {
        writeln!(text, "{}", stats(&inputs, &run)?)?;
    }
    emulator_report(&mut text, args, opened)?;
    let mut failed = false;
    if let Ok(golden) = file.tensor("out_f32") {
        let expected = Expected { out: golden.to_f64()?, lse: None };
        let comparison = compare(&run.outputs.out.shape, &run.outputs.out.to_f64()?, &expected.out)?;
        writeln!(text, "golden   {comparison}")?;
        match comparison.verdict(&out_tolerance(inputs.problem.dtype)) {
            Ok(()) => writeln!(text, "passed   within the tolerance of the operation")?,
            Err(reason) => {
                failed = true;
                writeln!(text, "FAILED   {reason}")?;
            }
        }
    }
    Ok(Report { text, failed })
}

fn save(
    path: &Path,
    operation: OperationArg,
    device: &Device,
    out: &HostTensor,
    lse: Option<&HostTensor>,
) -> anyhow::Result<()> {
    let mut file = TensorFile::default();
    file.metadata.insert("op".into(), operation.operation().name().into());
    file.metadata.insert("device".into(), device.name());
    file.tensors.insert("out".into(), out.clone());
    if let Some(lse) = lse {
        file.tensors.insert("lse".into(), lse.clone());
    }
    Ok(file.save(path)?)
}

/// Type, shape and the first values of a tensor.
fn preview(tensor: &HostTensor) -> anyhow::Result<String> {
    const SHOWN: usize = 4;
    let values = tensor.to_f64()?;
    let first: Vec<String> = values.iter().take(SHOWN).map(|value| format!("{value:.5}")).collect();
    let more = if values.len() > SHOWN { ", ..." } else { "" };
    Ok(format!("{} {:?} = {}{more}", tensor.dtype, tensor.shape, first.join(", ")))
}

/// Bytes that the problem needs moved, and the rate of this run.
fn stats(inputs: &Inputs, run: &Run) -> anyhow::Result<String> {
    let bytes = crate::bench::gqa_decode::live_bytes(&inputs.problem, &inputs.sequence_lengths.to_i32()?);
    let rate = bytes as f64 / run.time.as_secs_f64().max(1e-9) / 1e9;
    Ok(format!("stats    {bytes} bytes of live inputs and outputs, {rate:.3} GB/s"))
}

#[cfg(test)]
mod tests {
    use bakewell::gqa_decode::GqaDecode;
    use bakewell_conformance::gqa_decode::Distribution;

    use super::*;

    /// A file with one small problem, and its right answer plus `error`.
    fn file(name: &str, error: f64) -> PathBuf {
        let problem = GqaDecode { capacity: 3, ..GqaDecode::default() };
        let inputs = Inputs::generate(&problem, &[2], Distribution::Normal, 1).unwrap();
        let golden: Vec<f64> = inputs.expected().unwrap().out.iter().map(|value| value + error).collect();
        let mut file = TensorFile::default();
        let golden = HostTensor::rounded(bakewell::DType::F32, &inputs.q.shape, &golden).unwrap();
        file.tensors.insert("q".into(), inputs.q);
        file.tensors.insert("kv".into(), inputs.kv);
        file.tensors.insert("sequence_lengths".into(), inputs.sequence_lengths);
        file.tensors.insert("out_f32".into(), golden);
        let path = std::env::temp_dir().join(format!("bakewell-run-{}-{name}.safetensors", std::process::id()));
        file.save(&path).unwrap();
        path
    }

    fn args(input: PathBuf, output: Option<PathBuf>) -> Args {
        Args { operation: OperationArg::GqaDecode, input, output, device: DeviceName::Reference, seed: 0, stats: true }
    }

    #[test]
    fn a_file_with_its_golden_passes_and_a_wrong_golden_fails() {
        let (good, wrong, output) = (file("good", 0.0), file("wrong", 0.5), file("output", 0.0));
        let report = main(&args(good.clone(), Some(output.clone()))).unwrap();
        assert!(!report.failed && report.text.contains("\npassed "), "{}", report.text);
        let written = TensorFile::load(&output).unwrap();
        assert_eq!(written.tensor("out").unwrap().shape, [1, 32, 128]);
        assert_eq!(written.tensor("lse").unwrap().shape, [1, 32]);
        assert_eq!(written.metadata["op"], "gqa_decode");

        let report = main(&args(wrong.clone(), None)).unwrap();
        assert!(report.failed && report.text.contains("\nFAILED "), "{}", report.text);
        for path in [good, wrong, output] {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = main(&args("nowhere.safetensors".into(), None)).err().unwrap();
        assert!(error.to_string().contains("nowhere.safetensors"), "{error}");
    }
}
