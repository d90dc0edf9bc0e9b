//! Generated inputs: lengths, gates, write strengths.

use bakewell::gdn::{Gdn, Pins, Sequences};
use bakewell::{DType, Result};
use serde::Deserialize;

use super::{Inputs, Place};
use crate::HostTensor;
use crate::random::Random;

/// Seed of generated inputs.
const INPUT_SEED: u64 = 41;

/// Gates of a value head. Head `j` of a case has the `j`-th of its list, in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// Between -0.5 and 0.
    Mild,
    /// Zero.
    Zero,
    /// -1e-3.
    Slow,
    /// -0.5.
    Half,
    /// -8.
    Strong,
    /// -80.
    Extreme,
    /// -200: all but the diagonal vanishes.
    Vanishing,
    /// Zero and up to -1 in turn.
    Interleaved,
    /// -0.01 but for one -80 in the middle of the third eighth of the tokens.
    Spike,
}

impl Gate {
    fn at(self, token: u64, tokens: u64, random: &mut Random) -> f64 {
        let uniform = random.uniform();
        match self {
            Gate::Mild => -0.5 * uniform,
            Gate::Zero => 0.0,
            Gate::Slow => -1e-3,
            Gate::Half => -0.5,
            Gate::Strong => -8.0,
            Gate::Extreme => -80.0,
            Gate::Vanishing => -200.0,
            Gate::Interleaved if token.is_multiple_of(2) => 0.0,
            Gate::Interleaved => -uniform,
            Gate::Spike if token == tokens * 5 / 16 => -80.0,
            Gate::Spike => -0.01,
        }
    }
}

/// How write strengths are distributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Write {
    /// Between 0 and 1.
    #[default]
    Usual,
    /// Between 0 and 2.
    Wide,
    /// All 1.
    One,
    /// All zero, of either sign.
    Zero,
    /// Zero and 1 in turn.
    ZeroOne,
}

/// How keys and queries are distributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keys {
    /// Normal, of unit length on average.
    #[default]
    Usual,
    /// The same key again and again: the worst-conditioned inverse.
    Repeated,
    /// Some rows are zero.
    ZeroRows,
    /// Rows of norm 1000.
    Large,
}

/// A generated case of `cases/gdn.json`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Case {
    /// Name: what is special about it.
    pub name: String,
    /// Tokens of each sequence.
    pub lengths: Vec<u64>,
    /// Whether the sequences, all of one length, are batch rows.
    pub batched: bool,
    /// Key heads.
    pub heads: u64,
    /// Value heads.
    pub value_heads: u64,
    /// L2 norm of `q` and `k`.
    pub l2norm: bool,
    /// Factor of the output.
    pub scale: Option<f32>,
    /// Element type of `beta`.
    pub beta: DType,
    /// Gates of the value heads, in turn.
    pub gates: Vec<Gate>,
    /// Write strengths.
    pub write: Write,
    /// Keys.
    pub keys: Keys,
    /// Whether there are start states.
    pub initial_state: bool,
    /// Whether final states are wanted.
    pub final_state: bool,
    /// Whether final states have a gradient.
    pub final_state_gradient: bool,
    /// Whether only the device knows the offsets.
    pub device_offsets: bool,
    /// Whether there is a backward.
    pub training: bool,
    /// How the inputs lie.
    pub place: Place,
    /// Fixed parts of the plan.
    pub pins: Pins,
}

impl Default for Case {
    fn default() -> Case {
        Case {
            name: String::new(),
            lengths: vec![100],
            batched: false,
            heads: 1,
            value_heads: 2,
            l2norm: true,
            scale: None,
            beta: DType::F32,
            gates: vec![Gate::Mild],
            write: Write::Usual,
            keys: Keys::Usual,
            initial_state: false,
            final_state: false,
            final_state_gradient: false,
            device_offsets: false,
            training: true,
            place: Place::default(),
            pins: Pins::default(),
        }
    }
}

