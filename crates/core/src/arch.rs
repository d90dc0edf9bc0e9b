//! Supported architectures, their limits, and the rule that maps a device to one of them.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// A GPU architecture for which Bakewell ships programs.
///
/// Programs use architecture-specific instructions (`sm_90a`, `sm_100a`, ...), so each runs on
/// exactly one compute capability: there is no "this one or newer".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arch {
    /// Hopper: H100, H200, GH200.
    Sm90,
    /// Blackwell: B200, GB200.
    Sm100,
    /// Blackwell Ultra: B300, GB300.
    Sm103,
    /// Rubin.
    Sm107,
    /// Jetson AGX Thor.
    Sm110,
}

/// What an architecture offers, per CTA and per SM.
///
/// Source: CUDA C++ Programming Guide, technical specifications per compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest shared memory of one CTA, static and dynamic together, in bytes.
    pub shared_bytes_per_cta: u32,
    /// Shared memory of one SM in bytes; each resident CTA takes its own plus [`Limits::reserved_shared_bytes`].
    pub shared_bytes_per_sm: u32,
    /// Shared memory the system keeps for itself per CTA, in bytes.
    pub reserved_shared_bytes: u32,
    /// 32-bit registers of one SM.
    pub registers_per_sm: u32,
    /// Resident threads per SM.
    pub threads_per_sm: u32,
    /// Resident CTAs per SM.
    pub ctas_per_sm: u32,
    /// Tensor-memory columns per SM (0: none).
    pub tmem_columns: u32,
    /// Largest cluster that every part of this architecture can launch.
    pub portable_cluster: u32,
    /// Largest cluster with the non-portable attribute.
    pub max_cluster: u32,
}

/// The verdict on one compute capability.
enum Verdict {
    Supported(Arch),
    Refused(&'static str),
}

/// The single table of exact-capability rules. What is not listed is refused as unknown.
const CAPABILITIES: &[((u32, u32), Verdict)] = &[
    ((9, 0), Verdict::Supported(Arch::Sm90)),
    ((10, 0), Verdict::Supported(Arch::Sm100)),
    ((10, 3), Verdict::Supported(Arch::Sm103)),
    ((10, 7), Verdict::Supported(Arch::Sm107)),
    ((11, 0), Verdict::Supported(Arch::Sm110)),
    (
        (12, 0),
        Verdict::Refused("consumer Blackwell has no tensor memory (tcgen05) and 99 KiB of shared memory per CTA"),
    ),
    (
        (12, 1),
        Verdict::Refused("consumer Blackwell has no tensor memory (tcgen05) and 99 KiB of shared memory per CTA"),
    ),
    ((8, 0), Verdict::Refused("Ampere has no bulk copy engine, transaction barriers or clusters")),
    ((8, 6), Verdict::Refused("Ampere has no bulk copy engine, transaction barriers or clusters")),
    ((8, 7), Verdict::Refused("Ampere has no bulk copy engine, transaction barriers or clusters")),
    ((8, 9), Verdict::Refused("Ada has no bulk copy engine, transaction barriers or clusters")),
];

impl Arch {
    /// Every supported architecture, oldest first.
    pub const ALL: [Arch; 5] = [Arch::Sm90, Arch::Sm100, Arch::Sm103, Arch::Sm107, Arch::Sm110];

    /// Short name, also the Cargo feature and the suffix of the architecture crate: `sm90`.
    pub const fn name(self) -> &'static str {
        match self {
            Arch::Sm90 => "sm90",
            Arch::Sm100 => "sm100",
            Arch::Sm103 => "sm103",
            Arch::Sm107 => "sm107",
            Arch::Sm110 => "sm110",
        }
    }

