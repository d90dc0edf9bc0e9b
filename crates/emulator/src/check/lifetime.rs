//! Lifetime of the CTAs of a cluster: accesses to a peer's shared memory, and work in flight at exit.

use super::Actor;
use super::clock::{Stamp, reached};
use super::operation::{Engine, Part};
use super::order::OrderChecker;
use super::shadow::Record;
use crate::finding::Kind;
use crate::memory::Space;

impl OrderChecker {
    /// Remembers an access to the memory of another CTA, for its exit.
    pub(super) fn note_remote(&mut self, actor: &Actor, rank: u32, operation: u64, done: Option<(u32, u32)>) {
        let slot = self.slot(actor);
        let first = rank * self.warps;
        let knows = self.started[slot as usize]
            || (first..first + self.warps).any(|peer| reached(&self.views[slot as usize].now.clock, peer, 1));
        if !knows {
            let message =
                format!("CTA rank {rank} may not have started: no cluster barrier or message from it came first");
            self.reporter.plain(Kind::ClusterLifetime, actor, message, false);
        }
        let mut record = Record {
            cluster: self.cluster,
            slot,
            actor: *actor,
            operation,
            asynchronous: operation != 0,
            pipelined: false,
            by_warp: false,
            issued: 0,
            write: true,
            strong: None,
            done: done.unwrap_or(if operation == 0 { (slot, self.epoch(slot)) } else { (0, 0) }),
            also_done: Vec::new(),
        };
        if operation == 0 {
            // An arrival at a barrier is over when the thread goes on, whether or not its phase ever ends.
            record.complete(slot, self.epoch(slot));
        } else if let Some(engine) = self.engine_of(actor.pc) {
            record.complete(self.engine_slot(slot, engine), operation as u32);
        }
        let number = self.shared.add(record);
        self.remote.insert((rank, slot, operation != 0), (number, self.shared.generation));
    }

    /// A CTA exits: nobody may touch its memory any more, and nothing of its own may be in flight.
    pub(super) fn cta_exit(&mut self, rank: u32) {
        let first = rank * self.warps;
        let mut end = Stamp::default();
        for slot in first..first + self.warps {
            self.settle(slot);
            end.join(&self.views[slot as usize].now);
        }
        self.released_by_exit(rank, &end);
        let mut late = Vec::new();
        for (&(target, _, _), &(number, generation)) in &self.remote {
            if target == rank && generation == self.shared.generation {
                let record = &self.shared.records[number as usize];
                if !record.is_before(&end, self.cluster) {
                    late.push(record.actor);
                }
            }
        }
        for actor in late {
            let message = format!(
                "CTA rank {rank} exits without order behind this access to its shared memory: a cluster barrier or handshake is missing"
            );
            self.reporter.plain(Kind::ClusterLifetime, &actor, message, false);
        }
        self.check_in_flight(rank, &end);
    }

    /// Copies from or to the shared memory of a CTA must be known complete when it exits.
    fn check_in_flight(&mut self, rank: u32, end: &Stamp) {
        let mut left = Vec::new();
        for op in self.operations.values() {
            if self.engine_of(op.actor.pc) == Some(Engine::Tensor) || op.actor.cta != rank {
                continue;
            }
            // What goes to another CTA is that one's business. Hardware keeps the memory for what still reads it.
            let written = op.records.iter().filter_map(|&Part { space, number, generation, rank: touched }| {
                let here = space == Space::Shared && touched == rank && generation == self.shared.generation;
                let record = self.shared.records.get(number as usize).filter(|_| here)?;
                (!record.is_before(end, self.cluster)).then_some(record.write)
            });
            if let Some(written) = written.reduce(|one, other| one | other) {
                left.push((op.actor, written));
            }
        }
        left.sort_by_key(|(actor, written)| (actor.pc, !written, actor.warp));
        left.dedup_by_key(|(actor, _)| actor.pc);
        for (actor, written) in left {
            let message = "the CTA exits without having waited for this operation on its shared memory".to_string();
            self.reporter.plain(Kind::Leak, &actor, message, !written);
        }
    }
}
