//! mma: decoding, operands and checks at issue (ISA notes, tcgen05 4 to 7 and 8.6).

use super::product::{MmaJob, Scales, SourceA};
use super::queue::{Footprint, Work, push, single_lane};
use super::{Tcgen05Op, check_columns, check_lane, group_of, memory, ranks};
use crate::decode::{Addr, Decoder, Refusal};
use crate::exec::Op;
use crate::exec::memory as shared;
use crate::exec::operand_tile::Container;
use crate::finding::Kind as Fail;
use crate::isa::Target;
use crate::layout::instruction_descriptor::{self, Block, Context, Instruction as Descriptor, Kind};
use crate::layout::operand::{Major, Operand as SharedOperand};
use crate::layout::tensor_memory::{Layout, SCALE_GROUP_COLUMNS_A, scale_group_columns_b};
use crate::machine::{Cluster, Fault, Outcome, P, R32, R64, Warp};
use crate::parse::ast::{Instruction, Operand};

/// Where A comes from.
#[derive(Debug, Clone, Copy)]
enum OperandA {
    Shared(R64),
    Tensor(Addr),
}

/// Hint about the buffer that keeps A.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hint {
    Fill,
    Use,
    LastUse,
    Discard,
}

/// What the buffer of A holds: the operand as issued, kind and M.
#[derive(Debug, Clone, Default)]
pub(super) struct Collector {
    filled: Option<(u64, Kind, u32)>,
}

/// A decoded mma.
#[derive(Debug, Clone)]
pub struct MmaOp {
    context: Context,
    d: Addr,
    a: OperandA,
    b: R64,
    descriptor: R32,
    scales: Option<(Addr, Addr)>,
    /// Whether D is added, and whether the predicate is negated.
    enable: (P, bool),
    /// Words of disabled lanes; empty without.
    disabled: Vec<R32>,
    /// D is multiplied by 2^-this.
    scale_d: u32,
    /// Zero-column mask of `.ws`.
    zero_mask: Option<R64>,
    hint: Hint,
    /// Name in the counters.
    name: &'static str,
}

fn kind_of(instruction: &Instruction) -> Kind {
    instruction
        .choose(&[
            ("kind::tf32", Kind::Tf32),
            ("kind::f8f6f4", Kind::F8f6f4),
            ("kind::i8", Kind::I8),
            ("kind::mxf8f6f4", Kind::Mxf8f6f4),
            ("kind::mxf4", Kind::Mxf4),
            ("kind::mxf4nvf4", Kind::Mxf4nvf4),
        ])
        .unwrap_or(Kind::F16)
}

/// Scale block of the text, defaults filled in.
fn block_of(instruction: &Instruction, kind: Kind) -> Result<Block, Refusal> {
    let written = instruction
        .modifiers
        .iter()
        .find(|m| m.starts_with("block1") || m.starts_with("block3") || m.starts_with("scale_vec"));
    match (kind, written.map(String::as_str)) {
        (Kind::Mxf8f6f4, None | Some("block32" | "scale_vec::1X")) => Ok(Block::B32),
        (Kind::Mxf4, None | Some("block32" | "scale_vec::2X")) => Ok(Block::B32),
        (Kind::Mxf4nvf4, Some("block32" | "scale_vec::2X")) => Ok(Block::B32),
        (Kind::Mxf4nvf4, Some("block16" | "scale_vec::4X")) => Ok(Block::B16),
        (Kind::Mxf4nvf4, None) => Refusal::invalid(".kind::mxf4nvf4 requires a scale vector size"),
        (_, Some(word)) => Refusal::invalid(format!(".kind::{} does not go with .{word}", kind.name())),
        (_, None) => Ok(Block::None),
    }
}

