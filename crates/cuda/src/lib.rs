//! Bakewell runtime over the CUDA driver API, loaded at run time; nothing is linked.
//!
//! [`CudaRuntime`] implements [`Memory`](bakewell_core::Memory) and [`Runtime`](bakewell_core::Runtime) for one GPU:
//! it allocates and copies, encodes tensor maps, loads embedded cubins once per device after their hash
//! was compared, and launches with cluster and programmatic-launch attributes on the caller's stream. A
//! launch only enqueues. The caller's current context is restored on every path. On a machine with no
//! driver every entry returns [`Error::NoDriver`](bakewell_core::Error::NoDriver) that says where it looked.
//!
//! | module | subject |
//! |---|---|
//! | `device` | what the driver shows, and [`CudaRuntime`], the runtime of one GPU |
//! | `memory` | allocation, copies, and where an address lies |
//! | `tensor_map` | validation and encoding |
//! | `module` | programs become kernels, once |
//! | `launch` | the one `cuLaunchKernelEx` |
//! | `context` | the caller's context comes back |
//! | [`adapters`] | streams and slices of cudarc |
//! | [`timing`] | events, graphs and streams for benchmarks |
//! | [`ceilings`] | kernels that measure what the hardware can do at best |
//! | [`driver`] | the seam: the driver calls as a trait |
//! | `library` | looks for the driver library |
//! | `real` | the driver library behind the seam |
//! | `mock` | a recording driver behind the seam (feature `mock`) |
//!
//! ```
//! use bakewell_core::{Buffer, Error};
//! use bakewell_cuda::CudaRuntime;
//!
//! match CudaRuntime::open(0) {
//!     Ok(device) => {
//!         let buffer = Buffer::from_bytes(device, &[1, 2, 3])?;
//!         assert_eq!(buffer.read()?, [1, 2, 3]);
//!     }
//!     Err(Error::NoDriver { searched }) => println!("no driver: {searched}"),
//!     Err(error) => println!("{error}"),
//! }
//! # Ok::<(), Error>(())
//! ```

#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "makes views of slices that it borrows")]
pub mod adapters;
pub mod ceilings;
mod context;
mod device;
pub mod driver;
mod launch;
#[allow(unsafe_code, reason = "opens the driver library")]
mod library;
mod memory;
#[cfg(any(test, feature = "mock"))]
pub mod mock;
mod module;
#[allow(unsafe_code, reason = "calls the driver library")]
mod real;
mod tensor_map;
#[cfg(test)]
mod tests;
pub mod timing;

pub use device::{CudaRuntime, DeviceFacts, devices, devices_of, driver_version};
