//! The seam below this crate: the driver calls it makes, as a trait.
//!
//! `real::Api` calls the driver library; `mock::RecordingDriver` records, fails on demand and
//! keeps fake memory. Handles are opaque and come from the driver that uses them, so that no safe
//! code outside this crate can hand a made-up pointer to the library.

use std::ffi::CStr;

use bakewell_core::tensor_map::{TensorMap, TensorMapRequest};
use bakewell_core::{Error, LaunchConfig, Stream};

/// A driver call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Driver function.
    pub call: &'static str,
    /// Its result code, never 0.
    pub code: u32,
}

/// Result of a driver call.
pub type Answer<T> = std::result::Result<T, Failure>;

/// `CUDA_ERROR_NO_DEVICE`: what `cuInit` says on a machine with a driver and no GPU.
pub(crate) const NO_DEVICE: u32 = 100;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) usize);)*
    };
}

handles! {
    /// A context; 0 where a thread has none.
    Context;
    /// A loaded module.
    Module;
    /// A kernel of a module.
    Function;
    /// An event.
    EventHandle;
    /// A captured graph.
    GraphHandle;
    /// A graph that can be launched.
    GraphExecHandle;
}

/// A device of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceHandle(pub(crate) i32);

/// Numbers the driver knows about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum DeviceAttribute {
    ComputeMajor,
    ComputeMinor,
    SmCount,
    L2Bytes,
    SmClockKhz,
    MemoryClockKhz,
    MemoryBusBits,
}

/// Settings of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum FunctionAttribute {
    MaxDynamicSharedBytes,
    NonPortableClusterAllowed,
}

/// Attributes of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchAttribute {
    /// CTAs of a cluster in x, y, z.
    Cluster([u32; 3]),
    /// The launch may begin before its predecessor on the stream has finished.
    ProgrammaticSerialization,
}

/// What the driver knows about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerFacts {
    /// Kind of memory.
    pub kind: PointerKind,
    /// Ordinal of the owning device.
    pub ordinal: i32,
    /// First address of the allocation.
    pub start: u64,
    /// Size of the allocation in bytes.
    pub bytes: u64,
}

/// Kind of memory behind an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerKind {
    /// Not known to the driver.
    Unknown,
    /// Pinned host memory.
    Host,
    /// Memory of one device.
    Device,
    /// Managed memory: valid on every device.
    Managed,
}

/// The driver calls that this crate makes; each method is one call and is named after it.
///
/// Sealed by its handles: only this crate can make one, and each comes from the same driver.
#[allow(missing_docs)]
pub trait Driver: Send + Sync {
    fn driver_version(&self) -> Answer<i32>;
    fn device_count(&self) -> Answer<i32>;
    fn device(&self, ordinal: i32) -> Answer<DeviceHandle>;
    fn device_name(&self, device: DeviceHandle) -> Answer<String>;
    fn device_total_memory(&self, device: DeviceHandle) -> Answer<u64>;
    fn device_attribute(&self, attribute: DeviceAttribute, device: DeviceHandle) -> Answer<i32>;
    /// Name of a result code; `None` when the driver does not know it.
    fn error_name(&self, code: u32) -> Option<String>;

    fn primary_context_retain(&self, device: DeviceHandle) -> Answer<Context>;
    fn primary_context_release(&self, device: DeviceHandle) -> Answer<()>;
    fn context_current(&self) -> Answer<Context>;
    fn context_set_current(&self, context: Context) -> Answer<()>;
    fn context_synchronize(&self) -> Answer<()>;

    fn memory_allocate(&self, bytes: u64) -> Answer<u64>;
    fn memory_free(&self, address: u64) -> Answer<()>;
    /// The caller has checked that the range is device memory.
    fn memory_write(&self, address: u64, bytes: &[u8]) -> Answer<()>;
    /// The caller has checked that the range is device memory.
    fn memory_read(&self, address: u64, bytes: &mut [u8]) -> Answer<()>;
    /// The caller has checked that the range is device memory.
    fn memory_fill(&self, address: u64, value: u8, bytes: u64) -> Answer<()>;
    /// The caller has checked that both ranges are device memory.
    fn memory_copy_async(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Answer<()>;
    fn pointer(&self, address: u64) -> Answer<PointerFacts>;

    /// The caller has validated the request.
    fn tensor_map_encode(&self, request: &TensorMapRequest) -> Answer<TensorMap>;

    /// `image` is a cubin, or PTX text that ends with a zero byte.
    fn module_load(&self, image: &[u8]) -> Answer<Module>;
    fn module_unload(&self, module: Module) -> Answer<()>;
    fn module_function(&self, module: Module, entry: &CStr) -> Answer<Function>;
    fn function_set(&self, function: Function, attribute: FunctionAttribute, value: i32) -> Answer<()>;
    fn launch(
        &self,
        function: Function,
        config: &LaunchConfig,
        attributes: &[LaunchAttribute],
        params: &[u8],
        stream: Stream,
    ) -> Answer<()>;

    fn stream_create(&self) -> Answer<Stream<'static>>;
    fn stream_destroy(&self, stream: Stream) -> Answer<()>;
    fn stream_synchronize(&self, stream: Stream) -> Answer<()>;
    fn event_create(&self) -> Answer<EventHandle>;
    fn event_destroy(&self, event: EventHandle) -> Answer<()>;
    fn event_record(&self, event: EventHandle, stream: Stream) -> Answer<()>;
    fn event_synchronize(&self, event: EventHandle) -> Answer<()>;
    fn event_elapsed_ms(&self, start: EventHandle, end: EventHandle) -> Answer<f32>;
    fn capture_begin(&self, stream: Stream) -> Answer<()>;
    fn capture_end(&self, stream: Stream) -> Answer<GraphHandle>;
    fn graph_destroy(&self, graph: GraphHandle) -> Answer<()>;
    fn graph_instantiate(&self, graph: GraphHandle) -> Answer<GraphExecHandle>;
    fn graph_exec_destroy(&self, graph: GraphExecHandle) -> Answer<()>;
    fn graph_launch(&self, graph: GraphExecHandle, stream: Stream) -> Answer<()>;
}

/// The public error of a failed call. The name of the code is looked up here, once: formatting calls no driver.
pub(crate) fn error(driver: &dyn Driver, failure: Failure, program: String) -> Error {
    let name = driver.error_name(failure.code).unwrap_or_else(|| "a code this driver does not name".to_owned());
    Error::Driver { call: failure.call, program, code: failure.code, name }
}
