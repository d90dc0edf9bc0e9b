//! State and bounds of every memory: global (sparse, shared by all clusters), shared (per CTA), tensor, local.

mod bits;
mod global;
mod local;
mod shared;
mod tensor;

pub use bits::BitSet;
pub use global::{Allocation, GlobalMemory, PAGE_BYTES};
pub use local::LocalMemory;
pub use shared::SharedMemory;
pub use tensor::{COLUMNS, LANES, SHARED_COLUMNS, TensorMemory};

/// First byte of a CTA's shared memory that programs may use; what lies below is the system's.
pub const SHARED_START: u32 = 0x400;

/// Generic window of shared memory: low 32 bits are the shared address (`rank << 24 | offset`).
pub const SHARED_WINDOW: u64 = 0x0000_7f10_0000_0000;
/// Generic window of local memory: low 32 bits are the offset in the thread's own memory.
pub const LOCAL_WINDOW: u64 = 0x0000_7f20_0000_0000;
/// Generic window of kernel parameters: low 32 bits are the offset in the parameter block.
pub const PARAM_WINDOW: u64 = 0x0000_7f30_0000_0000;

/// The state space of an access after generic addresses are resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// Global and constant memory.
    Global,
    /// Shared memory of the CTA or of its cluster; addresses are `rank << 24 | offset`.
    Shared,
    /// Local memory of one thread.
    Local,
    /// Kernel parameters.
    Param,
    /// Tensor memory; addresses are `lane << 16 | column`.
    Tensor,
}

/// The space that a generic address points to, and the address in it.
pub fn resolve_generic(address: u64) -> (Space, u64) {
    match address & 0xffff_ffff_0000_0000 {
        SHARED_WINDOW => (Space::Shared, address & 0xffff_ffff),
        LOCAL_WINDOW => (Space::Local, address & 0xffff_ffff),
        PARAM_WINDOW => (Space::Param, address & 0xffff_ffff),
        _ => (Space::Global, address),
    }
}

/// Why an access is wrong; the machine adds who did it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessError {
    /// Outside every buffer, or past the end of one. The text names buffer and distance.
    OutOfBounds(String),
    /// Reads bytes that nobody wrote. The text names buffer and offset.
    Uninitialised(String),
    /// The address is not a multiple of the access size.
    Misaligned(String),
}
