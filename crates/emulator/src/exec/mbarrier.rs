//! mbarrier: the instructions, and what engines do to a barrier.
//!
//! The 64-bit word in shared memory mirrors the true state in [`Mbarriers`]. Broken rules of the protocol are findings
//! numbered MB01 to MB13 as in the ISA notes, section 3.4.

mod decode;
mod state;
#[cfg(test)]
mod tests;

pub use decode::ROWS;
pub use state::{Change, MOST, Mbarrier, Mbarriers};

use crate::check::{Actor, Event, Order};
use crate::decode::Addr;
use crate::exec::lanes;
use crate::exec::memory::{self, MemorySpace};
use crate::exec::multicast::{self, Multicast};
use crate::finding::{Finding, Kind};
use crate::machine::{Block, Cluster, Fault, Outcome, P, R32, R64, WARP, Warp};
use crate::memory::{AccessError, Space};

/// A decoded instruction of the family.
#[derive(Debug, Clone)]
pub enum MbarrierOp {
    /// `mbarrier.init`
    Init {
        /// Barrier.
        address: Place,
        /// Expected arrivals.
        count: R32,
    },
    /// `mbarrier.inval`
    Invalidate {
        /// Barrier.
        address: Place,
    },
    /// `mbarrier.arrive` in every form.
    Arrive {
        /// The state before, for a barrier of the own CTA.
        state: Option<R64>,
        /// Barrier.
        address: Place,
        /// Arrivals, or bytes with `expect`.
        operand: R32,
        /// `.expect_tx`
        expect: bool,
        /// `arrive_drop`
        drop: bool,
        /// `.noComplete`
        no_complete: bool,
        /// Ordering.
        order: Order,
        /// CTAs whose barriers at this place are meant, rather than the one addressed.
        multicast: Option<Multicast>,
    },
    /// `mbarrier.expect_tx`, or `mbarrier.complete_tx`.
    Transaction {
        /// Barrier.
        address: Place,
        /// Bytes.
        bytes: R32,
        /// Bytes arrived rather than being expected.
        complete: bool,
        /// CTAs whose barriers at this place are meant, rather than the one addressed.
        multicast: Option<Multicast>,
    },
    /// `mbarrier.test_wait` and `.try_wait`.
    Wait {
        /// Whether the phase is complete.
        d: P,
        /// Barrier.
        address: Place,
        /// The phase.
        phase: Phase,
        /// Ordering.
        order: Order,
        /// `try_wait`: the warp sleeps until the phase completes or its time is up.
        suspends: bool,
    },
    /// `mbarrier.pending_count`
    PendingCount {
        /// Count.
        d: R32,
        /// State.
        state: R64,
    },
}

/// Where a barrier is.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Space as written.
    pub space: MemorySpace,
    /// Address.
    pub address: Addr,
}

/// The phase a wait is about.
#[derive(Debug, Clone, Copy)]
pub enum Phase {
    /// By parity.
    Parity(R32),
    /// By the state that an arrival returned.
    State(R64),
}

/// Shared addresses of a place in the lanes of `mask`; other lanes hold 0.
pub(crate) fn shared_addresses(
    machine: &Cluster,
    warp: &Warp,
    mask: u32,
    place: Place,
    own: bool,
) -> Result<[u32; WARP], Fault> {
    let mut at = memory::addresses(warp, place.address);
    let spaces = memory::resolve(machine, warp, mask, place.space, &mut at)?;
    let mut out = [0; WARP];
    for lane in lanes(mask) {
        let rank = Cluster::rank_of(at[lane] as u32);
        let expected = if own { "shared memory of the own CTA" } else { "shared memory of the cluster" };
        if spaces[lane] != Space::Shared || rank as usize >= machine.ctas.len() || own && rank != warp.cta {
            let message = format!("expected an address in {expected}, got {:#x}", at[lane]);
            return Err(machine.access_fault(AccessError::OutOfBounds(message), warp, 1 << lane));
        }
        out[lane] = at[lane] as u32;
    }
    Ok(out)
}

