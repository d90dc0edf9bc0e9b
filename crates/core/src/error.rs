//! The error type of every Bakewell crate.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::{Arch, Operation};

/// Result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A cause that another library reported.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// What went wrong, with the facts a caller can act on.
///
/// `Display` is one lower-case line; `source()` keeps the error of the driver or the emulator.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument breaks the contract of the operation. Nothing was launched.
    #[error("{argument}: expected {expected}, got {given}")]
    Argument {
        /// Name of the argument as the documentation of the operation spells it.
        argument: &'static str,
        /// Which property of the argument is wrong.
        property: Property,
        /// What the contract asks for.
        expected: String,
        /// What came.
        given: String,
    },
    /// The device exists but no architecture of Bakewell matches its compute capability.
    #[error("compute capability {major}.{minor} is not supported: {reason}")]
    UnsupportedDevice {
        /// Major compute capability.
        major: u32,
        /// Minor compute capability.
        minor: u32,
        /// Why.
        reason: &'static str,
    },
    /// The architecture is supported but its crate was not compiled in.
    #[error("{arch}: its programs are not compiled in (compiled in: {}); enable the feature `{arch}` of `bakewell`", list(.compiled))]
    ArchNotCompiled {
        /// Architecture of the device.
        arch: Arch,
        /// Architectures compiled in.
        compiled: Vec<Arch>,
    },
    /// The engine was not compiled in.
    #[error("this needs the feature `{feature}` of `bakewell`")]
    FeatureMissing {
        /// Cargo feature to enable.
        feature: &'static str,
    },
    /// The CUDA driver library is not on this machine.
    #[error("no CUDA driver: {searched}")]
    NoDriver {
        /// Where it was looked for, and what the loader said.
        searched: String,
    },
    /// No such device.
    #[error("cuda:{ordinal}: no such device, the driver shows {count}")]
    NoDevice {
        /// Ordinal asked for.
        ordinal: u32,
        /// Number of devices the driver shows.
        count: u32,
    },
    /// A driver call failed.
    #[error("{call} failed with {code} ({name}){}", context(.program))]
    Driver {
        /// Driver function.
        call: &'static str,
        /// Program or symbol concerned, empty where none is.
        program: String,
        /// Numeric driver code.
        code: u32,
        /// Name of the code.
        name: String,
    },
    /// No program of the operation serves this problem on this architecture.
    #[error("{operation} on {arch}: no program for {wanted}; there is {available}")]
    NoProgram {
        /// Operation.
        operation: Operation,
        /// Architecture.
        arch: Arch,
        /// Facts that no program has.
        wanted: String,
        /// What is there.
        available: String,
    },
    /// Embedded bytes do not match the manifest. They are never loaded.
    #[error("program {program}: {what} is {given}, its manifest says {expected}")]
    Corrupt {
        /// Program.
        program: String,
        /// Which fact disagrees.
        what: &'static str,
        /// From the manifest.
        expected: String,
        /// As found.
        given: String,
    },
    /// The emulator stopped the program or could not run it.
    #[error("program {program}: {source}")]
    Emulation {
        /// Program or kernel.
        program: String,
        /// The finding or the emulator's error.
        source: Source,
    },
    /// A kernel-parameter block was written wrongly: a defect of Bakewell, found before a launch.
    #[error("kernel parameter {field}: {what}")]
    Parameter {
        /// Field of the parameter block.
        field: String,
        /// What is wrong.
        what: &'static str,
    },
}

/// The property of an argument that an [`Error::Argument`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Property {
    /// Number of dimensions.
    Rank,
    /// Sizes of the dimensions.
    Shape,
    /// Element type.
    DType,
    /// Strides, contiguity.
    Layout,
    /// Address alignment.
    Alignment,
    /// Memory that does not belong to the device or ends too early.
    Location,
    /// Overlap with another argument.
    Alias,
    /// The value of a number or choice.
    Value,
    /// A size that does not fit the address arithmetic.
    Size,
    /// Present or absent.
    Presence,
}

