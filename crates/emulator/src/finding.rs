//! Faults of the emulated program.

use serde::{Deserialize, Serialize};

/// What kind of fault a [`Finding`] is. The identifier printed is stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// No warp can run and nothing is in flight.
    Deadlock,
    /// Warps spin and nothing changes.
    Livelock,
    /// An access outside every buffer.
    OutOfBounds,
    /// An address that is not a multiple of the access size.
    Misaligned,
    /// A read of bytes that nobody wrote.
    Uninitialised,
    /// Two accesses without order, at least one a write.
    Race,
    /// A generic write that an asynchronous operation may not see, or the reverse.
    MissingProxyFence,
    /// A mbarrier used against its protocol.
    Mbarrier,
    /// A named or cluster barrier used against its rules.
    Barrier,
    /// An `.aligned` or `.sync` instruction that not all its lanes execute.
    Divergence,
    /// A rule of tensor memory or of a tcgen05 instruction.
    TensorMemory,
    /// A rule of wgmma.
    Wgmma,
    /// A rule of bulk or tensor copies.
    Copy,
    /// A tensor map that is not usable as it stands.
    TensorMap,
    /// A resource still held, or work still in flight, at exit.
    Leak,
    /// The register pool of setmaxnreg.
    Registers,
    /// Access to a CTA of the cluster that has not started or has exited.
    ClusterLifetime,
    /// Misuse of cluster launch control.
    LaunchControl,
    /// `trap` or a failed device assertion.
    Trap,
    /// The limit on instructions was reached.
    InstructionLimit,
    /// A read through `.nc` of bytes that the same grid writes, and the like: results are undefined.
    Undefined,
}

/// One fault of the program: what, where, who.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Kind of the fault.
    pub kind: Kind,
    /// A warning does not fail a check.
    pub warning: bool,
    /// Kernel name.
    pub kernel: String,
    /// Line in the PTX text, from 1; 0 when no instruction is to blame.
    pub line: u32,
    /// That line, trimmed.
    pub ptx: String,
    /// `%ctaid` of the CTA.
    pub cta: [u32; 3],
    /// Warp in the CTA.
    pub warp: Option<u32>,
    /// Lanes concerned, a bit each.
    pub lanes: u32,
    /// The barrier or buffer concerned, when there is one.
    pub object: Option<String>,
    /// What is wrong, in one sentence.
    pub message: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let severity = if self.warning { "warning" } else { "fault" };
        write!(f, "{severity}: {:?}: {}", self.kind, self.message)?;
        if let Some(object) = &self.object {
            write!(f, " [{object}]")?;
        }
        let [x, y, z] = self.cta;
        write!(f, "\n  kernel {} cta ({x}, {y}, {z})", self.kernel)?;
        if let Some(warp) = self.warp {
            write!(f, " warp {warp} lanes {:#010x}", self.lanes)?;
        }
        if self.line > 0 {
            write!(f, "\n  line {}: {}", self.line, self.ptx)?;
        }
        Ok(())
    }
}