/// A shared address in words: symbol, element and CTA.
pub(crate) fn name(machine: &Cluster, address: u32) -> String {
    let offset = address & 0x00ff_ffff;
    let below = machine.program.shared_names.iter().filter(|(_, at)| **at <= offset);
    let symbol = below.max_by_key(|(name, at)| (**at, std::cmp::Reverse(name.as_str())));
    let place = match symbol {
        Some((name, &at)) if at == offset => format!("{name} ({offset:#x})"),
        Some((name, &at)) => format!("{name}+{:#x} ({offset:#x})", offset - at),
        None => format!("shared {offset:#x}"),
    };
    match machine.ctas.len() {
        1 => place,
        _ => format!("{place} of CTA rank {}", Cluster::rank_of(address)),
    }
}

/// A barrier in words: where it is, what its phase still lacks, who arrived last.
pub fn describe(machine: &Cluster, address: u32) -> String {
    let place = name(machine, address);
    let Some(b) = find(machine, address) else {
        return format!("mbarrier {place}, which is not live");
    };
    let bytes = match b.transactions {
        0 => String::new(),
        n if n > 0 => format!(", {n} bytes to come"),
        n => format!(", {} bytes more than expected", -n),
    };
    let last = match b.last_arrival {
        None => "nobody arrived yet".to_string(),
        Some(actor) => format!(
            "last arrival by warp {} of CTA rank {} at line {}",
            actor.warp,
            actor.cta,
            machine.program.line_of(actor.pc)
        ),
    };
    format!("mbarrier {place} in phase {}: {} of {} arrivals pending{bytes}; {last}", b.phase, b.pending, b.expected)
}

fn find(machine: &Cluster, address: u32) -> Option<&Mbarrier> {
    machine.ctas.get(Cluster::rank_of(address) as usize)?.mbarriers.get(address & 0x00ff_ffff)
}

/// The phases in which the lanes of one instruction arrive. All that arrive at one barrier must do so in the same
/// phase: when it completes before the last of them, its count is too small, and whoever waits does not wait for the
/// rest.
#[derive(Debug, Default)]
pub(crate) struct Together {
    phases: Vec<(u32, u64)>,
}

impl Together {
    /// A lane is about to arrive.
    ///
    /// # Errors
    /// MB04: lanes before it arrived at the same barrier in another phase.
    pub(crate) fn check(&mut self, machine: &Cluster, actor: &Actor, address: u32) -> Result<(), Fault> {
        let Some(barrier) = find(machine, address) else {
            return Ok(());
        };
        let phase = barrier.phase;
        match self.phases.iter().find(|known| known.0 == address) {
            None => self.phases.push((address, phase)),
            Some(&(_, first)) if first != phase => {
                let message = format!(
                    "MB04: phase {first} completed before lane {} arrived, and lanes of the same instruction arrived in it: its {} arrivals are too few; {}",
                    actor.lanes.trailing_zeros(),
                    barrier.expected,
                    describe(machine, address)
                );
                return Err(finding(machine, actor, address, message));
            }
            Some(_) => {}
        }
        Ok(())
    }
}

fn finding(machine: &Cluster, actor: &Actor, address: u32, message: String) -> Fault {
    let object = Some(name(machine, address));
    Box::new(Finding { object, ..*machine.finding_of(Kind::Mbarrier, actor, message) })
}

/// Reads or changes the live barrier at an address; the finding that there is none otherwise.
fn with_live<T>(
    machine: &mut Cluster,
    actor: &Actor,
    address: u32,
    f: impl FnOnce(&mut Mbarrier) -> T,
) -> Result<T, Fault> {
    check_lifetime(machine, actor, address)?;
    let cta = &mut machine.ctas[Cluster::rank_of(address) as usize];
    match cta.mbarriers.get_mut(address & 0x00ff_ffff).map(f) {
        Some(value) => Ok(value),
        None => {
            let message = if address.is_multiple_of(8) {
                "MB01: no live mbarrier is at this address"
            } else {
                "MB03: the address is not a multiple of 8"
            };
            Err(finding(machine, actor, address, message.to_string()))
        }
    }
}

