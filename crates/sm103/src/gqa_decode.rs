//! Grouped-query decode attention on sm103.

use bakewell_core::route::Route;
use bakewell_core::schedule::gqa_decode::{Choice, GqaDecode, LARGE_DEVICE_ROUTES};

/// Every compiled schedule, for the seed's shape.
pub const SCHEDULES: &[GqaDecode] = &[
    GqaDecode::SHORT,
    GqaDecode::LONG_K64,
    GqaDecode::LONG_K128,
    GqaDecode::LONG_K128_W8,
    GqaDecode::STREAM,
    GqaDecode::STREAM_W5,
];

/// Which serves which shapes; first match wins. Not measured on this architecture: those of the nearest one that was.
pub const ROUTES: &[Route<Choice>] = LARGE_DEVICE_ROUTES;
