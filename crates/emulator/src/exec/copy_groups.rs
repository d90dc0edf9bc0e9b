//! Groups of per-thread copies: `cp.async` and bulk copies, `commit_group`, `wait_group` (ISA notes, sections 2.3 and
//! 2.4).

use std::collections::VecDeque;

use super::lanes;
use crate::check::Event;
use crate::decode::{Decoder, Refusal};
use crate::exec::Op;
use crate::finding::Kind;
use crate::isa::table::Row;
use crate::machine::{Block, Cluster, Outcome, WARP, Warp};
use crate::parse::ast::Instruction;

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new("cp async commit_group", "", decode_commit, "9.7.9.25.3.2"),
    Row::new("cp async wait_group", "n", decode_wait, "9.7.9.25.3.3"),
    Row::new("cp async wait_all", "", decode_wait, "9.7.9.25.3.3"),
    Row::new("cp async bulk commit_group", "", decode_commit, "9.7.9.25.4.1"),
    Row::new("cp async bulk wait_group {read}", "n", decode_wait, "9.7.9.25.4.2"),
];

/// Which copies a group is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `cp.async`
    Small,
    /// `cp.async.bulk` with `.bulk_group`.
    Bulk,
}

/// A wait for groups: all but the `most` newest of each lane must be complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupWait {
    /// Which groups.
    pub family: Family,
    /// Newest groups that may be incomplete.
    pub most: u32,
    /// It is enough that sources were read.
    pub reads_only: bool,
    /// Copies that no group holds yet count too (`wait_all`).
    pub open: bool,
}

impl GroupWait {
    /// The wait in words.
    pub fn describe(&self) -> String {
        let copies = if self.family == Family::Bulk { "bulk copies" } else { "cp.async" };
        let stage = if self.reads_only { "read their sources" } else { "complete" };
        format!("waits until all but {} groups of {copies} {stage}", self.most)
    }
}

/// A decoded instruction of the family.
#[derive(Debug, Clone, Copy)]
pub enum GroupOp {
    /// `commit_group`
    Commit(Family),
    /// `wait_group`, `wait_all`
    Wait(GroupWait),
}

/// A copy of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Copy {
    operation: u64,
    read: bool,
    complete: bool,
}

/// The groups of one thread and family.
#[derive(Debug, Clone, Default)]
struct Thread {
    open: Vec<Copy>,
    groups: VecDeque<Vec<Copy>>,
    /// Groups from the front whose reads were waited for.
    read_waited: usize,
}

impl Thread {
    fn each(&mut self, operation: u64, f: impl Fn(&mut Copy)) {
        let all = self.groups.iter_mut().flatten().chain(&mut self.open);
        all.filter(|copy| copy.operation == operation).for_each(f);
    }

    fn covered(&self, wait: GroupWait) -> std::ops::Range<usize> {
        let from = if wait.reads_only { self.read_waited } else { 0 };
        from..self.groups.len().saturating_sub(wait.most as usize).max(from)
    }

    fn is_over(&self, wait: GroupWait) -> bool {
        let done = |copy: &Copy| if wait.reads_only { copy.read } else { copy.complete };
        self.groups.range(self.covered(wait)).flatten().all(done) && (!wait.open || self.open.iter().all(done))
    }

    /// Takes note of a wait that is over; returns the operations it covered.
    fn pass(&mut self, wait: GroupWait) -> Vec<u64> {
        let covered = self.covered(wait);
        let mut operations: Vec<u64> =
            self.groups.range(covered.clone()).flatten().map(|copy| copy.operation).collect();
        if wait.reads_only {
            self.read_waited = covered.end;
        } else {
            self.groups.drain(covered.clone());
            self.read_waited = self.read_waited.saturating_sub(covered.end);
        }
        if wait.open {
            operations.extend(self.open.drain(..).map(|copy| copy.operation));
        }
        operations
    }
}

