//! Damage to a shipped program: its PTX with one line changed, which a checker of the emulator must find.
//!
//! A survey runs the program as it is and counts what each line executes, so that only lines that run are damaged. Each
//! [`Kind`] names lines and what becomes of them; of lines that look alike, as a loop unrolled leaves them, a few are taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use bakewell::emulator::check::{Access, Actor, Event, Observer};
use bakewell::emulator::{CompletionPolicy, EmulatedRuntime, Finding, Report};
use bakewell::{Arch, Device};

/// Of lines that differ in registers only, so many are damaged, spread over the program.
const ALIKE: usize = 2;
/// Orders that a damaged program is run under, until one of them shows the damage.
const ORDERS: [(u64, CompletionPolicy); 4] = [
    (1, CompletionPolicy::Random),
    (0, CompletionPolicy::Lazy),
    (0, CompletionPolicy::Eager),
    (2, CompletionPolicy::Random),
];

/// What becomes of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A fence is gone. Proxy fences with no signal between cover each other, and go together.
    Fence,
    /// A mbarrier expects an arrival more.
    Count,
    /// A mbarrier expects 16 bytes more.
    Bytes,
    /// An arrival or commit is gone.
    Arrival,
    /// A slot is released before it is read.
    Early,
    /// A wait is for the other phase.
    Phase,
    /// A wait is gone.
    Wait,
    /// A barrier of threads is gone.
    Barrier,
    /// A descriptor has another swizzle.
    Swizzle,
}

/// One changed line.
#[derive(Debug, Clone)]
struct Damage {
    kind: Kind,
    /// From 1.
    line: u32,
    /// What the lines become.
    changes: Vec<(u32, String)>,
}

/// An instruction of a line.
#[derive(Debug, Clone, Copy)]
struct Statement<'a> {
    /// `@%p1 ` or nothing.
    guard: &'a str,
    opcode: &'a str,
    operands: &'a str,
}

