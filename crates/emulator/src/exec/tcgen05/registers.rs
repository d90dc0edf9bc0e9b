//! Registers of tcgen05.ld: they hold what was loaded behind a `tcgen05.wait::ld` only (ISA notes, tcgen05 2.6).
//!
//! The emulator delivers the values at once, and devices keep the order of a register's uses too; nothing promises it,
//! so that a use before the wait is a warning.

use std::collections::HashSet;

use super::Tcgen05Op;
use super::access::AccessOp;
use crate::decode::{Instr, Named, Program};
use crate::exec::Op;
use crate::finding::Kind;
use crate::machine::{Cluster, R32, Warp};

/// The load that an operation is.
fn load(op: &Op) -> Option<&AccessOp> {
    match op {
        Op::Tcgen05(op) => match &**op {
            Tcgen05Op::Access(access) => Some(access).filter(|access| access.load),
            _ => None,
        },
        _ => None,
    }
}

impl AccessOp {
    /// Registers that a load writes.
    fn loaded(&self) -> impl Iterator<Item = R32> {
        self.regs.iter().copied().chain(self.reduction.map(|(_, reg)| reg))
    }
}

/// Of the registers that each operation names, those that a load of the program writes; empty without any load.
pub(crate) fn shared_with_loads(instrs: &[Instr], named: &[(std::ops::Range<u32>, Named)]) -> Vec<Box<[R32]>> {
    let loaded: HashSet<R32> = instrs.iter().filter_map(|instr| load(&instr.op)).flat_map(AccessOp::loaded).collect();
    if loaded.is_empty() {
        return Vec::new();
    }
    let mut shared = vec![Box::default(); instrs.len()];
    for (pcs, named) in named {
        for pc in pcs.clone() {
            shared[pc as usize] = named.all.iter().copied().filter(|reg| loaded.contains(reg)).collect();
        }
    }
    shared
}

/// `warp` executes an instruction that names `regs` while loads wait for their `wait::ld`.
pub(crate) fn touch(machine: &mut Cluster, program: &Program, warp: &mut Warp, active: u32, regs: &[R32]) {
    let uses =
        |pc: u32| load(&program.instrs[pc as usize].op).is_some_and(|op| op.loaded().any(|reg| regs.contains(&reg)));
    let Some(met) = warp.loading.iter().position(|&pc| uses(pc)) else {
        return;
    };
    let line = program.line_of(warp.loading.swap_remove(met));
    let message =
        format!("a register of the tcgen05.ld at line {line} is used, and no tcgen05.wait::ld came behind that");
    let mut finding = machine.finding(Kind::TensorMemory, warp, active, message);
    finding.warning = true;
    machine.report(*finding);
}
