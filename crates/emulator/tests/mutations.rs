//! Mutated copies of the shipped gqa_decode programs: each fault is caught with a message that names line and object.
//!
//! The programs are edited as text: a fence removed, a count off by one, a wait on the wrong phase or stage, a slot
//! reused before it was released.

mod common;

use std::io::Read;

use bakewell_emulator::{Emulator, Finding, Kind, Launch, Module, Options, Report, Target};
use common::list;

const CAPACITY: u64 = 1024;
const HEADS: u64 = 4;
const HEAD_DIM: u64 = 128;

/// The PTX that ships: the first program, by name, of a family for groups of 4 and head dimension 128.
fn program(family: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../sm100/programs");
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let fits =
        |name: &String| name.starts_with(&format!("gqa_decode-{family}")) && name.ends_with("_g4_d128_f16.ptx.zst");
    let name = names.filter(fits).min().unwrap_or_else(|| panic!("no {family} program in {folder}"));
    let file = std::fs::File::open(format!("{folder}/{name}")).unwrap();
    let mut text = String::new();
    ruzstd::decoding::StreamingDecoder::new(file).unwrap().read_to_string(&mut text).unwrap();
    text
}

fn long() -> String {
    program("long")
}

/// How the key range is split.
#[derive(Clone, Copy)]
struct Split {
    splits: u32,
    cluster: u32,
}

const WHOLE: Split = Split { splits: 1, cluster: 1 };
const CLUSTER: Split = Split { splits: 2, cluster: 2 };
const WORKSPACE: Split = Split { splits: 2, cluster: 1 };

/// One request with every key slot live, on one KV head.
fn run(text: &str, split: Split, seed: u64) -> Report {
    let module = Module::parse(text).unwrap();
    let mut options = Options::new(Target::Sm100);
    options.seed = seed;
    options.workers = 1;
    let device = Emulator::new(Target::Sm100, options);
    let buffer = |name: &str, bytes: u64, fill: Option<&[u8]>| {
        let address = device.allocate(name, bytes).unwrap();
        if let Some(pattern) = fill {
            let data: Vec<u8> = pattern.iter().copied().cycle().take(bytes as usize).collect();
            device.write(address, &data).unwrap();
        }
        address
    };
    let one = [0x00, 0x3c];
    let partials = u64::from(split.splits / split.cluster);
    let pointers = [
        buffer("q", HEADS * HEAD_DIM * 2, Some(&one)),
        buffer("kv", 2 * CAPACITY * HEAD_DIM * 2, Some(&one)),
        buffer("sequence_lengths", 4, Some(&(CAPACITY as u32).to_le_bytes())),
        buffer("out", HEADS * HEAD_DIM * 2, None),
        buffer("lse", HEADS * 4, None),
        buffer("partial_out", HEADS * partials * HEAD_DIM * 4, None),
        buffer("partial_max", HEADS * partials * 4, None),
        buffer("partial_sum", HEADS * partials * 4, None),
        buffer("completed", 4, Some(&[0])),
    ];
    let mut params: Vec<u8> = pointers.iter().flat_map(|address| address.to_le_bytes()).collect();
    params.extend(CAPACITY.to_le_bytes());
    params.extend(1u32.to_le_bytes());
    params.extend(split.splits.to_le_bytes());
    params.extend(0.125f32.to_le_bytes());
    params.resize(96, 0);
    let loaded = device.load(&module).unwrap();
    let kernel = module.kernels()[0].to_string();
    let launch = Launch {
        grid: [1, split.splits, 1],
        block: [threads(text), 1, 1],
        cluster: Some([1, split.cluster, 1]),
        dynamic_shared: Target::Sm100.shared_per_cta(),
        overlaps: false,
    };
    let report = device.launch(&loaded, &kernel, launch, &params).unwrap_or_else(|error| panic!("{error}"));
    if report.findings.is_empty() {
        // Ones everywhere: the average of V is 1.
        let out = device.read(pointers[3], (HEADS * HEAD_DIM * 2) as usize).unwrap();
        assert_eq!(out, one.repeat((HEADS * HEAD_DIM) as usize));
    }
    report
}

/// Threads of a CTA: one warp fills the ring, the others empty it.
fn threads(text: &str) -> u32 {
    let line = text.lines().find_map(|line| line.strip_prefix(".maxntid")).unwrap();
    line.trim().parse().unwrap()
}

/// Line number (from 0) of occurrence `nth` of a line with `needle`.
fn find(text: &str, needle: &str, nth: usize) -> usize {
    let mut lines = text.lines().enumerate().filter(|(_, line)| line.contains(needle));
    lines.nth(nth).unwrap_or_else(|| panic!("{needle} occurs fewer than {} times", nth + 1)).0
}

/// The text with line `at` changed.
fn edit(text: &str, at: usize, change: impl Fn(&str) -> String) -> String {
    let lines = text.lines().enumerate();
    lines.map(|(i, line)| if i == at { change(line) } else { line.to_string() } + "\n").collect()
}

fn without(text: &str, needle: &str) -> String {
    assert!(text.contains(needle), "{needle} is not there");
    text.lines().filter(|line| !line.contains(needle)).map(|line| format!("{line}\n")).collect()
}

/// The text with the last operand of an instruction replaced.
fn last_operand(text: &str, needle: &str, nth: usize, operand: &str) -> String {
    edit(text, find(text, needle, nth), |line| {
        let (head, _) = line.rsplit_once(',').unwrap();
        format!("{head}, {operand};")
    })
}

