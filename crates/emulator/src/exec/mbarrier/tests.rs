//! One kernel per form and per broken rule.

use crate::exec::async_testing::{Case, words};

/// Initialises `bars[0]` with `count`, all threads behind a barrier.
fn with_barrier(count: u32, body: &str) -> String {
    format!(
        "setp.eq.u32 %p1, %r0, 0; mov.u32 %r2, bars;
         @%p1 mbarrier.init.shared::cta.b64 [%r2], {count};
         fence.mbarrier_init.release.cluster; bar.sync 0;
         {body}"
    )
}

const STORE: &str = "mul.wide.u32 %rd9, %r0, 4; add.u64 %rd9, %rd1, %rd9;";

#[test]
fn arrivals_of_every_thread_complete_the_phase() {
    let body = with_barrier(
        64,
        &format!(
            "{STORE} mbarrier.arrive.shared.b64 %rd2, [%r2];
             mbarrier.pending_count.b64 %r3, %rd2;
             WAIT: mbarrier.try_wait.shared.b64 %p2, [%r2], %rd2; @!%p2 bra WAIT;
             st.global.u32 [%rd9], %r3;"
        ),
    );
    let case = Case { threads: 64, ..Case::new(&body) };
    for seed in 0..4 {
        let (report, output) = case.run(crate::CompletionPolicy::Random, seed);
        assert!(report.is_clean(), "{:?}", report.findings);
        let mut counts = words(&output[..256]);
        counts.sort_unstable();
        assert_eq!(counts, (1..=64).collect::<Vec<u32>>(), "each arrival saw another pending count");
    }
}

#[test]
fn a_ring_of_one_slot() {
    // Warp 0 produces 8 values, warp 1 adds them up; full is bars[0], empty is bars[1].
    let body = "
        setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
        mov.u32 %r2, bars; mbarrier.init.shared::cta.b64 [%r2], 32; mbarrier.init.shared::cta.b64 [%r2 + 8], 32;
      READY: bar.sync 0; mov.u32 %r2, bars; mov.u32 %r3, tile; and.b32 %r4, %r0, 31; shl.b32 %r4, %r4, 2;
        add.u32 %r3, %r3, %r4; mov.u32 %r5, 0; mov.u32 %r7, 0;
        setp.ge.u32 %p2, %r0, 32; @%p2 bra CONSUME;
      PRODUCE: and.b32 %r6, %r5, 1; xor.b32 %r6, %r6, 1;
      W1: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p3, [%r2 + 8], %r6; @!%p3 bra W1;
        mad.lo.u32 %r8, %r5, 100, %r0; st.shared.u32 [%r3], %r8;
        mbarrier.arrive.release.cta.shared::cta.b64 _, [%r2];
        add.u32 %r5, %r5, 1; setp.lt.u32 %p4, %r5, 8; @%p4 bra PRODUCE; bra DONE;
      CONSUME: and.b32 %r6, %r5, 1;
      W2: mbarrier.test_wait.parity.shared::cta.b64 %p3, [%r2], %r6; @!%p3 bra W2;
        ld.shared.u32 %r8, [%r3]; add.u32 %r7, %r7, %r8;
        mbarrier.arrive.shared::cta.b64 _, [%r2 + 8], 1;
        add.u32 %r5, %r5, 1; setp.lt.u32 %p4, %r5, 8; @%p4 bra CONSUME;
        cvt.u64.u32 %rd2, %r4; add.u64 %rd2, %rd1, %rd2; st.global.u32 [%rd2], %r7;
      DONE:";
    let output = Case { threads: 64, ..Case::new(body) }.output();
    let expected: Vec<u32> = (0..32).map(|lane| 2800 + 8 * lane).collect();
    assert_eq!(words(&output[..128]), expected);
}

#[test]
fn bytes_expected_and_complete() {
    let body = with_barrier(
        1,
        "@!%p1 bra REST;
         mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 24;
         mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r2], 8;
         mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 20;
         mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r2], 0; selp.u32 %r3, 1, 0, %p2;
         mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 12;
         mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r2], 0; selp.u32 %r4, 1, 0, %p2;
         mbarrier.arrive_drop.noComplete.release.cta.shared::cta.b64 %rd3, [%r2], 1;
         REST:",
    );
    Case::new(&body).finds("MB10");
    let body = body.replace(
        "mbarrier.arrive_drop.noComplete.release.cta.shared::cta.b64 %rd3, [%r2], 1;",
        "
         mbarrier.inval.shared::cta.b64 [%r2]; st.global.v2.u32 [%rd1], {%r3, %r4};",
    );
    assert_eq!(words(&Case::new(&body).output()[..8]), [0, 1]);
}

#[test]
fn drops_count_in_later_phases() {
    let body = with_barrier(
        3,
        "@!%p1 bra REST;
         mbarrier.arrive_drop.shared::cta.b64 _, [%r2];
         mbarrier.arrive_drop.expect_tx.shared::cta.b64 _, [%r2], 0;
         mbarrier.arrive.shared::cta.b64 %rd2, [%r2];
         mbarrier.test_wait.shared::cta.b64 %p2, [%r2], %rd2;
         mbarrier.arrive.shared::cta.b64 %rd3, [%r2];
         mbarrier.test_wait.shared::cta.b64 %p3, [%r2], %rd3;
         mbarrier.pending_count.b64 %r5, %rd3;
         selp.u32 %r3, 1, 0, %p2; selp.u32 %r4, 1, 0, %p3; st.global.v4.u32 [%rd1], {%r3, %r4, %r5, %r5};
         REST:",
    );
    assert_eq!(words(&Case::new(&body).output()[..12]), [1, 1, 1]);
}

