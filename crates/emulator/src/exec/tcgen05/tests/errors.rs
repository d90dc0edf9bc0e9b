//! One program per rule, and what its finding says.

use super::*;
use crate::emulator::Module;
use crate::finding::Kind;

fn first(target: Target, body: &str) -> (Kind, String) {
    let image = [0; 16384];
    let (report, _) = run(&cta(target, &image, 1), body);
    let finding = report.findings.iter().find(|f| !f.warning).unwrap_or_else(|| panic!("nothing found in {body}"));
    (finding.kind, finding.message.clone())
}

fn expect(body: &str, kind: Kind, part: &str) {
    let (got, message) = first(Target::Sm100, body);
    assert!(got == kind && message.contains(part), "expected {kind:?} with {part:?}, got {got:?}: {message}");
}

const LOAD: &str = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%o0}, [%t22];";
const MMA: &str = "mov.b64 %w0, 0x4000404000010040; mov.b32 %t25, 0x08200010;";

#[test]
fn allocation_rules() {
    let alloc = |n| format!("@%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], {n};");
    let prelude = ".shared .align 4 .b32 slot; setp.lt.u32 %p2, %tid, 32; setp.lt.u32 %p1, %tid, 16;";
    let give = "@%p2 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;";
    let free = |n| format!("ld.shared.b32 %t20, [slot]; @%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t20, {n};");
    let t = Kind::TensorMemory;
    expect(&format!("{prelude} {}", alloc(48)), t, "power of two");
    expect(&format!("{prelude} {}", alloc(1024)), t, "power of two");
    expect(&format!("{prelude} {} {}", alloc(32), alloc(64)), t, "more than the 32");
    expect(&format!("{prelude} {give} {}", alloc(32)), t, "after relinquish");
    expect(&format!("{prelude} {} bar.sync 0; {}", alloc(32), free(64)), t, "not what one alloc returned");
    expect(&format!("{prelude} {}", alloc(32)), Kind::Leak, "still allocated");
    expect(&format!("{prelude} {} {} {}", alloc(256), alloc(256), alloc(256)), Kind::Deadlock, "tensor memory");
    expect(&format!("{prelude} {}", alloc(32).replace("%p2", "%p1")), Kind::Divergence, "lanes");
    let pair = alloc(32).replace("cta_group::1", "cta_group::2");
    expect(&format!("{prelude} {pair}"), t, "needs a pair");
    let mixed = free(32).replace("cta_group::1", "cta_group::2");
    expect(&format!("{prelude} {} bar.sync 0; {mixed}", alloc(32)), t, "also uses cta_group::1");
}

#[test]
fn exclusive_allocations() {
    let prelude = ".shared .align 4 .b32 slot; setp.lt.u32 %p2, %tid, 32;";
    let alloc =
        |n| format!("@%p2 tcgen05.alloc.exclusive.cta_group::1.sync.aligned.shared::cta.b32 [slot], {n}; bar.sync 0;");
    let plain = "@%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32; bar.sync 0;";
    let free = |n, how| {
        format!(
            "ld.shared.b32 %t20, [slot]; bar.sync 0; @%p2 tcgen05.dealloc{how}.cta_group::1.sync.aligned.b32 %t20, {n};"
        )
    };
    let first_of = |target, body: &str| {
        let (report, _) = run(&cta(target, &[0; 16384], 1), body);
        let finding = report.findings.iter().find(|f| !f.warning);
        finding.map_or((None, String::new()), |f| (Some(f.kind), f.message.clone()))
    };
    let expect = |target, body: String, kind, part: &str| {
        let (got, message) = first_of(target, &body);
        assert!(got == kind && message.contains(part), "expected {kind:?} with {part:?}, got {got:?}: {message}");
    };
    let t = Some(Kind::TensorMemory);
    let all = format!("{prelude} {} {}", alloc(576), free(576, ".exclusive"));
    expect(Target::Sm107, all.clone(), None, "");
    expect(Target::Sm100, all, t, "32..=512, got 576");
    expect(Target::Sm100, format!("{prelude} {} {}", alloc(96), free(96, ".exclusive")), None, "");
    expect(Target::Sm107, format!("{prelude} {}", alloc(40)), t, "multiple of 32");
    expect(Target::Sm107, format!("{prelude} {} {}", alloc(64), free(64, "")), t, "with .exclusive");
    expect(Target::Sm107, format!("{prelude} {plain} {}", free(32, ".exclusive")), t, "without .exclusive");
    expect(Target::Sm107, format!("{prelude} {plain} {}", alloc(32)), Some(Kind::Deadlock), "tensor memory");
    expect(Target::Sm107, format!("{prelude} {} {plain}", alloc(32)), Some(Kind::Deadlock), "tensor memory");
    // The last columns hold values.
    let store =
        "@%p2 add.u32 %t22, %t22, 575; @%p2 mov.b32 %t1, 7; @%p2 tcgen05.st.sync.aligned.32x32b.x1.b32 [%t22], {%t1};
        @%p2 tcgen05.wait::st.sync.aligned; bar.sync 0;";
    let body = format!("{prelude} {} ld.shared.b32 %t22, [slot]; {store} {}", alloc(576), free(576, ".exclusive"));
    expect(Target::Sm107, body, None, "");
}

