//! atom and red on global and shared memory.
//!
//! f32 sums round to nearest; on global memory subnormal inputs and results become zero, on shared memory they stay.
//! 16-bit float sums keep subnormals. Vector forms are indivisible element by element.

use crate::check::{Access, Bytes, Order, Proxy, Scope, Use};
use crate::decode::{Addr, Decoder, Refusal, types};
use crate::exec::memory::{MemorySpace, check_alignment, resolve, scope_of, space_of};
use crate::exec::{Op, lanes, memory};
use crate::isa::Type;
use crate::isa::table::{BLACKWELL, Row};
use crate::machine::{Cluster, Fault, Outcome, Reg, Warp};
use crate::memory::{AccessError, Space};
use crate::numerics::arith::{self, Half, HalfType, MinMax};
use crate::numerics::format::Rounding;
use crate::parse::ast::Instruction;
use crate::trace::Path;

/// Rows of the family.
pub static ROWS: &[Row] = &[
    // Performed at once, one of the times at which it may be.
    Row::new("red async {mmio} release (cluster|gpu|sys) {global} add (u32|s32|u64)", "[a], b", decode_red, "9.7.13.7")
        .on(BLACKWELL, 87),
    Row::new(
        "atom {relaxed|acquire|release|acq_rel} {cta|cluster|gpu|sys} {global|shared|shared::cta|shared::cluster} (and|or|xor|exch|add|inc|dec|min|max) {noftz} {L2::cache_hint} (b32|b64|b128|u32|u64|s32|s64|f32|f64|f16|bf16|f16x2|bf16x2)",
        "d, [a], b{, policy}",
        decode_atom,
        "9.7.13.14",
    ),
    Row::new(
        "atom {relaxed|acquire|release|acq_rel} {cta|cluster|gpu|sys} {global|shared|shared::cta|shared::cluster} cas {L2::cache_hint} (b16|b32|b64|b128|u32|u64|s32|s64)",
        "d, [a], b, c{, policy}",
        decode_atom,
        "9.7.13.14",
    ),
    Row::new(
        "atom {relaxed|acquire|release|acq_rel} {cta|cluster|gpu|sys} {global} (add|min|max) {noftz} {L2::cache_hint} (v2|v4|v8) (f32|f16|bf16|f16x2|bf16x2)",
        "d, [a], b{, policy}",
        decode_atom,
        "9.7.13.14",
    ),
    Row::new(
        "red {relaxed|release} {cta|cluster|gpu|sys} {global|shared|shared::cta|shared::cluster} (and|or|xor|add|inc|dec|min|max) {noftz} {L2::cache_hint} (b32|b64|u32|u64|s32|s64|f32|f64|f16|bf16|f16x2|bf16x2)",
        "[a], b{, policy}",
        decode_red,
        "9.7.13.15",
    ),
    Row::new(
        "red {relaxed|release} {cta|cluster|gpu|sys} {global} (add|min|max) {noftz} {L2::cache_hint} (v2|v4|v8) (f32|f16|bf16|f16x2|bf16x2)",
        "[a], b{, policy}",
        decode_red,
        "9.7.13.15",
    ),
];

/// What an atomic does with the old value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicKind {
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Replaces.
    Exchange,
    /// Sum.
    Add,
    /// `old >= b ? 0 : old + 1`
    Inc,
    /// `old == 0 || old > b ? b : old - 1`
    Dec,
    /// Minimum.
    Min,
    /// Maximum.
    Max,
    /// Replaces by `c` where the old value is `b`.
    CompareExchange,
}

/// A decoded atomic.
#[derive(Debug, Clone)]
pub struct AtomicOp {
    /// What.
    pub kind: AtomicKind,
    /// Element type.
    pub ty: Type,
    /// Space.
    pub space: MemorySpace,
    /// Address.
    pub address: Addr,
    /// Ordering.
    pub order: Order,
    /// Old values; empty for `red`.
    pub old: Box<[Reg]>,
    /// Operands, one for each element.
    pub values: Box<[Reg]>,
    /// New value of compare-and-exchange.
    pub new: Option<Reg>,
}

fn decode_atom(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    decode(decoder, instruction, 1)
}

pub(crate) fn decode_red(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    decode(decoder, instruction, 0)
}

