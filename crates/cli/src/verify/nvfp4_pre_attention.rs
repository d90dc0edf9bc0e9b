//! Golden and generated cases of NVFP4 pre-attention.

use bakewell::Operation;
use bakewell_conformance::Golden;
use bakewell_conformance::nvfp4_pre_attention::{self, Inputs};

use super::case::{AnyCase, Case, boxed};
use super::{Args, folders};

/// Goldens, and with the source tree's also the generated cases.
pub(super) fn cases(args: &Args) -> anyhow::Result<Vec<Box<dyn AnyCase>>> {
    let (goldens, generated) = folders(args, Operation::Nvfp4PreAttention)?;
    let mut cases: Vec<_> = Golden::<Inputs>::load_all(&goldens)?.into_iter().map(Case::golden).collect();
    if generated.is_some() {
        for case in nvfp4_pre_attention::cases() {
            cases.push(Case::generated(&case.name, case.inputs())?);
        }
    }
    Ok(boxed(cases))
}
