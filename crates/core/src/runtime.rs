//! The seam between planning code and whatever holds memory and executes programs.
//!
//! [`Memory`] is an address space: a GPU's, the emulator's, or the host's for the reference.
//! [`Runtime`] adds programs and launches. `bakewell-cuda` implements both with the driver,
//! `bakewell-emulator` with an interpreter; all code above the seam is the same for both.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::error::Property;
use crate::tensor_map::{TensorMap, TensorMapRequest};
use crate::{Arch, DType, Dims, Error, Program, Result, TensorView};

/// An execution stream: a handle of the driver, which lives at least as long as `'a`.
///
/// Runtimes without streams execute at once and ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Stream<'a>(u64, PhantomData<&'a ()>);

impl Stream<'static> {
    /// The default stream of the device's primary context.
    pub const DEFAULT: Stream<'static> = Stream(0, PhantomData);
}

impl<'a> Stream<'a> {
    /// The stream of a driver handle, a `CUstream`, that somebody else owns.
    ///
    /// # Safety
    /// The driver follows the handle as a pointer: it is a stream of the device on which the value will be used, and
    /// it is not destroyed during `'a`.
    #[allow(unsafe_code)]
    pub const unsafe fn from_raw(handle: u64) -> Stream<'a> {
        Stream(handle, PhantomData)
    }

    /// The driver's handle, 0 for the default stream.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

/// An address space with allocations.
pub trait Memory: Send + Sync {
    /// Name of the device in messages and commands: `cuda:0`, `emulated:sm103`, `reference`.
    fn name(&self) -> String;

    /// Allocates `bytes` (at least 1), aligned to at least 256 bytes, and returns the address. Content is undefined.
    ///
    /// # Errors
    /// The driver's error when memory runs out.
    fn allocate(&self, bytes: u64) -> Result<u64>;

    /// Gives an allocation back. Waits for work that may still use it. Never fails loudly: there is nobody to tell.
    fn free(&self, address: u64);

    /// Copies host bytes to device memory; returns when they are there.
    ///
    /// # Errors
    /// [`Error::Argument`] for memory outside any allocation, or the driver's error.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<()>;

    /// Copies device memory to the host after all earlier work on the device has finished.
    ///
    /// # Errors
    /// As [`Memory::write`], and the error of work that failed.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()>;

    /// Sets `bytes` bytes to `value`; returns when they are set.
    ///
    /// # Errors
    /// As [`Memory::write`].
    fn fill(&self, address: u64, value: u8, bytes: u64) -> Result<()>;

    /// Whether `[address, address + bytes)` is memory of this device.
    ///
    /// # Errors
    /// A sentence that says where it lies instead, for the caller to attach the argument's name to.
    fn locate(&self, address: u64, bytes: u64) -> Result<(), String>;
}

/// A device that executes programs.
pub trait Runtime: Memory {
    /// Architecture of the device.
    fn arch(&self) -> Arch;

    /// Number of SMs.
    fn sm_count(&self) -> u32;

    /// Encodes a tensor map for this device; a pure function of the request. `tensor` names it in errors.
    ///
    /// # Errors
    /// [`Error::Argument`] from [`TensorMapRequest::validate`], or the driver's error.
    fn encode_tensor_map(&self, tensor: &'static str, request: &TensorMapRequest) -> Result<TensorMap>;

    /// Loads a program once per device, after its hash has been checked; later calls return the same handle.
    ///
    /// # Errors
    /// [`Error::Corrupt`], or the error of the loader.
    fn load(&self, program: &Program) -> Result<Kernel>;

    /// Enqueues one launch. Allocates nothing, waits for nothing, legal while a graph is captured.
    ///
    /// # Errors
    /// The driver's error, or the emulator's finding.
    fn launch(&self, kernel: Kernel, config: &LaunchConfig, params: &[u8], stream: Stream) -> Result<()>;

    /// Waits for all work of the stream.
    ///
    /// # Errors
    /// The error of work that failed.
    fn synchronize(&self, stream: Stream) -> Result<()>;
}

/// A loaded kernel. Valid for the runtime that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel(pub u64);

/// Geometry and attributes of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// CTAs in x, y, z.
    pub grid: [u32; 3],
    /// CTAs of a cluster in x, y, z; all 1 without clusters.
    pub cluster: [u32; 3],
    /// Threads of a CTA (one dimension).
    pub block: u32,
    /// Dynamic shared memory of a CTA in bytes.
    pub dynamic_shared_bytes: u32,
    /// Let this launch begin before the previous one on the stream has finished; the kernel waits itself
    /// (`griddepcontrol.wait`).
    pub programmatic_serialization: bool,
}

impl LaunchConfig {
    /// Most CTAs in x, y and z, on every architecture.
    pub const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

