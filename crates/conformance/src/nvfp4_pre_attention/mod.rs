//! Goldens and single stages of NVFP4 pre-attention.
//!
//! | module | subject |
//! |---|---|
//! | [`golden`] | inputs with every intermediate and output, computed independently |
//! | [`norm`] | the norm kernel alone |

pub mod golden;
pub mod norm;

pub use golden::Golden;
