//! Gated DeltaNet training: the gated delta rule over packed sequences, forward and backward, in chunks of 64 tokens.
//!
//! ```text
//! S' = e^g S      S = S' + k (beta (v - S'^T k))^T      o = scale S^T q
//! ```
//!
//! `B` batch rows of `T` tokens, `N` sequences, `H` key heads, `HV` value heads; value head `j` reads key head
//! `j / (HV / H)`.
//!
//! | tensor | dtype | shape | layout |
//! |---|---|---|---|
//! | `q`, `k` | bf16 | `[B, T, H, 128]` | read in place, see below |
//! | `v`, `do` | bf16 | `[B, T, HV, 128]` | read in place |
//! | `g` | f32 | `[B, T, HV]` | read in place; natural logarithm of the decay, at most 0, which the reference checks and programs trust; may be absent |
//! | `beta` | f32 or bf16 | `[B, T, HV]` | read in place |
//! | `cu_seqlens` | i32 or i64 | `[N + 1]` | contiguous |
//! | `h0`, `ht`, `dht`, `dh0` | f32 | `[N, HV, 128 (key), 128 (value)]` | contiguous |
//! | `o`, `dv` | bf16 | `[B, T, HV, 128]` | contiguous |
//! | `dq`, `dk` | bf16 | `[B, T, H, 128]` | contiguous |
//! | `dg` | f32 | `[B, T, HV]` | contiguous |
//! | `dbeta` | as `beta` | `[B, T, HV]` | contiguous |
//!
//! *Read in place*: last stride 1, token and head strides and the address multiples of 16 bytes, batch rows one token
//! stride apart; of `g` and `beta` any token stride, head stride 1. The head views of a packed qkv row buffer are such
//! tensors. Anything else must stand in [`Gdn::copies`]: a launch then copies it first, and the plan says so.
//!
//! A forward leaves a [tape] that its backward reads. The same inputs, layout, device model and pins give the same
//! bits, run to run; so do packed and contiguous inputs, either order of sequences, a saved and a recomputed tape, host
//! and device offsets. Other segments, engines or architectures give other roundings.
//!
//! | module | subject |
//! |---|---|
//! | [`sequences`] | where sequences begin and end |
//! | [`pins`] | what a caller may fix about a plan |
//! | [`mod@tables`] | chunks, segments, sequences |
//! | [`split`] | whether long sequences are cut into segments |
//! | [`decide`] | the pure planner: stages, geometry, tape, workspace |
//! | [`tape`] | what a forward leaves for its backward |
//! | [`forward`], [`backward`] | the two calls |

pub mod backward;
pub mod decide;
pub mod forward;
mod inputs;
pub mod pins;
#[cfg(feature = "reference")]
mod reference;
pub mod sequences;
pub mod split;
pub mod tables;
pub mod tape;
mod values;

use bakewell_core::error::Property;
use bakewell_core::schedule::gdn::{CHUNK_TOKENS, HEAD_DIM};
use bakewell_core::{DType, Error, Result};
use serde::{Deserialize, Serialize};

pub use backward::{Backward, BackwardArgs};
pub use decide::Decision;
pub use forward::{Forward, ForwardArgs};
pub use pins::Pins;
pub use sequences::Sequences;
pub use tape::Tape;

/// An input that can be copied before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// `q`.
    Q,
    /// `k`.
    K,
    /// `v`.
    V,
    /// `g`.
    G,
    /// `beta`.
    Beta,
    /// `do`.
    Do,
}

impl Input {
    /// Name in errors and plans.
    pub const fn name(self) -> &'static str {
        match self {
            Input::Q => "q",
            Input::K => "k",
            Input::V => "v",
            Input::G => "g",
            Input::Beta => "beta",
            Input::Do => "do",
        }
    }

    /// Name of its copy in the workspace.
    const fn region(self) -> &'static str {
        match self {
            Input::Q => "copy_q",
            Input::K => "copy_k",
            Input::V => "copy_v",
            Input::G => "copy_g",
            Input::Beta => "copy_beta",
            Input::Do => "copy_do",
        }
    }
}