    /// Number of CTAs.
    pub fn ctas(&self) -> u64 {
        self.grid.iter().map(|&n| u64::from(n)).product()
    }

    /// CTAs per cluster.
    pub fn cluster_size(&self) -> u32 {
        self.cluster.iter().product()
    }

    /// Checks the limits that hold on every architecture.
    ///
    /// # Errors
    /// [`Error::Argument`] about `grid`, `cluster` or `block`.
    pub fn validate(&self, arch: Arch) -> Result<()> {
        for ((axis, &size), limit) in ["x", "y", "z"].iter().zip(&self.grid).zip(LaunchConfig::MAX_GRID) {
            if size == 0 || size > limit {
                return Err(Error::argument("grid", Property::Size, format!("1..={limit} CTAs in {axis}"), size));
            }
        }
        if self.grid.iter().zip(&self.cluster).any(|(&grid, &cluster)| cluster == 0 || grid % cluster != 0) {
            return Err(Error::value(
                "cluster",
                format!("sizes that divide the grid {:?}", self.grid),
                format!("{:?}", self.cluster),
            ));
        }
        if self.cluster_size() > arch.limits().max_cluster {
            return Err(Error::value(
                "cluster",
                format!("at most {} CTAs on {arch}", arch.limits().max_cluster),
                self.cluster_size(),
            ));
        }
        if self.block == 0 || self.block > 1024 || !self.block.is_multiple_of(32) {
            return Err(Error::value("block", "a multiple of 32 threads in 32..=1024", self.block));
        }
        Ok(())
    }
}

impl fmt::Display for LaunchConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.grid;
        write!(
            f,
            "grid {x}x{y}x{z}, cluster {}, block {}, {} shared bytes",
            self.cluster_size(),
            self.block,
            self.dynamic_shared_bytes
        )
    }
}

/// An allocation that frees itself.
pub struct Buffer {
    memory: Arc<dyn Memory>,
    address: u64,
    bytes: u64,
}

impl Buffer {
    /// Allocates `bytes` on a device. Zero bytes are legal.
    ///
    /// # Errors
    /// As [`Memory::allocate`].
    pub fn new(memory: Arc<dyn Memory>, bytes: u64) -> Result<Buffer> {
        let address = memory.allocate(bytes.max(1))?;
        Ok(Buffer { memory, address, bytes })
    }

    /// Allocates and copies `content`.
    ///
    /// # Errors
    /// As [`Memory::allocate`] and [`Memory::write`].
    pub fn from_bytes(memory: Arc<dyn Memory>, content: &[u8]) -> Result<Buffer> {
        let buffer = Buffer::new(memory, content.len() as u64)?;
        buffer.write(0, content)?;
        Ok(buffer)
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies host bytes to `offset`.
    ///
    /// # Errors
    /// [`Error::Argument`] when they do not fit, or as [`Memory::write`].
    pub fn write(&self, offset: u64, content: &[u8]) -> Result<()> {
        self.check(offset, content.len() as u64)?;
        if content.is_empty() { Ok(()) } else { self.memory.write(self.address + offset, content) }
    }

    /// The whole content, after earlier work has finished.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn read(&self) -> Result<Vec<u8>> {
        let mut content = vec![0; self.bytes as usize];
        if !content.is_empty() {
            self.memory.read(self.address, &mut content)?;
        }
        Ok(content)
    }

    /// Sets every byte.
    ///
    /// # Errors
    /// As [`Memory::fill`].
    pub fn fill(&self, value: u8) -> Result<()> {
        if self.bytes == 0 { Ok(()) } else { self.memory.fill(self.address, value, self.bytes) }
    }

    /// A contiguous view of the whole buffer or its start.
    ///
    /// # Errors
    /// [`Error::Argument`] when the tensor does not fit.
    pub fn view(&self, dtype: DType, shape: &[u64]) -> Result<TensorView<'_>> {
        self.strided_view(0, dtype, shape, Dims::new(shape)?.contiguous_strides().as_slice())
    }

    /// A strided view that starts `offset` bytes into the buffer. Strides count elements.
    ///
    /// # Errors
    /// [`Error::Argument`] when the tensor does not fit.
    pub fn strided_view(&self, offset: u64, dtype: DType, shape: &[u64], strides: &[u64]) -> Result<TensorView<'_>> {
        let address = self
            .address
            .checked_add(offset)
            .ok_or_else(|| Error::value("offset", "an offset inside the buffer", offset))?;
        let view = TensorView::unowned(address, dtype, shape, strides)?;
        self.check(offset, view.extent_bytes()?)?;
        Ok(view)
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => {
                let given = format!("{bytes} bytes at offset {offset}");
                Err(Error::argument("buffer", Property::Size, format!("at most {} bytes", self.bytes), given))
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.memory.free(self.address);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {:#x} on {})", self.bytes, self.address, self.memory.name())
    }
}
