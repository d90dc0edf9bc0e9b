//! Cluster barrier, distributed shared memory, lifetimes.

use crate::exec::async_testing::{Case, words};

const BARRIER: &str = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;";

fn pair(body: &str) -> Case<'_> {
    Case { ctas: 4, cluster: 2, threads: 64, ..Case::new(body) }
}

#[test]
fn neighbours_exchange_through_distributed_shared_memory() {
    let body = format!(
        "mov.u32 %r3, tile; mad.lo.u32 %r4, %r0, 4, %r3; mov.u32 %r5, %ctaid.x; mad.lo.u32 %r6, %r5, 1000, %r0;
         st.shared.u32 [%r4], %r6; {BARRIER}
         xor.b32 %r7, %r1, 1; mapa.shared::cluster.u32 %r8, %r4, %r7; ld.shared::cluster.u32 %r9, [%r8];
         cvta.shared.u64 %rd2, %rd3; mov.u32 %r10, %r9;
         mad.lo.u32 %r11, %r5, 64, %r0; mul.wide.u32 %rd4, %r11, 4; add.u64 %rd4, %rd1, %rd4; st.global.u32 [%rd4], %r10; {BARRIER}"
    );
    let body = body.replace("cvta.shared.u64 %rd2, %rd3; ", "");
    let found = words(&pair(&body).output()[..1024]);
    for (i, &word) in found.iter().enumerate() {
        let (cta, thread) = (i as u32 / 64, i as u32 % 64);
        assert_eq!(word, (cta ^ 1) * 1000 + thread);
    }
}

#[test]
fn threads_that_exited_count_as_arrived() {
    let body = format!(
        "setp.ge.u32 %p1, %r0, 32; @%p1 bra GO; setp.eq.u32 %p2, %r1, 0; @%p2 barrier.cluster.arrive.release; exit;
         GO: {BARRIER} {BARRIER} mov.u32 %r5, %ctaid.x; mul.wide.u32 %rd4, %r5, 4; add.u64 %rd4, %rd1, %rd4; mov.u32 %r6, 7;
         setp.eq.u32 %p3, %r0, 32; @%p3 st.global.u32 [%rd4], %r6;"
    );
    assert_eq!(words(&pair(&body).output()[..16]), [7; 4]);
}

/// Nobody waits for the phase that these arrivals belong to: what orders them before the exit is the cluster barrier.
#[test]
fn an_arrival_that_nobody_awaits_needs_order_before_the_exit() {
    let body = |last: &str| {
        format!(
            "setp.ne.u32 %p1, %r0, 0; mov.u32 %r2, bars; @%p1 bra MET; mbarrier.init.shared::cta.b64 [%r2], 4;
             fence.mbarrier_init.release.cluster; MET: {BARRIER} @%p1 bra DONE; xor.b32 %r4, %r1, 1;
             mapa.shared::cluster.u32 %r3, %r2, %r4; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];
             DONE: bar.warp.sync -1; {last}"
        )
    };
    pair(&body(BARRIER)).output();
    let relaxed = BARRIER.replace("release", "relaxed");
    pair(&body(&relaxed)).finds("exits without order");
}

#[test]
fn broken_rules() {
    let arrive = "barrier.cluster.arrive.aligned;";
    pair(&format!("{arrive} {arrive}")).finds("arrives at the cluster barrier twice");
    pair("barrier.cluster.wait.aligned;").finds("without arriving");
    pair(&format!(
        "setp.eq.u32 %p1, %r1, 0; @%p1 bra SKIP; {arrive} barrier.cluster.wait.aligned; exit; SKIP: mov.u32 %r2, bars;
        setp.eq.u32 %p2, %r0, 0; @%p2 mbarrier.init.shared.b64 [%r2], 1; bar.sync 0;
        WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0; @!%p2 bra WAIT;"
    ))
    .finds("cluster barrier: 64 of 128 threads");
    pair("mov.u32 %r3, tile; mapa.shared::cluster.u32 %r4, %r3, 2; st.shared::cluster.u32 [%r4], %r3;")
        .finds("rank 2 in a cluster of 2");
    // The address alone harms nobody.
    let mapped = pair(
        "mov.u32 %r3, tile; mapa.shared::cluster.u32 %r4, %r3, %r0; shr.u32 %r4, %r4, 24;
         mul.wide.u32 %rd4, %r0, 4; add.u64 %rd4, %rd1, %rd4; setp.eq.u32 %p1, %r1, 0; @%p1 st.global.u32 [%rd4], %r4;",
    );
    assert_eq!(words(&Case { ctas: 2, ..mapped }.output()[..256]), (0..64).collect::<Vec<u32>>());
    pair(
        "setp.eq.u32 %p1, %r1, 0; @%p1 exit; mov.u32 %r3, tile; mov.u32 %r6, 0; mapa.shared::cluster.u32 %r4, %r3, %r6; mov.u32 %r5, 0;
         LOOP: add.u32 %r5, %r5, 1; nanosleep.u32 100; setp.lt.u32 %p2, %r5, 200; @%p2 bra LOOP; st.shared::cluster.u32 [%r4], %r5;",
    )
    .finds("which exited");
}
