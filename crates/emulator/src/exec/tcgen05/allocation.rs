//! alloc, dealloc, relinquish_alloc_permit (PTX ISA 9.4, 9.7.18.7.1; ISA notes, tcgen05 1.2).
//!
//! An ordinary allocation is a power of two of columns of the first 512, and several may live at once. An exclusive one
//! is any multiple of 32, up to all 576 columns of sm_107, and no other lives beside it: it waits until there is none,
//! and others wait until it is freed, by a dealloc that is exclusive as well.

use super::{Tcgen05Op, group_of, memory, ranks};
use crate::check::{Access, Actor, Bytes, Order, Proxy, Use};
use crate::decode::{Addr, Decoder, Refusal};
use crate::exec::Op;
use crate::exec::memory as shared;
use crate::exec::memory::MemorySpace;
use crate::finding::Kind;
use crate::isa::Target;
use crate::machine::{Block, Cluster, Fault, Outcome, R32, Warp};
use crate::memory::{COLUMNS, LANES, SHARED_COLUMNS, Space};
use crate::parse::ast::Instruction;

/// What the instruction does.
#[derive(Debug, Clone, Copy)]
enum Action {
    /// Columns wanted, result to this shared address.
    Alloc {
        address: Addr,
        space: MemorySpace,
        columns: R32,
    },
    Dealloc {
        address: R32,
        columns: R32,
    },
    Relinquish,
}

/// A decoded instruction.
#[derive(Debug, Clone, Copy)]
pub struct AllocationOp {
    group: u32,
    /// Most columns of an `.exclusive` instruction.
    exclusive: Option<u32>,
    action: Action,
}

/// An instruction with its operands read: what the two CTAs of a pair must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    Alloc { columns: u32, exclusive: Option<u32> },
    Dealloc(Range),
    Relinquish,
}

/// Columns of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    column: u32,
    columns: u32,
    exclusive: bool,
}

/// An allocation that was not freed.
#[derive(Debug, Clone, Copy)]
struct Live {
    range: Range,
    /// Who allocated.
    by: Actor,
}

/// Allocations of a CTA.
#[derive(Debug, Clone, Default)]
pub(super) struct Allocations {
    live: Vec<Live>,
    relinquished: bool,
    /// Columns of the latest allocation.
    latest: Option<u32>,
    /// This CTA's half of a pair instruction that waits for the other half, and who executes it.
    waiting: Option<(Request, Actor)>,
    /// Its result once the other half came: the first column.
    granted: Option<u32>,
}

impl Allocations {
    /// Who allocated what was not freed, and a message about it.
    pub(super) fn leaks(&self) -> Vec<(Actor, String)> {
        let leak = |&Live { range: Range { column, columns, .. }, by }: &Live| {
            (by, format!("tensor-memory columns {column}..{} are still allocated at exit", column + columns))
        };
        self.live.iter().map(leak).collect()
    }

    /// Checks a request against what happened before.
    fn check(&self, request: Request) -> Result<(), String> {
        match request {
            Request::Alloc { columns, exclusive } => {
                match exclusive {
                    Some(most) if !columns.is_multiple_of(32) || columns == 0 || columns > most => {
                        return Err(format!("expected a multiple of 32 columns in 32..={most}, got {columns}"));
                    }
                    None if !(columns.is_power_of_two() && (32..=SHARED_COLUMNS).contains(&columns)) => {
                        return Err(format!("expected a power of two of columns in 32..=512, got {columns}"));
                    }
                    _ => {}
                }
                if self.relinquished {
                    return Err("allocation after relinquish_alloc_permit".to_string());
                }
                match self.latest {
                    Some(before) if before < columns => {
                        Err(format!("{columns} columns are more than the {before} of an earlier allocation"))
                    }
                    _ => Ok(()),
                }
            }
            Request::Dealloc(range) if !self.live.iter().any(|live| live.range == range) => {
                let Range { column, columns, exclusive } = range;
                let same = |live: &Live| live.range == Range { exclusive: !exclusive, ..range };
                let end = column + columns;
                Err(match (self.live.iter().any(same), exclusive) {
                    (false, _) => format!("columns {column}..{end} are not what one alloc returned"),
                    (true, true) => format!("columns {column}..{end} were allocated without .exclusive"),
                    (true, false) => format!("columns {column}..{end} were allocated with .exclusive"),
                })
            }
            _ => Ok(()),
        }
    }
}

