//! Launches that begin before the one before them has ended: what may be done before `griddepcontrol.wait`.

mod common;

use bakewell_emulator::{Emulator, Kind, Launch, Module, Options, Report, Target};
use common::list;

/// Kernels of two CTAs of two warps over `data` of 1024 bytes, launched in a row, the later ones programmatically.
/// `between` runs before the last of them.
fn launches(kernels: &[&str], between: impl FnOnce(&Emulator, u64)) -> Vec<Report> {
    let mut text = format!(".version 9.2\n.target {}\n.address_size 64\n", Target::Sm90);
    for (i, body) in kernels.iter().enumerate() {
        text += &format!(
            ".visible .entry k{i}(.param .u64 data) {{ .reg .pred %p; .reg .b32 %r<8>; .reg .b64 %rd<8>; .shared .align 16 .b8 tile[128];
mov.u32 %r0, %tid.x; setp.ne.u32 %p, %r0, 0; ld.param.u64 %rd0, [data]; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd1, %rd0;
{body}
ret; }}\n"
        );
    }
    let mut options = Options::new(Target::Sm90);
    options.workers = 1;
    let device = Emulator::new(Target::Sm90, options);
    let data = device.allocate("data", 1024).unwrap();
    device.write(data, &[0; 1024]).unwrap();
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let loaded = device.load(&module).unwrap();
    let mut between = Some(between);
    let run = |i: usize| {
        if i + 1 == kernels.len()
            && let Some(between) = between.take()
        {
            between(&device, data);
        }
        let launch = Launch { overlaps: i > 0, ..Launch::linear(2, 64) };
        device.launch(&loaded, &format!("k{i}"), launch, &data.to_le_bytes()).unwrap()
    };
    (0..kernels.len()).map(run).collect()
}

fn nothing(_: &Emulator, _: u64) {}

/// Asserts that the last launch, and no other, has a race whose message has these words.
#[track_caller]
fn races(kernels: &[&str], words: &[&str]) {
    let mut reports = launches(kernels, nothing);
    let last = reports.pop().unwrap();
    reports.iter().for_each(|report| assert!(report.findings.is_empty(), "{}", list(&report.findings)));
    let told = |finding: &bakewell_emulator::Finding| {
        finding.kind == Kind::Race && !finding.warning && words.iter().all(|word| finding.message.contains(word))
    };
    assert!(last.findings.iter().any(told), "{}", list(&last.findings));
}

#[track_caller]
fn clean(kernels: &[&str]) {
    for report in launches(kernels, nothing) {
        assert!(report.findings.is_empty(), "{}", list(&report.findings));
    }
}

/// Each warp of the grid has words of its own.
const OWN: &str = "mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd2, %r1, 256; add.u64 %rd1, %rd1, %rd2;";
const RELEASE: &str = "griddepcontrol.launch_dependents;";
const WAIT: &str = "griddepcontrol.wait;";

fn with(parts: &[&str]) -> String {
    parts.join("\n")
}

#[test]
fn reads_before_the_wait_race_with_earlier_writes() {
    let writes = with(&[OWN, RELEASE, "st.global.u32 [%rd1], %r0;"]);
    let early = with(&[OWN, "ld.global.u32 %r2, [%rd1];", WAIT]);
    let late = with(&[OWN, WAIT, "ld.global.u32 %r2, [%rd1];"]);
    races(
        &[&writes, &early],
        &["read of data + 0 before griddepcontrol.wait", "the write at line 8 `st.global.u32", "launch of k0"],
    );
    clean(&[&writes, &late]);
    // That the release comes behind the write changes nothing: it orders no memory.
    let then_released = with(&[OWN, "st.global.u32 [%rd1], %r0;", RELEASE]);
    races(&[&then_released, &early], &["read of data + 0"]);
    clean(&[&then_released, &late]);
}

#[test]
fn writes_before_the_wait_race_with_earlier_reads() {
    let reads = with(&[OWN, RELEASE, "ld.global.u32 %r2, [%rd1];"]);
    let writes = with(&[OWN, "st.global.u32 [%rd1], %r0;", WAIT]);
    races(&[&reads, &writes], &["write of data + 0", "the read at line 8"]);
    let reads_too = with(&[OWN, "ld.global.u32 %r2, [%rd1];", WAIT]);
    clean(&[&reads, &reads_too]);
    // Atomics of both do not race, and neither do words next to each other.
    let atomic = with(&[OWN, RELEASE, "red.global.add.u32 [%rd1], 1;", WAIT]);
    clean(&[&atomic, &atomic]);
    let others = with(&[OWN, "st.global.u32 [%rd1 + 512], %r0;", WAIT]);
    clean(&[&reads, &others]);
}

#[test]
fn one_warp_may_wait_for_all() {
    let writes = with(&[OWN, RELEASE, "st.global.u32 [%rd1], %r0;"]);
    let one = "setp.gt.u32 %p, %r0, 31; @%p bra JOIN;";
    let handed = with(&[OWN, one, WAIT, "JOIN: bar.sync 0;", "ld.global.u32 %r2, [%rd1];"]);
    clean(&[&writes, &handed]);
    let alone = with(&[OWN, one, WAIT, "JOIN: ld.global.u32 %r2, [%rd1];", "bar.sync 0;"]);
    races(&[&writes, &alone], &["read of data + 128"]);
}

#[test]
fn a_copy_begins_where_it_is_issued() {
    let writes = with(&[OWN, RELEASE, "st.global.u32 [%rd1], %r0;"]);
    let copy = "@%p bra DONE; mov.u32 %r3, tile; cp.async.cg.shared.global [%r3], [%rd0], 16;";
    let end = "cp.async.wait_all; DONE:";
    let after = with(&[copy, WAIT, end]);
    races(&[&writes, &after], &["read of data + 0"]);
    clean(&[&writes, &with(&[WAIT, copy, end])]);
}

#[test]
fn launches_that_release_before_they_wait_form_a_chain() {
    let writes = with(&[OWN, RELEASE, "st.global.u32 [%rd1], %r0;"]);
    let early = with(&[OWN, "ld.global.u32 %r2, [%rd1];", WAIT]);
    let open = with(&[RELEASE, WAIT]);
    races(&[&writes, &open, &early], &["read of data + 0", "launch of k0"]);
    clean(&[&writes, &with(&[WAIT, RELEASE]), &early]);
    clean(&[&writes, WAIT, &early]);
}

#[test]
fn without_a_release_or_with_the_host_between_nothing_overlaps() {
    let early = with(&[OWN, "ld.global.u32 %r2, [%rd1];", WAIT]);
    clean(&[&with(&[OWN, "st.global.u32 [%rd1], %r0;"]), &early]);
    let writes = with(&[OWN, RELEASE, "st.global.u32 [%rd1], %r0;"]);
    let reports = launches(&[&writes, &early], |device, data| {
        device.read(data, 4).unwrap();
    });
    assert!(reports.iter().all(|report| report.findings.is_empty()), "{reports:?}");
}
