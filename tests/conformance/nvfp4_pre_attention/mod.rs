//! NVFP4 pre-attention.

mod norm;
mod stages;
mod wgmma;
