//! Planted faults of asynchronous work: proxy fences, completion, reuse of sources, work left at exit, cluster peers.

mod common;

use bakewell_emulator::{Kind, Target};
use common::Case;

const SHARED: &str = ".shared .align 128 .b8 tile[4096]; .shared .align 8 .b8 bars[64];";

/// 64 threads fill a tile, thread 0 stores it to global memory in bulk.
fn store(writer_fence: &str, issuer_fence: &str, wait: &str, then: &str) -> String {
    format!(
        "mov.u32 %r0, tile; shl.b32 %r1, %tid, 2; add.u32 %r2, %r0, %r1; st.shared.u32 [%r2], %tid;
         {writer_fence}
         bar.sync 0;
         setp.eq.u32 %p0, %tid, 0; @!%p0 bra joined;
         {issuer_fence}
         cp.async.bulk.global.shared::cta.bulk_group [%data], [%r0], 256;
         cp.async.bulk.commit_group;
         {wait}
         joined: bar.sync 0;
         {then}"
    )
}

const FENCE: &str = "fence.proxy.async.shared::cta;";
const READ: &str = "cp.async.bulk.wait_group.read 0;";

#[test]
fn generic_writes_need_a_proxy_fence_before_a_bulk_store() {
    let case = Case::new(1, 64);
    case.clean(SHARED, &store(FENCE, "", READ, ""));
    case.clean(SHARED, &store("fence.proxy.async;", "", READ, ""));
    let words = ["tile + 0", "cp.async.bulk.global", "st.shared", "fence.proxy.async.shared::cta"];
    case.fault(SHARED, &store("", "", READ, ""), Kind::MissingProxyFence, &words);
    // A fence for global memory is another fence.
    case.fault(SHARED, &store("fence.proxy.async.global;", "", READ, ""), Kind::MissingProxyFence, &words);
    case.warning(SHARED, &store("", FENCE, READ, ""), Kind::MissingProxyFence, &["the writer should execute"]);
}

#[test]
fn sources_of_bulk_stores_are_reused_after_their_reads() {
    let again = "st.shared.u32 [%r2], %r1;";
    let case = Case::new(1, 64);
    case.clean(SHARED, &store(FENCE, "", READ, again));
    let late = format!("{again} {READ}");
    case.fault(SHARED, &store(FENCE, "", "", &late), Kind::Race, &["tile", "st.shared", "cp.async.bulk.global"]);
}

#[test]
fn results_of_bulk_stores_are_read_after_their_completion() {
    let case = Case::new(1, 64);
    let load = "ld.global.u32 %r5, [%data];";
    case.clean(SHARED, &store(FENCE, "", "cp.async.bulk.wait_group 0;", load));
    case.fault(SHARED, &store(FENCE, "", READ, load), Kind::Race, &["data + 0", "ld.global", "cp.async.bulk.global"]);
}

/// Thread 0 loads a tile in bulk; everybody reads it.
fn load(init: &str, wait: &str) -> String {
    format!(
        "mov.u32 %r0, tile; mov.u32 %r5, bars; shl.b32 %r1, %tid, 2; add.u32 %r2, %r0, %r1;
         setp.eq.u32 %p0, %tid, 0; @!%p0 bra ready;
         mbarrier.init.shared::cta.b64 [%r5], 1; {init}
         ready: bar.sync 0;
         @!%p0 bra wait;
         mbarrier.arrive.expect_tx.shared::cta.b64 %rd1, [%r5], 256;
         cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r0], [%data], 256, [%r5];
         wait: {wait}
         ld.shared.u32 %r3, [%r2];"
    )
}

const INIT: &str = "fence.mbarrier_init.release.cluster;";
const WAIT: &str = "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], 0; @!%p1 bra wait;";

#[test]
fn bulk_loads_are_read_after_their_phase() {
    let case = Case::new(1, 64);
    case.clean(SHARED, &load(INIT, WAIT));
    case.clean(SHARED, &load("fence.proxy.async;", WAIT));
    let wrong = "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], 1; @!%p1 bra wait;";
    // The read comes before the copy, and then nobody wrote the bytes, or behind it without order.
    case.fault_of(SHARED, &load(INIT, wrong), &[Kind::Race, Kind::Uninitialised], &["ld.shared"]);
}

