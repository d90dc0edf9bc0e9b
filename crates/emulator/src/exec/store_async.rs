//! `st.async` and `red.async`: stores and reductions into another CTA's shared memory that a barrier there tells of
//! (ISA notes, section 2.5).

use super::mbarrier::{self, Place};
use super::memory::{self, MemorySpace};
use super::reduction::{Function, Reduction};
use super::transfer::{self, Data};
use super::{Op, lanes};
use crate::check::{Access, Actor, Bytes, Event, Order, Proxy, Scope, Use};
use crate::decode::{Decoder, Refusal, types};
use crate::isa::Type;
use crate::isa::table::Row;
use crate::machine::{Cluster, Fault, Outcome, Reg, Warp};
use crate::memory::Space;
use crate::parse::ast::Instruction;
use crate::trace::Path;

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new(
        "st async {weak} {shared::cluster} mbarrier::complete_tx::bytes {v2|v4} (b32|b64|u32|u64|s32|s64|f32|f64)",
        "[a], b, [bar]",
        decode,
        "9.7.9.12",
    ),
    Row::new(
        "red async {relaxed} {cluster} {shared::cluster} mbarrier::complete_tx::bytes (add|min|max|inc|dec|and|or|xor) (u32|s32|u64|b32)",
        "[a], b, [bar]",
        decode,
        "9.7.13.7",
    ),
];

/// A decoded instruction of the family.
#[derive(Debug, Clone)]
pub struct StoreAsyncOp {
    to: Place,
    barrier: Place,
    ty: Type,
    values: Box<[Reg]>,
    reduction: Option<Reduction>,
}

fn decode(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let o = &instruction.operands;
    let Some(&ty) = types(instruction).last() else {
        return Refusal::invalid("expected an element type");
    };
    let values = decoder.elements(&o[1]).to_vec();
    let wanted = instruction.choose(&[("v2", 2), ("v4", 4)]).unwrap_or(1);
    if values.len() != wanted {
        return Refusal::invalid(format!("expected {wanted} elements, got {}", values.len()));
    }
    let reduction = Function::of(instruction).map(|function| Reduction { function, ty });
    if let Some(reduction) = reduction.filter(|r| !r.is_defined() || ty == Type::U64 && r.function != Function::Add) {
        return Refusal::invalid(format!("{:?} is not defined for .{}", reduction.function, ty.word()));
    }
    let place = |address| Place { space: MemorySpace::SharedCluster, address };
    let op = StoreAsyncOp {
        to: place(decoder.address(&o[0])?),
        barrier: place(decoder.address(&o[2])?),
        ty,
        values: values.iter().map(|value| decoder.src(value, ty)).collect::<Result<_, _>>()?,
        reduction,
    };
    Ok(Op::StoreAsync(Box::new(op)))
}

/// Executes an instruction of the family.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &StoreAsyncOp) -> Outcome {
    issue(machine, warp, mask, op).map_or_else(Outcome::Fault, |()| Outcome::Yield)
}

fn issue(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &StoreAsyncOp) -> Result<(), Fault> {
    let to = mbarrier::shared_addresses(machine, warp, mask, op.to, false)?;
    let barriers = mbarrier::shared_addresses(machine, warp, mask, op.barrier, false)?;
    let width = op.ty.bytes() as usize;
    let bytes = width * op.values.len();
    memory::check_alignment(machine, warp, mask, &to.map(u64::from), bytes as u32)?;
    machine.counters.add_bytes(Path::RemoteShared, u64::from(mask.count_ones()) * bytes as u64);
    for lane in lanes(mask) {
        let actor = Cluster::actor(warp, 1 << lane);
        transfer::check_shared(machine, &actor, to[lane], bytes as u32)?;
        let (dst, bar) = (Cluster::rank_of(to[lane]), Cluster::rank_of(barriers[lane]));
        if dst != bar {
            let message = format!("the mbarrier is in CTA rank {bar}, the destination in rank {dst}");
            return Err(transfer::broken(machine, &actor, message));
        }
        if op.reduction.is_some() && dst == warp.cta {
            let message = format!("red.async must go to another CTA, got the own rank {dst}");
            return Err(transfer::broken(machine, &actor, message));
        }
        mbarrier::check_live(machine, &actor, barriers[lane])?;
        let mut data = Vec::with_capacity(bytes);
        for &value in &op.values {
            data.extend_from_slice(&warp.regs.lane_bits(value, lane).to_le_bytes()[..width]);
        }
        let operation = machine.engine.operation();
        machine.notify(warp, 1 << lane, &Event::Issue { operation });
        let store = Store { actor, operation, to: to[lane], barrier: barriers[lane], data, reduction: op.reduction };
        machine.engine.push(machine.clock, Box::new(move |machine| store.run(machine)));
    }
    Ok(())
}

