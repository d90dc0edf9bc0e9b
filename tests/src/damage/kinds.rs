//! Kinds of damage, and what each makes of a program.

use std::collections::BTreeMap;

use bakewell_core::address_space;

use super::statement::Statement;
use super::survey::Survey;

/// Of lines that differ in registers only, so many are damaged, spread over the program.
const ALIKE: usize = 2;

/// What becomes of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A fence is gone. Proxy fences with no signal between cover each other, and go together.
    Fence,
    /// A mbarrier expects an arrival more.
    Count,
    /// A mbarrier expects 16 bytes more.
    Bytes,
    /// An arrival or commit is gone.
    Arrival,
    /// A slot is released before it is read.
    Early,
    /// A wait is for the other phase.
    Phase,
    /// A wait is gone.
    Wait,
    /// A barrier of threads is gone.
    Barrier,
    /// A descriptor has another swizzle, or where there are none a vector comes from the neighbouring one's place.
    Swizzle,
    /// The access of a line at the highest address is past the end of its buffer.
    PastEnd,
    /// The last coordinate of a tensor copy is far outside.
    Coordinate,
    /// Tensor memory is not given back.
    Leak,
    /// `setmaxnreg` asks for more registers than were given back, or gives none back.
    Registers,
    /// Half of a warp goes round an `.aligned` instruction.
    Diverged,
    /// Lanes of tensor memory are those of the neighbouring warp.
    Lane,
    /// Bulk stores are not committed to a group, or one group more may be in flight behind a wait for them.
    Store,
}

impl Kind {
    /// Damage that moves data and leaves the order as it was: wrong results show it.
    pub(super) fn moves_data(self) -> bool {
        matches!(self, Kind::Swizzle | Kind::Coordinate)
    }
}

/// One changed line.
#[derive(Debug, Clone)]
pub(super) struct Damage {
    pub(super) kind: Kind,
    /// From 1.
    pub(super) line: u32,
    /// What the lines become.
    pub(super) changes: Vec<(u32, String)>,
}

const PROXY_FENCES: &[&str] = &["fence.proxy.async", "fence.mbarrier_init"];
/// What touches tensor memory: a `tcgen05.fence` before all of them has nothing to order.
const TENSOR_ACCESSES: &[&str] = &["tcgen05.mma", "tcgen05.ld", "tcgen05.st", "tcgen05.cp", "tcgen05.shift"];

/// Bit 62 of a descriptor: it makes 32 of a swizzle of 128 bytes and nothing of 64 (wgmma), or nothing of 128
/// (tcgen05).
const SWIZZLE_BIT: u64 = 1 << 62;

/// The neighbouring quarter of the lanes of tensor memory, in an address.
const NEIGHBOURS_LANES: u32 = 32 << 16;

/// Registers come in steps of 8, and where register files do not divide by the warps a pool has one step to spare.
const MORE_REGISTERS: u32 = 16;