/// `first` is the position of the address.
fn decode(decoder: &mut Decoder<'_>, instruction: &Instruction, first: usize) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let kind = instruction
        .choose(&[
            ("and", AtomicKind::And),
            ("or", AtomicKind::Or),
            ("xor", AtomicKind::Xor),
            ("exch", AtomicKind::Exchange),
            ("add", AtomicKind::Add),
            ("inc", AtomicKind::Inc),
            ("dec", AtomicKind::Dec),
            ("min", AtomicKind::Min),
            ("max", AtomicKind::Max),
            ("cas", AtomicKind::CompareExchange),
        ])
        .unwrap_or(AtomicKind::Exchange);
    let multicast = instruction.mnemonic == "multimem";
    if matches!(ty, Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2) && !instruction.has("noftz") && !multicast {
        return Refusal::invalid("16-bit float atomics need .noftz");
    }
    let operands = &instruction.operands;
    let space = space_of(instruction);
    let address = decoder.address(&operands[first])?;
    let elements = decoder.elements(&operands[first + 1]);
    let width = instruction.choose(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1);
    if elements.len() != width {
        return Refusal::invalid(format!("expected {width} elements, got {}", elements.len()));
    }
    let values = elements.iter().map(|value| decoder.src(value, ty)).collect::<Result<Box<[Reg]>, _>>()?;
    let new = match (kind, operands.get(first + 2)) {
        (AtomicKind::CompareExchange, Some(c)) => Some(decoder.src(c, ty)?),
        (AtomicKind::CompareExchange, None) => return Refusal::invalid("expected a new value"),
        _ => None,
    };
    let old = if first == 1 {
        let elements = decoder.elements(&operands[0]);
        if elements.len() != width {
            return Refusal::invalid(format!("expected {width} results, got {}", elements.len()));
        }
        elements.iter().map(|d| decoder.dst(d, ty)).collect::<Result<_, _>>()?
    } else {
        Box::default()
    };
    let scope = scope_of(instruction).unwrap_or(if multicast { Scope::Sys } else { Scope::Gpu });
    let order = instruction
        .choose(&[
            ("acquire", Order::Acquire(scope)),
            ("release", Order::Release(scope)),
            ("acq_rel", Order::AcquireRelease(scope)),
        ])
        .unwrap_or(Order::Relaxed(scope));
    Ok(Op::Atomic(Box::new(AtomicOp { kind, ty, space, address, order, old, values, new })))
}

/// The new value of one element.
pub fn apply(kind: AtomicKind, ty: Type, global: bool, old: u128, b: u128, c: u128) -> u128 {
    match kind {
        AtomicKind::And => old & b,
        AtomicKind::Or => old | b,
        AtomicKind::Xor => old ^ b,
        AtomicKind::Exchange => b,
        AtomicKind::Inc => {
            if old as u32 >= b as u32 {
                0
            } else {
                old + 1
            }
        }
        AtomicKind::Dec => {
            if old == 0 || old as u32 > b as u32 {
                b
            } else {
                old - 1
            }
        }
        AtomicKind::CompareExchange => {
            if old == b {
                c
            } else {
                old
            }
        }
        AtomicKind::Add => add(ty, global, old, b),
        AtomicKind::Min | AtomicKind::Max => min_max(ty, kind == AtomicKind::Max, old, b),
    }
}

fn add(ty: Type, global: bool, old: u128, b: u128) -> u128 {
    let halves = |kind: HalfType, packed: bool| {
        let one =
            |shift: u32| u128::from(kind.add((old >> shift) as u16, (b >> shift) as u16, Half::default())) << shift;
        if packed { one(0) | one(16) } else { one(0) }
    };
    match ty {
        Type::F32 => {
            let flush = |x: f32| if global { arith::flush(x) } else { x };
            let (x, y) = (f32::from_bits(old as u32), f32::from_bits(b as u32));
            flush(arith::add(flush(x), flush(y), Rounding::NearestEven)).to_bits().into()
        }
        Type::F64 => {
            let (x, y) = (f64::from_bits(old as u64), f64::from_bits(b as u64));
            arith::add_f64(x, y, Rounding::NearestEven).to_bits().into()
        }
        Type::F16 => halves(HalfType::F16, false),
        Type::F16x2 => halves(HalfType::F16, true),
        Type::Bf16 => halves(HalfType::Bf16, false),
        Type::Bf16x2 => halves(HalfType::Bf16, true),
        _ => old.wrapping_add(b) & (u128::MAX >> (128 - ty.bits())),
    }
}

