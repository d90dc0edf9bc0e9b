//! One kernel per form and per broken rule.

use crate::async_engine::CompletionPolicy;
use crate::exec::async_testing::{Case, words};

/// Thread 0 of each CTA initialises `bars[0]` and `bars[1]`; then `body`.
fn start(body: &str) -> String {
    format!(
        "setp.eq.u32 %p1, %r0, 0; mov.u32 %r2, bars; mov.u32 %r3, tile;
         @%p1 mbarrier.init.shared::cta.b64 [%r2], 1; @%p1 mbarrier.init.shared::cta.b64 [%r2 + 8], 1;
         fence.mbarrier_init.release.cluster; barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
         {body}
         barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
    )
}

const WAIT: &str = "WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r2], 0; @!%p2 bra WAIT;";
/// Each of 32 threads writes 16 bytes of the tile to the output of its CTA.
const OUT: &str = "shl.b32 %r10, %r0, 4; add.u32 %r11, %r3, %r10; ld.shared.v4.u32 {%r12, %r13, %r14, %r15}, [%r11];
    mad.lo.u32 %r10, %r1, 512, %r10; cvt.u64.u32 %rd9, %r10; add.u64 %rd9, %rd1, %rd9; st.global.v4.u32 [%rd9], {%r12, %r13, %r14, %r15};";

#[test]
fn global_to_shared() {
    let body = start(&format!(
        "@%p1 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r2], 512;
         @%p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r3], [%rd0 + 32], 256, [%r2];
         @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r3 + 256], [%rd0 + 4096], 256, [%r2], 0x12F0000000000000;
         {WAIT} {OUT}"
    ));
    let case = Case::new(&body);
    let output = case.output();
    assert_eq!(output[..256], case.input[32..288]);
    assert_eq!(output[256..512], case.input[4096..4352]);
    assert!(output[512..].iter().all(|&b| b == 0xcd));
    let (report, _) = case.run(crate::CompletionPolicy::Random, 0);
    assert_eq!(report.counters.bytes(crate::trace::Path::BulkLoad), 512);
}

#[test]
fn multicast_fills_every_chosen_cta() {
    let body = start(&format!(
        "@%p1 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r2], 512;
         setp.eq.u32 %p3, %r1, 1; and.pred %p3, %p3, %p1; mov.b16 %h0, 7;
         @%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r3], [%rd0], 512, [%r2], %h0;
         {WAIT} {OUT}"
    ));
    let case = Case { ctas: 3, cluster: 3, ..Case::new(&body) };
    let output = case.output();
    for rank in 0..3 {
        assert_eq!(output[rank * 512..][..512], case.input[..512], "rank {rank}");
    }
}

#[test]
fn masks_of_32_bits() {
    // Rank 1 expects, copies and arrives for all; the upper bits of a 16-bit mask do not count.
    let body = start(&format!(
        "setp.eq.u32 %p3, %r1, 1; and.pred %p3, %p3, %p1; mov.b32 %r9, 7; mov.b32 %r10, 0xffff0007;
         @%p3 mbarrier.expect_tx.relaxed.cluster.shared::cluster.multicast::cluster::32b.b64 [%r2], 256, %r9;
         @%p3 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.multicast::cluster::32b.b64 _, [%r2], 512, %r9;
         @%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster::32b [%r3], [%rd0], 512, [%r2], %r9;
         @%p3 mbarrier.complete_tx.relaxed.cluster.shared::cluster.multicast::cluster::16b.b64 [%r2], 256, %r10;
         {WAIT} {OUT}"
    ));
    let case = Case { target: crate::Target::Sm107, ctas: 3, cluster: 3, ..Case::new(&body) };
    let output = case.output();
    for rank in 0..3 {
        assert_eq!(output[rank * 512..][..512], case.input[..512], "rank {rank}");
    }
    Case { target: crate::Target::Sm107, ctas: 2, cluster: 2, ..case }.finds("CTA rank 2 in a cluster of 2");
}

