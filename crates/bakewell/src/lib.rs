//! Attention and linear-attention kernels for NVIDIA Blackwell and Hopper.
//!
//! The kernels are compiled ahead of time and embedded; the driver library is loaded at run time, so
//! that building needs no nvcc and no GPU. A [`Device`] is a GPU, the PTX emulator, or the CPU
//! reference. Every operation is used the same way: *plan* a problem (a pure decision), *bind* the
//! tensors (checks, loads, encodes), *launch* (only enqueues).
//!
//! | module | subject |
//! |---|---|
//! | [`device`] | devices, their names, memory on them |
//! | [`gqa_decode`] | grouped-query decode attention |
//! | [`gdn`] | Gated DeltaNet training, forward and backward |
//! | [`nvfp4_context`] | paged-context attention over an NVFP4 cache |
//! | [`nvfp4_pre_attention`] | norm, modulation, quantisation and the fused NVFP4 QKV GEMM |
//! | [`nvfp4`] | NVFP4 tensors on the host: quantisation, its reverse, layout of scales |
//! | [`plan`] | from a problem to a launch: what every operation shares |
//! | [`arguments`] | the tensors of a call, and the checks on them |
//! | [`binder`] | what an operation puts its launches into |
//! | [`bound`] | a plan with its tensors, ready to be enqueued |
//! | [`workspace`] | device memory that a plan needs besides the tensors |
//! | [`architectures`] | architectures compiled in, their programs and evidence |
//!
//! | feature | adds |
//! |---|---|
//! | `sm90` `sm100` `sm103` `sm107` `sm110` | programs of that architecture |
//! | `cuda` | [`Device::cuda`] |
//! | `emulator` | [`Device::emulated`] |
//! | `reference` | [`Device::reference`] |
//!
//! All are on by default.
//!
#![cfg_attr(feature = "reference", doc = "```")]
#![cfg_attr(not(feature = "reference"), doc = "```no_run")]
//! use bakewell::gqa_decode::{GqaDecode, GqaDecodeArgs};
//! use bakewell::{DType, Device, Stream};
//!
//! let device = Device::reference()?;
//! let problem = GqaDecode { batch: 1, capacity: 1, ..GqaDecode::default() };
//!
//! let q = device.upload(&[0u8; 32 * 128 * 2])?;
//! let kv = device.upload(&[0x3Cu8; 2 * 8 * 128 * 2])?;
//! let sequence_lengths = device.upload(&1i32.to_le_bytes())?;
//! let out = device.buffer(32 * 128 * 2)?;
//!
//! let plan = device.plan(&problem)?;
//! let bound = plan.bind(GqaDecodeArgs {
//!     q: q.view(DType::F16, &problem.q_shape())?,
//!     kv: kv.view(DType::F16, &problem.kv_shape())?,
//!     sequence_lengths: sequence_lengths.view(DType::I32, &problem.sequence_lengths_shape())?,
//!     out: out.view(DType::F16, &problem.q_shape())?,
//!     lse: None,
//!     workspace: None,
//! })?;
//! bound.launch(Stream::DEFAULT)?;
//! assert_eq!(out.read()?, [0x3C; 32 * 128 * 2], "one key: the output is its value");
//! # Ok::<(), bakewell::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod architectures;
pub mod arguments;
pub mod binder;
pub mod bound;
pub mod device;
pub mod gdn;
pub mod gqa_decode;
#[cfg(feature = "reference")]
mod host_tensors;
pub mod nvfp4;
pub mod nvfp4_context;
pub mod nvfp4_pre_attention;
pub mod plan;
pub mod workspace;

pub use bakewell_core::architecture::Library;
pub use bakewell_core::{
    Arch, Architecture, Buffer, DType, Dims, Error, LaunchConfig, Memory, Operation, Program, Result, Runtime, Stream,
    TensorView, arch, architecture, error, params, program, route, runtime, schedule, tensor_map,
};
pub use bound::Bound;
pub use device::{Device, DeviceName};
pub use plan::{Plan, Problem};

#[cfg(feature = "cuda")]
pub use bakewell_cuda as cuda;
#[cfg(feature = "emulator")]
pub use bakewell_emulator as emulator;
#[cfg(feature = "reference")]
pub use bakewell_reference as reference;
