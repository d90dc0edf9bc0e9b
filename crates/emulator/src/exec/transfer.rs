//! What copy engines share: bytes with their written state between global and shared memory, and completion.

use super::copy_groups::Family;
use super::{lanes, mbarrier};
use crate::check::{Access, Actor, Bytes, Event, Order, Proxy, Use};
use crate::finding::Kind;
use crate::machine::{Cluster, Fault};
use crate::memory::{AccessError, GlobalMemory, SharedMemory, Space};

/// Bytes and whether all of them were ever written.
pub(crate) struct Data {
    pub(crate) bytes: Vec<u8>,
    /// One flag for each byte when some were not written.
    pub(crate) unwritten: Option<Vec<bool>>,
}

impl Data {
    /// Bytes that are all written.
    pub(crate) fn written(bytes: Vec<u8>) -> Data {
        Data { bytes, unwritten: None }
    }

    /// Adds bytes at the end.
    pub(crate) fn append(&mut self, mut more: Data) {
        if self.unwritten.is_some() || more.unwritten.is_some() {
            let (before, after) = (self.bytes.len(), more.bytes.len());
            let gaps = self.unwritten.get_or_insert_with(|| vec![false; before]);
            gaps.append(&mut more.unwritten.unwrap_or_else(|| vec![false; after]));
        }
        self.bytes.append(&mut more.bytes);
    }
}

/// The CTA that a copy lands in or reads from must not have exited.
pub(crate) fn check_landing(machine: &Cluster, actor: &Actor, rank: u32) -> Result<(), Fault> {
    match machine.ctas.get(rank as usize) {
        Some(cta) if cta.is_done() => {
            let message = format!("the copy is in flight in shared memory of CTA rank {rank} when the CTA exits");
            Err(machine.finding_of(Kind::Leak, actor, message))
        }
        _ => mbarrier::check_lifetime(machine, actor, rank << 24),
    }
}

/// A violated rule of copies.
pub(crate) fn broken(machine: &Cluster, actor: &Actor, message: impl Into<String>) -> Fault {
    machine.finding_of(Kind::Copy, actor, message)
}

/// Both ends of a copy must lie in memory when it is issued.
pub(crate) fn check_shared(machine: &Cluster, actor: &Actor, address: u32, bytes: u32) -> Result<(), Fault> {
    mbarrier::check_lifetime(machine, actor, address)?;
    let cta = &machine.ctas[Cluster::rank_of(address) as usize];
    let found = cta.shared.peek(address & 0x00ff_ffff, bytes as usize);
    found.map(|_| ()).map_err(|error| machine.access_fault_of(error, actor))
}

/// As [`check_shared`] for global memory.
pub(crate) fn check_global(machine: &Cluster, actor: &Actor, address: u64, bytes: u64) -> Result<(), Fault> {
    let found = machine.global.range(address, bytes);
    found.map(|_| ()).map_err(|error| machine.access_fault_of(error, actor))
}

/// Tells the checkers of an access of the async proxy.
pub(crate) fn observe(
    machine: &mut Cluster,
    actor: &Actor,
    operation: u64,
    (space, usage): (Space, Use),
    address: u64,
    bytes: u64,
) {
    if space == Space::Shared {
        mbarrier::report_touch(machine, actor, address as u32, bytes as u32);
    }
    if let Some(observer) = &mut machine.observer {
        let bytes = Bytes::Range(address, bytes);
        observer.access(actor, &Access { space, usage, proxy: Proxy::Async, order: Order::Weak, bytes, operation });
    }
}

/// Reads global memory; unwritten bytes are carried along.
pub(crate) fn read_global(machine: &Cluster, actor: &Actor, from: u64, bytes: usize) -> Result<Data, Fault> {
    let mut data = vec![0; bytes];
    let global = &machine.global;
    let fault = |error| machine.access_fault_of(error, actor);
    match global.read_as(from, &mut data, global.check_init) {
        Ok(()) => Ok(Data::written(data)),
        Err(AccessError::Uninitialised(_)) => {
            global.read_as(from, &mut data, false).map_err(fault)?;
            let unwritten = (0..bytes as u64).map(|i| !global.is_initialised(from + i, 1)).collect();
            Ok(Data { bytes: data, unwritten: Some(unwritten) })
        }
        Err(error) => Err(fault(error)),
    }
}

