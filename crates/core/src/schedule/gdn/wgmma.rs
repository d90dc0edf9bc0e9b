//! The scans on Hopper's warpgroup products: `kernels/gdn/hopper_*`.
//!
//! Grids, tables and fields are those of the register engine. In front of the fields stand tensor maps, made by
//! [`heads_request`], [`inverse_request`] and [`states_request`]; strides of tensors that a map describes are not read.
//!
//! | program | serves | writes |
//! |---|---|---|
//! | `Stage::Scan` | forward that keeps no states | `o`, `ht` |
//! | `Stage::States` | forward with tape, and the tape again when `o` is null | `v_new`, `h`, `o`, `ht` |
//! | `Stage::PreScan` | maps of segments, of the chunks that are remembered | `segment_state`, `m`, `carries` |
//! | `Stage::Adjoint` | backward | `dv` (dVb), `dh`, `dh0` |
//!
//! Each with all value columns per CTA (two state warpgroups) or half of them (one). Both give the same bits. A helper
//! warpgroup, and one of warps that load, store and make factors, work ahead of the state. The pre-scan has all value
//! columns.

use super::{CHUNK_TOKENS, Engine, Gdn, HEAD_DIM, Stage, adjoint, f32, pointer, prepare, scan, wgmma_tail};
use crate::params::{ParamField, ParamKind, ParamLayout};
use crate::schedule::{Budgets, Fact};
use crate::tensor_map::{MapType, Swizzle, TensorMapRequest};

/// Threads of a warpgroup.
pub(super) const WARPGROUP: u32 = 128;
/// Value columns of a state warpgroup: M of the products.
const WARPGROUP_VALUES: u32 = 64;
/// Bytes of a panel: 64 rows of 64 BF16 elements.
pub(super) const PANEL_BYTES: u32 = 64 * 128;

/// Bytes of what a CTA works on: a segment, an index, a head, value columns, and the walk over its chunks.
const WORK_BYTES: u32 = 48;

/// What differs between the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wgmma {
    /// Chunks whose tiles are in shared memory.
    pub stages: u32,
    /// Chunks that the helper may have prepared ahead of the state.
    pub slots: u32,
    /// Whether states are stored.
    pub snapshots: bool,
    /// Whether there are queries, and what is made of them.
    pub output: bool,
    /// Registers of a thread of a state warpgroup.
    pub state_registers: u32,
    /// Registers of a thread of the helper warpgroup.
    pub helper_registers: u32,
    /// Registers of a thread of the warpgroup that loads, stores and makes factors.
    pub load_registers: u32,
}

impl Wgmma {
    /// The facts of a schedule.
    pub const fn of(schedule: &Gdn) -> Wgmma {
        let snapshots = matches!(schedule.stage, Stage::States | Stage::Adjoint);
        let base = Wgmma {
            stages: 3,
            slots: if snapshots { 2 } else { 3 },
            snapshots,
            output: !matches!(schedule.stage, Stage::PreScan),
            state_registers: 208,
            helper_registers: 64,
            load_registers: 32,
        };
        if schedule.value_columns == HEAD_DIM {
            return base;
        }
        let half = Wgmma { slots: 3, state_registers: 240, helper_registers: 160, load_registers: 40, ..base };
        match schedule.stage {
            Stage::Scan => Wgmma { stages: 4, ..half },
            _ => half,
        }
    }
}

const fn state_warpgroups(schedule: &Gdn) -> u32 {
    schedule.value_columns / WARPGROUP_VALUES
}

/// Rings of operands, of values, of factors and of what the helper makes, and a place of rows for each state warpgroup;
/// full and empty.
const fn barriers(schedule: &Gdn) -> u32 {
    let facts = Wgmma::of(schedule);
    2 * (2 * facts.stages + 2 * facts.slots + state_warpgroups(schedule))
}

/// Bytes of dynamic shared memory: barriers and tables, masked products, tiles, snapshots of the state.
pub(super) const fn shared_bytes(schedule: &Gdn) -> u32 {
    match schedule.stage {
        Stage::Tail => return wgmma_tail::SHARED_BYTES,
        Stage::Prepare => return prepare::group_shared_bytes(schedule),
        _ => {}
    }
    let facts = Wgmma::of(schedule);
    let warpgroups = state_warpgroups(schedule);
    // Four factors per token and the decay of the chunk, padded to 16 bytes; four more factors for the helper.
    let tables = (4 * CHUNK_TOKENS * 4 + 16) + 4 * CHUNK_TOKENS * 4;
    let head = (8 * barriers(schedule)).next_multiple_of(16) + facts.slots * tables + WORK_BYTES;
    let output = facts.output as u32;
    let chunk = (2 + 2 * output + warpgroups + 1) * PANEL_BYTES;
    let snapshots = if facts.snapshots { warpgroups * 2 * PANEL_BYTES } else { 0 };
    head.next_multiple_of(1024) + output * facts.slots * PANEL_BYTES + facts.stages * chunk + snapshots
}

