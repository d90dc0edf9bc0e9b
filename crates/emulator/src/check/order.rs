//! The happens-before checker of one cluster: state, and how events move knowledge between warps.
//!
//! Every access is compared with those before it by vector clocks (`clock`), so that a race is found whatever the
//! schedule was. Asynchronous operations are actors of their own: they start with what their issuer knew, and whoever
//! observed their completion comes after them. Global memory is checked across the clusters of a launch.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use super::clock::{Clock, Stamp, View, raise, reached};
use super::hash::Map;
use super::report::Reporter;
use super::shadow::{Record, Shadow};
use super::sync::{Party, SyncTable};
use super::{Access, Actor, Event, Observer, Order, ProxyFence, Scope};
use crate::decode::Program;
use crate::exec::Op;
use crate::finding::{Finding, Kind};
use crate::machine::LaunchShape;
use crate::memory::{GlobalMemory, Space};
use crate::options::Checks;

/// What the clusters of one launch share.
#[derive(Debug, Default)]
pub struct LaunchState {
    pub(super) global: Mutex<GlobalState>,
}

/// Global memory of a launch.
#[derive(Debug, Default)]
pub(super) struct GlobalState {
    pub(super) shadow: Shadow,
    pub(super) sync: SyncTable,
}

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
    complete: bool,
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

/// Accesses with the same record while the epoch lasts: memory, slot, operation of the program, kind of access.
pub(super) type AccessKey = (Space, u32, u32, u8);

/// A record that was made for a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Interned {
    pub(super) epoch: u32,
    pub(super) generation: u32,
    pub(super) number: u32,
}

/// A rendezvous of warps.
#[derive(Debug, Default)]
struct Meeting {
    view: View,
    waiting: Vec<u32>,
}

/// A mbarrier.
#[derive(Debug, Default)]
struct Barrier {
    slot: u32,
    /// What arrivals of each phase released; the last two phases.
    phases: Map<u64, View>,
    /// Slot value of the initialisation.
    init: (u32, u32),
    init_pc: u32,
    /// The initialiser executed `fence.mbarrier_init` or `fence.proxy.async` since.
    init_fenced: bool,
}

/// A read that may synchronise, settled after it took place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Acquire {
    pub(super) space: Space,
    pub(super) address: u64,
    pub(super) scope: Scope,
    /// `.acquire`; otherwise a fence may follow.
    pub(super) acquires: bool,
}

/// Operations between which no bound is known are dropped when there are this many.
const MOST_OPERATIONS: usize = 1 << 16;

/// The checker of one cluster.
pub struct OrderChecker {
    pub(super) launch: Arc<LaunchState>,
    pub(super) program: Arc<Program>,
    pub(super) cluster: u32,
    pub(super) warps: u32,
    pub(super) ctas: u32,
    pub(super) views: Vec<View>,
    /// Greatest own value that each warp fenced towards the asynchronous proxy itself.
    pub(super) own_fenced: Vec<u32>,
    /// Warps that know that their peers run.
    pub(super) started: Vec<bool>,
    /// Warps that passed a cluster barrier, relaxed or not: a fence of the initialiser before it is visible to them.
    met: Vec<bool>,
    /// What the last `tcgen05.fence::after_thread_sync` of each warp came behind.
    pub(super) tensor_after: Vec<Arc<Clock>>,
    /// What the last `tcgen05.fence::before_thread_sync` of each warp covered: any later arrival hands it on.
    tensor_released: Vec<Option<Arc<Stamp>>>,
    pub(super) acquires: Vec<Vec<Acquire>>,
    pub(super) shared: Shadow,
    pub(super) tensor: Shadow,
    pub(super) shared_sync: SyncTable,
    meetings: Map<(u32, u32, u64), Meeting>,
    cluster_meetings: Map<u64, View>,
    barriers: Map<u32, Barrier>,
    pub(super) operations: Map<u64, Operation>,
    /// Slots beyond those of the warps.
    slots: u32,
    /// Slots of in-order engines: (warp slot, engine).
    engines: Map<(u32, Engine), u32>,
    /// Records that repeat.
    pub(super) interned: Map<AccessKey, Interned>,
    /// Latest accesses to the shared memory of each CTA by others: (target, slot, asynchronous) to number, generation.
    pub(super) remote: Map<(u32, u32, bool), (u32, u32)>,
    pub(super) reporter: Reporter,
    /// Which warnings are wanted.
    pub(super) checks: Checks,
}

/// In-order engines: what is complete implies that everything before it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Engine {
    /// tcgen05 matrix and copy operations of one thread.
    Tensor,
    /// Non-bulk `cp.async` of one warp.
    Copy,
}

