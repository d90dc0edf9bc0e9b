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
        let word = TargetWord::parse(word)?;
        Target::ALL.into_iter().find(|target| target.number() == word.number)
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

/// Which `.target` words have something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Words {
    /// Every word, `sm_100`: later targets have it too.
    Plain,
    /// Words of a family, `sm_100f`, and of one target.
    Family,
    /// Words of exactly one target, `sm_100a`.
    Exact,
}

/// The `.target` word of a module: which devices run it, and which instructions it may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetWord {
    number: u32,
    words: Words,
}

impl TargetWord {
    /// Reads `sm_90`, `sm_100f`, `sm_103a`; any number is read, also of targets that are not here.
    pub fn parse(word: &str) -> Option<TargetWord> {
        let digits = word.strip_prefix("sm_")?;
        let (digits, words) = match (digits.strip_suffix('f'), digits.strip_suffix('a')) {
            (Some(digits), _) => (digits, Words::Family),
            (_, Some(digits)) => (digits, Words::Exact),
            _ => (digits, Words::Plain),
        };
        let number = match digits.parse().ok()? {
            // sm_101 is the name of sm_110 before PTX 9.0.
            101 => 110,
            number => number,
        };
        TargetWord { number, words }.if_known()
    }

    /// `sm_103a` for sm_103.
    pub const fn exactly(target: Target) -> TargetWord {
        TargetWord { number: target.number(), words: Words::Exact }
    }

    /// Families begin with sm_100.
    fn if_known(self) -> Option<TargetWord> {
        (self.words != Words::Family || self.number >= 100).then_some(self)
    }

    /// Whether a device of this architecture runs the module.
    pub fn runs_on(self, target: Target) -> bool {
        self.covers(target.number())
    }

    /// Whether it names `number`, or something that `number` includes.
    fn covers(self, number: u32) -> bool {
        match self.words {
            Words::Exact => self.number == number,
            Words::Family => family(self.number) == family(number) && self.number <= number,
            Words::Plain => self.number <= number,
        }
    }

    /// Whether it has what `targets` have, bits of [`Target::bit`], and words of at least this kind: a plain word and
    /// that of a family have what every target from theirs on has.
    pub fn has(self, targets: u8, least: Words) -> bool {
        let mut covered = Target::ALL.into_iter().filter(|target| self.covers(target.number())).peekable();
        self.words >= least && covered.peek().is_some() && covered.all(|target| targets & target.bit() != 0)
    }

    /// The most general word of `target` that has something.
    pub fn that_has(target: Target, targets: u8, least: Words) -> Option<TargetWord> {
        let all = [Words::Plain, Words::Family, Words::Exact];
        let mut known = all.into_iter().filter_map(|words| TargetWord { number: target.number(), words }.if_known());
        known.find(|word| word.has(targets, least))
    }
}

/// The first member of the family of a target.
const fn family(number: u32) -> u32 {
    match number {
        100 | 103 | 107 => 100,
        number => number,
    }
}

impl std::fmt::Display for TargetWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let suffix = match self.words {
            Words::Plain => "",
            Words::Family => "f",
            Words::Exact => "a",
        };
        write!(f, "sm_{}{suffix}", self.number)
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
