//! What this GPU can do at best, measured in the run that it is compared with.

use bakewell::{Buffer, Result, Stream};
use serde::Serialize;

use super::clocks::{Clocks, Times};

/// Bytes of one read or copy: many times the L2.
const BYTES: u64 = 1 << 30;
/// Reads or copies between two events: their cost is a thousandth of the whole.
const PASSES: usize = 8;
/// Kernels in the graph that times an empty one.
const NODES: usize = 1000;

/// The ceilings of a GPU.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Ceilings {
    /// Rate of a kernel that only reads, in GB/s: the better of one CTA per 32 KiB and eight persistent CTAs per SM.
    pub(crate) read_gbps: f64,
    /// Rate of the driver's copy inside the device, bytes read plus bytes written, in GB/s.
    pub(crate) copy_gbps: f64,
    /// An empty kernel as one of a thousand nodes of a graph, in microseconds.
    pub(crate) empty_node_us: f64,
    /// Two events around an empty kernel, in microseconds: part of every cold time.
    pub(crate) event_floor_us: f64,
    /// What launching an empty kernel costs the host, in microseconds.
    pub(crate) empty_host_us: f64,
}

pub(crate) fn measure(clocks: &Clocks) -> Result<Ceilings> {
    let from = Buffer::new(clocks.runtime.clone(), BYTES)?;
    let to = Buffer::new(clocks.runtime.clone(), BYTES)?;
    // Not zeros: a memory of equal bytes may be faster.
    let noise: Vec<u8> = (0..1u64 << 20).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect();
    for buffer in [&from, &to] {
        (0..BYTES >> 20).try_for_each(|block| buffer.write(block << 20, &noise))?;
    }
    let gbps = |times: Times, bytes: u64| bytes as f64 / times.median / 1e3;
    let read = |ctas: u32| -> Result<f64> {
        let pass = |pass: usize, stream: Stream<'_>| {
            clocks.ceilings.read([&from, &to][pass % 2].address(), BYTES, ctas, stream)
        };
        Ok(gbps(clocks.rotating(PASSES, pass)?, BYTES))
    };
    let copy = |_: usize, stream: Stream<'_>| clocks.runtime.copy_async(to.address(), from.address(), BYTES, stream);
    Ok(Ceilings {
        read_gbps: read(0)?.max(read(8 * clocks.runtime.facts().sm_count)?),
        copy_gbps: gbps(clocks.rotating(PASSES, copy)?, 2 * BYTES),
        empty_node_us: clocks.rotating(NODES, |_, stream| clocks.ceilings.empty(stream))?.median,
        event_floor_us: clocks.cold(|stream| clocks.ceilings.empty(stream))?.median,
        empty_host_us: clocks.host(1.0, |stream| clocks.ceilings.empty(stream))?.median,
    })
}