impl OrderChecker {
    /// The checker of the cluster with linear index `cluster`.
    pub fn new(
        launch: Arc<LaunchState>,
        shape: &LaunchShape,
        program: Arc<Program>,
        memory: Arc<GlobalMemory>,
        cluster: u64,
        checks: Checks,
    ) -> OrderChecker {
        let warps = shape.threads().div_ceil(32);
        let ctas = shape.cluster_size();
        let slots = warps * ctas;
        let views = (0..slots)
            .map(|slot| {
                let mut view = View::default();
                view.now.clock.resize(slots as usize, 0);
                view.now.clock[slot as usize] = 1;
                view
            })
            .collect();
        OrderChecker {
            launch,
            cluster: cluster as u32,
            warps,
            ctas,
            views,
            own_fenced: vec![0; slots as usize],
            started: vec![ctas == 1; slots as usize],
            met: vec![false; slots as usize],
            tensor_after: vec![Arc::default(); slots as usize],
            tensor_released: vec![None; slots as usize],
            acquires: vec![Vec::new(); slots as usize],
            shared: Shadow::default(),
            tensor: Shadow::default(),
            shared_sync: SyncTable::default(),
            meetings: Map::default(),
            cluster_meetings: Map::default(),
            barriers: Map::default(),
            operations: Map::default(),
            slots,
            engines: Map::default(),
            interned: Map::default(),
            remote: Map::default(),
            reporter: Reporter::new(program.clone(), memory),
            program,
            checks,
        }
    }

    pub(super) fn slot(&self, actor: &Actor) -> u32 {
        actor.cta * self.warps + actor.warp
    }

    pub(super) fn epoch(&self, slot: u32) -> u32 {
        self.views[slot as usize].now.clock[slot as usize]
    }

    /// Starts a new epoch of a warp: what comes now is behind what was handed on before.
    pub(super) fn bump(&mut self, slot: u32) {
        self.views[slot as usize].now.clock[slot as usize] += 1;
    }

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

    fn barrier(&mut self, address: u32) -> &mut Barrier {
        let slots = &mut self.slots;
        self.barriers.entry(address).or_insert_with(|| {
            *slots += 1;
            Barrier { slot: *slots - 1, ..Barrier::default() }
        })
    }

    pub(super) fn party(&self, actor: &Actor, scope: Scope) -> Party {
        Party { cluster: self.cluster, cta: actor.cta, scope }
    }

    /// Finishes reads that may have synchronised.
    pub(super) fn settle(&mut self, slot: u32) {
        if self.acquires[slot as usize].is_empty() {
            return;
        }
        let cta = slot / self.warps;
        for acquire in std::mem::take(&mut self.acquires[slot as usize]) {
            let to = Party { cluster: self.cluster, cta, scope: acquire.scope };
            let into = if acquire.acquires {
                &mut self.views[slot as usize].now
            } else {
                &mut self.views[slot as usize].collected
            };
            match acquire.space {
                Space::Global => {
                    let global = self.launch.global.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    global.sync.acquire(acquire.address, to, into);
                }
                _ => self.shared_sync.acquire(acquire.address, to, into),
            }
        }
    }

    fn join(&mut self, slot: u32, view: &View) {
        self.views[slot as usize].join(view);
    }

    fn fence(&mut self, slot: u32, order: Order) {
        let (Order::Relaxed(scope) | Order::Acquire(scope) | Order::Release(scope) | Order::AcquireRelease(scope)) =
            order
        else {
            return;
        };
        let index = slot as usize;
        if matches!(order, Order::Acquire(_) | Order::AcquireRelease(_)) {
            let collected = std::mem::take(&mut self.views[index].collected);
            self.views[index].now.join(&collected);
        }
        if matches!(order, Order::Release(_) | Order::AcquireRelease(_)) {
            let stamp = Arc::new(self.views[index].now.clone());
            if scope != Scope::Cta {
                self.views[index].released = Some(stamp.clone());
            }
            self.views[index].released_near = Some(stamp);
            self.bump(slot);
        }
    }

    fn proxy_fence(&mut self, slot: u32, fence: ProxyFence) {
        let index = slot as usize;
        let clock = self.views[index].now.clock.clone();
        let now = &mut self.views[index].now;
        match fence {
            ProxyFence::Async => {
                now.fenced_shared.clone_from(&clock);
                now.fenced_global = clock;
            }
            ProxyFence::AsyncShared => now.fenced_shared = clock,
            ProxyFence::AsyncGlobal => now.fenced_global = clock,
            ProxyFence::TensorMap => now.fenced_maps = clock,
            ProxyFence::TensorAfter => {
                self.tensor_after[index] = Arc::new(self.views[index].of_tensor_memory().clock);
            }
            ProxyFence::TensorBefore => {
                raise(&mut now.fenced_tensor, slot, clock[index]);
                self.tensor_released[index] = Some(Arc::new(self.views[index].of_tensor_memory()));
            }
            ProxyFence::MbarrierInit | ProxyFence::Wgmma => {}
        }
        if matches!(fence, ProxyFence::Async | ProxyFence::AsyncShared) {
            self.own_fenced[index] = self.epoch(slot);
        }
        if matches!(fence, ProxyFence::Async | ProxyFence::AsyncShared | ProxyFence::MbarrierInit) {
            for barrier in self.barriers.values_mut().filter(|b| b.init.0 == slot) {
                barrier.init_fenced = true;
            }
        }
        self.bump(slot);
    }

