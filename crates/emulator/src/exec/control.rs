//! Branches, calls, exit, trap.

use crate::decode::{Decoder, Formal, Refusal, Symbol};
use crate::exec::moves::MoveOp;
use crate::exec::{Op, lanes};
use crate::finding::Kind;
use crate::isa::Type;
use crate::isa::table::Row;
use crate::machine::{Block, Cluster, Outcome, R32, Reg, Warp};
use crate::parse::ast::{Instruction, Operand};

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new("bra {uni}", "label", decode_bra, "9.7.12.3"),
    Row::new("brx idx {uni}", "index, labels", decode_brx, "9.7.12.4"),
    Row::new("call {uni}", "a{, b, c, d}", decode_call, "9.7.12.5"),
    Row::new("ret {uni}", "", |_, _| Ok(Op::Control(ControlOp::Return)), "9.7.12.6"),
    Row::new("exit", "", |_, _| Ok(Op::Control(ControlOp::Exit)), "9.7.12.7"),
    Row::new("trap", "", |_, _| Ok(Op::Control(ControlOp::Trap)), "9.7.19.4"),
    Row::new("brkpt", "", |_, _| Ok(Op::Control(ControlOp::Nop)), "9.7.19.1"),
    Row::new("pmevent {mask}", "a", |_, _| Ok(Op::Control(ControlOp::Nop)), "9.7.19.3"),
    Row::new("griddepcontrol (wait|launch_dependents)", "", decode_dependency, "9.7.13.13"),
    Row::new("nanosleep u32", "a", |_, _| Ok(Op::Control(ControlOp::Sleep)), "9.7.19.2"),
];

/// A decoded control instruction. Targets are operation indices after decoding.
#[derive(Debug, Clone)]
pub enum ControlOp {
    /// Jump.
    Branch {
        /// Where to.
        target: u32,
    },
    /// Jump through a table.
    Table {
        /// Index register.
        index: R32,
        /// Where to, by index.
        targets: Box<[u32]>,
    },
    /// Call of a function of the module.
    Call {
        /// Its first operation.
        target: u32,
    },
    /// Return from a function; from the entry, exit.
    Return,
    /// Exit.
    Exit,
    /// `trap`
    Trap,
    /// No effect.
    Nop,
    /// `nanosleep`: lets others run.
    Sleep,
    /// `griddepcontrol.wait`
    WaitPrerequisites,
    /// `griddepcontrol.launch_dependents`
    ReleaseDependents,
    /// Copies local bytes between a call's and a function's parameters.
    CopyLocal {
        /// From this offset.
        from: u32,
        /// To this offset.
        to: u32,
        /// Bytes.
        bytes: u32,
    },
    /// `vprintf(format, arguments)`: parameters in local memory.
    Print {
        /// Local offset of the format pointer.
        format: u32,
        /// Local offset of the argument pointer.
        arguments: u32,
    },
    /// `__assertfail`: parameters in local memory.
    AssertFail {
        /// Local offset of the message pointer.
        message: u32,
        /// Local offset of the file pointer.
        file: u32,
        /// Local offset of the line.
        line: u32,
    },
}

impl ControlOp {
    /// Turns label numbers into operation indices.
    pub(crate) fn resolve(&mut self, at: impl Fn(u32) -> u32) {
        match self {
            ControlOp::Branch { target } | ControlOp::Call { target } => *target = at(*target),
            ControlOp::Table { targets, .. } => targets.iter_mut().for_each(|t| *t = at(*t)),
            _ => {}
        }
    }
}

fn decode_dependency(_: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let op = if instruction.has("wait") { ControlOp::WaitPrerequisites } else { ControlOp::ReleaseDependents };
    Ok(Op::Control(op))
}

fn decode_bra(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let label = decoder.label(&instruction.operands[0])?;
    Ok(Op::Control(ControlOp::Branch { target: label.0 }))
}

fn decode_brx(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let index = decoder.src32(&instruction.operands[0])?;
    let Operand::Name(name) = &instruction.operands[1] else {
        return Refusal::invalid("expected the label of .branchtargets");
    };
    let Some(Symbol::Targets(names)) = decoder.lookup(name).cloned() else {
        return Refusal::invalid(format!("{name} is not a .branchtargets label"));
    };
    let targets = names
        .into_iter()
        .map(|name| decoder.label(&Operand::Name(name)).map(|label| label.0))
        .collect::<Result<_, _>>()?;
    Ok(Op::Control(ControlOp::Table { index, targets }))
}

