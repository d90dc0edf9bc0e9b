//! Shadow memory: for every four bytes who wrote them last and who read them since.
//!
//! A cell holds two interned numbers, so that checking a tile is one comparison a cell: the number of a [`Record`] for
//! the last write, and that of a set of records for the readers since. Bytes within a cell are told apart by a mask.
//! When two writers share a cell the older one is forgotten: races may be missed there, none is made up.

use super::clock::{Stamp, reached};
use super::hash::Map;
use super::{Actor, Scope};

/// Bytes of one cell.
pub const CELL_BYTES: u64 = 4;
const PAGE_CELLS: u64 = 1024;
/// Records after which the past is forgotten.
const MOST_RECORDS: usize = 1 << 24;

/// One access, or all accesses of one kind of an asynchronous operation.
#[derive(Debug, Clone)]
pub struct Record {
    /// Linear cluster index.
    pub cluster: u32,
    /// Slot of the warp that made or issued it.
    pub slot: u32,
    /// Who, for messages.
    pub actor: Actor,
    /// Asynchronous operation, or 0.
    pub operation: u64,
    /// Through the asynchronous proxy.
    pub asynchronous: bool,
    /// A matrix or copy operation on tensor memory, which one thread's pipeline executes in order.
    pub pipelined: bool,
    /// `tcgen05.ld` and `tcgen05.st`: the machine checks the waits of one warp.
    pub by_warp: bool,
    /// What the slot of its warp stood at when it was issued; 0 unless it is an operation.
    pub issued: u32,
    /// Written; otherwise read.
    pub write: bool,
    /// Scope of a strong access; strong accesses do not race with each other.
    pub strong: Option<Scope>,
    /// Happened before whoever knows this slot value; 0 is never known.
    pub done: (u32, u32),
    /// Further slot values with the same meaning.
    pub also_done: Vec<(u32, u32)>,
}

impl Record {
    /// Whether it happened before the point that `stamp` of the cluster `own` describes.
    pub fn is_before(&self, stamp: &Stamp, own: u32) -> bool {
        let clock = stamp.clock_of(self.cluster, own);
        self.completions().any(|(slot, value)| reached(clock, slot, value))
    }

    /// Whether a proxy fence on the path covered it.
    pub fn is_fenced(&self, fenced: &[u32]) -> bool {
        self.completions().any(|(slot, value)| reached(fenced, slot, value))
    }

    /// Whether anything can ever be ordered behind it.
    pub fn is_complete(&self) -> bool {
        self.done.1 > 0
    }

    fn completions(&self) -> impl Iterator<Item = (u32, u32)> {
        std::iter::once(self.done).chain(self.also_done.iter().copied()).filter(|done| done.1 > 0)
    }

    /// Whoever knows `value` of `slot` comes after it.
    pub fn complete(&mut self, slot: u32, value: u32) {
        if self.done.1 == 0 {
            self.done = (slot, value);
        } else if !self.completions().any(|(s, v)| s == slot && v <= value) {
            self.also_done.push((slot, value));
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    /// `record << 4 | byte mask`
    write: u32,
    /// `set << 4 | byte mask`
    read: u32,
}

/// Shadow of one memory.
#[derive(Debug, Default)]
pub struct Shadow {
    /// Records by number; number 0 is nobody.
    pub records: Vec<Record>,
    /// Grows when the past is forgotten: numbers of an older generation mean nothing.
    pub generation: u32,
    sets: Vec<Box<[u32]>>,
    set_numbers: Map<Box<[u32]>, u32>,
    pages: Vec<Box<[Cell]>>,
    page_numbers: Map<u64, usize>,
    last_page: (u64, usize),
}

/// An access under check: memoises what it met.
pub struct Check<'a> {
    /// Number of its own record.
    pub record: u32,
    /// What its actor knows.
    pub stamp: &'a Stamp,
    /// Cluster of the actor.
    pub own: u32,
    /// The access writes.
    pub writes: bool,
    /// Last write met and found in order.
    ordered_write: u32,
    /// Last set of readers met and found in order.
    ordered_set: u32,
    /// Last set of readers that this reader was added to, and the result.
    extended: (u32, u32),
    /// The set of this reader alone, once it was needed.
    alone: u32,
    /// Records met that are not ordered before the access, with the address.
    pub conflicts: Vec<(u32, u64)>,
    /// Whether ordered writes are kept too, for the proxy check.
    pub keeps_predecessors: bool,
    /// Whether ordered generic reads that the access overwrites are kept too.
    pub keeps_readers: bool,
    /// Accesses met that are ordered.
    pub predecessors: Vec<(u32, u64)>,
}

impl<'a> Check<'a> {
    /// A check of the access `record` by an actor that knows `stamp`.
    pub fn new(record: u32, stamp: &'a Stamp, own: u32, writes: bool) -> Check<'a> {
        Check {
            record,
            stamp,
            own,
            writes,
            ordered_write: 0,
            ordered_set: 0,
            extended: (u32::MAX, 0),
            alone: 0,
            conflicts: Vec::new(),
            keeps_predecessors: false,
            keeps_readers: false,
            predecessors: Vec::new(),
        }
    }
}

impl Shadow {
    /// Adds a record and returns its number.
    pub fn add(&mut self, record: Record) -> u32 {
        if self.records.len() >= MOST_RECORDS {
            let generation = self.generation + 1;
            *self = Shadow { generation, ..Shadow::default() };
        }
        if self.records.is_empty() {
            let nobody = Record { done: (0, 0), also_done: Vec::new(), ..record.clone() };
            self.records.push(nobody);
            self.sets.push(Box::new([]));
        }
        self.records.push(record);
        self.records.len() as u32 - 1
    }

