//! The emulator under chosen options: orders of warps and of asynchronous work, SM counts.

use std::sync::Arc;

use bakewell::emulator::{CompletionPolicy, EmulatedRuntime, Options};
use bakewell::{Arch, Device};

/// Seeds and completion times: at once, as late as possible, at random.
pub const ORDERS: [(u64, CompletionPolicy); 5] = [
    (0, CompletionPolicy::Eager),
    (0, CompletionPolicy::Lazy),
    (1, CompletionPolicy::Random),
    (2, CompletionPolicy::Random),
    (3, CompletionPolicy::Random),
];

fn runtime(arch: Arch, change: impl FnOnce(&mut Options)) -> Arc<EmulatedRuntime> {
    let mut options = EmulatedRuntime::options(arch);
    change(&mut options);
    EmulatedRuntime::with_options(arch, options)
}

/// A device with every check on and changed options.
///
/// # Panics
/// When the architecture is not compiled in.
pub fn device(arch: Arch, change: impl FnOnce(&mut Options)) -> Device {
    Device::with_runtime(runtime(arch, change)).unwrap()
}

/// Runs on devices of `sm_count` SMs under each of some orders: equal results, and not even a warning.
///
/// # Panics
/// When a run fails, gives something else, or leaves a finding.
pub fn every_order_gives_the_same<T: PartialEq>(
    what: &str,
    arch: Arch,
    sm_count: u32,
    orders: &[(u64, CompletionPolicy)],
    run: impl Fn(&Device) -> Result<T, String>,
) {
    let mut first = None;
    for &(seed, policy) in orders {
        let what = format!("{what} on {arch}, seed {seed}, {policy:?}");
        let runtime = runtime(arch, |options| {
            (options.seed, options.policy, options.sm_count) = (seed, policy, sm_count);
        });
        let device = Device::with_runtime(runtime.clone()).unwrap();
        let got = run(&device).unwrap_or_else(|failure| panic!("{what}: {failure}"));
        if let Some(finding) = runtime.take_report().findings.first() {
            panic!("{what}: {finding}");
        }
        match &first {
            Some(first) => assert!(*first == got, "{what}: other bytes"),
            None => first = Some(got),
        }
    }
}
