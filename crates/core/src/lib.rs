//! Vocabulary shared by all Bakewell crates.
//!
//! This crate names things: architectures, element types, tensor views, schedules, kernel-parameter
//! layouts, compiled programs, and the [`Runtime`] trait that a GPU driver and an emulator both
//! implement. It does no I/O, runs nothing, and knows no mathematics of any operation.
//!
//! | module | subject |
//! |---|---|
//! | [`arch`] | supported architectures and the exact-capability rules |
//! | [`dtype`] | element types |
//! | [`tensor`] | strided tensor views over device memory |
//! | [`tensor_map`] | tensor-map requests and their validation |
//! | [`error`] | the one public error type |
//! | [`operation`] | names of the operations |
//! | [`params`] | layout of a kernel's parameter block |
//! | [`schedule`] | one schedule struct per operation, rendered for the kernel compiler |
//! | [`route`] | route tables: regions over shape facts |
//! | [`program`] | compiled programs, manifests, hashes, measured resources, evidence |
//! | [`architecture`] | what an architecture crate offers |
//! | [`runtime`] | the seam between planning code and whatever executes programs |
//! | [`address_space`] | addresses of memory on the CPU |
//!
//! ```
//! use bakewell_core::{Arch, DType, Error};
//!
//! assert_eq!(Arch::from_compute_capability(10, 3).unwrap(), Arch::Sm103);
//! assert!(matches!(Arch::from_compute_capability(12, 0), Err(Error::UnsupportedDevice { .. })));
//! assert_eq!(DType::Bf16.bytes(), 2);
//! ```

#![deny(unsafe_code)]

pub mod address_space;
pub mod arch;
pub mod architecture;
pub mod dtype;
pub mod error;
pub mod operation;
pub mod params;
pub mod program;
pub mod route;
pub mod runtime;
pub mod schedule;
pub mod tensor;
pub mod tensor_map;

pub use arch::Arch;
pub use architecture::Architecture;
pub use dtype::DType;
pub use error::{Error, Result};
pub use operation::Operation;
pub use program::Program;
pub use runtime::{Buffer, LaunchConfig, Memory, Runtime, Stream};
pub use tensor::{Dims, TensorView};
