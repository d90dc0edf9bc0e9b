//! Placeholder until the crate's first module lands.
pub mod layout;
pub mod numerics;
