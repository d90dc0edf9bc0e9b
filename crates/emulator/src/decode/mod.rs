//! Syntax tree to dense operations: registers numbered, labels resolved, constants in registers, modifiers as enums.
//!
//! Family files decode their own instructions with the helpers of [`Decoder`]; execution never looks at text.

mod function;
mod module;
mod operands;
mod program;

pub(crate) use function::types;
pub use function::{decode_kernel, survey_kernel};
pub use module::{Globals, functions_of, initial_bytes, size_of};
pub use operands::{Addr, SpecialRegister};
pub use program::{Demands, FrameRange, Guard, Instr, ParamInfo, Program};

use std::collections::HashMap;

use crate::exec::Op;
use crate::isa::table::expect_word;
use crate::isa::{Target, TargetWord, Type, Words};
use crate::machine::{P, R32, R64, R128, Reg, RegCounts};
use crate::parse::ast::Instruction;

/// Decodes one instruction form.
pub type DecodeFn = fn(&mut Decoder<'_>, &Instruction) -> Result<Op, Refusal>;

/// Why an instruction cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Not valid PTX.
    Invalid(String),
    /// No row or no handler.
    Missing(String),
    /// Uncertain, or not on this target.
    Refused(String),
}

impl Refusal {
    /// Not valid PTX, as a result.
    pub fn invalid<T>(reason: impl Into<String>) -> Result<T, Refusal> {
        Err(Refusal::Invalid(reason.into()))
    }

    /// Not implemented, as a result.
    pub fn missing<T>(reason: impl Into<String>) -> Result<T, Refusal> {
        Err(Refusal::Missing(reason.into()))
    }

    /// Refused, as a result.
    pub fn refuse<T>(reason: impl Into<String>) -> Result<T, Refusal> {
        Err(Refusal::Refused(reason.into()))
    }
}

/// A position in the program that is known once everything is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label(pub(crate) u32);

/// What a name means.
#[derive(Debug, Clone)]
pub(crate) enum Symbol {
    /// A register.
    Register(Reg, Type),
    /// Registers `prefix0` to `prefix(count - 1)`.
    Registers { first: u32, count: u32, ty: Type },
    /// Shared memory: offset in the CTA.
    Shared(u32),
    /// The dynamic shared array.
    SharedDynamic,
    /// Global or constant memory: address.
    Global(u64),
    /// Entry parameter: offset in the block.
    Param(u32),
    /// Local memory of the thread, `.param` of functions and calls included: offset and bytes.
    Local(u32, u32),
    /// A label of code.
    Code(Label),
    /// Jump table.
    Targets(Vec<String>),
}

/// A function that the program calls.
#[derive(Debug, Clone)]
pub(crate) struct Callee {
    pub(crate) label: Label,
    /// Where its parameters and results live.
    pub(crate) params: Vec<Formal>,
    pub(crate) returns: Vec<Formal>,
    /// Its address, when the program takes it.
    pub(crate) address: Option<u64>,
    /// Frames of the functions that it may call, itself included when it recurses.
    pub(crate) comes_back_to: Vec<u32>,
}

/// A formal parameter of a function.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Formal {
    /// `.param`: offset and bytes in local memory.
    Local(u32, u32),
    /// `.reg`
    Register(Reg, Type),
}

/// 32-bit registers of an instruction.
#[derive(Debug, Clone, Default)]
pub(crate) struct Named {
    /// Read or written.
    pub(crate) all: Vec<R32>,
    /// Written.
    pub(crate) written: Vec<R32>,
}

/// State of decoding one kernel.
pub struct Decoder<'a> {
    /// Target architecture.
    pub target: Target,
    /// `.target` of the module.
    pub word: TargetWord,
    /// `.version` times ten, 86.
    pub ptx: u16,
    pub(crate) scopes: Vec<HashMap<String, Symbol>>,
    pub(crate) globals: &'a Globals,
    pub(crate) callees: HashMap<String, Callee>,
    pub(crate) instrs: Vec<Instr>,
    pub(crate) lines: Vec<u32>,
    pub(crate) labels: Vec<Option<u32>>,
    pub(crate) counts: RegCounts,
    pub(crate) constants32: HashMap<u32, R32>,
    pub(crate) constants64: HashMap<u64, R64>,
    pub(crate) constants128: HashMap<u128, R128>,
    pub(crate) constant_predicates: [Option<P>; 2],
    pub(crate) local_bytes: u32,
    pub(crate) shared_names: HashMap<String, u32>,
    /// 32-bit registers that the instruction being decoded names.
    pub(crate) named: std::cell::RefCell<Named>,
    /// Those of each instruction, by its operations.
    pub(crate) named_by: Vec<(std::ops::Range<u32>, Named)>,
    pub(crate) guard: Guard,
    pub(crate) line: u32,
    pub(crate) after: Vec<Op>,
    pub(crate) carry: Option<P>,
    /// Frame of the function being decoded; `None` in the entry.
    pub(crate) frame: Option<u32>,
    /// Bytes of stack in use when the function began, where it uses `alloca`.
    pub(crate) stack_at_entry: Option<R64>,
}

