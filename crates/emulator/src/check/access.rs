//! Accesses of the happens-before checker: what each is compared with, and what it publishes or acquires.

use std::sync::{Arc, PoisonError};

use super::clock::{Stamp, raise, reached};
use super::operation::{Engine, Part};
use super::order::{Acquire, Interned, OrderChecker};
use super::shadow::{Check, Record, Shadow};
use super::{Access, Actor, Bytes, Order, Proxy, Scope, Use};
use crate::exec::{lanes, side_by_side};
use crate::machine::WARP;
use crate::memory::Space;

/// An ordered write that the access may not see, and what is missing.
struct Verdict {
    record: Record,
    address: u64,
    lack: Lack,
}

enum Lack {
    /// No proxy fence on the path.
    Fence,
    /// A proxy fence, but not by the writer.
    WriterFence,
    /// A read that no proxy fence follows before the overwrite.
    ReadFence,
    /// No `tcgen05.fence::after_thread_sync`, or no `before_thread_sync`.
    TensorFence { after: bool },
}

impl OrderChecker {
    pub(super) fn check_access(&mut self, actor: &Actor, access: &Access<'_>) {
        if matches!(access.space, Space::Local | Space::Param) {
            return;
        }
        let slot = self.issuer_slot(actor, access);
        self.settle(slot);
        let (reads, writes) = match access.usage {
            Use::Read => (true, false),
            Use::Write | Use::Rewrite | Use::Free => (false, true),
            Use::Atomic => (true, true),
        };
        if access.space == Space::Shared {
            self.check_remote(actor, access);
        }
        let (met, verdicts) = if access.space == Space::Global {
            if !self.earlier.is_empty() {
                self.check_overlap(actor, access, slot);
            }
            let launch = self.launch.clone();
            let mut global = launch.global.lock().unwrap_or_else(PoisonError::into_inner);
            let number = self.intern(&mut global.shadow, actor, access, slot);
            self.compare(&mut global.shadow, number, writes, actor, access)
        } else {
            let mut shadow = std::mem::take(self.shadow(access.space));
            let number = self.intern(&mut shadow, actor, access, slot);
            let met = self.compare(&mut shadow, number, writes, actor, access);
            *self.shadow(access.space) = shadow;
            met
        };
        for (record, address, in_effect) in &met {
            self.reporter.race(actor, access, record, *address, *in_effect);
        }
        for verdict in &verdicts {
            self.tell(actor, access, verdict);
        }
        if access.operation == 0 && (access.order != Order::Weak || access.usage == Use::Atomic) {
            self.synchronise(actor, access, slot, reads, writes);
        }
    }

    /// Runs an access over the shadow: accesses that it races with, and writes that it may not see.
    fn compare(
        &self,
        shadow: &mut Shadow,
        number: u32,
        writes: bool,
        actor: &Actor,
        access: &Access<'_>,
    ) -> (Vec<(Record, u64, bool)>, Vec<Verdict>) {
        let view = &self.views[self.issuer_slot(actor, access) as usize];
        let of_tensor_memory;
        let stamp = match (self.operations.get(&access.operation), access.space) {
            (Some(op), Space::Tensor) => &*op.tensor_issue,
            (Some(op), _) => &*op.issue,
            (None, Space::Tensor) => {
                of_tensor_memory = view.of_tensor_memory();
                &of_tensor_memory
            }
            (None, _) => &view.now,
        };
        let mut check = Check::new(number, stamp, self.cluster, writes);
        check.keeps_predecessors =
            access.proxy != Proxy::Generic || access.space == Space::Tensor && self.checks.tensor_fences;
        check.keeps_readers = writes
            && match access.space {
                Space::Shared => self.checks.read_fences && access.proxy == Proxy::Async,
                Space::Tensor => self.checks.tensor_fences,
                _ => false,
            };
        // Tensor addresses name no CTA; the actor of a tensor access is in the one whose memory it touches.
        let base = if access.space == Space::Tensor { tensor_base(actor) } else { 0 };
        each_run(actor, access, base, |start, bytes| shadow.access(&mut check, start, bytes));
        if check.conflicts.is_empty() && check.predecessors.is_empty() {
            return Default::default();
        }
        // A tcgen05.ld without wait::ld behind whose issue the access comes: registers keep the order in effect.
        let loaded = |record: &Record| {
            let known = stamp.clock_of(record.cluster, self.cluster);
            record.by_warp && !record.write && record.issued > 0 && reached(known, record.slot, record.issued)
        };
        // Within one SM a relaxed cluster barrier does: nothing travels.
        let executed = &self.executed[self.issuer_slot(actor, access) as usize];
        let own = access.space == Space::Shared && rank_of(actor, access) == actor.cta;
        let met = |record: &Record| {
            let near = access.space == Space::Tensor || own && record.actor.cta == actor.cta;
            access.operation == 0 && near && record.is_fenced(executed)
        };
        let conflicts = check.conflicts.iter().map(|&(n, at)| {
            let record = &shadow.records[n as usize];
            (record.clone(), at, loaded(record) || met(record))
        });
        let conflicts = conflicts.collect();
        let seen = check.predecessors.iter().map(|&(n, at)| (&shadow.records[n as usize], at));
        let verdicts = seen.filter_map(|(record, at)| self.check_proxy(actor, access, stamp, record, at)).collect();
        (conflicts, verdicts)
    }

