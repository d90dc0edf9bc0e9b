//! Launches that overlap: what a dependent grid does before `griddepcontrol.wait` is compared with all that the grids
//! before it did, whatever the emulator's own order was.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

use super::access::{each_run, scope_of};
use super::clock::{Stamp, raise, reached};
use super::order::OrderChecker;
use super::shadow::Shadow;
use super::sync::SyncTable;
use super::{Access, Actor, Scope, Use};
use crate::decode::Program;

/// Most launches that are taken to be still running: what never waits would add up.
const MOST_EARLIER: usize = 8;

/// What the clusters of one launch share.
#[derive(Debug)]
pub struct LaunchState {
    pub(super) program: Arc<Program>,
    pub(super) global: Mutex<GlobalState>,
    /// A CTA let dependents start.
    released: AtomicBool,
    /// A CTA knew that the launches before were complete when it let dependents start.
    waited: AtomicBool,
}

/// Global memory of a launch.
#[derive(Debug, Default)]
pub(super) struct GlobalState {
    pub(super) shadow: Shadow,
    pub(super) sync: SyncTable,
}

/// Launches that may still run when another one begins, the latest first.
pub type Earlier = Arc<[Arc<LaunchState>]>;

impl LaunchState {
    /// A launch of `program` that did nothing yet.
    pub fn new(program: Arc<Program>) -> Arc<LaunchState> {
        let (released, waited) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(LaunchState { program, global: Mutex::default(), released, waited })
    }

    /// The launches that may still run when a dependent of this one begins; `earlier` are those of this one.
    pub fn unfinished(self: &Arc<Self>, earlier: &Earlier) -> Earlier {
        let this = self.released.load(SeqCst).then(|| self.clone());
        let before = if self.waited.load(SeqCst) { &[][..] } else { earlier };
        this.into_iter().chain(before.iter().cloned()).take(MOST_EARLIER).collect()
    }
}

impl OrderChecker {
    /// Whether the launches before are complete for whoever knows `stamp`: it comes behind a `griddepcontrol.wait`.
    fn comes_after_earlier(&self, stamp: &Stamp) -> bool {
        let waited = |clock: &[u32]| reached(clock, self.earlier_slot, 1);
        waited(&stamp.clock) || stamp.foreign.iter().flat_map(|f| f.values()).any(|known| waited(&known.clock))
    }

    /// `griddepcontrol.wait` returned.
    pub(super) fn earlier_passed(&mut self, slot: u32) {
        raise(&mut self.views[slot as usize].now.clock, self.earlier_slot, 1);
    }

    /// A warp lets dependent launches start, for its CTA.
    pub(super) fn dependents_released(&mut self, actor: &Actor) {
        self.launch.released.store(true, SeqCst);
        if !std::mem::replace(&mut self.released[actor.cta as usize], true)
            && self.comes_after_earlier(&self.views[self.slot(actor) as usize].now)
        {
            self.launch.waited.store(true, SeqCst);
        }
    }

    /// A CTA whose last stamp is `end` exits; dependents may start if it did not say so before.
    pub(super) fn released_by_exit(&self, rank: u32, end: &Stamp) {
        if !self.released[rank as usize] && self.comes_after_earlier(end) {
            self.launch.waited.store(true, SeqCst);
        }
    }

    /// Compares an access to global memory with those of launches that may still run.
    pub(super) fn check_overlap(&mut self, actor: &Actor, access: &Access<'_>, slot: u32) {
        let stamp = match self.operations.get(&access.operation) {
            Some(op) => &*op.issue,
            None => &self.views[slot as usize].now,
        };
        if self.comes_after_earlier(stamp) {
            return;
        }
        let writes = access.usage != Use::Read;
        let strong = scope_of(access).is_some_and(|scope| scope >= Scope::Gpu);
        for earlier in self.earlier.iter() {
            let global = earlier.global.lock().unwrap_or_else(PoisonError::into_inner);
            let mut met = None;
            each_run(actor, access, 0, |start, bytes| {
                met = met.take().or_else(|| global.shadow.conflict(start, bytes, writes, strong));
            });
            if let Some((record, address)) = met {
                self.reporter.overlap(actor, access, record, address, &earlier.program);
            }
        }
    }
}
