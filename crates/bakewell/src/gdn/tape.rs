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

use bakewell_core::error::Property;
use bakewell_core::schedule::gdn::Engine;
use bakewell_core::{DType, Error, Result, TensorView};

use super::Gdn;
use super::decide::Decision;
use crate::arguments::check_contiguous;
use crate::workspace::WORKSPACE_ALIGNMENT;

/// Memory that a forward fills and its backward reads: bytes of the caller, and the facts that they were made of.
///
/// Made by [`Plan::tape`](crate::Plan::tape) of the forward; must live, unchanged, until the backward has run. A
/// backward whose problem or pins make another tape refuses it.
#[derive(Clone, Copy, Debug)]
pub struct Tape<'a> {
    pub(super) view: TensorView<'a>,
    pub(super) content: Content,
}

/// The facts that decide what lies where on a tape, and its bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Content {
    /// Tokens of all sequences.
    pub tokens: u64,
    /// Sequences.
    pub sequences: u64,
    /// Digest of the offsets; 0 where only the device knows them.
    pub offsets: u64,
    /// Key heads.
    pub heads: u64,
    /// Value heads.
    pub value_heads: u64,
    /// Factor of the output.
    pub scale: f32,
    /// Whether rows of `q` and `k` were divided by their norms.
    pub l2norm: bool,
    /// Element type of `beta`.
    pub beta: DType,
    /// Whether there were gates.
    pub gate: bool,
    /// Whether there were start states.
    pub initial_state: bool,
    /// Whether there were final states.
    pub final_state: bool,
    /// Whether states are saved.
    pub save_state: bool,
    /// What programs decided; `None` on the reference, whose tape is empty.
    pub planned: Option<Planned>,
}

/// The facts of a tape that a plan decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// How products were computed.
    pub engine: Engine,
    /// Chunks.
    pub chunks: u64,
    /// Segments.
    pub segments: u64,
    /// Longest segment in chunks; 0 where no sequence is cut.
    pub segment_chunks: u64,
    /// Whether the segments of the longest sequence come first; false where no sequence is cut.
    pub longest_first: bool,
    /// Nats of decay that count as forgotten; 0 where nothing does.
    pub forget_after: u32,
}

impl Content {
    /// The tape of a problem on the device that decided, or on the reference.
    pub(super) fn of(problem: &Gdn, decision: Option<&Decision>) -> Content {
        decision.map_or_else(|| Content::new(problem, None), |decision| decision.content)
    }

    /// The tape that a problem makes, on programs with what a plan of it decided.
    pub(super) fn new(problem: &Gdn, planned: Option<Planned>) -> Content {
        let offsets = problem.sequences.offsets(problem.batch, problem.tokens);
        Content {
            tokens: problem.total_tokens(),
            sequences: problem.sequence_count(),
            offsets: offsets.map_or(0, |offsets| digest(&offsets)),
            heads: problem.heads,
            value_heads: problem.value_heads,
            scale: problem.output_scale(),
            l2norm: problem.l2norm,
            beta: problem.beta,
            gate: problem.gate,
            initial_state: problem.initial_state,
            final_state: problem.final_state,
            save_state: problem.pins.save_state,
            planned,
        }
    }

    /// The facts by name. Where no program runs nothing is planned.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![
            ("tokens", self.tokens.to_string()),
            ("sequences", self.sequences.to_string()),
            ("offsets of digest", format!("{:x}", self.offsets)),
            ("heads", self.heads.to_string()),
            ("value_heads", self.value_heads.to_string()),
            ("scale", self.scale.to_string()),
            ("l2norm", self.l2norm.to_string()),
            ("beta", self.beta.to_string()),
            ("gate", self.gate.to_string()),
            ("initial_state", self.initial_state.to_string()),
            ("final_state", self.final_state.to_string()),
            ("save_state", self.save_state.to_string()),
            ("made by", if self.planned.is_some() { "programs" } else { "the reference" }.to_owned()),
        ];
        if let Some(planned) = &self.planned {
            facts.extend([
                ("engine", planned.engine.name().to_owned()),
                ("chunks", planned.chunks.to_string()),
                ("segments", planned.segments.to_string()),
                ("segment_chunks", planned.segment_chunks.to_string()),
                ("longest_first", planned.longest_first.to_string()),
                ("forget_after", planned.forget_after.to_string()),
            ]);
        }
        facts
    }
}

/// Digest of offsets: FNV-1a over their bytes.
fn digest(offsets: &[u64]) -> u64 {
    let bytes = offsets.iter().flat_map(|offset| offset.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

impl<'a> Tape<'a> {
    /// Checks bytes for a tape of this content.
    pub(super) fn new(view: TensorView<'a>, needed: u64, content: Content) -> Result<Tape<'a>> {
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

    /// What it was made of.
    pub fn content(&self) -> Content {
        self.content
    }

    /// Checks that it was made of this; the error states the facts that differ.
    pub(super) fn expect(&self, content: Content) -> Result<()> {
        if self.content == content {
            return Ok(());
        }
        let (wanted, given) = (content.facts(), self.content.facts());
        let without = |facts: &[(&str, String)], others: &[(&str, String)]| {
            let apart = facts.iter().filter(|fact| !others.contains(fact));
            apart.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
        };
        let expected = format!("a tape with {}", without(&wanted, &given));
        Err(Error::argument("tape", Property::Value, expected, without(&given, &wanted)))
    }
}