#[test]
fn push_to_the_next_cta() {
    let body = start(&format!(
        "@%p1 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r2], 512;
         shl.b32 %r10, %r0, 4; add.u32 %r11, %r3, %r10; add.u32 %r11, %r11, 1024; mad.lo.u32 %r12, %r1, 100, %r0;
         st.shared.v4.u32 [%r11], {{%r12, %r12, %r12, %r12}}; fence.proxy.async.shared::cta; bar.sync 0;
         xor.b32 %r4, %r1, 1; mapa.shared::cluster.u32 %r5, %r3, %r4; mapa.shared::cluster.u32 %r6, %r2, %r4; add.u32 %r7, %r3, 1024;
         getctarank.shared::cluster.u32 %r8, %r5; setp.ne.u32 %p4, %r8, %r4; @%p4 trap;
         @%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r5], [%r7], 512, [%r6];
         {WAIT} {OUT}"
    ));
    let output = Case { ctas: 2, cluster: 2, ..Case::new(&body) }.output();
    let found = words(&output[..1024]);
    for (i, &word) in found.iter().enumerate() {
        let (rank, thread) = (i as u32 / 128, i as u32 % 128 / 4);
        assert_eq!(word, (rank ^ 1) * 100 + thread);
    }
}

/// Threads fill the tile with their number; thread 0 stores or reduces it.
fn store(instruction: &str) -> String {
    start(&format!(
        "shl.b32 %r10, %r0, 4; add.u32 %r11, %r3, %r10; st.shared.v4.u32 [%r11], {{%r0, %r0, %r0, %r0}};
         fence.proxy.async.shared::cta; bar.sync 0;
         @%p1 {instruction} @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0;"
    ))
}

#[test]
fn shared_to_global() {
    let body = store("cp.async.bulk.global.shared::cta.bulk_group [%rd1 + 16], [%r3], 512;");
    let output = Case::new(&body).output();
    let expected: Vec<u32> = (0..128).map(|i| i / 4).collect();
    assert_eq!(words(&output[16..528]), expected);
    let body =
        store("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.cp_mask [%rd1], [%r3], 512, %rd0, 0x0101;");
    let output = Case::new(&body).output();
    for (i, &byte) in output[..512].iter().enumerate() {
        let expected = if i % 16 == 0 || i % 16 == 8 { (i / 16) as u8 } else { 0xcd };
        assert_eq!(byte, expected, "byte {i}");
    }
}

#[test]
fn stores_of_a_cta_that_has_exited() {
    let body = store("cp.async.bulk.global.shared::cta.bulk_group [%rd1 + 16], [%r3], 512;");
    let body = body.replace("@%p1 cp.async.bulk.wait_group 0;", "");
    for seed in 0..8 {
        let (report, output) = Case::new(&body).run(CompletionPolicy::Lazy, seed);
        assert!(report.findings.iter().all(|f| f.warning), "{:?}", report.findings);
        assert_eq!(words(&output[16..528]), (0..128).map(|i| i / 4).collect::<Vec<u32>>());
    }
}

#[test]
fn reductions() {
    let body = store("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r3], 512;");
    let expected: Vec<u32> = (0..128).map(|i| 0xcdcd_cdcd + i / 4).collect();
    assert_eq!(words(&Case::new(&body).output()[..512]), expected);
    let body = store("cp.reduce.async.bulk.global.shared::cta.bulk_group.min.u32 [%rd1], [%r3], 512;");
    assert_eq!(words(&Case::new(&body).output()[..512]), (0..128).map(|i| i / 4).collect::<Vec<u32>>());
    let body = start(&format!(
        "@%p1 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r2], 512;
         shl.b32 %r10, %r0, 4; add.u32 %r11, %r3, %r10; st.shared.v4.u32 [%r11], {{%r0, %r0, %r0, %r0}};
         fence.proxy.async.shared::cta; barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
         xor.b32 %r4, %r1, 1; mapa.shared::cluster.u32 %r5, %r3, %r4; mapa.shared::cluster.u32 %r6, %r2, %r4;
         add.u32 %r7, %r3, 1024; add.u32 %r11, %r11, 1024; mov.u32 %r12, 1000; st.shared.v4.u32 [%r11], {{%r12, %r12, %r12, %r12}};
         fence.proxy.async.shared::cta; bar.sync 0;
         @%p1 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r5], [%r7], 512, [%r6];
         {WAIT} {OUT}"
    ));
    let output = Case { ctas: 2, cluster: 2, ..Case::new(&body) }.output();
    let expected: Vec<u32> = (0..256).map(|i| 1000 + i % 128 / 4).collect();
    assert_eq!(words(&output[..1024]), expected);
}