/// What each kind makes of an instruction. `described`: the program has matrix descriptors.
fn changes(statement: &Statement<'_>, described: bool) -> Vec<(Kind, String)> {
    let gone = |kind| vec![(kind, String::new())];
    let some = |kind, text: Option<String>| text.map(|text| (kind, text)).into_iter().collect::<Vec<_>>();
    let starts = |prefixes: &[&str]| statement.starts(prefixes);
    let more = |n, by: u32| statement.with(n, "b32", |value| format!("add.u32 damaged, {value}, {by};"));
    if starts(&["wgmma.fence", "tcgen05.fence"]) || starts(PROXY_FENCES) {
        gone(Kind::Fence)
    } else if starts(&["mbarrier.init"]) {
        some(Kind::Count, more(1, 1))
    } else if starts(&["mbarrier.arrive.expect_tx"]) {
        some(Kind::Bytes, more(2, 16))
    } else if starts(&["mbarrier.arrive", "tcgen05.commit"]) {
        gone(Kind::Arrival)
    } else if starts(&["tcgen05.dealloc"]) {
        gone(Kind::Leak)
    } else if starts(&["setmaxnreg.dec"]) {
        gone(Kind::Registers)
    } else if starts(&["setmaxnreg.inc"]) {
        some(Kind::Registers, statement.with_count(MORE_REGISTERS))
    } else if starts(&["tcgen05.ld", "tcgen05.st"]) {
        let others = |address: &str| format!("xor.b32 damaged, {address}, {NEIGHBOURS_LANES};");
        some(Kind::Lane, statement.address(0).and_then(|address| statement.with(address.operand, "b32", others)))
    } else if starts(&["cp.async.bulk.commit_group"]) {
        gone(Kind::Store)
    } else if starts(&["cp.async.bulk.wait_group"]) {
        [gone(Kind::Wait), some(Kind::Store, statement.with_count(1))].concat()
    } else if starts(&["mbarrier.try_wait.parity"]) {
        let passed = format!("{}setp.eq.u32 {}, 0, 0;", statement.guard, statement.operands()[0]);
        let other = statement.with(2, "b32", |parity| format!("xor.b32 damaged, {parity}, 1;"));
        [some(Kind::Phase, other), vec![(Kind::Wait, passed)]].concat()
    } else if starts(&["tcgen05.wait", "wgmma.wait_group", "cp.async.wait", "griddepcontrol.wait"]) {
        gone(Kind::Wait)
    } else if starts(&["bar.sync", "barrier.cta.sync", "barrier.sync", "barrier.cluster.wait"]) {
        gone(Kind::Barrier)
    } else if starts(&["wgmma.mma_async", "tcgen05.mma"]) {
        let changed = |descriptor: &str| format!("xor.b64 damaged, {descriptor}, {SWIZZLE_BIT};");
        some(Kind::Swizzle, statement.with(2, "b64", changed))
    } else if starts(&["ld.shared.v4"]) && !described {
        let neighbour = |n: usize| statement.with(n, "b32", |address| format!("xor.b32 damaged, {address}, 16;"));
        some(Kind::Swizzle, statement.address(0).and_then(|address| neighbour(address.operand)))
    } else if starts(&["cp.async.bulk.tensor"]) {
        some(Kind::Coordinate, statement.outside())
    } else {
        Vec::new()
    }
}

/// Half of a warp goes round an instruction for whole warps.
fn diverged(statement: &Statement<'_>) -> Option<String> {
    let whole_warps = statement.opcode.contains(".aligned") || statement.starts(&["bar.sync"]);
    let Statement { guard, opcode, operands } = statement;
    whole_warps.then(|| {
        format!(
            "{{ .reg .b32 lane; .reg .pred damaged; mov.u32 lane, %laneid; setp.ge.u32 damaged, lane, 16; \
             @damaged bra round; {guard}{opcode} {operands}; round: }}"
        )
    })
}

/// The release of a slot moved before the reads that it comes behind, as far as its operands allow.
fn early(lines: &[&str], executed: &dyn Fn(u32) -> bool, at: usize) -> Option<Damage> {
    let statement = Statement::of(lines[at])?;
    if !statement.opcode.starts_with("mbarrier.arrive") || statement.opcode.contains("expect_tx") {
        return None;
    }
    let written =
        |statement: &Statement<'_>| statement.operands().first().map(|d| d.trim_matches(['{', '}']).to_string());
    let address = statement.operands.split('[').nth(1)?.split([']', '+']).next()?.trim();
    let reads = ["ld.shared", "ldmatrix", "tcgen05.ld", "tcgen05.wait", "wgmma.wait_group"];
    let mut to = None;
    for before in (0..at).rev() {
        let line = lines[before].split("//").next().unwrap_or_default().trim();
        if line.ends_with(':') || line.contains("bra") || line.contains("mbarrier.") {
            break;
        }
        let Some(other) = Statement::of(line) else { continue };
        if written(&other).is_some_and(|written| written.split(',').any(|d| d.trim() == address)) {
            break;
        }
        if other.starts(&reads) && executed(before as u32 + 1) {
            to = Some(before);
        }
    }
    let to = to?;
    let moved = format!("{} {}", lines[at].split("//").next()?, lines[to]);
    let changes = vec![(to as u32 + 1, moved), (at as u32 + 1, String::new())];
    Some(Damage { kind: Kind::Early, line: at as u32 + 1, changes })
}

