//! A cluster: CTAs that run together on one thread of the host, and what they share.

use std::sync::Arc;

use super::{Block, Cta, Grid, Outcome, Warp, Watch};
use crate::async_engine::AsyncEngine;
use crate::check::{Access, Actor, Event, Observer};
use crate::decode::Program;
use crate::exec::operand_tile::Unpacked;
use crate::finding::{Finding, Kind};
use crate::memory::{AccessError, GlobalMemory};
use crate::numerics::dot::Scratch;
use crate::options::Options;
use crate::rng::Rng;
use crate::trace::Counters;

/// Ends a launch; boxed because it is rare.
pub type Fault = Box<Finding>;

/// Most findings kept of one cluster.
const MOST_FINDINGS: usize = 64;

/// The barrier of `barrier.cluster`.
#[derive(Debug, Clone, Default)]
pub struct ClusterBarrier {
    /// Completed generations.
    pub generation: u64,
    /// Threads that arrived in this generation.
    pub arrived: u32,
}

/// A cluster and everything a handler may need: the machine context.
pub struct Cluster {
    /// Position in the grid, in clusters.
    pub index: [u32; 3],
    /// Linear index in launch order.
    pub linear: u64,
    /// CTAs by rank.
    pub ctas: Vec<Cta>,
    /// The program.
    pub program: Arc<Program>,
    /// Kernel parameters.
    pub params: Arc<Vec<u8>>,
    /// What all clusters of the launch share.
    pub grid: Arc<Grid>,
    /// Global memory.
    pub global: Arc<GlobalMemory>,
    /// Options of the emulator.
    pub options: Arc<Options>,
    /// Work in flight.
    pub engine: AsyncEngine,
    /// Cluster barrier.
    pub barrier: ClusterBarrier,
    /// Warp instructions so far: the clock.
    pub clock: u64,
    /// Seeded choices of the scheduler.
    pub rng: Rng,
    /// Checkers.
    pub observer: Option<Box<dyn Observer>>,
    /// Faults and warnings so far.
    pub findings: Vec<Finding>,
    /// A finding ended the cluster.
    pub faulted: bool,
    /// Counters.
    pub counters: Counters,
    /// Memory of matrix products.
    pub products: Scratch,
    /// Operands of matrix products.
    pub(crate) unpacked: Unpacked,
    /// How often each operation was executed; empty unless asked for.
    pub executed: Vec<u64>,
    /// Output of `vprintf`.
    pub output: String,
    /// Slices in a row that ended in a spin.
    pub spins: u64,
    /// The warp that may be in a loop without an end.
    pub watch: Option<Box<Watch>>,
}

impl Cluster {
    /// Rank of the CTA that holds a shared address.
    pub fn rank_of(address: u32) -> u32 {
        address >> 24
    }

    /// Threads of all CTAs that have not exited.
    pub fn live_threads(&self) -> u32 {
        self.ctas.iter().map(|cta| cta.live_threads).sum()
    }

    /// A finding about the instruction that `warp` executes.
    pub fn finding(&self, kind: Kind, warp: &Warp, lanes: u32, message: impl Into<String>) -> Fault {
        let pc = warp.pc();
        Box::new(Finding {
            kind,
            warning: false,
            kernel: self.program.name.clone(),
            line: self.program.line_of(pc),
            ptx: self.program.text_of(pc).to_string(),
            cta: self.ctas[warp.cta as usize].index,
            warp: Some(warp.index),
            lanes,
            object: None,
            message: message.into(),
        })
    }

    /// A finding about an operation in flight, issued at `pc` by `actor`.
    pub fn finding_of(&self, kind: Kind, actor: &Actor, message: impl Into<String>) -> Fault {
        Box::new(Finding {
            kind,
            warning: false,
            kernel: self.program.name.clone(),
            line: self.program.line_of(actor.pc),
            ptx: self.program.text_of(actor.pc).to_string(),
            cta: self.ctas.get(actor.cta as usize).map_or([0; 3], |cta| cta.index),
            warp: Some(actor.warp),
            lanes: actor.lanes,
            object: None,
            message: message.into(),
        })
    }