fn min_max(ty: Type, max: bool, old: u128, b: u128) -> u128 {
    let pick = |b_wins: bool| if b_wins { b } else { old };
    let how = MinMax { max, ..MinMax::default() };
    let halves = |kind: HalfType, packed: bool| {
        let one = |shift: u32| {
            u128::from(arith::min_max_half(kind, (old >> shift) as u16, (b >> shift) as u16, how)) << shift
        };
        if packed { one(0) | one(16) } else { one(0) }
    };
    match ty {
        Type::S32 => pick(if max { b as i32 > old as i32 } else { (b as i32) < old as i32 }),
        Type::S64 => pick(if max { b as i64 > old as i64 } else { (b as i64) < old as i64 }),
        Type::F32 => arith::min_max(f32::from_bits(old as u32), f32::from_bits(b as u32), how).to_bits().into(),
        Type::F16 => halves(HalfType::F16, false),
        Type::F16x2 => halves(HalfType::F16, true),
        Type::Bf16 => halves(HalfType::Bf16, false),
        Type::Bf16x2 => halves(HalfType::Bf16, true),
        _ => pick(if max { b > old } else { b < old }),
    }
}

/// Executes an atomic.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &AtomicOp) -> Outcome {
    run(machine, warp, mask, op).unwrap_or_else(Outcome::Fault)
}

fn run(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &AtomicOp) -> Result<Outcome, Fault> {
    let mut at = memory::addresses(warp, op.address);
    let spaces = resolve(machine, warp, mask, op.space, &mut at)?;
    let width = op.ty.bytes();
    let total = width * op.values.len() as u32;
    check_alignment(machine, warp, mask, &at, total)?;
    machine.counters.add_bytes(Path::Atomic, u64::from(mask.count_ones() * total));
    if spaces[mask.trailing_zeros() as usize] == Space::Shared {
        super::mbarrier::check_access(machine, warp, mask, &at, total)?;
    }
    if machine.observer.is_some() {
        let access = Access {
            space: spaces[mask.trailing_zeros() as usize],
            usage: Use::Atomic,
            proxy: Proxy::Generic,
            order: op.order,
            bytes: Bytes::Lanes(&at, total),
            operation: 0,
        };
        machine.observe(warp, mask, &access);
    }
    for lane in lanes(mask) {
        for (i, &value) in op.values.iter().enumerate() {
            let b = warp.regs.lane_bits(value, lane);
            let c = op.new.map_or(0, |new| warp.regs.lane_bits(new, lane));
            let address = at[lane] + u64::from(width) * i as u64;
            let old = element(machine, warp, lane, (spaces[lane], address), op, (b, c))?;
            if let Some(&d) = op.old.get(i) {
                warp.regs.set_lane_bits(d, lane, old);
            }
        }
    }
    // Loops on compare-and-exchange or exchange are spin locks.
    Ok(match op.kind {
        AtomicKind::CompareExchange | AtomicKind::Exchange => Outcome::Spin,
        _ => Outcome::Yield,
    })
}

