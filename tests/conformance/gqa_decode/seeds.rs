//! The shipped programs under other orders of warps and of asynchronous completions: equal bytes, no finding.

use bakewell::emulator::{CompletionPolicy, Options, Target};
use bakewell::gqa_decode::GqaDecode;
use bakewell::{Arch, Device};
use bakewell_conformance::gqa_decode::{Distribution, Inputs};
use bakewell_tests::runs::outputs;

/// The target of an architecture's programs.
fn target(arch: Arch) -> Target {
    Target::parse(arch.target()).expect("every architecture is a target")
}

/// Short, one split, global partials: each with a length that is no multiple of a tile, and an empty request.
#[test]
fn every_seed_gives_the_same_bytes() {
    for arch in Arch::ALL {
        for (capacity, num_splits) in [(60, None), (300, Some(1)), (300, Some(2))] {
            let problem =
                GqaDecode { capacity, query_heads: 4, kv_heads: 1, num_splits, lse: true, ..GqaDecode::default() };
            let inputs = Inputs::generate(&problem, &[capacity as i32 - 3, 0], Distribution::Normal, 51).unwrap();
            let mut first = None;
            for (seed, policy) in [
                (0, CompletionPolicy::Eager),
                (0, CompletionPolicy::Lazy),
                (1, CompletionPolicy::Random),
                (2, CompletionPolicy::Random),
                (3, CompletionPolicy::Random),
            ] {
                let options = Options { seed, policy, sm_count: 4, ..Options::new(target(arch)) };
                let device = Device::emulated_with(arch, options).unwrap();
                let got = outputs(&device, &inputs)
                    .unwrap_or_else(|failure| panic!("{device}, {problem:?}, seed {seed}, {policy:?}: {failure}"));
                let same = *first.get_or_insert_with(|| got.clone()) == got;
                assert!(same, "{device}, {problem:?}: seed {seed}, {policy:?} gives other bytes");
            }
        }
    }
}
