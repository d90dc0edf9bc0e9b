//! Cluster launch control: taking over clusters that are not launched yet (ISA notes, section 4.4).

use super::mbarrier::{self, Place};
use super::memory::{self, MemorySpace};
use super::transfer::{self, Data};
use super::{Op, lanes};
use crate::check::{Actor, Event, Use};
use crate::decode::{Decoder, Refusal};
use crate::finding::Kind;
use crate::isa::Words;
use crate::isa::table::{BLACKWELL, Row};
use crate::machine::{Cluster, Fault, Outcome, P, R32, R128, Warp};
use crate::memory::Space;
use crate::parse::ast::Instruction;

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new(
        "clusterlaunchcontrol try_cancel async {shared::cta} mbarrier::complete_tx::bytes b128",
        "[response], [bar]",
        decode_cancel,
        "9.7.13.14.1",
    )
    .on(BLACKWELL, 86),
    Row::new(
        "clusterlaunchcontrol try_cancel async {shared::cta} mbarrier::complete_tx::bytes multicast::cluster::all b128",
        "[response], [bar]",
        decode_cancel,
        "9.7.13.14.1",
    )
    .on(BLACKWELL, 86)
    .needs(Words::Family),
    Row::new("clusterlaunchcontrol query_cancel is_canceled pred b128", "d, response", decode_canceled, "9.7.13.14.2")
        .on(BLACKWELL, 86),
    Row::new(
        "clusterlaunchcontrol query_cancel (get_first_ctaid|get_first_ctaid::x|get_first_ctaid::y|get_first_ctaid::z) {v4} b32 b128",
        "d, response",
        decode_first,
        "9.7.13.14.2",
    )
    .on(BLACKWELL, 86),
];

/// Bytes of a response.
const RESPONSE: u32 = 16;
/// The bit of a response that tells success.
const CANCELED: u128 = 1 << 64;
/// One request in this many is denied although clusters are left, as hardware may.
const DENIALS: u64 = 8;

/// A decoded instruction of the family.
#[derive(Debug, Clone)]
pub enum LaunchControlOp {
    /// `try_cancel`
    Cancel {
        /// Where the response goes.
        response: Place,
        /// Barrier that counts its bytes.
        barrier: Place,
        /// Every CTA of the cluster gets the response.
        all: bool,
    },
    /// `query_cancel.is_canceled`
    IsCanceled {
        /// Result.
        d: P,
        /// Response.
        response: R128,
    },
    /// `query_cancel.get_first_ctaid`
    First {
        /// Registers of x, y and z, where wanted.
        d: [Option<R32>; 3],
        /// Response.
        response: R128,
    },
}

fn decode_cancel(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let space = if instruction.has("shared::cta") { MemorySpace::SharedCta } else { MemorySpace::Generic };
    let mut place = |i: usize| decoder.address(&instruction.operands[i]).map(|address| Place { space, address });
    let (response, barrier) = (place(0)?, place(1)?);
    let all = instruction.has("multicast::cluster::all");
    Ok(Op::LaunchControl(LaunchControlOp::Cancel { response, barrier, all }))
}

fn decode_canceled(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let d = decoder.dst_pred(&instruction.operands[0])?;
    let response = decoder.src128(&instruction.operands[1])?;
    Ok(Op::LaunchControl(LaunchControlOp::IsCanceled { d, response }))
}

fn decode_first(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let one = instruction.choose(&[("get_first_ctaid::x", 0), ("get_first_ctaid::y", 1), ("get_first_ctaid::z", 2)]);
    let mut d = [None; 3];
    match one {
        Some(axis) => d[axis] = Some(decoder.dst32(&instruction.operands[0])?),
        None => {
            let elements = decoder.elements(&instruction.operands[0]).to_vec();
            if elements.len() != 4 || !instruction.has("v4") {
                return Refusal::invalid("expected .v4 and four registers");
            }
            for (d, element) in d.iter_mut().zip(&elements) {
                *d = Some(decoder.dst32(element)?);
            }
        }
    }
    let response = decoder.src128(&instruction.operands[1])?;
    Ok(Op::LaunchControl(LaunchControlOp::First { d, response }))
}

/// Executes an instruction of the family.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &LaunchControlOp) -> Outcome {
    match *op {
        LaunchControlOp::Cancel { response, barrier, all } => {
            cancel(machine, warp, mask, response, barrier, all).map_or_else(Outcome::Fault, |()| Outcome::Yield)
        }
        LaunchControlOp::IsCanceled { d, response } => {
            let responses = *warp.regs.get::<u128>(response);
            let canceled = lanes(mask).filter(|&l| responses[l] & CANCELED != 0).fold(0, |set, lane| set | 1 << lane);
            if canceled != mask {
                machine.engine.note_refusal();
            }
            warp.regs.set_pred(d, mask, canceled);
            Outcome::Next
        }
        LaunchControlOp::First { d, response } => {
            let responses = *warp.regs.get::<u128>(response);
            let failed = lanes(mask).filter(|&l| responses[l] & CANCELED == 0).fold(0, |set, lane| set | 1 << lane);
            if failed != 0 {
                // Kernels read the coordinates first and then ask whether there are any.
                let message = "the response holds no cluster: the request failed";
                let mut finding = machine.finding(Kind::LaunchControl, warp, failed, message);
                finding.warning = true;
                machine.report(*finding);
            }
            for (d, shift, bits) in [(d[0], 0, 0xffff_ffff), (d[1], 32, 0xffff), (d[2], 48, 0xffff)] {
                if let Some(d) = d {
                    warp.regs.set::<u32>(d, mask, &responses.map(|word| (word >> shift) as u32 & bits));
                }
            }
            Outcome::Next
        }
    }
}

