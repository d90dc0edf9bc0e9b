//! Planted faults of the happens-before checker: each kernel once with the fault, once without.

mod common;

use bakewell_emulator::Kind;
use common::Case;

const SHARED: &str = ".shared .align 16 .b8 tile[4096]; .shared .align 8 .b8 bars[64];";

/// Each thread writes a word and reads that of the thread 32 further on.
fn exchange(between: &str) -> String {
    format!(
        "mov.u32 %r0, tile; shl.b32 %r1, %tid, 2; add.u32 %r2, %r0, %r1;
         st.shared.u32 [%r2], %tid;
         {between}
         add.u32 %r3, %r1, 128; and.b32 %r3, %r3, 255; add.u32 %r3, %r0, %r3;
         ld.shared.u32 %r4, [%r3];"
    )
}

#[test]
fn shared_exchange_needs_a_barrier() {
    let case = Case::new(1, 64);
    case.clean(SHARED, &exchange("bar.sync 0;"));
    case.clean(SHARED, &exchange("barrier.sync 3, 64;"));
    case.fault(SHARED, &exchange(""), Kind::Race, &["tile + ", "ld.shared", "st.shared", "warp"]);
    // In effect a relaxed cluster barrier orders what a CTA does in its own memory.
    let relaxed = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;";
    let pair = Case::new(2, 64).cluster(2);
    pair.clean(SHARED, &exchange(&relaxed.replace("relaxed", "release")));
    pair.warning(SHARED, &exchange(relaxed), Kind::Race, &["only a relaxed cluster barrier"]);
    let peer = "xor.b32 %r5, %rank, 1; mapa.shared::cluster.u32 %r3, %r3, %r5; ld.shared::cluster.u32";
    let across =
        |barrier: &str| exchange(barrier).replace("ld.shared.u32", peer) + &relaxed.replace("relaxed", "release");
    pair.clean(SHARED, &across(&relaxed.replace("relaxed", "release")));
    pair.fault(SHARED, &across(relaxed), Kind::Race, &["tile"]);
    // A barrier of each warp alone orders nothing between them.
    case.fault(SHARED, &exchange("bar.warp.sync -1;"), Kind::Race, &["tile"]);
}

#[test]
fn overwriting_what_another_warp_still_reads() {
    let body = |second: &str| format!("{} {second} st.shared.u32 [%r2], %r4;", exchange("bar.sync 0;"));
    let case = Case::new(1, 64);
    case.clean(SHARED, &body("bar.sync 0;"));
    case.fault(SHARED, &body(""), Kind::Race, &["tile", "line"]);
}

#[test]
fn bytes_of_one_word_are_apart() {
    // Two warps write neighbouring bytes of the same words.
    let body = "mov.u32 %r0, tile; shl.b32 %r1, %lane, 1; add.u32 %r1, %r1, %warp; add.u32 %r0, %r0, %r1;
                mov.b16 %h0, 7; st.shared.b8 [%r0], %h0;";
    Case::new(1, 64).clean(SHARED, body);
}

#[test]
fn lanes_of_one_instruction() {
    let body = |value: &str| format!("mov.u32 %r0, tile; mov.u32 %r1, 7; st.shared.u32 [%r0], {value};");
    Case::new(1, 32).clean(SHARED, &body("%r1"));
    Case::new(1, 32).fault(SHARED, &body("%tid"), Kind::Race, &["lane 0 and a higher lane", "different values"]);
}

#[test]
fn named_barrier_of_producer_and_consumer() {
    let body = |arrive: &str| {
        format!(
            "mov.u32 %r0, tile; shl.b32 %r1, %lane, 2; add.u32 %r0, %r0, %r1; setp.eq.u32 %p0, %warp, 0;
             @!%p0 bra consume;
             st.shared.u32 [%r0], %tid; bar.arrive {arrive}, 64; bra done;
             consume: bar.sync 1, 64; ld.shared.u32 %r2, [%r0];
             done:"
        )
    };
    Case::new(1, 64).clean(SHARED, &body("1"));
    // The barrier comes before the write that it should announce.
    let early = body("1")
        .replace("st.shared.u32 [%r0], %tid; bar.arrive 1, 64;", "bar.arrive 1, 64; st.shared.u32 [%r0], %tid;");
    Case::new(1, 64).fault(SHARED, &early, Kind::Race, &["tile"]);
}

