//! What must not change a result: all of it bitwise.
//!
//! | changed | |
//! |---|---|
//! | nothing (run again, also without clearing anything) | equal bytes |
//! | intermediates wanted or not | equal bytes |
//! | destinations | the same rows, regrouped; the same scales, elsewhere |
//! | hidden states between launches of one binding | as if bound anew: equal bytes |
//! | strides of dimensions of one element | equal bytes |
//! | other tokens of the batch, also ones that are not finite | equal bytes per token |

use bakewell::nvfp4::{scale_offset, swizzle_scales};
use bakewell::nvfp4_pre_attention::{Nvfp4PreAttention, OutputFormat};
use bakewell_conformance::Outputs;
use bakewell_conformance::nvfp4_pre_attention::Inputs;
use bakewell_reference::Element;
use bakewell_tests::on_every_engine;
use bakewell_tests::runs::{self, equal, outputs, relaunched, running_again_gives_equal_bytes};
use half::bf16;

use super::small;

#[test]
fn running_again_and_looking_inside_give_equal_bytes() {
    for out_format in [OutputFormat::Nvfp4, OutputFormat::E4m3] {
        let with = Inputs::generate(&Nvfp4PreAttention { out_format, ..small(37, 2) }, 3);
        let without = Inputs { problem: Nvfp4PreAttention { debug: false, ..with.problem.clone() }, ..with.clone() };
        on_every_engine(|device| {
            running_again_gives_equal_bytes(device, &without)?;
            let (with, without) = (outputs(device, &with)?, outputs(device, &without)?);
            without.0.iter().try_for_each(|(name, tensor)| equal(name, tensor, &with[name]))
        });
    }
}

/// Rows of `[tokens, heads, 3]`: codes, and scales where there are any.
fn rows(problem: &Nvfp4PreAttention, outputs: &Outputs) -> Vec<(Vec<u8>, Vec<u8>)> {
    let row_bytes = problem.out_format.row_bytes() as usize;
    let (per_destination, local_rows) =
        (problem.rows_per_destination() as usize, 3 * (problem.heads / problem.destinations) as usize);
    let scale_bytes = problem.out_scales_shape()[1] as usize;
    let row = |token: usize, row: usize| {
        let (destination, local) = (row / local_rows, token * local_rows + row % local_rows);
        let codes = &outputs["out_q"].bytes[(destination * per_destination + local) * row_bytes..][..row_bytes];
        let scales = outputs.get("out_sf").into_iter().flat_map(|out_sf| {
            let tiles = &out_sf.bytes[destination * scale_bytes..];
            (0..8).map(|group| tiles[scale_offset(local, group, 8)])
        });
        (codes.to_vec(), scales.collect())
    };
    let heads = 3 * problem.heads as usize;
    (0..problem.tokens as usize)
        .flat_map(|token| (0..heads).map(move |head| (token, head)))
        .map(|(t, h)| row(t, h))
        .collect()
}

/// Eight heads for one destination, and shared out over all other numbers.
#[test]
fn destinations_only_regroup_rows() {
    for out_format in [OutputFormat::Nvfp4, OutputFormat::E4m3] {
        let problem = Nvfp4PreAttention { out_format, hidden: 256, heads: 8, ..small(19, 1) };
        let one = Inputs::generate(&problem, 5);
        on_every_engine(|device| {
            let first = rows(&one.problem, &outputs(device, &one)?);
            for destinations in [2, 4, 8] {
                let problem = Nvfp4PreAttention { destinations, ..problem.clone() };
                let many = Inputs { problem, ..one.clone() };
                let regrouped = rows(&many.problem, &outputs(device, &many)?);
                equal(&format!("{destinations} destinations"), &first, &regrouped)?;
            }
            Ok(())
        });
    }
}

/// The scales of one destination are the tiles that the helper for users makes of them.
#[test]
fn scales_lie_where_the_helper_puts_them() {
    let inputs = Inputs::generate(&small(50, 1), 6);
    on_every_engine(|device| {
        let outputs = outputs(device, &inputs)?;
        let linear: Vec<u8> = rows(&inputs.problem, &outputs).into_iter().flat_map(|(_, scales)| scales).collect();
        equal("tiles", &swizzle_scales(&linear, 8).unwrap(), &outputs["out_sf"].bytes)
    });
}

/// What a captured graph does: the binding stays, the hidden states on the device change.
#[test]
fn hidden_states_may_change_between_launches_of_a_binding() {
    let inputs = Inputs::generate(&small(9, 1), 8);
    let other = Inputs { x: Inputs::generate(&small(9, 1), 9).x, ..inputs.clone() };
    on_every_engine(|device| {
        let again = relaunched(device, &inputs, "x", std::slice::from_ref(&other.x))?;
        equal("another x", &again[0], &outputs(device, &other)?)
    });
}

/// NaN and infinities are outside the contract of their own token only: nothing hangs, nothing outside is written, and
/// every other token has its bytes.
#[test]
fn a_token_that_is_not_finite_spoils_no_other() {
    let clean = Inputs::generate(&small(130, 2), 13);
    let bad = [(0, bf16::NAN), (64, bf16::INFINITY), (129, bf16::NEG_INFINITY)];
    let mut spoilt = clean.clone();
    let row_bytes = spoilt.x.bytes.len() / 130;
    for (token, value) in bad {
        spoilt.adaln_index.bytes[4 * token..][..4].fill(0);
        spoilt.x.bytes[token * row_bytes..][..row_bytes].copy_from_slice(&bf16::to_bytes(&vec![value; row_bytes / 2]));
    }
    on_every_engine(|device| {
        let [clean, spoilt] = [&clean, &spoilt].map(|inputs| outputs(device, inputs));
        let (clean, spoilt) = (rows(&small(130, 2), &clean?), rows(&small(130, 2), &spoilt?));
        let heads = clean.len() / 130;
        let others = |rows: &[(Vec<u8>, Vec<u8>)]| -> Vec<(Vec<u8>, Vec<u8>)> {
            let tokens = rows.chunks(heads).enumerate();
            tokens
                .filter(|(token, _)| bad.iter().all(|(bad, _)| bad != token))
                .flat_map(|(_, rows)| rows.to_vec())
                .collect()
        };
        equal("other tokens", &others(&clean), &others(&spoilt))
    });
}

#[test]
fn other_tokens_do_not_matter() {
    let all = Inputs::generate(&small(130, 1), 10);
    // The first token, and one of the second tile.
    let alone = |token: usize| {
        let mut one = all.clone();
        one.problem.tokens = 1;
        for tensor in [&mut one.x, &mut one.adaln_index, &mut one.rope_cos_sin] {
            let row = tensor.bytes.len() / 130;
            tensor.bytes = tensor.bytes[token * row..][..row].to_vec();
            tensor.shape[0] = 1;
        }
        one
    };
    on_every_engine(|device| {
        let together = rows(&all.problem, &outputs(device, &all)?);
        for token in [0, 129] {
            let one = alone(token);
            let heads = together.len() / 130;
            equal("alone", &together[token * heads..][..heads].to_vec(), &rows(&one.problem, &outputs(device, &one)?))?;
        }
        Ok(())
    });
}

/// One token of one table row, for one destination.
#[test]
fn strides_of_one_do_not_matter() {
    for out_format in [OutputFormat::Nvfp4, OutputFormat::E4m3] {
        let problem = Nvfp4PreAttention { table_rows: 1, out_format, ..small(1, 1) };
        let inputs = Inputs::generate(&problem, 23);
        on_every_engine(|device| runs::strides_of_one_do_not_matter(device, &inputs));
    }
}
