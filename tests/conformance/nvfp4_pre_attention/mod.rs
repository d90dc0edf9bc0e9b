//! NVFP4 pre-attention.

mod errors;
mod giant;
#[cfg(feature = "cuda")]
mod graphs;
mod invariance;
mod launches;
mod mutation;
mod norm;
mod plans;
mod positions;
mod repeated;
mod scales;
mod stages;
#[cfg(feature = "emulator")]
mod tcgen05;
mod values;
mod wgmma;

use bakewell::nvfp4_pre_attention::Nvfp4PreAttention;
use bakewell_conformance::Judged;
use bakewell_conformance::nvfp4_pre_attention::{Golden, Inputs};
use bakewell_tests::data;

fn goldens() -> Vec<(Golden, Inputs)> {
    let goldens = Golden::load_all(&data("golden/nvfp4_pre_attention")).unwrap();
    goldens.into_iter().map(|golden| (golden.clone(), Inputs::from_file(&golden.file).unwrap())).collect()
}

/// A small problem: one set of scales more than a stage of the GEMM, two heads for each destination.
fn small(tokens: u64, destinations: u64) -> Nvfp4PreAttention {
    Nvfp4PreAttention {
        tokens,
        hidden: 320,
        heads: 2 * destinations,
        destinations,
        table_rows: 3,
        debug: true,
        ..Nvfp4PreAttention::default()
    }
}
