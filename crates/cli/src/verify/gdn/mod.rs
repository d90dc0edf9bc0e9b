//! Golden and generated cases of Gated DeltaNet training.

use anyhow::Context;
use bakewell::Operation;
use bakewell_conformance::Golden;
use bakewell_conformance::gdn::{self, Inputs};

use super::case::{AnyCase, Case, boxed};
use super::{Args, folders};

/// Goldens, and with the source tree's also the generated cases.
pub(super) fn cases(args: &Args) -> anyhow::Result<Vec<Box<dyn AnyCase>>> {
    let (goldens, generated) = folders(args, Operation::Gdn)?;
    let mut cases: Vec<_> = Golden::<Inputs>::load_all(&goldens)?.into_iter().map(Case::golden).collect();
    if let Some(path) = generated {
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        for case in serde_json::from_str::<Vec<gdn::Case>>(&text).with_context(|| path.display().to_string())? {
            cases.push(Case::generated(&case.name, case.inputs()?)?);
        }
    }
    Ok(boxed(cases))
}
