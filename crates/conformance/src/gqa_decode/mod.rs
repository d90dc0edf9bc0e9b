//! Inputs, runs, references and tolerances of grouped-query decode attention.
//!
//! | module | subject |
//! |---|---|
//! | [`inputs`] | inputs from files and generators, and what the reference makes of them |
//! | [`golden`] | inputs with an output that was computed independently |
//! | [`staged`] | inputs on a device, outputs poisoned and guarded |
//! | [`tolerance`] | how far an output may be from what is expected, and why |

pub mod golden;
pub mod inputs;
pub mod staged;
pub mod tolerance;

pub use golden::Golden;
pub use inputs::{Case, Distribution, Expected, Inputs};
pub use staged::{Outputs, Run, Staged, run};
pub use tolerance::{lse_tolerance, out_tolerance};