/// A copy that will signal a barrier needs it live when it is issued.
pub(crate) fn check_live(machine: &mut Cluster, actor: &Actor, address: u32) -> Result<(), Fault> {
    with_live(machine, actor, address, |_| ())
}

/// Shared memory of a CTA that exited is gone.
pub(crate) fn check_lifetime(machine: &Cluster, actor: &Actor, address: u32) -> Result<(), Fault> {
    let rank = Cluster::rank_of(address);
    match machine.ctas.get(rank as usize) {
        Some(cta) if !cta.is_done() => Ok(()),
        Some(_) => {
            let message = format!("access to shared memory of CTA rank {rank}, which exited");
            Err(machine.finding_of(Kind::ClusterLifetime, actor, message))
        }
        None => {
            let message = format!("CTA rank {rank} in a cluster of {}", machine.ctas.len());
            Err(machine.finding_of(Kind::OutOfBounds, actor, message))
        }
    }
}

/// Changes a barrier, keeps its word in shared memory, and tells the checkers. `operation` is not 0 when an engine does
/// it.
///
/// # Errors
/// MB01 and what [`Mbarrier::apply`] finds, as a fault of `actor`.
pub fn update(
    machine: &mut Cluster,
    actor: &Actor,
    address: u32,
    change: Change,
    order: Order,
    operation: u64,
) -> Result<(), Fault> {
    let arrives = matches!(change, Change::Arrive { .. });
    let (phase, result, word) = with_live(machine, actor, address, |barrier| {
        let phase = barrier.phase;
        let result = barrier.apply(change);
        if arrives {
            barrier.last_arrival = Some(*actor);
        }
        (phase, result, barrier.word())
    })?;
    let completed = match result {
        Ok(completed) => completed,
        Err(rule) => {
            let message = format!("{rule}; {}", describe(machine, address));
            return Err(finding(machine, actor, address, message));
        }
    };
    mirror(machine, address, word);
    machine.engine.note_progress();
    if let Some(observer) = &mut machine.observer {
        if arrives || matches!(change, Change::Complete(_)) {
            observer.event(actor, &Event::MbarrierArrive { address, phase, order, operation });
        }
        if completed {
            observer.event(actor, &Event::MbarrierComplete { address, phase });
        }
    }
    Ok(())
}

/// An engine's bytes arrived: `complete_tx` with release at cluster scope.
///
/// # Errors
/// As [`update`].
pub fn complete_tx(
    machine: &mut Cluster,
    actor: &Actor,
    address: u32,
    bytes: u32,
    operation: u64,
) -> Result<(), Fault> {
    let order = Order::Release(crate::check::Scope::Cluster);
    update(machine, actor, address, Change::Complete(bytes), order, operation)
}

/// An engine arrives once (`tcgen05.commit`, `cp.async.mbarrier.arrive`).
///
/// # Errors
/// As [`update`].
pub fn signal(machine: &mut Cluster, actor: &Actor, address: u32, operation: u64) -> Result<(), Fault> {
    let order = Order::Release(crate::check::Scope::Cluster);
    update(machine, actor, address, Change::ONE, order, operation)
}

/// Keeps the word in shared memory equal to the state. The range was checked when the barrier was made.
fn mirror(machine: &mut Cluster, address: u32, word: u64) {
    if let Some(cta) = machine.ctas.get_mut(Cluster::rank_of(address) as usize) {
        let written = cta.shared.write(address & 0x00ff_ffff, &word.to_le_bytes());
        debug_assert!(written.is_ok());
    }
}

/// Reports an ordinary access that touches a live barrier (MB09).
pub(crate) fn report_touch(machine: &mut Cluster, actor: &Actor, address: u32, bytes: u32) {
    let rank = Cluster::rank_of(address) as usize;
    let offset = address & 0x00ff_ffff;
    let Some(hit) = machine.ctas.get(rank).and_then(|cta| cta.mbarriers.overlapped(offset, bytes)) else {
        return;
    };
    let message = format!(
        "MB09: an ordinary access of {bytes} bytes at {offset:#x} overlaps the live mbarrier, whose word only mbarrier instructions may use"
    );
    let found = finding(machine, actor, address & 0xff00_0000 | hit, message);
    machine.report(*found);
}

