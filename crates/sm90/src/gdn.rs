//! Chunked Gated DeltaNet training on sm90.

use bakewell_core::route::{Bound, Route};
use bakewell_core::schedule::gdn::{Choice, Costs, Engine, Gdn, facts};

/// Every compiled schedule.
pub const SCHEDULES: &[Gdn] = &[
    Gdn::PREPARE,
    Gdn::PREPARE_G3,
    Gdn::PREPARE_G4,
    Gdn::SCAN_V64,
    Gdn::SCAN_V128,
    Gdn::STATES_V64,
    Gdn::COMPOSE,
    Gdn::ADJOINT_V128,
    Gdn::ADJOINT_V64,
    Gdn::ADJOINT_V32,
    Gdn::TAIL,
    Gdn::WGMMA_SCAN,
    Gdn::WGMMA_SCAN_V64,
    Gdn::WGMMA_STATES,
    Gdn::WGMMA_STATES_V64,
    Gdn::WGMMA_PRE_SCAN,
    Gdn::WGMMA_ADJOINT,
    Gdn::WGMMA_ADJOINT_V64,
    Gdn::WGMMA_TAIL,
    Gdn::TABLES,
    Gdn::COPY,
];

/// Warpgroup products wherever there are tokens; a tensor map needs some.
pub const ROUTES: &[Route<Choice>] = &[
    Route { when: &[Bound::from(facts::TOKENS, 1)], then: Choice { engine: Engine::Wgmma, costs: Costs::WGMMA } },
    Route { when: &[], then: Choice { engine: Engine::Registers, costs: Costs::REGISTERS } },
];