/// Reads shared memory; unwritten bytes are carried along.
pub(crate) fn read_shared(machine: &Cluster, actor: &Actor, from: u32, bytes: usize) -> Result<Data, Fault> {
    let shared = &machine.ctas[Cluster::rank_of(from) as usize].shared;
    let offset = from & 0x00ff_ffff;
    let data = shared.peek(offset, bytes).map_err(|error| machine.access_fault_of(error, actor))?;
    let unwritten = (shared.check_init && !shared.is_initialised(offset, bytes))
        .then(|| (0..bytes as u32).map(|i| !shared.is_initialised(offset + i, 1)).collect());
    Ok(Data { bytes: data.to_vec(), unwritten })
}

/// Writes shared memory; unwritten bytes stay unwritten.
pub(crate) fn write_shared(machine: &mut Cluster, actor: &Actor, to: u32, data: &Data) -> Result<(), Fault> {
    write_part(machine, actor, to, data, 0..data.bytes.len())
}

/// Writes a part of `data` to shared memory.
pub(crate) fn write_part(
    machine: &mut Cluster,
    actor: &Actor,
    to: u32,
    data: &Data,
    part: std::ops::Range<usize>,
) -> Result<(), Fault> {
    let offset = to & 0x00ff_ffff;
    let shared = &mut machine.ctas[Cluster::rank_of(to) as usize].shared;
    let mut result = shared.write(offset, &data.bytes[part.clone()]);
    if let Some(unwritten) = &data.unwritten {
        let gaps = unwritten[part].iter().enumerate().filter(|(_, gap)| **gap);
        result = gaps.fold(result, |result, (i, _)| result.and_then(|()| shared.forget(offset + i as u32, 1)));
    }
    result.map_err(|error| machine.access_fault_of(error, actor))
}

/// Writes global memory; writing bytes that nobody wrote is reported.
pub(crate) fn write_global(machine: &mut Cluster, actor: &Actor, to: u64, data: &Data) -> Result<(), Fault> {
    machine.global.write(to, &data.bytes).map_err(|error| machine.access_fault_of(error, actor))?;
    if let Some(unwritten) = &data.unwritten {
        let count = unwritten.iter().filter(|gap| **gap).count();
        for (i, _) in unwritten.iter().enumerate().filter(|(_, gap)| **gap) {
            machine.global.forget(to + i as u64, 1);
        }
        let message = format!("the copy stores {count} bytes of shared memory that nobody wrote");
        let found = machine.finding_of(Kind::Uninitialised, actor, message);
        machine.report(*found);
    }
    Ok(())
}

/// After a write of `len` bytes read from `from`: marks those that nobody wrote there as unwritten.
pub(crate) fn forget_unwritten(
    shared: &mut SharedMemory,
    offset: u32,
    global: &GlobalMemory,
    from: u64,
    len: usize,
) -> Result<(), AccessError> {
    let gaps = (0..len as u32).filter(|&i| !global.is_initialised(from + u64::from(i), 1));
    gaps.into_iter().try_for_each(|i| shared.forget(offset + i, 1))
}

/// The sources of a copy in a group were read.
pub(crate) fn reads_done(machine: &mut Cluster, actor: &Actor, operation: u64) {
    mark(machine, actor, Family::Bulk, operation, false);
    if let Some(observer) = &mut machine.observer {
        observer.event(actor, &Event::ReadsDone { operation });
    }
}

/// A copy is complete.
pub(crate) fn finish(machine: &mut Cluster, actor: &Actor, family: Option<Family>, operation: u64) {
    if let Some(family) = family {
        mark(machine, actor, family, operation, true);
    }
    if let Some(observer) = &mut machine.observer {
        observer.event(actor, &Event::Complete { operation });
    }
}

fn mark(machine: &mut Cluster, actor: &Actor, family: Family, operation: u64, complete: bool) {
    if let Some(warp) = &mut machine.ctas[actor.cta as usize].warps[actor.warp as usize] {
        warp.copies.finish(family, actor.lanes, operation, complete);
    }
}

/// Copies that a barrier told of are no longer in a thread's list.
pub(crate) fn forget_copies(machine: &mut Cluster, actor: &Actor, operations: &[u64]) {
    if let Some(warp) = &mut machine.ctas[actor.cta as usize].warps[actor.warp as usize] {
        lanes(actor.lanes).for_each(|lane| warp.copies.forget(Family::Small, lane, operations));
    }
}
