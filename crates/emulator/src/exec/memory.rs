//! ld, st in every space, width and vector; prefetches and cache hints without effect.

use crate::check::{Access, Bytes, Order, Proxy, Scope, Use};
use crate::decode::{Addr, Decoder, Refusal, types};
use crate::exec::{Op, lanes, side_by_side};
use crate::finding::Kind;
use crate::isa::Type;
use crate::isa::table::{BLACKWELL, Row};
use crate::machine::{Cluster, Fault, Outcome, Reg, WARP, Warp};
use crate::memory::{AccessError, Space, resolve_generic};
use crate::parse::ast::{Instruction, Operand};
use crate::trace::Path;

/// Rows of the family.
pub static ROWS: &[Row] = &[
    // The store is performed at once, one of the times at which it may be.
    Row::new(
        "st async {mmio} release (cluster|gpu|sys) {global} (b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64)",
        "[a], b",
        decode_store,
        "9.7.9.12",
    )
    .on(BLACKWELL, 87),
    Row::new(
        "ld {mmio} {weak|relaxed|acquire|volatile} {cta|cluster|gpu|sys} {global|const|local|param|param::entry|param::func|shared|shared::cta|shared::cluster} {nc} {ca|cg|cs|lu|cv} {L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate} {L2::evict_normal|L2::evict_first|L2::evict_last} {L2::cache_hint} {L2::64B|L2::128B|L2::256B} {v2|v4|v8} (b8|b16|b32|b64|b128|u8|u16|u32|u64|s8|s16|s32|s64|f16|bf16|f16x2|bf16x2|f32|f64)",
        "d, [a]{, policy}",
        decode_load,
        "9.7.9.8",
    ),
    Row::new(
        "ldu {global} {v2|v4} (b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64)",
        "d, [a]",
        decode_load,
        "9.7.9.10",
    ),
    Row::new(
        "st {mmio} {weak|relaxed|release|volatile} {cta|cluster|gpu|sys} {global|local|param|param::func|shared|shared::cta|shared::cluster} {wb|cg|cs|wt} {L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate} {L2::evict_normal|L2::evict_first|L2::evict_last} {L2::cache_hint} {v2|v4|v8} (b8|b16|b32|b64|b128|u8|u16|u32|u64|s8|s16|s32|s64|f16|bf16|f16x2|bf16x2|f32|f64)",
        "[a], b{, policy}",
        decode_store,
        "9.7.9.11",
    ),
    Row::new(
        "prefetch {global|local|const|param} {tensormap} {L1|L2|L2::evict_last|L2::evict_normal}",
        "[a]",
        decode_hint,
        "9.7.9.15",
    ),
    Row::new("prefetchu L1", "[a]", decode_hint, "9.7.9.15"),
    Row::new("applypriority {global} L2::evict_normal", "[a], size", decode_hint, "9.7.9.16"),
    Row::new("discard {global} L2", "[a], size", decode_discard, "9.7.9.17"),
    Row::new(
        "createpolicy (fractional|range) (L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged) {L2::evict_first|L2::evict_unchanged} {global} {b64}",
        "d{, a, b, c}",
        decode_policy,
        "9.7.9.18",
    ),
    Row::new("createpolicy cvt L2 b64", "d, a", decode_policy, "9.7.9.18"),
    Row::new("st bulk {weak} {shared::cta}", "[a], size, zero", decode_store_bulk, "9.7.9.13").on(BLACKWELL, 86),
];

/// The space of an access as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemorySpace {
    /// Resolved for each lane.
    Generic,
    /// Global and constant.
    Global,
    /// The own CTA.
    SharedCta,
    /// Any CTA of the cluster.
    SharedCluster,
    /// Thread-private.
    Local,
    /// Kernel parameters.
    Param,
}

/// A load or store.
#[derive(Debug, Clone)]
pub struct AccessOp {
    /// Space.
    pub space: MemorySpace,
    /// Address.
    pub address: Addr,
    /// Element type in memory.
    pub ty: Type,
    /// One register for each element.
    pub regs: Box<[Reg]>,
    /// Ordering.
    pub order: Order,
    /// Part of a spin loop, as volatile and acquire loads are.
    pub spins: bool,
}