/// `call (results), name, (arguments);` in its shorter forms too.
fn decode_call(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let mut rest = instruction.operands.as_slice();
    let mut results: &[Operand] = &[];
    if let [Operand::List(items), tail @ ..] = rest {
        results = items;
        rest = tail;
    }
    let [Operand::Name(name), tail @ ..] = rest else {
        return Refusal::invalid("expected the name of a function");
    };
    let arguments: &[Operand] = match tail.first() {
        Some(Operand::List(items)) => items,
        _ => &[],
    };
    if decoder.register(name).is_some() {
        return Refusal::missing("calls through a register");
    }
    if let Some(callee) = decoder.callees.get(name).cloned() {
        if callee.params.len() != arguments.len() || callee.returns.len() != results.len() {
            return Refusal::invalid(format!(
                "{name}: expected {} arguments and {} results",
                callee.params.len(),
                callee.returns.len()
            ));
        }
        for (formal, argument) in callee.params.iter().zip(arguments) {
            let op = pass(decoder, *formal, argument, true)?;
            decoder.emit(op);
        }
        for (formal, result) in callee.returns.iter().zip(results) {
            let op = pass(decoder, *formal, result, false)?;
            decoder.emit_after(op);
        }
        return Ok(Op::Control(ControlOp::Call { target: callee.label.0 }));
    }
    let place = |index: usize| match arguments.get(index) {
        Some(Operand::Name(argument)) => match decoder.lookup(argument) {
            Some(Symbol::Local(offset, _)) => Ok(*offset),
            _ => Refusal::invalid(format!("{argument} is not a .param variable")),
        },
        _ => Refusal::invalid(format!("{name}: expected an argument {index}")),
    };
    match name.as_str() {
        "vprintf" => {
            let print = ControlOp::Print { format: place(0)?, arguments: place(1)? };
            let result = match results.first() {
                Some(Operand::Name(result)) => decoder.lookup(result).cloned(),
                _ => None,
            };
            if let Some(Symbol::Local(offset, _)) = result {
                let zero = decoder.constant32(0);
                decoder.emit(super::memory::store_local(offset, Reg::R32(zero), Type::B32));
            }
            Ok(Op::Control(print))
        }
        "__assertfail" => {
            Ok(Op::Control(ControlOp::AssertFail { message: place(0)?, file: place(1)?, line: place(2)? }))
        }
        _ => Refusal::missing(format!("{name} is declared but has no body")),
    }
}

/// One parameter of a call, to the function or back.
fn pass(decoder: &mut Decoder<'_>, formal: Formal, actual: &Operand, forward: bool) -> Result<Op, Refusal> {
    match (formal, actual) {
        (Formal::Local(place, bytes), Operand::Name(name)) => match decoder.lookup(name).cloned() {
            Some(Symbol::Local(offset, size)) if size == bytes => {
                let (from, to) = if forward { (offset, place) } else { (place, offset) };
                Ok(Op::Control(ControlOp::CopyLocal { from, to, bytes }))
            }
            Some(Symbol::Local(_, size)) => Refusal::invalid(format!("{name}: expected {bytes} bytes, got {size}")),
            _ => {
                let (reg, ty) = decoder.src_any(actual, Type::B32)?;
                if forward {
                    Ok(super::memory::store_local(place, reg, ty))
                } else {
                    Ok(super::memory::load_local(place, reg, ty))
                }
            }
        },
        (Formal::Local(place, bytes), literal) if forward => {
            let ty = match bytes {
                1 => Type::B8,
                2 => Type::B16,
                8 => Type::B64,
                _ => Type::B32,
            };
            let reg = decoder.src(literal, ty)?;
            Ok(super::memory::store_local(place, reg, ty))
        }
        (Formal::Register(reg, ty), actual) => {
            if forward {
                let a = decoder.src(actual, ty)?;
                Ok(Op::Move(MoveOp::Copy { d: reg, a }))
            } else {
                let d = decoder.dst(actual, ty)?;
                Ok(Op::Move(MoveOp::Copy { d, a: reg }))
            }
        }
        _ => Refusal::invalid("expected a .param variable or a register as argument"),
    }
}

/// Executes a control instruction.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &ControlOp) -> Outcome {
    match *op {
        ControlOp::Branch { target } => Outcome::Branch(target),
        ControlOp::Table { index, ref targets } => {
            let index = warp.regs.get::<u32>(index);
            let mut places: Vec<(u32, u32)> = Vec::new();
            for lane in lanes(mask) {
                let Some(&target) = targets.get(index[lane] as usize) else {
                    let message = format!("index {} of a table of {}", index[lane], targets.len());
                    return machine.fault(Kind::OutOfBounds, warp, 1 << lane, message);
                };
                match places.iter_mut().find(|place| place.1 == target) {
                    Some(place) => place.0 |= 1 << lane,
                    None => places.push((1 << lane, target)),
                }
            }
            match places.as_slice() {
                &[(_, target)] => Outcome::Branch(target),
                _ => Outcome::Scatter(places),
            }
        }
        ControlOp::Call { target } => Outcome::Call(target),
        ControlOp::Return => Outcome::Return,
        ControlOp::Exit => Outcome::Exit,
        ControlOp::Trap => machine.fault(Kind::Trap, warp, mask, "trap"),
        ControlOp::Nop => Outcome::Next,
        ControlOp::Sleep => Outcome::Spin,
        ControlOp::WaitPrerequisites if machine.grid.prerequisites_done() => Outcome::Yield,
        ControlOp::WaitPrerequisites => Outcome::Retry(Block::Prerequisites),
        ControlOp::ReleaseDependents => {
            machine.grid.release_dependents();
            Outcome::Yield
        }
        ControlOp::CopyLocal { from, to, bytes } => {
            let mut data = vec![0; bytes as usize];
            for lane in lanes(mask) {
                let copied = warp
                    .local
                    .read(lane, from.into(), &mut data, false)
                    .and_then(|()| warp.local.write(lane, to.into(), &data));
                if let Err(error) = copied {
                    return Outcome::Fault(machine.access_fault(error, warp, 1 << lane));
                }
            }
            Outcome::Next
        }
        ControlOp::Print { format, arguments } => super::print::print(machine, warp, mask, format, arguments),
        ControlOp::AssertFail { message, file, line } => {
            super::print::assert_fail(machine, warp, mask, message, file, line)
        }
    }
}
