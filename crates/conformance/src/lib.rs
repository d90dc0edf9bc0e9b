//! What it takes to say whether an operation is right on a device.
//!
//! Tensors travel in safetensors files; an operation runs on them on any [`Device`](bakewell::Device);
//! the result is compared with a golden or with the reference. The command line and the test suite
//! share this crate, so that `bakewell verify` and the tests mean the same by "passes".
//!
//! | module | subject |
//! |---|---|
//! | [`tensor`] | tensors on the host |
//! | [`mod@file`] | safetensors files |
//! | [`mod@compare`] | comparison: special values, absolute, relative and norm error, worst element |
//! | [`engines`] | the devices present, and why others are not |
//! | [`random`] | reproducible random numbers |
//! | [`call`] | the tensors of a call by name, and buffers for them |
//! | [`staged`] | a call on a device, outputs poisoned and guarded |
#![cfg_attr(feature = "cuda", doc = "| [`graphs`] | captured launches replayed with other inputs |")]
//! | [`judged`] | goldens, the reference, and verdicts on outputs |
//! | [`gdn`] | inputs, runs, references and limits of Gated DeltaNet training |
//! | [`gqa_decode`] | inputs, references and tolerances of grouped-query decode attention |
//! | [`nvfp4_context`] | inputs, references and gates of NVFP4 paged-context attention |
//! | [`nvfp4_pre_attention`] | inputs, goldens and single stages of NVFP4 pre-attention |
//!
//! ```
//! use bakewell_conformance::compare::{Tolerance, compare};
//!
//! let tolerance = Tolerance { relative_l2: 1e-3, absolute: 0.0, of_peak: 2e-3 };
//! let good = compare(&[2, 2], &[1.0, 2.0, 3.0, 4.001], &[1.0, 2.0, 3.0, 4.0])?;
//! assert!(good.verdict(&tolerance).is_ok());
//! let swapped = compare(&[2, 2], &[3.0, 4.0, 1.0, 2.0], &[1.0, 2.0, 3.0, 4.0])?;
//! assert!(swapped.verdict(&tolerance).is_err());
//! # Ok::<(), bakewell::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod call;
pub mod compare;
pub mod engines;
pub mod file;
pub mod gdn;
pub mod gqa_decode;
#[cfg(feature = "cuda")]
pub mod graphs;
mod guarded;
pub mod judged;
pub mod nvfp4_context;
pub mod nvfp4_pre_attention;
pub mod random;
pub mod staged;
pub mod tensor;

pub use call::CallInputs;
pub use file::TensorFile;
pub use judged::{Golden, Judged, Planned, Verdict};
pub use staged::{Outputs, Run, Staged, run};
pub use tensor::HostTensor;