#[test]
fn initialisation_without_fence_is_a_warning() {
    Case::new(1, 64).warning(SHARED, &load("", WAIT), Kind::MissingProxyFence, &["MB07", "mbarrier bars + 0"]);
}

#[test]
fn a_waiting_warp_may_tell_others() {
    // Warp 0 waits for the copy and a CTA barrier hands that on.
    let body = load(
        INIT,
        "setp.ne.u32 %p2, %warp, 0; @%p2 bra told; poll: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], 0; @!%p1 bra poll; told: bar.sync 0;",
    );
    Case::new(1, 64).clean(SHARED, &body);
}

#[test]
fn loads_that_nobody_waited_for() {
    let body = load(INIT, "bra done;") + " done:";
    Case::new(1, 64).fault_of(
        SHARED,
        &body,
        // Landed but not seen, or still to come.
        &[Kind::Leak, Kind::Mbarrier],
        &["the CTA exits"],
    );
}

/// Thread 0 loads a tile, everybody reads it and says so, thread 0 loads the next one into the same place.
fn reload(reader_fence: &str, issuer_fence: &str) -> String {
    load(&format!("mbarrier.init.shared::cta.b64 [%r5 + 8], 64; {INIT}"), WAIT)
        + &format!(
            "{reader_fence} mbarrier.arrive.shared::cta.b64 %rd2, [%r5 + 8];
             @!%p0 bra second;
             empty: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5 + 8], 0; @!%p1 bra empty;
             {issuer_fence} mbarrier.arrive.expect_tx.shared::cta.b64 %rd1, [%r5], 256;
             cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r0], [%data + 256], 256, [%r5];
             second: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], 1; @!%p1 bra second;
             ld.shared.u32 %r4, [%r2];"
        )
}

#[test]
fn reads_are_fenced_before_a_copy_overwrites_them() {
    let case = Case::new(1, 64);
    case.clean(SHARED, &reload(FENCE, ""));
    case.clean(SHARED, &reload("", FENCE));
    let words = ["tile + 0", "may overtake", "ld.shared", "fence.proxy.async.shared::cta"];
    case.warning(SHARED, &reload("", ""), Kind::MissingProxyFence, &words);
    case.warning(SHARED, &reload("fence.proxy.async.global;", ""), Kind::MissingProxyFence, &words);
}

/// CTA 1 signals a mbarrier of CTA 0 with the given scope, after a store to its memory.
fn signal(scope: &str) -> String {
    format!(
        "mov.u32 %r5, bars; mov.u32 %r6, 0; mov.u32 %r0, tile;
         setp.eq.u32 %p0, %tid, 0; @!%p0 bra ready;
         mbarrier.init.shared::cta.b64 [%r5], 1; {INIT}
         ready: {CLUSTER}
         setp.eq.u32 %p1, %rank, 1; @!%p1 bra wait; @!%p0 bra done;
         mapa.shared::cluster.u32 %r1, %r0, 0; st.shared::cluster.u32 [%r1], 7;
         mapa.shared::cluster.u32 %r2, %r5, 0; mbarrier.arrive.release.{scope}.shared::cluster.b64 _, [%r2];
         bra done;
         wait: mbarrier.try_wait.parity.acquire.{scope}.shared::cta.b64 %p2, [%r5], 0; @!%p2 bra wait;
         ld.shared.u32 %r3, [%r0];
         done: {CLUSTER}"
    )
}

#[test]
fn signals_to_a_peer_have_cluster_scope() {
    let case = Case::new(2, 32).cluster(2);
    case.clean(SHARED, &signal("cluster"));
    case.warning(SHARED, &signal("cta"), Kind::Race, &["mbarrier bars + 0", ".cta scope", ".release.cta"]);
    for report in case.run(SHARED, &signal("cta")) {
        assert!(report.is_clean());
    }
}

