//! Cases: shapes, values, tables.

use bakewell::schedule::gdn::{CHUNK_TOKENS, Chunk, HEAD_DIM, Segment, Sequence};
use bakewell_conformance::random::Random;
use half::bf16;

/// Elements of a head.
pub(super) const DIM: usize = HEAD_DIM as usize;
/// Tokens of a chunk.
pub(super) const CHUNK: usize = CHUNK_TOKENS as usize;
/// Rows between sequences that belong to none and hold NaN.
const GAP: usize = 3;

/// How a state decays.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gates {
    /// As a sigmoid of normal numbers gives them.
    Mild,
    /// 1e-4 to 2e-2 per token.
    Slow,
    /// 1 to 12 per token.
    Strong,
    /// None.
    Zero,
    /// Nearly none, and now and then a reset.
    Cliff,
}

/// A problem. `Default` is one short sequence, one head, everything off.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) lengths: &'static [usize],
    pub(super) heads: usize,
    pub(super) value_heads: usize,
    pub(super) l2norm: bool,
    pub(super) scale: f32,
    pub(super) h0: bool,
    pub(super) beta_bf16: bool,
    /// `beta` is uniform up to this.
    pub(super) beta_max: f64,
    pub(super) gates: Gates,
    /// `q`, `k`, `v` are head views of one row buffer.
    pub(super) packed: bool,
    /// Chunks of a segment; all of a sequence without.
    pub(super) segment_chunks: Option<usize>,
    pub(super) seed: u64,
}

impl Default for Case {
    fn default() -> Case {
        Case {
            lengths: &[100],
            heads: 1,
            value_heads: 1,
            l2norm: false,
            scale: 0.088_388_35,
            h0: false,
            beta_bf16: false,
            beta_max: 1.0,
            gates: Gates::Mild,
            packed: false,
            segment_chunks: None,
            seed: 1,
        }
    }
}

/// The values of a case, rounded to what the device holds. Rows are those of the tensors: sequences with gaps between.
#[derive(Clone, Debug)]
pub(super) struct Inputs {
    pub(super) case: Case,
    /// Rows of every tensor.
    pub(super) rows: usize,
    /// First row of each sequence.
    pub(super) starts: Vec<usize>,
    pub(super) q: Vec<f64>,
    pub(super) k: Vec<f64>,
    pub(super) v: Vec<f64>,
    pub(super) g: Vec<f64>,
    pub(super) beta: Vec<f64>,
    pub(super) h0: Option<Vec<f64>>,
}

pub(super) fn round_bf16(values: Vec<f64>) -> Vec<f64> {
    values.into_iter().map(|value| bf16::from_f64(value).to_f64()).collect()
}

pub(super) fn round_f32(values: Vec<f64>) -> Vec<f64> {
    values.into_iter().map(|value| f64::from(value as f32)).collect()
}

impl Inputs {
    pub(super) fn new(case: &Case) -> Inputs {
        let mut random = Random::new(case.seed);
        let (mut rows, mut starts) = (0, Vec::new());
        for length in case.lengths {
            starts.push(rows);
            rows += length + GAP;
        }
        let &Case { heads, value_heads, .. } = case;
        // Unit-ish rows where the operation does not normalise.
        let gain = if case.l2norm { 3.0 } else { (DIM as f64).sqrt().recip() };
        let mut normal = |count: usize, gain: f64| -> Vec<f64> {
            random.normal(count).into_iter().map(|value| value * gain).collect()
        };
        let q = normal(rows * heads * DIM, gain);
        let k = normal(rows * heads * DIM, gain);
        let v = normal(rows * value_heads * DIM, 1.0);
        let states = case.lengths.len() * value_heads * DIM * DIM;
        let h0 = case.h0.then(|| round_f32(normal(states, 0.2)));
        let g = (0..rows * value_heads).map(|_| gate(&mut random, case.gates)).collect();
        let beta = (0..rows * value_heads).map(|_| random.uniform() * case.beta_max).collect();
        let beta = if case.beta_bf16 { round_bf16(beta) } else { round_f32(beta) };
        let (q, k, v) = (round_bf16(q), round_bf16(k), round_bf16(v));
        let mut inputs = Inputs { case: case.clone(), rows, starts, q, k, v, g: round_f32(g), beta, h0 };
        inputs.poison_gaps();
        inputs
    }

    fn poison_gaps(&mut self) {
        let inside: Vec<bool> = (0..self.rows).map(|row| self.is_inside(row)).collect();
        for tensor in [&mut self.q, &mut self.k, &mut self.v, &mut self.g, &mut self.beta] {
            let width = tensor.len() / inside.len();
            for (row, inside) in tensor.chunks_exact_mut(width).zip(&inside) {
                if !inside {
                    row.fill(f64::NAN);
                }
            }
        }
    }

    /// Whether a row is one of a sequence.
    pub(super) fn is_inside(&self, row: usize) -> bool {
        self.starts.iter().zip(self.case.lengths).any(|(start, length)| (*start..start + length).contains(&row))
    }

    /// Value heads of a key head.
    pub(super) fn group(&self) -> usize {
        self.case.value_heads / self.case.heads
    }

    /// The chunks, a padding entry last.
    pub(super) fn chunks(&self) -> Vec<Chunk> {
        let of_sequence = |(sequence, (&start, &length)): (usize, (&usize, &usize))| {
            (0..length.div_ceil(CHUNK)).map(move |i| Chunk {
                first_token: (start + i * CHUNK) as u32,
                tokens: (length - i * CHUNK).min(CHUNK) as u32,
                sequence: sequence as i32,
                reserved: 0,
            })
        };
        let chunks = self.starts.iter().zip(self.case.lengths).enumerate().flat_map(of_sequence);
        chunks.chain([Chunk::PADDING]).collect()
    }

    /// The segments, a padding entry last, and the sequences.
    pub(super) fn segments(&self) -> (Vec<Segment>, Vec<Sequence>) {
        let (mut segments, mut sequences, mut first_chunk) = (Vec::new(), Vec::new(), 0);
        for (sequence, length) in self.case.lengths.iter().enumerate() {
            let chunks = length.div_ceil(CHUNK);
            let count = self.case.segment_chunks.map_or(1, |most| chunks.div_ceil(most)).max(1);
            sequences.push(Sequence { first_segment: segments.len() as u32, segments: count as u32 });
            for index in 0..count {
                let (from, to) = (index * chunks / count, (index + 1) * chunks / count);
                segments.push(Segment {
                    first_chunk: (first_chunk + from) as u32,
                    chunks: (to - from) as u32,
                    sequence: sequence as i32,
                    index: index as u32,
                });
            }
            first_chunk += chunks;
        }
        segments.push(Segment::PADDING);
        (segments, sequences)
    }
}

fn gate(random: &mut Random, gates: Gates) -> f64 {
    match gates {
        Gates::Mild => -(-(random.normal(1)[0] * 1.5 + 2.0)).exp().ln_1p(),
        Gates::Slow => -(1e-4 * 200f64.powf(random.uniform())),
        Gates::Strong => -(1.0 + 11.0 * random.uniform()),
        Gates::Zero => 0.0,
        Gates::Cliff if random.uniform() < 0.03 => -(20.0 + 70.0 * random.uniform()),
        Gates::Cliff => -0.01 * random.uniform(),
    }
}