impl<'a> Statement<'a> {
    fn of(line: &'a str) -> Option<Statement<'a>> {
        let code = line.split("//").next()?.trim();
        let code = code.strip_suffix(';')?.trim_end();
        let (guard, rest) = match code.strip_prefix('@') {
            Some(rest) => code.split_at(rest.find(char::is_whitespace)? + 2),
            None => ("", code),
        };
        let rest = rest.trim_start();
        let (opcode, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let plain =
            opcode.starts_with(|c: char| c.is_ascii_lowercase()) && !opcode.contains(':') || opcode.contains("::");
        plain.then(|| Statement { guard, opcode, operands: operands.trim() })
    }

    /// Operands outside brackets and braces.
    fn operands(&self) -> Vec<&'a str> {
        let mut depth = 0;
        let separates = |c: char| {
            depth += i32::from(matches!(c, '[' | '{')) - i32::from(matches!(c, ']' | '}'));
            depth == 0 && c == ','
        };
        self.operands.split(separates).map(str::trim).collect()
    }

    /// The instruction with operand `n` replaced by what `change` makes of it in a register of type `ty`.
    fn with(&self, n: usize, ty: &str, change: &str) -> Option<String> {
        let mut operands = self.operands();
        let Statement { guard, opcode, .. } = self;
        let (operator, value) = change.split_once(' ')?;
        let old = *operands.get(n)?;
        let (before, inner, after) = match old.strip_prefix('[') {
            Some(rest) => ("[", rest.split([',', ']', '+']).next()?.trim(), &rest[rest.find([',', ']', '+'])?..]),
            None => ("", old, ""),
        };
        let new = format!("{before}damaged{after}");
        operands[n] = &new;
        let operands = operands.join(", ");
        Some(format!(
            "{{ .reg .{ty} damaged; {guard}{operator}.{ty} damaged, {inner}, {value}; {guard}{opcode} {operands}; }}"
        ))
    }
}

const PROXY_FENCES: &[&str] = &["fence.proxy.async", "fence.mbarrier_init"];
/// What touches tensor memory: a `tcgen05.fence` before all of them has nothing to order.
const TENSOR_ACCESSES: [&str; 5] = ["tcgen05.mma", "tcgen05.ld", "tcgen05.st", "tcgen05.cp", "tcgen05.shift"];

/// What each kind makes of an instruction.
fn changes(statement: Statement<'_>) -> Vec<(Kind, String)> {
    let Statement { guard, opcode, .. } = statement;
    let gone = |kind| vec![(kind, String::new())];
    let some = |kind, text: Option<String>| text.map(|text| (kind, text)).into_iter().collect::<Vec<_>>();
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| opcode.starts_with(prefix));
    if starts(&["wgmma.fence", "tcgen05.fence"]) || starts(PROXY_FENCES) {
        gone(Kind::Fence)
    } else if starts(&["mbarrier.init"]) {
        some(Kind::Count, statement.with(1, "b32", "add 1").map(|text| text.replace("add.b32", "add.u32")))
    } else if starts(&["mbarrier.arrive.expect_tx"]) {
        some(Kind::Bytes, statement.with(2, "b32", "add 16").map(|text| text.replace("add.b32", "add.u32")))
    } else if starts(&["mbarrier.arrive", "tcgen05.commit"]) {
        gone(Kind::Arrival)
    } else if starts(&["mbarrier.try_wait.parity"]) {
        let passed = format!("{guard}setp.eq.u32 {}, 0, 0;", statement.operands()[0]);
        [some(Kind::Phase, statement.with(2, "b32", "xor 1")), vec![(Kind::Wait, passed)]].concat()
    } else if starts(&["tcgen05.wait", "wgmma.wait_group", "cp.async.bulk.wait_group", "cp.async.wait"]) {
        gone(Kind::Wait)
    } else if starts(&["bar.sync", "barrier.cta.sync", "barrier.sync", "barrier.cluster.wait"]) {
        gone(Kind::Barrier)
    } else if starts(&["wgmma.mma_async"]) {
        // Bit 62 of the descriptor of B makes 32 of 128 bytes, and nothing of 64.
        some(Kind::Swizzle, statement.with(2, "b64", "xor 4611686018427387904"))
    } else if starts(&["tcgen05.mma"]) {
        // Bit 62 of the descriptor of B makes nothing of 128 bytes.
        some(Kind::Swizzle, statement.with(2, "b64", "xor 4611686018427387904"))
    } else {
        Vec::new()
    }
}

/// The release of a slot moved before the reads that it comes behind, as far as its operands allow.
fn early(lines: &[&str], executed: &dyn Fn(u32) -> bool, at: usize) -> Option<Damage> {
    let statement = Statement::of(lines[at])?;
    if !statement.opcode.starts_with("mbarrier.arrive") || statement.opcode.contains("expect_tx") {
        return None;
    }
    let written =
        |statement: &Statement<'_>| statement.operands().first().map(|d| d.trim_matches(['{', '}']).to_string());
    let address = statement.operands.split('[').nth(1)?.split([']', '+']).next()?.trim();
    let reads = ["ld.shared", "ldmatrix", "tcgen05.ld", "tcgen05.wait", "wgmma.wait_group"];
    let mut to = None;
    for before in (0..at).rev() {
        let line = lines[before].split("//").next().unwrap_or_default().trim();
        if line.ends_with(':') || line.contains("bra") || line.contains("mbarrier.") {
            break;
        }
        let Some(other) = Statement::of(line) else { continue };
        if written(&other).is_some_and(|written| written.split(',').any(|d| d.trim() == address)) {
            break;
        }
        if reads.iter().any(|read| other.opcode.starts_with(read)) && executed(before as u32 + 1) {
            to = Some(before);
        }
    }
    let to = to?;
    let moved = format!("{} {}", lines[at].split("//").next()?, lines[to]);
    let changes = vec![(to as u32 + 1, moved), (at as u32 + 1, String::new())];
    Some(Damage { kind: Kind::Early, line: at as u32 + 1, changes })
}