#[test]
fn a_leak_names_the_allocation() {
    let body = ".shared .align 4 .b32 slot; setp.lt.u32 %p2, %tid, 32;\n\
                @%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;";
    let (report, _) = run(&cta(Target::Sm100, &[0; 16384], 1), body);
    let leak = report.findings.iter().find(|f| f.kind == Kind::Leak).expect("32 columns are left");
    assert!(leak.line > 0 && leak.ptx.contains("tcgen05.alloc"), "line {}: {}", leak.line, leak.ptx);
    assert_eq!(leak.warp, Some(0));
}

#[test]
fn lanes_counted_from_those_of_the_warp() {
    let both = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%t22], {%tid}; tcgen05.wait::st.sync.aligned;";
    let read = LOAD.replace("%t22", "%t20");
    let (report, output) = run(&cta(Target::Sm100, &[0; 16384], 1), &around(both, &read));
    assert!(report.findings.iter().all(|f| f.warning), "{:?}", report.findings);
    assert!(report.findings.iter().any(|f| f.message.contains("counted from the warp's first: warp ")));
    assert_eq!(output[0], (0..128).collect::<Vec<u32>>());
}

#[test]
fn address_rules() {
    let t = Kind::TensorMemory;
    expect(&around("add.u32 %t22, %t22, 0x200000;", LOAD), t, "owns lanes");
    expect(&around("", &LOAD.replace("%t22", "%t22 + 512")), t, "outside the 512");
    expect(&around("add.u32 %t22, %t22, %tid;", LOAD), t, "differs between lanes");
    expect(&around("", LOAD), Kind::Uninitialised, "nobody wrote");
    let small = around("", LOAD).replace(", 512;", ", 32;").replace("[%t22]", "[%t22 + 32]");
    expect(&small, t, "not allocated");
    let selector = format!(
        "{MMA} or.b32 %t26, %t20, 0x40000000; @%p0 tcgen05.mma.cta_group::1.kind::f16 [%t26], %w0, %w0, %t25, %p4;"
    );
    expect(&around(&selector, LOAD), t, "selector");
    let lane = format!(
        "{MMA} add.u32 %t26, %t20, 0x100000; @%p0 tcgen05.mma.cta_group::1.kind::f16 [%t26], %w0, %w0, %t25, %p4;"
    );
    expect(&around(&lane, LOAD), t, "lane 16");
}

#[test]
fn order_rules() {
    let t = Kind::TensorMemory;
    let store = "mov.b32 %t1, 1; tcgen05.st.sync.aligned.32x32b.x1.b32 [%t22], {%t1};";
    expect(&around(store, LOAD), t, "before the wait::st");
    let waited = format!("{store} tcgen05.wait::st.sync.aligned; {LOAD} {store}");
    let (report, _) = run(&cta(Target::Sm100, &[0; 16384], 1), &around(&waited, LOAD));
    assert!(report.findings.iter().any(|f| f.warning && f.message.contains("before the wait::ld")));
    let mma = format!("{MMA} @%p0 tcgen05.mma.cta_group::1.kind::f16 [%t20], %w0, %w0, %t25, %p4;");
    expect(&around(&format!("{store} bar.sync 0; {mma}"), LOAD), t, "no wait::st");
    let image = [0; 16384];
    let late = |options: &mut crate::Options| options.policy = CompletionPolicy::Lazy;
    let (report, _) = cta(Target::Sm100, &image, 1).run(&around(&mma, LOAD), late);
    assert!(report.findings.iter().any(|f| f.message.contains("in flight")), "{:?}", report.findings);
}

