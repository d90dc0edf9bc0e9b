//! Bytes and bank conflicts of an access, for the counters.

use crate::machine::{Cluster, WARP, Warp};
use crate::memory::Space;
use crate::trace::Path;

/// Counts the bytes of an access.
pub(super) fn count(
    machine: &mut Cluster,
    warp: &Warp,
    mask: u32,
    space: Space,
    addresses: &[u64; WARP],
    bytes: u32,
    load: bool,
) {
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