/// Warp 0 writes and arrives, warp 1 waits and reads.
fn mbarrier_handover(arrive: &str, wait: &str) -> String {
    format!(
        "mov.u32 %r0, tile; shl.b32 %r1, %lane, 2; add.u32 %r0, %r0, %r1; mov.u32 %r5, bars;
         setp.eq.u32 %p0, %tid, 0; @%p0 mbarrier.init.shared::cta.b64 [%r5], 32;
         bar.sync 0;
         setp.eq.u32 %p1, %warp, 0; @!%p1 bra consume;
         st.shared.u32 [%r0], %tid;
         {arrive}
         bra done;
         consume: {wait} @!%p2 bra consume;
         ld.shared.u32 %r2, [%r0];
         done:"
    )
}

#[test]
fn mbarrier_orders_unless_relaxed() {
    let arrive = "mbarrier.arrive.shared::cta.b64 %rd1, [%r5];";
    let wait = "mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r5], 0;";
    let case = Case::new(1, 64);
    case.clean(SHARED, &mbarrier_handover(arrive, wait));
    let relaxed = "mbarrier.arrive.relaxed.cta.shared::cta.b64 %rd1, [%r5];";
    case.fault(SHARED, &mbarrier_handover(relaxed, wait), Kind::Race, &["tile", "ld.shared"]);
    let relaxed = "mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 %p2, [%r5], 0;";
    case.fault(SHARED, &mbarrier_handover(arrive, relaxed), Kind::Race, &["tile", "ld.shared"]);
    // The wrong parity falls through, or waits for a phase that never ends.
    let wrong = "mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r5], 1;";
    case.fault_of(SHARED, &mbarrier_handover(arrive, wrong), &[Kind::Race, Kind::Deadlock], &["line"]);
}

#[test]
fn mbarrier_needs_order_behind_its_initialisation() {
    let arrive = "mbarrier.arrive.shared::cta.b64 %rd1, [%r5];";
    let wait = "mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r5], 0;";
    let body = mbarrier_handover(arrive, wait).replace("bar.sync 0;", "");
    // Whether warp 1 meets a live barrier depends on the schedule.
    Case::new(1, 64).fault_of(SHARED, &body, &[Kind::Race, Kind::Mbarrier], &["mbarrier"]);
}

/// Split-KV: every CTA writes a partial result, the last to arrive adds them up.
fn split(fence: &str, atomic: &str, after: &str) -> String {
    format!(
        "shl.b32 %r0, %tid, 2; cvt.u64.u32 %rd0, %r0; mul.wide.u32 %rd1, %cta, 256; add.u64 %rd2, %data, %rd1;
         add.u64 %rd2, %rd2, %rd0; st.global.u32 [%rd2], %cta;
         {fence}
         bar.sync 0;
         mov.u32 %r9, tile;
         setp.eq.u32 %p0, %tid, 0; @!%p0 bra joined;
         {atomic} st.shared.u32 [%r9], %r1;
         joined: bar.sync 0;
         ld.shared.u32 %r1, [%r9];
         setp.ne.u32 %p1, %r1, 3; @%p1 bra done;
         {after}
         add.u64 %rd3, %data, %rd0;
         ld.global.u32 %r2, [%rd3]; ld.global.u32 %r3, [%rd3+256]; ld.global.u32 %r4, [%rd3+512];
         done:"
    )
}

#[test]
fn counters_between_ctas() {
    let counter = |form: &str| format!("atom.{form}.global.add.u32 %r1, [%data+4096], 1;");
    let case = Case::new(4, 64);
    // Release and acquire by the atomic itself.
    case.clean(SHARED, &split("", &counter("acq_rel.gpu"), ""));
    // Fences round a relaxed atomic, by the thread of the atomic and by every writer.
    let fenced = format!("fence.acq_rel.gpu; {} fence.acq_rel.gpu;", counter("relaxed.gpu"));
    case.clean(SHARED, &split("", &fenced, ""));
    case.clean(SHARED, &split("membar.gl;", &counter("relaxed.gpu"), "membar.gl;"));
    // Nothing orders, too narrow a scope, or only one side.
    case.fault(SHARED, &split("", &counter("relaxed.gpu"), ""), Kind::Race, &["data + ", "ld.global", "st.global"]);
    case.fault(SHARED, &split("", &counter("acq_rel.cta"), ""), Kind::Race, &["data"]);
    case.fault(SHARED, &split("", &counter("release.gpu"), ""), Kind::Race, &["data"]);
    case.fault(SHARED, &split("", &counter("acquire.gpu"), ""), Kind::Race, &["data"]);
    case.fault(
        SHARED,
        &split("fence.acq_rel.cta;", &counter("relaxed.gpu"), "fence.acq_rel.gpu;"),
        Kind::Race,
        &["data"],
    );
    // The barrier between the writers and the counter is missing.
    let early = split("", &counter("acq_rel.gpu"), "").replacen("bar.sync 0;", "", 1);
    case.fault(SHARED, &early, Kind::Race, &["data"]);
}