    fn mbarrier_init(&mut self, actor: &Actor, address: u32) {
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

    fn mbarrier_arrive(&mut self, actor: &Actor, address: u32, phase: u64, order: Order, operation: u64) {
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

    fn mbarrier_pass(&mut self, actor: &Actor, address: u32, phase: u64, order: Order) {
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

    /// Marks records of an operation as complete behind a slot value.
    fn complete(&mut self, records: &[Part], done: (u32, u32), reads_only: bool) {
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
                    let mut global = self.launch.global.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    apply(&mut global.shadow);
                }
                Space::Tensor => apply(&mut self.tensor),
                _ => apply(&mut self.shared),
            }
        }
    }

    fn issue(&mut self, actor: &Actor, operation: u64) {
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

    fn waited(&mut self, actor: &Actor, operation: u64, reads_only: bool) {
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
    fn cta_exit(&mut self, rank: u32) {
        let first = rank * self.warps;
        let mut end = Stamp::default();
        for slot in first..first + self.warps {
            self.settle(slot);
            end.join(&self.views[slot as usize].now);
        }
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
            // What goes to another CTA is that one's business.
            let open = op.records.iter().any(|&Part { space, number, generation, rank: touched }| {
                space == Space::Shared
                    && touched == rank
                    && generation == self.shared.generation
                    && self.shared.records.get(number as usize).is_some_and(|r| !r.is_before(end, self.cluster))
            });
            if open {
                left.push(op.actor);
            }
        }
        left.sort_by_key(|actor| (actor.pc, actor.warp));
        left.dedup_by_key(|actor| actor.pc);
        for actor in left {
            let message = "the CTA exits without having waited for this operation on its shared memory".to_string();
            self.reporter.plain(Kind::Leak, &actor, message, false);
        }
    }
}

impl Observer for OrderChecker {
    fn access(&mut self, actor: &Actor, access: &Access<'_>) {
        self.check_access(actor, access);
    }

    fn event(&mut self, actor: &Actor, event: &Event) {
        let slot = self.slot(actor);
        self.settle(slot);
        match *event {
            Event::CtaStart { .. } | Event::Exit | Event::WarpSync { .. } | Event::BarrierPass { .. } => {}
            Event::CtaExit { cta } => self.cta_exit(cta),
            Event::BarrierArrive { id, generation, waits } => {
                let view = self.views[slot as usize].clone();
                let meeting = self.meetings.entry((actor.cta, id, generation)).or_default();
                meeting.view.join(&view);
                if waits {
                    meeting.waiting.push(slot);
                }
                self.bump(slot);
            }
            // Whoever waits does nothing between its arrival and this.
            Event::BarrierComplete { cta, id, generation } => {
                if let Some(meeting) = self.meetings.remove(&(cta, id, generation)) {
                    for waiter in meeting.waiting {
                        self.join(waiter, &meeting.view);
                    }
                }
            }
            Event::ClusterArrive { generation, release } => {
                if release {
                    let view = self.views[slot as usize].clone();
                    self.cluster_meetings.entry(generation).or_default().join(&view);
                    self.bump(slot);
                }
                self.cluster_meetings.retain(|&known, _| known + 2 > generation);
            }
            Event::ClusterPass { generation } => {
                let view = self.cluster_meetings.get(&generation).cloned().unwrap_or_default();
                self.join(slot, &view);
                self.started[slot as usize] = true;
                self.met[slot as usize] = true;
            }
            Event::MbarrierInit { address, .. } => self.mbarrier_init(actor, address),
            Event::MbarrierInvalidate { address } => {
                self.barriers.remove(&address);
            }
            Event::MbarrierArrive { address, phase, order, operation } => {
                self.mbarrier_arrive(actor, address, phase, order, operation);
            }
            Event::MbarrierComplete { address, phase } => {
                self.barrier(address).phases.retain(|&known, _| known + 1 >= phase);
            }
            Event::MbarrierPass { address, phase, order } => self.mbarrier_pass(actor, address, phase, order),
            Event::Fence { order } => self.fence(slot, order),
            Event::ProxyFence { fence } => self.proxy_fence(slot, fence),
            Event::Issue { operation } => self.issue(actor, operation),
            Event::ReadsDone { .. } => {}
            Event::Complete { operation } => {
                if let Some(op) = self.operations.get_mut(&operation) {
                    op.complete = true;
                }
            }
            Event::Waited { operation, reads_only } => self.waited(actor, operation, reads_only),
        }
    }

    fn take_findings(&mut self) -> Vec<(Actor, Finding)> {
        self.reporter.take()
    }
}

/// Pairs of lines that were reported, by kind.
pub(super) type Reported = HashSet<(Kind, u32, u32)>;
