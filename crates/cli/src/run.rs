//! `bakewell run`: an operation on tensors from a file.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use bakewell::{DType, Device, DeviceName, Operation};
use bakewell_conformance::{
    HostTensor, Judged, Outputs, TensorFile, gdn, gqa_decode, nvfp4_context, nvfp4_pre_attention,
};

use crate::args::{Opened, open, operations};
use crate::report::Report;

/// Arguments of `run`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Operation.
    #[arg(value_parser = operations())]
    operation: Operation,
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
    /// Also what the device's programs make of the pages of the cache: `k_deq` and `v_deq` as E4M3 (nvfp4_context).
    #[arg(long)]
    debug: bool,
    /// Also print what was moved and how fast, and an emulator's counters.
    #[arg(long)]
    stats: bool,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<Report> {
    let file = TensorFile::load("input", &args.input)?;
    let opened = open(args.device, args.seed)?;
    if args.seed != 0 && opened.emulator.is_none() {
        tracing::warn!(device = %opened.device, "a seed changes nothing here: only an emulator has an order to choose");
    }
    if args.debug && args.operation != Operation::Nvfp4Context {
        anyhow::bail!("debug: expected the operation {}, got {}", Operation::Nvfp4Context, args.operation);
    }
    let mut ran = match args.operation {
        Operation::GqaDecode => run::<gqa_decode::Inputs>(args, &file, &opened),
        Operation::Nvfp4Context => run::<nvfp4_context::Inputs>(args, &file, &opened),
        Operation::Nvfp4PreAttention => run::<nvfp4_pre_attention::Inputs>(args, &file, &opened),
        Operation::Gdn => run::<gdn::Inputs>(args, &file, &opened),
    }?;
    if args.debug {
        let pages = run::<nvfp4_context::PagesInputs>(args, &file, &opened)?;
        ran.outputs.0.extend(pages.outputs.0);
        ran.report.text.push_str(&pages.report.text);
        ran.report.failed |= pages.report.failed;
    }
    if let Some(path) = &args.output {
        save(path, args.operation, &opened.device, &ran.outputs)?;
    }
    ran.report.text.insert_str(0, &format!("device   {}\n", opened.device));
    Ok(ran.report)
}

/// What came out of the calls of a file, and what is said of it.
struct Ran {
    outputs: Outputs,
    report: Report,
}

/// Runs the inputs of a file with every optional output, and judges them where the file has a golden.
fn run<I: Judged>(args: &Args, file: &TensorFile, opened: &Opened) -> anyhow::Result<Ran> {
    if let Some(of) = file.metadata.get("op").filter(|of| *of != I::OPERATION.name()) {
        anyhow::bail!(
            "input: expected a file of the operation {}, got one whose metadata says op = {of:?}",
            I::OPERATION
        );
    }
    let device = &opened.device;
    let inputs = I::from_file(file)?.complete();
    let planned = inputs.plan(device)?;
    let (outputs, time) = inputs.run(device)?;
    let mut text = String::new();
    planned.lines.iter().try_for_each(|plan| writeln!(text, "plan     {plan}"))?;
    writeln!(text, "time     {:.1} us from launch to the end of the work, cold", time.as_secs_f64() * 1e6)?;
    for (name, tensor) in &outputs.0 {
        writeln!(text, "{name:<8} {}", preview(tensor)?)?;
    }
    if args.stats {
        let bytes = inputs.live_bytes()?;
        let rate = bytes as f64 / time.as_secs_f64().max(1e-9) / 1e9;
        writeln!(text, "stats    {bytes} bytes of live inputs and outputs, {rate:.3} GB/s")?;
    }
    if let Some(emulator) = &opened.emulator {
        let report = emulator.take_report();
        report.findings.iter().try_for_each(|finding| writeln!(text, "{finding}"))?;
        if args.stats {
            text.push_str(&crate::emulate::stats(&report.counters)?);
        }
    }
    let mut failed = false;
    if let Some(expected) = I::golden(file)? {
        let verdict = inputs.judge(&outputs, &expected, device)?;
        writeln!(text, "golden   {}", verdict.summary)?;
        failed = verdict.failure.is_some();
        match verdict.failure {
            None => writeln!(text, "passed   within the tolerance of the operation")?,
            Some(reason) => writeln!(text, "FAILED   {reason}")?,
        }
    }
    Ok(Ran { outputs, report: Report { text, failed } })
}