    /// The outcome that ends the launch with a finding.
    pub fn fault(&self, kind: Kind, warp: &Warp, lanes: u32, message: impl Into<String>) -> Outcome {
        Outcome::Fault(self.finding(kind, warp, lanes, message))
    }

    /// Records a finding without ending the launch, unless that was asked for; the same kind at the same line is kept
    /// once.
    pub fn report(&mut self, finding: Finding) {
        let what = |f: &Finding| (f.kind, f.line, f.warning);
        let known = self.findings.iter().any(|f| what(f) == what(&finding) && f.object == finding.object);
        if !known && self.findings.len() < MOST_FINDINGS {
            self.findings.push(finding);
        }
        self.faulted |= self.options.stop_at_finding;
    }

    /// An access error as a finding: out of bounds and misalignment end the launch, uninitialised reads do not.
    pub fn access_fault(&self, error: AccessError, warp: &Warp, lanes: u32) -> Fault {
        let (kind, message) = access_kind(error);
        self.finding(kind, warp, lanes, message)
    }

    /// An access error of an operation in flight as a finding.
    pub fn access_fault_of(&self, error: AccessError, actor: &Actor) -> Fault {
        let (kind, message) = access_kind(error);
        self.finding_of(kind, actor, message)
    }

    /// The actor of the instruction that `warp` executes.
    pub fn actor(warp: &Warp, lanes: u32) -> Actor {
        Actor { cta: warp.cta, warp: warp.index, lanes, pc: warp.pc() }
    }

    /// Tells the checkers of an access of `warp`.
    #[inline]
    pub fn observe(&mut self, warp: &Warp, lanes: u32, access: &Access<'_>) {
        if let Some(observer) = &mut self.observer {
            observer.access(&Self::actor(warp, lanes), access);
        }
    }

    /// Tells the checkers of an event of `warp`.
    #[inline]
    pub fn notify(&mut self, warp: &Warp, lanes: u32, event: &Event) {
        if let Some(observer) = &mut self.observer {
            observer.event(&Self::actor(warp, lanes), event);
        }
    }

    /// Whether the mbarrier completed `phase`. A barrier that is gone has passed: the retry reports it.
    pub fn mbarrier_passed(&self, address: u32, phase: u64) -> bool {
        let offset = address & 0x00ff_ffff;
        self.ctas
            .get(Self::rank_of(address) as usize)
            .and_then(|cta| cta.mbarriers.get(offset))
            .is_none_or(|barrier| barrier.phase > phase)
    }

    /// Whether every lane of `members` that has not exited executes now; otherwise the outcome that waits for them.
    pub fn require(&self, warp: &Warp, mask: u32, members: u32) -> Option<Outcome> {
        let missing = members & warp.live & !mask;
        if missing == 0 {
            return None;
        }
        // Lanes of the same group that the guard masks off will never take part.
        let group = &warp.groups[warp.current];
        if missing & group.mask != 0 {
            return Some(self.fault(
                Kind::Divergence,
                warp,
                mask,
                format!("lanes {missing:#010x} do not execute the instruction together with lanes {mask:#010x}"),
            ));
        }
        Some(Outcome::Retry(Block::Converge { members }))
    }

    /// `.aligned`: all lanes of the warp that have not exited.
    pub fn require_aligned(&self, warp: &Warp, mask: u32) -> Option<Outcome> {
        self.require(warp, mask, warp.live)
    }
}

fn access_kind(error: AccessError) -> (Kind, String) {
    match error {
        AccessError::OutOfBounds(text) => (Kind::OutOfBounds, text),
        AccessError::Uninitialised(text) => (Kind::Uninitialised, format!("nobody wrote {text}")),
        AccessError::Misaligned(text) => (Kind::Misaligned, text),
    }
}
