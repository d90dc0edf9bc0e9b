//! A tensor copy in flight.

use crate::check::{Actor, Use};
use crate::exec::bulk_copy::reduce_global;
use crate::exec::copy_groups::Family;
use crate::exec::reduction::Reduction;
use crate::exec::transfer::{self, Data};
use crate::exec::{lanes, mbarrier, multicast};
use crate::finding::Kind;
use crate::layout::box_walk::Run;
use crate::layout::tensor_map::Map;
use crate::machine::{Cluster, Fault};
use crate::memory::Space;

/// Most bytes moved in one piece.
const PIECE: usize = 4096;

/// Runs that are contiguous in global memory, from this address on, or that lie outside the tensor.
type Piece = (Option<u64>, Vec<Run>);

/// A copy with everything resolved.
#[derive(Debug, Clone, Copy)]
pub(super) struct TensorCopy {
    pub(super) actor: Actor,
    pub(super) operation: u64,
    pub(super) load: bool,
    pub(super) reduction: Option<Reduction>,
    pub(super) map: Map,
    pub(super) coordinates: [i32; 5],
    pub(super) four_rows: bool,
    pub(super) shared: u32,
    pub(super) barrier: u32,
    pub(super) mask: Option<u32>,
    pub(super) pair: bool,
}

impl TensorCopy {
    /// Bytes that the barrier counts.
    pub(super) fn transaction_bytes(&self) -> u32 {
        if self.four_rows { 4 * self.map.row_bytes() } else { self.map.transaction_bytes() }
    }

    /// Bytes of shared memory that the box occupies.
    pub(super) fn shared_bytes(&self) -> u32 {
        if self.four_rows { 4 * self.map.shared_bytes() } else { self.map.shared_bytes() }
    }

    /// Destinations and barriers: one, or one in each CTA of a multicast. With `.cta_group::2` the CTA of each pair is
    /// signalled whose rank has the parity of the barrier's.
    pub(super) fn targets(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let Self { shared, barrier, pair, .. } = *self;
        let ranks = self.mask.unwrap_or(multicast::only(shared));
        lanes(ranks).map(move |rank| {
            let rank = rank as u32;
            let signalled = if pair { rank & !1 | Cluster::rank_of(barrier) & 1 } else { rank };
            (rank << 24 | shared & 0x00ff_ffff, signalled << 24 | barrier & 0x00ff_ffff)
        })
    }

    /// The runs of the box, joined to pieces of at most [`PIECE`] bytes.
    fn pieces(&self, machine: &Cluster) -> Result<Vec<Piece>, Fault> {
        let mut pieces: Vec<Piece> = Vec::new();
        let (mut next, mut bytes) = (None, 0);
        let visit = |run: Run| {
            let joins = !pieces.is_empty() && run.global == next && bytes + run.bytes as usize <= PIECE;
            if joins && let Some((_, runs)) = pieces.last_mut() {
                runs.push(run);
                bytes += run.bytes as usize;
            } else {
                pieces.push((run.global, vec![run]));
                bytes = run.bytes as usize;
            }
            next = run.global.map(|at| at + u64::from(run.bytes));
        };
        let [column, rows @ ..] = self.coordinates;
        let offset = self.shared & 0x00ff_ffff;
        let map = if self.load { self.map } else { self.map.stored() };
        let walked = if self.four_rows {
            map.rows4(column, rows, offset, visit)
        } else {
            map.tile(self.coordinates, offset, visit)
        };
        walked.map_err(|error| machine.finding_of(Kind::TensorMap, &self.actor, error.to_string()))?;
        Ok(pieces)
    }

    /// What the map addresses must lie in buffers: its bounds are those of the tensor, not of the memory.
    pub(super) fn check_global(&self, machine: &Cluster) -> Result<(), Fault> {
        for (global, runs) in self.pieces(machine)? {
            if let Some(at) = global {
                transfer::check_global(machine, &self.actor, at, bytes_of(&runs) as u64)?;
            }
        }
        Ok(())
    }