#[test]
fn cp_async_with_groups_and_zero_fill() {
    let body = start(&format!(
        "shl.b32 %r10, %r0, 4; add.u32 %r11, %r3, %r10; cvt.u64.u32 %rd5, %r10; add.u64 %rd5, %rd0, %rd5;
         cp.async.cg.shared.global [%r11], [%rd5], 16; cp.async.commit_group;
         and.b32 %r12, %r0, 1; shl.b32 %r12, %r12, 2; cp.async.ca.shared::cta.global [%r11 + 4], [%rd5 + 64], 4, %r12;
         cp.async.commit_group; cp.async.wait_group 1; bar.sync 0; cp.async.wait_all; bar.sync 0; {OUT}"
    ));
    // The order of the two copies of bytes 4..8 is not defined, so the first runs alone.
    let ordered =
        body.replace("[%rd5], 16; cp.async.commit_group;", "[%rd5], 16; cp.async.commit_group; cp.async.wait_group 0;");
    let case = Case::new(&ordered);
    let output = case.output();
    for thread in 0..32 {
        let mut expected = case.input[thread * 16..][..16].to_vec();
        let tail: &[u8] = if thread % 2 == 1 { &case.input[thread * 16 + 64..][..4] } else { &[0; 4] };
        expected[4..8].copy_from_slice(tail);
        assert_eq!(output[thread * 16..][..16], expected, "thread {thread}");
    }
}

#[test]
fn cp_async_arrives_at_a_barrier() {
    for (form, count) in [("noinc.", 32), ("", 1)] {
        let body = format!(
            "setp.eq.u32 %p1, %r0, 0; mov.u32 %r2, bars; mov.u32 %r3, tile; @%p1 mbarrier.init.shared::cta.b64 [%r2], {count}; fence.mbarrier_init.release.cluster; bar.sync 0;
             shl.b32 %r10, %r0, 4; add.u32 %r11, %r3, %r10; cvt.u64.u32 %rd5, %r10; add.u64 %rd5, %rd0, %rd5;
             cp.async.cg.shared.global [%r11], [%rd5], 16; cp.async.mbarrier.arrive.{form}shared::cta.b64 [%r2];
             bar.sync 0; @%p1 mbarrier.arrive.shared::cta.b64 _, [%r2 + 0]; {WAIT} {OUT}"
        );
        let body =
            if count == 32 { body.replace("@%p1 mbarrier.arrive.shared::cta.b64 _, [%r2 + 0];", "") } else { body };
        let case = Case::new(&body);
        assert_eq!(case.output()[..512], case.input[..512], "{form}");
    }
}