impl Case {
    /// The problem of these sizes.
    pub fn problem(&self) -> Gdn {
        let offsets = self.offsets();
        let count = offsets.len() as u64 - 1;
        Gdn {
            batch: if self.batched { count } else { 1 },
            tokens: if self.batched { self.lengths.first().copied().unwrap_or(0) } else { offsets[offsets.len() - 1] },
            heads: self.heads,
            value_heads: self.value_heads,
            sequences: match (self.batched, self.device_offsets) {
                (true, _) => Sequences::Batch,
                (false, true) => Sequences::Device(count),
                (false, false) => Sequences::Offsets(offsets),
            },
            scale: self.scale,
            l2norm: self.l2norm,
            beta: self.beta,
            initial_state: self.initial_state,
            final_state: self.final_state,
            training: self.training,
            pins: self.pins.clone(),
            ..Gdn::default()
        }
    }

    fn offsets(&self) -> Vec<u64> {
        let mut end = 0;
        let ends = self.lengths.iter().map(|length| {
            end += length;
            end
        });
        [0].into_iter().chain(ends).collect()
    }

    /// Random inputs, with `do` for training.
    ///
    /// # Errors
    /// None for the element types of a valid problem.
    pub fn inputs(&self) -> Result<Inputs> {
        let problem = self.problem();
        let mut random = Random::new(INPUT_SEED);
        let count = |shape: &[u64]| shape.iter().product::<u64>() as usize;
        let (q_shape, v_shape, gates, states) =
            (problem.q_shape(), problem.v_shape(), problem.gate_shape(), problem.state_shape());
        let mut normal = |shape: &[u64], factor: f64| -> Vec<f64> {
            random.normal(count(shape)).into_iter().map(|x| x * factor).collect()
        };
        // Of unit length on average, as after a norm.
        let unit = (problem.head_dim as f64).sqrt().recip();
        let (mut q, mut k, v) = (normal(&q_shape, unit), normal(&q_shape, unit), normal(&v_shape, 1.0));
        let (d_o, h0, dht) = (normal(&v_shape, 1.0), normal(&states, 0.3), normal(&states, 0.3));
        for (row, (q, k)) in q.chunks_exact_mut(128).zip(k.chunks_exact_mut(128)).enumerate() {
            match self.keys {
                Keys::Usual => {}
                Keys::Repeated => {
                    k.iter_mut().enumerate().for_each(|(i, k)| *k = if i % 3 == 0 { unit } else { -unit })
                }
                Keys::ZeroRows if row % 5 == 1 => k.fill(0.0),
                Keys::ZeroRows if row % 7 == 2 => q.fill(0.0),
                Keys::ZeroRows => {}
                Keys::Large => q.iter_mut().chain(k).for_each(|x| *x *= 1000.0),
            }
        }
        let (value_heads, tokens) = (problem.value_heads, problem.total_tokens());
        let gate = |i: u64, random: &mut Random| {
            let gate = self.gates[(i % value_heads) as usize % self.gates.len()];
            gate.at(i / value_heads, tokens, random)
        };
        let g: Vec<f64> = (0..count(&gates) as u64).map(|i| gate(i, &mut random)).collect();
        let beta: Vec<f64> = (0..count(&gates) as u64).map(|i| self.write.at(i / value_heads, &mut random)).collect();
        let tensor = |dtype, shape: &[u64], values: &[f64]| HostTensor::rounded(dtype, shape, values);
        let when = |wanted: bool, values: &[f64]| -> Result<Option<HostTensor>> {
            if wanted { tensor(DType::F32, &states, values).map(Some) } else { Ok(None) }
        };
        Ok(Inputs {
            q: tensor(DType::Bf16, &q_shape, &q)?,
            k: tensor(DType::Bf16, &q_shape, &k)?,
            v: tensor(DType::Bf16, &v_shape, &v)?,
            g: tensor(DType::F32, &gates, &g)?,
            beta: tensor(problem.beta, &gates, &beta)?,
            offsets: (!self.batched).then(|| self.offsets()),
            h0: when(self.initial_state, &h0)?,
            d_o: if self.training { Some(tensor(DType::Bf16, &v_shape, &d_o)?) } else { None },
            dht: when(self.training && self.final_state_gradient, &dht)?,
            place: self.place,
            problem,
        })
    }
}

impl Write {
    fn at(self, token: u64, random: &mut Random) -> f64 {
        let uniform = random.uniform();
        match self {
            Write::Usual => uniform,
            Write::Wide => 2.0 * uniform,
            Write::One => 1.0,
            Write::Zero if token.is_multiple_of(2) => -0.0,
            Write::Zero => 0.0,
            Write::ZeroOne => (token % 2) as f64,
        }
    }
}
