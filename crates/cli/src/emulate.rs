//! `bakewell emulate`: any PTX on the emulator, with its checkers.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use bakewell::Arch;
use bakewell_emulator::launch_file::{FileTensor, LaunchFile};
use bakewell_emulator::trace::Path as BytePath;
use bakewell_emulator::{Counters, Emulator, Finding, Module, Options, Target};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use crate::args::with_seed;
use crate::report::Report;

/// Arguments of `emulate`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// PTX text.
    #[arg(long)]
    ptx: PathBuf,
    /// Entry; may be left out when there is one.
    #[arg(long)]
    kernel: Option<String>,
    /// Grid, block, cluster, dynamic shared bytes and parameters, as JSON.
    #[arg(long)]
    launch: PathBuf,
    /// Safetensors file with the tensors that the launch names.
    #[arg(long)]
    input: Option<PathBuf>,
    /// Where the tensors marked as outputs go, as safetensors.
    #[arg(long)]
    output: Option<PathBuf>,
    /// sm90, sm100, sm103, sm107 or sm110; the module's own target when left out.
    #[arg(long, value_parser = Arch::parse)]
    arch: Option<Arch>,
    /// Schedules to try: warp order and completion times.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Most warp instructions of one cluster; max_instructions of the launch file, or 2000000000, when left out.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    max_instructions: Option<u64>,
    /// Also print the counters.
    #[arg(long)]
    stats: bool,
    /// Also warn about tcgen05.fence that is missing; some compilers emit none.
    #[arg(long)]
    tensor_fences: bool,
    /// Also warn about generic reads of shared memory that a copy overwrites without fence.proxy.async between.
    #[arg(long)]
    read_fences: bool,
    /// Also warn about mbarriers that a CTA leaves in a phase with some of its arrivals and not all.
    #[arg(long)]
    open_phases: bool,
}

/// A minute or so of one core: a foreign kernel that takes longer has more likely no end.
const FOREIGN_INSTRUCTION_LIMIT: u64 = 2_000_000_000;

type Tensors = BTreeMap<String, FileTensor>;