fn save(path: &Path, operation: Operation, device: &Device, outputs: &Outputs) -> anyhow::Result<()> {
    let mut file = TensorFile::default();
    file.metadata.insert("op".into(), operation.name().into());
    file.metadata.insert("device".into(), device.name());
    file.tensors.extend(outputs.0.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())));
    Ok(file.save("output", path)?)
}

/// Type, shape and the first values of a tensor.
fn preview(tensor: &HostTensor) -> anyhow::Result<String> {
    const SHOWN: usize = 4;
    let values: Vec<String> = match tensor.dtype {
        // Packed codes are no numbers.
        DType::U8 => tensor.bytes.iter().take(SHOWN + 1).map(|byte| format!("{byte:#04x}")).collect(),
        _ => tensor.to_f64()?.iter().take(SHOWN + 1).map(|value| format!("{value:.5}")).collect(),
    };
    let first = values.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = if values.len() > SHOWN { ", ..." } else { "" };
    Ok(format!("{} {:?} = {first}{more}", tensor.dtype, tensor.shape))
}

#[cfg(test)]
mod tests {
    use bakewell::gqa_decode::GqaDecode;
    use bakewell_conformance::gqa_decode::{Distribution, Inputs};

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
        file.save("output", &path).unwrap();
        path
    }

    fn args(input: PathBuf, output: Option<PathBuf>) -> Args {
        Args {
            operation: Operation::GqaDecode,
            input,
            output,
            device: DeviceName::Reference,
            seed: 0,
            debug: false,
            stats: true,
        }
    }

    #[test]
    fn a_file_with_its_golden_passes_and_a_wrong_golden_fails() {
        let (good, wrong, output) = (file("good", 0.0), file("wrong", 0.5), file("output", 0.0));
        let report = main(&args(good.clone(), Some(output.clone()))).unwrap();
        assert!(!report.failed && report.text.contains("\npassed "), "{}", report.text);
        let written = TensorFile::load("output", &output).unwrap();
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
    fn debug_adds_the_pages_of_the_cache_and_no_other_operation_has_them() {
        let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/nvfp4_context");
        let of = |golden: &str, operation, output| {
            let debug = Args { operation, debug: true, ..args(goldens.join(golden), output) };
            main(&debug)
        };
        let golden = TensorFile::load("golden", &goldens.join("raw_codes_g4.safetensors")).unwrap();
        let output = std::env::temp_dir().join(format!("bakewell-run-{}-debug.safetensors", std::process::id()));
        let report = of("raw_codes_g4.safetensors", Operation::Nvfp4Context, Some(output.clone())).unwrap();
        assert!(!report.failed && report.text.matches("\npassed ").count() == 2, "{}", report.text);
        assert_eq!(report.text.matches("device   ").count(), 1, "{}", report.text);
        let written = TensorFile::load("output", &output).unwrap();
        std::fs::remove_file(output).unwrap();
        assert_eq!(written.tensors.keys().collect::<Vec<_>>(), ["k_deq", "lse", "out", "v_deq"]);
        for name in ["k_deq", "v_deq"] {
            let golden = golden.tensor(name).unwrap();
            assert_eq!(written.codes(name, &golden.shape).unwrap(), golden.bytes, "{name}");
        }
        // NaN scales leave the outputs open, not the pages.
        let report = of("nan_scales_dequant_only.safetensors", Operation::Nvfp4Context, None).unwrap();
        assert!(!report.failed && report.text.contains("24576 of 24576 bytes are right"), "{}", report.text);
        let error = of("raw_codes_g4.safetensors", Operation::GqaDecode, None).err().unwrap().to_string();
        assert_eq!(error, "debug: expected the operation nvfp4_context, got gqa_decode");
    }

    #[test]
    fn a_file_of_another_operation_is_refused() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gqa_decode/one_key.safetensors");
        let of = |operation| Args { operation, ..args(golden.clone(), None) };
        assert!(!main(&of(Operation::GqaDecode)).unwrap().failed);
        let error = main(&of(Operation::Gdn)).err().unwrap().to_string();
        assert_eq!(
            error,
            "input: expected a file of the operation gdn, got one whose metadata says op = \"gqa_decode\""
        );
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = main(&args("nowhere.safetensors".into(), None)).err().unwrap();
        let text = error.to_string();
        assert!(text.starts_with("input: expected a readable safetensors file, got nowhere.safetensors: "), "{text}");
    }
}
