//! The scans on tensor memory: `kernels/gdn/tcgen05_*`.
//!
//! Grids, tables and fields are those of the register engine, behind the tensor maps of [`wgmma`](super::wgmma); what
//! each program serves is as there. A CTA has a whole head: the state is 128 lanes by 128 columns of tensor memory.

use super::wgmma::{ADJOINT_MAPS, SCAN_MAPS, with_maps};
use super::{CHUNK_TOKENS, Engine, Gdn, HEAD_DIM, Stage, adjoint, scan};
use crate::params::ParamLayout;
use crate::schedule::{Budgets, Fact};

/// State warps, row warps, and one each to multiply, to load, to store rows and to store states.
const WARPS: u32 = 8 + 4 + 4;
/// Columns of tensor memory: all.
const COLUMNS: u32 = 512;
/// Chunks whose factors are there.
const SLOTS: u32 = 2;
/// Bytes in front of what is swizzled: barriers and factors.
const HEAD_BYTES: u32 = 4096;

/// Chunks whose tiles are in shared memory.
const STAGES: u32 = 3;

const fn snapshots(schedule: &Gdn) -> bool {
    !matches!(schedule.stage, Stage::Scan)
}

/// Rings of tiles, of rows that leave, of factors and of states; then eight of the chain, three beside it.
const fn barriers() -> u32 {
    2 * (STAGES + STAGES + SLOTS + 1) + 8 + 3
}

/// Bytes of dynamic shared memory: barriers and factors, P, tiles of q, k, values and A, the rounded state.
pub(super) const fn shared_bytes(schedule: &Gdn) -> u32 {
    let square = CHUNK_TOKENS * CHUNK_TOKENS * 2;
    let chunk = 3 * CHUNK_TOKENS * HEAD_DIM * 2 + square;
    let state = if snapshots(schedule) { HEAD_DIM * HEAD_DIM * 2 } else { 0 };
    HEAD_BYTES + square + STAGES * chunk + state
}

pub(super) fn budgets(schedule: &Gdn) -> Budgets {
    Budgets {
        threads: schedule.threads,
        dynamic_shared_bytes: shared_bytes(schedule),
        barrier_bytes: 8 * barriers(),
        tmem_columns: COLUMNS,
    }
}

pub(super) fn facts(schedule: &Gdn) -> Vec<Fact> {
    vec![
        Fact::int("threads", schedule.threads),
        Fact::int("stages", STAGES),
        Fact::bool("snapshots", snapshots(schedule)),
        Fact::bool("backward", matches!(schedule.stage, Stage::Adjoint)),
    ]
}

pub(super) fn source(schedule: &Gdn) -> (&'static str, &'static str) {
    match schedule.stage {
        Stage::Adjoint => ("gdn/tcgen05_adjoint.cu", "gdn_adjoint_tcgen05"),
        _ => ("gdn/tcgen05_forward.cu", "gdn_forward_tcgen05"),
    }
}

pub(super) const fn params(schedule: &Gdn) -> ParamLayout {
    match schedule.stage {
        Stage::Adjoint => ADJOINT_PARAMS,
        _ => SCAN_PARAMS,
    }
}

/// Fields of the parameter block of the forward scan: tensor maps, then those of [`scan::PARAMS`].
pub const SCAN_PARAMS: ParamLayout = ParamLayout {
    fields: &with_maps::<{ SCAN_MAPS.len() + scan::PARAMS.fields.len() }>(&SCAN_MAPS, scan::PARAMS.fields, &[]),
};

/// Fields of the parameter block of the adjoint scan: tensor maps, then those of [`adjoint::PARAMS`].
pub const ADJOINT_PARAMS: ParamLayout = ParamLayout {
    fields: &with_maps::<{ ADJOINT_MAPS.len() + adjoint::PARAMS.fields.len() }>(
        &ADJOINT_MAPS,
        adjoint::PARAMS.fields,
        &[],
    ),
};

impl Gdn {
    /// Forward without tape.
    pub const TCGEN05_SCAN: Gdn = Gdn {
        name: "tcgen05_scan",
        stage: Stage::Scan,
        engine: Engine::Tcgen05,
        threads: 32 * WARPS,
        value_columns: HEAD_DIM,
        min_ctas_per_sm: 1,
    };

    /// Forward with tape, and the tape again.
    pub const TCGEN05_STATES: Gdn = Gdn { name: "tcgen05_states", stage: Stage::States, ..Gdn::TCGEN05_SCAN };

    /// Backward.
    pub const TCGEN05_ADJOINT: Gdn = Gdn { name: "tcgen05_adjoint", stage: Stage::Adjoint, ..Gdn::TCGEN05_SCAN };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_fit_an_sm() {
        for schedule in [Gdn::TCGEN05_SCAN, Gdn::TCGEN05_STATES, Gdn::TCGEN05_ADJOINT] {
            assert!(shared_bytes(&schedule) <= 227 * 1024, "{}", schedule.name);
        }
        assert_eq!(shared_bytes(&Gdn::TCGEN05_SCAN), 184_320);
        assert_eq!(shared_bytes(&Gdn::TCGEN05_STATES), 217_088);
    }
}
