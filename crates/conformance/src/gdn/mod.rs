//! Inputs, runs, references and limits of Gated DeltaNet training.
//!
//! | module | subject |
//! |---|---|
//! | [`inputs`] | inputs from files, and what the reference makes of them |
//! | [`cases`] | generated inputs: lengths, gates, write strengths |
//! | [`judged`] | goldens, variations and verdicts |
//! | [`staged`] | inputs on a device in several layouts, outputs poisoned and guarded |
//! | [`repeated`] | calls of many sequences that repeat a few |
//! | [`limits`] | how far outputs and gradients may be from what is expected, and why |

pub mod cases;
pub mod inputs;
pub mod judged;
pub mod limits;
pub mod repeated;
pub mod staged;

pub use cases::{Case, Gate, Keys, Write};
pub use inputs::{Expected, Inputs};
pub use limits::{Judgement, Limits, Ratios, judge};
pub use staged::{Place, Run, Staged, run};