/// Two CTAs: each writes a word into the other's memory.
fn exchange(start: &str, order: &str) -> String {
    format!(
        "mov.u32 %r0, tile; xor.b32 %r1, %rank, 1; mapa.shared::cluster.u32 %r2, %r0, %r1;
         {start}
         setp.eq.u32 %p0, %tid, 0; @%p0 st.shared::cluster.u32 [%r2], %rank;
         {order}
         ld.shared.u32 %r3, [%r0];"
    )
}

const CLUSTER: &str = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";

#[test]
fn cluster_peers_meet_before_and_after() {
    let case = Case::new(2, 32).cluster(2);
    case.clean(SHARED, &exchange(CLUSTER, CLUSTER));
    let relaxed = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;";
    // Knowing that a peer runs needs no memory order; reading what it wrote does.
    case.clean(SHARED, &exchange(relaxed, CLUSTER));
    case.fault(SHARED, &exchange(CLUSTER, relaxed), Kind::Race, &["tile", "st.shared::cluster", "ld.shared"]);
    case.fault(SHARED, &exchange("", CLUSTER), Kind::ClusterLifetime, &["st.shared::cluster", "may not have started"]);
}

#[test]
fn peers_do_not_exit_before_their_memory_was_used() {
    let body = format!(
        "mov.u32 %r0, tile; xor.b32 %r1, %rank, 1; mapa.shared::cluster.u32 %r2, %r0, %r1; st.shared.u32 [%r0], %tid;
         {CLUSTER} setp.eq.u32 %p0, %tid, 0; @%p0 ld.shared::cluster.u32 %r3, [%r2];"
    );
    let body = body.replace("st.shared.u32 [%r0], %tid;", "setp.eq.u32 %p1, %tid, 0; @%p1 st.shared.u32 [%r0], %tid;");
    let case = Case::new(2, 32).cluster(2);
    case.clean(SHARED, &format!("{body} {CLUSTER}"));
    case.fault(SHARED, &body, Kind::ClusterLifetime, &["exit"]);
}

/// st.shared, then one wgmma that reads it.
fn wgmma(fence: &str, after: &str) -> String {
    let registers: Vec<String> = (0..4).map(|i| format!("%f{i}")).collect();
    let zero: String = (0..4).map(|i| format!("mov.f32 %f{i}, 0f00000000; ")).collect();
    format!(
        "mov.u32 %r0, tile; shl.b32 %r1, %tid, 4; add.u32 %r2, %r0, %r1; mov.u32 %r9, 0; {zero}
         st.shared.v4.b32 [%r2], {{%r9, %r9, %r9, %r9}};
         {fence}
         bar.sync 0;
         and.b32 %r3, %r0, 262143; shr.u32 %r3, %r3, 4; cvt.u64.u32 %rd1, %r3; or.b64 %rd1, %rd1, 0x0000000800080000;
         wgmma.fence.sync.aligned;
         wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{{}}}, %rd1, %rd1, 1, 1, 1, 0, 0;
         wgmma.commit_group.sync.aligned;
         {after}",
        registers.join(", ")
    )
}

#[test]
fn wgmma_operands() {
    let wait = "wgmma.wait_group.sync.aligned 0;";
    let again = "bar.sync 0; st.shared.v4.b32 [%r2], {%r9, %r9, %r9, %r9};";
    let case = Case::new(1, 128).on(Target::Sm90);
    case.clean(SHARED, &wgmma(FENCE, &format!("{wait} {again}")));
    case.fault(SHARED, &wgmma("", wait), Kind::MissingProxyFence, &["tile", "wgmma.mma_async", "st.shared"]);
    case.fault(
        SHARED,
        &wgmma(FENCE, &format!("{again} {wait}")),
        Kind::Race,
        &["tile", "st.shared", "wgmma.mma_async"],
    );
}

#[test]
fn lanes_that_all_issue_one_copy_are_a_warning() {
    // All lanes of warp 0 store the tile; each writes the same bytes.
    let all = store(FENCE, "", READ, "").replace("setp.eq.u32 %p0, %tid, 0;", "setp.lt.u32 %p0, %tid, 32;");
    let case = Case::new(1, 64);
    case.warning(SHARED, &all, Kind::Race, &["data + 0", "cp.async.bulk.global"]);
    for report in case.run(SHARED, &all) {
        assert!(report.is_clean());
    }
}
