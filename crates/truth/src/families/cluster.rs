//! Clusters: ranks, mapped addresses, distributed shared memory, remote barriers, st.async, atomics.

use crate::case::{Case, Input};
use crate::values::Source;

const BOTH: &str = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;";

/// 4 clusters of `size` CTAs of 64 threads. `%r2` is the word of the thread in shared memory, `%r3` the next rank,
/// `%r4` its word there, `%r5` a barrier here and `%r6` there. Words start as the first operand.
fn case(name: &str, size: u32, outs: usize, body: &str) -> Case {
    let start = format!(
        "mov.u32 %r1, words; mad.lo.u32 %r2, %thread, 4, %r1; mov.u32 %r7, %cluster_nctarank; add.u32 %r3, %rank, 1; rem.u32 %r3, %r3, %r7; mapa.shared::cluster.u32 %r4, %r2, %r3; mov.u32 %r5, bar; mapa.shared::cluster.u32 %r6, %r5, %r3;
         st.shared.b32 [%r2], %i0; setp.eq.u32 %p1, %thread, 0; @%p1 mbarrier.init.shared::cta.b64 [%r5], 1; fence.mbarrier_init.release.cluster; {BOTH}"
    );
    let mut case = Case::new(format!("{name}/{size}"), 64, format!("{start}\n{body}\n{BOTH}"));
    case.variables = ".shared .align 16 .b32 words[64]; .shared .align 8 .b64 bar;\n".into();
    (case.ctas, case.cluster) = (4 * size, size);
    let total = case.total();
    let mut source = Source::named(&case.name);
    let mut input = || Input { bits: 32, values: (0..total).map(|_| source.bits() & 0xffff_ffff).collect() };
    case.inputs = vec![input(), input()];
    case.outs = vec![32; outs];
    case
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let wait = "WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r5], 0; @!%p2 bra WAIT;";
    for size in [2, 4, 8] {
        cases.push(case(
            "registers",
            size,
            6,
            "mov.u32 %o0, %cluster_ctarank; mov.u32 %o1, %cluster_nctarank; mov.u32 %o2, %cluster_ctaid.x; mov.u32 %o3, %nclusterid.x; getctarank.shared::cluster.u32 %o4, %r4; sub.u32 %o5, %r4, %r2;",
        ));
        cases.push(case(
            "addresses",
            size,
            4,
            "mov.u32 %o0, %r2; mov.u32 %o1, %r4; cvt.u64.u32 %rd1, %r4; cvta.shared.u64 %rd2, %rd1; cvta.shared.u64 %rd3, 0; sub.u64 %rd2, %rd2, %rd3; cvt.u32.u64 %o2, %rd2; cvta.to.shared.u64 %rd4, %rd3; cvt.u32.u64 %o3, %rd4;",
        ));
        cases.push(case("ld.shared::cluster", size, 1, "ld.shared::cluster.b32 %o0, [%r4];"));
        cases.push(case(
            "st.shared::cluster",
            size,
            1,
            &format!("st.shared::cluster.b32 [%r4], %i1; {BOTH} ld.shared.b32 %o0, [%r2];"),
        ));
        cases.push(case(
            "generic",
            size,
            2,
            &format!(
                "cvt.u64.u32 %rd1, %r2; cvta.shared.u64 %rd1, %rd1; mapa.u64 %rd2, %rd1, %r3; ld.b32 %o0, [%rd2]; {BOTH} st.b32 [%rd2], %i1; {BOTH} ld.shared.b32 %o1, [%r2];"
            ),
        ));
        for op in ["add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32", "inc.u32", "dec.u32", "exch.b32"] {
            cases.push(case(
                &format!("atom.shared::cluster.{op}"),
                size,
                2,
                &format!("atom.relaxed.cluster.shared::cluster.{op} %o0, [%r4], %i1; {BOTH} ld.shared.b32 %o1, [%r2];"),
            ));
        }
        cases.push(case(
            "mbarrier.arrive",
            size,
            1,
            &format!("st.shared::cluster.b32 [%r4], %i1; bar.sync 0; @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6]; {wait} ld.shared.b32 %o0, [%r2];"),
        ));
        let expect = "@%p1 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r5], 256;";
        cases.push(case(
            "st.async",
            size,
            1,
            &format!("{expect} st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r4], %i1, [%r6]; {wait} ld.shared.b32 %o0, [%r2];"),
        ));
        for op in ["add.u32", "min.u32", "max.s32", "and.b32", "or.b32", "xor.b32", "inc.u32", "dec.u32"] {
            cases.push(case(
                &format!("red.async.{op}"),
                size,
                1,
                &format!("{expect} red.async.relaxed.cluster.global.shared::cluster.mbarrier::complete_tx::bytes.{op} [%r4], %i1, [%r6]; {wait} ld.shared.b32 %o0, [%r2];")
                    .replace(".global", ""),
            ));
        }
        cases.push(case(
            "bulk",
            size,
            1,
            &format!(
                "{expect} fence.proxy.async.shared::cta; mov.u32 %r8, other; mapa.shared::cluster.u32 %r9, %r8, %r3; {BOTH} @%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r9], [%r1], 256, [%r6]; {wait} mad.lo.u32 %r8, %thread, 4, %r8; ld.shared.b32 %o0, [%r8];"
            ),
        ));
    }
    for case in cases.iter_mut().filter(|case| case.name.starts_with("bulk")) {
        case.variables.push_str(".shared .align 16 .b32 other[64];\n");
    }
    cases
}
