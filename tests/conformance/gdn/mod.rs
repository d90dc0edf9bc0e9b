//! Chunked Gated DeltaNet training.

#[cfg(feature = "emulator")]
mod stages;
mod values;

use bakewell_conformance::gdn::Golden;
use bakewell_tests::data;

fn goldens() -> Vec<Golden> {
    Golden::load_all(&data("golden/gdn")).unwrap()
}