/// A layer's problem, forward and backward: sizes, options, and what is wanted.
///
/// The default is one sequence of 4096 tokens, 16 key heads, 32 value heads, with L2 norm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gdn {
    /// Batch rows; 1 unless every row is a sequence.
    pub batch: u64,
    /// Tokens of a batch row.
    pub tokens: u64,
    /// Key heads.
    pub heads: u64,
    /// Value heads, a multiple of `heads`.
    pub value_heads: u64,
    /// Elements of a head: 128.
    pub head_dim: u64,
    /// Where sequences begin and end; fewer than 2^20 of them.
    pub sequences: Sequences,
    /// Factor of the output, finite; `1 / sqrt(128)` without.
    pub scale: Option<f32>,
    /// Whether rows of `q` and `k` are divided by `sqrt(x . x + 1e-6)` first.
    pub l2norm: bool,
    /// Element type of `beta` and `dbeta`: f32 or bf16.
    pub beta: DType,
    /// Whether there are gates: `g` is given, and `dg` wanted. Without, nothing decays.
    pub gate: bool,
    /// Whether `h0` is given, and `dh0` wanted.
    pub initial_state: bool,
    /// Whether `ht` is wanted; `dht` may then be given.
    pub final_state: bool,
    /// Whether the forward leaves a tape.
    pub training: bool,
    /// Inputs to copy before they are read, for those that cannot be read in place.
    pub copies: Vec<Input>,
    /// What the caller fixes about the plan.
    pub pins: Pins,
}

impl Default for Gdn {
    fn default() -> Gdn {
        Gdn {
            batch: 1,
            tokens: 4096,
            heads: 16,
            value_heads: 32,
            head_dim: HEAD_DIM.into(),
            sequences: Sequences::Batch,
            scale: None,
            l2norm: true,
            beta: DType::F32,
            gate: true,
            initial_state: false,
            final_state: false,
            training: true,
            copies: Vec::new(),
            pins: Pins::default(),
        }
    }
}

impl Gdn {
    /// Shape of `q`, `k`, `dq`, `dk`.
    pub fn q_shape(&self) -> [u64; 4] {
        [self.batch, self.tokens, self.heads, self.head_dim]
    }

    /// Shape of `v`, `o`, `do`, `dv`.
    pub fn v_shape(&self) -> [u64; 4] {
        [self.batch, self.tokens, self.value_heads, self.head_dim]
    }

    /// Shape of `g`, `beta`, `dg`, `dbeta`.
    pub fn gate_shape(&self) -> [u64; 3] {
        [self.batch, self.tokens, self.value_heads]
    }

    /// Shape of `h0`, `ht`, `dht`, `dh0`: keys before values.
    pub fn state_shape(&self) -> [u64; 4] {
        [self.sequence_count(), self.value_heads, self.head_dim, self.head_dim]
    }

    /// Shape of `cu_seqlens`.
    pub fn cu_seqlens_shape(&self) -> [u64; 1] {
        [self.sequence_count() + 1]
    }

    /// Number of sequences.
    pub fn sequence_count(&self) -> u64 {
        self.sequences.count(self.batch)
    }

    /// Tokens of all batch rows.
    pub fn total_tokens(&self) -> u64 {
        self.batch * self.tokens
    }

    /// Factor of the output.
    pub fn output_scale(&self) -> f32 {
        self.scale.unwrap_or_else(|| (1.0 / f64::from(HEAD_DIM).sqrt()) as f32)
    }

    /// Whether an input is copied.
    pub fn copied(&self, input: Input) -> bool {
        self.copies.contains(&input) && (self.gate || input != Input::G)
    }

    /// Checks what does not depend on a device.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the field.
    pub fn validate(&self) -> Result<()> {
        if self.heads == 0 {
            return Err(Error::value("heads", "at least 1", 0));
        }
        if self.value_heads == 0 || !self.value_heads.is_multiple_of(self.heads) {
            let expected = format!("a positive multiple of the {} key heads", self.heads);
            return Err(Error::value("value_heads", expected, self.value_heads));
        }
        if self.head_dim != u64::from(HEAD_DIM) {
            return Err(Error::value("head_dim", HEAD_DIM, self.head_dim));
        }
        if !matches!(self.beta, DType::F32 | DType::Bf16) {
            return Err(Error::argument("beta", Property::DType, "f32 or bf16", self.beta));
        }
        if let Some(scale) = self.scale
            && !scale.is_finite()
        {
            return Err(Error::value("scale", "a finite number", scale));
        }
        let tokens = self.batch.checked_mul(self.tokens).filter(|&tokens| tokens < 1 << 31);
        let tokens = tokens.ok_or_else(|| {
            let given = format!("{} x {}", self.batch, self.tokens);
            Error::argument("tokens", Property::Size, "fewer than 2^31 tokens in all batch rows", given)
        })?;
        self.sequences.validate(self.batch, self.tokens)?;
        // A CTA per chunk and head, and one per sequence, value head and value column split.
        let most_chunks = tokens / u64::from(CHUNK_TOKENS) + self.sequence_count();
        if most_chunks.checked_mul(self.value_heads).is_none_or(|ctas| ctas >= 1 << 28) {
            let given = format!("{} value heads of {most_chunks} chunks", self.value_heads);
            return Err(Error::argument("value_heads", Property::Size, "fewer than 2^28 chunks of all heads", given));
        }
        self.pins.validate()
    }
}