pub(super) fn decode_mma(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let kind = kind_of(instruction);
    let o = &instruction.operands;
    let a = match &o[1] {
        a @ Operand::Address(_) => OperandA::Tensor(decoder.address(a)?),
        a => OperandA::Shared(decoder.src64(a)?),
    };
    let context = Context {
        kind,
        group: group_of(instruction),
        weight_stationary: instruction.has("ws"),
        a_in_tensor_memory: matches!(a, OperandA::Tensor(_)),
        block: block_of(instruction, kind)?,
        // Second-hand for sm_107, so sm_103 alone.
        has_k96: decoder.target == Target::Sm103,
    };
    let hint = instruction.modifiers.iter().find_map(|m| {
        Some(match m.strip_prefix("collector::a::")? {
            "fill" => Hint::Fill,
            "use" => Hint::Use,
            "lastuse" => Hint::LastUse,
            _ => Hint::Discard,
        })
    });
    let mut op = MmaOp {
        context,
        d: decoder.address(&o[0])?,
        a,
        b: decoder.src64(&o[2])?,
        descriptor: decoder.src32(&o[3])?,
        scales: None,
        enable: (P(0), false),
        disabled: Vec::new(),
        scale_d: 0,
        zero_mask: None,
        hint: hint.unwrap_or(Hint::Discard),
        name: counter_name(kind),
    };
    let mut rest = o[4..].iter().peekable();
    if kind.is_block_scaled() {
        let (Some(a), Some(b)) = (rest.next(), rest.next()) else {
            return Refusal::invalid("expected scale addresses");
        };
        op.scales = Some((decoder.address(a)?, decoder.address(b)?));
    }
    if let Some(lanes @ Operand::Vector(_)) = rest.peek() {
        let words = decoder.elements(lanes);
        let wanted = 4 * context.group as usize;
        if words.len() != wanted || context.weight_stationary {
            return Refusal::invalid(format!("expected {wanted} words of disabled lanes, got {}", words.len()));
        }
        op.disabled = words.iter().map(|w| decoder.src32(w)).collect::<Result<_, _>>()?;
        rest.next();
    }
    let Some(enable) = rest.next() else {
        return Refusal::invalid("expected the predicate that enables the D input");
    };
    op.enable = decoder.pred(enable)?;
    if let Some(last) = rest.next() {
        if context.weight_stationary {
            op.zero_mask = Some(decoder.src64(last)?);
        } else {
            op.scale_d = scale_of(decoder, last, kind)?;
        }
    }
    match rest.next() {
        None => Ok(Op::Tcgen05(Box::new(Tcgen05Op::Mma(op)))),
        Some(_) => Refusal::invalid("too many operands"),
    }
}

/// scale-input-d.
fn scale_of(decoder: &Decoder<'_>, operand: &Operand, kind: Kind) -> Result<u32, Refusal> {
    if decoder.target == Target::Sm110 {
        return Refusal::refuse("sm_110 does not have scale-input-d");
    }
    if !matches!(kind, Kind::F16 | Kind::Tf32) {
        return Refusal::refuse(format!("scale-input-d of kind::{} is not established", kind.name()));
    }
    match decoder.immediate(operand)? {
        s @ 0..=15 => Ok(s as u32),
        s => Refusal::invalid(format!("expected a scale of 0 to 15, got {s}")),
    }
}

const fn counter_name(kind: Kind) -> &'static str {
    match kind {
        Kind::F16 => "tcgen05.f16",
        Kind::Tf32 => "tcgen05.tf32",
        Kind::F8f6f4 => "tcgen05.f8f6f4",
        Kind::I8 => "tcgen05.i8",
        Kind::Mxf8f6f4 => "tcgen05.mxf8f6f4",
        Kind::Mxf4 => "tcgen05.mxf4",
        Kind::Mxf4nvf4 => "tcgen05.mxf4nvf4",
    }
}

/// Reads the operands of the one issuing lane, checks them and queues the product.
pub(super) fn issue(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &MmaOp) -> Result<Outcome, Fault> {
    let lane = single_lane(machine, warp, mask)?;
    let ranks = ranks(machine, warp, mask, op.context.group)?;
    let prepared = prepare(machine, warp, lane, op, ranks);
    let (job, footprints) = prepared.map_err(|text| machine.finding(Fail::TensorMemory, warp, mask, text))?;
    let source = match op.a {
        OperandA::Shared(reg) => warp.regs.get::<u64>(reg)[lane],
        OperandA::Tensor(address) => 1 << 63 | shared::addresses(warp, address)[lane],
    };
    check_collector(machine, warp, mask, op, (source, op.context.kind, job.descriptor.m));
    let Descriptor { m, n, k, .. } = job.descriptor;
    machine.counters.add_matrix(op.name, u64::from(m) * u64::from(n * k));
    Ok(push(machine, warp, mask, Work::Mma(Box::new(job)), footprints))
}

fn check_collector(machine: &mut Cluster, warp: &Warp, mask: u32, op: &MmaOp, operand: (u64, Kind, u32)) {
    let collector = &mut memory(machine, warp.cta).state.collector;
    let wrong = matches!(op.hint, Hint::Use | Hint::LastUse) && collector.filled != Some(operand);
    collector.filled = match op.hint {
        Hint::Fill => Some(operand),
        Hint::Use => collector.filled,
        Hint::LastUse | Hint::Discard => None,
    };
    if wrong {
        let message = "collector::a use without a fill of the same A, kind and M before it";
        let finding = machine.finding(Fail::TensorMemory, warp, mask, message);
        machine.report(*finding);
    }
}

