//! Target architectures: those of Bakewell, and which PTX they run. Limits stand in [`Arch`].

use bakewell_core::Arch;

/// An architecture whose programs the emulator executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// Hopper.
    Sm90,
    /// Blackwell B200.
    Sm100,
    /// Blackwell B300.
    Sm103,
    /// Rubin.
    Sm107,
    /// Jetson Thor.
    Sm110,
}

impl Target {
    /// Every target.
    pub const ALL: [Target; 5] = [Target::Sm90, Target::Sm100, Target::Sm103, Target::Sm107, Target::Sm110];

    /// The device that runs PTX of `.target` word, `sm_100a`; family and plain words name their first device.
    pub fn parse(word: &str) -> Option<Target> {
        let digits = word.strip_prefix("sm_")?;
        Some(match digits.trim_end_matches(['a', 'f']) {
            "90" => Target::Sm90,
            "100" => Target::Sm100,
            "103" => Target::Sm103,
            "107" => Target::Sm107,
            // sm_101 is the name of sm_110 before PTX 9.0.
            "110" | "101" => Target::Sm110,
            _ => return None,
        })
    }

    /// The architecture.
    pub const fn arch(self) -> Arch {
        match self {
            Target::Sm90 => Arch::Sm90,
            Target::Sm100 => Arch::Sm100,
            Target::Sm103 => Arch::Sm103,
            Target::Sm107 => Arch::Sm107,
            Target::Sm110 => Arch::Sm110,
        }
    }

    /// Compute capability as written in `.target`, 103.
    pub const fn number(self) -> u32 {
        let (major, minor) = self.arch().compute_capability();
        10 * major + minor
    }

    /// The bit of this target in a set of targets.
    pub const fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Whether a device of this architecture runs PTX of `.target` word.
    pub fn runs(self, word: &str) -> bool {
        let Some(digits) = word.strip_prefix("sm_") else {
            return false;
        };
        let number: u32 = match digits.trim_end_matches(['a', 'f']).parse() {
            // As in [`Self::parse`].
            Ok(101) => 110,
            Ok(number) => number,
            Err(_) => return false,
        };
        let family = |n: u32| match n {
            100 | 103 | 107 => 100,
            n => n,
        };
        if digits.ends_with('a') {
            number == self.number()
        } else if digits.ends_with('f') {
            family(number) == family(self.number()) && number <= self.number()
        } else {
            number <= self.number()
        }
    }

    /// SMs of a common product.
    pub const fn sm_count(self) -> u32 {
        self.arch().typical_sm_count()
    }

    /// Threads resident on one SM.
    pub const fn threads_per_sm(self) -> u32 {
        self.arch().limits().threads_per_sm
    }

    /// CTAs resident on one SM.
    pub const fn ctas_per_sm(self) -> u32 {
        self.arch().limits().ctas_per_sm
    }

    /// Shared memory of one SM in bytes, the reserved KiB per CTA included.
    pub const fn shared_per_sm(self) -> u32 {
        self.arch().limits().shared_bytes_per_sm
    }

    /// Most shared memory one CTA may use, in bytes.
    pub const fn shared_per_cta(self) -> u32 {
        self.arch().limits().shared_bytes_per_cta
    }

    /// Whether the device has tensor memory.
    pub const fn has_tensor_memory(self) -> bool {
        self.arch().limits().tmem_columns > 0
    }
}

impl From<Arch> for Target {
    fn from(arch: Arch) -> Target {
        match arch {
            Arch::Sm90 => Target::Sm90,
            Arch::Sm100 => Target::Sm100,
            Arch::Sm103 => Target::Sm103,
            Arch::Sm107 => Target::Sm107,
            Arch::Sm110 => Target::Sm110,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.arch().target())
    }
}
