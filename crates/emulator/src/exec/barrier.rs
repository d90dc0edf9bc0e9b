//! Named barriers, warp barriers, fences.

use crate::check::{Actor, Event, Order, ProxyFence, Scope};
use crate::decode::{Decoder, Refusal};
use crate::exec::{Op, lanes};
use crate::finding::Kind;
use crate::isa::Words;
use crate::isa::table::Row;
use crate::machine::{Block, Cluster, Outcome, P, R32, WARP, Warp};
use crate::parse::ast::Instruction;

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new("bar {cta} sync", "a{, b}", decode_bar, "9.7.13.1"),
    Row::new("bar {cta} arrive", "a, b", decode_bar, "9.7.13.1"),
    Row::new("bar {cta} red (popc|and|or) (u32|pred)", "d, a{, b}, c", decode_bar, "9.7.13.1"),
    Row::new("barrier {cta} sync {aligned}", "a{, b}", decode_bar, "9.7.13.1"),
    Row::new("barrier {cta} arrive {aligned}", "a, b", decode_bar, "9.7.13.1"),
    Row::new("barrier {cta} red (popc|and|or) {aligned} (u32|pred)", "d, a{, b}, c", decode_bar, "9.7.13.1"),
    Row::new("bar warp sync", "mask", decode_warp, "9.7.13.2"),
    Row::new("membar {cta|gl|sys}", "", decode_fence, "9.7.13.8"),
    Row::new("fence {sc|acq_rel|acquire|release} (cta|cluster|gpu|sys)", "", decode_fence, "9.7.13.8"),
    Row::new(
        "fence (acquire|release) (sync_restrict::shared::cluster|sync_restrict::shared::cta) cluster",
        "",
        decode_fence,
        "9.7.13.8",
    ),
    Row::new("membar proxy alias", "", decode_proxy_fence, "9.7.13.8"),
    Row::new(
        "membar proxy (async|async::global|async::shared::cta|async::shared::cluster)",
        "",
        decode_proxy_fence,
        "9.7.13.8",
    ),
    Row::new("fence mbarrier_init release cluster", "", decode_proxy_fence, "9.7.13.8"),
    Row::new("fence proxy alias", "", decode_proxy_fence, "9.7.13.8"),
    Row::new(
        "fence proxy (async|async::global|async::shared::cta|async::shared::cluster)",
        "",
        decode_proxy_fence,
        "9.7.13.8",
    ),
    Row::new("fence proxy async (global|shared::cta|shared::cluster)", "", decode_proxy_fence, "9.7.13.8"),
    Row::new(
        "fence proxy async::generic (acquire|release) (sync_restrict::shared::cluster|sync_restrict::shared::cta) cluster",
        "",
        decode_proxy_fence,
        "9.7.13.8",
    ),
    Row::new("fence proxy tensormap::generic release (cta|cluster|gpu|sys)", "", decode_proxy_fence, "9.7.13.8"),
    Row::new(
        "fence proxy tensormap::generic acquire (cta|cluster|gpu|sys)",
        "[a], size",
        decode_proxy_fence,
        "9.7.13.8",
    ),
    Row::new("setmaxnreg (inc|dec) sync aligned u32", "n", decode_registers, "9.7.19.5").needs(Words::Family),
];

/// Result of `bar.red`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// No reduction.
    None,
    /// Count of true predicates.
    Popc(R32),
    /// All true.
    And(P),
    /// Any true.
    Or(P),
}

/// A decoded barrier instruction.
#[derive(Debug, Clone)]
pub enum BarrierOp {
    /// `bar.sync`, `.arrive` and `.red`.
    Named {
        /// Barrier number.
        id: R32,
        /// Thread count, or all threads of the CTA.
        threads: Option<R32>,
        /// Whether the warp waits.
        waits: bool,
        /// All lanes of the warp must take part.
        aligned: bool,
        /// What `.red` computes.
        reduction: Reduction,
        /// Predicate of `.red` and whether it is negated.
        predicate: (P, bool),
    },
    /// Reads the result of a reduction once the barrier completed.
    Result {
        /// Barrier number.
        id: R32,
        /// Where to.
        reduction: Reduction,
    },
    /// Fence between threads.
    Fence {
        /// Order and scope.
        order: Order,
    },
    /// Fence between proxies.
    ProxyFence {
        /// Which.
        fence: ProxyFence,
    },
    /// `setmaxnreg`
    Registers {
        /// Registers for each thread from now on.
        count: u32,
        /// `.inc`
        more: bool,
    },
    /// `bar.warp.sync`
    Warp {
        /// Members.
        members: R32,
    },
}

