//! Grouped-query decode attention: one new token per request attends to its cached prefix.
//!
//! With `n = sequence_lengths[b]`, `g = query_heads / kv_heads` and `c = q_scale / sqrt(head_dim)`:
//!
//! ```text
//! s[t]   = c * q[b, h] . K[b, h / g, t]                    t < n
//! out[b, h] = sum_t exp(s[t] - m) * V[b, h / g, t] / l      m = max_t s[t],  l = sum_t exp(s[t] - m)
//! lse[b, h] = m + ln l
//! ```
//!
//! A request of length 0 has `out = 0` and `lse = -inf`. Slots at or past the length are never read.

use bakewell_core::error::Property;
use bakewell_core::{Error, Result};

use crate::Element;

/// Sizes and scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GqaDecode {
    /// Requests.
    pub batch: usize,
    /// Key slots per request and KV head.
    pub capacity: usize,
    /// Query heads, a multiple of `kv_heads`.
    pub query_heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Multiplies the standard `1 / sqrt(head_dim)`.
    pub q_scale: f32,
}

/// Computes `out`, and `lse` (natural logarithm) if given.
///
/// All slices are row-major: `q` and `out` `[batch, query_heads, head_dim]`, `kv` `[batch, 2, kv_heads, capacity,
/// head_dim]` (0 = K, 1 = V), `sequence_lengths` `[batch]`, `lse` `[batch, query_heads]`.
///
/// # Errors
/// [`Error::Argument`] when a slice has another length than its shape, `query_heads` is no multiple of `kv_heads`, or a
/// sequence length lies outside `0..=capacity`.
pub fn gqa_decode<T: Element>(
    problem: &GqaDecode,
    q: &[T],
    kv: &[T],
    sequence_lengths: &[i32],
    out: &mut [T],
    mut lse: Option<&mut [f32]>,
) -> Result<()> {
    let &GqaDecode { batch, capacity, query_heads, kv_heads, head_dim, q_scale } = problem;
    if kv_heads == 0 || !query_heads.is_multiple_of(kv_heads) {
        let expected = format!("a multiple of {kv_heads} KV heads");
        return Err(Error::argument("query_heads", Property::Value, expected, query_heads));
    }
    expect_len("q", &[batch, query_heads, head_dim], q.len())?;
    expect_len("kv", &[batch, 2, kv_heads, capacity, head_dim], kv.len())?;
    expect_len("sequence_lengths", &[batch], sequence_lengths.len())?;
    expect_len("out", &[batch, query_heads, head_dim], out.len())?;
    if let Some(lse) = &lse {
        expect_len("lse", &[batch, query_heads], lse.len())?;
    }
    for (b, &length) in sequence_lengths.iter().enumerate() {
        if usize::try_from(length).is_ok_and(|length| length <= capacity) {
            continue;
        }
        return Err(Error::value("sequence_lengths", format!("0..={capacity} for request {b}"), length));
    }

    let scale = f64::from(q_scale) / (head_dim as f64).sqrt();
    let group = query_heads / kv_heads;
    let plane = capacity * head_dim;
    for b in 0..batch {
        let length = sequence_lengths[b] as usize;
        for h in 0..query_heads {
            let row = b * query_heads + h;
            let k = &kv[((b * 2) * kv_heads + h / group) * plane..][..length * head_dim];
            let v = &kv[((b * 2 + 1) * kv_heads + h / group) * plane..][..length * head_dim];
            let row_lse = attend(&q[row * head_dim..][..head_dim], k, v, scale, &mut out[row * head_dim..][..head_dim]);
            if let Some(lse) = &mut lse {
                lse[row] = row_lse as f32;
            }
        }
    }
    Ok(())
}

/// One query row `[head_dim]` over keys and values `[length, head_dim]`. Returns the log-sum-exp.
fn attend<T: Element>(q: &[T], k: &[T], v: &[T], scale: f64, out: &mut [T]) -> f64 {
    let head_dim = q.len();
    let q: Vec<f64> = q.iter().map(|x| x.to_f64()).collect();
    let scores: Vec<f64> = k
        .chunks_exact(head_dim)
        .map(|key| scale * q.iter().zip(key).map(|(q, k)| q * k.to_f64()).sum::<f64>())
        .collect();
    if scores.is_empty() {
        out.fill(T::from_f64(0.0));
        return f64::NEG_INFINITY;
    }
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f64 = weights.iter().sum();

    let mut row = vec![0.0; head_dim];
    for (weight, value) in weights.iter().zip(v.chunks_exact(head_dim)) {
        for (out, v) in row.iter_mut().zip(value) {
            *out += weight * v.to_f64();
        }
    }
    for (out, row) in out.iter_mut().zip(row) {
        *out = T::from_f64(row / sum);
    }
    max + sum.ln()
}

