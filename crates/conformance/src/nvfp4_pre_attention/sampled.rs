//! Some tokens of a call, where the reference would take minutes for all of them: each token's results depend on its
//! own inputs and on the weights only.

use bakewell::nvfp4_pre_attention::{Nvfp4PreAttention, OutputFormat};
use bakewell::{DType, Result, nvfp4};

use super::Inputs;
use crate::HostTensor;
use crate::staged::Outputs;

/// The first and the last token, one from the middle, and those around the borders of the first tiles.
pub fn tokens(problem: &Nvfp4PreAttention) -> Vec<u64> {
    let last = problem.tokens.saturating_sub(1);
    let mut tokens: Vec<u64> = [0, 127, 128, 255, 256, last / 2, last].map(|token| token.min(last)).to_vec();
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

/// The problem of these tokens alone.
fn problem(whole: &Nvfp4PreAttention, tokens: &[u64]) -> Nvfp4PreAttention {
    Nvfp4PreAttention { tokens: tokens.len() as u64, ..whole.clone() }
}

/// The inputs of these tokens.
pub fn inputs(whole: &Inputs, tokens: &[u64]) -> Inputs {
    Inputs {
        problem: problem(&whole.problem, tokens),
        x: rows(&whole.x, tokens),
        adaln_index: rows(&whole.adaln_index, tokens),
        rope_cos_sin: rows(&whole.rope_cos_sin, tokens),
        ..whole.clone()
    }
}

/// What a call on these tokens alone would have given, from the outputs of `whole`. Intermediates are left out.
///
/// # Errors
/// [`bakewell::Error::Argument`] for an output that is missing.
pub fn outputs(
    whole: &Nvfp4PreAttention,
    output: impl Fn(&'static str) -> Result<HostTensor>,
    tokens: &[u64],
) -> Result<Outputs> {
    let sample = problem(whole, tokens);
    let groups = whole.hidden as usize / nvfp4::BLOCK;
    let mut outputs = vec![
        ("activation_q", rows(&output("activation_q")?, tokens)),
        ("activation_sf", {
            let from: Vec<usize> = tokens.iter().map(|&token| token as usize).collect();
            let bytes = tiles(&output("activation_sf")?.bytes, &from, groups);
            HostTensor { dtype: DType::U8, shape: sample.activation_scales_shape().to_vec(), bytes }
        }),
        ("out_q", {
            let whole = output("out_q")?;
            let of_one = whole.bytes.len() / sample.destinations as usize;
            let destinations = whole.bytes.chunks_exact(of_one);
            let bytes = destinations.flat_map(|destination| picked(destination, whole.shape[1], tokens)).collect();
            HostTensor { dtype: whole.dtype, shape: sample.out_shape().to_vec(), bytes }
        }),
    ];
    if whole.out_format == OutputFormat::Nvfp4 {
        let token_rows = whole.rows_per_destination() / whole.tokens;
        let from: Vec<usize> = tokens
            .iter()
            .flat_map(|token| (0..token_rows).map(move |row| (token * token_rows + row) as usize))
            .collect();
        let of_one = whole.out_scales_shape()[1] as usize;
        let bytes = output("out_sf")?.bytes.chunks_exact(of_one).flat_map(|tile| tiles(tile, &from, 8)).collect();
        outputs.push(("out_sf", HostTensor { dtype: DType::U8, shape: sample.out_scales_shape().to_vec(), bytes }));
    }
    Ok(Outputs(outputs))
}

/// Some of the `count` equal parts of `bytes`.
fn picked(bytes: &[u8], count: u64, parts: &[u64]) -> Vec<u8> {
    let size = bytes.len() / count as usize;
    parts.iter().flat_map(|&part| &bytes[part as usize * size..][..size]).copied().collect()
}

/// Rows along the first dimension.
fn rows(tensor: &HostTensor, which: &[u64]) -> HostTensor {
    let mut shape = tensor.shape.clone();
    let count = std::mem::replace(&mut shape[0], which.len() as u64);
    HostTensor { dtype: tensor.dtype, shape, bytes: picked(&tensor.bytes, count, which) }
}

/// Scale tiles of the rows `from` of others, with zeros behind them.
fn tiles(scales: &[u8], from: &[usize], groups: usize) -> Vec<u8> {
    let mut tiles = vec![0; from.len().next_multiple_of(128) * groups.next_multiple_of(4)];
    for (row, &source) in from.iter().enumerate() {
        for group in 0..groups {
            tiles[nvfp4::scale_offset(row, group, groups)] = scales[nvfp4::scale_offset(source, group, groups)];
        }
    }
    tiles
}

#[cfg(test)]
mod tests {
    use bakewell::Device;

    use super::*;
    use crate::Judged;

    #[test]
    fn a_sample_of_right_outputs_is_right_and_a_wrong_byte_is_found() {
        let problem = Nvfp4PreAttention {
            tokens: 130,
            hidden: 256,
            heads: 4,
            destinations: 2,
            table_rows: 3,
            ..Nvfp4PreAttention::default()
        };
        let device = Device::reference().unwrap();
        for out_format in [OutputFormat::Nvfp4, OutputFormat::E4m3] {
            let whole = Inputs::generate(&Nvfp4PreAttention { out_format, ..problem.clone() }, 3);
            let tokens = tokens(&whole.problem);
            assert_eq!(tokens, [0, 64, 127, 128, 129]);
            let (all, _) = whole.run(&device).unwrap();
            let sample = inputs(&whole, &tokens);
            let judged = |all: &Outputs| {
                let outputs = outputs(&whole.problem, |name| Ok(all[name].clone()), &tokens).unwrap();
                sample.judge(&outputs, &sample.expected().unwrap(), &device).unwrap().failure
            };
            assert_eq!(judged(&all), None);
            for name in all.0.iter().map(|(name, _)| *name) {
                let mut wrong = all.clone();
                // Token 0 of destination 0 is at the beginning of every output.
                wrong.get_mut(name).unwrap().bytes[0] ^= 0x70;
                assert!(judged(&wrong).is_some(), "{name}");
            }
        }
    }
}
