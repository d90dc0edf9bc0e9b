//! Inputs, references, goldens and single stages of NVFP4 pre-attention.
//!
//! | module | subject |
//! |---|---|
//! | [`golden`] | every intermediate, computed independently |
//! | [`inputs`] | inputs, and generators of them |
//! | [`cases`](mod@cases) | generated cases |
//! | [`call`] | the tensors of a call |
//! | [`judged`] | what should come out, from a file or the reference |
//! | [`mod@judge`] | how far outputs may be from that, and why |
//! | [`sampled`] | some tokens of a call |
//! | [`repeated`] | calls of any size on tokens that repeat a few |
//! | [`norm`] | the norm kernel alone |
//! | [`tcgen05`] | the GEMM on tensor memory alone |
//! | [`wgmma`] | the GEMM on warpgroup tensor cores alone |

pub mod call;
pub mod cases;
pub mod golden;
pub mod inputs;
pub mod judge;
pub mod judged;
pub mod norm;
pub mod repeated;
pub mod sampled;
pub mod tcgen05;
pub mod wgmma;

pub use cases::{Case, cases};
pub use golden::Golden;
pub use inputs::Inputs;
pub use judge::{Judgement, judge};
pub use judged::Expected;
