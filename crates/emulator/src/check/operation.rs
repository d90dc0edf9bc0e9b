//! Asynchronous operations of the happens-before checker: issue, engines that complete in order, completion.

use std::sync::{Arc, PoisonError};

use super::Actor;
use super::clock::{Clock, Stamp};
use super::order::OrderChecker;
use super::shadow::Shadow;
use crate::exec::Op;
use crate::memory::Space;

/// An asynchronous operation.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) actor: Actor,
    /// What its issuer knew.
    pub(super) issue: Arc<Stamp>,
    /// What it knew of tensor memory.
    pub(super) tensor_issue: Arc<Stamp>,
    /// What the issuer's last `tcgen05.fence::after_thread_sync` came behind.
    pub(super) tensor_after: Arc<Clock>,
    /// Its records.
    pub(super) records: Vec<Part>,
    /// Slot values behind which all of it is complete.
    pub(super) completions: Vec<(u32, u32)>,
    /// Slot values behind which its reads are.
    pub(super) reads: Vec<(u32, u32)>,
    pub(super) complete: bool,
}

/// One record of an asynchronous operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) space: Space,
    pub(super) number: u32,
    pub(super) generation: u32,
    /// CTA whose shared memory it touches, if that is the space.
    pub(super) rank: u32,
}

/// What is in order: what is known of one implies that everything before it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Engine {
    /// tcgen05 matrix and copy operations of one thread.
    Tensor,
    /// Non-bulk `cp.async` of one warp.
    Copy,
    /// Strong writes of one warp: whoever observes one comes after it, and what it does next after both.
    Strong,
}

/// Operations between which no bound is known are dropped when there are this many.
const MOST_OPERATIONS: usize = 1 << 16;

impl OrderChecker {
    pub(super) fn engine_of(&self, pc: u32) -> Option<Engine> {
        match self.program.instrs.get(pc as usize).map(|instr| &instr.op) {
            Some(Op::Tcgen05(_)) => Some(Engine::Tensor),
            _ => None,
        }
    }

    pub(super) fn engine_slot(&mut self, slot: u32, engine: Engine) -> u32 {
        let slots = &mut self.slots;
        *self.engines.entry((slot, engine)).or_insert_with(|| {
            *slots += 1;
            *slots - 1
        })
    }

    /// Marks records of an operation as complete behind a slot value.
    pub(super) fn complete(&mut self, records: &[Part], done: (u32, u32), reads_only: bool) {
        for &Part { space, number, generation, .. } in records {
            let apply = |shadow: &mut Shadow| {
                if shadow.generation == generation
                    && let Some(record) = shadow.records.get_mut(number as usize)
                    && !(reads_only && record.write)
                {
                    record.complete(done.0, done.1);
                }
            };
            match space {
                Space::Global => {
                    let mut global = self.launch.global.lock().unwrap_or_else(PoisonError::into_inner);
                    apply(&mut global.shadow);
                }
                Space::Tensor => apply(&mut self.tensor),
                _ => apply(&mut self.shared),
            }
        }
    }

    pub(super) fn issue(&mut self, actor: &Actor, operation: u64) {
        let slot = self.slot(actor);
        self.settle(slot);
        if self.operations.len() >= MOST_OPERATIONS {
            self.operations.retain(|_, op| !op.complete);
        }
        let operation_state = Operation {
            actor: *actor,
            issue: Arc::new(self.views[slot as usize].now.clone()),
            tensor_issue: Arc::new(self.views[slot as usize].of_tensor_memory()),
            tensor_after: self.tensor_after[slot as usize].clone(),
            records: Vec::new(),
            completions: Vec::new(),
            reads: Vec::new(),
            complete: false,
        };
        self.operations.insert(operation, operation_state);
        self.bump(slot);
    }

    pub(super) fn waited(&mut self, actor: &Actor, operation: u64, reads_only: bool) {
        let slot = self.slot(actor);
        let done = (slot, self.epoch(slot) + 1);
        let Some(op) = self.operations.get_mut(&operation) else {
            return;
        };
        // Every lane tells of the operations of the whole warp.
        let known = |list: &[(u32, u32)]| list.iter().any(|done| done.0 == slot);
        if known(&op.completions) || reads_only && known(&op.reads) {
            return;
        }
        if reads_only {
            op.reads.push(done);
        } else {
            op.completions.push(done);
        }
        let records = std::mem::take(&mut op.records);
        self.complete(&records, done, reads_only);
        if let Some(op) = self.operations.get_mut(&operation) {
            op.records = records;
        }
        self.bump(slot);
    }
}