/// A decoded memory instruction.
#[derive(Debug, Clone)]
pub enum MemoryOp {
    /// `ld`
    Load(Box<AccessOp>),
    /// `st`
    Store(Box<AccessOp>),
    /// `discard.L2`: the bytes become undefined.
    Discard {
        /// Address.
        address: Addr,
    },
    /// `st.bulk`: zeros.
    StoreBulk {
        /// Address.
        address: Addr,
        /// Bytes, 64-bit register.
        size: crate::machine::R64,
    },
}

pub(crate) fn space_of(instruction: &Instruction) -> MemorySpace {
    instruction
        .choose(&[
            ("global", MemorySpace::Global),
            ("const", MemorySpace::Global),
            ("local", MemorySpace::Local),
            ("param", MemorySpace::Param),
            ("param::entry", MemorySpace::Param),
            ("param::func", MemorySpace::Local),
            ("shared", MemorySpace::SharedCta),
            ("shared::cta", MemorySpace::SharedCta),
            ("shared::cluster", MemorySpace::SharedCluster),
        ])
        .unwrap_or(MemorySpace::Generic)
}

pub(crate) fn scope_of(instruction: &Instruction) -> Option<Scope> {
    instruction.choose(&[("cta", Scope::Cta), ("cluster", Scope::Cluster), ("gpu", Scope::Gpu), ("sys", Scope::Sys)])
}

fn order_of(instruction: &Instruction) -> Order {
    let scope = scope_of(instruction).unwrap_or(Scope::Sys);
    instruction
        .choose(&[
            ("relaxed", Order::Relaxed(scope)),
            ("acquire", Order::Acquire(scope)),
            ("release", Order::Release(scope)),
            ("volatile", Order::Relaxed(Scope::Sys)),
        ])
        .unwrap_or(Order::Weak)
}

fn access(decoder: &mut Decoder<'_>, instruction: &Instruction, load: bool) -> Result<AccessOp, Refusal> {
    let ty = types(instruction)[0];
    let (value, address) = if load { (0, 1) } else { (1, 0) };
    let address_operand = &instruction.operands[address];
    let mut space = space_of(instruction);
    // `.param` of a call or function is thread-private, that of the entry is the parameter block.
    if space == MemorySpace::Param && !decoder.is_entry_param(address_operand) {
        let named = matches!(address_operand, Operand::Address(a) if a.base.as_deref().is_some_and(|n| decoder.register(n).is_none()));
        if named {
            space = MemorySpace::Local;
        }
    }
    if space == MemorySpace::Param && !load {
        return Refusal::invalid("kernel parameters cannot be written");
    }
    let address = decoder.address(address_operand)?;
    let width = instruction.choose(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1);
    let total = ty.bytes() * width;
    if total > 32 || (total == 32 && !matches!(space, MemorySpace::Global)) {
        return Refusal::invalid(format!("vectors of {total} bytes in this space"));
    }
    if total == 32 && !decoder.target.has_tensor_memory() {
        return Refusal::refuse(format!("{} has no 32-byte vectors", decoder.target));
    }
    let elements = decoder.elements(&instruction.operands[value]);
    if elements.len() != width as usize && !(width == 1 && ty.bytes() >= 4) {
        return Refusal::invalid(format!("expected {width} elements, got {}", elements.len()));
    }
    let regs = if elements.len() == width as usize {
        elements
            .iter()
            .map(|element| {
                let found = match (load, element) {
                    (true, Operand::Sink) => Ok((decoder.fresh(ty), ty)),
                    (true, element) => decoder.dst_any(element, ty),
                    (false, element) => decoder.src_any(element, ty),
                };
                found.map(|(reg, _)| reg)
            })
            .collect::<Result<_, _>>()?
    } else {
        return Refusal::invalid(format!("expected {width} elements, got {}", elements.len()));
    };
    let order = order_of(instruction);
    Ok(AccessOp {
        space,
        address,
        ty,
        regs,
        order,
        spins: load && matches!(order, Order::Relaxed(_) | Order::Acquire(_)),
    })
}

