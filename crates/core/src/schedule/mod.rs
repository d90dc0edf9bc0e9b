//! Schedules: what differs between compiled variants of a kernel, as data.
//!
//! An operation has one schedule struct; an architecture crate holds constants of it. `xtask build`
//! renders [`Schedule::facts`] and [`Schedule::budgets`] as a C++ `struct Schedule` and compiles the
//! operation's kernel with it. A field has one spelling in Rust, C++, manifest and documentation.

pub mod gdn;
pub mod gqa_decode;
pub mod nvfp4_context;
pub mod nvfp4_pre_attention;
pub mod split_merge;

use serde::{Deserialize, Serialize};

use crate::Operation;
use crate::params::ParamLayout;

/// A compile-time fact of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Name, the same everywhere.
    pub name: &'static str,
    /// Value.
    pub value: FactValue,
}

/// Value of a [`Fact`], with the C++ type it renders to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FactValue {
    /// `int`.
    Int(u32),
    /// `bool`.
    Bool(bool),
    /// An enumerator: C++ enum and its value.
    Enum(&'static str, &'static str),
}

impl Fact {
    /// An `int` fact.
    pub const fn int(name: &'static str, value: u32) -> Fact {
        Fact { name, value: FactValue::Int(value) }
    }

    /// A `bool` fact.
    pub const fn bool(name: &'static str, value: bool) -> Fact {
        Fact { name, value: FactValue::Bool(value) }
    }

    /// An enumerator fact.
    pub const fn choice(name: &'static str, kind: &'static str, value: &'static str) -> Fact {
        Fact { name, value: FactValue::Enum(kind, value) }
    }
}

/// Resources that a schedule implies. The compiled program must report the same numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budgets {
    /// Threads of a CTA.
    pub threads: u32,
    /// Dynamic shared memory of a CTA in bytes.
    pub dynamic_shared_bytes: u32,
    /// Bytes of mbarriers, part of the above.
    pub barrier_bytes: u32,
    /// Tensor-memory columns allocated.
    pub tmem_columns: u32,
}

/// A schedule of some operation.
pub trait Schedule {
    /// Its operation.
    fn operation(&self) -> Operation;

    /// Name of the program: `long_s6_g4_d128_f16`. File names and manifests use it.
    fn variant(&self) -> String;

    /// Kernel source below `kernels/`, and the entry point it defines.
    fn source(&self) -> (&'static str, &'static str);

    /// Compile-time facts in the order in which they are rendered.
    fn facts(&self) -> Vec<Fact>;

    /// Resources, computed.
    fn budgets(&self) -> Budgets;

    /// Layout of the kernel's parameter block.
    fn params(&self) -> ParamLayout;

    /// SASS opcodes (prefixes) that the compiled program must contain.
    fn required_opcodes(&self) -> &'static [&'static str];
}