impl Decoder<'_> {
    /// Emits an operation before the one being decoded, under the same guard.
    pub fn emit(&mut self, op: Op) {
        self.instrs.push(Instr { guard: self.guard, op });
        self.lines.push(self.line);
    }

    /// Refuses what not all targets have, and neither do plain words of those before.
    pub(crate) fn expect_targets(&self, targets: u8, what: &str) -> Result<(), Refusal> {
        expect_word(self.word, self.target, (targets, Words::Plain), || what.to_string())
    }

    /// Takes back the operations emitted since there were `count`.
    pub(crate) fn forget_from(&mut self, count: usize) {
        self.instrs.truncate(count);
        self.lines.truncate(count);
    }

    /// Emits an operation behind the one being decoded, under the same guard.
    pub fn emit_after(&mut self, op: Op) {
        self.after.push(op);
    }

    /// A new register of the bank of `ty`.
    pub fn fresh(&mut self, ty: Type) -> Reg {
        match ty.bank() {
            crate::isa::Bank::Pred => Reg::P(self.fresh_pred()),
            crate::isa::Bank::W32 => Reg::R32(self.fresh32()),
            crate::isa::Bank::W64 => Reg::R64(self.fresh64()),
            crate::isa::Bank::W128 => Reg::R128(self.fresh128()),
        }
    }

    /// A new predicate.
    pub fn fresh_pred(&mut self) -> P {
        self.counts.pred += 1;
        P(self.counts.pred - 1)
    }

    /// A new 32-bit register.
    pub fn fresh32(&mut self) -> R32 {
        self.counts.w32 += 1;
        R32(self.counts.w32 - 1)
    }

    /// A new 64-bit register.
    pub fn fresh64(&mut self) -> R64 {
        self.counts.w64 += 1;
        R64(self.counts.w64 - 1)
    }

    /// A new 128-bit register.
    pub fn fresh128(&mut self) -> R128 {
        self.counts.w128 += 1;
        R128(self.counts.w128 - 1)
    }

    /// The register that always holds `value`.
    pub fn constant32(&mut self, value: u32) -> R32 {
        if let Some(&reg) = self.constants32.get(&value) {
            return reg;
        }
        let reg = self.fresh32();
        self.constants32.insert(value, reg);
        reg
    }

    /// The register that always holds `value`.
    pub fn constant64(&mut self, value: u64) -> R64 {
        if let Some(&reg) = self.constants64.get(&value) {
            return reg;
        }
        let reg = self.fresh64();
        self.constants64.insert(value, reg);
        reg
    }

    /// The register that always holds `value`.
    pub fn constant128(&mut self, value: u128) -> R128 {
        if let Some(&reg) = self.constants128.get(&value) {
            return reg;
        }
        let reg = self.fresh128();
        self.constants128.insert(value, reg);
        reg
    }

    /// The predicate that is always `value`.
    pub fn constant_pred(&mut self, value: bool) -> P {
        let slot = usize::from(value);
        if let Some(p) = self.constant_predicates[slot] {
            return p;
        }
        let p = self.fresh_pred();
        self.constant_predicates[slot] = Some(p);
        p
    }

    pub(crate) fn new_label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() as u32 - 1)
    }

    pub(crate) fn place(&mut self, label: Label) {
        self.labels[label.0 as usize] = Some(self.instrs.len() as u32);
    }

    /// Local memory for the thread: offset of `bytes` bytes; `None` when all of it would be more than 16 MiB.
    pub(crate) fn local(&mut self, bytes: u64, align: u32) -> Option<u32> {
        let offset = self.local_bytes.next_multiple_of(align.max(1));
        let end = u64::from(offset).saturating_add(bytes);
        self.local_bytes = u32::try_from(end).ok().filter(|&end| end <= 1 << 24)?;
        Some(offset)
    }

    pub(crate) fn lookup(&self, name: &str) -> Option<&Symbol> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name))
    }
}
