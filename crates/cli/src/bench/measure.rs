//! One shape of any operation: inputs in rotation, the output checked, then timed.

use std::fmt;

use anyhow::Context;
use bakewell::cuda::CudaRuntime;
use bakewell::{Buffer, Device, Plan, Problem, Result, Stream};
use bakewell_conformance::call::{Buffers, TensorSpec, Views};
use serde::Serialize;

use super::clocks::Clocks;
use super::record::{Bound, KernelTimes, Peer, Row};

/// Live bytes that the inputs of a graph exceed together: more than four times the L2.
const ROTATION_BYTES: u64 = 256 << 20;
/// Most sets of inputs, and memory that they may take.
pub(super) const MOST_SETS: u64 = 1024;
const MOST_BYTES: u64 = 40 << 30;
/// Fewest calls in a graph, unless fewer take so many microseconds.
const FEWEST_CALLS: usize = 16;
const GRAPH_US: f64 = 10_000.0;

/// A shape of some operation that can be timed. `Display` is its name in tables.
pub(super) trait Shape: fmt::Display {
    type Problem: Problem + Serialize;

    /// What inputs are filled with.
    type Noise;

    /// The problem.
    fn problem(&self) -> Self::Problem;

    /// Lengths of the requests, for the record.
    fn lengths(&self) -> Vec<i32>;

    /// Bytes that any kernel must move.
    fn live_bytes(&self) -> u64;

    /// Operations of the matrix products, where they bound the time.
    fn flops(&self) -> Option<u64> {
        None
    }

    /// The tensors of a call.
    fn tensors(&self) -> Vec<TensorSpec>;

    /// Random numbers on the device.
    fn noise(&self, device: &Device) -> Result<Self::Noise>;

    /// Writes the inputs of the set of this index, which differ from those of any other.
    fn fill(&self, runtime: &CudaRuntime, set: &Buffers, noise: &Self::Noise, index: u64) -> Result<()>;

    /// The arguments of a call.
    fn args<'a>(&self, views: &Views<'a>) -> Result<<Self::Problem as Problem>::Args<'a>>;

    /// Compares the outputs of a set with the reference where that takes no longer than the rest, and says what was
    /// done.
    fn check(&self, plan: &Plan<Self::Problem>, set: &Buffers) -> anyhow::Result<String>;

    /// Times what other libraries do of the same, right after the operation.
    fn peers(&self, _clocks: &Clocks, _noise: &Self::Noise) -> anyhow::Result<Vec<Peer>> {
        Ok(Vec::new())
    }

    /// Numbers of the decision that belong into the record.
    fn geometry(decision: &<Self::Problem as Problem>::Decision) -> Vec<(&'static str, u32)>;
}

/// Times one shape, after its output was found right.
pub(super) fn measure<S: Shape>(device: &Device, clocks: &Clocks, shape: &S) -> anyhow::Result<Row> {
    let problem = shape.problem();
    let plan = device.plan(&problem)?;
    let bytes = shape.live_bytes();
    let held: u64 = shape.tensors().iter().map(TensorSpec::bytes).sum();
    let count = (ROTATION_BYTES / bytes.max(1) + 1).clamp(2, MOST_SETS).min((MOST_BYTES / held.max(1)).max(2));
    let noise = shape.noise(device)?;
    let set = |index| {
        let set = Buffers::new(device, shape.tensors(), |_| 0)?;
        // Outputs hold NaN.
        shape.tensors().iter().filter(|tensor| tensor.output).try_for_each(|out| set.get(out.name)?.fill(0xFF))?;
        shape.fill(&clocks.runtime, &set, &noise, index)?;
        Ok(set)
    };
    let sets = (0..count).map(set).collect::<Result<Vec<_>>>()?;
    device.synchronize(Stream::DEFAULT)?;
    let bind = |set| plan.bind(shape.args(&Buffers::views(set)?)?);
    let bound = sets.iter().map(bind).collect::<Result<Vec<_>>>()?;
    bound[0].launch(clocks.stream.stream())?;
    device.synchronize(clocks.stream.stream())?;
    let checked = shape.check(&plan, &sets[0]).with_context(|| shape.to_string())?;

    let cold = clocks.cold(|stream| bound[0].launch(stream))?;
    let calls = bound.len().max(((GRAPH_US / cold.median) as usize).min(FEWEST_CALLS));
    let rotating = clocks.rotating(calls, |call, stream| bound[call % bound.len()].launch(stream))?;
    let host = clocks.host(cold.median, |stream| bound[0].launch(stream))?;
    let programs = plan.programs();
    let alone = |(i, program): (usize, &String)| -> Result<KernelTimes> {
        let cold_us = clocks.cold(|stream| bound[0].launch_kernel(i, stream))?;
        Ok(KernelTimes { program: program.clone(), cold_us })
    };
    let kernels = match programs.len() {
        1 => Vec::new(),
        _ => programs.iter().enumerate().map(alone).collect::<Result<_>>()?,
    };
    let peers = shape.peers(clocks, &noise)?;
    let decision = plan.decision().context("a GPU plan has a program")?;
    let library = device.library()?.context("a GPU has programs")?;
    let digest = |schedule: &&'static dyn bakewell::schedule::Schedule| -> Result<String> {
        let program = library.program(schedule.operation(), &schedule.variant())?;
        Ok(program.record.cubin.sha256.to_string())
    };
    Ok(Row {
        shape: shape.to_string(),
        problem: serde_json::to_value(&problem)?,
        lengths: shape.lengths(),
        inputs: None,
        program: programs.join(" + "),
        sha256: plan.schedules().iter().map(digest).collect::<Result<Vec<_>>>()?.join(" + "),
        geometry: S::geometry(decision).into_iter().collect(),
        bytes,
        bound: Bound::Read,
        flops: shape.flops(),
        sets: bound.len(),
        calls_per_graph: calls,
        checked,
        kernels,
        cold_us: cold,
        rotating_us: rotating,
        host_us: host,
        peers,
    })
}

/// Fills a tensor with copies of noise that start at a place of its own.
pub(super) fn copy_noise(runtime: &CudaRuntime, tensor: &Buffer, noise: &Buffer, place: u64) -> Result<()> {
    let mut offset = place * 4096 % (noise.bytes() / 2);
    let mut done = 0;
    while done < tensor.bytes() {
        let part = (noise.bytes() - offset).min(tensor.bytes() - done);
        runtime.copy_async(tensor.address() + done, noise.address() + offset, part, Stream::DEFAULT)?;
        (done, offset) = (done + part, 0);
    }
    Ok(())
}
