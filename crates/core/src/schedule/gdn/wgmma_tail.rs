//! Stage `tail` on Hopper's warpgroup products: `kernels/gdn/hopper_tail.cu`.
//!
//! Grid, tables and fields are those of [`tail`]. In front of the fields stand tensor maps, made as those of the scans:
//! by
//! [`heads_request`](super::wgmma::heads_request) and [`states_request`](super::wgmma::states_request).

use super::wgmma::{PANEL_BYTES, WARPGROUP, with_maps};
use super::{CHUNK_TOKENS, Engine, Gdn, HEAD_DIM, Stage, tail};
use crate::params::ParamLayout;
use crate::schedule::{Budgets, Fact};

const MAPS: [&str; 7] = ["q_map", "k_map", "grad_o_map", "v_new_map", "dv_map", "h_map", "dh_map"];

/// Fields of the parameter block: tensor maps, then those of [`tail::PARAMS`].
pub const PARAMS: ParamLayout =
    ParamLayout { fields: &with_maps::<{ MAPS.len() + tail::PARAMS.fields.len() }>(&MAPS, tail::PARAMS.fields, &[]) };

/// Halves of a value head in shared memory.
const STAGES: u32 = 3;
/// Registers of a thread that multiplies.
const CONSUMER_REGISTERS: u32 = 224;
/// Registers of any other thread.
const OTHER_REGISTERS: u32 = 56;

/// Heads whose factors are in shared memory.
const FACTOR_SLOTS: u32 = 2;

/// Full, empty and, of a short chunk, ready of the ring of halves; full and empty of the factors of a head, of the rows
/// of a key head, and of the sums of a head.
const BARRIER_BYTES: u32 = (3 * STAGES + 2 * FACTOR_SLOTS + 2 + 2) * 8;

/// Bytes of dynamic shared memory: halves of a value head, each three panels of tokens and two halves of a state; q and
/// k; R and N'; sets of five factors per token and what they are of; sums; products of rows; barriers.
pub(super) const SHARED_BYTES: u32 = {
    let half = (3 + 2 * 2) * PANEL_BYTES;
    let column = CHUNK_TOKENS * 4;
    let rest = FACTOR_SLOTS * (16 + 5 * column) + tail::SUMS_BYTES + 4 * column + BARRIER_BYTES;
    (STAGES * half + 4 * PANEL_BYTES + 2 * PANEL_BYTES + rest).next_multiple_of(1024)
};

pub(super) fn budgets(schedule: &Gdn) -> Budgets {
    Budgets {
        threads: schedule.threads,
        dynamic_shared_bytes: SHARED_BYTES,
        barrier_bytes: BARRIER_BYTES,
        tmem_columns: 0,
    }
}

pub(super) fn facts(schedule: &Gdn) -> Vec<Fact> {
    vec![
        Fact::int("threads", schedule.threads),
        Fact::int("stages", STAGES),
        Fact::int("consumer_registers", CONSUMER_REGISTERS),
        Fact::int("other_registers", OTHER_REGISTERS),
    ]
}

impl Gdn {
    /// Gradients of a chunk and a key head at a time: two warpgroups that multiply, and one that loads and streams.
    pub const WGMMA_TAIL: Gdn = Gdn {
        name: "wgmma_tail",
        stage: Stage::Tail,
        engine: Engine::Wgmma,
        threads: 3 * WARPGROUP,
        value_columns: HEAD_DIM,
        min_ctas_per_sm: 1,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_fit_an_sm() {
        const { assert!(SHARED_BYTES <= 227 * 1024) };
        const { assert!((2 * CONSUMER_REGISTERS + OTHER_REGISTERS) * WARPGROUP <= 65_536) };
    }

    #[test]
    fn the_fields_of_the_register_engine_follow_the_maps() {
        assert_eq!(&PARAMS.fields[MAPS.len()..], tail::PARAMS.fields);
        assert_eq!(PARAMS.align(), 64);
    }
}