/// A store in flight.
struct Store {
    actor: Actor,
    operation: u64,
    to: u32,
    barrier: u32,
    data: Vec<u8>,
    reduction: Option<Reduction>,
}

impl Store {
    fn run(self, machine: &mut Cluster) -> Result<(), Fault> {
        transfer::check_landing(machine, &self.actor, Cluster::rank_of(self.to))?;
        let bytes = self.data.len();
        mbarrier::report_touch(machine, &self.actor, self.to, bytes as u32);
        if let Some(observer) = &mut machine.observer {
            let (usage, order) = match self.reduction {
                None => (Use::Write, Order::Weak),
                Some(_) => (Use::Atomic, Order::Relaxed(Scope::Cluster)),
            };
            let range = Bytes::Range(self.to.into(), bytes as u64);
            let (space, proxy, operation) = (Space::Shared, Proxy::Generic, self.operation);
            observer.access(&self.actor, &Access { space, usage, proxy, order, bytes: range, operation });
        }
        let data = match self.reduction {
            None => Data::written(self.data),
            Some(reduction) => {
                let mut old = transfer::read_shared(machine, &self.actor, self.to, bytes)?;
                reduction.fold(&mut old.bytes, &self.data, false);
                old
            }
        };
        transfer::write_shared(machine, &self.actor, self.to, &data)?;
        transfer::finish(machine, &self.actor, None, self.operation);
        mbarrier::complete_tx(machine, &self.actor, self.barrier, bytes as u32, self.operation)
    }
}

#[cfg(test)]
mod tests {
    use crate::exec::async_testing::{Case, words};

    /// Each CTA exits once the bytes for itself came, whatever became of those that it sent.
    fn exchange(setup: &str, instruction: &str, bytes: u32) -> String {
        format!(
            "setp.eq.u32 %p1, %r0, 0; mov.u32 %r2, bars; mov.u32 %r3, tile; @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
             @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {bytes};
             shl.b32 %r10, %r0, 4; add.u32 %r11, %r3, %r10; {setup}
             fence.mbarrier_init.release.cluster; barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
             xor.b32 %r4, %r1, 1; mapa.shared::cluster.u32 %r5, %r11, %r4; mapa.shared::cluster.u32 %r6, %r2, %r4;
             mad.lo.u32 %r12, %r1, 100, %r0; add.u32 %r13, %r12, 1000; {instruction}
             WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r2], 0; @!%p2 bra WAIT;
             ld.shared.v2.u32 {{%r14, %r15}}, [%r11]; shl.b32 %r16, %r0, 3;
             mad.lo.u32 %r16, %r1, 256, %r16; cvt.u64.u32 %rd9, %r16; add.u64 %rd9, %rd1, %rd9; st.global.v2.u32 [%rd9], {{%r14, %r15}};"
        )
    }

    #[test]
    fn stores_reach_the_other_cta() {
        let body = exchange(
            "",
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r5], {%r12, %r13}, [%r6];",
            256,
        );
        let output = Case { ctas: 2, cluster: 2, ..Case::new(&body) }.output();
        for (i, pair) in words(&output[..512]).chunks(2).enumerate() {
            let (rank, thread) = (i as u32 / 32, i as u32 % 32);
            let value = (rank ^ 1) * 100 + thread;
            assert_eq!(pair, [value, value + 1000]);
        }
    }

    #[test]
    fn reductions_add_up() {
        let red = "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r5], %r12, [%r6];";
        let body = exchange("mov.u32 %r20, 5; st.shared.v2.u32 [%r11], {%r20, %r20};", &format!("{red} {red}"), 256);
        let output = Case { ctas: 2, cluster: 2, ..Case::new(&body) }.output();
        for (i, pair) in words(&output[..512]).chunks(2).enumerate() {
            let (rank, thread) = (i as u32 / 32, i as u32 % 32);
            assert_eq!(pair, [5 + 2 * ((rank ^ 1) * 100 + thread), 5]);
        }
    }

    #[test]
    fn broken_rules() {
        let cases = [
            (
                "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r11], %r12, [%r2];",
                "own rank",
            ),
            (
                "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r5], %r12, [%r2];",
                "mbarrier is in CTA rank",
            ),
            ("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%r5 + 4], %rd0, [%r6];", "multiple of 8"),
        ];
        for (instruction, text) in cases {
            let body = exchange("", instruction, 128);
            Case { ctas: 2, cluster: 2, ..Case::new(&body) }.finds(text);
        }
    }
}
