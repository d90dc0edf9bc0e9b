//! shfl, vote, match, redux, elect, activemask: values between the lanes of a warp.

use crate::decode::{Decoder, Refusal, types};
use crate::exec::{Op, lanes};
use crate::finding::Kind;
use crate::isa::table::{FAMILY_100, Row};
use crate::isa::{Type, Words};
use crate::machine::{Cluster, Outcome, P, R32, Reg, WARP, Warp};
use crate::numerics::arith::{self, MinMax};
use crate::parse::ast::Instruction;

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new("shfl sync (up|down|bfly|idx) b32", "d, a, b, c, mask", decode_shfl, "9.7.9.6"),
    Row::new("vote sync (all|any|uni) pred", "p, a, mask", decode_vote, "9.7.13.3"),
    Row::new("vote sync ballot b32", "d, a, mask", decode_vote, "9.7.13.3"),
    Row::new("match (any|all) sync (b32|b64)", "d, a, mask", decode_match, "9.7.13.4"),
    Row::new("redux sync (add|min|max) (u32|s32)", "d, a, mask", decode_redux, "9.7.13.6"),
    Row::new("redux sync (and|or|xor) b32", "d, a, mask", decode_redux, "9.7.13.6"),
    Row::new("redux sync (min|max) {abs} {NaN} f32", "d, a, mask", decode_redux, "9.7.13.6")
        .on(FAMILY_100, 86)
        .needs(Words::Family),
    Row::new("elect sync", "d, mask", decode_elect, "9.7.13.7"),
    Row::new("activemask b32", "d", decode_activemask, "9.7.13.5"),
];

/// Where a lane reads from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShuffleMode {
    /// Lane - b.
    Up,
    /// Lane + b.
    Down,
    /// Lane ^ b.
    Bfly,
    /// b within the segment.
    Idx,
}

/// Predicate votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vote {
    /// All true.
    All,
    /// Any true.
    Any,
    /// All equal.
    Uni,
}

/// Reductions over lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// Wrapping sum.
    Add,
    /// Minimum.
    Min(bool),
    /// Maximum; the flag is signed.
    Max(bool),
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// f32 minimum or maximum.
    Float(MinMax),
}

/// A decoded operation between lanes. `members` is the membermask register.
#[derive(Debug, Clone)]
pub enum ShuffleOp {
    /// `shfl.sync`
    Shuffle {
        /// Mode.
        mode: ShuffleMode,
        /// Written.
        d: R32,
        /// In-range predicate.
        p: Option<P>,
        /// Value, lane operand, clamp and segment.
        abc: (R32, R32, R32),
        /// Members.
        members: R32,
    },
    /// `vote.sync` to a predicate.
    Vote {
        /// Which.
        vote: Vote,
        /// Written.
        d: P,
        /// Predicate, whether negated.
        a: (P, bool),
        /// Members.
        members: R32,
    },
    /// `vote.sync.ballot`
    Ballot {
        /// Written.
        d: R32,
        /// Predicate, whether negated.
        a: (P, bool),
        /// Members.
        members: R32,
    },
    /// `match.sync`
    Match {
        /// Written.
        d: R32,
        /// `.all`: predicate written.
        all: Option<P>,
        /// `.all` form.
        is_all: bool,
        /// Value.
        a: Reg,
        /// Members.
        members: R32,
    },
    /// `redux.sync`
    Reduce {
        /// Which.
        op: Reduce,
        /// Written.
        d: R32,
        /// Value.
        a: R32,
        /// Members.
        members: R32,
    },
    /// `elect.sync`
    Elect {
        /// Leader lane.
        d: R32,
        /// True in the leader.
        p: P,
        /// Members.
        members: R32,
    },
    /// `activemask`
    ActiveMask {
        /// Written.
        d: R32,
    },
}

fn decode_shfl(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let [d, a, b, c, members] = &instruction.operands[..] else {
        return Refusal::invalid("expected five operands");
    };
    let (d, p) = decoder.pair(d);
    let abc = (decoder.src32(a)?, decoder.src32(b)?, decoder.src32(c)?);
    let members = decoder.src32(members)?;
    let p = p.map(|p| decoder.dst_pred(p)).transpose()?;
    let d = decoder.dst32(d)?;
    let mode = instruction
        .choose(&[
            ("up", ShuffleMode::Up),
            ("down", ShuffleMode::Down),
            ("bfly", ShuffleMode::Bfly),
            ("idx", ShuffleMode::Idx),
        ])
        .unwrap_or(ShuffleMode::Idx);
    Ok(Op::Shuffle(ShuffleOp::Shuffle { mode, d, p, abc, members }))
}

