//! What the decoder makes: a kernel as dense operations.

use std::collections::HashMap;

use super::SpecialRegister;
use crate::exec::Op;
use crate::exec::moves::MoveOp;
use crate::exec::wgmma::registers::Touched;
use crate::machine::{P, R32, R64, R128, RegCounts};

/// `@p` of a decoded instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// Always executed.
    None,
    /// Where the predicate is true.
    If(P),
    /// Where the predicate is false.
    Unless(P),
}

/// A decoded instruction.
#[derive(Debug, Clone)]
pub struct Instr {
    /// Which lanes execute it.
    pub guard: Guard,
    /// What it does.
    pub op: Op,
}

/// Registers from one count to another, and a range of local bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameRange {
    /// First register of each bank.
    pub first: RegCounts,
    /// One past the last.
    pub end: RegCounts,
    /// Local bytes.
    pub local: std::ops::Range<u32>,
}

/// A kernel parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamInfo {
    /// Name in the PTX text.
    pub name: String,
    /// Offset in the parameter block, bytes.
    pub offset: u32,
    /// Bytes.
    pub size: u32,
    /// Alignment, bytes.
    pub align: u32,
}

/// What a kernel demands of its launch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Demands {
    /// `.reqntid`
    pub block_exact: Option<[u32; 3]>,
    /// `.maxntid`
    pub block_most: Option<[u32; 3]>,
    /// `.reqnctapercluster`
    pub cluster_exact: Option<[u32; 3]>,
    /// `.explicitcluster`
    pub cluster_explicit: bool,
    /// `.maxnreg`
    pub registers_most: Option<u32>,
    /// `.minnctapersm`
    pub ctas_per_sm_least: Option<u32>,
}

impl Demands {
    /// Registers of a thread at launch where the kernel fixes them: `.maxnreg`, or the share of a thread when the block
    /// size and the CTAs per SM are given. Only then does setmaxnreg have an effect.
    pub fn registers_at_launch(&self) -> Option<u32> {
        let block = self.block_exact.or(self.block_most)?;
        let threads: u32 = block.iter().product::<u32>().next_multiple_of(128);
        let share = |ctas: u32| (65_536 / (threads.max(1) * ctas.max(1)) / 8 * 8).min(255 / 8 * 8);
        self.registers_most.or_else(|| self.ctas_per_sm_least.map(share))
    }
}

/// One kernel with the functions that it calls, ready to run.
#[derive(Debug, Clone)]
pub struct Program {
    /// Entry name.
    pub name: String,
    /// Operations; the entry starts at 0.
    pub instrs: Vec<Instr>,
    /// Registers of wgmma products that each other operation names; empty without wgmma.
    pub product_registers: Vec<Touched>,
    /// Registers of tensor-memory loads that each operation names; empty without any load.
    pub loaded_registers: Vec<Box<[R32]>>,
    /// Line in the PTX text of each operation.
    pub lines: Vec<u32>,
    /// The PTX text by line, for messages.
    pub text: std::sync::Arc<Vec<String>>,
    /// Registers of a warp, constants included.
    pub registers: RegCounts,
    /// Registers preset with 32-bit constants.
    pub constants32: Vec<(R32, u32)>,
    /// Registers preset with 64-bit constants.
    pub constants64: Vec<(R64, u64)>,
    /// Registers preset with 128-bit constants.
    pub constants128: Vec<(R128, u128)>,
    /// The predicate that is always true, and the one always false.
    pub constant_predicates: [Option<P>; 2],
    /// Static shared memory in bytes, from offset 0x400 on.
    pub shared_static: u32,
    /// Alignment of the dynamic shared array, bytes.
    pub shared_dynamic_align: u32,
    /// What belongs to each function: parameters and results, then the body's own.
    pub frames: Vec<[FrameRange; 2]>,
    /// Local memory of one thread, bytes: `.local` arrays, call parameters, and the stack where `alloca` is used.
    pub local_bytes: u32,
    /// Parameters of the entry.
    pub params: Vec<ParamInfo>,
    /// Bytes of the parameter block.
    pub param_bytes: u32,
    /// Launch demands.
    pub demands: Demands,
    /// Shared variables and their offsets, for messages.
    pub shared_names: HashMap<String, u32>,
}

impl Program {
    /// Whether it asks for the workspace of grid-wide barriers, which a cooperative launch provides.
    pub fn is_cooperative(&self) -> bool {
        self.instrs.iter().any(|instr| {
            matches!(instr.op, Op::Move(MoveOp::Special { special: SpecialRegister::GridWorkspaceLow, .. }))
        })
    }

    /// First offset of the dynamic shared array, which follows static shared memory.
    pub fn dynamic_start(&self) -> u32 {
        (crate::memory::SHARED_START + self.shared_static).next_multiple_of(self.shared_dynamic_align.max(16))
    }

    /// The PTX text of an operation, trimmed.
    pub fn text_of(&self, pc: u32) -> &str {
        let line = self.lines.get(pc as usize).copied().unwrap_or(0);
        self.text.get((line as usize).wrapping_sub(1)).map_or("", |text| text.trim())
    }

    /// The line of an operation.
    pub fn line_of(&self, pc: u32) -> u32 {
        self.lines.get(pc as usize).copied().unwrap_or(0)
    }
}