#[test]
fn a_try_wait_that_is_only_a_peek_times_out() {
    let body = with_barrier(
        1,
        "@!%p1 bra REST;
         mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0, 0x989680;
         @!%p2 mbarrier.arrive.shared::cta.b64 _, [%r2];
         mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], 0;
         selp.u32 %r3, 1, 0, %p2; selp.u32 %r4, 1, 0, %p3; st.global.v2.u32 [%rd1], {%r3, %r4};
         REST:",
    );
    assert_eq!(words(&Case::new(&body).output()[..8]), [0, 1]);
}

#[test]
fn broken_rules() {
    let cases = [
        ("mbarrier.arrive.shared::cta.b64 _, [%r2 + 8];", "MB01"),
        ("mbarrier.inval.shared::cta.b64 [%r2]; mbarrier.arrive.shared::cta.b64 _, [%r2];", "MB01"),
        ("mbarrier.init.shared::cta.b64 [%r2], 1;", "MB02"),
        ("mbarrier.init.shared::cta.b64 [%r2 + 12], 1;", "MB03"),
        ("mbarrier.arrive.shared::cta.b64 _, [%r2 + 4];", "MB03"),
        ("mov.u32 %r5, 0; mbarrier.init.shared::cta.b64 [%r2 + 8], %r5;", "MB04"),
        ("mbarrier.arrive.shared::cta.b64 _, [%r2], 3;", "MB04"),
        ("mov.u32 %r5, 0x100000; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], %r5;", "MB05"),
        (
            "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 16; mbarrier.arrive.shared::cta.b64 _, [%r2], 2;",
            "MB06",
        ),
        ("ld.shared.u32 %r3, [%r2 + 4];", "MB09"),
        ("st.shared.u8 [%r2], 1;", "MB09"),
        ("atom.shared.add.u32 %r3, [%r2 + 4], 1;", "MB09"),
        ("mbarrier.arrive.noComplete.shared::cta.b64 %rd2, [%r2], 2;", "MB10"),
        ("mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r2], 2;", "MB12"),
        ("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 16;", "MB13"),
    ];
    for (code, rule) in cases {
        let code: String = code.split_inclusive(';').map(|one| format!("@%p1 {}", one.trim())).collect();
        Case::new(&with_barrier(2, &code)).finds(rule);
    }
}

#[test]
fn a_lagging_waiter_is_told() {
    let body = with_barrier(
        1,
        "@!%p1 bra REST;
         mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r2], 1;
         mbarrier.arrive.shared::cta.b64 _, [%r2]; mbarrier.arrive.shared::cta.b64 _, [%r2];
         mbarrier.arrive.shared::cta.b64 _, [%r2]; mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r2], 0;
         REST:",
    );
    Case::new(&body).finds("MB12");
}

#[test]
fn deadlocks_name_barrier_phase_and_last_arrival() {
    let body = with_barrier(
        2,
        "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 512;
         WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0; @!%p2 bra WAIT;",
    );
    Case::new(&body).finds(
        "waits for phase 0 of mbarrier bars (0x400) in phase 0: 1 of 2 arrivals pending, 512 bytes to come; last arrival by warp 0",
    );
}

#[test]
fn lanes_of_one_instruction_arrive_in_one_phase() {
    let arrive = "mbarrier.arrive.shared::cta.b64 _, [%r2]; WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0; @!%p2 bra WAIT;";
    Case::new(&with_barrier(32, arrive)).output();
    for found in ["MB04: phase 0 completed before lane 31 arrived", "[bars", "mbarrier.arrive.shared::cta.b64 _"] {
        Case::new(&with_barrier(31, arrive)).finds(found);
    }
    // The barrier of two warps lacks one arrival: the last lane of the second one is late.
    Case { threads: 64, ..Case::new(&with_barrier(63, arrive)) }.finds("before lane 31 arrived");
    // One lane after another, each in a phase of its own, is what it says.
    let each = "mov.u32 %r5, 0; LOOP: setp.eq.u32 %p2, %r5, %r0; @%p2 mbarrier.arrive.shared::cta.b64 _, [%r2];
        add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 32; @%p3 bra LOOP;";
    Case::new(&with_barrier(16, each)).output();
}

#[test]
fn phases_left_open_are_told_when_asked_for() {
    let checks = crate::Checks { open_phases: true, ..crate::Checks::default() };
    let told =
        "MB11: the CTA exits with mbarrier bars (0x400) in phase 1: 1 of 3 arrivals pending; last arrival by warp 0";
    // Five lanes, one after the other: of a barrier of three they leave two arrivals of phase 1.
    let each = "mov.u32 %r5, 0; LOOP: setp.eq.u32 %p2, %r5, %r0; @%p2 mbarrier.arrive.shared::cta.b64 _, [%r2];
        add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 5; @%p3 bra LOOP;";
    let body = with_barrier(3, each);
    Case { checks, ..Case::new(&body) }.finds(told);
    Case::new(&body).output();
    // A whole number of phases leaves none open.
    let body = with_barrier(5, each);
    Case { checks, ..Case::new(&body) }.output();
}
