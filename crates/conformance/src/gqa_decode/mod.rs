//! Inputs, references and tolerances of grouped-query decode attention.
//!
//! | module | subject |
//! |---|---|
//! | [`inputs`] | inputs, and generators of them |
//! | [`call`] | the tensors of a call |
//! | [`judged`] | what should come out, and whether it did |
//! | [`replays`] | calls to capture in a graph, and what to replay them with |
//! | [`tolerance`] | how far an output may be from what is expected, and why |

pub mod call;
pub mod inputs;
pub mod judged;
pub mod replays;
pub mod tolerance;

pub use inputs::{Case, Distribution, Inputs};
pub use judged::Expected;
pub use tolerance::{lse_tolerance, out_tolerance};
