//! Chunked Gated DeltaNet training on sm103.

use bakewell_core::route::Route;
use bakewell_core::schedule::gdn::{Choice, Costs, Engine, Gdn};

/// Every compiled schedule.
pub const SCHEDULES: &[Gdn] = &[
    Gdn::PREPARE,
    Gdn::SCAN_V64,
    Gdn::SCAN_V128,
    Gdn::STATES_V64,
    Gdn::COMPOSE,
    Gdn::ADJOINT_V128,
    Gdn::ADJOINT_V64,
    Gdn::ADJOINT_V32,
    Gdn::TAIL,
    Gdn::TABLES,
    Gdn::COPY,
];

/// Which engine serves which shapes; first match wins.
pub const ROUTES: &[Route<Choice>] =
    &[Route { when: &[], then: Choice { engine: Engine::Registers, costs: Costs::REGISTERS } }];
