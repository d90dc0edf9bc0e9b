//! Grouped-query decode attention on sm110.

use bakewell_core::route::{Bound, Route};
use bakewell_core::schedule::gqa_decode::{Choice, GqaDecode, Splits, every_shape, facts, row};

/// One 64-key tile per CTA.
pub const SHORT: GqaDecode = GqaDecode::SHORT;

/// Ring of four 128-key tiles: 128 KiB, far more than the latency of LPDDR5X times its rate over 20 SMs.
pub const LONG_K128: GqaDecode = GqaDecode { stages: 4, ..GqaDecode::LONG_K128 };

/// Every compiled schedule: both for every shape.
pub const SCHEDULES: &[GqaDecode] = &every_shape::<2, 24>([SHORT, LONG_K128]);

/// Which serves which shapes; first match wins. Not measured on this architecture: with 20 SMs a cluster of two CTAs
/// per row fills the device for up to ten rows, and from there on a CTA per row does.
pub const ROUTES: &[Route<Choice>] = &[
    row(&[Bound::from(facts::REQUESTED_SPLITS, 1)], LONG_K128.name, 1, Splits::Fixed(1)),
    row(&[Bound::up_to(facts::CAPACITY, 64)], SHORT.name, 1, Splits::Fixed(1)),
    row(&[Bound::up_to(facts::ROWS, 10), Bound::from(facts::CAPACITY, 257)], LONG_K128.name, 2, Splits::Fixed(1)),
    row(&[], LONG_K128.name, 1, Splits::Fixed(1)),
];
