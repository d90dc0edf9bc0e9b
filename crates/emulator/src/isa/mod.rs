//! The instruction set: element types, targets, and the one table of instruction forms.

pub mod table;
mod target;
mod types;

pub use target::{Target, TargetWord, Words};
pub use types::{Bank, Type};
