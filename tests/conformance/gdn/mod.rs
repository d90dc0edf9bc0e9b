//! Chunked Gated DeltaNet training.

mod errors;
#[cfg(feature = "emulator")]
mod stages;
#[cfg(feature = "emulator")]
mod tables;
mod values;

use bakewell_conformance::gdn::Golden;
use bakewell_tests::data;

fn goldens() -> Vec<Golden> {
    Golden::load_all(&data("golden/gdn")).unwrap()
}