/// Checks an ordinary access to shared memory: its CTA must be alive, and no live barrier may be touched.
pub(crate) fn check_access(
    machine: &mut Cluster,
    warp: &Warp,
    mask: u32,
    at: &[u64; WARP],
    bytes: u32,
) -> Result<(), Fault> {
    let remote = lanes(mask).find(|&lane| Cluster::rank_of(at[lane] as u32) != warp.cta);
    if let Some(lane) = remote {
        check_lifetime(machine, &Cluster::actor(warp, 1 << lane), at[lane] as u32)?;
    }
    let own = &machine.ctas[warp.cta as usize].mbarriers;
    if remote.is_none() && own.is_empty() {
        return Ok(());
    }
    if remote.is_none() {
        // Most accesses keep clear of every barrier with all their lanes.
        let offsets = lanes(mask).map(|lane| at[lane] as u32 & 0x00ff_ffff);
        let (low, high) = offsets.fold((u32::MAX, 0), |(low, high), offset| (low.min(offset), high.max(offset)));
        if own.overlapped(low, high - low + bytes).is_none() {
            return Ok(());
        }
    }
    let touched = |lane: &usize| {
        let cta = machine.ctas.get(Cluster::rank_of(at[*lane] as u32) as usize);
        cta.is_some_and(|cta| cta.mbarriers.overlapped(at[*lane] as u32 & 0x00ff_ffff, bytes).is_some())
    };
    if let Some(lane) = lanes(mask).find(touched) {
        report_touch(machine, &Cluster::actor(warp, 1 << lane), at[lane] as u32, bytes);
    }
    Ok(())
}

/// Executes an instruction of the family.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &MbarrierOp) -> Outcome {
    let result = match *op {
        MbarrierOp::Init { address, count } => init(machine, warp, mask, address, count),
        MbarrierOp::Invalidate { address } => invalidate(machine, warp, mask, address),
        MbarrierOp::Arrive { .. } => arrive(machine, warp, mask, op),
        MbarrierOp::Transaction { .. } => transaction(machine, warp, mask, op),
        MbarrierOp::Wait { .. } => wait(machine, warp, mask, op),
        MbarrierOp::PendingCount { d, state } => {
            return super::map1(&mut warp.regs, mask, d, state, |state: u64| {
                (1u32 << 20) - (state >> 43 & u64::from(MOST)) as u32
            });
        }
    };
    result.unwrap_or_else(Outcome::Fault)
}

fn init(machine: &mut Cluster, warp: &Warp, mask: u32, place: Place, count: R32) -> Result<Outcome, Fault> {
    let at = shared_addresses(machine, warp, mask, place, true)?;
    let counts = *warp.regs.get::<u32>(count);
    for lane in lanes(mask) {
        let actor = Cluster::actor(warp, 1 << lane);
        let (address, count) = (at[lane], counts[lane]);
        if !address.is_multiple_of(8) {
            return Err(finding(machine, &actor, address, "MB03: the address is not a multiple of 8".to_string()));
        }
        if count == 0 || count > MOST {
            let message = format!("MB04: expected a count of 1 to {MOST}, got {count}");
            return Err(finding(machine, &actor, address, message));
        }
        let barrier = Mbarrier::new(count);
        let word = barrier.word();
        let cta = &mut machine.ctas[warp.cta as usize];
        if let Err(error) = cta.shared.write(address & 0x00ff_ffff, &word.to_le_bytes()) {
            return Err(machine.access_fault(error, warp, 1 << lane));
        }
        let offset = address & 0x00ff_ffff;
        let same = cta.mbarriers.insert(offset, barrier);
        if same.is_some() {
            let message = "MB02: a live mbarrier is initialised again without mbarrier.inval";
            let found = finding(machine, &actor, address, message.to_string());
            machine.report(*found);
        }
        machine.notify(warp, 1 << lane, &Event::MbarrierInit { address, count });
    }
    Ok(Outcome::Next)
}