/// Copies in flight of a warp's threads.
#[derive(Debug, Clone, Default)]
pub struct Copies {
    small: Option<Box<[Thread; WARP]>>,
    bulk: Option<Box<[Thread; WARP]>>,
}

impl Copies {
    fn slot(&mut self, family: Family) -> &mut Option<Box<[Thread; WARP]>> {
        match family {
            Family::Small => &mut self.small,
            Family::Bulk => &mut self.bulk,
        }
    }

    fn threads(&mut self, family: Family) -> &mut [Thread; WARP] {
        self.slot(family).get_or_insert_with(|| Box::new(std::array::from_fn(|_| Thread::default())))
    }

    fn known(&self, family: Family) -> Option<&[Thread; WARP]> {
        match family {
            Family::Small => self.small.as_deref(),
            Family::Bulk => self.bulk.as_deref(),
        }
    }

    /// A copy was issued by the lanes of `mask`.
    pub fn issue(&mut self, family: Family, mask: u32, operation: u64) {
        let threads = self.threads(family);
        lanes(mask).for_each(|lane| threads[lane].open.push(Copy { operation, read: false, complete: false }));
    }

    /// A copy read its sources, or is complete.
    pub fn finish(&mut self, family: Family, mask: u32, operation: u64, complete: bool) {
        let threads = self.threads(family);
        for lane in lanes(mask) {
            threads[lane].each(operation, |copy| {
                copy.read = true;
                copy.complete |= complete;
            });
        }
    }

    fn commit(&mut self, family: Family, mask: u32) {
        let threads = self.threads(family);
        for lane in lanes(mask) {
            let group = std::mem::take(&mut threads[lane].open);
            threads[lane].groups.push_back(group);
        }
    }

    /// Whether a wait is over in every lane of `mask`.
    pub fn is_over(&self, mask: u32, wait: GroupWait) -> bool {
        self.known(wait.family).is_none_or(|threads| lanes(mask).all(|lane| threads[lane].is_over(wait)))
    }

    /// Operations of a lane that are not complete, groups or not.
    pub fn incomplete(&self, family: Family, lane: usize) -> Vec<u64> {
        let Some(threads) = self.known(family) else {
            return Vec::new();
        };
        let thread = &threads[lane];
        let all = thread.groups.iter().flatten().chain(&thread.open);
        all.filter(|copy| !copy.complete).map(|copy| copy.operation).collect()
    }

    /// Forgets copies of a lane that are in no group: a barrier tells of them instead.
    pub fn forget(&mut self, family: Family, lane: usize, operations: &[u64]) {
        let open = &mut self.threads(family)[lane].open;
        open.retain(|copy| !operations.contains(&copy.operation));
    }

    /// Copies of a lane since its last commit.
    pub fn open(&self, family: Family, lane: usize) -> Vec<u64> {
        let threads = self.known(family);
        threads.map_or(Vec::new(), |threads| threads[lane].open.iter().map(|copy| copy.operation).collect())
    }

    /// Lanes with bulk copies whose reads nobody waited for.
    pub fn unwaited(&self) -> u32 {
        let Some(threads) = &self.bulk else {
            return 0;
        };
        let left = |t: &Thread| !t.open.is_empty() || t.groups.range(t.read_waited..).any(|group| !group.is_empty());
        (0..WARP).filter(|&lane| left(&threads[lane])).fold(0, |set, lane| set | 1 << lane)
    }
}

fn family_of(instruction: &Instruction) -> Family {
    if instruction.has("bulk") { Family::Bulk } else { Family::Small }
}

fn decode_commit(_: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    Ok(Op::CopyGroup(GroupOp::Commit(family_of(instruction))))
}

fn decode_wait(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let most = match instruction.operands.first() {
        Some(operand) => decoder.immediate(operand)?,
        None => 0,
    };
    let Ok(most) = u32::try_from(most) else {
        return Refusal::invalid(format!("expected a number of groups, got {most}"));
    };
    Ok(Op::CopyGroup(GroupOp::Wait(GroupWait {
        family: family_of(instruction),
        most,
        reads_only: instruction.has("read"),
        open: instruction.has("wait_all"),
    })))
}

