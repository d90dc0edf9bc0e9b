//! The operations of Bakewell as plain, readable CPU mathematics.
//!
//! Each operation is one file of loops over slices with `f64` inside: what a kernel must compute, in
//! the order in which a paper would write it. Nothing here is fast, and nothing here is shared with
//! the emulator or the kernels, so that one mistake cannot hide in both. [`HostMemory`] lets the same
//! plans that drive a GPU run on these loops.
//!
//! | module | subject |
//! |---|---|
//! | [`gdn`] | gated delta rule, forward and backward |
//! | [`gqa_decode`] | grouped-query decode attention |
//! | [`nvfp4_context`] | paged-context attention over an NVFP4 cache |
//! | [`nvfp4_pre_attention`] | norm, modulation, quantisation and the fused NVFP4 QKV GEMM |
//! | [`small_float`] | E4M3 and E2M1 |
//! | [`element`] | element types: to `f64` exactly, from `f64` with one rounding |
//! | [`host_memory`] | an address space of host buffers |
//!
//! One query head over two cached keys, of which only the first counts:
//!
//! ```
//! use bakewell_reference::gqa_decode::{GqaDecode, gqa_decode};
//!
//! let problem = GqaDecode { batch: 1, capacity: 2, query_heads: 1, kv_heads: 1, head_dim: 2, q_scale: 1.0 };
//! let kv = [1.0f32, 0.0, 9.0, 9.0, /* values */ 3.0, 4.0, 9.0, 9.0];
//! let mut out = [0.0f32; 2];
//! gqa_decode(&problem, &[1.0, 1.0], &kv, &[1], &mut out, None)?;
//! assert_eq!(out, [3.0, 4.0]);
//! # Ok::<(), bakewell_core::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod element;
pub mod gdn;
pub mod gqa_decode;
pub mod host_memory;
pub mod nvfp4_context;
pub mod nvfp4_pre_attention;
pub mod small_float;

pub use element::Element;
pub use host_memory::HostMemory;
