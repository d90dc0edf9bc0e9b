//! Inputs, runs, references and gates of NVFP4 paged-context attention.
//!
//! | module | subject |
//! |---|---|
//! | [`inputs`] | inputs from files and generators, and what the reference makes of them |
//! | [`cases`](mod@cases) | generated cases |
//! | [`golden`] | inputs with an output that was computed independently |
//! | [`staged`] | inputs on a device, outputs poisoned and guarded |
//! | [`gates`] | how far an output may be from what is expected, and why |

pub mod cases;
pub mod gates;
pub mod golden;
pub mod inputs;
pub mod staged;

pub use cases::{Case, cases};
pub use gates::{Gates, Judgement, judge};
pub use golden::Golden;
pub use inputs::{Expected, Inputs, Spec};
pub use staged::{Outputs, Run, ScaleOrigin, Staged, run};
