//! mbarriers: what programs may see of their state, and the raw word in shared memory, which is recorded for the
//! curious.

use crate::case::{Case, Class};

/// `body` runs on one thread; `STATE` is an operation's state operand, and `SEE` reads the word into the next result.
fn case(name: &str, body: &str) -> Case {
    let mut text = String::from("mov.u32 %r2, bar; setp.ne.u32 %p9, %thread, 0; @%p9 bra DONE;\n");
    let mut outs = 0;
    for line in body.split(';').map(str::trim).filter(|line| !line.is_empty()) {
        match line {
            "SEE" => text.push_str(&format!("ld.shared.b64 %o{outs}, [%r2];\n")),
            line if line.contains("STATE") => {
                text.push_str(&format!("{};\n", line.replace("STATE", &format!("%o{outs}"))));
            }
            line if line.contains("COUNT") => {
                text.push_str(&format!("{}; cvt.u64.u32 %o{outs}, %r30;\n", line.replace("COUNT", "%r30")));
            }
            line if line.contains("TEST") => {
                text.push_str(&format!("{}; selp.b64 %o{outs}, 1, 0, %p0;\n", line.replace("TEST", "%p0")));
            }
            line => {
                text.push_str(&format!("{line};\n"));
                continue;
            }
        }
        outs += 1;
    }
    let zero: String = (0..outs).map(|i| format!("mov.b64 %o{i}, 0;\n")).collect();
    let mut case = Case::new(name, 32, format!("{zero}{text}DONE:"));
    case.variables = ".shared .align 8 .b64 bar;\n".into();
    case.outs = vec![64; outs];
    if body.contains("SEE") {
        case.class = Class::Observed;
    }
    case
}

pub(super) fn cases() -> Vec<Case> {
    let init = |count: u32| format!("mbarrier.init.shared::cta.b64 [%r2], {count}; SEE;");
    let arrive = "mbarrier.arrive.release.cta.shared::cta.b64 STATE, [%r2]; SEE;";
    let expect = |bytes: u32| format!("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], {bytes}; SEE;");
    let complete = |bytes: u32| format!("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], {bytes}; SEE;");
    let mut cases = Vec::new();
    for count in [1, 2, 5, 1000, (1 << 20) - 1] {
        cases.push(case(&format!("init-{count}"), &format!("{} {arrive} {arrive}", init(count))));
    }
    cases.push(case("phases", &format!("{}{}", init(2), arrive.repeat(9))));
    cases.push(case(
        "transactions",
        &format!(
            "{}{}{}{arrive}{}{}{}",
            init(1),
            expect(16),
            expect(1 << 19),
            complete(16),
            complete(1 << 19),
            expect(48)
        ),
    ));
    cases.push(case("tx-before-expect", &format!("{}{}{}{}{arrive}", init(2), complete(64), expect(64), expect(0))));
    cases.push(case(
        "arrive-expect",
        &format!(
            "{} mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 STATE, [%r2], 256; SEE; {arrive}{}{}{arrive}",
            init(2),
            complete(128),
            complete(128)
        ),
    ));
    cases.push(case(
        "counts",
        &format!(
            "{} mbarrier.arrive.release.cta.shared::cta.b64 STATE, [%r2], 3; SEE; mbarrier.arrive_drop.release.cta.shared::cta.b64 STATE, [%r2], 2; SEE; mbarrier.arrive.release.cta.shared::cta.b64 STATE, [%r2], 5; SEE; {}",
            init(10),
            arrive.repeat(8)
        ),
    ));
    cases.push(case(
        "no-complete",
        &format!(
            "{} mbarrier.arrive.noComplete.release.cta.shared::cta.b64 STATE, [%r2], 3; SEE; {arrive} {arrive}",
            init(5)
        ),
    ));
    cases.push(case(
        "waits",
        "mbarrier.init.shared::cta.b64 [%r2], 2; mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 TEST, [%r2], 0; mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 TEST, [%r2], 1; mbarrier.arrive.release.cta.shared::cta.b64 %rd1, [%r2]; mbarrier.test_wait.acquire.cta.shared::cta.b64 TEST, [%r2], %rd1; mbarrier.pending_count.b64 COUNT, %rd1; mbarrier.arrive.release.cta.shared::cta.b64 %rd2, [%r2]; mbarrier.test_wait.acquire.cta.shared::cta.b64 TEST, [%r2], %rd1; mbarrier.pending_count.b64 COUNT, %rd2; mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 TEST, [%r2], 0; mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 TEST, [%r2], 1; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 TEST, [%r2], 0",
    ));
    cases
}