fn decode_bar(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let red = instruction.has("red");
    let aligned = instruction.mnemonic == "bar" || instruction.has("aligned");
    let mut operands = instruction.operands.iter();
    let mut reduction = Reduction::None;
    let mut predicate = (decoder.constant_pred(false), false);
    if red {
        let Some(d) = operands.next() else {
            return Refusal::invalid("expected a result");
        };
        reduction = match instruction.choose(&[("popc", 0), ("and", 1), ("or", 2)]) {
            Some(0) => Reduction::Popc(decoder.dst32(d)?),
            Some(1) => Reduction::And(decoder.dst_pred(d)?),
            _ => Reduction::Or(decoder.dst_pred(d)?),
        };
        if let Some(c) = operands.next_back() {
            predicate = decoder.pred(c)?;
        }
    }
    let Some(id) = operands.next() else {
        return Refusal::invalid("expected a barrier number");
    };
    let id = decoder.src32(id)?;
    let threads = operands.next().map(|b| decoder.src32(b)).transpose()?;
    if red {
        decoder.emit_after(Op::Barrier(BarrierOp::Result { id, reduction }));
    }
    Ok(Op::Barrier(BarrierOp::Named { id, threads, waits: !instruction.has("arrive"), aligned, reduction, predicate }))
}

fn decode_warp(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let members = decoder.src32(&instruction.operands[0])?;
    Ok(Op::Barrier(BarrierOp::Warp { members }))
}

fn decode_fence(_: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let scope = instruction
        .choose(&[
            ("cta", Scope::Cta),
            ("cluster", Scope::Cluster),
            ("gpu", Scope::Gpu),
            ("gl", Scope::Gpu),
            ("sys", Scope::Sys),
        ])
        .unwrap_or(Scope::Sys);
    let order = instruction
        .choose(&[("acquire", Order::Acquire(scope)), ("release", Order::Release(scope))])
        .unwrap_or(Order::AcquireRelease(scope));
    Ok(Op::Barrier(BarrierOp::Fence { order }))
}

fn decode_proxy_fence(_: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let has = |part: &str| instruction.modifiers.iter().any(|m| m.contains(part));
    let fence = if has("mbarrier_init") {
        ProxyFence::MbarrierInit
    } else if has("tensormap") {
        ProxyFence::TensorMap
    } else if has("global") {
        ProxyFence::AsyncGlobal
    } else if has("shared") {
        ProxyFence::AsyncShared
    } else {
        ProxyFence::Async
    };
    Ok(Op::Barrier(BarrierOp::ProxyFence { fence }))
}

fn decode_registers(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let count = decoder.immediate(&instruction.operands[0])?;
    if !(24..=256).contains(&count) || count % 8 != 0 {
        return Refusal::invalid(format!("expected a multiple of 8 from 24 to 256, got {count}"));
    }
    Ok(Op::Barrier(BarrierOp::Registers { count: count as u32, more: instruction.has("inc") }))
}

