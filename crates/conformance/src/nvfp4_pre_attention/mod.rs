//! Inputs, goldens and single stages of NVFP4 pre-attention.
//!
//! | module | subject |
//! |---|---|
//! | [`golden`] | inputs with every intermediate and output, computed independently |
//! | [`inputs`] | inputs from files and generators, and what the reference makes of them |
//! | [`norm`] | the norm kernel alone |
//! | [`wgmma`] | the GEMM on warpgroup tensor cores alone |

pub mod golden;
pub mod inputs;
pub mod norm;
pub mod wgmma;

pub use golden::Golden;
pub use inputs::Inputs;
