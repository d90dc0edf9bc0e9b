//! Schedules, routes and compiled programs for compute capability 11.0 (Jetson AGX Thor).
//!
//! Constants only: what is compiled for this architecture, and which program serves which shapes.
//! The crate knows no runtime. Without the feature `programs` the compiled bytes are left out;
//! `cargo xtask build` reads the schedules that way before there are any.
//!
//! | module | subject |
//! |---|---|
//! | [`gdn`] | chunked Gated DeltaNet training |
//! | [`gqa_decode`] | grouped-query decode attention |
//! | [`nvfp4_context`] | paged-context attention over an NVFP4 cache |
//! | [`nvfp4_pre_attention`] | norm, modulation, quantisation and the fused NVFP4 QKV GEMM |
//!
//! ```
//! use bakewell_core::Arch;
//!
//! assert_eq!(bakewell_sm110::ARCHITECTURE.arch, Arch::Sm110);
//! assert!(!bakewell_sm110::ARCHITECTURE.gqa_decode.schedules.is_empty());
//! ```

#![forbid(unsafe_code)]

use bakewell_core::architecture::Table;
use bakewell_core::{Arch, Architecture};

pub mod gdn;
pub mod gqa_decode;
pub mod nvfp4_context;
pub mod nvfp4_pre_attention;

#[cfg(feature = "programs")]
mod programs;

#[cfg(not(feature = "programs"))]
mod programs {
    use bakewell_core::program::Embedded;

    pub(crate) const MANIFEST: &str = "";
    pub(crate) const EVIDENCE: &str = "";
    pub(crate) static EMBEDDED: &[Embedded] = &[];
}

/// Everything that this crate offers.
pub static ARCHITECTURE: Architecture = Architecture {
    arch: Arch::Sm110,
    manifest: programs::MANIFEST,
    evidence: programs::EVIDENCE,
    embedded: programs::EMBEDDED,
    gqa_decode: Table { schedules: gqa_decode::SCHEDULES, routes: gqa_decode::ROUTES },
    nvfp4_context: Table { schedules: nvfp4_context::SCHEDULES, routes: nvfp4_context::ROUTES },
    nvfp4_context_pages: nvfp4_context::PAGES,
    nvfp4_pre_attention: nvfp4_pre_attention::TABLES,
    gdn: Table { schedules: gdn::SCHEDULES, routes: gdn::ROUTES },
};