fn decode_load(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    access(decoder, instruction, true).map(|op| Op::Memory(MemoryOp::Load(Box::new(op))))
}

fn decode_store(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    access(decoder, instruction, false).map(|op| Op::Memory(MemoryOp::Store(Box::new(op))))
}

fn decode_hint(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    decoder.address(&instruction.operands[0])?;
    Ok(Op::Control(super::control::ControlOp::Nop))
}

fn decode_discard(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let address = decoder.address(&instruction.operands[0])?;
    Ok(Op::Memory(MemoryOp::Discard { address }))
}

/// Policies have no functional effect; the value only has to be there.
fn decode_policy(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let d = decoder.dst64(&instruction.operands[0])?;
    let a = decoder.constant64(0x1000_0000_0000_0000);
    Ok(Op::Move(super::moves::MoveOp::Copy { d: Reg::R64(d), a: Reg::R64(a) }))
}

fn decode_store_bulk(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    if decoder.immediate(&instruction.operands[2])? != 0 {
        return Refusal::invalid("expected the value 0");
    }
    let address = decoder.address(&instruction.operands[0])?;
    let size = decoder.src64(&instruction.operands[1])?;
    Ok(Op::Memory(MemoryOp::StoreBulk { address, size }))
}

/// A store of a register to local memory at a constant offset.
pub(crate) fn store_local(offset: u32, reg: Reg, ty: Type) -> Op {
    Op::Memory(MemoryOp::Store(Box::new(local(offset, reg, ty))))
}

/// A load from local memory at a constant offset.
pub(crate) fn load_local(offset: u32, reg: Reg, ty: Type) -> Op {
    Op::Memory(MemoryOp::Load(Box::new(local(offset, reg, ty))))
}

fn local(offset: u32, reg: Reg, ty: Type) -> AccessOp {
    AccessOp {
        space: MemorySpace::Local,
        address: Addr { base: None, offset: offset.into() },
        ty,
        regs: Box::new([reg]),
        order: Order::Weak,
        spins: false,
    }
}

/// Addresses of an operand in the 32 lanes.
#[inline]
pub fn addresses(warp: &Warp, address: Addr) -> [u64; WARP] {
    match address.base {
        None => [address.offset as u64; WARP],
        Some(Reg::R64(r)) => warp.regs.w64[r.0 as usize].map(|a| a.wrapping_add_signed(address.offset)),
        // 32-bit addresses wrap at 32 bits.
        Some(base) => warp.regs.wide(base).map(|a| u64::from((a as u32).wrapping_add(address.offset as u32))),
    }
}

/// Reads `out.len()` bytes of a resolved address for a lane, recording uninitialised reads.
pub fn read(
    machine: &mut Cluster,
    warp: &Warp,
    lane: usize,
    space: Space,
    at: u64,
    out: &mut [u8],
) -> Result<(), Fault> {
    for check in [true, false] {
        let result = match space {
            Space::Global => machine.global.read_as(at, out, check && machine.global.check_init),
            Space::Shared => shared_bytes(machine, at as u32, out.len(), check).map(|bytes| out.copy_from_slice(bytes)),
            Space::Local => warp.local.read(lane, at, out, check),
            Space::Param => param_bytes(machine, at, out),
            Space::Tensor => Err(AccessError::OutOfBounds("tensor memory has its own instructions".to_string())),
        };
        match result {
            Ok(()) => return Ok(()),
            Err(error @ AccessError::Uninitialised(_)) if check => {
                let finding = machine.access_fault(error, warp, 1 << lane);
                machine.report(*finding);
            }
            Err(error) => return Err(machine.access_fault(error, warp, 1 << lane)),
        }
    }
    Ok(())
}

fn param_bytes(machine: &Cluster, at: u64, out: &mut [u8]) -> Result<(), AccessError> {
    let start = at as usize;
    match machine.params.get(start..start.saturating_add(out.len())) {
        Some(bytes) => {
            out.copy_from_slice(bytes);
            Ok(())
        }
        None => Err(AccessError::OutOfBounds(format!(
            "{} bytes at offset {at} of {} bytes of parameters",
            out.len(),
            machine.params.len()
        ))),
    }
}

