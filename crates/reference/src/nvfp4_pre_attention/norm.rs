//! The first stage: RMSNorm, modulation, quantisation of each token's row.

use half::bf16;

use super::quantise::{quantise_row, swizzle_scales};
use super::reciprocal_root::reciprocal_root;
use super::{GROUP, Nvfp4PreAttention, rounded};

/// Every intermediate of the stage. A token without a table row has zeros everywhere but in `rstd`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Norm {
    /// `[tokens]`.
    pub rstd: Vec<f32>,
    /// `[tokens, hidden]`, before modulation.
    pub normed: Vec<bf16>,
    /// `[tokens, hidden]`, modulated: what is quantised.
    pub modulated: Vec<bf16>,
    /// `[tokens, hidden / 2]`.
    pub codes: Vec<u8>,
    /// `[tokens, hidden / 16]`.
    pub scales: Vec<u8>,
    /// The scales in tiles.
    pub tiles: Vec<u8>,
}

pub(super) fn norm(problem: &Nvfp4PreAttention<'_>) -> Norm {
    let hidden = problem.hidden;
    let mut out = Norm::default();
    for (x, &index) in problem.x.chunks_exact(hidden).zip(problem.adaln_index) {
        let x: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
        let rstd = reciprocal_root(sum_of_squares(&x) / hidden as f32 + problem.eps);
        out.rstd.push(rstd);
        let row = usize::try_from(index).ok().filter(|row| *row < problem.adaln_scale.len() / hidden);
        let Some(row) = row else {
            out.normed.extend(vec![bf16::ZERO; hidden]);
            out.modulated.extend(vec![bf16::ZERO; hidden]);
            out.codes.extend(vec![0; hidden / 2]);
            out.scales.extend(vec![0; hidden / GROUP]);
            continue;
        };
        let (scale, shift) = (&problem.adaln_scale[row * hidden..], &problem.adaln_shift[row * hidden..]);
        let mut modulated = Vec::with_capacity(hidden);
        for i in 0..hidden {
            let normed = rounded(x[i] * rstd * problem.x_norm_weight[i].to_f32());
            out.normed.push(bf16::from_f32(normed));
            let factor = rounded(1.0 + scale[i].to_f32());
            modulated.push(rounded(normed.mul_add(factor, shift[i].to_f32())));
        }
        let (codes, scales) = quantise_row(&modulated, problem.x_global_scale);
        out.modulated.extend(modulated.into_iter().map(bf16::from_f32));
        out.codes.extend(codes);
        out.scales.extend(scales);
    }
    out.tiles = swizzle_scales(&out.scales, hidden / GROUP);
    out
}

/// Sum of squares as 64 lanes add it: lane `t` has elements `512 c + 8 t ..`, the lanes of each half are added in pairs
/// of neighbours, the halves last.
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut lanes = [0f32; 64];
    for (i, &x) in x.iter().enumerate() {
        let lane = &mut lanes[i % 512 / 8];
        *lane = x.mul_add(x, *lane);
    }
    pairwise_sum(&lanes[..32]) + pairwise_sum(&lanes[32..])
}

/// Sum of a power of two of terms as a balanced tree, neighbours first.
pub(super) fn pairwise_sum(terms: &[f32]) -> f32 {
    match terms {
        [one] => *one,
        _ => {
            let (low, high) = terms.split_at(terms.len() / 2);
            pairwise_sum(low) + pairwise_sum(high)
        }
    }
}
