//! The shipped programs under other orders of warps and of asynchronous completions: equal bytes, no finding.

use bakewell::Arch;
use bakewell::gqa_decode::GqaDecode;
use bakewell_conformance::gqa_decode::{Distribution, Inputs};
use bakewell_tests::emulated::{ORDERS, every_order_gives_the_same};
use bakewell_tests::runs::outputs;

/// Short, one split, global partials: each with a length that is no multiple of a tile, and an empty request.
#[test]
fn every_seed_gives_the_same_bytes() {
    for arch in Arch::ALL {
        for (capacity, num_splits) in [(60, None), (300, Some(1)), (300, Some(2))] {
            let problem =
                GqaDecode { capacity, query_heads: 4, kv_heads: 1, num_splits, lse: true, ..GqaDecode::default() };
            let inputs = Inputs::generate(&problem, &[capacity as i32 - 3, 0], Distribution::Normal, 51).unwrap();
            let what = format!("{problem:?}");
            every_order_gives_the_same(&what, arch, 4, &ORDERS, |device| outputs(device, &inputs));
        }
    }
}