    /// Checks `bytes` at `address` against those before, and enters the access.
    pub fn access(&mut self, check: &mut Check<'_>, address: u64, bytes: u64) {
        let end = address + bytes;
        let mut at = address;
        while at < end {
            let cell = at / CELL_BYTES;
            let page = self.page(cell / PAGE_CELLS);
            let last = (end - 1) / CELL_BYTES;
            let page_last = (cell / PAGE_CELLS + 1) * PAGE_CELLS - 1;
            let until = last.min(page_last);
            if address.is_multiple_of(CELL_BYTES) && end.is_multiple_of(CELL_BYTES) {
                self.touch_whole(check, page, cell, until);
                at = (until + 1) * CELL_BYTES;
                continue;
            }
            for cell in cell..=until {
                self.touch(check, page, cell, mask_in(cell, address, end));
            }
            at = (until + 1) * CELL_BYTES;
        }
    }

    /// An access that conflicts with one by another launch, of `bytes` at `address`, and where. Strong ones, of the
    /// device's scope or wider, do not conflict with each other.
    pub fn conflict(&self, address: u64, bytes: u64, writes: bool, strong: bool) -> Option<(&Record, u64)> {
        let end = address + bytes;
        let conflicts = |record: &&Record| !(strong && record.strong.is_some_and(|scope| scope >= Scope::Gpu));
        (address / CELL_BYTES..end.div_ceil(CELL_BYTES)).find_map(|cell| {
            let page = *self.page_numbers.get(&(cell / PAGE_CELLS))?;
            let Cell { write, read } = self.pages[page][(cell % PAGE_CELLS) as usize];
            let mask = mask_in(cell, address, end);
            let writer = (write & mask != 0).then_some(write >> 4);
            let readers = if writes && read & mask != 0 { &*self.sets[read as usize >> 4] } else { &[] };
            let met = writer.iter().chain(readers).map(|&number| &self.records[number as usize]);
            met.into_iter().find(conflicts).map(|record| (record, cell * CELL_BYTES))
        })
    }

    fn page(&mut self, number: u64) -> usize {
        if !self.pages.is_empty() && self.last_page.0 == number {
            return self.last_page.1;
        }
        let pages = &mut self.pages;
        let index = *self.page_numbers.entry(number).or_insert_with(|| {
            pages.push(vec![Cell::default(); PAGE_CELLS as usize].into_boxed_slice());
            pages.len() - 1
        });
        self.last_page = (number, index);
        index
    }

    /// [`Self::touch`] of all four bytes of cells `from` to `until` of a page; those like the ones before take a short
    /// way.
    fn touch_whole(&mut self, check: &mut Check<'_>, page: usize, from: u64, until: u64) {
        const WHOLE: u32 = 0xf;
        let mut cell = from;
        while cell <= until {
            let first = (cell % PAGE_CELLS) as usize;
            let rest = &mut self.pages[page][first..=first + (until - cell) as usize];
            let in_order =
                |write: u32| write & WHOLE == 0 || write >> 4 == check.ordered_write || write >> 4 == check.record;
            let like = if check.writes {
                let entered = Cell { write: check.record << 4 | WHOLE, read: 0 };
                let known = |read: u32| read & WHOLE == 0 || read >> 4 == check.ordered_set;
                let alike = |cell: &&mut Cell| in_order(cell.write) && known(cell.read);
                rest.iter_mut().take_while(alike).map(|cell| *cell = entered).count()
            } else {
                let (before, after) = (check.extended.0 << 4 | WHOLE, check.extended.1 << 4 | WHOLE);
                let fresh = check.extended.0 == 0;
                let known = |read: u32| read == before || fresh && read & WHOLE == 0;
                let alike = |cell: &&mut Cell| in_order(cell.write) && known(cell.read);
                rest.iter_mut().take_while(alike).map(|cell| cell.read = after).count()
            };
            cell += like as u64;
            if cell <= until {
                self.touch(check, page, cell, WHOLE);
                cell += 1;
            }
        }
    }