/// Executes a barrier instruction.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &BarrierOp) -> Outcome {
    match *op {
        BarrierOp::Named { id, threads, waits, aligned, predicate, .. } => {
            if aligned {
                if let Some(outcome) = machine.require_aligned(warp, mask) {
                    return outcome;
                }
                warn_of_exited(machine, warp);
            }
            let first = mask.trailing_zeros() as usize;
            let id = warp.regs.get::<u32>(id)[first];
            let given = threads.map(|t| warp.regs.get::<u32>(t)[first]);
            let truth = warp.regs.pred[predicate.0.0 as usize] ^ if predicate.1 { u32::MAX } else { 0 };
            arrive(machine, warp, mask, id, given, waits, truth & mask)
        }
        BarrierOp::Result { id, reduction } => {
            let first = mask.trailing_zeros() as usize;
            let id = warp.regs.get::<u32>(id)[first];
            let (count, all, any) = machine.ctas[warp.cta as usize].barriers[id as usize & 15].result;
            let spread = |value: bool| if value { u32::MAX } else { 0 };
            match reduction {
                Reduction::None => {}
                Reduction::Popc(d) => warp.regs.set::<u32>(d, mask, &[count; 32]),
                Reduction::And(p) => warp.regs.set_pred(p, mask, spread(all)),
                Reduction::Or(p) => warp.regs.set_pred(p, mask, spread(any)),
            }
            Outcome::Next
        }
        BarrierOp::Fence { order } => {
            machine.notify(warp, mask, &Event::Fence { order });
            Outcome::Yield
        }
        BarrierOp::ProxyFence { fence } => {
            machine.notify(warp, mask, &Event::ProxyFence { fence });
            Outcome::Yield
        }
        BarrierOp::Registers { count, more } => set_registers(machine, warp, mask, count, more),
        BarrierOp::Warp { members } => {
            let values = *warp.regs.get::<u32>(members);
            let first = mask.trailing_zeros() as usize;
            let members = values[first];
            for lane in lanes(mask) {
                if values[lane] != members || members >> lane & 1 == 0 {
                    let message =
                        format!("lane {lane} names members {:#010x}, lane {first} {members:#010x}", values[lane]);
                    return machine.fault(Kind::Divergence, warp, mask, message);
                }
            }
            if let Some(outcome) = machine.require(warp, mask, members) {
                return outcome;
            }
            machine.notify(warp, mask, &Event::WarpSync { members });
            Outcome::Next
        }
    }
}

/// An aligned barrier is for all threads of a warp. Devices do without those that exited, and much code counts on it.
fn warn_of_exited(machine: &mut Cluster, warp: &Warp) {
    let exited = warp.born & !warp.live;
    if exited != 0 {
        let message =
            format!("lanes {exited:#010x} of the warp exited before this barrier, which all its threads must execute");
        let mut finding = machine.finding(Kind::Barrier, warp, warp.live, message);
        finding.warning = true;
        machine.report(*finding);
    }
}

/// `setmaxnreg`: takes registers from the pool of the CTA or gives them back. A kernel whose register count is not
/// fixed has no pool, and the instruction no effect.
fn set_registers(machine: &mut Cluster, warp: &mut Warp, mask: u32, count: u32, more: bool) -> Outcome {
    if let Some(outcome) = machine.require_aligned(warp, mask) {
        return outcome;
    }
    let outcome = change_registers(machine, warp, mask, count, more);
    if !matches!(outcome, Outcome::Retry(_)) {
        machine.ctas[warp.cta as usize].register_changes[warp.index as usize].push((count, warp.pc()));
    }
    outcome
}

fn change_registers(machine: &mut Cluster, warp: &mut Warp, mask: u32, count: u32, more: bool) -> Outcome {
    if warp.register_budget == 0 {
        return Outcome::Next;
    }
    let now = warp.register_budget;
    if more && count < now || !more && count > now {
        if more && machine.program.demands.registers_most.is_none() {
            // What the CTAs of an SM leave is a bound; the assembler may have given the kernel fewer. More it cannot
            // have: to release up to a count above it is an illegal instruction on the device.
            warp.register_budget = count;
            return Outcome::Yield;
        }
        let message =
            format!("setmaxnreg to {count} from {now}: expected {} registers", if more { "more" } else { "fewer" });
        return machine.fault(Kind::Registers, warp, mask, message);
    }
    let cta = &mut machine.ctas[warp.cta as usize];
    let threads = WARP as u32;
    if more {
        let wanted = (count - now) * threads;
        if cta.register_pool < wanted {
            return Outcome::Retry(Block::Registers { wanted });
        }
        cta.register_pool -= wanted;
    } else {
        cta.register_pool += (now - count) * threads;
    }
    warp.register_budget = count;
    Outcome::Yield
}

/// Warps of a warpgroup.
const WARPGROUP: usize = 4;

