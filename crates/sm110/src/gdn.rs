//! Chunked Gated DeltaNet training on sm110.

use bakewell_core::route::{Bound, Route};
use bakewell_core::schedule::gdn::{Choice, Costs, Engine, Gdn, facts};

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
    Gdn::TCGEN05_SCAN,
    Gdn::TCGEN05_STATES,
    Gdn::TCGEN05_ADJOINT,
    Gdn::TABLES,
    Gdn { min_ctas_per_sm: 12, ..Gdn::COPY },
];

/// Tensor memory wherever there are tokens; a tensor map needs some.
pub const ROUTES: &[Route<Choice>] = &[
    Route { when: &[Bound::from(facts::TOKENS, 1)], then: Choice { engine: Engine::Tcgen05, costs: Costs::TCGEN05 } },
    Route { when: &[], then: Choice { engine: Engine::Registers, costs: Costs::REGISTERS } },
];
