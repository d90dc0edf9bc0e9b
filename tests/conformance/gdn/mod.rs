//! Chunked Gated DeltaNet training.

#[cfg(feature = "emulator")]
mod stages;
