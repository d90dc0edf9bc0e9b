//! Grouped-query decode attention on sm107.

use bakewell_core::route::{Bound, Route};
use bakewell_core::schedule::gqa_decode::{Choice, GqaDecode, Splits, facts};

/// Up to 128 keys per CTA, no ring.
pub const SHORT: GqaDecode = GqaDecode::SHORT;

/// Ring of 128-key tiles, four deep: 128 KiB of shared memory per CTA.
pub const LONG: GqaDecode = GqaDecode::LONG;

/// Every compiled schedule: both kernels for the seed's shape.
pub const SCHEDULES: &[GqaDecode] = &[SHORT, LONG];

/// Which serves which shapes; first match wins.
pub const ROUTES: &[Route<Choice>] = &[
    Route {
        when: &[Bound::up_to(facts::CAPACITY, 64), Bound::up_to(facts::REQUESTED_SPLITS, 1)],
        then: Choice { schedule: SHORT.name, cluster: 1, splits: Splits::Fixed(1) },
    },
    Route {
        when: &[],
        then: Choice {
            schedule: LONG.name,
            cluster: 1,
            splits: Splits::Fill { ctas_per_sm: 1, min_keys: 64, max: 16 },
        },
    },
];
