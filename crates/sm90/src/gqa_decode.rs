//! Grouped-query decode attention on sm90.

use bakewell_core::route::Route;
use bakewell_core::schedule::gqa_decode::{Choice, GqaDecode, LARGE_DEVICE_ROUTES, every_shape};

/// Every compiled schedule: all six for every shape.
pub const SCHEDULES: &[GqaDecode] = &every_shape::<6, 72>([
    GqaDecode::SHORT,
    GqaDecode::LONG_K64,
    GqaDecode::LONG_K128,
    GqaDecode::LONG_K128_W8,
    GqaDecode::STREAM,
    GqaDecode::STREAM_W5,
]);

/// Which serves which shapes; first match wins. Measured on an H200.
pub const ROUTES: &[Route<Choice>] = LARGE_DEVICE_ROUTES;
