//! What a forward leaves for its backward.
//!
//! | region | dtype | shape | when |
//! |---|---|---|---|
//! | `rq`, `rk` | f32 | `[tokens, H]` | always; reciprocal norms, 1 without L2 norm |
//! | `gate` | f32 | `[tokens, HV]` | always; sum of the chunk's gates so far, times log2 e |
//! | `a` | bf16 | `[chunks, HV, 64, 64]` | always; inverse of a chunk |
//! | `v_new` | bf16 | `[tokens, HV, 128]` | with saved states |
//! | `h` | bf16 | `[chunks, HV, 128 (value), 128 (key)]` | with saved states; state before the chunk |
//! | `m` | f32 | `[segments, HV, 128, 128]` | where a sequence is cut; what a segment does to its start state |
//! | `carries` | u32 | `[segments, HV]` | where pre-scans may forget; 0 where the segment forgets its start state and `m` is not there |
//! | `fade` | f32 | `[chunks, HV]` | likewise; exponent of two that bounds what the chunk leaves of a state |
//! | `start` | f32 | `[segments, HV, 128 (value), 128 (key)]` | where a sequence is cut and states are not saved |

use std::fmt;

use bakewell_core::error::Property;
use bakewell_core::schedule::gdn::Engine;
use bakewell_core::{DType, Error, Result, TensorView};

use crate::arguments::check_contiguous;
use crate::workspace::WORKSPACE_ALIGNMENT;

/// Memory that a forward fills and its backward reads: bytes of the caller, tied to the plan that laid them out.
///
/// Made by [`Plan::tape`](crate::Plan::tape) of either call; must live, unchanged, until the backward has run.
#[derive(Clone, Copy, Debug)]
pub struct Tape<'a> {
    pub(super) view: TensorView<'a>,
    pub(super) content: Option<Content>,
}

/// The facts that decide what lies where on a tape, and its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Tokens of all sequences.
    pub tokens: u64,
    /// Digest of the offsets; 0 where only the device knows them.
    pub offsets: u64,
    /// Chunks.
    pub chunks: u64,
    /// Segments.
    pub segments: u64,
    /// Longest segment in chunks; 0 where no sequence is cut.
    pub segment_chunks: u64,
    /// Key heads.
    pub heads: u64,
    /// Value heads.
    pub value_heads: u64,
    /// Whether states are saved.
    pub states: bool,
    /// Nats of decay that count as forgotten; 0 where nothing does.
    pub forget_after: u32,
    /// How products were computed.
    pub engine: Engine,
}

/// Digest of offsets: FNV-1a over their bytes.
pub(super) fn digest(offsets: &[u64]) -> u64 {
    let bytes = offsets.iter().flat_map(|offset| offset.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states = if self.states { "with states" } else { "without states" };
        write!(
            f,
            "{} tokens (offsets {:x}) in {} chunks and {} segments (at most {} chunks), heads {}/{}, {states}, {:?}",
            self.tokens,
            self.offsets,
            self.chunks,
            self.segments,
            self.segment_chunks,
            self.heads,
            self.value_heads,
            self.engine
        )
    }
}

impl<'a> Tape<'a> {
    /// Checks bytes for a tape of this content.
    pub(super) fn new(view: TensorView<'a>, needed: u64, content: Option<Content>) -> Result<Tape<'a>> {
        view.expect("tape", DType::U8, view.shape())?;
        check_contiguous("tape", &view, WORKSPACE_ALIGNMENT)?;
        let given = view.extent_bytes()?;
        if given < needed {
            return Err(Error::argument("tape", Property::Size, format!("at least {needed} bytes"), given));
        }
        Ok(Tape { view, content })
    }

    /// The memory.
    pub fn view(&self) -> TensorView<'a> {
        self.view
    }

    /// Checks that it was made for a plan of this content.
    pub(super) fn expect(&self, content: Content) -> Result<()> {
        if self.content == Some(content) {
            return Ok(());
        }
        let given = self.content.map_or_else(|| "that of the reference".to_owned(), |content| content.to_string());
        Err(Error::argument("tape", Property::Layout, format!("a tape of {content}"), given))
    }
}