fn op(decoder: &Decoder<'_>, instruction: &Instruction, action: Action) -> Op {
    let most = if decoder.target == Target::Sm107 { COLUMNS } else { SHARED_COLUMNS };
    let exclusive = instruction.has("exclusive").then_some(most);
    Op::Tcgen05(Box::new(Tcgen05Op::Allocation(AllocationOp { group: group_of(instruction), exclusive, action })))
}

pub(super) fn decode_alloc(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let address = decoder.address(&instruction.operands[0])?;
    let space = shared::space_of(instruction);
    let columns = decoder.src32(&instruction.operands[1])?;
    Ok(op(decoder, instruction, Action::Alloc { address, space, columns }))
}

pub(super) fn decode_dealloc(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let (address, columns) = (decoder.src32(&instruction.operands[0])?, decoder.src32(&instruction.operands[1])?);
    Ok(op(decoder, instruction, Action::Dealloc { address, columns }))
}

pub(super) fn decode_relinquish(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    Ok(op(decoder, instruction, Action::Relinquish))
}

/// Executes an instruction for the whole warp.
pub(super) fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &AllocationOp) -> Result<Outcome, Fault> {
    if let Some(outcome) = machine.require_aligned(warp, mask) {
        return Ok(outcome);
    }
    let fail = |machine: &Cluster, message: String| machine.finding(Kind::TensorMemory, warp, mask, message);
    if mask != u32::MAX {
        return Err(fail(machine, format!("executed by lanes {mask:#010x}, expected a full warp")));
    }
    let uniform = |reg: R32, what: &str| {
        let lanes = warp.regs.get::<u32>(reg);
        if lanes.iter().all(|&v| v == lanes[0]) { Ok(lanes[0]) } else { Err(format!("{what} differs between lanes")) }
    };
    let request = match op.action {
        Action::Alloc { columns, .. } => {
            uniform(columns, "the number of columns").map(|columns| Request::Alloc { columns, exclusive: op.exclusive })
        }
        Action::Dealloc { address, columns } => uniform(address, "the address").and_then(|column| {
            let columns = uniform(columns, "the number of columns")?;
            Ok(Request::Dealloc(Range { column, columns, exclusive: op.exclusive.is_some() }))
        }),
        Action::Relinquish => Ok(Request::Relinquish),
    };
    let request = request.map_err(|message| fail(machine, message))?;
    let ranks = ranks(machine, warp, mask, op.group)?;
    let own = &mut memory(machine, warp.cta).state.allocation;
    let column = match own.granted.take() {
        Some(column) => column,
        None => {
            own.check(request).map_err(|message| fail(machine, message))?;
            let by = Actor { cta: warp.cta, warp: warp.index, lanes: mask, pc: warp.pc() };
            match grant(machine, by, &ranks, request).map_err(|message| fail(machine, message))? {
                Some(column) => column,
                None => {
                    let seen = machine.ctas[warp.cta as usize].tensor_changes;
                    return Ok(Outcome::Retry(Block::TensorAllocation { seen }));
                }
            }
        }
    };
    if let Action::Alloc { address, space, .. } = op.action {
        store_result(machine, warp, address, space, column)?;
    }
    Ok(Outcome::Yield)
}

/// Performs a request on every CTA of the group, or notes that this CTA waits: for its peer, or for free columns.
fn grant(machine: &mut Cluster, by: Actor, ranks: &[u32], request: Request) -> Result<Option<u32>, String> {
    let rank = by.cta;
    let peer = ranks.iter().copied().find(|&r| r != rank);
    if let Some(peer) = peer {
        memory(machine, rank).state.allocation.waiting = Some((request, by));
        match memory(machine, peer).state.allocation.waiting {
            None => return Ok(None),
            Some((theirs, _)) if theirs != request => {
                return Err(format!("this CTA executes {request:?}, the other of the pair {theirs:?}"));
            }
            Some(_) => {}
        }
    }
    let column = match request {
        Request::Alloc { columns, exclusive } => match free_columns(machine, ranks, columns, exclusive.is_some()) {
            Some(column) => column,
            None => return Ok(None),
        },
        Request::Dealloc(range) => range.column,
        Request::Relinquish => 0,
    };
    for &r in ranks {
        apply(machine, r, request, column, by);
    }
    if let Some(peer) = peer {
        memory(machine, peer).state.allocation.granted = Some(column);
    }
    Ok(Some(column))
}

