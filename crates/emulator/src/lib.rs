//! Executes PTX programs for sm_90a to sm_110a on a CPU, and checks them.
//!
//! PTX text is parsed, decoded once into dense operations and executed at warp granularity: 32 lanes a step, lane
//! groups lowest program counter first, clusters in parallel on host threads. Faults of the program are [`Finding`]s;
//! what the emulator itself cannot do is an [`Error`].
//!
//! | module | what |
//! |---|---|
//! | [`emulator`] | the API: module, memory, launch, report |
//! | [`options`] | what can be chosen |
//! | [`runtime`] | the emulator as a device of Bakewell |
//! | [`parse`] | text to syntax tree |
//! | [`isa`] | types, targets, the table of instruction forms |
//! | [`decode`] | syntax tree to dense operations |
//! | [`exec`] | semantics, one file per family |
//! | [`machine`] | warps, CTAs, clusters, the grid, who runs next |
//! | [`memory`] | global, shared, tensor, local: state and bounds |
//! | [`async_engine`] | work in flight |
//! | [`check`] | events and observers |
//! | [`trace`] | counters |
//! | [`launch_file`] | launches described in JSON |
//! | [`layout`] | swizzles, tensor maps, matrix fragments and descriptors |
//! | [`numerics`] | formats, conversions, approximate functions, dot products |
//!
//! ```
//! use bakewell_emulator::{Emulator, Launch, Module, Options, Target};
//!
//! let module = Module::parse(
//!     ".version 8.6 .target sm_100a .address_size 64
//!      .visible .entry twice(.param .u64 data) {
//!          .reg .b32 %r<3>; .reg .b64 %rd<3>;
//!          ld.param.u64 %rd0, [data];
//!          mov.u32 %r0, %tid.x;
//!          mul.wide.u32 %rd1, %r0, 4;
//!          add.s64 %rd2, %rd0, %rd1;
//!          ld.global.u32 %r1, [%rd2];
//!          add.u32 %r2, %r1, %r1;
//!          st.global.u32 [%rd2], %r2;
//!          ret;
//!      }",
//! )?;
//! let device = Emulator::new(Target::Sm100, Options::new(Target::Sm100));
//! let data = device.allocate("data", 64 * 4)?;
//! let input: Vec<u8> = (0..64u32).flat_map(u32::to_le_bytes).collect();
//! device.write(data, &input)?;
//! let loaded = device.load(&module)?;
//! let report = device.launch(&loaded, "twice", Launch::linear(1, 64), &data.to_le_bytes())?;
//! assert!(report.is_clean());
//! assert_eq!(device.read(data + 63 * 4, 4)?, 126u32.to_le_bytes());
//! # Ok::<(), bakewell_emulator::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod async_engine;
pub mod check;
pub mod decode;
pub mod emulator;
pub mod error;
pub mod exec;
pub mod finding;
pub mod isa;
pub mod launch_file;
pub mod layout;
pub mod machine;
pub mod memory;
pub mod numerics;
pub mod options;
pub mod parse;
pub mod rng;
mod run;
pub mod runtime;
#[cfg(test)]
mod testing;
pub mod trace;

pub use async_engine::CompletionPolicy;
pub use emulator::{Emulator, Launch, LoadedModule, Module, Report};
pub use error::{Error, Result};
pub use finding::{Finding, Kind};
pub use isa::Target;
pub use options::{Checks, MatrixNumerics, Options};
pub use runtime::EmulatedRuntime;
pub use trace::Counters;