/// A try_wait that does not wait.
fn no_wait(text: &str, needle: &str, nth: usize) -> String {
    edit(text, find(text, needle, nth), |_| "setp.eq.u32 P_OUT, 0, 0;".to_string())
}

/// Asserts a finding of one of `kinds` with these words, whatever the seed.
#[track_caller]
fn caught(text: &str, split: Split, kinds: &[Kind], words: &[&str]) {
    for seed in 1..=2 {
        let report = run(text, split, seed);
        let fits = |f: &&Finding| kinds.contains(&f.kind) && words.iter().all(|word| f.to_string().contains(word));
        let found = report.findings.iter().find(fits);
        assert!(
            found.is_some_and(|f| f.line > 0),
            "expected {kinds:?} with {words:?}, found:\n{}",
            list(&report.findings)
        );
    }
}

const WAIT: &str = "mbarrier.try_wait";
const EXPECT: &str = "mbarrier.arrive.expect_tx";
const RELEASE: &str = "mbarrier.arrive.shared";
/// The ring's waits: the producer waits for an empty K and an empty V slot, the consumers for full ones.
const PRODUCER: usize = 0;
const CONSUMER: usize = 2;

#[test]
fn shipped_programs_are_clean() {
    for split in [WHOLE, CLUSTER, WORKSPACE] {
        for seed in 1..=3 {
            let report = run(&long(), split, seed);
            assert!(report.findings.is_empty(), "{}", list(&report.findings));
        }
    }
}

#[test]
fn arrive_count_off_by_one() {
    let consumers = threads(&long()) / 32 - 1;
    let empty = |count: u32| last_operand(&long(), "mbarrier.init", 1, &count.to_string());
    caught(&empty(consumers + 1), WHOLE, &[Kind::Deadlock], &["mbarrier", "arrivals pending"]);
    caught(&empty(consumers - 1), WHOLE, &[Kind::Race, Kind::Mbarrier], &["line"]);
}

#[test]
fn wait_on_the_wrong_phase() {
    let text = last_operand(&long(), WAIT, CONSUMER, "1");
    caught(&text, WHOLE, &[Kind::Race], &["ld.shared", "cp.async.bulk", "dynamic shared memory"]);
}

#[test]
fn wait_on_the_wrong_stage() {
    let text = long();
    let text = edit(&text, find(&text, WAIT, CONSUMER), |line| line.replace("],", "+8],"));
    caught(&text, WHOLE, &[Kind::Race], &["ld.shared", "cp.async.bulk"]);
}

#[test]
fn expected_bytes_are_off() {
    let text = last_operand(&long(), EXPECT, 1, "16");
    caught(&text, WHOLE, &[Kind::Mbarrier, Kind::Deadlock, Kind::Race], &["line"]);
}

#[test]
fn slot_reused_before_its_release() {
    caught(&no_wait(&long(), WAIT, PRODUCER), WHOLE, &[Kind::Race, Kind::Mbarrier], &["line"]);
}

#[test]
fn slot_never_released() {
    let text = long();
    let text = edit(&text, find(&text, RELEASE, 0), |_| String::new());
    caught(&text, WHOLE, &[Kind::Deadlock], &["mbarrier", "arrivals pending"]);
}

#[test]
fn initialisation_without_fences() {
    let text = without(&without(&long(), "fence.mbarrier_init"), "fence.proxy.async");
    caught(&text, WHOLE, &[Kind::MissingProxyFence], &["MB07", "cp.async.bulk", "mbarrier"]);
}

#[test]
fn initialisation_without_a_barrier() {
    let text = long();
    let text = edit(&text, find(&text, "bar.sync", 0), |_| String::new());
    caught(&text, WHOLE, &[Kind::Race, Kind::Mbarrier], &["mbarrier"]);
}

#[test]
fn copy_past_the_end() {
    let text = long();
    let text = edit(&text, find(&text, "cp.async.bulk.shared", 1), |line| line.replacen("], %r", "+4096], %r", 1));
    caught(&text, WHOLE, &[Kind::OutOfBounds], &["cp.async.bulk", "past the end of kv"]);
}

#[test]
fn merge_of_a_cluster_without_its_waits() {
    let mut text = without(&long(), "barrier.cluster");
    while text.contains("try_wait.parity.acquire.cluster") {
        text = no_wait(&text, "try_wait.parity.acquire.cluster", 0);
    }
    caught(&text, CLUSTER, &[Kind::ClusterLifetime, Kind::Race, Kind::Uninitialised], &["line", "shared"]);
}

#[test]
fn counter_without_order() {
    for weaker in [".relaxed.gpu", ".acq_rel.cta", ".release.gpu", ".acquire.gpu"] {
        let text = long();
        let text = edit(&text, find(&text, "atom.add.acq_rel.gpu", 0), |line| line.replace(".acq_rel.gpu", weaker));
        caught(&text, WORKSPACE, &[Kind::Race], &["partial_"]);
    }
}

#[test]
fn partials_without_a_barrier() {
    let text = long();
    let atomic = find(&text, "atom.add.acq_rel.gpu", 0);
    let before = text.lines().take(atomic).filter(|line| line.contains("bar.sync")).count() - 1;
    let text = edit(&text, find(&text, "bar.sync", before), |_| String::new());
    caught(&text, WORKSPACE, &[Kind::Race], &["partial_"]);
}