fn invalidate(machine: &mut Cluster, warp: &Warp, mask: u32, place: Place) -> Result<Outcome, Fault> {
    let at = shared_addresses(machine, warp, mask, place, true)?;
    for lane in lanes(mask) {
        let actor = Cluster::actor(warp, 1 << lane);
        with_live(machine, &actor, at[lane], |_| ())?;
        let offset = at[lane] & 0x00ff_ffff;
        let cta = &mut machine.ctas[warp.cta as usize];
        cta.mbarriers.remove(offset);
        if let Err(error) = cta.shared.forget(offset, 8) {
            return Err(machine.access_fault(error, warp, 1 << lane));
        }
        machine.notify(warp, 1 << lane, &Event::MbarrierInvalidate { address: at[lane] });
    }
    Ok(Outcome::Next)
}

fn arrive(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &MbarrierOp) -> Result<Outcome, Fault> {
    let MbarrierOp::Arrive { state, address, operand, expect, drop, no_complete, order, multicast } = *op else {
        return Ok(Outcome::Next);
    };
    let at = shared_addresses(machine, warp, mask, address, false)?;
    let operands = *warp.regs.get::<u32>(operand);
    let ranks = multicast.map(|mask| mask.masks(warp));
    let mut together = Together::default();
    for lane in lanes(mask) {
        let actor = Cluster::actor(warp, 1 << lane);
        let (count, expect) = if expect { (1, operands[lane]) } else { (operands[lane], 0) };
        let change = Change::Arrive { count, expect, drop, no_complete };
        if let Some(ranks) = ranks {
            for address in multicast::addresses(at[lane], ranks[lane]) {
                together.check(machine, &actor, address)?;
                update(machine, &actor, address, change, order, 0)?;
            }
            continue;
        }
        together.check(machine, &actor, at[lane])?;
        let before = with_live(machine, &actor, at[lane], |barrier| barrier.word())?;
        update(machine, &actor, at[lane], change, order, 0)?;
        if let Some(state) = state {
            if Cluster::rank_of(at[lane]) != warp.cta {
                let message = "MB03: an arrival at a barrier of another CTA returns no state".to_string();
                return Err(finding(machine, &actor, at[lane], message));
            }
            warp.regs.set_lane::<u64>(state, lane, before);
        }
    }
    Ok(Outcome::Yield)
}

fn transaction(machine: &mut Cluster, warp: &Warp, mask: u32, op: &MbarrierOp) -> Result<Outcome, Fault> {
    let MbarrierOp::Transaction { address, bytes, complete, multicast } = *op else {
        return Ok(Outcome::Next);
    };
    let at = shared_addresses(machine, warp, mask, address, false)?;
    let ranks = multicast.map(|mask| mask.masks(warp));
    let bytes = *warp.regs.get::<u32>(bytes);
    for lane in lanes(mask) {
        let actor = Cluster::actor(warp, 1 << lane);
        let change = if complete { Change::Complete(bytes[lane]) } else { Change::Expect(bytes[lane]) };
        let ranks = ranks.map_or(multicast::only(at[lane]), |ranks| ranks[lane]);
        for address in multicast::addresses(at[lane], ranks) {
            update(machine, &actor, address, change, Order::Relaxed(crate::check::Scope::Cluster), 0)?;
        }
    }
    Ok(Outcome::Yield)
}

