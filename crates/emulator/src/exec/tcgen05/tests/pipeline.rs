//! mma, commit, mbarrier wait, ld: with every checker and completion policy.

use super::*;
use crate::async_engine::CompletionPolicy::{Eager, Lazy, Random};

/// One bf16 product whose operands threads wrote to shared memory; `fence`, `commit` and `wait` are the parts a fault
/// leaves out.
fn program(fence: &str, commit: &str, wait: &str) -> String {
    let p = k_major(128, 1024);
    let mut steps = String::new();
    for step in 0..4u64 {
        let enable = if step == 0 { "%p4" } else { "%p3" };
        steps.push_str(&format!(
            "mov.b64 %w0, {:#x}; mov.b64 %w1, {:#x}; @%p0 tcgen05.mma.cta_group::1.kind::f16 [%t20], %w0, %w1, %t25, {enable};\n",
            descriptor(p, 0) + 2 * step,
            descriptor(p, 16384) + 2 * step,
        ));
    }
    format!(
        ".shared .align 8 .b64 full; .shared .align 4 .b32 slot; .reg .pred %done;
         setp.lt.u32 %p2, %tid, 32; setp.eq.u32 %p0, %tid, 0; setp.ge.u32 %p3, %tid, 0; setp.lt.u32 %p4, %tid, 0;
         @%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;
         @%p0 mbarrier.init.shared::cta.b64 [full], 1;
         @%p0 fence.mbarrier_init.release.cluster;
         {fence}
         bar.sync 0;
         ld.shared.b32 %t20, [slot]; and.b32 %t21, %tid, 96; shl.b32 %t21, %t21, 16; add.u32 %t22, %t20, %t21;
         mov.b32 %t25, 0x08080490;
         {steps}
         {commit}
         {wait}
         tcgen05.fence::after_thread_sync;
         tcgen05.ld.sync.aligned.32x32b.x32.b32 {}, [%t22];
         tcgen05.wait::ld.sync.aligned;
         tcgen05.fence::before_thread_sync;
         bar.sync 0;
         @%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t20, 32;",
        list("o", 32)
    )
}

const FENCE: &str = "fence.proxy.async.shared::cta;";
const COMMIT: &str = "@%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [full];";
const WAIT: &str = "spin: mbarrier.try_wait.parity.shared::cta.b64 %done, [full], 0; @!%done bra spin;";

fn image() -> Vec<u8> {
    let mut image = Vec::new();
    let p = k_major(128, 1024);
    place(&mut image, 0, p, Code::Bf16, (128, 64, 1));
    place(&mut image, 16384, p, Code::Bf16, (32, 64, 2));
    image
}

#[test]
fn clean_under_every_policy_and_seed() {
    let image = image();
    for policy in [Eager, Lazy, Random] {
        for seed in 0..4 {
            let (report, out) = cta(Target::Sm100, &image, 32).run(&program(FENCE, COMMIT, WAIT), |options| {
                options.policy = policy;
                options.seed = seed;
                options.checks.order = true;
            });
            assert!(report.findings.is_empty(), "{policy:?} {seed}: {}", report.findings[0]);
            for row in 0..128 {
                for column in 0..32 {
                    let sum: f64 = (0..64).map(|t| value(1, row, t) * value(2, column, t)).sum();
                    assert_eq!(out[column][row], (sum as f32).to_bits(), "[{row}][{column}]");
                }
            }
        }
    }
}

#[test]
fn missing_parts_are_found() {
    let image = image();
    for (fence, wait, part) in [("", WAIT, "fence.proxy.async"), (FENCE, "", "flight")] {
        let (report, _) = cta(Target::Sm100, &image, 32).run(&program(fence, COMMIT, wait), |options| {
            options.policy = Lazy;
            options.checks.order = true;
        });
        let found = report.findings.iter().any(|f| !f.warning && f.message.contains(part));
        assert!(found, "{part}: {:?}", report.findings);
    }
}