    /// The slot of the warp that made the access or issued its operation.
    fn issuer_slot(&self, actor: &Actor, access: &Access<'_>) -> u32 {
        let issuer = self.operations.get(&access.operation).map_or(actor, |op| &op.actor);
        self.slot(issuer)
    }

    fn shadow(&mut self, space: Space) -> &mut Shadow {
        if space == Space::Tensor { &mut self.tensor } else { &mut self.shared }
    }

    /// The number of the record of an access.
    fn intern(&mut self, shadow: &mut Shadow, actor: &Actor, access: &Access<'_>, slot: u32) -> u32 {
        let write = access.usage != Use::Read;
        let epoch = match access.operation {
            0 => self.epoch(slot),
            operation => operation as u32,
        };
        let tag =
            u8::from(write) | u8::from(access.operation != 0) << 1 | u8::from(access.proxy != Proxy::Generic) << 2;
        let key = (access.space, slot, actor.pc, tag);
        if let Some(&Interned { epoch: known, generation, number }) = self.interned.get(&key)
            && known == epoch
            && generation == shadow.generation
        {
            return number;
        }
        let engine = self.engine_of_access(actor, access);
        let mut record = Record {
            cluster: self.cluster,
            slot,
            actor: *actor,
            operation: access.operation,
            asynchronous: access.proxy != Proxy::Generic,
            pipelined: engine == Some(Engine::Tensor),
            by_warp: access.space == Space::Tensor && access.proxy == Proxy::Generic && access.usage != Use::Free,
            issued: self.operations.get(&access.operation).map_or(0, |op| op.issue.clock[slot as usize]),
            write,
            strong: scope_of(access),
            done: if access.operation == 0 { (slot, epoch) } else { (0, 0) },
            also_done: Vec::new(),
        };
        if let Some(engine) = engine {
            let engine_slot = self.engine_slot(slot, engine);
            record.complete(engine_slot, access.operation as u32);
        }
        if write && access.operation == 0 && record.strong.is_some() {
            record.complete(self.engine_slot(slot, Engine::Strong), epoch);
        }
        let operation = self.operations.get_mut(&access.operation);
        if let Some(op) = &operation {
            let reads = if write { &[][..] } else { &op.reads };
            for &(slot, value) in op.completions.iter().chain(reads) {
                record.complete(slot, value);
            }
        }
        let number = shadow.add(record);
        if let Some(op) = operation {
            let generation = shadow.generation;
            op.records.push(Part { space: access.space, number, generation, rank: rank_of(actor, access) });
        }
        self.interned.insert(key, Interned { epoch, generation: shadow.generation, number });
        number
    }

    /// Engines complete in order; copies with a barrier or a bulk group of their own are not among them.
    fn engine_of_access(&self, actor: &Actor, access: &Access<'_>) -> Option<Engine> {
        match (access.operation, access.proxy) {
            (0, _) => None,
            (_, Proxy::Generic) => Some(Engine::Copy),
            _ => self.engine_of(actor.pc),
        }
    }

    /// Accesses to the shared memory of another CTA.
    fn check_remote(&mut self, actor: &Actor, access: &Access<'_>) {
        if self.ctas == 1 {
            return;
        }
        let rank = rank_of(actor, access);
        if rank != actor.cta && rank < self.ctas {
            self.note_remote(actor, rank, access.operation, None);
        }
    }

    /// Whether an ordered write may all the same not be seen.
    fn check_proxy(
        &self,
        actor: &Actor,
        access: &Access<'_>,
        stamp: &Stamp,
        record: &Record,
        address: u64,
    ) -> Option<Verdict> {
        let verdict = |lack| Some(Verdict { record: record.clone(), address, lack });
        if access.space == Space::Tensor {
            let slot = self.issuer_slot(actor, access);
            // Deallocation is no asynchronous instruction: it needs an order, and no fence.
            let fenced = access.usage == Use::Free || record.slot == slot && !record.asynchronous;
            if !self.checks.tensor_fences || fenced {
                return None;
            }
            if record.by_warp && !record.is_fenced(&stamp.fenced_tensor) {
                return verdict(Lack::TensorFence { after: false });
            }
            let after = match self.operations.get(&access.operation) {
                Some(op) => &op.tensor_after,
                None => &self.tensor_after[slot as usize],
            };
            return if record.is_fenced(after) { None } else { verdict(Lack::TensorFence { after: true }) };
        }
        if record.asynchronous {
            return None;
        }
        if !record.write {
            return if record.is_fenced(&stamp.fenced_shared) { None } else { verdict(Lack::ReadFence) };
        }
        let fenced = match (access.proxy, access.space) {
            (Proxy::TensorMap, _) => &stamp.fenced_maps,
            (_, Space::Global) => stamp.fenced_of(record.cluster, self.cluster),
            _ => &stamp.fenced_shared[..],
        };
        if !record.is_fenced(fenced) {
            return verdict(Lack::Fence);
        }
        let by_writer = access.space != Space::Shared
            || record.operation != 0
            || self.own_fenced[record.slot as usize] >= record.done.1;
        if by_writer { None } else { verdict(Lack::WriterFence) }
    }

