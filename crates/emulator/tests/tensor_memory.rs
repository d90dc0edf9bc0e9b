//! Planted faults of tensor memory: accumulators, operands, allocation.

mod common;

use bakewell_emulator::{Kind, Target};
use common::Case;

const SHARED: &str = ".shared .align 1024 .b8 tile[16384]; .shared .align 8 .b64 full; .shared .align 4 .b32 slot;";

/// The parts of a product of zeros, each of which a test may leave out.
#[derive(Clone, Copy)]
struct Parts {
    proxy_fence: &'static str,
    wait: &'static str,
    after: &'static str,
    reuse: &'static str,
    loaded: &'static str,
    free: &'static str,
}

const GOOD: Parts = Parts {
    proxy_fence: "fence.proxy.async.shared::cta;",
    wait: "spin: mbarrier.try_wait.parity.shared::cta.b64 %p5, [full], 0; @!%p5 bra spin;",
    after: "tcgen05.fence::after_thread_sync;",
    reuse: "",
    loaded: "tcgen05.wait::ld.sync.aligned;",
    free: "@%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 32;",
};

/// M = 128, N = 16, K = 16 in bf16; both operands are the first bytes of the tile.
fn body(parts: Parts) -> String {
    let Parts { proxy_fence, wait, after, reuse, loaded, free } = parts;
    let zeros: String = (0..16).map(|i| format!("st.shared.b64 [%r1+{}], 0;\n", i * 1024)).collect();
    format!(
        "setp.lt.u32 %p2, %tid, 32; setp.eq.u32 %p0, %tid, 0; setp.lt.u32 %p4, %tid, 0;
         @%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;
         @%p0 mbarrier.init.shared::cta.b64 [full], 1; @%p0 fence.mbarrier_init.release.cluster;
         mov.u32 %r0, tile; shl.b32 %r1, %tid, 3; add.u32 %r1, %r0, %r1; mov.b64 %rd9, 0;
         {zeros}
         {proxy_fence}
         bar.sync 0;
         tcgen05.fence::after_thread_sync;
         ld.shared.b32 %r20, [slot]; and.b32 %r21, %tid, 96; shl.b32 %r21, %r21, 16; add.u32 %r22, %r20, %r21;
         and.b32 %r3, %r0, 262143; shr.u32 %r3, %r3, 4; cvt.u64.u32 %rd1, %r3; or.b64 %rd1, %rd1, 0x4000400000080000;
         mov.b64 %rd2, 0x4000004000080000; and.b64 %rd3, %rd1, 65535; or.b64 %rd1, %rd3, 0x0000401000080000;
         mov.b32 %r25, 0x08040490;
         @%p0 tcgen05.mma.cta_group::1.kind::f16 [%r20], %rd1, %rd1, %r25, %p4;
         @%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [full];
         {reuse}
         {wait}
         {after}
         tcgen05.ld.sync.aligned.32x32b.x16.b32 {{%r30, %r31, %r32, %r33, %r34, %r35, %r36, %r37, %r38, %r39, %r40, %r41, %r42, %r43, %r44, %r45}}, [%r22];
         {loaded}
         tcgen05.fence::before_thread_sync;
         bar.sync 0;
         {free}"
    )
    .replace("], 0;", "], %rd9;")
    .replace("[full], %rd9", "[full], 0")
}

fn case() -> Case {
    Case::new(1, 128).on(Target::Sm100)
}

#[test]
fn every_part_in_place() {
    case().clean(SHARED, &body(GOOD));
}

#[test]
fn ctas_of_a_cluster_have_their_own_tensor_memory() {
    Case::new(2, 128).on(Target::Sm100).cluster(2).clean(SHARED, &body(GOOD));
}

#[test]
fn operands_written_without_a_proxy_fence() {
    let parts = Parts { proxy_fence: "", ..GOOD };
    case().fault(SHARED, &body(parts), Kind::MissingProxyFence, &["tile", "tcgen05.mma", "st.shared"]);
}

#[test]
fn accumulator_read_before_the_commit_was_seen() {
    let parts = Parts { wait: "", ..GOOD };
    case().fault_of(SHARED, &body(parts), &[Kind::Race, Kind::TensorMemory], &["tcgen05.ld"]);
}

#[test]
fn operands_overwritten_before_the_commit_was_seen() {
    let parts = Parts { reuse: "st.shared.b64 [%r1], %rd9;", ..GOOD };
    case().fault(SHARED, &body(parts), Kind::Race, &["tile", "st.shared", "tcgen05.mma"]);
}

#[test]
fn missing_fence_is_a_warning() {
    let parts = Parts { after: "", ..GOOD };
    case().warning(SHARED, &body(parts), Kind::TensorMemory, &["fence::after_thread_sync", "tcgen05.ld"]);
}

#[test]
fn memory_not_freed() {
    let parts = Parts { free: "", ..GOOD };
    case().fault(SHARED, &body(parts), Kind::Leak, &["column"]);
}

/// One warp loads its lanes, another overwrites them; between them the pattern of the ISA: fence, relaxed arrival,
/// relaxed wait, fence.
fn handed_over(before: &str, arrive: &str) -> String {
    format!(
        "setp.lt.u32 %p2, %tid, 32; setp.eq.u32 %p0, %tid, 0; setp.ge.u32 %p4, %tid, 128;
         @%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;
         @%p0 mbarrier.init.shared::cta.b64 [full], 32; @%p0 fence.mbarrier_init.release.cluster;
         bar.sync 0;
         ld.shared.b32 %r20, [slot]; mov.u32 %r30, 0;
         @%p2 bra reader; @%p4 bra writer; bra done;
         reader: tcgen05.st.sync.aligned.32x32b.x1.b32 [%r20], {{%r30}}; tcgen05.wait::st.sync.aligned;
         tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r31}}, [%r20]; tcgen05.wait::ld.sync.aligned;
         {before} {arrive} bra done;
         writer: mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %p5, [full], 0; @!%p5 bra writer;
         tcgen05.fence::after_thread_sync;
         tcgen05.st.sync.aligned.32x32b.x1.b32 [%r20], {{%r30}}; tcgen05.wait::st.sync.aligned;
         done: bar.warp.sync -1; bar.sync 0;
         @%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 32;"
    )
}

#[test]
fn fences_of_tensor_memory_order_it_across_relaxed_arrivals() {
    let case = Case::new(1, 160).on(Target::Sm100);
    let before = "tcgen05.fence::before_thread_sync;";
    let arrive = "mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [full];";
    case.clean(SHARED, &handed_over(before, arrive));
    case.fault(SHARED, &handed_over("", arrive), Kind::Race, &["tcgen05.st"]);
}
