//! Inputs, and generators of them.

use bakewell::gqa_decode::GqaDecode;
use bakewell::{Error, Result};
use serde::Deserialize;

use crate::HostTensor;
use crate::random::Random;

/// A problem and its input tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Inputs {
    /// Sizes and scale.
    pub problem: GqaDecode,
    /// `[batch, query_heads, head_dim]`.
    pub q: HostTensor,
    /// `[batch, 2, kv_heads, capacity, head_dim]`.
    pub kv: HostTensor,
    /// `[batch]`, i32.
    pub sequence_lengths: HostTensor,
}

/// How generated inputs are distributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Standard normal.
    #[default]
    Normal,
    /// Logits of a few hundred: the maximum must be subtracted.
    Large,
    /// The last key of each request dominates: the running maximum moves late.
    Peaked,
    /// Values that encode positions: K all zero, V is `slot / 64 + kv_head / 2 + column / 128`, so that the output is
    /// the mean over the slots, and a wrong slot, head or column shows as a number that can be read.
    Positions,
}

/// A generated case of `cases/gqa_decode.json`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Name.
    pub name: String,
    /// Problem; `batch` follows from the lengths.
    pub problem: GqaDecode,
    /// Lengths of the requests.
    pub lengths: Lengths,
    /// Distribution of the inputs.
    #[serde(default)]
    pub distribution: Distribution,
}

/// Lengths as a list, or every length of a range.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Lengths {
    /// One per request.
    List(Vec<i32>),
    /// `first..=last`, one request each.
    Every {
        /// First length.
        first: i32,
        /// Last length, included.
        last: i32,
    },
}

impl Case {
    /// The inputs. Slots past the lengths hold NaN and infinities.
    ///
    /// # Errors
    /// [`Error::Argument`] for a problem that breaks the contract.
    pub fn inputs(&self, seed: u64) -> Result<Inputs> {
        Inputs::generate(&self.problem, &self.lengths.to_vec(), self.distribution, seed)
    }
}

impl Lengths {
    /// One length per request.
    pub fn to_vec(&self) -> Vec<i32> {
        match self {
            Lengths::List(list) => list.clone(),
            Lengths::Every { first, last } => (*first..=*last).collect(),
        }
    }
}

impl Inputs {
    /// Random inputs of the lengths. Slots past the lengths hold NaN and infinities.
    ///
    /// # Errors
    /// [`Error::Argument`] for a problem that breaks the contract.
    pub fn generate(problem: &GqaDecode, lengths: &[i32], distribution: Distribution, seed: u64) -> Result<Inputs> {
        let problem = GqaDecode { batch: lengths.len() as u64, ..problem.clone() };
        problem.validate()?;
        let (q, kv) = (problem.q_shape(), problem.kv_shape());
        let mut random = Random::new(seed);
        let mut queries = random.normal(q.iter().product::<u64>() as usize);
        let mut cache = random.normal(kv.iter().product::<u64>() as usize);
        let [heads, capacity, head_dim] = [problem.kv_heads, problem.capacity, problem.head_dim].map(|n| n as usize);
        if distribution == Distribution::Large {
            queries.iter_mut().for_each(|x| *x *= 8.0);
        }
        for (row, values) in cache.chunks_exact_mut(head_dim).enumerate() {
            let (slot, head, key_or_value) = (row % capacity, row / capacity % heads, row / capacity / heads % 2);
            let request = row / capacity / heads / 2;
            let length = lengths[request].max(0) as usize;
            if slot >= length {
                let poison = if key_or_value == 1 && slot % 2 == 0 { f64::INFINITY } else { f64::NAN };
                values.fill(poison);
                continue;
            }
            match (distribution, key_or_value) {
                (Distribution::Large, 0) => values.iter_mut().for_each(|x| *x *= 4.0),
                (Distribution::Peaked, 0) if slot + 1 == length => {
                    let group = problem.query_heads as usize / heads;
                    let query = (request * problem.query_heads as usize + head * group) * head_dim;
                    for (key, query) in values.iter_mut().zip(&queries[query..]) {
                        *key = 0.2 * query;
                    }
                }
                (Distribution::Positions, 0) => values.fill(0.0),
                (Distribution::Positions, _) => {
                    for (column, value) in values.iter_mut().enumerate() {
                        *value = slot as f64 / 64.0 + head as f64 / 2.0 + column as f64 / 128.0;
                    }
                }
                _ => {}
            }
        }
        Ok(Inputs {
            q: HostTensor::rounded(problem.dtype, &q, &queries)?,
            kv: HostTensor::rounded(problem.dtype, &kv, &cache)?,
            sequence_lengths: HostTensor::of_i32(&[problem.batch], lengths),
            problem,
        })
    }