fn expect_len(argument: &'static str, shape: &[usize], given: usize) -> Result<()> {
    let product = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    if product == Some(given) {
        return Ok(());
    }
    Err(Error::argument(argument, Property::Shape, format!("the elements of shape {shape:?}"), given))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: GqaDecode = GqaDecode { batch: 1, capacity: 3, query_heads: 2, kv_heads: 1, head_dim: 1, q_scale: 1.0 };

    fn run(problem: &GqaDecode, q: &[f64], kv: &[f64], lengths: &[i32]) -> Result<(Vec<f64>, Vec<f32>)> {
        let rows = problem.batch * problem.query_heads;
        let (mut out, mut lse) = (vec![f64::NAN; rows * problem.head_dim], vec![f32::NAN; rows]);
        gqa_decode(problem, q, kv, lengths, &mut out, Some(&mut lse))?;
        Ok((out, lse))
    }

    /// Scores ln 1, ln 2, ln 5 give weights 1/8, 2/8, 5/8; the second head has equal scores.
    #[test]
    fn weights_are_the_softmax_of_the_scores() {
        let keys = [0.0, 2f64.ln(), 5f64.ln()];
        let kv = [keys[0], keys[1], keys[2], 8.0, 16.0, 24.0];
        let (out, lse) = run(&ONE, &[1.0, 0.0], &kv, &[3]).unwrap();
        assert!((out[0] - (8.0 + 2.0 * 16.0 + 5.0 * 24.0) / 8.0).abs() < 1e-12, "{out:?}");
        assert!((out[1] - 16.0).abs() < 1e-12, "{out:?}");
        assert!((lse[0] - 8f32.ln()).abs() < 1e-6 && (lse[1] - 3f32.ln()).abs() < 1e-6, "{lse:?}");
    }

    #[test]
    fn slots_past_the_length_do_not_matter_and_length_zero_gives_zero() {
        let kv = [1.0, f64::NAN, f64::INFINITY, 7.0, f64::NAN, f64::INFINITY];
        assert_eq!(run(&ONE, &[1.0, 2.0], &kv, &[1]).unwrap(), (vec![7.0, 7.0], vec![1.0, 2.0]));
        let empty = run(&ONE, &[1.0, 2.0], &kv, &[0]).unwrap();
        assert_eq!(empty, (vec![0.0, 0.0], vec![f32::NEG_INFINITY; 2]));
    }

    #[test]
    fn heads_read_their_own_cache_and_scale_multiplies_the_standard_one() {
        let problem = GqaDecode { batch: 2, capacity: 1, query_heads: 4, kv_heads: 2, head_dim: 4, q_scale: 3.0 };
        let mut kv = vec![0.0; 2 * 2 * 2 * 4];
        for (plane, row) in kv.chunks_exact_mut(4).enumerate() {
            row.fill(plane as f64);
        }
        let (out, lse) = run(&problem, &[1.0; 32], &kv, &[1, 1]).unwrap();
        // Planes in order: request 0: K0 K1 V0 V1, request 1: K0 K1 V0 V1.
        let heads: Vec<f64> = out.chunks_exact(4).map(|row| row[0]).collect();
        assert_eq!(heads, [2.0, 2.0, 3.0, 3.0, 6.0, 6.0, 7.0, 7.0]);
        // One key: the log-sum-exp is its score, 3 / sqrt(4) * 4 * k.
        assert_eq!(lse, [0.0, 0.0, 6.0, 6.0, 24.0, 24.0, 30.0, 30.0]);
    }

    #[test]
    fn a_nan_in_range_reaches_its_own_rows_only() {
        let problem = GqaDecode { batch: 2, query_heads: 1, capacity: 1, ..ONE };
        let (out, _) = run(&problem, &[1.0, 1.0], &[f64::NAN, 5.0, 1.0, 6.0], &[1, 1]).unwrap();
        assert!(out[0].is_nan());
        assert_eq!(out[1], 6.0);
    }

    #[test]
    fn bad_arguments_are_named() {
        let message = |problem: &GqaDecode, lengths: &[i32]| {
            run(problem, &[1.0, 1.0], &[0.0; 6], lengths).unwrap_err().to_string()
        };
        assert_eq!(message(&ONE, &[4]), "sequence_lengths: expected 0..=3 for request 0, got 4");
        assert_eq!(message(&ONE, &[-1]), "sequence_lengths: expected 0..=3 for request 0, got -1");
        assert_eq!(message(&ONE, &[1, 1]), "sequence_lengths: expected the elements of shape [1], got 2");
        let odd = GqaDecode { kv_heads: 0, ..ONE };
        assert_eq!(message(&odd, &[1]), "query_heads: expected a multiple of 0 KV heads, got 2");
        let long = GqaDecode { capacity: usize::MAX, ..ONE };
        assert!(message(&long, &[1]).starts_with("kv: expected the elements of shape"));
    }
}