pub(super) fn budgets(schedule: &Gdn) -> Budgets {
    if schedule.stage == Stage::Tail {
        return wgmma_tail::budgets(schedule);
    }
    Budgets {
        threads: schedule.threads,
        dynamic_shared_bytes: shared_bytes(schedule),
        barrier_bytes: match schedule.stage {
            Stage::Prepare => prepare::GROUP_BARRIER_BYTES,
            _ => 8 * barriers(schedule),
        },
        tmem_columns: 0,
    }
}

pub(super) fn facts(schedule: &Gdn) -> Vec<Fact> {
    match schedule.stage {
        Stage::Tail => return wgmma_tail::facts(schedule),
        Stage::Prepare => {
            return vec![
                Fact::int("threads", schedule.threads),
                Fact::int("min_ctas_per_sm", schedule.min_ctas_per_sm),
            ];
        }
        _ => {}
    }
    let facts = Wgmma::of(schedule);
    vec![
        Fact::int("threads", schedule.threads),
        Fact::int("value_columns", schedule.value_columns),
        Fact::int("stages", facts.stages),
        Fact::int("slots", facts.slots),
        Fact::bool("snapshots", facts.snapshots),
        Fact::bool("output", facts.output),
        Fact::int("state_registers", facts.state_registers),
        Fact::int("helper_registers", facts.helper_registers),
        Fact::int("load_registers", facts.load_registers),
        Fact::bool("backward", matches!(schedule.stage, Stage::Adjoint)),
    ]
}

pub(super) fn source(schedule: &Gdn) -> (&'static str, &'static str) {
    match schedule.stage {
        Stage::Adjoint => ("gdn/hopper_adjoint.cu", "gdn_adjoint_wgmma"),
        Stage::Tail => ("gdn/hopper_tail.cu", "gdn_tail_wgmma"),
        Stage::PreScan => ("gdn/hopper_pre_scan.cu", "gdn_pre_scan_wgmma"),
        Stage::Prepare => ("gdn/hopper_prepare.cu", "gdn_prepare_group"),
        _ => ("gdn/hopper_forward.cu", "gdn_forward_wgmma"),
    }
}

pub(super) const fn params(schedule: &Gdn) -> ParamLayout {
    match schedule.stage {
        Stage::Adjoint => ADJOINT_PARAMS,
        Stage::Tail => wgmma_tail::PARAMS,
        Stage::Prepare => prepare::GROUP_PARAMS,
        _ => SCAN_PARAMS,
    }
}

pub(super) const SCAN_MAPS: [&str; 7] = ["q_map", "k_map", "v_map", "a_map", "h_map", "o_map", "v_new_map"];
pub(super) const ADJOINT_MAPS: [&str; 6] = ["q_map", "k_map", "grad_o_map", "a_map", "dh_map", "dv_map"];
const PRE_SCAN_FIELDS: [ParamField; 3] = [pointer("fade"), pointer("carries"), f32("forget")];

/// Fields of the parameter block of the forward scan: tensor maps, then those of [`scan::PARAMS`], then those of the
/// pre-scan.
pub const SCAN_PARAMS: ParamLayout = ParamLayout {
    fields: &with_maps::<{ SCAN_MAPS.len() + scan::PARAMS.fields.len() + PRE_SCAN_FIELDS.len() }>(
        &SCAN_MAPS,
        scan::PARAMS.fields,
        &PRE_SCAN_FIELDS,
    ),
};

/// Fields of the parameter block of the adjoint scan: tensor maps, then those of [`adjoint::PARAMS`].
pub const ADJOINT_PARAMS: ParamLayout = ParamLayout {
    fields: &with_maps::<{ ADJOINT_MAPS.len() + adjoint::PARAMS.fields.len() }>(
        &ADJOINT_MAPS,
        adjoint::PARAMS.fields,
        &[],
    ),
};