    #[inline]
    fn touch(&mut self, check: &mut Check<'_>, page: usize, cell: u64, mask: u32) {
        let index = (cell % PAGE_CELLS) as usize;
        let Cell { write, read } = self.pages[page][index];
        if write & mask != 0 && write >> 4 != check.ordered_write && write >> 4 != check.record {
            self.meet_write(check, write >> 4, cell * CELL_BYTES);
        }
        let mut new = Cell { write, read };
        if check.writes {
            if read & mask != 0 && read >> 4 != check.ordered_set {
                self.meet_readers(check, read >> 4, cell * CELL_BYTES);
            }
            let covers = write & !mask & 0xf == 0;
            let same = write >> 4 == check.record;
            new.write = check.record << 4 | if covers || !same { mask } else { write & 0xf | mask };
            if read & !mask & 0xf == 0 {
                new.read = 0;
            }
        } else {
            // Readers of other bytes of the cell are forgotten, but for this access itself.
            let (old, keep) = match read & 0xf {
                0 => (0, 0),
                known if known == mask => (read >> 4, 0),
                known => (0, if read >> 4 == self.alone(check) { known } else { 0 }),
            };
            if check.extended.0 != old {
                check.extended = (old, self.extend(check, old));
            }
            new.read = check.extended.1 << 4 | mask | keep;
        }
        self.pages[page][index] = new;
    }

    #[cold]
    fn meet_write(&self, check: &mut Check<'_>, number: u32, address: u64) {
        let record = &self.records[number as usize];
        let mine = &self.records[check.record as usize];
        if !conflicts(record, mine) {
            // Strong accesses of each other's scope, or parts of one operation or pipeline.
        } else if !record.is_before(check.stamp, check.own) {
            check.conflicts.push((number, address));
        } else if check.keeps_predecessors {
            check.predecessors.push((number, address));
        }
        check.ordered_write = number;
    }

    #[cold]
    fn meet_readers(&self, check: &mut Check<'_>, set: u32, address: u64) {
        let mine = &self.records[check.record as usize];
        for &number in &self.sets[set as usize] {
            let record = &self.records[number as usize];
            if !conflicts(record, mine) {
                continue;
            }
            if !record.is_before(check.stamp, check.own) {
                check.conflicts.push((number, address));
                break;
            }
            if check.keeps_readers {
                check.predecessors.push((number, address));
            }
        }
        check.ordered_set = set;
    }

    /// The set of this reader alone.
    fn alone(&mut self, check: &mut Check<'_>) -> u32 {
        if check.alone == 0 {
            check.alone = self.extend(check, 0);
        }
        check.alone
    }

    /// The set `old` with the reader added; readers that it makes redundant are dropped.
    fn extend(&mut self, check: &Check<'_>, old: u32) -> u32 {
        let mine = &self.records[check.record as usize];
        let mut members: Vec<u32> = self.sets[old as usize]
            .iter()
            .copied()
            .filter(|&number| {
                let record = &self.records[number as usize];
                let same_actor = record.cluster == mine.cluster
                    && record.slot == mine.slot
                    && (record.operation == 0) == (mine.operation == 0);
                !same_actor && !record.is_before(check.stamp, check.own)
            })
            .collect();
        members.push(check.record);
        if let Some(&number) = self.set_numbers.get(members.as_slice()) {
            return number;
        }
        let number = self.sets.len() as u32;
        let members = members.into_boxed_slice();
        self.sets.push(members.clone());
        self.set_numbers.insert(members, number);
        number
    }
}

/// The bytes of a cell that lie in `address..end`, a bit each.
fn mask_in(cell: u64, address: u64, end: u64) -> u32 {
    let start = cell * CELL_BYTES;
    let low = address.max(start) - start;
    let high = end.min(start + CELL_BYTES) - start;
    ((1u32 << high) - 1) & !((1u32 << low) - 1)
}

/// Whether two accesses of which one writes need an order at all.
fn conflicts(a: &Record, b: &Record) -> bool {
    if a.operation != 0 && a.operation == b.operation && a.cluster == b.cluster {
        return false;
    }
    let same_slot = a.cluster == b.cluster && a.slot == b.slot;
    if same_slot && (a.pipelined && b.pipelined || a.by_warp && b.by_warp) {
        return false;
    }
    match (a.strong, b.strong) {
        (Some(x), Some(y)) => !(includes(a, b, x) && includes(a, b, y)),
        _ => true,
    }
}

/// Whether a scope covers both actors.
fn includes(a: &Record, b: &Record, scope: Scope) -> bool {
    match scope {
        Scope::Cta => a.cluster == b.cluster && a.actor.cta == b.actor.cta,
        Scope::Cluster => a.cluster == b.cluster,
        Scope::Gpu | Scope::Sys => true,
    }
}
