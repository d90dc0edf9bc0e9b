//! Kernels that measure what the hardware can do at best, for the roofline of a benchmark.
//!
//! Their source is `ceilings.ptx`, compiled by the driver when asked for: it is no program of Bakewell's,
//! has no schedule and appears in no manifest.

use std::ffi::CStr;
use std::sync::Arc;

use bakewell_core::runtime::Kernel;
use bakewell_core::{Buffer, LaunchConfig, Result, Runtime, Stream};

use crate::CudaRuntime;
use crate::module::{Loaded, Origin, load_image};

/// The source, ended by the zero byte that the driver looks for.
const SOURCE: &str = concat!(include_str!("ceilings.ptx"), "\0");

/// Bytes that one CTA of the reading kernel takes at a time.
pub const CHUNK_BYTES: u64 = 32 * 1024;

/// Threads of a CTA of the reading kernel.
const READ_THREADS: u32 = 256;

/// The kernels, loaded on one device.
#[derive(Debug)]
pub struct Ceilings {
    runtime: Arc<CudaRuntime>,
    empty: Kernel,
    read: Kernel,
    sink: Buffer,
}

impl Ceilings {
    /// Compiles and loads the kernels.
    ///
    /// # Errors
    /// The driver's.
    pub fn load(runtime: &Arc<CudaRuntime>) -> Result<Ceilings> {
        let sink = Buffer::new(runtime.clone(), 4)?;
        let empty = helper(runtime, "bakewell_empty", c"bakewell_empty")?;
        let read = helper(runtime, "bakewell_read", c"bakewell_read")?;
        Ok(Ceilings { runtime: runtime.clone(), empty, read, sink })
    }

    /// Enqueues a kernel that does nothing.
    ///
    /// # Errors
    /// The driver's.
    pub fn empty(&self, stream: Stream) -> Result<()> {
        self.runtime.launch(self.empty, &plain(1, 32), &[], stream)
    }

    /// Enqueues a kernel that reads `bytes` bytes from `address`, whole chunks of [`CHUNK_BYTES`], with at most `ctas`
    /// CTAs (0: one per chunk).
    ///
    /// # Errors
    /// `Error::Argument` for memory of another place, or the driver's.
    pub fn read(&self, address: u64, bytes: u64, ctas: u32, stream: Stream) -> Result<()> {
        let chunks = bytes / CHUNK_BYTES;
        if chunks == 0 {
            return Ok(());
        }
        self.runtime.check_range(address, chunks * CHUNK_BYTES)?;
        let most = if ctas == 0 { i32::MAX as u64 } else { u64::from(ctas) };
        let mut params = [0; 24];
        for (bytes, value) in params.chunks_exact_mut(8).zip([address, chunks, self.sink.address()]) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        self.runtime.launch(self.read, &plain(chunks.min(most) as u32, READ_THREADS), &params, stream)
    }
}

fn helper(runtime: &CudaRuntime, name: &'static str, entry: &CStr) -> Result<Kernel> {
    let (module, function) = runtime.call(name, || load_image(&*runtime.driver, SOURCE.as_bytes(), entry, &[]))?;
    Ok(runtime.kernels.add(Loaded { function, module, dynamic_shared_bytes: 0, origin: Origin::Helper(name) }))
}

fn plain(ctas: u32, block: u32) -> LaunchConfig {
    LaunchConfig {
        grid: [ctas, 1, 1],
        cluster: [1; 3],
        block,
        dynamic_shared_bytes: 0,
        programmatic_serialization: false,
    }
}