/// The CTA of rank `rank` exited: each setmaxnreg must have been executed by all warps of its warpgroup.
pub fn cta_exit(machine: &mut Cluster, rank: u32) {
    let changes = std::mem::take(&mut machine.ctas[rank as usize].register_changes);
    for (group, warps) in changes.chunks(WARPGROUP).enumerate() {
        let most = warps.iter().map(Vec::len).max().unwrap_or(0);
        let count_at = |warp: &Vec<(u32, u32)>, nth: usize| warp.get(nth).map(|change| change.0);
        let differs = |&nth: &usize| warps.iter().any(|warp| count_at(warp, nth) != count_at(&warps[0], nth));
        let Some(nth) = (0..most).find(differs) else {
            continue;
        };
        let first = (0..).zip(warps).find_map(|(index, warp)| warp.get(nth).map(|&change| (index, change)));
        let Some((index, (count, pc))) = first else {
            continue;
        };
        let others = (0..).zip(warps).filter(|(_, warp)| count_at(warp, nth) != Some(count));
        let base = (group * WARPGROUP) as u32;
        let others: Vec<String> = others.map(|(index, _): (u32, _)| (base + index).to_string()).collect();
        let actor = Actor { cta: rank, warp: base + index, lanes: u32::MAX, pc };
        let message = format!(
            "setmaxnreg to {count} is executed by warp {} and not by warps {} of its warpgroup: all of them must",
            actor.warp,
            others.join(", ")
        );
        let finding = machine.finding_of(Kind::Registers, &actor, message);
        machine.report(*finding);
    }
}

/// The warp reaches a named barrier.
fn arrive(
    machine: &mut Cluster,
    warp: &Warp,
    mask: u32,
    id: u32,
    given: Option<u32>,
    waits: bool,
    truth: u32,
) -> Outcome {
    if id > 15 {
        return machine.fault(Kind::Barrier, warp, mask, format!("barrier {id}: expected 0 to 15"));
    }
    let all = machine.grid.shape.threads().next_multiple_of(32);
    let threads = given.unwrap_or(all);
    if threads == 0 || !threads.is_multiple_of(32) || threads > all {
        let message = format!("barrier {id}: expected a multiple of 32 up to {all} threads, got {threads}");
        return machine.fault(Kind::Barrier, warp, mask, message);
    }
    let rank = warp.cta as usize;
    let barrier = &mut machine.ctas[rank].barriers[id as usize];
    if barrier.arrived == 0 {
        barrier.expected = threads;
        barrier.reduction = (0, true, false);
        barrier.arrivals.clear();
    } else if barrier.expected != threads {
        let message =
            format!("barrier {id}: this warp expects {threads} threads, those before it {}", barrier.expected);
        return machine.fault(Kind::Barrier, warp, mask, message);
    }
    let generation = barrier.generation;
    // A warp counts with all its threads; lanes that arrive apart from the others of their warp count once.
    let again = barrier.arrivals.contains(&warp.index);
    if again && mask == warp.live {
        let message = format!("barrier {id}: warp {} arrives twice in one generation", warp.index);
        return machine.fault(Kind::Barrier, warp, mask, message);
    }
    barrier.arrivals.push(warp.index);
    if !again {
        barrier.arrived += 32;
    }
    barrier.reduction.0 += truth.count_ones();
    barrier.reduction.1 &= truth == mask;
    barrier.reduction.2 |= truth != 0;
    machine.notify(warp, mask, &Event::BarrierArrive { id, generation, waits });
    machine.counters.barrier_waits += u64::from(waits);
    complete_if_full(machine, warp.cta, id);
    if waits { Outcome::Wait(Block::NamedBarrier { id, generation }) } else { Outcome::Yield }
}

/// Completes a barrier whose threads all arrived; threads that exited count for barriers of the whole CTA.
fn complete_if_full(machine: &mut Cluster, rank: u32, id: u32) {
    let all = machine.grid.shape.threads().next_multiple_of(32);
    let cta = &mut machine.ctas[rank as usize];
    let exited = cta.live_by_warp.iter().filter(|&&live| live == 0).count() as u32 * 32;
    let barrier = &mut cta.barriers[id as usize];
    if barrier.arrived == 0 {
        return;
    }
    let gone = if barrier.expected == all { exited } else { 0 };
    if barrier.arrived + gone < barrier.expected {
        return;
    }
    let generation = barrier.generation;
    barrier.generation += 1;
    barrier.arrived = 0;
    barrier.result = barrier.reduction;
    if let Some(observer) = &mut machine.observer {
        let actor = crate::check::Actor { cta: rank, warp: 0, lanes: 0, pc: 0 };
        observer.event(&actor, &Event::BarrierComplete { cta: rank, id, generation });
    }
}

/// Threads of a CTA exited: barriers of the whole CTA may be complete now.
pub fn after_exit(machine: &mut Cluster, rank: u32) {
    for id in 0..16 {
        complete_if_full(machine, rank, id);
    }
}

