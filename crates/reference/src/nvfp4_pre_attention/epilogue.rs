//! The second stage's epilogue: every head row normalised, rotated, quantised, and put where its destination finds it.

use half::bf16;

use super::norm::pairwise_sum;
use super::quantise::{quantise_row, swizzle_scales};
use super::reciprocal_root::reciprocal_root;
use super::{GROUP, HEAD_DIM, KINDS, Nvfp4PreAttention, OutputScale, rounded};
use crate::small_float::e4m3_from_f64;

/// Every intermediate of the stage, and the operation's results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Epilogue {
    /// `[tokens, heads, 2]`: Q, then K.
    pub rstd: Vec<f32>,
    /// `[tokens, heads, 128]`, normalised and rotated.
    pub q: Vec<bf16>,
    /// `[tokens, heads, 128]`, likewise.
    pub k: Vec<bf16>,
    /// `[destinations, tokens, heads / destinations, 3, bytes of a row]`.
    pub out: Vec<u8>,
    /// `[destinations, rows, 8]`, empty for E4M3.
    pub scales: Vec<u8>,
    /// The scales in tiles per destination, empty for E4M3.
    pub tiles: Vec<u8>,
}

/// The stage on words `[tokens, heads, 3, 128]`.
pub fn epilogue(problem: &Nvfp4PreAttention<'_>, words: &[bf16]) -> Epilogue {
    let heads = problem.heads;
    let local_heads = heads / problem.destinations;
    let mut out = Epilogue::default();
    // Rows of each destination, in token order: quantised bytes and scales.
    let mut rows = vec![(Vec::new(), Vec::new()); problem.destinations];
    for (token, words) in words.chunks_exact(heads * KINDS * HEAD_DIM).enumerate() {
        let rotation = &problem.rope_cos_sin[token * problem.rope_dim..][..problem.rope_dim];
        for (row, words) in words.chunks_exact(HEAD_DIM).enumerate() {
            let (head, kind) = (row / KINDS, row % KINDS);
            let mut values: Vec<f32> = words.iter().map(|word| word.to_f32()).collect();
            let normed = match kind {
                0 => Some((problem.q_norm_weight, &mut out.q)),
                1 => Some((problem.k_norm_weight, &mut out.k)),
                _ => None,
            };
            if let Some((weight, result)) = normed {
                out.rstd.push(normalise(&mut values, weight, problem.eps));
                rotate(&mut values, rotation);
                result.extend(values.iter().map(|&value| bf16::from_f32(value)));
            }
            let (bytes, scales) = &mut rows[head / local_heads];
            match problem.output {
                OutputScale::Nvfp4(global_scale) => {
                    let (codes, row_scales) = quantise_row(&values, global_scale);
                    bytes.extend(codes);
                    scales.extend(row_scales);
                }
                OutputScale::E4m3(decode) => {
                    let inverse = (1.0 / f64::from(decode[kind])) as f32;
                    bytes.extend(values.iter().map(|&value| e4m3_from_f64((value * inverse).into())));
                }
            }
        }
    }
    for (bytes, scales) in rows {
        out.out.extend(bytes);
        out.tiles.extend(swizzle_scales(&scales, HEAD_DIM / GROUP));
        out.scales.extend(scales);
    }
    out
}

/// RMSNorm of a head row; returns the reciprocal root.
fn normalise(values: &mut [f32], weight: &[bf16], eps: f32) -> f32 {
    let chain = |values: &[f32]| values.iter().fold(0f32, |sum, &value| value.mul_add(value, sum));
    let blocks: Vec<f32> =
        values.chunks_exact(GROUP).map(|block| chain(&block[..GROUP / 2]) + chain(&block[GROUP / 2..])).collect();
    let rstd = reciprocal_root(pairwise_sum(&blocks) / HEAD_DIM as f32 + eps);
    for (value, weight) in values.iter_mut().zip(weight) {
        *value = rounded(*value * rstd * weight.to_f32());
    }
    rstd
}

/// Rotates pairs `(d, d + R / 2)` by cosines `rotation[..R / 2]` and sines `rotation[R / 2..]`.
fn rotate(values: &mut [f32], rotation: &[bf16]) {
    let half = rotation.len() / 2;
    for d in 0..half {
        let (cos, sin) = (rotation[d].to_f32(), rotation[d + half].to_f32());
        let (low, high) = (values[d], values[d + half]);
        values[d] = rounded(cos.mul_add(low, high * -sin));
        values[d + half] = rounded(cos.mul_add(high, low * sin));
    }
}