impl Error {
    /// [`Error::Argument`] about any property.
    pub fn argument(
        argument: &'static str,
        property: Property,
        expected: impl ToString,
        given: impl ToString,
    ) -> Error {
        Error::Argument { argument, property, expected: expected.to_string(), given: given.to_string() }
    }

    /// [`Error::NoProgram`]; `available` may repeat itself, and be empty. The message shows those that share most words
    /// with `wanted`, and counts the others.
    pub fn no_program(
        operation: Operation,
        arch: Arch,
        wanted: impl ToString,
        available: impl IntoIterator<Item = String>,
    ) -> Error {
        let wanted = wanted.to_string();
        let asked = words(&wanted).collect::<BTreeSet<_>>();
        let distinct: BTreeSet<String> = available.into_iter().collect();
        let mut available: Vec<String> = distinct.into_iter().collect();
        available.sort_by_key(|text| Reverse(words(text).filter(|word| asked.contains(word)).count()));
        let more = available.len().saturating_sub(SHOWN_PROGRAMS);
        available.truncate(SHOWN_PROGRAMS);
        let available = match (available.is_empty(), more) {
            (true, _) => "none".to_owned(),
            (false, 0) => available.join("; "),
            (false, more) => format!("{}; and {more} more", available.join("; ")),
        };
        Error::NoProgram { operation, arch, wanted, available }
    }

    /// [`Error::Argument`] about a value.
    pub fn value(argument: &'static str, expected: impl ToString, given: impl ToString) -> Error {
        Error::argument(argument, Property::Value, expected, given)
    }
}

/// Programs that [`Error::no_program`] names.
const SHOWN_PROGRAMS: usize = 4;

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split([' ', ',', '_']).filter(|word| !word.is_empty())
}

fn list(arches: &[Arch]) -> String {
    if arches.is_empty() {
        return "none".to_owned();
    }
    arches.iter().map(|arch| arch.name()).collect::<Vec<_>>().join(", ")
}

fn context(program: &str) -> String {
    if program.is_empty() { String::new() } else { format!(" for {program}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_lower_case_line_that_names_the_argument() {
        let error = Error::argument("kv", Property::Shape, "shape [4, 2, 8, 512, 128]", "[4, 2, 8, 128, 512]");
        assert_eq!(error.to_string(), "kv: expected shape [4, 2, 8, 512, 128], got [4, 2, 8, 128, 512]");
        let error = Error::ArchNotCompiled { arch: Arch::Sm100, compiled: vec![Arch::Sm90, Arch::Sm110] };
        assert_eq!(
            error.to_string(),
            "sm100: its programs are not compiled in (compiled in: sm90, sm110); enable the feature `sm100` of `bakewell`"
        );
        let there = ["b", "a", "b"].map(str::to_owned);
        let error = Error::no_program(Operation::GqaDecode, Arch::Sm90, "group_size 5", there);
        assert_eq!(error.to_string(), "gqa_decode on sm90: no program for group_size 5; there is a; b");
        let there = [1, 4, 8].map(|group| [64, 128].map(|dim| format!("group_size {group}, head_dim {dim}, f16")));
        let wanted = "group_size 8, head_dim 256, f16";
        let error = Error::no_program(Operation::GqaDecode, Arch::Sm90, wanted, there.into_iter().flatten());
        assert_eq!(
            error.to_string(),
            "gqa_decode on sm90: no program for group_size 8, head_dim 256, f16; there is group_size 8, head_dim 128, f16; \
             group_size 8, head_dim 64, f16; group_size 1, head_dim 128, f16; group_size 1, head_dim 64, f16; and 2 more"
        );
        let error = Error::no_program(Operation::Gdn, Arch::Sm90, "any problem", []);
        assert_eq!(error.to_string(), "gdn on sm90: no program for any problem; there is none");
        let error =
            Error::Driver { call: "cuModuleLoadData", program: "sm90/x".into(), code: 209, name: "NO_BINARY".into() };
        assert_eq!(error.to_string(), "cuModuleLoadData failed with 209 (NO_BINARY) for sm90/x");
    }
}