/// What one schedule did.
struct Run {
    findings: Vec<Finding>,
    counters: Counters,
    printed: String,
    outputs: Tensors,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<Report> {
    let text = read(&args.ptx)?;
    let text = String::from_utf8(text).with_context(|| format!("{}: expected text", args.ptx.display()))?;
    let module = Module::parse(&text).with_context(|| args.ptx.display().to_string())?;
    let kernel = kernel(args, &module)?;
    let target = target(args, &module)?;
    let launch = String::from_utf8(read(&args.launch)?).context("launch file: expected text")?;
    let launch = LaunchFile::parse(&launch).with_context(|| args.launch.display().to_string())?;
    let inputs = args.input.as_deref().map(load).transpose()?.unwrap_or_default();
    let mut report = String::new();
    writeln!(report, "kernel   {kernel}")?;
    writeln!(report, "device   emulated {target}")?;
    let mut first: Option<Run> = None;
    let mut seen: Vec<Finding> = Vec::new();
    let mut different = Vec::new();
    for seed in 0..args.seeds {
        let run = run(args, &module, &kernel, target, &launch, &inputs, seed)?;
        for finding in &run.findings {
            let same = |f: &&Finding| (f.kind, f.line, &f.object) == (finding.kind, finding.line, &finding.object);
            if !seen.iter().any(|known| same(&known)) {
                seen.push(finding.clone());
            }
        }
        match &first {
            Some(first) => {
                let names = first.outputs.iter().filter(|(name, tensor)| run.outputs.get(*name) != Some(*tensor));
                different.extend(names.map(|(name, _)| format!("{name} (seed {seed})")));
            }
            None => first = Some(run),
        }
    }
    let Some(first) = first else {
        bail!("seeds: expected at least 1");
    };
    report.push_str(&first.printed);
    for finding in &seen {
        writeln!(report, "{finding}")?;
    }
    let faults = seen.iter().filter(|finding| !finding.warning).count();
    writeln!(report, "findings {faults} faults, {} warnings over {} schedules", seen.len() - faults, args.seeds)?;
    if different.is_empty() {
        writeln!(report, "outputs  {} tensors, the same bytes in every schedule", first.outputs.len())?;
    } else {
        writeln!(report, "outputs  differ between schedules: {}", different.join(", "))?;
    }
    if args.stats {
        report.push_str(&stats(&first.counters)?);
    }
    if let Some(path) = &args.output {
        save(path, &first.outputs)?;
    }
    Ok(Report { text: report, failed: faults > 0 })
}

fn run(
    args: &Args,
    module: &Module,
    kernel: &str,
    target: Target,
    launch: &LaunchFile,
    inputs: &Tensors,
    seed: u64,
) -> anyhow::Result<Run> {
    let mut options = with_seed(Options::new(target), seed);
    options.checks.tensor_fences = args.tensor_fences;
    options.checks.read_fences = args.read_fences;
    options.checks.open_phases = args.open_phases;
    options.instruction_limit =
        args.max_instructions.or(launch.max_instructions()).unwrap_or(FOREIGN_INSTRUCTION_LIMIT);
    let device = Emulator::new(target, options);
    let loaded = device.load(module)?;
    let bound = launch.bind(&device, &*loaded.kernel(kernel)?, inputs)?;
    let report = device.launch(&loaded, kernel, bound.launch, &bound.params)?;
    Ok(Run {
        findings: report.findings,
        counters: report.counters,
        printed: report.output,
        outputs: bound.outputs(&device)?,
    })
}

fn kernel(args: &Args, module: &Module) -> anyhow::Result<String> {
    let kernels = module.kernels();
    match (&args.kernel, kernels.as_slice()) {
        (Some(name), _) if kernels.contains(&name.as_str()) => Ok(name.clone()),
        (None, [only]) => Ok((*only).to_string()),
        (given, _) => {
            let expected = match kernels.is_empty() {
                true => "a module with an .entry and its body".to_string(),
                false => format!("one of {}", kernels.join(", ")),
            };
            bail!("kernel: expected {expected}, got {}", given.as_deref().unwrap_or("none"))
        }
    }
}

fn target(args: &Args, module: &Module) -> anyhow::Result<Target> {
    if let Some(arch) = args.arch {
        return Ok(arch.into());
    }
    let word = module.tree.target.first().map_or("none", String::as_str);
    let known = Target::ALL.map(|target| target.to_string()).join(", ");
    Target::parse(word).with_context(|| format!("ptx: expected a .target that runs as one of {known}, got {word}"))
}

/// Counters in lines.
pub(crate) fn stats(counters: &Counters) -> anyhow::Result<String> {
    let mut text = String::new();
    let per_warp: Vec<String> = counters.instructions_by_warp.iter().map(u64::to_string).collect();
    writeln!(text, "stats    {} warp instructions, {} CTAs", counters.warp_instructions, counters.ctas)?;
    writeln!(text, "         by warp of the CTA: {}", per_warp.join(" "))?;
    for path in BytePath::ALL {
        let bytes = counters.bytes(path);
        if bytes > 0 {
            let name = serde_json::to_value(path)?;
            writeln!(text, "         {bytes} bytes {}", name.as_str().unwrap_or_default())?;
        }
    }
    for (kind, count) in &counters.matrix {
        writeln!(text, "         {} {kind}, {} multiply-adds", count.instructions, count.multiply_adds)?;
    }
    writeln!(
        text,
        "         {} barrier waits, {} retries, {} bank conflicts, {} exponentials",
        counters.barrier_waits, counters.barrier_retries, counters.bank_conflicts, counters.exponentials
    )?;
    Ok(text)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| path.display().to_string())
}

fn load(path: &Path) -> anyhow::Result<Tensors> {
    let bytes = read(path)?;
    let file = SafeTensors::deserialize(&bytes).with_context(|| path.display().to_string())?;
    let tensors = file.iter().map(|(name, tensor)| {
        let shape = tensor.shape().iter().map(|&size| size as u64).collect();
        let dtype = serde_json::to_value(tensor.dtype())?.as_str().unwrap_or_default().to_string();
        Ok((name.to_string(), FileTensor { dtype, shape, bytes: tensor.data().to_vec() }))
    });
    tensors.collect()
}

