//! `truth record --out DIR [--on emulator|cuda:N] [FAMILY..]`: runs the cases and writes a record per family.
//!
//! With `--raw` the results themselves are written too, as `FAMILY.raw/NAME`. `truth ptx --out DIR` writes the programs, for
//! an assembler to check, and their operands, and runs nothing.
#![forbid(unsafe_code)]

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bakewell_cuda::CudaRuntime;
use bakewell_truth::case::Class;
use bakewell_truth::engine::{Device, Emulated, Engine};
use bakewell_truth::{Case, families, record};

const USAGE: &str = "truth (record --out DIR [--on emulator|cuda:N] [--raw] | ptx --out DIR) [FAMILY..]";

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let verb = args.next();
    if !matches!(verb.as_deref(), Some("record" | "ptx")) {
        bail!("usage: {USAGE}");
    }
    let (mut out, mut on, mut raw, mut names) = (None, "cuda:0".to_owned(), false, Vec::new());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--out" => out = Some(PathBuf::from(args.next().context(USAGE)?)),
            "--on" => on = args.next().context(USAGE)?,
            "--raw" => raw = true,
            _ => names.push(arg),
        }
    }
    let out = out.context(USAGE)?;
    std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    if names.is_empty() {
        names = families::NAMES.map(str::to_owned).to_vec();
    }
    if verb.as_deref() == Some("ptx") {
        return programs(&out, &names);
    }
    let (engine, header): (Box<dyn Engine>, String) = if on == "emulator" {
        (Box::new(Emulated), "emulator".to_owned())
    } else {
        let ordinal = on.strip_prefix("cuda:").and_then(|n| n.parse().ok()).context(USAGE)?;
        let runtime = CudaRuntime::open(ordinal)?;
        let (major, minor) = bakewell_cuda::driver_version()?;
        let kernel_module = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
        let driver = kernel_module.split_whitespace().find(|word| word.chars().filter(|&c| c == '.').count() == 2);
        let header = format!("{}, driver {}, CUDA {major}.{minor}", runtime.facts().name, driver.unwrap_or("unknown"));
        (Box::new(Device(runtime)), header)
    };
    for name in names {
        let cases = cases(&name)?;
        let mut text = format!("# {header}\n# seconds since 1970: {}\n", seconds());
        let mut refused = 0;
        for case in &cases {
            // The emulator reports a read of a live mbarrier as the fault that it is.
            if on == "emulator" && matches!(case.class, Class::Observed) {
                continue;
            }
            let output = engine.run(case);
            refused += usize::from(output.is_err());
            let _ = writeln!(text, "{}", record::line(case, &output));
            if let (true, Ok(bytes)) = (raw, &output) {
                let folder = out.join(format!("{name}.raw"));
                std::fs::create_dir_all(&folder)?;
                std::fs::write(folder.join(file_name(case)), bytes)?;
            }
            // Written each time: a program that hangs the device costs only the cases behind it.
            std::fs::write(out.join(format!("{name}.txt")), &text)?;
        }
        println!("{name}: {} cases, {refused} refused", cases.len());
    }
    Ok(())
}

/// Writes PTX and operands of every case.
fn programs(out: &Path, names: &[String]) -> Result<()> {
    for name in names {
        for case in cases(name)? {
            std::fs::write(out.join(format!("{name}.{}.ptx", file_name(&case))), case.text())?;
            std::fs::write(out.join(format!("{name}.{}.operands", file_name(&case))), case.input_bytes())?;
        }
    }
    Ok(())
}

fn cases(family: &str) -> Result<Vec<Case>> {
    families::family(family).with_context(|| format!("families are {}", families::NAMES.join(", ")))
}

fn file_name(case: &Case) -> String {
    case.name.replace(['/', ':'], "_")
}

fn seconds() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