/// Executes an instruction of the family.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: GroupOp) -> Outcome {
    match op {
        GroupOp::Commit(family) => {
            warp.copies.commit(family, mask);
            Outcome::Next
        }
        GroupOp::Wait(wait) => {
            if !warp.copies.is_over(mask, wait) {
                return Outcome::Retry(Block::CopyGroups(wait));
            }
            if warp.copies.known(wait.family).is_none() {
                return Outcome::Next;
            }
            let waited: Vec<Vec<u64>> = warp
                .copies
                .threads(wait.family)
                .iter_mut()
                .enumerate()
                .map(|(lane, thread)| if mask >> lane & 1 != 0 { thread.pass(wait) } else { Vec::new() })
                .collect();
            if machine.observer.is_some() {
                for (lane, operation) in waited.iter().enumerate().flat_map(|(l, ops)| ops.iter().map(move |&o| (l, o)))
                {
                    machine.notify(warp, 1 << lane, &Event::Waited { operation, reads_only: wait.reads_only });
                }
            }
            Outcome::Yield
        }
    }
}

/// Lanes of a warp exit: their bulk copies must be waited for. Hardware keeps the memory until they have read it, which
/// kernels in use count on, so that this is a warning.
pub fn before_exit(machine: &mut Cluster, warp: &Warp, exiting: u32) {
    let left = warp.copies.unwaited() & exiting;
    if left != 0 {
        let message = "the thread exits without waiting for its bulk copies to read shared memory";
        let mut found = machine.finding(Kind::Leak, warp, left, message);
        found.warning = true;
        machine.report(*found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: GroupWait = GroupWait { family: Family::Bulk, most: 1, reads_only: false, open: false };

    #[test]
    fn groups_complete_in_commit_order() {
        let mut copies = Copies::default();
        for operation in 1..=3 {
            copies.issue(Family::Bulk, 1, operation);
            copies.commit(Family::Bulk, 1);
        }
        copies.finish(Family::Bulk, 1, 2, true);
        assert!(!copies.is_over(1, WAIT), "the oldest group is incomplete");
        copies.finish(Family::Bulk, 1, 1, false);
        assert!(copies.is_over(1, GroupWait { reads_only: true, ..WAIT }));
        assert!(!copies.is_over(1, WAIT));
        copies.finish(Family::Bulk, 1, 1, true);
        assert!(copies.is_over(1, WAIT), "one group may be in flight");
        assert_eq!(copies.threads(Family::Bulk)[0].pass(WAIT), [1, 2]);
        assert_eq!(copies.unwaited(), 1);
        assert!(!copies.is_over(1, GroupWait { most: 0, ..WAIT }));
        assert!(copies.is_over(2, GroupWait { most: 0, ..WAIT }), "another lane has none");
    }

    #[test]
    fn read_waits_leave_the_group() {
        let mut copies = Copies::default();
        copies.issue(Family::Bulk, 1, 9);
        copies.commit(Family::Bulk, 1);
        copies.commit(Family::Bulk, 1);
        copies.finish(Family::Bulk, 1, 9, false);
        let read = GroupWait { most: 0, reads_only: true, ..WAIT };
        assert_eq!(copies.threads(Family::Bulk)[0].pass(read), [9]);
        assert_eq!(copies.unwaited(), 0);
        assert!(!copies.is_over(1, GroupWait { most: 0, ..WAIT }));
        copies.finish(Family::Bulk, 1, 9, true);
        assert_eq!(copies.threads(Family::Bulk)[0].pass(GroupWait { most: 0, ..WAIT }), [9]);
        assert!(copies.threads(Family::Bulk)[0].groups.is_empty());
    }
}