fn shared_bytes(machine: &Cluster, address: u32, len: usize, check: bool) -> Result<&[u8], AccessError> {
    let rank = Cluster::rank_of(address) as usize;
    let Some(cta) = machine.ctas.get(rank) else {
        return Err(AccessError::OutOfBounds(format!(
            "shared address {address:#x}: rank {rank} in a cluster of {}",
            machine.ctas.len()
        )));
    };
    let offset = address & 0x00ff_ffff;
    if check { cta.shared.read(offset, len) } else { cta.shared.peek(offset, len) }
}

/// Writes bytes to a resolved address for a lane.
pub fn write(
    machine: &mut Cluster,
    warp: &mut Warp,
    lane: usize,
    space: Space,
    at: u64,
    data: &[u8],
) -> Result<(), Fault> {
    let result = match space {
        Space::Global => machine.global.write(at, data),
        Space::Shared => {
            let rank = Cluster::rank_of(at as u32) as usize;
            let ranks = machine.ctas.len();
            match machine.ctas.get_mut(rank) {
                Some(cta) => cta.shared.write(at as u32 & 0x00ff_ffff, data),
                None => Err(AccessError::OutOfBounds(format!(
                    "shared address {at:#x}: rank {rank} in a cluster of {ranks}"
                ))),
            }
        }
        Space::Local => warp.local.write(lane, at, data),
        Space::Param => Err(AccessError::OutOfBounds("kernel parameters cannot be written".to_string())),
        Space::Tensor => Err(AccessError::OutOfBounds("tensor memory has its own instructions".to_string())),
    };
    result.map_err(|error| machine.access_fault(error, warp, 1 << lane))
}

/// The space and address of each lane; all lanes of one access must be in one space, or each is done alone.
pub fn resolve(
    machine: &Cluster,
    warp: &Warp,
    mask: u32,
    space: MemorySpace,
    addresses: &mut [u64; WARP],
) -> Result<[Space; WARP], Fault> {
    let mut spaces = [Space::Global; WARP];
    match space {
        MemorySpace::Global => {}
        MemorySpace::Local => spaces = [Space::Local; WARP],
        MemorySpace::Param => spaces = [Space::Param; WARP],
        MemorySpace::SharedCta | MemorySpace::SharedCluster => {
            spaces = [Space::Shared; WARP];
            for lane in lanes(mask) {
                addresses[lane] &= 0xffff_ffff;
                let rank = Cluster::rank_of(addresses[lane] as u32);
                if space == MemorySpace::SharedCta && rank != warp.cta {
                    let message = format!(
                        "shared::cta address {:#x} belongs to rank {rank}, the CTA has rank {}",
                        addresses[lane], warp.cta
                    );
                    return Err(machine.access_fault(AccessError::OutOfBounds(message), warp, 1 << lane));
                }
            }
        }
        MemorySpace::Generic => {
            for lane in lanes(mask) {
                (spaces[lane], addresses[lane]) = resolve_generic(addresses[lane]);
            }
        }
    }
    Ok(spaces)
}

/// Misaligned lanes are a fault.
pub fn check_alignment(
    machine: &Cluster,
    warp: &Warp,
    mask: u32,
    addresses: &[u64; WARP],
    bytes: u32,
) -> Result<(), Fault> {
    let low = u64::from(bytes) - 1;
    if bytes.is_power_of_two() && addresses.iter().fold(0, |all, a| all | a & low) == 0 {
        return Ok(());
    }
    for lane in lanes(mask) {
        if !addresses[lane].is_multiple_of(u64::from(bytes)) {
            let message = format!("address {:#x} is not a multiple of {bytes}", addresses[lane]);
            return Err(machine.access_fault(AccessError::Misaligned(message), warp, 1 << lane));
        }
    }
    Ok(())
}

