//! Every stage of its own, on the emulator: launched with a parameter block, its result compared with that of plain
//! loops.
//!
//! | module | subject |
//! |---|---|
//! | [`inputs`] | cases, their tensors and tables |
//! | [`model`] | the chunkwise algebra in f64, with every intermediate |
//! | [`staged`] | tensors on a device, and the launches of stages |
//! | [`gradients`] | its backward, likewise |
//! | [`staged_backward`] | tensors of a backward on a device, and its launches |
//! | [`forward`] | tests of the stages of a forward |
//! | [`backward`] | tests of the stages of a backward |
//! | [`giant`] | tests of tensors past 2^31 elements |
//! | [`wgmma`] | tests of the scans on Hopper's warpgroup products |
//! | [`tcgen05`] | tests of the scans on tensor memory |

mod backward;
mod forward;
mod giant;
mod gradients;
mod inputs;
mod model;
mod staged;
mod staged_backward;
mod tcgen05;
mod wgmma;

use bakewell_conformance::compare::{Tolerance, compare};

use inputs::Inputs;

/// The rows of a tensor that lie inside sequences.
fn compact(inputs: &Inputs, tensor: &[f64]) -> Vec<f64> {
    let rows = tensor.chunks_exact(tensor.len() / inputs.rows).enumerate();
    rows.filter(|(row, _)| inputs.is_inside(*row)).flat_map(|(_, row)| row.to_vec()).collect()
}

/// Holds values against what is wanted: rms of the error over rms of the wanted, and largest error over the peak.
#[track_caller]
fn check(what: &str, got: &[f64], want: &[f64], rms: f64, of_peak: f64) {
    let tolerance = Tolerance { relative_l2: rms, absolute: 1e-6, of_peak };
    let comparison = compare(&[want.len() as u64], got, want).unwrap_or_else(|error| panic!("{what}: {error}"));
    println!("{what}: rms {:.1e}, largest {:.1e}", comparison.relative_l2, comparison.max_absolute / comparison.peak);
    // An error no larger than 1e-6 passes whatever the norm: zeros wanted, zeros got.
    if comparison.max_absolute > tolerance.absolute {
        comparison.verdict(&tolerance).unwrap_or_else(|failure| panic!("{what}: {failure}"));
    }
    assert_eq!(comparison.special_mismatches, 0, "{what}: {:?}", comparison.first_special);
}
