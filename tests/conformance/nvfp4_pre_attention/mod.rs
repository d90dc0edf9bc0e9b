//! NVFP4 pre-attention.

mod norm;