/// Counts the bytes of an access.
fn count(machine: &mut Cluster, warp: &Warp, mask: u32, space: Space, addresses: &[u64; WARP], bytes: u32, load: bool) {
    let total = u64::from(mask.count_ones() * bytes);
    let path = match space {
        Space::Global if load => Path::GlobalLoad,
        Space::Global => Path::GlobalStore,
        Space::Shared => {
            let first = mask.trailing_zeros() as usize;
            if Cluster::rank_of(addresses[first] as u32) != warp.cta {
                Path::RemoteShared
            } else {
                machine.counters.bank_conflicts += bank_conflicts(mask, addresses, bytes);
                if load { Path::SharedLoad } else { Path::SharedStore }
            }
        }
        Space::Local => Path::Local,
        Space::Param | Space::Tensor => return,
    };
    machine.counters.add_bytes(path, total);
}

/// Shared-memory passes beyond the least: 32 banks of 4 bytes, wide accesses in parts of 128 bytes.
pub fn bank_conflicts(mask: u32, addresses: &[u64; WARP], bytes: u32) -> u64 {
    if mask == u32::MAX {
        // One row, or lanes side by side: no two words of a pass share a bank.
        let first = addresses[0];
        let row = addresses.iter().all(|a| a / 128 == first / 128);
        if row || (0..WARP).all(|lane| addresses[lane] == first + lane as u64 * u64::from(bytes)) {
            return 0;
        }
    }
    let words = (bytes / 4).max(1) as usize;
    let lanes_per_pass = WARP / words.min(4);
    let mut extra = 0;
    for pass in 0..WARP / lanes_per_pass {
        let mut rows = [[u64::MAX; 4]; 32];
        let mut used = [0u8; 32];
        let mut most = 0;
        let first = pass * lanes_per_pass;
        for (lane, address) in addresses.iter().enumerate().skip(first).take(lanes_per_pass) {
            if mask >> lane & 1 == 0 {
                continue;
            }
            for word in 0..words.min(4) {
                let index = address / 4 + word as u64;
                let bank = (index % 32) as usize;
                let row = index / 32;
                let known = rows[bank][..usize::from(used[bank]).min(4)].contains(&row);
                if !known {
                    if usize::from(used[bank]) < 4 {
                        rows[bank][usize::from(used[bank])] = row;
                    }
                    used[bank] += 1;
                    most = most.max(used[bank]);
                }
            }
        }
        extra += u64::from(most.saturating_sub(1));
    }
    extra
}

/// Executes a memory instruction.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &MemoryOp) -> Outcome {
    let result = match op {
        MemoryOp::Load(op) => load(machine, warp, mask, op),
        MemoryOp::Store(op) => store(machine, warp, mask, op),
        MemoryOp::Discard { address } => {
            let at = addresses(warp, *address);
            for lane in lanes(mask) {
                machine.global.forget(at[lane], 128);
            }
            Ok(Outcome::Next)
        }
        MemoryOp::StoreBulk { address, size } => store_bulk(machine, warp, mask, *address, *size),
    };
    result.unwrap_or_else(Outcome::Fault)
}

fn prepare(
    machine: &mut Cluster,
    warp: &Warp,
    mask: u32,
    op: &AccessOp,
    load: bool,
) -> Result<([u64; WARP], [Space; WARP]), Fault> {
    let mut at = addresses(warp, op.address);
    let spaces = resolve(machine, warp, mask, op.space, &mut at)?;
    let bytes = op.ty.bytes() * op.regs.len() as u32;
    check_alignment(machine, warp, mask, &at, bytes)?;
    let space = spaces[mask.trailing_zeros() as usize];
    count(machine, warp, mask, space, &at, bytes, load);
    if space == Space::Shared {
        super::mbarrier::check_access(machine, warp, mask, &at, bytes)?;
    }
    if machine.observer.is_some() && !matches!(space, Space::Param | Space::Local) {
        let usage = match load {
            true => Use::Read,
            false if rewrites(machine, warp, mask, op, (&at, &spaces)) => Use::Rewrite,
            false => Use::Write,
        };
        let access = Access {
            space,
            usage,
            proxy: Proxy::Generic,
            order: op.order,
            bytes: Bytes::Lanes(&at, bytes),
            operation: 0,
        };
        machine.observe(warp, mask, &access);
    }
    Ok((at, spaces))
}