    fn tell(&mut self, actor: &Actor, access: &Access<'_>, verdict: &Verdict) {
        let Verdict { record, address, lack } = verdict;
        match lack {
            Lack::Fence => self.reporter.missing_proxy_fence(actor, access, record, *address, false),
            Lack::WriterFence => self.reporter.missing_proxy_fence(actor, access, record, *address, true),
            Lack::ReadFence => self.reporter.unfenced_read(actor, access, record, *address),
            Lack::TensorFence { after } => {
                self.reporter.missing_tensor_fence(actor, record, *address, *after);
            }
        }
    }

    /// Releases and acquires of strong accesses.
    fn synchronise(&mut self, actor: &Actor, access: &Access<'_>, slot: u32, reads: bool, writes: bool) {
        let scope = scope_of(access).unwrap_or(Scope::Gpu);
        let mut addresses: Vec<u64> = match access.bytes {
            Bytes::Lanes(at, _) => lanes(actor.lanes).map(|lane| at[lane]).collect(),
            Bytes::Range(start, _) => vec![start],
            Bytes::Runs(starts, _) => starts.to_vec(),
        };
        addresses.sort_unstable();
        addresses.dedup();
        let releases = matches!(access.order, Order::Release(_) | Order::AcquireRelease(_));
        let index = slot as usize;
        if writes {
            let (strong, epoch) = (self.engine_slot(slot, Engine::Strong), self.epoch(slot));
            let view = &self.views[index];
            // A fence before a relaxed write makes it a release, and the write itself is observed with it.
            let fenced = |released: &Option<Arc<Stamp>>, scope| {
                let mut stamp = released.as_deref()?.clone();
                raise(&mut stamp.clock, strong, epoch);
                Some((Arc::new(stamp), scope))
            };
            let published: Vec<(Arc<Stamp>, Scope)> = if releases {
                vec![(Arc::new(view.now.clone()), scope)]
            } else {
                fenced(&view.released, scope).into_iter().chain(fenced(&view.released_near, Scope::Cta)).collect()
            };
            for (stamp, scope) in &published {
                let party = self.party(actor, *scope);
                if access.space == Space::Global {
                    let mut global = self.launch.global.lock().unwrap_or_else(PoisonError::into_inner);
                    addresses.iter().for_each(|&at| global.sync.publish(at, party, stamp));
                } else {
                    addresses.iter().for_each(|&at| self.shared_sync.publish(at, party, stamp));
                }
            }
        }
        if reads {
            let acquires = matches!(access.order, Order::Acquire(_) | Order::AcquireRelease(_));
            let space = access.space;
            self.acquires[index].extend(addresses.iter().map(|&address| Acquire { space, address, scope, acquires }));
        }
        if writes && releases {
            self.bump(slot);
        }
    }
}

/// The CTA that the first address of an access to shared memory belongs to.
fn rank_of(actor: &Actor, access: &Access<'_>) -> u32 {
    let first = match access.bytes {
        Bytes::Lanes(at, _) => at[actor.lanes.trailing_zeros() as usize % WARP],
        Bytes::Range(start, _) => start,
        Bytes::Runs(starts, _) => starts.first().copied().unwrap_or_default(),
    };
    (first >> 24) as u32
}

/// First address of the tensor memory of a CTA in the shadow.
fn tensor_base(actor: &Actor) -> u64 {
    u64::from(actor.cta) << 32
}

/// The runs of bytes of an access, moved by `base`.
pub(super) fn each_run(actor: &Actor, access: &Access<'_>, base: u64, mut visit: impl FnMut(u64, u64)) {
    match access.bytes {
        Bytes::Lanes(at, width) if side_by_side(actor.lanes, at, width) => {
            visit(base + at[0], u64::from(width) * WARP as u64);
        }
        Bytes::Lanes(at, width) => lanes(actor.lanes).for_each(|lane| visit(base + at[lane], width.into())),
        Bytes::Range(start, bytes) => visit(base + start, bytes),
        Bytes::Runs(starts, bytes) => starts.iter().for_each(|start| visit(base + start, bytes)),
    }
}

/// Scope of a strong access.
pub(super) fn scope_of(access: &Access<'_>) -> Option<Scope> {
    match access.order {
        Order::Weak if access.usage == Use::Atomic => Some(Scope::Gpu),
        Order::Weak => None,
        Order::Relaxed(scope) | Order::Acquire(scope) | Order::Release(scope) | Order::AcquireRelease(scope) => {
            Some(scope)
        }
    }
}
