//! Addresses of the lanes, and the bytes there.

use super::MemorySpace;
use crate::decode::Addr;
use crate::exec::lanes;
use crate::machine::{Cluster, Fault, Reg, WARP, Warp};
use crate::memory::{AccessError, Space, resolve_generic};

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

pub(super) fn param_bytes(machine: &Cluster, at: u64, out: &mut [u8]) -> Result<(), AccessError> {
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

pub(super) fn shared_bytes(machine: &Cluster, address: u32, len: usize, check: bool) -> Result<&[u8], AccessError> {
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
                if addresses[lane] >> 32 != 0 {
                    let message = format!("shared address {:#x} has more than 32 bits", addresses[lane]);
                    return Err(machine.access_fault(AccessError::OutOfBounds(message), warp, 1 << lane));
                }
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