/// Whether a store leaves memory as it is.
fn rewrites(
    machine: &Cluster,
    warp: &Warp,
    mask: u32,
    op: &AccessOp,
    (at, spaces): (&[u64; WARP], &[Space; WARP]),
) -> bool {
    let Some(space) = in_words(mask, op, spaces) else {
        return false;
    };
    let words = op.ty.bytes() as usize * op.regs.len() / 4;
    let mut there = [[0; 8]; WARP];
    let known = gather_words(machine, mask, space, at, words, &mut there) == 0;
    known && {
        let stored = collect_words(warp, op);
        lanes(mask).all(|lane| stored[lane][..words] == there[lane][..words])
    }
}

/// Whether every lane of the access is whole words of one space; then the lanes move together.
fn in_words(mask: u32, op: &AccessOp, spaces: &[Space; WARP]) -> Option<Space> {
    let space = spaces[mask.trailing_zeros() as usize];
    let whole = op.ty.bytes() >= 4 && lanes(mask).all(|lane| spaces[lane] == space);
    (whole && matches!(space, Space::Global | Space::Shared)).then_some(space)
}

fn load(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &AccessOp) -> Result<Outcome, Fault> {
    if op.space == MemorySpace::Param && op.address.base.is_none() {
        return load_param(machine, warp, mask, op);
    }
    let (at, spaces) = prepare(machine, warp, mask, op, true)?;
    let width = op.ty.bytes() as usize;
    let total = width * op.regs.len();
    let done = if op.spins { Outcome::Spin } else { Outcome::Next };
    let mut rest = mask;
    if let Some(space) = in_words(mask, op, &spaces) {
        let mut words = [[0; 8]; WARP];
        rest = gather_words(machine, mask, space, &at, total / 4, &mut words);
        spread_words(warp, mask & !rest, op, &words);
    }
    let signed = op.ty.is_signed();
    let mut data = [0u8; 32];
    for lane in lanes(rest) {
        read(machine, warp, lane, spaces[lane], at[lane], &mut data[..total])?;
        for (element, &reg) in data.chunks_exact(width).zip(op.regs.iter()) {
            let bits = extend(element, signed);
            warp.regs.set_lane_bits(reg, lane, bits);
        }
    }
    Ok(done)
}

/// A kernel parameter at a constant offset: the same for all lanes.
fn load_param(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &AccessOp) -> Result<Outcome, Fault> {
    let width = op.ty.bytes() as usize;
    let mut data = [0u8; 32];
    let total = width * op.regs.len();
    param_bytes(machine, op.address.offset as u64, &mut data[..total])
        .map_err(|error| machine.access_fault(error, warp, mask))?;
    for (element, &reg) in data.chunks_exact(width).zip(op.regs.iter()) {
        let bits = extend(element, op.ty.is_signed());
        match reg {
            Reg::R32(r) => warp.regs.set::<u32>(r, mask, &[bits as u32; WARP]),
            Reg::R64(r) => warp.regs.set::<u64>(r, mask, &[bits as u64; WARP]),
            reg => lanes(mask).for_each(|lane| warp.regs.set_lane_bits(reg, lane, bits)),
        }
    }
    Ok(Outcome::Next)
}

/// Reads words for the lanes that need no special treatment and returns the others.
fn gather_words(
    machine: &Cluster,
    mask: u32,
    space: Space,
    at: &[u64; WARP],
    words: usize,
    out: &mut [[u32; 8]; WARP],
) -> u32 {
    if space == Space::Global {
        return machine.global.gather(mask, at, words, out, machine.global.check_init);
    }
    if side_by_side(mask, at, 4 * words as u32)
        && let Ok(run) = shared_bytes(machine, at[0] as u32, 128 * words, true)
    {
        for (lane, bytes) in out.iter_mut().zip(run.chunks_exact(4 * words)) {
            for (word, bytes) in lane.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(*bytes);
            }
        }
        return 0;
    }
    let mut rest = 0;
    for lane in lanes(mask) {
        match shared_bytes(machine, at[lane] as u32, 4 * words, true) {
            Ok(bytes) => {
                for (word, bytes) in out[lane].iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *word = u32::from_le_bytes(*bytes);
                }
            }
            Err(_) => rest |= 1 << lane,
        }
    }
    rest
}

