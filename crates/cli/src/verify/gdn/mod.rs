//! Golden and generated cases of Gated DeltaNet training.
//!
//! | module | cases |
//! |---|---|
//! | [`at_scale`] | a call whose tensors pass 2^31 elements, on a GPU |

mod at_scale;

use anyhow::Context;
use bakewell::{Device, Operation};
use bakewell_conformance::Golden;
use bakewell_conformance::gdn::{self, Inputs};

use super::case::{AnyCase, Case, boxed};
use super::{Args, folders, gpu_name};

/// Goldens, and with the source tree's also the generated cases, on a GPU also the call at scale.
pub(super) fn cases(args: &Args, device: &Device) -> anyhow::Result<Vec<Box<dyn AnyCase>>> {
    let (goldens, generated) = folders(args, Operation::Gdn)?;
    let mut cases: Vec<_> = Golden::<Inputs>::load_all(&goldens)?.into_iter().map(Case::golden).collect();
    let at_scale = generated.is_some() && gpu_name(device).is_some();
    if let Some(path) = generated {
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        for case in serde_json::from_str::<Vec<gdn::Case>>(&text).with_context(|| path.display().to_string())? {
            cases.push(Case::generated(&case.name, case.inputs()?)?);
        }
    }
    let mut cases = boxed(cases);
    if at_scale {
        cases.push(Box::new(at_scale::AtScale));
    }
    Ok(cases)
}