    /// The requests of some indices, in that order.
    ///
    /// # Errors
    /// [`Error::Argument`] for an index past the batch.
    pub fn select(&self, requests: &[usize]) -> Result<Inputs> {
        let pick = |tensor: &HostTensor| -> Result<HostTensor> {
            let row = tensor.bytes.len() / (self.problem.batch as usize).max(1);
            let mut bytes = Vec::with_capacity(row * requests.len());
            for &request in requests {
                let range = request * row..(request + 1) * row;
                bytes.extend_from_slice(tensor.bytes.get(range).ok_or_else(|| {
                    Error::value("requests", format!("indices below {}", self.problem.batch), request)
                })?);
            }
            let mut shape = tensor.shape.clone();
            shape[0] = requests.len() as u64;
            Ok(HostTensor { bytes, shape, ..tensor.clone() })
        };
        Ok(Inputs {
            problem: GqaDecode { batch: requests.len() as u64, ..self.problem.clone() },
            q: pick(&self.q)?,
            kv: pick(&self.kv)?,
            sequence_lengths: pick(&self.sequence_lengths)?,
        })
    }

    /// Largest magnitude of a score's terms: `q_scale / sqrt(head_dim) * max |q| * max |k|`, by Cauchy-Schwarz.
    ///
    /// # Errors
    /// [`Error::Argument`] for another element type.
    pub fn score_bound(&self) -> Result<f64> {
        let head_dim = self.problem.head_dim as usize;
        let longest = |values: Vec<f64>| {
            let norm = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>().sqrt();
            values.chunks_exact(head_dim).map(norm).filter(|norm| norm.is_finite()).fold(0.0, f64::max)
        };
        let scale = f64::from(self.problem.q_scale) / (head_dim as f64).sqrt();
        Ok(scale * longest(self.q.to_f64()?) * longest(self.kv.to_f64()?))
    }
}

#[cfg(test)]
mod tests {
    use bakewell::DType;

    use super::*;
    use crate::Judged;

    const SMALL: GqaDecode = GqaDecode {
        batch: 2,
        capacity: 3,
        query_heads: 4,
        kv_heads: 2,
        head_dim: 8,
        dtype: DType::F16,
        num_splits: None,
        q_scale: 0.7,
        lse: true,
    };

    #[test]
    fn generated_caches_hold_poison_exactly_past_the_lengths() {
        let inputs = Inputs::generate(&SMALL, &[1, 3], Distribution::Normal, 5).unwrap();
        let kv = inputs.kv.to_f64().unwrap();
        for (row, values) in kv.chunks_exact(8).enumerate() {
            let (slot, request) = (row % 3, row / 12);
            let live = slot < [1, 3][request];
            assert!(values.iter().all(|x| x.is_finite() == live), "row {row}");
        }
    }

    #[test]
    fn selection_takes_whole_requests() {
        let inputs = Inputs::generate(&SMALL, &[1, 3], Distribution::Normal, 5).unwrap();
        let swapped = inputs.select(&[1, 0]).unwrap();
        assert_eq!(swapped.sequence_lengths.to_i32().unwrap(), [3, 1]);
        assert_eq!(swapped.select(&[1, 0]).unwrap(), inputs);
        assert!(inputs.select(&[2]).is_err());
    }

    #[test]
    fn positions_average_to_what_can_be_computed_by_hand() {
        let inputs = Inputs::generate(&SMALL, &[3, 2], Distribution::Positions, 5).unwrap();
        let expected = inputs.expected().unwrap();
        // Request 0, query head 2 (KV head 1), column 5: the mean of slots 0, 1, 2 is 1. All values are exact in f16.
        assert!((expected.out[2 * 8 + 5] - (1.0 / 64.0 + 1.0 / 2.0 + 5.0 / 128.0)).abs() < 1e-12);
        assert!((expected.lse.unwrap()[4] - 2f64.ln()).abs() < 1e-6, "two equal scores");
    }
}