/// One indivisible read-modify-write; returns the old value.
fn element(
    machine: &mut Cluster,
    warp: &mut Warp,
    lane: usize,
    (space, at): (Space, u64),
    op: &AtomicOp,
    (b, c): (u128, u128),
) -> Result<u128, Fault> {
    let width = op.ty.bytes() as usize;
    let mut bytes = [0; 16];
    match space {
        Space::Global => {
            let memory = machine.global.clone();
            let _guard = memory.lock(at);
            memory::read(machine, warp, lane, space, at, &mut bytes[..width])?;
            let old = u128::from_le_bytes(bytes);
            let new = apply(op.kind, op.ty, true, old, b, c);
            memory::write(machine, warp, lane, space, at, &new.to_le_bytes()[..width])?;
            Ok(old)
        }
        Space::Shared => {
            memory::read(machine, warp, lane, space, at, &mut bytes[..width])?;
            let old = u128::from_le_bytes(bytes);
            let new = apply(op.kind, op.ty, false, old, b, c);
            memory::write(machine, warp, lane, space, at, &new.to_le_bytes()[..width])?;
            Ok(old)
        }
        _ => {
            let error =
                AccessError::OutOfBounds(format!("atomic at {at:#x}: only global and shared memory have atomics"));
            Err(machine.access_fault(error, warp, 1 << lane))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Target;
    use crate::testing::{lanes, run_on};

    /// `%io_at` is the lane's input; slot 0 of it is the word the atomics work on.
    #[test]
    fn one_word_all_lanes() {
        let ran = run_on(
            Target::Sm90,
            ".shared .align 16 .b8 s[64]; mov.u32 %r1, s; setp.eq.u32 %p0, %io_tid, 0; @%p0 st.shared.u32 [%r1], 5; bar.sync 0; atom.shared.add.u32 %o0, [%r1], 2;
             red.shared.max.s32 [%r1+4], -7; bar.sync 0; ld.shared.u32 %o1, [%r1];
             atom.global.inc.u32 %o2, [%io_base], 20; atom.acq_rel.gpu.global.or.b32 %o3, [%io_base+8], 1;",
            (&[lanes(&[0])], &[]),
            (4, 0),
        );
        // The word at s + 4 was never written: that is the one finding.
        assert_eq!(ran.report.findings.len(), 1, "{:?}", ran.report.findings);
        let mut seen = ran.words[0].to_vec();
        seen.sort_unstable();
        assert_eq!(seen, (0..32).map(|i| 5 + 2 * i).collect::<Vec<_>>());
        assert_eq!(ran.words[1], [5 + 64; 32]);
        let mut counts = ran.words[2].to_vec();
        counts.sort_unstable();
        let mut expected: Vec<u32> = (0..32).map(|i| i % 21).collect();
        expected.sort_unstable();
        assert_eq!(counts, expected);
        assert_eq!(ran.words[3].iter().filter(|&&old| old == 0).count(), 1);
    }

    #[test]
    fn each_lane_its_own_word() {
        let one = 1f32.to_bits();
        let ran = run_on(
            Target::Sm90,
            "atom.global.cas.b32 %o0, [%io_at], 7, 9; ld.global.u32 %o1, [%io_at]; atom.global.exch.b32 %o2, [%io_at], 0f3FC00000;
             atom.global.add.f32 %o3, [%io_at], 0f3F000000; ld.global.u32 %o4, [%io_at]; red.global.add.noftz.bf16x2 [%io_at], 0x3f803f80; ld.global.u32 %o5, [%io_at];
             atom.global.dec.u32 %o6, [%io_at], 3; ld.global.u32 %o7, [%io_at]; atom.global.min.u64 %q0, [%io_at], 1; ld.global.u64 %q1, [%io_at];",
            (&[lanes(&[7u32, 8])], &[]),
            (8, 2),
        );
        assert!(ran.report.findings.is_empty(), "{:?}", ran.report.findings);
        let w = |i: usize| [ran.words[i][0], ran.words[i][1]];
        assert_eq!(w(0), [7, 8]);
        assert_eq!(w(1), [9, 8]);
        assert_eq!(w(2), [9, 8]);
        assert_eq!(w(3), [1.5f32.to_bits(); 2]);
        assert_eq!(w(4), [2f32.to_bits(); 2]);
        // bf16 pairs of 0x40000000: (2.0, 0.0) + (1.0, 1.0)
        assert_eq!(w(5), [0x4040_3f80; 2]);
        assert_eq!(w(7), [3; 2]);
        assert_eq!(ran.wide[0][0], 3);
        assert_eq!(ran.wide[1][0], 1);
        assert_eq!(one, 0x3f80_0000);
    }

    #[test]
    fn vectors_and_wide_exchange() {
        let ran = run_on(
            Target::Sm90,
            "and.b32 %r1, %io_tid, 1; setp.eq.u32 %p0, %r1, 0; @%p0 red.global.add.v4.f32 [%io_at], {0f3F800000, 0f40000000, 0f00000000, 0f3F800000};
             ld.global.u32 %o0, [%io_at]; ld.global.u32 %o1, [%io_at+4]; mov.b128 %x0, {5, 6}; mov.b128 %x1, {%rd0, %rd0};
             @%p0 atom.global.exch.b128 %x2, [%io_at], %x0; @%p0 mov.b128 {%q0, %q1}, %x2; ld.global.u64 %q2, [%io_at];",
            (&[lanes(&[0x3f80_0000])], &[[1; 32]]),
            (2, 3),
        );
        assert!(ran.report.findings.is_empty(), "{:?}", ran.report.findings);
        assert_eq!(f32::from_bits(ran.words[0][2]), 2.0);
        assert_eq!(f32::from_bits(ran.words[1][2]), 2.0);
        assert_eq!(ran.wide[0][4], 0x4000_0000_4000_0000);
        assert_eq!(ran.wide[2][4], 5);
    }
}
