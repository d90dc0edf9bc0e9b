//! Inputs, references and gates of NVFP4 paged-context attention.
//!
//! | module | subject |
//! |---|---|
//! | [`inputs`] | inputs, and generators of them |
//! | [`cases`](mod@cases) | generated cases |
//! | [`call`] | the tensors of a call |
//! | [`judged`] | what should come out, and whether it did |
//! | [`gates`] | how far an output may be from what is expected, and why |
//! | [`pages`] | the pages of a cache: the debug entry |

pub mod call;
pub mod cases;
pub mod gates;
pub mod inputs;
pub mod judged;
pub mod pages;

pub use cases::{Case, PAIRED, THREE_HALVES, cases};
pub use gates::{Gates, Judgement, judge};
pub use inputs::{Inputs, ScaleOrigin, Spec};
pub use judged::Expected;
pub use pages::{PagesExpected, PagesInputs};