/// First column of a free run in all CTAs. What is exclusive wants all columns free, and lets none be granted beside
/// it.
fn free_columns(machine: &mut Cluster, ranks: &[u32], columns: u32, exclusive: bool) -> Option<u32> {
    let mut free = |from: u32, to: u32| {
        ranks.iter().all(|&rank| {
            let tensor = memory(machine, rank);
            let taken = tensor.state.allocation.live.iter().any(|live| live.range.exclusive);
            !taken && tensor.owner[from as usize..to as usize].iter().all(|&id| id == 0)
        })
    };
    if exclusive {
        return free(0, COLUMNS).then_some(0);
    }
    (0..=SHARED_COLUMNS - columns).step_by(32).find(|&first| free(first, first + columns))
}

/// Performs a request on one CTA, for its own half of a pair instruction or for `by`.
fn apply(machine: &mut Cluster, rank: u32, request: Request, column: u32, by: Actor) {
    machine.ctas[rank as usize].tensor_changes += 1;
    let tensor = memory(machine, rank);
    let state = &mut tensor.state.allocation;
    let by = state.waiting.take().map_or(by, |(_, half)| half);
    let (columns, owner) = match request {
        Request::Alloc { columns, exclusive } => {
            state.live.push(Live { range: Range { column, columns, exclusive: exclusive.is_some() }, by });
            state.latest = Some(columns);
            (columns, state.live.len() as u32)
        }
        Request::Dealloc(range) => {
            state.live.retain(|live| live.range != range);
            observe_free(machine, &by, column, range.columns);
            (range.columns, 0)
        }
        Request::Relinquish => {
            state.relinquished = true;
            return;
        }
    };
    let tensor = memory(machine, rank);
    tensor.owner[column as usize..(column + columns) as usize].fill(owner);
    for lane in 0..LANES {
        tensor.init.clear((lane * COLUMNS + column) as usize, columns as usize);
    }
}

/// Tells the checkers that nobody may use the columns any more.
fn observe_free(machine: &mut Cluster, by: &Actor, column: u32, columns: u32) {
    let Some(observer) = &mut machine.observer else { return };
    let rows: Vec<u64> = (0..LANES).map(|lane| u64::from(lane << 16 | column)).collect();
    let (space, usage, proxy, order) = (Space::Tensor, Use::Free, Proxy::Generic, Order::Weak);
    observer
        .access(by, &Access { space, usage, proxy, order, bytes: Bytes::Runs(&rows, columns.into()), operation: 0 });
}

/// Writes the address of the allocation to shared memory: an ordinary weak store of the warp.
fn store_result(
    machine: &mut Cluster,
    warp: &mut Warp,
    address: Addr,
    space: MemorySpace,
    column: u32,
) -> Result<(), Fault> {
    let mut addresses = shared::addresses(warp, address);
    let spaces = shared::resolve(machine, warp, 1, space, &mut addresses)?;
    if spaces[0] != Space::Shared {
        let message = format!("the result address {:#x} is not in shared memory", addresses[0]);
        return Err(machine.finding(Kind::TensorMemory, warp, 1, message));
    }
    shared::check_alignment(machine, warp, 1, &addresses, 4)?;
    let (usage, proxy, order) = (Use::Write, Proxy::Generic, Order::Weak);
    let bytes = Bytes::Range(addresses[0], 4);
    machine.observe(warp, 1, &Access { space: Space::Shared, usage, proxy, order, bytes, operation: 0 });
    shared::write(machine, warp, 0, Space::Shared, addresses[0], &column.to_le_bytes())
}