/// The access of a line at the highest address moved past the end of its buffer.
fn past_end(statement: &Statement<'_>, line: u32, survey: &Survey) -> Option<Damage> {
    const OF_ONE_BUFFER: &[&str] = &["ld", "st", "red", "atom", "cp.async"];
    /// Bits of an address within the space of its device; every run is on a device of its own.
    const GLOBAL: i64 = address_space::SPAN as i64 - 1;
    if !statement.starts(OF_ONE_BUFFER) || statement.opcode.contains(".tensor") {
        return None;
    }
    let (to_global, to_shared) = (statement.opcode.find(".global"), statement.opcode.find(".shared"));
    let (place, mask, reach) = match (to_global, to_shared) {
        (None, Some(_)) => (0, 0x00ff_ffff_i64, survey.shared.get(&line)?),
        (Some(global), Some(shared)) => (usize::from(shared < global), GLOBAL, survey.global.get(&line)?),
        (Some(_), None) => (0, GLOBAL, survey.global.get(&line)?),
        (None, None) => return None,
    };
    let address = statement.address(place)?;
    let ty = if address.register.starts_with("%rd") { "b64" } else { "b32" };
    let last = (reach.address as i64).wrapping_sub(address.offset) & mask;
    let by = reach.past_the_end();
    let moved = |register: &str| {
        format!(
            ".reg .pred last; and.{ty} damaged, {register}, {mask}; setp.eq.{ty} last, damaged, {last}; \
             selp.{ty} damaged, {by}, 0, last; add.{} damaged, damaged, {register};",
            ty.replace('b', "u")
        )
    };
    let changes = vec![(line, statement.with(address.operand, ty, moved)?)];
    Some(Damage { kind: Kind::PastEnd, line, changes })
}

/// Proxy fences between a line and the next signal to others.
fn proxy_fences_behind(lines: &[&str], at: usize) -> Vec<u32> {
    const SIGNALS: &[&str] = &["bar", "mbarrier", "tcgen05", "wgmma", "cp.async", "red", "ret"];
    let statements = (at + 1..lines.len()).filter_map(|at| Some((at as u32 + 1, Statement::of(lines[at])?)));
    let signals = |statement: &Statement<'_>| statement.starts(SIGNALS) && !statement.starts(&["mbarrier.init"]);
    let before = statements.take_while(|(_, statement)| !signals(statement));
    before.filter(|(_, statement)| statement.starts(PROXY_FENCES)).map(|(line, _)| line).collect()
}

/// What tells lines that are alike: the line without the numbers of registers, the opcode of those moved past an end.
fn likeness(kind: Kind, line: &str, statement: &Statement<'_>) -> String {
    if kind == Kind::PastEnd {
        return statement.opcode.to_string();
    }
    line.split("//").next().unwrap_or_default().chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// The damages of a program by kind, in lines that are executed.
pub(super) fn damages(text: &str, executed: impl Fn(u32) -> bool, survey: &Survey) -> Vec<Damage> {
    let lines: Vec<&str> = text.lines().collect();
    let described = ["wgmma.mma_async", "tcgen05.mma"].iter().any(|product| text.contains(product));
    let mut alike: BTreeMap<(Kind, String), Vec<Damage>> = BTreeMap::new();
    let mut covered = Vec::new();
    let mut tensor_memory_used = false;
    for (at, line) in lines.iter().enumerate() {
        let number = at as u32 + 1;
        let Some(statement) = Statement::of(line).filter(|_| executed(number) && !covered.contains(&number)) else {
            continue;
        };
        tensor_memory_used |= statement.starts(TENSOR_ACCESSES);
        if statement.starts(&["tcgen05.fence"]) && !tensor_memory_used {
            continue;
        }
        let also = if statement.starts(PROXY_FENCES) { proxy_fences_behind(&lines, at) } else { Vec::new() };
        covered.extend(&also);
        // A wait for the phase before the first passes at once.
        if statement.starts(&["mbarrier.try_wait"]) && !survey.waited.contains(&number) {
            continue;
        }
        let diverged = diverged(&statement).map(|text| (Kind::Diverged, text));
        let changed = changes(&statement, described).into_iter().chain(diverged);
        let damages = changed.map(|(kind, text)| Damage {
            kind,
            line: number,
            changes: [(number, text)].into_iter().chain(also.iter().map(|&line| (line, String::new()))).collect(),
        });
        for damage in damages.chain(early(&lines, &executed, at)).chain(past_end(&statement, number, survey)) {
            alike.entry((damage.kind, likeness(damage.kind, line, &statement))).or_default().push(damage);
        }
    }
    let few = |all: Vec<Damage>| {
        let taken = all.len().min(ALIKE);
        (0..taken).map(move |i| all[i * (all.len() - 1) / (taken - 1).max(1)].clone()).collect::<Vec<_>>()
    };
    alike.into_values().flat_map(few).collect()
}