/// Tensor maps of these names, then fields, then more.
pub(super) const fn with_maps<const N: usize>(
    maps: &[&'static str],
    fields: &[ParamField],
    more: &[ParamField],
) -> [ParamField; N] {
    let mut all = [ParamField { name: "", kind: ParamKind::TensorMap }; N];
    let mut i = 0;
    while i < N {
        all[i] = if i < maps.len() {
            ParamField { name: maps[i], kind: ParamKind::TensorMap }
        } else if i < maps.len() + fields.len() {
            fields[i - maps.len()]
        } else {
            more[i - maps.len() - fields.len()]
        };
        i += 1;
    }
    all
}

/// Map of a `[tokens, heads, 128]` BF16 tensor with any strides, in elements. Boxes hold 64 tokens of `panels` halves
/// of a head: 2 for q and k, 1 for the tensors of value heads.
pub fn heads_request(
    address: u64,
    tokens: u64,
    heads: u64,
    token_stride: u64,
    head_stride: u64,
    panels: u32,
) -> TensorMapRequest {
    TensorMapRequest::tiled(
        MapType::Bf16,
        address,
        &[64, tokens, 2, heads],
        &[2 * token_stride, 128, 2 * head_stride],
        &[64, CHUNK_TOKENS, panels, 1],
        Swizzle::B128,
    )
}

/// Map of the `[matrices, 64, 64]` BF16 inverses; `matrices`: chunks times value heads.
pub fn inverse_request(address: u64, matrices: u64) -> TensorMapRequest {
    let rows = u64::from(CHUNK_TOKENS);
    let dims = [rows, rows, matrices];
    TensorMapRequest::tiled(MapType::Bf16, address, &dims, &[128, 8192], &[64, CHUNK_TOKENS, 1], Swizzle::B128)
}

/// Map of the `[matrices, 128 V, 128 K]` BF16 states `h` or `dh`; boxes hold a warp's 16 rows.
pub fn states_request(address: u64, matrices: u64) -> TensorMapRequest {
    let dims = [64, u64::from(HEAD_DIM), 2, matrices];
    TensorMapRequest::tiled(MapType::Bf16, address, &dims, &[256, 128, 32768], &[64, 16, 2, 1], Swizzle::B128)
}

impl Gdn {
    /// Forward without tape, a head per CTA: where heads fill the device.
    pub const WGMMA_SCAN: Gdn = Gdn {
        name: "wgmma_scan",
        stage: Stage::Scan,
        engine: Engine::Wgmma,
        threads: 4 * WARPGROUP,
        value_columns: HEAD_DIM,
        min_ctas_per_sm: 1,
    };

    /// Forward without tape, half a head per CTA: where heads do not fill the device.
    pub const WGMMA_SCAN_V64: Gdn = Gdn { name: "wgmma_scan_v64", ..half(Gdn::WGMMA_SCAN) };

    /// Forward with tape.
    pub const WGMMA_STATES: Gdn = Gdn { name: "wgmma_states", stage: Stage::States, ..Gdn::WGMMA_SCAN };

    /// Forward with tape, half a head per CTA.
    pub const WGMMA_STATES_V64: Gdn = Gdn { name: "wgmma_states_v64", ..half(Gdn::WGMMA_STATES) };

    /// Maps of segments, H or M per CTA.
    pub const WGMMA_PRE_SCAN: Gdn = Gdn { name: "wgmma_pre_scan", stage: Stage::PreScan, ..Gdn::WGMMA_SCAN };

    /// Backward.
    pub const WGMMA_ADJOINT: Gdn = Gdn { name: "wgmma_adjoint", stage: Stage::Adjoint, ..Gdn::WGMMA_SCAN };

    /// Backward, half a head per CTA.
    pub const WGMMA_ADJOINT_V64: Gdn = Gdn { name: "wgmma_adjoint_v64", ..half(Gdn::WGMMA_ADJOINT) };
}

const fn half(schedule: Gdn) -> Gdn {
    Gdn { threads: schedule.threads - WARPGROUP, value_columns: WARPGROUP_VALUES, ..schedule }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Gdn; 7] = [
        Gdn::WGMMA_SCAN,
        Gdn::WGMMA_SCAN_V64,
        Gdn::WGMMA_STATES,
        Gdn::WGMMA_STATES_V64,
        Gdn::WGMMA_PRE_SCAN,
        Gdn::WGMMA_ADJOINT,
        Gdn::WGMMA_ADJOINT_V64,
    ];

    #[test]
    fn budgets_fit_an_sm() {
        for schedule in ALL {
            let facts = Wgmma::of(&schedule);
            assert!(shared_bytes(&schedule) <= 227 * 1024, "{}", schedule.name);
            let registers =
                state_warpgroups(&schedule) * facts.state_registers + facts.helper_registers + facts.load_registers;
            assert!(registers * WARPGROUP <= 65_536, "{}", schedule.name);
            // Registers are given back, or taken, from what the launch gave every thread.
            let launch = 65_536 / schedule.threads / 8 * 8;
            assert!(facts.state_registers >= launch, "{}", schedule.name);
            assert!(facts.helper_registers <= launch && facts.load_registers <= launch, "{}", schedule.name);
        }
    }

    #[test]
    fn the_fields_of_the_register_engine_follow_the_maps() {
        let of_scan = SCAN_MAPS.len()..SCAN_MAPS.len() + scan::PARAMS.fields.len();
        assert_eq!(&SCAN_PARAMS.fields[of_scan], scan::PARAMS.fields);
        assert_eq!(&ADJOINT_PARAMS.fields[ADJOINT_MAPS.len()..], adjoint::PARAMS.fields);
        assert_eq!(SCAN_PARAMS.align(), 64);
    }
}