/// Words into registers. Sign extension only concerns types narrower than a word, or words in 64-bit registers.
fn spread_words(warp: &mut Warp, mask: u32, op: &AccessOp, words: &[[u32; 8]; WARP]) {
    let per = op.ty.bytes() as usize / 4;
    for (i, &reg) in op.regs.iter().enumerate() {
        match (reg, per) {
            (Reg::R32(r), 1) => {
                let values = std::array::from_fn(|lane| words[lane][i]);
                warp.regs.set::<u32>(r, mask, &values);
            }
            (Reg::R64(r), 2) => {
                let values =
                    std::array::from_fn(|lane| u64::from(words[lane][2 * i]) | u64::from(words[lane][2 * i + 1]) << 32);
                warp.regs.set::<u64>(r, mask, &values);
            }
            _ => {
                for lane in lanes(mask) {
                    let part = &words[lane][per * i..per * (i + 1)];
                    let bits = part.iter().rev().fold(0u128, |bits, &word| bits << 32 | u128::from(word));
                    let shift = 128 - 32 * per as u32;
                    let bits = if op.ty.is_signed() { ((bits << shift) as i128 >> shift) as u128 } else { bits };
                    warp.regs.set_lane_bits(reg, lane, bits);
                }
            }
        }
    }
}

/// Little-endian bytes as an integer, sign-extended to wider registers when `signed`.
fn extend(bytes: &[u8], signed: bool) -> u128 {
    let mut wide = [0u8; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    let value = u128::from_le_bytes(wide);
    if signed {
        let shift = 128 - 8 * bytes.len() as u32;
        return ((value << shift) as i128 >> shift) as u128;
    }
    value
}

fn store(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &AccessOp) -> Result<Outcome, Fault> {
    let (at, spaces) = prepare(machine, warp, mask, op, false)?;
    let width = op.ty.bytes() as usize;
    let total = width * op.regs.len();
    let mut rest = mask;
    if let Some(space) = in_words(mask, op, &spaces) {
        let words = collect_words(warp, op);
        rest = scatter_words(machine, mask, space, &at, total / 4, &words);
    }
    let mut data = [0u8; 32];
    for lane in lanes(rest) {
        for (element, &reg) in data.chunks_exact_mut(width).zip(op.regs.iter()) {
            let bits = warp.regs.lane_bits(reg, lane).to_le_bytes();
            element.copy_from_slice(&bits[..width]);
        }
        write(machine, warp, lane, spaces[lane], at[lane], &data[..total])?;
    }
    if machine.observer.is_some() && op.order == Order::Weak && may_overlap(mask, &at, total as u64) {
        check_lanes(machine, warp, mask, op, (&at, &spaces));
    }
    Ok(match op.order {
        Order::Weak => Outcome::Next,
        _ => Outcome::Yield,
    })
}

/// Registers as words, lane by lane.
fn collect_words(warp: &Warp, op: &AccessOp) -> [[u32; 8]; WARP] {
    let mut words = [[0; 8]; WARP];
    let per = op.ty.bytes() as usize / 4;
    for (i, &reg) in op.regs.iter().enumerate() {
        match (reg, per) {
            (Reg::R32(r), 1) => {
                let values = warp.regs.get::<u32>(r);
                (0..WARP).for_each(|lane| words[lane][i] = values[lane]);
            }
            (Reg::R64(r), 2) => {
                let values = warp.regs.get::<u64>(r);
                for lane in 0..WARP {
                    words[lane][2 * i] = values[lane] as u32;
                    words[lane][2 * i + 1] = (values[lane] >> 32) as u32;
                }
            }
            _ => {
                for (lane, words) in words.iter_mut().enumerate() {
                    let bits = warp.regs.lane_bits(reg, lane);
                    for (k, word) in words[per * i..per * (i + 1)].iter_mut().enumerate() {
                        *word = (bits >> (32 * k)) as u32;
                    }
                }
            }
        }
    }
    words
}

/// Writes words for the lanes that need no special treatment and returns the others.
fn scatter_words(
    machine: &mut Cluster,
    mask: u32,
    space: Space,
    at: &[u64; WARP],
    words: usize,
    values: &[[u32; 8]; WARP],
) -> u32 {
    if space == Space::Global {
        return machine.global.scatter(mask, at, words, values);
    }
    if side_by_side(mask, at, 4 * words as u32)
        && let Some(cta) = machine.ctas.get_mut(Cluster::rank_of(at[0] as u32) as usize)
        && let Ok(run) = cta.shared.write_run(at[0] as u32 & 0x00ff_ffff, 128 * words)
    {
        for (lane, bytes) in values.iter().zip(run.chunks_exact_mut(4 * words)) {
            for (word, bytes) in lane.iter().zip(bytes.as_chunks_mut::<4>().0) {
                *bytes = word.to_le_bytes();
            }
        }
        return 0;
    }
    let mut rest = 0;
    for lane in lanes(mask) {
        let mut bytes = [0; 32];
        for (bytes, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(&values[lane]) {
            *bytes = word.to_le_bytes();
        }
        let rank = Cluster::rank_of(at[lane] as u32) as usize;
        let written = machine
            .ctas
            .get_mut(rank)
            .is_some_and(|cta| cta.shared.write(at[lane] as u32 & 0x00ff_ffff, &bytes[..4 * words]).is_ok());
        if !written {
            rest |= 1 << lane;
        }
    }
    rest
}

/// Whether lanes may meet: addresses that ascend never do.
fn may_overlap(mask: u32, at: &[u64; WARP], bytes: u64) -> bool {
    let mut end = 0;
    !lanes(mask).all(|lane| {
        let ascends = at[lane] >= end;
        end = at[lane] + bytes;
        ascends
    })
}

/// Lanes of one store that wrote different values to the same bytes: which one stays is undefined.
fn check_lanes(
    machine: &mut Cluster,
    warp: &Warp,
    mask: u32,
    op: &AccessOp,
    (at, spaces): (&[u64; WARP], &[Space; WARP]),
) {
    let width = op.ty.bytes() as usize;
    for lane in lanes(mask).filter(|&lane| matches!(spaces[lane], Space::Global | Space::Shared)) {
        for (i, &reg) in op.regs.iter().enumerate() {
            let mut now = [0u8; 16];
            let wrote = warp.regs.lane_bits(reg, lane).to_le_bytes();
            let place = at[lane] + (i * width) as u64;
            let intact = read(machine, warp, lane, spaces[lane], place, &mut now[..width]).is_ok()
                && now[..width] == wrote[..width];
            if !intact {
                let message =
                    format!("lane {lane} and a higher lane of this store write different values to {place:#x}");
                let found = machine.finding(Kind::Race, warp, mask, message);
                machine.report(*found);
                return;
            }
        }
    }
}

fn store_bulk(
    machine: &mut Cluster,
    warp: &mut Warp,
    mask: u32,
    address: Addr,
    size: crate::machine::R64,
) -> Result<Outcome, Fault> {
    let mut at = addresses(warp, address);
    let spaces = resolve(machine, warp, mask, MemorySpace::SharedCta, &mut at)?;
    check_alignment(machine, warp, mask, &at, 8)?;
    let sizes = *warp.regs.get::<u64>(size);
    for lane in lanes(mask) {
        let bytes = sizes[lane];
        if !bytes.is_multiple_of(8) || bytes > 1 << 24 {
            let message = format!("size {bytes} is not a multiple of 8 up to 16 MiB");
            return Err(machine.access_fault(AccessError::Misaligned(message), warp, 1 << lane));
        }
        let access = Access {
            space: Space::Shared,
            usage: Use::Write,
            proxy: Proxy::Generic,
            order: Order::Weak,
            bytes: Bytes::Range(at[lane], bytes),
            operation: 0,
        };
        machine.observe(warp, 1 << lane, &access);
        let zeros = vec![0; bytes as usize];
        write(machine, warp, lane, spaces[lane], at[lane], &zeros)?;
    }
    Ok(Outcome::Next)
}