fn save(path: &Path, tensors: &Tensors) -> anyhow::Result<()> {
    let views = tensors.iter().map(|(name, tensor)| {
        let shape = tensor.shape.iter().map(|&size| size as usize).collect();
        Ok((name.as_str(), TensorView::new(file_type(&tensor.dtype)?, shape, &tensor.bytes)?))
    });
    let views = views.collect::<anyhow::Result<Vec<_>>>()?;
    let bytes = safetensors::serialize(views, None)?;
    std::fs::write(path, bytes).with_context(|| path.display().to_string())
}

/// The file's name of an element type.
fn file_type(name: &str) -> anyhow::Result<Dtype> {
    let upper = match name.to_ascii_uppercase().as_str() {
        "E4M3" => "F8_E4M3".to_string(),
        "E5M2" => "F8_E5M2".to_string(),
        "UE8M0" => "F8_E8M0".to_string(),
        other => other.to_string(),
    };
    serde_json::from_value(serde_json::Value::String(upper))
        .with_context(|| format!("output: expected an element type of safetensors, got {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = ".version 8.6\n.target sm_100a\n.address_size 64\n.shared .b32 s;
.visible .entry twice(.param .u64 x, .param .u64 y, .param .u32 n) {
 .reg .b32 %r<4>; .reg .b64 %rd<6>; .reg .pred %p;
 ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.u32 %r3, [n];
 mov.u32 %r1, %tid.x; setp.ge.u32 %p, %r1, %r3; @%p ret; mul.wide.u32 %rd3, %r1, 4;
 add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;
 ld.global.u32 %r2, [%rd1]; add.u32 %r2, %r2, %r2; st.global.u32 [%rd2], %r2; ret; }";

    fn scratch(name: &str, data: &[u8]) -> PathBuf {
        let path = std::env::temp_dir().join(format!("bakewell-emulate-{}-{name}", std::process::id()));
        std::fs::write(&path, data).unwrap();
        path
    }

    #[test]
    fn runs_foreign_ptx_and_fails_on_findings() {
        let x =
            FileTensor { dtype: "I32".into(), shape: vec![8], bytes: (1..=8i32).flat_map(i32::to_le_bytes).collect() };
        let input = scratch("in", b"");
        save(&input, &Tensors::from([("x".to_string(), x)])).unwrap();
        let output = scratch("out", b"");
        let launch = |n: u32| {
            format!(
                r#"{{"grid": [1], "block": [32], "params": [{{"tensor": "x"}}, {{"tensor": "y", "poison": "i32", "shape": [8], "out": true}}, {{"u32": {n}}}]}}"#
            )
        };
        let mut args = Args {
            ptx: scratch("k.ptx", PTX.as_bytes()),
            kernel: None,
            launch: scratch("good.json", launch(8).as_bytes()),
            input: Some(input),
            output: Some(output.clone()),
            arch: Some(Arch::Sm103),
            seeds: 3,
            max_instructions: None,
            stats: true,
            tensor_fences: false,
            read_fences: false,
            open_phases: false,
        };
        assert!(main(&args).is_err(), "sm_100a programs do not run on sm103");
        args.arch = None;
        let report = main(&args).unwrap();
        assert!(!report.failed && report.text.contains("findings 0 faults, 0 warnings"), "{}", report.text);
        assert!(report.text.contains("32 bytes global_load"), "{}", report.text);
        let written = load(&output).unwrap();
        let doubled: Vec<u8> = (1..=8i32).flat_map(|v| (2 * v).to_le_bytes()).collect();
        assert_eq!(written["y"], FileTensor { dtype: "I32".into(), shape: vec![8], bytes: doubled });
        args.launch = scratch("past.json", launch(9).as_bytes());
        let report = main(&args).unwrap();
        assert!(report.failed && report.text.contains("past the end of x"), "{}", report.text);
        // Fifteen instructions: those of the file stand where none are given.
        let limited = launch(8).replacen('{', r#"{"max_instructions": 5, "#, 1);
        args.launch = scratch("limited.json", limited.as_bytes());
        let report = main(&args).unwrap();
        assert!(report.failed && report.text.contains("5 warp instructions in one cluster"), "{}", report.text);
        args.max_instructions = Some(100);
        assert!(!main(&args).unwrap().failed);
        args.max_instructions = None;
        args.ptx = scratch("empty.ptx", b".version 8.6\n.target sm_100a\n.address_size 64\n");
        assert_eq!(
            main(&args).err().unwrap().to_string(),
            "kernel: expected a module with an .entry and its body, got none"
        );
    }
}