fn decode_vote(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let a = decoder.pred(&instruction.operands[1])?;
    let members = decoder.src32(&instruction.operands[2])?;
    if instruction.has("ballot") {
        let d = decoder.dst32(&instruction.operands[0])?;
        return Ok(Op::Shuffle(ShuffleOp::Ballot { d, a, members }));
    }
    let d = decoder.dst_pred(&instruction.operands[0])?;
    let vote = instruction.choose(&[("all", Vote::All), ("any", Vote::Any)]).unwrap_or(Vote::Uni);
    Ok(Op::Shuffle(ShuffleOp::Vote { vote, d, a, members }))
}

fn decode_match(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let a = decoder.src(&instruction.operands[1], ty)?;
    let members = decoder.src32(&instruction.operands[2])?;
    let (d, p) = decoder.pair(&instruction.operands[0]);
    let all = p.map(|p| decoder.dst_pred(p)).transpose()?;
    let d = decoder.dst32(d)?;
    Ok(Op::Shuffle(ShuffleOp::Match { d, all, is_all: instruction.has("all"), a, members }))
}

fn decode_redux(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let ty = types(instruction)[0];
    let signed = ty.is_signed();
    let max = instruction.has("max");
    let op = match instruction.choose(&[("add", 0), ("and", 1), ("or", 2), ("xor", 3)]) {
        Some(0) => Reduce::Add,
        Some(1) => Reduce::And,
        Some(2) => Reduce::Or,
        Some(_) => Reduce::Xor,
        None if ty == Type::F32 => {
            Reduce::Float(MinMax { max, nan: instruction.has("NaN"), abs: instruction.has("abs"), ..MinMax::default() })
        }
        None if max => Reduce::Max(signed),
        None => Reduce::Min(signed),
    };
    let a = decoder.src32(&instruction.operands[1])?;
    let members = decoder.src32(&instruction.operands[2])?;
    let d = decoder.dst32(&instruction.operands[0])?;
    Ok(Op::Shuffle(ShuffleOp::Reduce { op, d, a, members }))
}

fn decode_elect(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let (d, Some(p)) = decoder.pair(&instruction.operands[0]) else {
        return Refusal::invalid("expected d|p");
    };
    let members = decoder.src32(&instruction.operands[1])?;
    let p = decoder.dst_pred(p)?;
    let d = decoder.dst32(d)?;
    Ok(Op::Shuffle(ShuffleOp::Elect { d, p, members }))
}

fn decode_activemask(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let d = decoder.dst32(&instruction.operands[0])?;
    Ok(Op::Shuffle(ShuffleOp::ActiveMask { d }))
}

impl ShuffleOp {
    fn members(&self) -> Option<R32> {
        match *self {
            ShuffleOp::Shuffle { members, .. }
            | ShuffleOp::Vote { members, .. }
            | ShuffleOp::Ballot { members, .. }
            | ShuffleOp::Match { members, .. }
            | ShuffleOp::Reduce { members, .. }
            | ShuffleOp::Elect { members, .. } => Some(members),
            ShuffleOp::ActiveMask { .. } => None,
        }
    }
}

/// The membermask that all executing lanes name, or the outcome that ends or delays the instruction.
fn agree(machine: &Cluster, warp: &Warp, mask: u32, members: R32) -> Result<u32, Outcome> {
    let values = warp.regs.get::<u32>(members);
    let members = values[mask.trailing_zeros() as usize];
    for lane in lanes(mask) {
        if values[lane] != members {
            let message = format!("lane {lane} names members {:#010x}, others {members:#010x}", values[lane]);
            return Err(machine.fault(Kind::Divergence, warp, 1 << lane, message));
        }
    }
    if mask & !members != 0 {
        let message = format!("lanes {:#010x} execute but are not members of {members:#010x}", mask & !members);
        return Err(machine.fault(Kind::Divergence, warp, mask & !members, message));
    }
    match machine.require(warp, mask, members) {
        Some(outcome) => Err(outcome),
        None => Ok(members),
    }
}