#[test]
fn mma_rules() {
    let t = Kind::TensorMemory;
    let mma = |setup: &str, op: &str| around(&format!("{MMA} {setup} @%p0 tcgen05.mma.cta_group::1.{op}"), LOAD);
    expect(
        &around(&format!("{MMA} tcgen05.mma.cta_group::1.kind::f16 [%t20], %w0, %w0, %t25, %p4;"), LOAD),
        t,
        "32 lanes",
    );
    expect(&mma("mov.b32 %t25, 0x06200010;", "kind::f16 [%t20], %w0, %w0, %t25, %p4;"), t, "M: expected");
    expect(&mma("mov.b64 %w1, 0x4002404000010040;", "kind::f16 [%t20], %w0, %w1, %t25, %p4;"), t, "base offset");
    expect(&mma("mov.b64 %w1, 0x4000404000010047;", "kind::f16 [%t20], %w0, %w1, %t25, %p4;"), t, "leave the row");
    expect(&mma("", "kind::f16 [%t20], %w0, %w0, %t25, %p3;"), Kind::Uninitialised, "D is an input");
    expect(&mma("", "kind::f16.collector::a::use [%t20], %w0, %w0, %t25, %p4;"), t, "without a fill");
    expect(
        &mma("mov.b64 %w1, 0x4000404000011000;", "kind::f16 [%t20], %w0, %w1, %t25, %p4;"),
        Kind::OutOfBounds,
        "shared offset",
    );
    let ws =
        format!("{MMA} mov.b64 %w2, 5; @%p0 tcgen05.mma.ws.cta_group::1.kind::f16 [%t20], %w0, %w0, %t25, %p4, %w2;");
    expect(&around(&ws, LOAD), t, "zero-column mask");
}

/// Stale copies of scales: partition 1 is overwritten behind the cp.
#[test]
fn scales_differ_between_partitions() {
    let work = "mov.b64 %w0, 0x0000400800000040; @%p0 tcgen05.cp.cta_group::1.32x128b.warpx4 [%t20 + 256], %w0;
        @%p0 tcgen05.cp.cta_group::1.32x128b.warpx4 [%t20 + 260], %w0; bar.sync 0;
        mov.b32 %t1, 0x01010101; setp.eq.u32 %p5, %t21, 0x200000;
        @%p5 tcgen05.st.sync.aligned.32x32b.x1.b32 [%t22 + 256], {%t1}; @%p5 tcgen05.wait::st.sync.aligned; bar.sync 0;
        add.u32 %t26, %t20, 256; add.u32 %t27, %t20, 260; mov.b64 %w1, 0xc000401000010040; mov.b32 %t25, 0x08100480;
        @%p0 tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [%t20], %w1, %w1, %t25, [%t26], [%t27], %p4;";
    expect(&around(work, LOAD), Kind::TensorMemory, "differs between partitions");
}

/// Forms that a target does not have, and forms that nobody may guess.
#[test]
fn refused_forms() {
    let cases = [
        (Target::Sm100, "tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {%o0, %o1}, %o2, [%t22];", "does not have"),
        (Target::Sm103, "tcgen05.mma.cta_group::1.kind::i8 [%t20], %w0, %w0, %t25, %p4;", "does not have"),
        (Target::Sm110, "tcgen05.mma.cta_group::1.kind::f16 [%t20], %w0, %w0, %t25, %p4, 2;", "scale-input-d"),
        (Target::Sm100, "tcgen05.mma.cta_group::1.kind::i8 [%t20], %w0, %w0, %t25, %p4, 2;", "not established"),
        (Target::Sm100, "tcgen05.mma.cta_group::1.kind::f16.ashift [%t20], [%t20], %w0, %t25, %p4;", "ashift"),
        (Target::Sm100, "tcgen05.mma.sp.cta_group::1.kind::f16 [%t20], %w0, %w0, [%t20], %t25, %p4;", "sparse"),
        (
            Target::Sm107,
            "tcgen05.commit.cta_group::1.mbarrier::arrive::one.sync_restrict::shared::read::mma::a.shared::cluster.b64 [%t0];",
            "sync_restrict",
        ),
        (Target::Sm90, "tcgen05.wait::ld.sync.aligned;", "does not have"),
    ];
    for (target, text, part) in cases {
        let program = cta(target, &[0; 16], 3).text(text);
        let errors = Module::parse(&program).unwrap().unsupported(target);
        let message = errors.first().map(ToString::to_string).unwrap_or_default();
        assert!(message.starts_with("refused") && message.contains(part), "{text}: {message}");
    }
    let invalid = [
        "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.block16 [%t20], %w0, %w0, %t25, [%t1], [%t2], %p4;",
        "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale [%t20], %w0, %w0, %t25, [%t1], [%t2], %p4;",
        "tcgen05.mma.cta_group::2.kind::f16 [%t20], %w0, %w0, %t25, {%t1, %t2, %t3, %t4}, %p4;",
        "tcgen05.ld.sync.aligned.16x256b.x64.b32 {%o0}, [%t22];",
        "tcgen05.cp.cta_group::1.64x128b [%t20], %w0;",
        "tcgen05.cp.cta_group::1.128x256b.warpx4 [%t20], %w0;",
    ];
    for text in invalid {
        let program = cta(Target::Sm100, &[0; 16], 3).text(text);
        assert!(!Module::parse(&program).unwrap().unsupported(Target::Sm100).is_empty(), "{text}");
    }
}
