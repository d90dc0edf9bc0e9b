//! Vector clocks: what an actor knows to have happened.
//!
//! A cluster has one slot for each warp and one for each mbarrier that was used. The value of a warp's slot counts its
//! releases, fences and asynchronous issues; that of a mbarrier's slot counts completed phases. What is known of other
//! clusters is kept apart, one shared snapshot for each.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Slots of one cluster.
pub type Clock = Vec<u32>;

/// Keeps the greater of two clocks in the first.
pub fn join(into: &mut Clock, other: &[u32]) {
    if into.len() < other.len() {
        into.resize(other.len(), 0);
    }
    for (mine, &theirs) in into.iter_mut().zip(other) {
        *mine = (*mine).max(theirs);
    }
}

/// Raises one slot of a clock.
pub fn raise(clock: &mut Clock, slot: u32, value: u32) {
    let slot = slot as usize;
    if clock.len() <= slot {
        clock.resize(slot + 1, 0);
    }
    clock[slot] = clock[slot].max(value);
}

/// Whether the clock has reached `value` in `slot`.
#[inline]
pub fn reached(clock: &[u32], slot: u32, value: u32) -> bool {
    clock.get(slot as usize).is_some_and(|&known| known >= value)
}

/// What is known of one cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Knowledge {
    /// What happened.
    pub clock: Clock,
    /// Generic accesses to global memory that a proxy fence made visible to the asynchronous proxy.
    pub fenced: Clock,
}

/// What is known of other clusters, by linear cluster index.
pub type Foreign = BTreeMap<u32, Arc<Knowledge>>;

/// A point in the happens-before order.
#[derive(Debug, Clone, Default)]
pub struct Stamp {
    /// The own cluster.
    pub clock: Clock,
    /// Generic accesses to shared memory that a proxy fence made visible to the asynchronous proxy.
    pub fenced_shared: Clock,
    /// The same for global memory.
    pub fenced_global: Clock,
    /// The same for tensor maps.
    pub fenced_maps: Clock,
    /// Accesses to tensor memory that a `tcgen05.fence::before_thread_sync` of their own thread came behind.
    pub fenced_tensor: Clock,
    /// Other clusters.
    pub foreign: Option<Arc<Foreign>>,
}

impl Stamp {
    /// Adds what `other` knows; both are of the same cluster.
    pub fn join(&mut self, other: &Stamp) {
        join(&mut self.clock, &other.clock);
        join(&mut self.fenced_shared, &other.fenced_shared);
        join(&mut self.fenced_global, &other.fenced_global);
        join(&mut self.fenced_maps, &other.fenced_maps);
        join(&mut self.fenced_tensor, &other.fenced_tensor);
        if let Some(theirs) = &other.foreign {
            self.join_foreign(theirs, u32::MAX);
        }
    }

    /// Adds what a stamp of the cluster `from` knows to this one of the cluster `own`.
    pub fn join_from(&mut self, other: &Stamp, from: u32, own: u32) {
        if from == own {
            self.join(other);
            return;
        }
        let knowledge = Knowledge { clock: other.clock.clone(), fenced: other.fenced_global.clone() };
        self.join_foreign(&Arc::new(Foreign::from([(from, Arc::new(knowledge))])), own);
        if let Some(theirs) = &other.foreign {
            self.join_foreign(theirs, own);
        }
    }

    fn join_foreign(&mut self, theirs: &Arc<Foreign>, own: u32) {
        if let Some(knowledge) = theirs.get(&own) {
            join(&mut self.clock, &knowledge.clock);
            join(&mut self.fenced_global, &knowledge.fenced);
        }
        let Some(mine) = &mut self.foreign else {
            self.foreign = Some(theirs.clone());
            return;
        };
        if Arc::ptr_eq(mine, theirs) {
            return;
        }
        let mine = Arc::make_mut(mine);
        for (&cluster, knowledge) in theirs.iter().filter(|(c, _)| **c != own) {
            match mine.get_mut(&cluster) {
                None => {
                    mine.insert(cluster, knowledge.clone());
                }
                Some(known) if Arc::ptr_eq(known, knowledge) => {}
                Some(known) => {
                    let known = Arc::make_mut(known);
                    join(&mut known.clock, &knowledge.clock);
                    join(&mut known.fenced, &knowledge.fenced);
                }
            }
        }
    }

    /// The clock of a cluster as known here; `own` is the cluster of this stamp.
    pub fn clock_of(&self, cluster: u32, own: u32) -> &[u32] {
        if cluster == own {
            return &self.clock;
        }
        self.foreign.as_ref().and_then(|f| f.get(&cluster)).map_or(&[], |k| &k.clock)
    }

    /// The fenced clock of a cluster as known here, for global memory.
    pub fn fenced_of(&self, cluster: u32, own: u32) -> &[u32] {
        if cluster == own {
            return &self.fenced_global;
        }
        self.foreign.as_ref().and_then(|f| f.get(&cluster)).map_or(&[], |k| &k.fenced)
    }
}

/// What a warp knows, and what it may hand on without a fence of its own.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// What the warp knows.
    pub now: Stamp,
    /// What a release fence of cluster scope or wider covered, here or on the path to here: a relaxed write hands it
    /// on.
    pub released: Option<Arc<Stamp>>,
    /// The same for fences of any scope, within the CTA.
    pub released_near: Option<Arc<Stamp>>,
    /// What relaxed reads met, here or on the path to here: an acquire fence takes it over.
    pub collected: Stamp,
    /// What is known of tensor memory alone, beyond `now`: its fences order it also across relaxed synchronisation.
    pub tensor: Stamp,
}

impl View {
    /// Adds what another warp of the cluster knows.
    pub fn join(&mut self, other: &View) {
        self.now.join(&other.now);
        join_shared(&mut self.released, &other.released);
        join_shared(&mut self.released_near, &other.released_near);
        self.collected.join(&other.collected);
        self.tensor.join(&other.tensor);
    }

    /// What the warp knows of tensor memory.
    pub fn of_tensor_memory(&self) -> Stamp {
        let mut stamp = self.now.clone();
        stamp.join(&self.tensor);
        stamp
    }
}

fn join_shared(mine: &mut Option<Arc<Stamp>>, theirs: &Option<Arc<Stamp>>) {
    match (mine.as_mut(), theirs) {
        (_, None) => {}
        (None, Some(_)) => mine.clone_from(theirs),
        (Some(a), Some(b)) if Arc::ptr_eq(a, b) => {}
        (Some(a), Some(b)) => Arc::make_mut(a).join(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(clock: &[u32]) -> Stamp {
        Stamp { clock: clock.to_vec(), ..Stamp::default() }
    }

    #[test]
    fn knowledge_of_other_clusters_travels() {
        // Cluster 0 hands its stamp to cluster 1, which hands on to cluster 2 and back to cluster 0.
        let mut one = stamp(&[1, 1]);
        one.join_from(&stamp(&[7, 3]), 0, 1);
        assert!(reached(one.clock_of(0, 1), 0, 7));
        assert!(!reached(one.clock_of(0, 1), 1, 4));
        let mut two = stamp(&[1]);
        two.join_from(&one, 1, 2);
        assert!(reached(two.clock_of(0, 2), 0, 7));
        assert!(reached(two.clock_of(1, 2), 1, 1));
        let mut zero = stamp(&[1, 9]);
        zero.join_from(&two, 2, 0);
        assert_eq!(zero.clock, [7, 9]);
    }
}