/// Executes an operation between lanes.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &ShuffleOp) -> Outcome {
    if let Some(members) = op.members()
        && let Err(outcome) = agree(machine, warp, mask, members)
    {
        return outcome;
    }
    let spread = |truth: bool| if truth { u32::MAX } else { 0 };
    let read = |warp: &Warp, (p, negated): (P, bool)| warp.regs.pred[p.0 as usize] ^ spread(negated);
    match *op {
        ShuffleOp::Shuffle { mode, d, p, abc, .. } => return shuffle(machine, warp, mask, mode, (d, p), abc),
        ShuffleOp::Vote { vote, d, a, .. } => {
            let truth = read(warp, a) & mask;
            let result = match vote {
                Vote::All => truth == mask,
                Vote::Any => truth != 0,
                Vote::Uni => truth == 0 || truth == mask,
            };
            warp.regs.set_pred(d, mask, spread(result));
        }
        ShuffleOp::Ballot { d, a, .. } => {
            let truth = read(warp, a) & mask;
            warp.regs.set::<u32>(d, mask, &[truth; WARP]);
        }
        ShuffleOp::Match { d, all, is_all, a, .. } => {
            let values = warp.regs.wide(a);
            if is_all {
                let first = values[mask.trailing_zeros() as usize];
                let same = lanes(mask).all(|lane| values[lane] == first);
                warp.regs.set::<u32>(d, mask, &[if same { mask } else { 0 }; WARP]);
                if let Some(p) = all {
                    warp.regs.set_pred(p, mask, spread(same));
                }
            } else {
                let out = std::array::from_fn(|lane| {
                    lanes(mask).filter(|&other| values[other] == values[lane]).fold(0, |bits, other| bits | 1 << other)
                });
                warp.regs.set::<u32>(d, mask, &out);
            }
        }
        ShuffleOp::Reduce { op, d, a, .. } => {
            let values = warp.regs.get::<u32>(a);
            let result = reduce(op, lanes(mask).map(|lane| values[lane]));
            warp.regs.set::<u32>(d, mask, &[result; WARP]);
        }
        ShuffleOp::Elect { d, p, .. } => {
            // The lowest member leads: PTX promises only that the choice is the same for the same members.
            let leader = mask.trailing_zeros();
            warp.regs.set::<u32>(d, mask, &[leader; WARP]);
            warp.regs.set_pred(p, mask, 1 << leader);
        }
        ShuffleOp::ActiveMask { d } => warp.regs.set::<u32>(d, mask, &[mask; WARP]),
    }
    Outcome::Next
}

fn reduce(op: Reduce, values: impl Iterator<Item = u32>) -> u32 {
    let folded = values.reduce(|x, y| match op {
        Reduce::Add => x.wrapping_add(y),
        Reduce::Min(true) => (x as i32).min(y as i32) as u32,
        Reduce::Min(false) => x.min(y),
        Reduce::Max(true) => (x as i32).max(y as i32) as u32,
        Reduce::Max(false) => x.max(y),
        Reduce::And => x & y,
        Reduce::Or => x | y,
        Reduce::Xor => x ^ y,
        Reduce::Float(how) => arith::min_max(f32::from_bits(x), f32::from_bits(y), how).to_bits(),
    });
    let result = folded.unwrap_or(0);
    match op {
        // One lane alone still goes through the magnitude and the canonical NaN.
        Reduce::Float(how) => arith::min_max(f32::from_bits(result), f32::from_bits(result), how).to_bits(),
        _ => result,
    }
}

/// ISA notes 5.5.
fn shuffle(
    machine: &Cluster,
    warp: &mut Warp,
    mask: u32,
    mode: ShuffleMode,
    (d, p): (R32, Option<P>),
    (a, b, c): (R32, R32, R32),
) -> Outcome {
    let regs = &warp.regs;
    let (values, b, c) = (*regs.get::<u32>(a), *regs.get::<u32>(b), *regs.get::<u32>(c));
    let mut out = [0; WARP];
    let mut in_range = 0;
    let mut unread = 0;
    for (lane, value) in out.iter_mut().enumerate() {
        let at = lane as u32;
        let (by, clamp, segment) = (b[lane] & 31, c[lane] & 31, c[lane] >> 8 & 31);
        let most = (at & segment) | (clamp & !segment);
        let least = at & segment;
        let (from, inside) = match mode {
            ShuffleMode::Up => (at.wrapping_sub(by), at as i32 - by as i32 >= most as i32),
            ShuffleMode::Down => (at + by, at + by <= most),
            ShuffleMode::Bfly => (at ^ by, at ^ by <= most),
            ShuffleMode::Idx => {
                let from = least | (by & !segment);
                (from, from <= most)
            }
        };
        let from = if inside { from & 31 } else { at };
        in_range |= u32::from(inside) << lane;
        if mask >> lane & 1 != 0 && mask >> from & 1 == 0 {
            unread |= 1 << lane;
        }
        *value = values[from as usize];
    }
    if unread != 0 {
        let message = format!("lanes {unread:#010x} read from lanes that do not take part");
        return machine.fault(Kind::Divergence, warp, unread, message);
    }
    warp.regs.set::<u32>(d, mask, &out);
    if let Some(p) = p {
        warp.regs.set_pred(p, mask, in_range);
    }
    Outcome::Next
}

