//! The record of a run: what was measured, on what, by which command.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use bakewell::cuda::DeviceFacts;
use serde::Serialize;

use super::ceilings::Ceilings;
use super::clocks::Times;
use crate::environment;
use crate::report::table;

/// A run of `bench`.
#[derive(Serialize)]
pub(crate) struct Record {
    device: String,
    driver: Option<String>,
    compute_capability: String,
    sm_count: u32,
    l2_bytes: u64,
    /// The highest clocks that the device states, in kHz.
    sm_clock_khz: u32,
    memory_clock_khz: u32,
    memory_bus_bits: u32,
    version: &'static str,
    commit: Option<String>,
    command: String,
    date: String,
    ceilings: Ceilings,
    pub(crate) rows: Vec<Row>,
}

/// One shape.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) shape: String,
    pub(crate) problem: serde_json::Value,
    pub(crate) lengths: Vec<i32>,
    /// How inputs are distributed, where times depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inputs: Option<String>,
    pub(crate) program: String,
    /// Digests of the cubins.
    pub(crate) sha256: String,
    /// Numbers of the decision: splits, CTAs of a cluster.
    #[serde(flatten)]
    pub(crate) geometry: BTreeMap<&'static str, u32>,
    /// Bytes that any kernel must move.
    pub(crate) bytes: u64,
    /// Which rate of this run bounds them: `read` or, where as much is written, `copy`.
    pub(crate) bound: Bound,
    /// Operations of the matrix products, where they are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) flops: Option<u64>,
    /// Distinct sets of inputs, and calls in the graph that rotates over them.
    pub(crate) sets: usize,
    pub(crate) calls_per_graph: usize,
    /// How the output was checked before anything was timed.
    pub(crate) checked: String,
    /// Each kernel of a call of several, alone, on the cold clock.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) kernels: Vec<KernelTimes>,
    pub(crate) cold_us: Times,
    pub(crate) rotating_us: Times,
    pub(crate) host_us: Times,
    /// What others do of the same, measured right afterwards.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) peers: Vec<Peer>,
}

/// Something of another library to compare with.
#[derive(Serialize)]
pub(crate) struct Peer {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) outcome: PeerOutcome,
}

/// What became of a peer.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum PeerOutcome {
    Timed {
        cold_us: Times,
        rotating_us: Times,
    },
    /// It could not be measured on this machine, and why.
    Absent {
        absent: String,
    },
}

impl Peer {
    /// The ratio of a row to it, in words.
    fn render(&self, row: &Row) -> String {
        let (shape, name) = (&row.shape, &self.name);
        match &self.outcome {
            PeerOutcome::Timed { cold_us, rotating_us } => format!(
                "{shape}: {name} {:.2} us cold, {:.2} us rotating; the operation takes {:.3} and {:.3} times as long\n",
                cold_us.median,
                rotating_us.median,
                row.cold_us.median / cold_us.median,
                row.rotating_us.median / rotating_us.median,
            ),
            PeerOutcome::Absent { absent } => format!("{shape}: {name} not measured: {absent}\n"),
        }
    }
}

/// A kernel of a call, timed alone.
#[derive(Serialize)]
pub(crate) struct KernelTimes {
    pub(crate) program: String,
    pub(crate) cold_us: Times,
}

/// A rate of memory.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    Read,
    Copy,
}

/// Writes a record where one is wanted.
pub(crate) fn write(path: Option<&Path>, record: &impl Serialize) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(record)? + "\n";
    std::fs::write(path, text).with_context(|| format!("json: {}", path.display()))
}

impl Record {
    pub(crate) fn new(facts: &DeviceFacts, ceilings: Ceilings) -> Record {
        let (major, minor) = facts.compute_capability;
        Record {
            device: facts.name.clone(),
            driver: environment::driver(),
            compute_capability: format!("{major}.{minor}"),
            sm_count: facts.sm_count,
            l2_bytes: facts.l2_bytes,
            sm_clock_khz: facts.sm_clock_khz,
            memory_clock_khz: facts.memory_clock_khz,
            memory_bus_bits: facts.memory_bus_bits,
            version: env!("CARGO_PKG_VERSION"),
            commit: environment::commit(),
            command: environment::command(),
            date: environment::date(),
            ceilings,
            rows: Vec::new(),
        }
    }

    /// The tables.
    pub(crate) fn render(&self) -> String {
        let ceilings = &self.ceilings;
        let mut rows = table(&[
            "shape",
            "program",
            "geometry",
            "MB",
            "floor us",
            "cold us",
            "less floor",
            "rotating us",
            "p10..p90",
            "GB/s",
            "of rate",
            "x floor",
            "TFLOP/s",
            "host us",
        ]);
        for row in &self.rows {
            let rate = match row.bound {
                Bound::Read => ceilings.read_gbps,
                Bound::Copy => ceilings.copy_gbps,
            };
            let floor = row.bytes as f64 / rate / 1e3;
            let rotating = row.rotating_us.median;
            rows.add_row([
                row.shape.clone(),
                row.program.clone(),
                row.geometry.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", "),
                format!("{:.2}", row.bytes as f64 / 1e6),
                format!("{floor:.2}"),
                format!("{:.2}", row.cold_us.median),
                format!("{:.2}", row.cold_us.median - ceilings.event_floor_us + ceilings.empty_node_us),
                format!("{rotating:.2}"),
                format!("{:.2}..{:.2}", row.rotating_us.p10, row.rotating_us.p90),
                format!("{:.0}", row.bytes as f64 / rotating / 1e3),
                format!("{:.1} %", 100.0 * floor / rotating),
                format!("{:.2}", rotating / floor),
                row.flops.map_or(String::new(), |flops| format!("{:.1}", flops as f64 / rotating / 1e6)),
                format!("{:.2}", row.host_us.median),
            ]);
        }
        let kernels: String = self
            .rows
            .iter()
            .flat_map(|row| row.kernels.iter().map(move |kernel| (row, kernel)))
            .fold(String::new(), |text, (row, kernel)| {
                text + &format!("{}: {} alone {:.2} us, cold\n", row.shape, kernel.program, kernel.cold_us.median)
            });
        let peers: String = self.rows.iter().flat_map(|row| row.peers.iter().map(|peer| peer.render(row))).collect();
        format!(
            "{}, {} SMs, driver {}\n\
             ceilings of this run: read-only {:.0} GB/s, copy {:.0} GB/s (read + written), empty kernel in a graph {:.2} us, \
             events around an empty kernel {:.2} us, its launch on the host {:.2} us\n\
             {rows}\n\
             {kernels}{peers}\
             cold: events around one call, L2 flushed. less floor: cold without the event pair's floor, an estimate of the kernel. \
             rotating: per call of one graph over distinct inputs, L2 flushed before it; GB/s, share of the rate that bounds it \
             (read-only, or copy where as much is written), ratio to the floor and TFLOP/s belong to it. host: thread time per \
             launch of a binding. Outputs and workspace are allocated beforehand. Medians.\n",
            self.device,
            self.sm_count,
            self.driver.as_deref().unwrap_or("unknown"),
            ceilings.read_gbps,
            ceilings.copy_gbps,
            ceilings.empty_node_us,
            ceilings.event_floor_us,
            ceilings.empty_host_us,
        )
    }
}
