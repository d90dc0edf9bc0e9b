//! Small PTX programs, one or more per instruction form, whose results are recorded on a device and replayed on the
//! emulator.
//!
//! A [`Case`] is PTX, launch facts, inputs made by a rule from its name, and the class of its comparison. The same case
//! runs on two [`Engine`]s: the emulator and a GPU, where the driver compiles the PTX. `truth record --out DIR` writes
//! one record per family; those in `records/` came from an H200, and `tests/replay.rs` compares the emulator with them
//! on every machine.
//!
//! | module | what |
//! |---|---|
//! | [`case`] | a case and its PTX |
//! | [`values`] | inputs: edge values, mixed bits, packed operands of matrices |
//! | [`engine`] | the emulator and the device |
//! | [`record`] | record files, digests, comparison |
//! | [`families`] | the cases |
//!
//! ```
//! use bakewell_truth::{engine::{Emulated, Engine}, families};
//!
//! let cases = families::family("integer").expect("one of families::NAMES");
//! let popc = cases.iter().find(|case| case.name == "popc.b32").expect("a case of the family");
//! let output = Emulated.run(popc)?;
//! assert_eq!(output[..4], 0u32.to_le_bytes(), "the first input is 0");
//! # Ok::<(), anyhow::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod case;
pub mod engine;
pub mod families;
pub mod record;
pub mod values;

pub use case::Case;
pub use engine::Engine;