#[cfg(test)]
mod tests {
    use crate::emulator::{Emulator, Launch, Module};
    use crate::finding::Kind;
    use crate::isa::Target;
    use crate::options::Options;

    /// Findings of one warpgroup that executes `body` in a kernel with `directives`.
    fn findings(directives: &str, body: &str) -> Vec<(Kind, String)> {
        let text = format!(".version 8.6 .target sm_100a .address_size 64 .entry k() {directives} {{ {body} ret; }}");
        let device = Emulator::new(Target::Sm100, Options::new(Target::Sm100));
        let loaded = device.load(&Module::parse(&text).unwrap()).unwrap();
        let report = device.launch(&loaded, "k", Launch::linear(1, 128), &[]).unwrap();
        report.findings.into_iter().map(|finding| (finding.kind, finding.message)).collect()
    }

    #[test]
    fn registers_are_released_downwards_only() {
        // 65,536 registers for 4 CTAs of 128 threads: at most 128 each.
        let bounds = ".maxntid 128, 1, 1 .minnctapersm 4";
        assert_eq!(findings(bounds, "setmaxnreg.dec.sync.aligned.u32 120; setmaxnreg.dec.sync.aligned.u32 120;"), []);
        let found = findings(bounds, "setmaxnreg.dec.sync.aligned.u32 136;");
        assert_eq!(found[0].0, Kind::Registers);
        assert!(found[0].1.contains("to 136 from 128: expected fewer registers"), "{found:?}");
        let found = findings(".maxntid 128, 1, 1 .maxnreg 96", "setmaxnreg.dec.sync.aligned.u32 104;");
        assert!(found[0].1.contains("to 104 from 96"), "{found:?}");
        // Nobody gives back what is asked for.
        let found = findings(".maxntid 128, 1, 1 .maxnreg 96", "setmaxnreg.inc.sync.aligned.u32 104;");
        assert_eq!(found[0].0, Kind::Deadlock);
    }

    #[test]
    fn every_warp_of_a_warpgroup_changes_its_registers() {
        let bounds = ".maxntid 128, 1, 1 .maxnreg 96";
        let by = |executes: &str| {
            format!(
                ".reg .pred %p; .reg .b32 %r; mov.u32 %r, %tid.x; {executes} @!%p bra OUT;
                 setmaxnreg.dec.sync.aligned.u32 64; OUT: setmaxnreg.dec.sync.aligned.u32 48;"
            )
        };
        for (directives, executes) in [
            (bounds, "setp.lt.u32 %p, %r, 128;"),
            (bounds, "setp.gt.u32 %p, %r, 127;"),
            ("", "setp.lt.u32 %p, %r, 128;"),
        ] {
            assert_eq!(findings(directives, &by(executes)), []);
        }
        // Also where the kernel's register count is not fixed, and setmaxnreg without effect.
        for directives in [bounds, ""] {
            let found = findings(directives, &by("setp.lt.u32 %p, %r, 32;"));
            let [(Kind::Registers, message)] = found.as_slice() else { panic!("{found:?}") };
            assert_eq!(
                message,
                "setmaxnreg to 64 is executed by warp 0 and not by warps 1, 2, 3 of its warpgroup: all of them must"
            );
            let found = findings(directives, &by("setp.ge.u32 %p, %r, 64;"));
            assert!(found[0].1.contains("setmaxnreg to 48 is executed by warp 0 and not by warps 2, 3"), "{found:?}");
        }
    }

    #[test]
    fn lanes_that_exited_are_missed_at_aligned_barriers() {
        let body = |bound: u32, barrier: &str| {
            format!(".reg .pred %p; .reg .b32 %r; mov.u32 %r, %tid.x; setp.ge.u32 %p, %r, {bound}; @%p exit; {barrier}")
        };
        for fine in [body(96, "bar.sync 0;"), body(128, "bar.sync 0;"), body(100, "barrier.sync 0;")] {
            assert_eq!(findings("", &fine), []);
        }
        for barrier in ["bar.sync 0;", "barrier.sync.aligned 2, 128;", "bar.arrive 1, 128;"] {
            let found = findings("", &body(100, barrier));
            let [(Kind::Barrier, message)] = found.as_slice() else { panic!("{found:?}") };
            assert!(message.starts_with("lanes 0xfffffff0 of the warp exited before this barrier"), "{message}");
        }
    }
}