    pub(super) fn run(&self, machine: &mut Cluster) -> Result<(), Fault> {
        if self.load { self.fill(machine) } else { self.read(machine) }
    }

    fn observe(&self, machine: &mut Cluster, at: (Space, Use), address: u64, bytes: u64) {
        transfer::observe(machine, &self.actor, self.operation, at, address, bytes);
    }

    /// Writes the box to shared memory and signals the barriers.
    fn fill(&self, machine: &mut Cluster) -> Result<(), Fault> {
        let box_bytes = self.shared_bytes();
        for (shared, _) in self.targets() {
            transfer::check_landing(machine, &self.actor, Cluster::rank_of(shared))?;
            self.observe(machine, (Space::Shared, Use::Write), shared.into(), box_bytes.into());
            if box_bytes != self.transaction_bytes() {
                // Gaps of padded types hold nothing.
                let memory = &mut machine.ctas[Cluster::rank_of(shared) as usize].shared;
                let gone = memory.forget(shared & 0x00ff_ffff, box_bytes as usize);
                gone.map_err(|error| machine.access_fault_of(error, &self.actor))?;
            }
        }
        for (global, runs) in self.pieces(machine)? {
            let data = self.source(machine, global, bytes_of(&runs))?;
            for (shared, _) in self.targets() {
                let mut at = 0;
                for run in &runs {
                    let to = shared & 0xff00_0000 | run.shared;
                    transfer::write_part(machine, &self.actor, to, &data, at..at + run.bytes as usize)?;
                    at += run.bytes as usize;
                }
            }
        }
        transfer::finish(machine, &self.actor, None, self.operation);
        for (_, barrier) in self.targets() {
            mbarrier::complete_tx(machine, &self.actor, barrier, self.transaction_bytes(), self.operation)?;
        }
        Ok(())
    }

    /// Bytes of a piece: from global memory, or the fill.
    fn source(&self, machine: &mut Cluster, global: Option<u64>, bytes: usize) -> Result<Data, Fault> {
        let Some(at) = global else {
            let mut fill = vec![0; bytes];
            self.map.fill(&mut fill);
            return Ok(Data::written(fill));
        };
        self.observe(machine, (Space::Global, Use::Read), at, bytes as u64);
        let mut data = transfer::read_global(machine, &self.actor, at, bytes)?;
        self.map.convert(&mut data.bytes);
        Ok(data)
    }

    /// Reads the box from shared memory; the write to global memory comes later.
    fn read(&self, machine: &mut Cluster) -> Result<(), Fault> {
        self.observe(machine, (Space::Shared, Use::Read), self.shared.into(), self.shared_bytes().into());
        let rank = self.shared & 0xff00_0000;
        let mut pieces = Vec::new();
        for (global, runs) in self.pieces(machine)? {
            let Some(to) = global else {
                continue;
            };
            let mut data = Data::written(Vec::with_capacity(bytes_of(&runs)));
            for run in &runs {
                data.append(transfer::read_shared(machine, &self.actor, rank | run.shared, run.bytes as usize)?);
            }
            pieces.push((to, data));
        }
        transfer::reads_done(machine, &self.actor, self.operation);
        let copy = *self;
        machine.engine.push(machine.clock, Box::new(move |machine| copy.write(machine, &pieces)));
        Ok(())
    }

    fn write(&self, machine: &mut Cluster, pieces: &[(u64, Data)]) -> Result<(), Fault> {
        for (to, data) in pieces {
            let usage = if self.reduction.is_some() { Use::Atomic } else { Use::Write };
            self.observe(machine, (Space::Global, usage), *to, data.bytes.len() as u64);
            match self.reduction {
                Some(reduction) => reduce_global(machine, &self.actor, *to, &data.bytes, reduction)?,
                None => transfer::write_global(machine, &self.actor, *to, data)?,
            }
        }
        transfer::finish(machine, &self.actor, Some(Family::Bulk), self.operation);
        Ok(())
    }
}

fn bytes_of(runs: &[Run]) -> usize {
    runs.iter().map(|run| run.bytes as usize).sum()
}
