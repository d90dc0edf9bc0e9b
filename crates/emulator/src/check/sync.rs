//! Synchronisation through memory: what releases published at an address, and who may acquire it.

use std::sync::Arc;

use super::Scope;
use super::clock::Stamp;
use super::hash::Map;

/// Who takes part in a synchronisation through memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Party {
    /// Linear cluster index.
    pub cluster: u32,
    /// Rank of the CTA.
    pub cta: u32,
    /// Scope of its release or acquire.
    pub scope: Scope,
}

impl Party {
    /// Whether the scope covers the other one.
    fn covers(&self, other: &Party) -> bool {
        match self.scope {
            Scope::Cta => self.cluster == other.cluster && self.cta == other.cta,
            Scope::Cluster => self.cluster == other.cluster,
            Scope::Gpu | Scope::Sys => true,
        }
    }
}

/// What was published at each address.
#[derive(Debug, Default)]
pub struct SyncTable {
    places: Map<u64, Vec<(Party, Arc<Stamp>)>>,
}

impl SyncTable {
    /// Publishes a stamp at an address. What was there stays: read-modify-writes carry it on.
    pub fn publish(&mut self, address: u64, by: Party, stamp: &Arc<Stamp>) {
        let published = self.places.entry(address).or_default();
        match published.iter_mut().find(|(party, _)| *party == by) {
            None => published.push((by, stamp.clone())),
            Some((_, known)) if Arc::ptr_eq(known, stamp) => {}
            Some((_, known)) => Arc::make_mut(known).join(stamp),
        }
    }

    /// Adds what was published at an address for `to`.
    pub fn acquire(&self, address: u64, to: Party, into: &mut Stamp) {
        for (party, stamp) in self.places.get(&address).into_iter().flatten() {
            if party.covers(&to) && to.covers(party) {
                into.join_from(stamp, party.cluster, to.cluster);
            }
        }
    }
}
