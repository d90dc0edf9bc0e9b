//! Errors of the emulator itself, as opposed to faults of the emulated program ([`crate::Finding`]).

/// Why a module could not be loaded or a launch not be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not PTX that this crate can read.
    #[error("line {line}: {reason}: {text}")]
    Parse {
        /// Line in the PTX text, from 1.
        line: u32,
        /// That line, trimmed.
        text: String,
        /// What was expected and what came.
        reason: String,
    },
    /// An instruction or directive is known but has no handler, or no row in the table.
    #[error("not implemented: line {line}: {text}: {reason}")]
    Unsupported {
        /// Line in the PTX text, from 1.
        line: u32,
        /// That line, trimmed.
        text: String,
        /// What is missing.
        reason: String,
    },
    /// An instruction whose meaning is uncertain, or that the target does not have.
    #[error("refused: line {line}: {text}: {reason}")]
    Refused {
        /// Line in the PTX text, from 1.
        line: u32,
        /// That line, trimmed.
        text: String,
        /// Why executing it would be a guess or is wrong for the target.
        reason: String,
    },
    /// The launch does not fit the kernel or the device.
    #[error("{argument}: expected {expected}, got {given}")]
    Launch {
        /// Which argument of the launch.
        argument: String,
        /// What the kernel or the device allows.
        expected: String,
        /// What was passed.
        given: String,
    },
    /// A host access outside the buffers of the emulator.
    #[error("host access: {0}")]
    HostAccess(String),
}

impl Error {
    /// A launch error about `argument`.
    pub fn launch(argument: impl Into<String>, expected: impl Into<String>, given: impl std::fmt::Display) -> Self {
        Error::Launch { argument: argument.into(), expected: expected.into(), given: given.to_string() }
    }
}

/// Result of the emulator's own operations.
pub type Result<T> = std::result::Result<T, Error>;