/// Proxy fences between a line and the next signal to others.
fn proxy_fences_behind(lines: &[&str], at: usize) -> Vec<u32> {
    let starts = |s: &Statement<'_>, words: &[&str]| words.iter().any(|word| s.opcode.starts_with(word));
    let statements = (at + 1..lines.len()).filter_map(|at| Some((at as u32 + 1, Statement::of(lines[at])?)));
    let before =
        statements.take_while(|(_, s)| !starts(s, &["bar", "mbarrier", "tcgen05", "wgmma", "cp.async", "red", "ret"]));
    before.filter(|(_, s)| starts(s, PROXY_FENCES)).map(|(line, _)| line).collect()
}

/// The line without the numbers of registers, to tell lines that are alike.
fn likeness(line: &str) -> String {
    line.split("//").next().unwrap_or_default().chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// The damages of a program by kind, in lines that are executed.
fn damages(text: &str, executed: impl Fn(u32) -> bool, waited: &BTreeSet<u32>) -> Vec<Damage> {
    let lines: Vec<&str> = text.lines().collect();
    let mut alike: BTreeMap<(Kind, String), Vec<Damage>> = BTreeMap::new();
    let mut covered = Vec::new();
    let mut tensor_memory_used = false;
    for (at, line) in lines.iter().enumerate() {
        let number = at as u32 + 1;
        let Some(statement) = Statement::of(line).filter(|_| executed(number) && !covered.contains(&number)) else {
            continue;
        };
        let opcode = statement.opcode;
        tensor_memory_used |= TENSOR_ACCESSES.iter().any(|access| opcode.starts_with(access));
        if opcode.starts_with("tcgen05.fence") && !tensor_memory_used {
            continue;
        }
        let also = if PROXY_FENCES.iter().any(|fence| opcode.starts_with(fence)) {
            proxy_fences_behind(&lines, at)
        } else {
            Vec::new()
        };
        covered.extend(&also);
        // A wait for the phase before the first passes at once.
        if opcode.starts_with("mbarrier.try_wait") && !waited.contains(&number) {
            continue;
        }
        let changed = changes(statement).into_iter();
        let damages = changed.map(|(kind, text)| Damage {
            kind,
            line: number,
            changes: [(number, text)].into_iter().chain(also.iter().map(|&line| (line, String::new()))).collect(),
        });
        for damage in damages.chain(early(&lines, &executed, at)) {
            alike.entry((damage.kind, likeness(line))).or_default().push(damage);
        }
    }
    let few = |all: Vec<Damage>| {
        let taken = all.len().min(ALIKE);
        (0..taken).map(move |i| all[i * (all.len() - 1) / (taken - 1).max(1)].clone()).collect::<Vec<_>>()
    };
    alike.into_values().flat_map(few).collect()
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
    /// Damages that no order shows: at most so many of a kind, and why, as far as that is known.
    pub unseen: &'a [(Kind, usize, &'a str)],
}

impl<T> std::fmt::Debug for Subject<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subject").field("program", &self.program).finish_non_exhaustive()
    }
}