fn cancel(
    machine: &mut Cluster,
    warp: &Warp,
    mask: u32,
    response: Place,
    barrier: Place,
    all: bool,
) -> Result<(), Fault> {
    let to = mbarrier::shared_addresses(machine, warp, mask, response, true)?;
    let barriers = mbarrier::shared_addresses(machine, warp, mask, barrier, true)?;
    memory::check_alignment(machine, warp, mask, &to.map(u64::from), RESPONSE)?;
    for lane in lanes(mask) {
        let actor = Cluster::actor(warp, 1 << lane);
        if machine.engine.was_refused() {
            let message = "a request follows one that was seen to fail";
            return Err(machine.finding(Kind::LaunchControl, warp, 1 << lane, message));
        }
        let operation = machine.engine.operation();
        machine.notify(warp, 1 << lane, &Event::Issue { operation });
        let targets =
            if all { (0..machine.ctas.len() as u32).map(|rank| rank << 24).collect() } else { vec![warp.cta << 24] };
        let request = Request { actor, operation, to: to[lane], barrier: barriers[lane], targets };
        machine.engine.push(machine.clock, Box::new(move |machine| request.run(machine)));
    }
    Ok(())
}

/// A request in flight.
struct Request {
    actor: Actor,
    operation: u64,
    to: u32,
    barrier: u32,
    targets: Vec<u32>,
}

impl Request {
    fn run(self, machine: &mut Cluster) -> Result<(), Fault> {
        let denied = machine.engine.one_in(DENIALS);
        let taken = if denied { None } else { machine.grid.take_cluster() };
        let word = taken.map_or(0, |linear| {
            let shape = &machine.grid.shape;
            let index = shape.cluster_index(linear);
            let [x, y, z]: [u128; 3] = std::array::from_fn(|i| u128::from(index[i] * shape.cluster[i]));
            CANCELED | z << 48 | y << 32 | x
        });
        let data = Data::written(word.to_le_bytes().to_vec());
        for rank in &self.targets {
            let to = rank | self.to & 0x00ff_ffff;
            transfer::check_landing(machine, &self.actor, Cluster::rank_of(to))?;
            let at = (Space::Shared, Use::Write);
            transfer::observe(machine, &self.actor, self.operation, at, to.into(), RESPONSE.into());
            transfer::write_shared(machine, &self.actor, to, &data)?;
        }
        transfer::finish(machine, &self.actor, None, self.operation);
        for rank in &self.targets {
            let barrier = rank | self.barrier & 0x00ff_ffff;
            mbarrier::complete_tx(machine, &self.actor, barrier, RESPONSE, self.operation)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::async_engine::CompletionPolicy;
    use crate::exec::async_testing::{Case, words};

    /// Each cluster adds 1 to the output word of its own first CTA, then to those of the clusters it takes over.
    const BODY: &str = "
        setp.ne.u32 %p1, %r0, 0; @%p1 exit; mov.u32 %r2, bars; mov.u32 %r3, tile; mbarrier.init.shared::cta.b64 [%r2], 1;
        fence.proxy.async.shared::cta; mov.u32 %r4, %ctaid.x; mov.u32 %r5, 0;
      WORK: mul.wide.u32 %rd2, %r4, 4; add.u64 %rd2, %rd1, %rd2; red.global.add.u32 [%rd2], 1;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 16;
        clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r3], [%r2];
      WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], %r5; @!%p2 bra WAIT; xor.b32 %r5, %r5, 1;
        ld.shared.b128 %x0, [%r3]; fence.proxy.async.shared::cta;
        clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p3, %x0;
        @%p3 clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r4, %x0; @%p3 bra WORK;";

    #[test]
    fn every_cluster_is_done_once() {
        let case = Case { ctas: 300, threads: 32, sm_count: Some(1), ..Case::new(BODY) };
        let output = words(&case.output()[..1200]);
        assert!(output.iter().all(|&word| word == 0xcdcd_cdce), "{output:x?}");
        let (report, _) = case.run(CompletionPolicy::Random, 3);
        assert!(report.counters.ctas < 300, "some clusters are taken over");
    }

    #[test]
    fn broken_rules() {
        let again = BODY.replace("@%p3 bra WORK;", "@%p3 bra WORK; bra WORK;");
        Case { sm_count: Some(1), ..Case::new(&again) }.finds("a request follows one that was seen to fail");
        let blind = BODY.replace("@%p3 clusterlaunchcontrol.query_cancel.get", "clusterlaunchcontrol.query_cancel.get");
        Case { sm_count: Some(1), ..Case::new(&blind) }.finds("the response holds no cluster");
    }
}
