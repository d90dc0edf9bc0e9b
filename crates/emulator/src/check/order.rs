//! The happens-before checker of one cluster: state, and how events move knowledge between warps.
//!
//! Every access is compared with those before it by vector clocks (`clock`), so that a race is found whatever the
//! schedule was. Asynchronous operations are actors of their own: they start with what their issuer knew, and whoever
//! observed their completion comes after them. Global memory is checked across the clusters of a launch.

use std::collections::HashSet;
use std::sync::Arc;

use super::clock::{Clock, Stamp, View, join, raise};
use super::hash::Map;
use super::mbarrier::Barrier;
use super::operation::{Engine, Operation};
use super::overlap::{Earlier, LaunchState};
use super::report::Reporter;
use super::shadow::Shadow;
use super::sync::{Party, SyncTable};
use super::{Access, Actor, Event, Observer, Order, ProxyFence, Scope};
use crate::decode::Program;
use crate::finding::{Finding, Kind};
use crate::machine::LaunchShape;
use crate::memory::{GlobalMemory, Space};
use crate::options::Checks;

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

/// A read that may synchronise, settled after it took place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Acquire {
    pub(super) space: Space,
    pub(super) address: u64,
    pub(super) scope: Scope,
    /// `.acquire`; otherwise a fence may follow.
    pub(super) acquires: bool,
}

/// The checker of one cluster.
pub struct OrderChecker {
    pub(super) launch: Arc<LaunchState>,
    /// Launches that may still run.
    pub(super) earlier: Earlier,
    /// The slot that stands at 1 for whoever comes behind `griddepcontrol.wait`.
    pub(super) earlier_slot: u32,
    /// CTAs that let dependent launches start.
    pub(super) released: Vec<bool>,
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
    pub(super) met: Vec<bool>,
    /// What the last relaxed cluster barrier of each warp came behind: order in effect, which PTX does not promise.
    pub(super) executed: Vec<Clock>,
    /// What the last `tcgen05.fence::after_thread_sync` of each warp came behind.
    pub(super) tensor_after: Vec<Arc<Clock>>,
    /// What the last `tcgen05.fence::before_thread_sync` of each warp covered: any later arrival hands it on.
    pub(super) tensor_released: Vec<Option<Arc<Stamp>>>,
    pub(super) acquires: Vec<Vec<Acquire>>,
    pub(super) shared: Shadow,
    pub(super) tensor: Shadow,
    pub(super) shared_sync: SyncTable,
    meetings: Map<(u32, u32, u64), Meeting>,
    cluster_meetings: Map<u64, View>,
    relaxed_meetings: Map<u64, Clock>,
    pub(super) barriers: Map<u32, Barrier>,
    pub(super) operations: Map<u64, Operation>,
    /// Slots beyond those of the warps.
    pub(super) slots: u32,
    /// Slots of in-order engines: (warp slot, engine).
    pub(super) engines: Map<(u32, Engine), u32>,
    /// Records that repeat.
    pub(super) interned: Map<AccessKey, Interned>,
    /// Latest accesses to the shared memory of each CTA by others: (target, slot, asynchronous) to number, generation.
    pub(super) remote: Map<(u32, u32, bool), (u32, u32)>,
    pub(super) reporter: Reporter,
    /// Which warnings are wanted.
    pub(super) checks: Checks,
}

impl OrderChecker {
    /// The checker of the cluster with linear index `cluster`.
    pub fn new(
        launch: Arc<LaunchState>,
        earlier: Earlier,
        shape: &LaunchShape,
        memory: Arc<GlobalMemory>,
        cluster: u64,
        checks: Checks,
    ) -> OrderChecker {
        let program = launch.program.clone();
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
            earlier,
            earlier_slot: slots,
            released: vec![false; ctas as usize],
            cluster: cluster as u32,
            warps,
            ctas,
            views,
            own_fenced: vec![0; slots as usize],
            started: vec![ctas == 1; slots as usize],
            met: vec![false; slots as usize],
            executed: vec![Clock::default(); slots as usize],
            tensor_after: vec![Arc::default(); slots as usize],
            tensor_released: vec![None; slots as usize],
            acquires: vec![Vec::new(); slots as usize],
            shared: Shadow::default(),
            tensor: Shadow::default(),
            shared_sync: SyncTable::default(),
            meetings: Map::default(),
            cluster_meetings: Map::default(),
            relaxed_meetings: Map::default(),
            barriers: Map::default(),
            operations: Map::default(),
            slots: slots + 1,
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

    pub(super) fn join(&mut self, slot: u32, view: &View) {
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
                let view = &self.views[slot as usize];
                if release {
                    self.cluster_meetings.entry(generation).or_default().join(view);
                } else {
                    join(self.relaxed_meetings.entry(generation).or_default(), &view.now.clock);
                }
                self.bump(slot);
                self.cluster_meetings.retain(|&known, _| known + 2 > generation);
                self.relaxed_meetings.retain(|&known, _| known + 2 > generation);
            }
            Event::ClusterPass { generation } => {
                let view = self.cluster_meetings.get(&generation).cloned().unwrap_or_default();
                self.join(slot, &view);
                if let Some(clock) = self.relaxed_meetings.get(&generation) {
                    join(&mut self.executed[slot as usize], clock);
                }
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
            Event::EarlierPass => self.earlier_passed(slot),
            Event::ReleaseDependents => self.dependents_released(actor),
            Event::Waited { operation, reads_only } => self.waited(actor, operation, reads_only),
        }
    }

    fn take_findings(&mut self) -> Vec<(Actor, Finding)> {
        self.reporter.take()
    }
}

/// Pairs of lines that were reported, by kind.
pub(super) type Reported = HashSet<(Kind, u32, u32)>;