impl<T: PartialEq> Subject<'_, T> {
    /// Runs with the program's text changed; its result and findings, and what lines of kernels were executed.
    fn attempt(
        &self,
        (seed, policy): (u64, CompletionPolicy),
        profile: bool,
        change: impl Fn(String) -> String + Send + Sync + 'static,
    ) -> (Result<T, String>, Report) {
        let mut options = EmulatedRuntime::options(self.arch);
        (options.seed, options.policy, options.profile) = (seed, policy, profile);
        (options.sm_count, options.workers, options.instruction_limit) = (self.sm_count, 1, 4_000_000);
        let program = self.program.to_string();
        options.patch = Some(Arc::new(move |name, text| if name == program { change(text) } else { text }));
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
        let (right, Report { findings, executed, .. }) = self.attempt(ORDERS[0], true, move |text| {
            keep.lock().unwrap().clone_from(&text);
            text
        });
        let right = right.unwrap_or_else(|failure| panic!("{}: {failure}", self.program));
        assert!(findings.is_empty(), "{findings:?}");
        let text = seen.lock().unwrap().clone();
        let entry = text.lines().find_map(|line| line.split(".entry").nth(1));
        let entry = entry.unwrap_or_else(|| panic!("{} is not loaded; kernels: {executed:?}", self.program));
        let entry = entry.trim().trim_end_matches('(').to_string();
        let waited = self.waits(&entry);
        let damages = damages(&text, |line| executed.contains_key(&(entry.clone(), line)), &waited);
        let lines: Vec<&str> = text.lines().collect();
        let mut kinds: BTreeMap<Kind, (usize, Vec<String>)> = BTreeMap::new();
        for damage in &damages {
            let (count, missed) = kinds.entry(damage.kind).or_default();
            *count += 1;
            if !self.is_found(damage, &right) {
                missed.push(format!(
                    "{:?} of line {}: {}",
                    damage.kind,
                    damage.line,
                    lines[damage.line as usize - 1].trim()
                ));
            }
        }
        let mut failures = Vec::new();
        for (kind, (count, missed)) in kinds {
            println!("{}: {} of {count} damages found of {kind:?}", self.program, count - missed.len());
            let allowed = self.unseen.iter().find(|(of, ..)| *of == kind).map_or(0, |(_, n, _)| *n);
            if missed.len() > allowed || missed.len() == count {
                failures.extend(missed);
            }
        }
        assert!(failures.is_empty(), "not found in {}:\n{}", self.program, failures.join("\n"));
    }

    /// Lines of a kernel with waits behind which a phase was complete.
    fn waits(&self, entry: &str) -> BTreeSet<u32> {
        let seen = Arc::new(Mutex::new(BTreeSet::new()));
        let (keep, entry) = (seen.clone(), entry.to_string());
        let mut options = EmulatedRuntime::options(self.arch);
        options.sm_count = self.sm_count;
        options.observer = Some(Arc::new(move |_, program| {
            let lines = if program.name == entry { program.lines.clone() } else { Vec::new() };
            Box::new(Waits { lines, seen: keep.clone() })
        }));
        let device = Device::with_runtime(EmulatedRuntime::with_options(self.arch, options)).unwrap();
        (self.run)(&device).unwrap_or_else(|failure| panic!("{}: {failure}", self.program));
        seen.lock().unwrap().clone()
    }

    /// Whether an order shows the damage, in words that name a line.
    fn is_found(&self, damage: &Damage, right: &T) -> bool {
        ORDERS.into_iter().any(|order| {
            let changes = damage.changes.clone();
            let (result, Report { findings, .. }) = self.attempt(order, false, move |text| {
                let lines = (1..).zip(text.lines());
                let changed = |number: u32| changes.iter().find(|(line, _)| *line == number).map(|(_, text)| &**text);
                lines.map(|(number, line)| changed(number).unwrap_or(line).to_string() + "\n").collect()
            });
            match findings.first() {
                Some(finding) => {
                    println!("{:?} of line {}: {finding}", damage.kind, damage.line);
                    assert!(finding.line > 0 && !finding.ptx.is_empty() && !finding.message.is_empty(), "{finding}");
                    true
                }
                None => match result {
                    // Another swizzle moves data and leaves the order as it was: wrong results show it.
                    Ok(result) => damage.kind == Kind::Swizzle && result != *right,
                    Err(failure) => panic!("{:?} of line {}: {failure}", damage.kind, damage.line),
                },
            }
        })
    }
}

/// Notes where waits returned.
struct Waits {
    /// Line of each operation.
    lines: Vec<u32>,
    seen: Arc<Mutex<BTreeSet<u32>>>,
}

impl Observer for Waits {
    fn access(&mut self, _: &Actor, _: &Access<'_>) {}

    fn event(&mut self, actor: &Actor, event: &Event) {
        if let (Event::MbarrierPass { .. }, Some(&line)) = (event, self.lines.get(actor.pc as usize)) {
            self.seen.lock().unwrap().insert(line);
        }
    }

    fn take_findings(&mut self) -> Vec<(Actor, Finding)> {
        Vec::new()
    }
}
