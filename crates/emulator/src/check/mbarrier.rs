//! mbarriers of the happens-before checker: initialisation, what arrivals hand on, what waits take over.

use super::clock::{View, raise, reached};
use super::hash::Map;
use super::operation::Engine;
use super::order::OrderChecker;
use super::{Actor, Order};
use crate::finding::Kind;

/// A mbarrier.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    slot: u32,
    /// What arrivals of each phase released; the last two phases.
    pub(super) phases: Map<u64, View>,
    /// Slot value of the initialisation.
    pub(super) init: (u32, u32),
    init_pc: u32,
    /// The initialiser executed `fence.mbarrier_init` or `fence.proxy.async` since.
    pub(super) init_fenced: bool,
}

impl OrderChecker {
    pub(super) fn barrier(&mut self, address: u32) -> &mut Barrier {
        let slots = &mut self.slots;
        self.barriers.entry(address).or_insert_with(|| {
            *slots += 1;
            Barrier { slot: *slots - 1, ..Barrier::default() }
        })
    }

    pub(super) fn mbarrier_init(&mut self, actor: &Actor, address: u32) {
        let slot = self.slot(actor);
        let init = (slot, self.epoch(slot));
        let barrier = self.barrier(address);
        barrier.init = init;
        barrier.init_pc = actor.pc;
        barrier.init_fenced = false;
        barrier.phases.clear();
        // Phases count from 0 again: what an older barrier at this address completed says nothing.
        self.slots += 1;
        let fresh = self.slots - 1;
        self.barrier(address).slot = fresh;
        self.bump(slot);
    }

    /// A use of a barrier must come behind its initialisation.
    fn check_init(&mut self, actor: &Actor, address: u32, operation: u64) {
        let slot = self.slot(actor) as usize;
        let Some(barrier) = self.barriers.get(&address).filter(|b| b.init.1 > 0) else {
            return;
        };
        let known = match self.operations.get(&operation) {
            Some(op) => reached(&op.issue.clock, barrier.init.0, barrier.init.1),
            None => reached(&self.views[slot].now.clock, barrier.init.0, barrier.init.1),
        };
        let remote = address >> 24 != actor.cta;
        let line = self.program.line_of(barrier.init_pc);
        let told = barrier.init_fenced && self.met[slot];
        if !known && !told {
            let message = format!("the mbarrier is used without order behind its initialisation at line {line}");
            self.reporter.barrier(Kind::Race, actor, address, message, false);
        } else if !barrier.init_fenced && (remote || operation != 0) {
            let who = if remote { "another CTA" } else { "an asynchronous operation" };
            let message = format!(
                "MB07: {who} signals a mbarrier whose initialisation at line {line} no fence.mbarrier_init or fence.proxy.async follows"
            );
            self.reporter.barrier(Kind::MissingProxyFence, actor, address, message, true);
        }
    }

    pub(super) fn mbarrier_arrive(&mut self, actor: &Actor, address: u32, phase: u64, order: Order, operation: u64) {
        let slot = self.slot(actor);
        self.check_init(actor, address, operation);
        let rank = address >> 24;
        let value = phase as u32 + 1;
        let barrier_slot = self.barrier(address).slot;
        if operation != 0 {
            let Some(op) = self.operations.get_mut(&operation) else {
                return;
            };
            op.completions.push((barrier_slot, value));
            // What it wrote into other CTAs is complete too.
            for (&(_, _, asynchronous), &(number, generation)) in &self.remote {
                let record = self.shared.records.get_mut(number as usize);
                if let Some(record) = record.filter(|r| asynchronous && r.operation == operation)
                    && generation == self.shared.generation
                {
                    record.complete(barrier_slot, value);
                }
            }
            let mut view = View { now: (*op.issue).clone(), ..View::default() };
            let records = std::mem::take(&mut op.records);
            self.complete(&records, (barrier_slot, value), false);
            let commits = records.is_empty();
            if let Some(op) = self.operations.get_mut(&operation) {
                op.records = records;
            }
            if commits {
                // A commit: everything that its warp issued to the engine before it.
                let engine = self.engine_of(actor.pc).unwrap_or(Engine::Copy);
                let engine_slot = self.engine_slot(slot, engine);
                raise(&mut view.now.clock, engine_slot, operation as u32);
                // It fences tensor memory, too.
                let issued = view.now.clock[slot as usize];
                raise(&mut view.now.fenced_tensor, slot, issued);
            }
            self.barrier(address).phases.entry(phase).or_default().join(&view);
        } else if matches!(order, Order::Release(_) | Order::AcquireRelease(_)) {
            let view = self.views[slot as usize].clone();
            self.barrier(address).phases.entry(phase).or_default().join(&view);
            self.bump(slot);
        } else if let Some(covered) = self.tensor_released[slot as usize].clone() {
            // The pattern of the ISA for tensor memory: fence, relaxed arrival; relaxed wait, fence.
            self.barrier(address).phases.entry(phase).or_default().tensor.join(&covered);
        }
        if rank != actor.cta {
            self.note_remote(actor, rank, operation, Some((barrier_slot, value)));
            if operation == 0 && self.program.text_of(actor.pc).contains(".release.cta") {
                // The default scope of arrivals, which production kernels use for peers: it orders on today's devices.
                let message = "an arrival of .cta scope is not promised to order anything for another CTA".to_string();
                self.reporter.barrier(Kind::Race, actor, address, message, true);
            }
        }
    }

    pub(super) fn mbarrier_pass(&mut self, actor: &Actor, address: u32, phase: u64, order: Order) {
        let slot = self.slot(actor);
        self.check_init(actor, address, 0);
        let barrier = self.barrier(address);
        let barrier_slot = barrier.slot;
        let view = barrier.phases.get(&phase).cloned().unwrap_or_default();
        if !matches!(order, Order::Acquire(_) | Order::AcquireRelease(_)) {
            self.join(slot, &View { tensor: view.tensor, ..View::default() });
            return;
        }
        self.join(slot, &view);
        raise(&mut self.views[slot as usize].now.clock, barrier_slot, phase as u32 + 1);
    }
}
