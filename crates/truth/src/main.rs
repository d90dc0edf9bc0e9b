//! `truth record --out DIR [--on emulator|cuda:N] [FAMILY..]`: runs the cases and writes a record per family.
//!
//! With `--apart` every case runs in a process of its own, several at a time: one that breaks the device costs no
//! other. With `--raw` the results themselves are written too, as `FAMILY.raw/NAME`. `truth ptx --out DIR` writes the
//! programs, for an assembler to check, and their operands, and runs nothing.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bakewell_cuda::CudaRuntime;
use bakewell_truth::case::Class;
use bakewell_truth::engine::{Device, Emulated, Engine};
use bakewell_truth::{Case, families, record};

const USAGE: &str =
    "truth (record --out DIR [--on emulator|cuda:N] [--apart] [--raw] [--case NAME] | ptx --out DIR) [FAMILY..]";

/// Processes that `--apart` keeps busy.
const PROCESSES: usize = 8;
/// Seconds after which one of them is given up.
const PATIENCE: u64 = 60;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let verb = args.next();
    if !matches!(verb.as_deref(), Some("record" | "ptx")) {
        bail!("usage: {USAGE}");
    }
    let (mut out, mut on, mut raw, mut names) = (None, "cuda:0".to_owned(), false, Vec::new());
    let (mut apart, mut only) = (false, None);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--out" => out = Some(PathBuf::from(args.next().context(USAGE)?)),
            "--on" => on = args.next().context(USAGE)?,
            "--raw" => raw = true,
            "--apart" => apart = true,
            "--case" => only = Some(args.next().context(USAGE)?),
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
    if apart {
        return in_processes(&out, &on, &names);
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
        let mut cases = cases_on(&on, &name)?;
        if let Some(only) = &only {
            cases.retain(|case| case.name == *only);
        }
        let mut text = format!("# {header}\n# seconds since 1970: {}\n", seconds());
        let mut refused = 0;
        for case in &cases {
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

/// Records every case in a process of its own and joins the lines.
fn in_processes(out: &Path, on: &str, names: &[String]) -> Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    for name in names {
        let cases = cases_on(on, name)?;
        let next = AtomicUsize::new(0);
        let records = Mutex::new(BTreeMap::new());
        std::thread::scope(|scope| {
            for _ in 0..PROCESSES {
                scope.spawn(|| {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(case) = cases.get(index) else { break };
                        let record = in_process(&program, &out.join(format!("{name}.{index}")), on, name, case);
                        records.lock().unwrap_or_else(PoisonError::into_inner).insert(index, record);
                    }
                });
            }
        });
        let (mut header, mut lines, mut refused) = (String::new(), String::new(), 0);
        for (index, record) in records.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let line = match record {
                Ok(text) => {
                    header =
                        text.lines().take_while(|line| line.starts_with('#')).map(|line| format!("{line}\n")).collect();
                    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
                }
                Err(error) => record::line(&cases[index], &Err(error)),
            };
            refused += usize::from(line.starts_with("refused"));
            let _ = writeln!(lines, "{line}");
        }
        std::fs::write(out.join(format!("{name}.txt")), header + &lines)?;
        println!("{name}: {} cases, {refused} refused", cases.len());
    }
    Ok(())
}

/// The record that another process makes of one case.
fn in_process(program: &Path, folder: &Path, on: &str, name: &str, case: &Case) -> Result<String> {
    let mut child = Command::new(program)
        .args(["record", "--on", on, "--case", &case.name, "--out"])
        .arg(folder)
        .arg(name)
        .stdout(Stdio::null())
        .spawn()?;
    let started = Instant::now();
    while child.try_wait()?.is_none() {
        if started.elapsed() > Duration::from_secs(PATIENCE) {
            child.kill()?;
            child.wait()?;
            bail!("no result within {PATIENCE} s");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = std::fs::read_to_string(folder.join(format!("{name}.txt"))).context("the process left no record")?;
    std::fs::remove_dir_all(folder)?;
    Ok(text)
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

/// The cases that an engine can run: the emulator reports a read of a live mbarrier as the fault that it is.
fn cases_on(engine: &str, family: &str) -> Result<Vec<Case>> {
    let mut cases = cases(family)?;
    cases.retain(|case| engine != "emulator" || !matches!(case.class, Class::Observed));
    Ok(cases)
}

fn file_name(case: &Case) -> String {
    case.name.replace(['/', ':'], "_")
}

fn seconds() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
