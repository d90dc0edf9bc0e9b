//! Damage to a shipped program: its PTX with one line changed, which a checker of the emulator must find.
//!
//! A survey runs the program as it is, counts what each line executes and notes how far it reaches, so that only lines
//! that run are damaged. Each [`Kind`] names lines and what becomes of them; of lines that look alike, as a loop
//! unrolled leaves them, a few are taken.

mod kinds;
mod statement;
mod survey;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bakewell::emulator::{CompletionPolicy, EmulatedRuntime, Finding, Kind as Fault, MatrixNumerics, Options, Report};
use bakewell::{Arch, Device};

use kinds::Damage;
pub use kinds::Kind;
use statement::Statement;
use survey::Survey;

/// Orders that a damaged program is run under, until one of them shows the damage.
const ORDERS: [(u64, CompletionPolicy); 4] = [
    (1, CompletionPolicy::Random),
    (0, CompletionPolicy::Lazy),
    (0, CompletionPolicy::Eager),
    (2, CompletionPolicy::Random),
];

/// Damages of one kind that no order shows.
#[derive(Debug, Clone, Copy)]
pub struct Unseen {
    /// Kind.
    pub kind: Kind,
    /// How the damaged instructions start.
    pub opcode: &'static str,
    /// Exactly so many.
    pub count: usize,
    /// Why the program is right all the same.
    pub because: &'static str,
}

/// A program and a run that executes it.
pub struct Subject<'a, T> {
    /// Architecture.
    pub arch: Arch,
    /// Exactly this program.
    pub program: &'a str,
    /// SMs of the device.
    pub sm_count: u32,
    /// The run; other programs that it launches stay as they are.
    pub run: &'a dyn Fn(&Device) -> Result<T, String>,
    /// Whether its CTAs exit with arrivals in phases that nobody waits for. Of other programs such phases are a
    /// finding.
    pub open_phases: bool,
    /// Damages that change nothing that matters.
    pub unseen: &'a [Unseen],
}

impl<T> std::fmt::Debug for Subject<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subject").field("program", &self.program).finish_non_exhaustive()
    }
}

