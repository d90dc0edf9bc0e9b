//! A warp: lane groups with their program counters, registers, local memory.

use super::{Block, Regs, SavedFrame, WARP};
use crate::exec::copy_groups::Copies;
use crate::memory::LocalMemory;

/// Lanes that stand at the same operation with the same callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Next operation.
    pub pc: u32,
    /// Lanes, a bit each.
    pub mask: u32,
    /// Return addresses, innermost last.
    pub callers: Vec<u32>,
    /// Why the group cannot run.
    pub block: Option<Block>,
}

/// Counters in [`Warp::pending`], by family.
pub(super) const PENDING_COUNTERS: usize = 4;

/// A warp.
#[derive(Debug, Clone)]
pub struct Warp {
    /// Rank of the CTA in the cluster.
    pub cta: u32,
    /// Index in the CTA.
    pub index: u32,
    /// Lanes that it began with.
    pub born: u32,
    /// Lanes that have not exited.
    pub live: u32,
    /// Lane groups; empty once all lanes exited.
    pub groups: Vec<Group>,
    /// The group that runs.
    pub current: usize,
    /// Registers.
    pub regs: Regs,
    /// Local memory.
    pub local: LocalMemory,
    /// Frames of functions that were called again before they returned, innermost last.
    pub frames: Vec<SavedFrame>,
    /// Bytes of the stack that `alloca` took, by lane.
    pub stack_used: [u32; WARP],
    /// Asynchronous operations not yet complete, by counter: see [`Block::Pending`].
    pub pending: [u32; PENDING_COUNTERS],
    /// Per-thread copies in flight and their groups.
    pub copies: Copies,
    /// Lanes that arrived at the cluster barrier and did not wait yet.
    pub cluster_arrived: u32,
    /// Parity of the generation that each of them arrived in.
    pub cluster_parity: u32,
    /// Lanes whose `try_wait` ran out of time.
    pub timed_out: u32,
    /// Warp instructions executed.
    pub instructions: u64,
    /// Registers per thread, as setmaxnreg left them; 0 when unknown.
    pub register_budget: u32,
    /// Operations `tcgen05.ld` that no `tcgen05.wait::ld` came behind.
    pub loading: Vec<u32>,
    /// wgmma work not executed yet.
    pub wgmma: crate::exec::wgmma::Queue,
}

impl Warp {
    /// A warp whose lanes `live` stand at operation 0.
    pub fn new(cta: u32, index: u32, live: u32, regs: Regs, local: LocalMemory) -> Warp {
        Warp {
            cta,
            index,
            born: live,
            live,
            groups: vec![Group { pc: 0, mask: live, callers: Vec::new(), block: None }],
            current: 0,
            regs,
            local,
            frames: Vec::new(),
            stack_used: [0; WARP],
            pending: [0; PENDING_COUNTERS],
            copies: Copies::default(),
            cluster_arrived: 0,
            cluster_parity: 0,
            timed_out: 0,
            instructions: 0,
            register_budget: 0,
            loading: Vec::new(),
            wgmma: Default::default(),
        }
    }

    /// Whether all lanes exited.
    pub fn is_done(&self) -> bool {
        self.groups.is_empty()
    }

    /// The operation that runs.
    #[inline]
    pub fn pc(&self) -> u32 {
        self.groups.get(self.current).map_or(0, |group| group.pc)
    }

    /// Merges groups that stand at the same place and can run together, then picks the runnable group that is lowest
    /// in the program. The second result is the lowest place of any other group.
    pub fn pick(&mut self) -> Option<(usize, u32)> {
        if let [only] = self.groups.as_slice() {
            return only.block.is_none().then_some((0, u32::MAX));
        }
        self.merge();
        let mut best: Option<(usize, u32)> = None;
        let mut second = u32::MAX;
        for (index, group) in self.groups.iter().enumerate() {
            if group.block.is_some() && !matches!(group.block, Some(Block::Converge { .. })) {
                continue;
            }
            let runnable = group.block.is_none();
            match best {
                Some((_, pc)) if !runnable || group.pc >= pc => second = second.min(group.pc),
                _ if runnable => {
                    if let Some((_, pc)) = best {
                        second = second.min(pc);
                    }
                    best = Some((index, group.pc));
                }
                _ => second = second.min(group.pc),
            }
        }
        best.map(|(index, _)| (index, second))
    }

    /// Joins groups at the same operation with the same callers; groups that wait to converge join too.
    fn merge(&mut self) {
        let joins = |group: &Group| matches!(group.block, None | Some(Block::Converge { .. }));
        let mut at = 0;
        while at < self.groups.len() {
            let mut other = at + 1;
            while other < self.groups.len() {
                let (a, b) = (&self.groups[at], &self.groups[other]);
                if a.pc == b.pc && joins(a) && joins(b) && a.callers == b.callers {
                    let gone = self.groups.swap_remove(other);
                    self.groups[at].mask |= gone.mask;
                    self.groups[at].block = None;
                } else {
                    other += 1;
                }
            }
            at += 1;
        }
    }
}