#[test]
fn flags_between_ctas() {
    let body = |store: &str, load: &str| {
        format!(
            "setp.eq.u32 %p0, %cta, 0; @!%p0 bra wait;
             st.global.u32 [%data], 5; {store} [%data+64], 1; bra done;
             wait: {load} %r1, [%data+64]; setp.eq.u32 %p1, %r1, 0; @%p1 bra wait;
             ld.global.u32 %r2, [%data];
             done:"
        )
    };
    let case = Case::new(2, 1);
    case.clean("", &body("st.release.gpu.global.u32", "ld.acquire.gpu.global.u32"));
    case.fault("", &body("st.relaxed.gpu.global.u32", "ld.acquire.gpu.global.u32"), Kind::Race, &["data + 0"]);
    case.fault("", &body("st.release.gpu.global.u32", "ld.relaxed.gpu.global.u32"), Kind::Race, &["data + 0"]);
    case.fault("", &body("st.release.cta.global.u32", "ld.acquire.gpu.global.u32"), Kind::Race, &["data + 0"]);
    // Who observed the flag comes after the write of it too, and may take it down with a weak store.
    let reset = |store: &str| {
        let taken = body(store, "ld.acquire.gpu.global.u32");
        taken.replace("ld.global.u32 %r2, [%data];", "st.global.u32 [%data+64], 0;")
    };
    case.clean("", &reset("st.release.gpu.global.u32"));
    case.clean("", &reset("fence.acq_rel.gpu; st.relaxed.gpu.global.u32"));
    case.fault("", &reset("fence.acq_rel.gpu; st.relaxed.cta.global.u32"), Kind::Race, &["data + 64"]);
}

#[test]
fn checkers_change_no_result() {
    use bakewell_emulator::{Emulator, Launch, Module, Options, Target};
    let text = format!(
        ".version 9.2\n.target sm_90a\n.address_size 64\n{SHARED}\n.visible .entry k(.param .u64 data) {{
         .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .b32 %tid; .reg .b64 %data;
         mov.u32 %tid, %tid.x; ld.param.u64 %data, [data]; {}
         mul.wide.u32 %rd1, %tid, 4; add.u64 %rd1, %rd1, %data; st.global.u32 [%rd1], %r4; ret; }}",
        exchange("bar.sync 0;")
    );
    let module = Module::parse(&text).unwrap();
    let bytes = |order: bool, uninitialised: bool| {
        let mut options = Options::new(Target::Sm90);
        options.checks.order = order;
        options.checks.uninitialised = uninitialised;
        let device = Emulator::new(Target::Sm90, options);
        let data = device.allocate("data", 256).unwrap();
        let loaded = device.load(&module).unwrap();
        let report = device.launch(&loaded, "k", Launch::linear(1, 64), &data.to_le_bytes()).unwrap();
        (device.read(data, 256).unwrap(), report.counters)
    };
    assert_eq!(bytes(true, true), bytes(false, false));
    assert_eq!(bytes(true, false), bytes(false, true));
}

#[test]
fn clusters_that_wait_for_each_other_for_ever_are_told() {
    // Each cluster polls a word that nobody ever writes.
    let body = "spin: ld.volatile.global.u32 %r0, [%data]; setp.eq.u32 %p0, %r0, 0; @%p0 bra spin;";
    Case::new(1, 32).fault("", body, Kind::Livelock, &["ld.volatile.global.u32"]);
    Case::new(3, 32).fault("", body, Kind::Livelock, &["nothing changes"]);
    // The last CTA writes it: the others get their turns until then.
    let lucky = format!("setp.ne.u32 %p1, %cta, 2; @%p1 bra spin; st.volatile.global.u32 [%data], 1; {body}");
    Case::new(3, 32).clean("", &lucky);
}

#[test]
fn warps_that_store_one_value_are_a_warning() {
    let body = |value: &str| format!("mov.u32 %r0, tile; mov.u32 %r1, {value}; st.shared.u32 [%r0], %r1;");
    let case = Case::new(1, 64);
    case.warning(SHARED, &body("7"), Kind::Race, &["tile + 0", "write of the same values"]);
    case.fault(SHARED, &body("%warp"), Kind::Race, &["tile + 0", "races with the write"]);
}
