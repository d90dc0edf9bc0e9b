//! What a caller may fix about a plan, to compare and to test. Nothing else changes a plan: there are no environment
//! variables.

use bakewell_core::schedule::gdn::{Engine, HEAD_DIM};
use bakewell_core::{Error, Result};
use serde::{Deserialize, Serialize};

/// The pins of a plan. Those that are `None` are the planner's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pins {
    /// How products are computed. Changes bits.
    pub engine: Option<Engine>,
    /// Longest segment in chunks, 0 for whole sequences. Changes bits where it cuts a sequence.
    pub segment_chunks: Option<u32>,
    /// Value columns of a CTA of the scans: 32, 64 or 128. Changes no bits.
    pub value_columns: Option<u32>,
    /// Nats of decay after which a pre-scan takes what was before as forgotten, 0 for never; 24 without: what is left
    /// out is below 2^-34 of it. Applies with `l2norm`, to tokens with beta in 0..=2. Changes bits where it cuts a
    /// sequence.
    pub forget_after: Option<u32>,
    /// Whether the longest sequences start first. Changes no bits.
    pub longest_first: bool,
    /// Whether the tape holds the states, or the backward makes them again. Changes no bits.
    pub save_state: bool,
}

impl Default for Pins {
    fn default() -> Pins {
        Pins {
            engine: None,
            segment_chunks: None,
            value_columns: None,
            forget_after: None,
            longest_first: true,
            save_state: true,
        }
    }
}

/// Nats that count as forgotten without a pin.
const FORGET_AFTER: u32 = 24;

impl Pins {
    /// Nats of decay that count as forgotten, 0 for none.
    pub(super) fn forget_after(&self) -> u32 {
        self.forget_after.unwrap_or(FORGET_AFTER)
    }

    pub(super) fn validate(&self) -> Result<()> {
        match self.value_columns {
            Some(columns) if ![HEAD_DIM / 4, HEAD_DIM / 2, HEAD_DIM].contains(&columns) => {
                Err(Error::value("value_columns", "32, 64 or 128", columns))
            }
            _ => Ok(()),
        }
    }
}
