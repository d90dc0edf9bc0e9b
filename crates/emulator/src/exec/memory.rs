//! ld, st in every space, width and vector.

mod access;
mod count;
mod decode;
mod words;

use crate::check::{Access, Bytes, Order, Proxy, Use};
use crate::decode::Addr;
use crate::exec::lanes;
use crate::finding::Kind;
use crate::isa::Type;
use crate::machine::{Cluster, Fault, Outcome, Reg, WARP, Warp};
use crate::memory::{AccessError, Space};
use crate::trace::Path;
use access::param_bytes;
use count::count;
use words::{collect_words, gather_words, in_words, scatter_words, spread_words};

pub use access::{addresses, check_alignment, read, resolve, write};
pub use count::bank_conflicts;
pub use decode::ROWS;
pub(crate) use decode::{access as decode_access, load_local, scope_of, space_of, store_local};

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
    /// `st.bulk`: zeros.
    StoreBulk {
        /// Address.
        address: Addr,
        /// Bytes, 64-bit register.
        size: crate::machine::R64,
    },
}

/// Executes a memory instruction.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &MemoryOp) -> Outcome {
    let result = match op {
        MemoryOp::Load(op) => load(machine, warp, mask, op),
        MemoryOp::Store(op) => store(machine, warp, mask, op),
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
        machine.counters.add_bytes(Path::SharedStore, bytes);
        let zeros = vec![0; bytes as usize];
        write(machine, warp, lane, spaces[lane], at[lane], &zeros)?;
    }
    Ok(Outcome::Next)
}

#[cfg(test)]
mod tests {
    use crate::finding::Kind;
    use crate::isa::Target;
    use crate::testing::run_on;
    use crate::{Error, Module};

    #[test]
    fn shared_addresses_have_32_bits() {
        let body = |more: &str| {
            format!(
                ".shared .align 8 .b8 s[64]; mov.u64 %rd1, s; add.u64 %rd1, %rd1, {more}; st.shared.u64 [%rd1], %rd1;
                 ld.shared::cta.u64 %q0, [%rd1];"
            )
        };
        let ran = run_on(Target::Sm90, &body("8"), (&[], &[]), (0, 1));
        assert!(ran.report.findings.is_empty() && ran.wide[0] == [0x408; 32], "{:?}", ran.report.findings);
        for more in ["0x100000000", "-2048"] {
            let ran = run_on(Target::Sm90, &body(more), (&[], &[]), (0, 1));
            let found = &ran.report.findings[0];
            assert_eq!((found.kind, found.warning), (Kind::OutOfBounds, false), "{found}");
            assert!(
                found.message.contains("more than 32 bits") && found.ptx.contains("st.shared.u64 [%rd1]"),
                "{found}"
            );
        }
    }

    #[test]
    fn local_memory_has_an_end() {
        let of = |count: u32| {
            let variables: String = (0..count).map(|i| format!(".local .align 1048576 .b8 x{i}[8];\n")).collect();
            let text = format!(".version 8.0\n.target sm_90a\n.address_size 64\n.entry k() {{\n{variables} ret; }}");
            Module::parse(&text).unwrap().unsupported(Target::Sm90)
        };
        assert_eq!(of(16), []);
        let [Error::Parse { line: 21, reason, .. }] = &of(4100)[..] else { panic!("{:?}", of(4100)) };
        assert!(reason.starts_with("expected at most 16 MiB"), "{reason}");
    }

    #[test]
    fn offsets_fit_the_address() {
        let of = |address: &str| {
            let text = format!(
                ".version 8.0\n.target sm_90a\n.address_size 64\n.shared .align 4 .b8 s[64];\n.entry k() {{ .reg .b32 %r<3>; .reg .b64 %rd<3>;\nld.shared.u32 %r1, [{address}]; ret; }}"
            );
            Module::parse(&text).unwrap().unsupported(Target::Sm90)
        };
        for fine in ["%r2 + 4294967292", "%r2 + -4", "s + 8", "%rd1 + 4294967296", "%r2 + 18446744073709551612"] {
            assert_eq!(of(fine), [], "{fine}");
        }
        for wide in ["%r2 + 4294967296", "s + 4294967304", "%r2 + -2147483649"] {
            let [Error::Parse { line: 6, reason, .. }] = &of(wide)[..] else { panic!("{wide}: {:?}", of(wide)) };
            assert!(reason.contains("fits the 32 bits of the address"), "{reason}");
        }
    }
}
