//! Golden and generated cases of NVFP4 paged-context attention, and of what shows the pages of its cache.

use bakewell::{Device, Operation};
use bakewell_conformance::Golden;
use bakewell_conformance::nvfp4_context::{self, Inputs, PagesInputs};

use super::case::{AnyCase, Case, boxed};
use super::{Args, folders};

/// Goldens in every way that the device has a program for, and with the source tree's also the generated cases.
pub(super) fn cases(args: &Args, device: &Device) -> anyhow::Result<Vec<Box<dyn AnyCase>>> {
    let (goldens, generated) = folders(args, Operation::Nvfp4Context)?;
    let mut cases = Vec::new();
    for golden in Golden::<Inputs>::load_all(&goldens)? {
        for (way, inputs) in golden.inputs.ways(device) {
            cases.push(Case::golden(Golden { name: format!("{} {way}", golden.name), inputs, ..golden.clone() }));
        }
    }
    let mut pages: Vec<_> = Golden::<PagesInputs>::load_all(&goldens)?
        .into_iter()
        .map(|golden| Case::golden(Golden { name: format!("{} pages", golden.name), ..golden }))
        .collect();
    if generated.is_some() {
        for case in nvfp4_context::cases().into_iter().filter(|case| case.runs_on(device)) {
            cases.push(Case::generated(&case.name, case.inputs())?);
        }
        pages.push(Case::generated("every product", PagesInputs::every_product())?);
    }
    Ok(boxed(cases).into_iter().chain(boxed(pages)).collect())
}
