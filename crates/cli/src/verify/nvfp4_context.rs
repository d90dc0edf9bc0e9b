//! Golden and generated cases of NVFP4 paged-context attention.

use bakewell::Operation;
use bakewell_conformance::Golden;
use bakewell_conformance::nvfp4_context::{self, Inputs};

use super::case::{AnyCase, Case, boxed};
use super::{Args, folders};

/// Goldens without and with a split, and with the source tree's also the generated cases.
pub(super) fn cases(args: &Args) -> anyhow::Result<Vec<Box<dyn AnyCase>>> {
    let (goldens, generated) = folders(args, Operation::Nvfp4Context)?;
    let mut cases = Vec::new();
    for golden in Golden::<Inputs>::load_all(&goldens)? {
        for (suffix, splits) in [("", Some(1)), (" split", Some(2))] {
            let mut golden = golden.clone();
            golden.name.push_str(suffix);
            golden.inputs.problem.num_splits = splits;
            cases.push(Case::golden(golden));
        }
    }
    if generated.is_some() {
        for case in nvfp4_context::cases() {
            cases.push(Case::generated(&case.name, case.inputs())?);
        }
    }
    Ok(boxed(cases))
}