    /// Compiler target: `sm_90a`.
    pub const fn target(self) -> &'static str {
        match self {
            Arch::Sm90 => "sm_90a",
            Arch::Sm100 => "sm_100a",
            Arch::Sm103 => "sm_103a",
            Arch::Sm107 => "sm_107a",
            Arch::Sm110 => "sm_110a",
        }
    }

    /// Compute capability, major and minor.
    pub const fn compute_capability(self) -> (u32, u32) {
        match self {
            Arch::Sm90 => (9, 0),
            Arch::Sm100 => (10, 0),
            Arch::Sm103 => (10, 3),
            Arch::Sm107 => (10, 7),
            Arch::Sm110 => (11, 0),
        }
    }

    /// The architecture of a device with this compute capability.
    ///
    /// # Errors
    /// [`Error::UnsupportedDevice`] with the reason, for every capability without an exact entry.
    pub fn from_compute_capability(major: u32, minor: u32) -> Result<Arch> {
        let reason = match CAPABILITIES.iter().find(|(capability, _)| *capability == (major, minor)) {
            Some((_, Verdict::Supported(arch))) => return Ok(*arch),
            Some((_, Verdict::Refused(reason))) => reason,
            None => "programs are compiled for exact compute capabilities and none is for this one",
        };
        Err(Error::UnsupportedDevice { major, minor, reason })
    }

    /// Parses `sm90`, `sm_90` or `sm_90a`.
    ///
    /// # Errors
    /// [`Error::Argument`] that lists the accepted names.
    pub fn parse(text: &str) -> Result<Arch> {
        Arch::ALL
            .into_iter()
            .find(|arch| {
                let target = arch.target();
                text == arch.name() || text == target || Some(text) == target.strip_suffix('a')
            })
            .ok_or_else(|| Error::value("arch", format!("one of {}", Arch::ALL.map(Arch::name).join(", ")), text))
    }

    /// Limits per CTA and per SM.
    pub const fn limits(self) -> Limits {
        let base = Limits {
            shared_bytes_per_cta: 227 * 1024,
            shared_bytes_per_sm: 228 * 1024,
            reserved_shared_bytes: 1024,
            registers_per_sm: 65_536,
            threads_per_sm: 2048,
            ctas_per_sm: 32,
            tmem_columns: 512,
            portable_cluster: 8,
            max_cluster: 16,
        };
        match self {
            Arch::Sm90 => Limits { tmem_columns: 0, ..base },
            Arch::Sm100 | Arch::Sm103 => base,
            Arch::Sm107 => Limits { threads_per_sm: 1024, ctas_per_sm: 16, ..base },
            Arch::Sm110 => Limits { threads_per_sm: 1536, ctas_per_sm: 24, max_cluster: 8, ..base },
        }
    }

    /// SM count that the emulator assumes when none is given: that of a common product.
    pub const fn typical_sm_count(self) -> u32 {
        match self {
            Arch::Sm90 => 132,
            Arch::Sm100 => 148,
            Arch::Sm103 => 152,
            Arch::Sm107 => 224,
            Arch::Sm110 => 20,
        }
    }
}

impl std::fmt::Display for Arch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_is_found_by_its_exact_capability_and_by_each_spelling() {
        for arch in Arch::ALL {
            let (major, minor) = arch.compute_capability();
            assert_eq!(Arch::from_compute_capability(major, minor).unwrap(), arch);
            assert_eq!(Arch::parse(arch.name()).unwrap(), arch);
            assert_eq!(Arch::parse(arch.target()).unwrap(), arch);
        }
    }

    #[test]
    fn neighbouring_capabilities_are_refused_with_a_reason() {
        for (major, minor, part) in [
            (12, 0, "tensor memory"),
            (12, 1, "tensor memory"),
            (8, 9, "bulk copy"),
            (9, 1, "exact compute capabilities"),
            (10, 1, "exact compute capabilities"),
            (10, 4, "exact compute capabilities"),
        ] {
            let text = Arch::from_compute_capability(major, minor).unwrap_err().to_string();
            assert!(text.contains(part) && text.contains(&format!("{major}.{minor}")), "{text}");
        }
    }
}
