//! The clocks. Each gives microseconds per call with the median and the spread of its repetitions.
//!
//! * *cold*: events around one call, after the L2 was flushed by a read of 256 MiB. Contains the floor of an event
//!   pair.
//! * *rotating*: calls over distinct inputs captured in one graph, per call, after the same flush.
//! * *host*: time of the calling thread per launch of a binding, without waiting for the work.
//!
//! Launches are enqueued while the flush still runs, so that the time to enqueue them is not in the first two.

use std::sync::Arc;
use std::time::Instant;

use bakewell::cuda::CudaRuntime;
use bakewell::cuda::ceilings::Ceilings;
use bakewell::cuda::timing::{Event, Graph, OwnedStream};
use bakewell::{Buffer, Result, Runtime, Stream};
use serde::Serialize;

/// Bytes read to empty the L2: four times the largest one.
const FLUSH_BYTES: u64 = 256 << 20;

/// Repetitions of the cold clock and of a graph; those of warming up come first.
const COLD_REPETITIONS: usize = 50;
const GRAPH_REPETITIONS: usize = 20;
const WARM_UPS: usize = 3;

/// Launches of one measurement of the host's cost: fewer than a stream holds before it makes the caller wait, and of
/// long work no more than take so many microseconds, but some.
const HOST_LAUNCHES: f64 = 100.0;
const FEWEST_HOST_LAUNCHES: f64 = 4.0;
const HOST_WORK_US: f64 = 20_000.0;
const HOST_REPETITIONS: usize = 40;

/// Median and spread of some repetitions, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Times {
    pub(crate) median: f64,
    /// Tenth and ninetieth percentile.
    pub(crate) p10: f64,
    pub(crate) p90: f64,
}

impl Times {
    /// From at least one repetition.
    pub(crate) fn of(mut samples: Vec<f64>) -> Times {
        samples.sort_by(f64::total_cmp);
        let at = |share: f64| samples[((samples.len() - 1) as f64 * share).round() as usize];
        Times { median: at(0.5), p10: at(0.1), p90: at(0.9) }
    }

    /// Divided by a count.
    pub(crate) fn per(self, count: usize) -> Times {
        let count = count as f64;
        Times { median: self.median / count, p10: self.p10 / count, p90: self.p90 / count }
    }
}

/// A GPU with what the clocks need.
pub(crate) struct Clocks {
    pub(crate) runtime: Arc<CudaRuntime>,
    pub(crate) ceilings: Ceilings,
    pub(crate) stream: OwnedStream,
    start: Event,
    end: Event,
    flush: Buffer,
}

impl Clocks {
    pub(crate) fn new(runtime: &Arc<CudaRuntime>) -> Result<Clocks> {
        let flush = Buffer::new(runtime.clone(), FLUSH_BYTES)?;
        flush.fill(0)?;
        Ok(Clocks {
            runtime: runtime.clone(),
            ceilings: Ceilings::load(runtime)?,
            stream: OwnedStream::new(runtime)?,
            start: Event::new(runtime)?,
            end: Event::new(runtime)?,
            flush,
        })
    }

    /// Events around `work`, after the L2 was emptied.
    pub(crate) fn cold(&self, work: impl Fn(Stream) -> Result<()>) -> Result<Times> {
        self.repeat(COLD_REPETITIONS, work)
    }

    /// A graph of `calls` calls, `enqueue` puts call `i` on the stream; per call.
    pub(crate) fn rotating(&self, calls: usize, enqueue: impl Fn(usize, Stream) -> Result<()>) -> Result<Times> {
        let graph = Graph::capture(&self.runtime, &self.stream, |stream| {
            (0..calls).try_for_each(|call| enqueue(call, stream))
        })?;
        Ok(self.repeat(GRAPH_REPETITIONS, |stream| graph.launch(stream))?.per(calls))
    }

    /// What one launch, whose work takes `work_us`, costs the calling thread.
    pub(crate) fn host(&self, work_us: f64, launch: impl Fn(Stream) -> Result<()>) -> Result<Times> {
        let launches = (HOST_WORK_US / work_us).clamp(FEWEST_HOST_LAUNCHES, HOST_LAUNCHES) as u32;
        let mut samples = Vec::with_capacity(HOST_REPETITIONS);
        for repetition in 0..WARM_UPS + HOST_REPETITIONS {
            self.runtime.synchronize(self.stream.stream())?;
            let start = Instant::now();
            for _ in 0..launches {
                launch(self.stream.stream())?;
            }
            if repetition >= WARM_UPS {
                samples.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(launches));
            }
        }
        self.runtime.synchronize(self.stream.stream())?;
        Ok(Times::of(samples))
    }

    fn repeat(&self, repetitions: usize, work: impl Fn(Stream) -> Result<()>) -> Result<Times> {
        let stream = self.stream.stream();
        let mut samples = Vec::with_capacity(repetitions);
        for repetition in 0..WARM_UPS + repetitions {
            self.ceilings.read(self.flush.address(), self.flush.bytes(), 0, stream)?;
            self.start.record(stream)?;
            work(stream)?;
            self.end.record(stream)?;
            self.end.synchronize()?;
            if repetition >= WARM_UPS {
                samples.push(self.end.elapsed_us(&self.start)?);
            }
        }
        Ok(Times::of(samples))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_samples() {
        let times = Times::of((0..=10).rev().map(f64::from).collect());
        assert_eq!(times, Times { median: 5.0, p10: 1.0, p90: 9.0 });
        assert_eq!(times.per(2), Times { median: 2.5, p10: 0.5, p90: 4.5 });
        assert_eq!(Times::of(vec![3.0]).median, 3.0);
    }
}