#[cfg(test)]
mod tests {
    use crate::finding::Kind;
    use crate::isa::Target;
    use crate::testing::{run_on, run32};

    const LANE: [u32; 32] = {
        let mut lanes = [0; 32];
        let mut i = 0;
        while i < 32 {
            lanes[i] = 100 + i as u32;
            i += 1;
        }
        lanes
    };

    #[test]
    fn shuffles_follow_clamp_and_segment() {
        let out = run32(
            "shfl.sync.bfly.b32 %o0, %r0, 5, 31, -1; shfl.sync.up.b32 %o1|%p0, %r0, 3, 0, -1; selp.u32 %o2, 1, 0, %p0;
             shfl.sync.down.b32 %o3|%p1, %r0, 2, 0x1807, -1; selp.u32 %o4, 1, 0, %p1; shfl.sync.idx.b32 %o5, %r0, 6, 0x101f, -1;",
            &[LANE],
            6,
        );
        for lane in 0..32u32 {
            let l = lane as usize;
            assert_eq!(out[0][l], 100 + (lane ^ 5));
            assert_eq!(out[1][l], 100 + if lane >= 3 { lane - 3 } else { lane });
            assert_eq!(out[2][l], u32::from(lane >= 3));
            // Segments of eight lanes.
            let inside = lane % 8 + 2 < 8;
            assert_eq!(out[3][l], 100 + if inside { lane + 2 } else { lane });
            assert_eq!(out[4][l], u32::from(inside));
            assert_eq!(out[5][l], 100 + (lane & 16) + 6);
        }
    }

    #[test]
    fn votes_matches_and_reductions() {
        let out = run32(
            "setp.gt.u32 %p0, %io_tid, 19; vote.sync.ballot.b32 %o0, %p0, -1; vote.sync.all.pred %p1, %p0, -1; vote.sync.any.pred %p2, %p0, -1;
             selp.u32 %o1, 1, 0, %p1; selp.u32 %o2, 1, 0, %p2; and.b32 %r1, %io_tid, 3; match.any.sync.b32 %o3, %r1, -1;
             match.all.sync.b32 %o4|%p3, %r1, -1; redux.sync.add.u32 %o5, %r0, -1; redux.sync.max.s32 %o6, %r0, -1; elect.sync %o7|%p4, -1;
             selp.u32 %o8, 1, 0, %p4; activemask.b32 %o9; redux.sync.xor.b32 %o10, %io_tid, -1;",
            &[LANE],
            11,
        );
        for (lane, row) in (0..32).map(|lane| (lane, std::array::from_fn::<u32, 11, _>(|i| out[i][lane]))) {
            assert_eq!(row[0], 0xfff0_0000);
            assert_eq!([row[1], row[2]], [0, 1]);
            assert_eq!(row[3], 0x1111_1111 << (lane % 4));
            assert_eq!(row[4], 0);
            assert_eq!(row[5], LANE.iter().sum::<u32>());
            assert_eq!(row[6], 131);
            assert_eq!(row[7], 0);
            assert_eq!(row[8], u32::from(lane == 0));
            assert_eq!(row[9], u32::MAX);
            assert_eq!(row[10], 0);
        }
    }

    #[test]
    fn divergent_lanes_wait_for_each_other() {
        // The two halves reach the shuffle by different paths.
        let out = run32(
            "setp.lt.u32 %p0, %io_tid, 16; @%p0 bra LOW; add.u32 %r0, %r0, 1000; bra JOIN; LOW: add.u32 %r0, %r0, 2000; JOIN:
             shfl.sync.bfly.b32 %o0, %r0, 16, 31, -1;",
            &[LANE],
            1,
        );
        for lane in 0..32u32 {
            let other = lane ^ 16;
            assert_eq!(out[0][lane as usize], 100 + other + if other < 16 { 2000 } else { 1000 });
        }
    }

    #[test]
    fn a_member_that_never_comes_is_found() {
        let body = "setp.lt.u32 %p0, %io_tid, 16; @%p0 shfl.sync.bfly.b32 %o0, %r0, 1, 31, -1;";
        let ran = run_on(Target::Sm100, body, (&[LANE], &[]), (0, 0));
        assert_eq!(ran.report.findings[0].kind, Kind::Divergence);
        let body =
            "setp.lt.u32 %p0, %io_tid, 16; @%p0 bra OVER; shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1; OVER: bar.sync 0;";
        let ran = run_on(Target::Sm100, body, (&[LANE], &[]), (0, 0));
        assert_eq!(ran.report.findings[0].kind, Kind::Divergence, "{:?}", ran.report.findings);
    }
}
