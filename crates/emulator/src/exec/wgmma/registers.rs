//! Registers of wgmma: what other instructions may do with accumulators and fragments of A, and when (ISA notes, async
//! 6.5).
//!
//! Between an access to an accumulator, or a change of a fragment of A, by another instruction and a `wgmma.mma_async`
//! that uses it a `wgmma.fence` is needed, and a `wgmma.wait_group` between that and the next one. Assemblers serialise
//! what breaks the rule, so it is a warning, and the products are finished at once.

use super::{MmaAsync, Queue, SourceA, WgmmaOp, run_steps};
use crate::decode::{Instr, Named};
use crate::exec::Op;
use crate::finding::Kind;
use crate::machine::{Cluster, R32, Warp};

/// A set of 32-bit registers.
#[derive(Debug, Clone, Default)]
pub(super) struct Set(Vec<u64>);

impl Set {
    fn insert(&mut self, reg: R32) {
        let word = reg.0 as usize / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (reg.0 % 64);
    }

    fn contains(&self, reg: R32) -> bool {
        self.0.get(reg.0 as usize / 64).is_some_and(|word| word >> (reg.0 % 64) & 1 != 0)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Registers of products that another instruction names.
#[derive(Debug, Clone, Default)]
pub struct Touched {
    /// Read or written.
    all: Box<[R32]>,
    /// Written.
    written: Box<[R32]>,
}

impl Touched {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

impl MmaAsync {
    fn a_registers(&self) -> &[R32] {
        if let SourceA::Registers(regs) = &self.a { regs } else { &[] }
    }

    /// Whether an accumulator is used, or a fragment of A changed.
    fn meets(&self, touched: impl Fn(R32) -> bool, written: impl Fn(R32) -> bool) -> bool {
        self.d.iter().any(|&reg| touched(reg)) || self.a_registers().iter().any(|&reg| written(reg))
    }
}

fn mma(op: &Op) -> Option<&MmaAsync> {
    match op {
        Op::Wgmma(op) => match &**op {
            WgmmaOp::Mma(op) => Some(op),
            _ => None,
        },
        _ => None,
    }
}

/// Of the registers that each operation names, those that a wgmma of the program uses; empty without any wgmma.
pub(crate) fn shared_with_products(instrs: &[Instr], named: &[(std::ops::Range<u32>, Named)]) -> Vec<Touched> {
    let mut used = Set::default();
    let products = instrs.iter().filter_map(|instr| mma(&instr.op));
    products.flat_map(|op| op.d.iter().chain(op.a_registers())).for_each(|&reg| used.insert(reg));
    if used.0.is_empty() {
        return Vec::new();
    }
    let mut shared = vec![Touched::default(); instrs.len()];
    let of = |regs: &[R32]| regs.iter().copied().filter(|&reg| used.contains(reg)).collect();
    for (pcs, named) in named {
        for pc in pcs.clone().map(|pc| pc as usize).filter(|&pc| !matches!(instrs[pc].op, Op::Wgmma(_))) {
            shared[pc] = Touched { all: of(&named.all), written: of(&named.written) };
        }
    }
    shared
}

/// Another instruction, which `warp` executes now, names registers of products.
pub(crate) fn touch(machine: &mut Cluster, warp: &mut Warp, active: u32, regs: &Touched) {
    regs.all.iter().for_each(|&reg| warp.wgmma.touched.insert(reg));
    regs.written.iter().for_each(|&reg| warp.wgmma.written.insert(reg));
    let program = machine.program.clone();
    let Queue { open, committed, .. } = &warp.wgmma;
    let not_waited_for = committed.iter().flatten().chain(open);
    let uses = |pc: u32| {
        let op = mma(&program.instrs[pc as usize].op);
        op.is_some_and(|op| op.meets(|reg| regs.all.contains(&reg), |reg| regs.written.contains(&reg)))
    };
    let Some(&(_, pc)) = not_waited_for.into_iter().find(|(_, pc)| uses(*pc)) else { return };
    let line = program.line_of(pc);
    let text = format!("a register of the wgmma at line {line} is used, and no wgmma.wait_group came behind that");
    warn(machine, warp, active, text);
    while !warp.wgmma.steps.is_empty() {
        if let Err(fault) = run_steps(machine, warp) {
            machine.report(*fault);
            return;
        }
    }
}

/// A product is issued.
pub(super) fn check_fence(machine: &mut Cluster, warp: &Warp, mask: u32, op: &MmaAsync) {
    if !warp.wgmma.fenced {
        warn(machine, warp, mask, "no wgmma.fence comes before the first wgmma.mma_async: its registers are not ready");
    } else if op.meets(|reg| warp.wgmma.touched.contains(reg), |reg| warp.wgmma.written.contains(reg)) {
        let text = "no wgmma.fence between another use of an accumulator or of A's registers and this wgmma.mma_async";
        warn(machine, warp, mask, text);
    }
}

fn warn(machine: &mut Cluster, warp: &Warp, lanes: u32, text: impl Into<String>) {
    let mut finding = machine.finding(Kind::Wgmma, warp, lanes, text);
    finding.warning = true;
    machine.report(*finding);
}