fn wait(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &MbarrierOp) -> Result<Outcome, Fault> {
    let MbarrierOp::Wait { d, address, phase, order, suspends } = *op else {
        return Ok(Outcome::Next);
    };
    let at = shared_addresses(machine, warp, mask, address, true)?;
    let parities: [u32; WARP] = match phase {
        Phase::Parity(r) => *warp.regs.get::<u32>(r),
        Phase::State(r) => warp.regs.get::<u64>(r).map(|state| (state >> 63) as u32),
    };
    let mut passed = 0u32;
    let mut block = None;
    for lane in lanes(mask) {
        let actor = Cluster::actor(warp, 1 << lane);
        if parities[lane] > 1 {
            let message = format!("MB12: expected a parity of 0 or 1, got {}", parities[lane]);
            // Devices look at the lowest bit alone, and compilers count on it.
            let mut found = finding(machine, &actor, at[lane], message);
            found.warning = true;
            machine.report(*found);
        }
        let (passes, phase) =
            with_live(machine, &actor, at[lane], |barrier| (barrier.passes(parities[lane] & 1), barrier.phase))?;
        if passes {
            passed |= 1 << lane;
        } else {
            block.get_or_insert(Block::Mbarrier { address: at[lane], phase, times_out: suspends });
        }
    }
    let timed_out = std::mem::take(&mut warp.timed_out) & mask != 0;
    for lane in firsts(mask, |lane| at[lane]) {
        note(machine, warp, lane, at[lane], passed >> lane & 1 != 0);
    }
    if passed == 0
        && suspends
        && !timed_out
        && let Some(block) = block
    {
        machine.counters.barrier_retries += 1;
        return Ok(Outcome::Retry(block));
    }
    warp.regs.set_pred(d, mask, passed);
    if passed != 0 {
        machine.counters.barrier_waits += 1;
        tell_pass(machine, warp, passed, &at, order);
    }
    Ok(if passed == mask { Outcome::Next } else { Outcome::Spin })
}

/// The lowest lane of each set of lanes with the same key.
fn firsts(mask: u32, key: impl Fn(usize) -> u32) -> impl Iterator<Item = usize> {
    let mut seen: Vec<u32> = Vec::new();
    lanes(mask).filter(move |&lane| {
        let fresh = !seen.contains(&key(lane));
        if fresh {
            seen.push(key(lane));
        }
        fresh
    })
}

/// Keeps what the warp saw of a barrier, and warns when the barrier overtook it.
fn note(machine: &mut Cluster, warp: &Warp, lane: usize, address: u32, passed: bool) {
    let actor = Cluster::actor(warp, 1 << lane);
    let Some(barrier) = machine.ctas[warp.cta as usize].mbarriers.get_mut(address & 0x00ff_ffff) else {
        return;
    };
    let ahead = if passed { barrier.note_pass(warp.index) } else { barrier.note_wait(warp.index) };
    if let Some(phases) = ahead {
        let message =
            format!("MB12: the barrier completed {phases} phases since this warp last saw it; a parity cannot tell");
        let mut found = finding(machine, &actor, address, message);
        found.warning = true;
        machine.report(*found);
    }
}

/// Tells the checkers which phases were seen complete; phase 0 has none before it.
fn tell_pass(machine: &mut Cluster, warp: &Warp, passed: u32, at: &[u32; WARP], order: Order) {
    if machine.observer.is_none() {
        return;
    }
    for first in firsts(passed, |lane| at[lane]) {
        let address = at[first];
        let same = lanes(passed).filter(|&lane| at[lane] == address).fold(0, |set, lane| set | 1 << lane);
        if let Some(phase) = find(machine, address).and_then(|barrier| barrier.phase.checked_sub(1)) {
            machine.notify(warp, same, &Event::MbarrierPass { address, phase, order });
        }
    }
}

/// The CTA of rank `rank` exited: bytes that were expected and never came, or came unasked, are reported (MB13), and so
/// are barriers in mid-phase that an operation in flight will still signal (when it lands). Phases with some of their
/// arrivals are a warning that is asked for (MB11).
pub fn cta_exit(machine: &mut Cluster, rank: u32) {
    let open_phases = machine.options.checks.open_phases;
    let barriers = machine.ctas[rank as usize].mbarriers.iter();
    let odd: Vec<(u32, bool)> = barriers
        .map(|(offset, barrier)| (rank << 24 | offset, barrier))
        .filter(|(_, barrier)| barrier.transactions != 0 || open_phases && barrier.pending != barrier.expected)
        .map(|(address, barrier)| (address, barrier.transactions != 0))
        .collect();
    for (address, bytes) in odd {
        let actor = find(machine, address).and_then(|barrier| barrier.last_arrival);
        let actor = actor.unwrap_or(Actor { cta: rank, warp: 0, lanes: 0, pc: 0 });
        let rule = if bytes { "MB13" } else { "MB11" };
        let message = format!("{rule}: the CTA exits with {}", describe(machine, address));
        let mut found = finding(machine, &actor, address, message);
        found.warning = !bytes;
        machine.report(*found);
    }
}