#[test]
fn cp_async_may_be_issued_before_its_barrier_exists() {
    let body = |first: &str, count: u32, form: &str| {
        format!(
            "setp.eq.u32 %p1, %r0, 0; mov.u32 %r2, bars; mov.u32 %r3, tile; shl.b32 %r10, %r0, 4; add.u32 %r11, %r3, %r10;
             cvt.u64.u32 %rd5, %r10; add.u64 %rd5, %rd0, %rd5; cp.async.cg.shared.global [%r11], [%rd5], 16;
             @%p1 mbarrier.init.shared::cta.b64 [%r2], {count}; {first}
             cp.async.mbarrier.arrive.{form}shared::cta.b64 [%r2]; bar.sync 0;
             {} {WAIT} {OUT}",
            if form.is_empty() { "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r2];" } else { "" }
        )
    };
    let fenced = "fence.mbarrier_init.release.cluster; bar.sync 0;";
    for (form, count) in [("noinc.", 64), ("", 1)] {
        let text = body(fenced, count, form);
        let case = Case { threads: 64, ..Case::new(&text) };
        assert_eq!(case.output()[..1024], case.input[..1024], "{form}");
    }
    // Without the barrier the arrivals of the second warp have no order behind the initialisation.
    let text = body("fence.mbarrier_init.release.cluster;", 64, "noinc.");
    let case = Case { threads: 64, ..Case::new(&text) };
    let found = (0..4).flat_map(|seed| case.run(crate::CompletionPolicy::Random, seed).0.findings);
    let found: Vec<String> = found.map(|finding| finding.to_string()).collect();
    assert!(found.iter().any(|text| text.contains("without order behind its initialisation")), "{found:#?}");
    // Nothing covers a copy that is issued behind the arrival.
    let text =
        body(fenced, 64, "noinc.").replace("WAIT:", "cp.async.cg.shared.global [%r11], [%rd5 + 1024], 16; WAIT:");
    Case { threads: 64, ..Case::new(&text) }.finds("races with");
}

#[test]
fn cp_async_arrivals_of_one_instruction_are_in_one_phase() {
    let body = |count: u32| {
        format!(
            "setp.eq.u32 %p1, %r0, 0; mov.u32 %r2, bars; mov.u32 %r3, tile; @%p1 mbarrier.init.shared::cta.b64 [%r2], {count}; fence.mbarrier_init.release.cluster; bar.sync 0;
             shl.b32 %r10, %r0, 4; add.u32 %r11, %r3, %r10; cvt.u64.u32 %rd5, %r10; add.u64 %rd5, %rd0, %rd5;
             cp.async.cg.shared.global [%r11], [%rd5], 16; cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r2]; {WAIT} {OUT}"
        )
    };
    Case::new(&body(32)).output();
    let text = body(31);
    for seed in 0..4 {
        let (report, _) = Case::new(&text).run(crate::CompletionPolicy::Random, seed);
        let found = report.findings.iter().find(|f| f.message.contains("its 31 arrivals are too few"));
        let found = found.unwrap_or_else(|| panic!("{:?}", report.findings));
        assert!(found.ptx.contains("cp.async.mbarrier.arrive.noinc"), "{found}");
        assert!(found.object.as_ref().is_some_and(|name| name.starts_with("bars")), "{found}");
    }
}

#[test]
fn broken_rules() {
    let load = |operands: &str| {
        start(&format!("@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes {operands};"))
    };
    let cases = [
        (load("[%r3], [%rd0 + 8], 256, [%r2]"), "not a multiple of 16"),
        (load("[%r3 + 4], [%rd0], 256, [%r2]"), "not a multiple of 16"),
        (load("[%r3], [%rd0], 20, [%r2]"), "not a multiple of 16"),
        (load("[%r3], [%rd0], 0, [%r2]"), "size above 0"),
        (load("[%r3], [%rd0 + 65520], 32, [%r2]"), "input"),
        (load("[%r3 + 32752], [%rd0], 32, [%r2]"), "shared offset"),
        (load("[%r3], [%rd0], 256, [%r2 + 16]"), "MB01"),
        (load("[%r3], [%rd0], 256, [%r2]"), "exits"),
        (
            store("cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r3], 512;")
                .replace("@%p1 cp.async.bulk.wait_group 0;", ""),
            "without waiting for its bulk copies",
        ),
        (store("cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r3], 528;"), "nobody wrote"),
    ];
    for (body, text) in cases {
        Case::new(&body).finds(text);
    }
}