/// Checks everything that needs no data.
fn prepare(
    machine: &mut Cluster,
    warp: &Warp,
    lane: usize,
    op: &MmaOp,
    ranks: Vec<u32>,
) -> Result<(MmaJob, Vec<Footprint>), String> {
    let context = op.context;
    let word = |reg: R32| warp.regs.get::<u32>(reg)[lane];
    let long = |reg: R64| warp.regs.get::<u64>(reg)[lane];
    let at = |address: Addr| shared::addresses(warp, address)[lane] as u32;
    let descriptor = instruction_descriptor::decode(word(op.descriptor), context).map_err(|error| error.to_string())?;
    if op.zero_mask.is_some_and(|mask| long(mask) != 0) {
        return Err("a zero-column mask other than 0 is not modelled".to_string());
    }
    let Descriptor { m, n, k, .. } = descriptor;
    let layout = Layout::of(context.group, m, context.weight_stationary)
        .ok_or_else(|| format!("no layout of D for M = {m} with cta_group::{}", context.group))?;
    if context.kind.is_block_scaled() && context.group == 2 && m == 128 {
        return Err("block scales with M = 128 over a pair are not modelled".to_string());
    }
    let halves: &[u32] = if layout.allows_lane_16() { &[0, 16] } else { &[0] };
    let d = check_lane(at(op.d), halves).map_err(|text| format!("D: {text}"))?;
    let dense_fp4 = context.kind.is_packed_fp4();
    let container = |element| Container { element, dense_fp4 };
    let (a_type, b_type) = (container(descriptor.a), container(descriptor.b));
    let k_bytes = if k == 96 { 48 } else { 32 };
    let major = |transposed| if transposed { Major::Mn } else { Major::K };
    let shared_operand = |bits: u64, transposed: bool, container: Container| -> Result<SharedOperand, String> {
        let operand = SharedOperand::from_tcgen05(bits, context.has_k96).map_err(|error| error.to_string())?;
        operand.check(major(transposed), container.container_bits(), k_bytes).map_err(|error| error.to_string())?;
        Ok(operand)
    };
    let mut footprints = Vec::new();
    let mut touch = |machine: &mut Cluster, what: &str, column: u32, columns: u32, write: bool| {
        for &rank in &ranks {
            check_columns(machine, rank, column, columns).map_err(|text| format!("{what}: {text}"))?;
            footprints.push(Footprint { rank, column, columns, write });
        }
        Ok::<(), String>(())
    };
    touch(machine, "D", d.1, layout.columns(n), true)?;
    let a = match op.a {
        OperandA::Shared(reg) => SourceA::Shared(
            shared_operand(long(reg), descriptor.transpose_a, a_type).map_err(|text| format!("A: {text}"))?,
        ),
        OperandA::Tensor(address) => {
            if layout.a_banks() > 1 && context.weight_stationary {
                return Err("A in tensor memory with .ws and M below 128 is not established".to_string());
            }
            let (lane, column) = check_lane(at(address), &[d.0]).map_err(|text| format!("A: {text}"))?;
            touch(machine, "A", column, 8, false)?;
            SourceA::Tensor { lane, column }
        }
    };
    let b = shared_operand(long(op.b), descriptor.transpose_b, b_type).map_err(|text| format!("B: {text}"))?;
    let scales = match op.scales {
        None => None,
        Some((a, b)) => {
            let (_, a) = check_lane(at(a), &[0]).map_err(|text| format!("scales of A: {text}"))?;
            let (_, b) = check_lane(at(b), &[0]).map_err(|text| format!("scales of B: {text}"))?;
            let per_row = k / context.block.elements();
            // Scales of one instruction start at a byte of the first group and may run into the next one.
            let groups = |id: u32| (id + per_row).div_ceil(4) - 1;
            let a_columns = groups(descriptor.scale_a_id) * SCALE_GROUP_COLUMNS_A + 4;
            let b_columns = groups(descriptor.scale_b_id) * scale_group_columns_b(n) + n.div_ceil(32);
            touch(machine, "scales of A", a, a_columns, false)?;
            touch(machine, "scales of B", b, b_columns, false)?;
            Some(Scales { a, b, block: context.block.elements() })
        }
    };
    let mut disabled = [0; 8];
    for (slot, reg) in disabled.iter_mut().zip(&op.disabled) {
        *slot = word(*reg);
    }
    let truth = warp.regs.pred[op.enable.0.0 as usize] >> lane & 1 != 0;
    let job = MmaJob {
        kind: context.kind,
        descriptor,
        layout,
        ranks,
        d,
        a,
        a_type,
        b,
        b_type,
        scales,
        add: truth != op.enable.1,
        scale_d: op.scale_d,
        disabled,
    };
    Ok((job, footprints))
}