impl<T: PartialEq> Subject<'_, T> {
    fn options(&self, (seed, policy): (u64, CompletionPolicy)) -> Options {
        let mut options = EmulatedRuntime::options(self.arch);
        (options.seed, options.policy, options.numerics) = (seed, policy, MatrixNumerics::Plain);
        options.checks.open_phases = !self.open_phases;
        (options.sm_count, options.workers, options.instruction_limit) = (self.sm_count, 1, 4_000_000);
        options
    }

    /// Runs with the program's text changed; its result and findings, and what lines of kernels were executed.
    fn attempt(
        &self,
        options: Options,
        change: impl Fn(String) -> String + Send + Sync + 'static,
    ) -> (Result<T, String>, Report) {
        let program = self.program.to_string();
        let patch = move |name: &str, text| if name == program { change(text) } else { text };
        let options = Options { patch: Some(Arc::new(patch)), ..options };
        let runtime = EmulatedRuntime::with_options(self.arch, options);
        let result = (self.run)(&Device::with_runtime(runtime.clone()).unwrap());
        let report = runtime.take_report();
        (result, report)
    }

    /// Every damage is found.
    ///
    /// # Panics
    /// When one is not, or the program is not run.
    pub fn every_damage_is_found(&self) {
        let seen = Arc::new(Mutex::new(String::new()));
        let keep = seen.clone();
        let (right, Report { findings, executed, .. }) =
            self.attempt(Options { profile: true, ..self.options(ORDERS[0]) }, move |text| {
                keep.lock().unwrap().clone_from(&text);
                text
            });
        let right = right.unwrap_or_else(|failure| panic!("{}: {failure}", self.program));
        assert!(findings.is_empty(), "{findings:?}");
        let text = seen.lock().unwrap().clone();
        let entry = text.lines().find_map(|line| line.split(".entry").nth(1));
        let entry = entry.unwrap_or_else(|| panic!("{} is not loaded; kernels: {executed:?}", self.program));
        let entry = entry.trim().trim_end_matches('(').to_string();
        let survey = Survey::of(self.arch, &entry, self.options(ORDERS[0]), |runtime| {
            let device = Device::with_runtime(runtime).unwrap();
            (self.run)(&device).unwrap_or_else(|failure| panic!("{}: {failure}", self.program));
        });
        let damages = kinds::damages(&text, |line| executed.contains_key(&(entry.clone(), line)), &survey);
        let lines: Vec<&str> = text.lines().collect();
        let mut kinds: BTreeMap<Kind, (usize, Vec<&str>)> = BTreeMap::new();
        let mut failures = Vec::new();
        for damage in &damages {
            let (count, missed) = kinds.entry(damage.kind).or_default();
            *count += 1;
            if !self.is_found(damage, &right) {
                let line = lines[damage.line as usize - 1];
                missed.push(line);
                println!("NOT FOUND: {:?} of line {}: {}", damage.kind, damage.line, line.trim());
                let allowed = self.unseen.iter().any(|unseen| unseen.kind == damage.kind && unseen.names(line));
                if !allowed {
                    failures.push(format!("{:?} of line {}: {}", damage.kind, damage.line, line.trim()));
                }
            }
        }
        for (kind, (count, missed)) in &kinds {
            println!("{}: {} of {count} damages found of {kind:?}", self.program, count - missed.len());
        }
        for unseen in self.unseen {
            let missed = kinds.get(&unseen.kind).map_or(&[][..], |(_, missed)| missed);
            let got = missed.iter().filter(|line| unseen.names(line)).count();
            if got != unseen.count {
                failures.push(format!("{unseen:?}: {got} were not found"));
            }
        }
        assert!(failures.is_empty(), "in {}:\n{}", self.program, failures.join("\n"));
    }

    /// Runs with a damage; the result and the findings.
    fn damaged(&self, options: Options, damage: &Damage) -> (Result<T, String>, Vec<Finding>) {
        let changes = damage.changes.clone();
        let (result, report) = self.attempt(options, move |text| {
            let lines = (1..).zip(text.lines());
            let changed = |number: u32| changes.iter().find(|(line, _)| *line == number).map(|(_, text)| &**text);
            lines.map(|(number, line)| changed(number).unwrap_or(line).to_string() + "\n").collect()
        });
        (result, report.findings)
    }

    /// Whether an order shows the damage.
    fn is_found(&self, damage: &Damage, right: &T) -> bool {
        ORDERS.into_iter().any(|order| {
            let mut options = Options { stop_at_finding: true, ..self.options(order) };
            let (mut result, mut findings) = self.damaged(options.clone(), damage);
            if findings.iter().all(|finding| !tells(finding, damage)) && !findings.is_empty() {
                // A later one may tell.
                options.stop_at_finding = false;
                (result, findings) = self.damaged(options, damage);
            }
            let Some(first) = findings.first() else {
                return match result {
                    Ok(result) => damage.kind.moves_data() && result != *right,
                    Err(failure) => panic!("{:?} of line {}: {failure}", damage.kind, damage.line),
                };
            };
            let told = findings.iter().find(|finding| tells(finding, damage));
            println!("{:?} of line {}: {}", damage.kind, damage.line, told.unwrap_or(first));
            assert!(told.is_some(), "{damage:?} is not told in words: {findings:?}");
            true
        })
    }
}

impl Unseen {
    fn names(&self, line: &str) -> bool {
        Statement::of(line).is_some_and(|statement| statement.starts(&[self.opcode]))
    }
}

/// Whether a finding tells of a damage: where it shows, and with which barrier or memory.
fn tells(finding: &Finding, damage: &Damage) -> bool {
    let text = format!("{} {}", finding.object.as_deref().unwrap_or_default(), finding.message);
    let names = |places: &[&str]| places.iter().any(|place| text.contains(place));
    let placed = finding.line > 0 && !finding.ptx.is_empty();
    placed
        && match damage.kind {
            Kind::PastEnd => {
                let past = names(&["past the end of a buffer", "at a buffer of", "at shared offset"]);
                finding.kind == Fault::OutOfBounds && finding.line == damage.line && past
            }
            Kind::Leak => finding.kind == Fault::Leak && names(&["tensor-memory columns"]),
            Kind::Lane => finding.kind == Fault::TensorMemory && finding.line == damage.line && names(&["owns lanes"]),
            Kind::Registers => names(&["registers", "setmaxnreg"]),
            // Half a warp that went round a barrier may also show what it then does too early.
            Kind::Diverged if finding.line == damage.line => names(&["lanes"]),
            _ => names(&[
                "barrier",
                "a buffer of",
                "shared memory",
                "shared offset",
                "tensor memory",
                "descriptor",
                "column",
                "register",
            ]),
        }
}
