//! Branches, returns, exit, trap.

use crate::decode::{Decoder, Refusal, Symbol};
use crate::exec::call::CallOp;
use crate::exec::{Op, lanes};
use crate::finding::Kind;
use crate::isa::table::Row;
use crate::machine::{Cluster, Outcome, R32, Warp};
use crate::parse::ast::{Instruction, Operand};

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new("bra {uni}", "label", decode_bra, "9.7.12.3"),
    Row::new("brx idx {uni}", "index, labels", decode_brx, "9.7.12.4"),
    Row::new("ret {uni}", "", decode_ret, "9.7.12.6"),
    Row::new("exit", "", |_, _| Ok(Op::Control(ControlOp::Exit)), "9.7.12.7"),
    Row::new("trap", "", |_, _| Ok(Op::Control(ControlOp::Trap)), "9.7.19.4"),
    Row::new("brkpt", "", |_, _| Ok(Op::Control(ControlOp::Nop)), "9.7.19.1"),
    Row::new("pmevent {mask}", "a", |_, _| Ok(Op::Control(ControlOp::Nop)), "9.7.19.3"),
    Row::new("nanosleep u32", "a", |_, _| Ok(Op::Control(ControlOp::Sleep)), "9.7.19.2"),
];

/// A decoded control instruction. Targets are operation indices after decoding.
#[derive(Debug, Clone)]
pub enum ControlOp {
    /// Jump.
    Branch {
        /// Where to.
        target: u32,
    },
    /// Jump through a table.
    Table {
        /// Index register.
        index: R32,
        /// Where to, by index.
        targets: Box<[u32]>,
    },
    /// Call of a function of the module.
    Call {
        /// Its first operation.
        target: u32,
    },
    /// Return from a function; from the entry, exit.
    Return,
    /// Exit.
    Exit,
    /// `trap`
    Trap,
    /// No effect.
    Nop,
    /// `nanosleep`: lets others run.
    Sleep,
}

impl ControlOp {
    /// Turns label numbers into operation indices.
    pub(crate) fn resolve(&mut self, at: impl Fn(u32) -> u32) {
        match self {
            ControlOp::Branch { target } | ControlOp::Call { target } => *target = at(*target),
            ControlOp::Table { targets, .. } => targets.iter_mut().for_each(|t| *t = at(*t)),
            _ => {}
        }
    }
}

fn decode_ret(decoder: &mut Decoder<'_>, _: &Instruction) -> Result<Op, Refusal> {
    if let Some(d) = decoder.stack_at_entry {
        decoder.emit(Op::Call(CallOp::StackRestore { a: d }));
    }
    Ok(Op::Control(ControlOp::Return))
}

fn decode_bra(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let label = decoder.label(&instruction.operands[0])?;
    Ok(Op::Control(ControlOp::Branch { target: label.0 }))
}

fn decode_brx(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let index = decoder.src32(&instruction.operands[0])?;
    let Operand::Name(name) = &instruction.operands[1] else {
        return Refusal::invalid("expected the label of .branchtargets");
    };
    let Some(Symbol::Targets(names)) = decoder.lookup(name).cloned() else {
        return Refusal::invalid(format!("{name} is not a .branchtargets label"));
    };
    let targets = names
        .into_iter()
        .map(|name| decoder.label(&Operand::Name(name)).map(|label| label.0))
        .collect::<Result<_, _>>()?;
    Ok(Op::Control(ControlOp::Table { index, targets }))
}

/// Executes a control instruction.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &ControlOp) -> Outcome {
    match *op {
        ControlOp::Branch { target } => Outcome::Branch(target),
        ControlOp::Table { index, ref targets } => {
            let index = warp.regs.get::<u32>(index);
            let mut places: Vec<(u32, u32)> = Vec::new();
            for lane in lanes(mask) {
                let Some(&target) = targets.get(index[lane] as usize) else {
                    let message = format!("index {} of a table of {}", index[lane], targets.len());
                    return machine.fault(Kind::OutOfBounds, warp, 1 << lane, message);
                };
                match places.iter_mut().find(|place| place.1 == target) {
                    Some(place) => place.0 |= 1 << lane,
                    None => places.push((1 << lane, target)),
                }
            }
            match places.as_slice() {
                &[(_, target)] => Outcome::Branch(target),
                _ => Outcome::Scatter(places),
            }
        }
        ControlOp::Call { target } => Outcome::Call(target),
        ControlOp::Return => Outcome::Return,
        ControlOp::Exit => Outcome::Exit,
        ControlOp::Trap => machine.fault(Kind::Trap, warp, mask, "trap"),
        ControlOp::Nop => Outcome::Next,
        ControlOp::Sleep => Outcome::Spin,
    }
}

#[cfg(test)]
mod tests {
    use crate::emulator::{Emulator, Launch, Module};
    use crate::finding::Kind;
    use crate::isa::Target;
    use crate::options::Options;
    use crate::testing::{lanes, run_on, run32};

    const LANE: [u32; 32] = {
        let mut lanes = [0; 32];
        let mut i = 0;
        while i < 32 {
            lanes[i] = i as u32;
            i += 1;
        }
        lanes
    };

    /// Runs `kernel` of a module on one CTA of 32 threads with a buffer of 32 words.
    fn run(text: &str, kernel: &str) -> (crate::Report, Vec<u32>) {
        let device = Emulator::new(Target::Sm90, Options::new(Target::Sm90));
        let module = Module::parse(&format!(".version 8.4 .target sm_90a .address_size 64\n{text}")).unwrap();
        let out = device.allocate("out", 128).unwrap();
        let loaded = device.load(&module).unwrap();
        let report = device.launch(&loaded, kernel, Launch::linear(1, 32), &out.to_le_bytes()).unwrap();
        let bytes = device.read(out, 128).unwrap();
        let words = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        (report, words)
    }

    #[test]
    fn lanes_loop_as_often_as_they_must_and_meet_again() {
        let out = run32(
            "mov.u32 %o0, 0; mov.u32 %r1, 0; LOOP: setp.ge.u32 %p0, %r1, %r0; @%p0 bra DONE; add.u32 %o0, %o0, %r1; add.u32 %r1, %r1, 1;
             bra.uni LOOP; DONE: activemask.b32 %o1; bar.warp.sync -1; activemask.b32 %o2;",
            &[LANE],
            3,
        );
        for lane in 0..32u32 {
            assert_eq!(out[0][lane as usize], lane * lane.saturating_sub(1) / 2);
            assert_eq!(out[1][lane as usize], u32::MAX);
            assert_eq!(out[2][lane as usize], u32::MAX);
        }
    }

    #[test]
    fn tables_scatter_lanes() {
        let out = run32(
            "and.b32 %r1, %r0, 3; T: .branchtargets A, B, A, C; brx.idx %r1, T; A: mov.u32 %o0, 10; bra.uni E; B: mov.u32 %o0, 20; bra.uni E;
             C: mov.u32 %o0, 30; E: add.u32 %o0, %o0, %r0;",
            &[LANE],
            1,
        );
        for lane in 0..32u32 {
            assert_eq!(out[0][lane as usize], [10, 20, 10, 30][lane as usize % 4] + lane);
        }
        let body = "T: .branchtargets A, B; brx.idx %r0, T; A: B:";
        let ran = run_on(Target::Sm100, body, (&[lanes(&[2])], &[]), (0, 0));
        assert_eq!(ran.report.findings[0].kind, Kind::OutOfBounds);
    }

    #[test]
    fn functions_take_and_return_parameters() {
        let (report, words) = run(
            ".func (.param .b32 result) square(.param .b32 x, .param .align 8 .b8 pair[8]) {
                 .reg .b32 %r<5>; .reg .pred %p;
                 ld.param.u32 %r0, [x]; ld.param.v2.u32 {%r2, %r3}, [pair]; mul.lo.u32 %r1, %r0, %r0; add.u32 %r1, %r1, %r2;
                 setp.gt.u32 %p, %r0, 15; @%p bra BIG; st.param.b32 [result], %r1; ret;
                 BIG: add.u32 %r1, %r1, %r3; st.param.b32 [result+0], %r1; ret; }
             .entry main(.param .u64 out) {
                 .reg .b32 %r<8>; .reg .b64 %rd<4>;
                 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [out]; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd2, %rd0, %rd1;
                 { .param .b32 a; .param .align 8 .b8 b[8]; .param .b32 back;
                   st.param.b32 [a+0], %r0; st.param.v2.b32 [b], {5, 1000};
                   call.uni (back), square, (a, b); ld.param.b32 %r1, [back+0]; }
                 st.global.u32 [%rd2], %r1; ret; }",
            "main",
        );
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        for (lane, &word) in words.iter().enumerate() {
            assert_eq!(word as usize, lane * lane + 5 + if lane > 15 { 1000 } else { 0 });
        }
    }

    #[test]
    fn text_is_printed_and_assertions_stop() {
        let module = r#".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
             .extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 s) .noreturn;
             .global .align 1 .b8 $str[12] = {118, 61, 37, 100, 32, 37, 46, 50, 102, 59};
             .global .align 1 .b8 msg[4] = "x>0";
             .entry print(.param .u64 out) {
                 .local .align 8 .b8 depot[16]; .reg .b64 %SP; .reg .b64 %SPL; .reg .b32 %r<4>; .reg .pred %p; .reg .b64 %rd<8>; .reg .f64 %fd;
                 mov.u64 %SPL, depot; cvta.local.u64 %SP, %SPL; mov.u32 %r0, %tid.x; setp.ne.u32 %p, %r0, 3; @%p ret;
                 st.local.u32 [%SPL], -7; mov.f64 %fd, 0d3FF8000000000000; st.local.f64 [%SPL+8], %fd; mov.u64 %rd0, $str; cvta.global.u64 %rd1, %rd0;
                 { .param .b64 p0; st.param.b64 [p0], %rd1; .param .b64 p1; st.param.b64 [p1], %SP; .param .b32 rv;
                   call.uni (rv), vprintf, (p0, p1); ld.param.b32 %r1, [rv]; } ret; }
             .entry fail(.param .u64 out) {
                 .reg .b64 %rd<4>; mov.u64 %rd0, msg; cvta.global.u64 %rd1, %rd0;
                 { .param .b64 p0; st.param.b64 [p0], %rd1; .param .b64 p1; st.param.b64 [p1], %rd1; .param .b32 p2; st.param.b32 [p2], 42;
                   .param .b64 p3; st.param.b64 [p3], %rd1; .param .b64 p4; st.param.b64 [p4], 1;
                   call.uni __assertfail, (p0, p1, p2, p3, p4); } trap; }"#;
        let (report, _) = run(module, "print");
        assert_eq!(report.output, "v=-7 1.50;");
        let (report, _) = run(module, "fail");
        assert_eq!(report.findings[0].message, "x>0:42: assertion failed: x>0");
    }

    #[test]
    fn divergent_aligned_instructions_are_found() {
        let body = "setp.lt.u32 %p0, %io_tid, 16; @%p0 bra A; bar.sync 0; bra B; A: bar.sync 0; B:";
        let ran = run_on(Target::Sm100, body, (&[], &[]), (0, 0));
        assert_eq!(ran.report.findings[0].kind, Kind::Divergence, "{:?}", ran.report.findings);
    }

    #[test]
    fn a_barrier_that_never_fills_is_a_deadlock() {
        let ran = run_on(Target::Sm100, "bar.sync 1, 32;", (&[], &[]), (0, 0));
        assert!(ran.report.is_clean());
        let text = ".version 8.6 .target sm_100a .address_size 64 .entry k() { .reg .pred %p; .reg .b32 %r; mov.u32 %r, %tid.x;
            setp.ge.u32 %p, %r, 32; @%p bra OUT; bar.sync 3, 64; OUT: ret; }";
        let device = Emulator::new(Target::Sm100, Options::new(Target::Sm100));
        let loaded = device.load(&Module::parse(text).unwrap()).unwrap();
        let report = device.launch(&loaded, "k", Launch::linear(1, 96), &[]).unwrap();
        assert_eq!(report.findings[0].kind, Kind::Deadlock);
        assert!(report.findings[0].message.contains("named barrier 3: 32 of 64 threads"), "{}", report.findings[0]);
    }

    #[test]
    fn one_cta_waits_for_another_through_memory() {
        // CTA 1 spins until CTA 0 has stored; with one worker the spinning cluster must give the other a turn.
        let text = ".version 8.6 .target sm_100a .address_size 64 .entry k(.param .u64 flag) { .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd;
            ld.param.u64 %rd, [flag]; mov.u32 %r0, %ctaid.x; setp.eq.u32 %p, %r0, 1; @%p bra SET;
            SPIN: ld.acquire.gpu.global.u32 %r1, [%rd]; setp.eq.u32 %p, %r1, 0; @%p bra SPIN; ret;
            SET: st.release.gpu.global.u32 [%rd], 1; ret; }";
        for workers in [1, 2] {
            let device = Emulator::new(Target::Sm100, Options { workers, ..Options::new(Target::Sm100) });
            let loaded = device.load(&Module::parse(text).unwrap()).unwrap();
            let flag = device.allocate("flag", 4).unwrap();
            device.write(flag, &[0; 4]).unwrap();
            let report = device.launch(&loaded, "k", Launch::linear(2, 1), &flag.to_le_bytes()).unwrap();
            assert!(report.is_clean(), "{:?}", report.findings);
        }
    }

    #[test]
    fn grids_meet_at_their_workspace() {
        // Every CTA counts itself in the workspace that a cooperative launch provides, and waits for the others.
        let text = ".version 8.6 .target sm_100a .address_size 64 .entry k(.param .u64 out) { .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %rd<5>;
            mov.u32 %r0, %envreg2; mov.u32 %r1, %envreg1; mov.b64 %rd0, {%r0, %r1}; ld.param.u64 %rd1, [out]; mov.u32 %r2, %ctaid.x;
            mad.wide.u32 %rd2, %r2, 4, %rd1; st.global.u32 [%rd2], %r2; atom.add.acq_rel.gpu.u32 %r3, [%rd0+4], 1;
            SPIN: ld.acquire.gpu.u32 %r3, [%rd0+4]; setp.lt.u32 %p, %r3, 4; @%p bra SPIN;
            xor.b32 %r4, %r2, 3; mad.wide.u32 %rd3, %r4, 4, %rd1; ld.global.u32 %r5, [%rd3]; st.global.u32 [%rd2+16], %r5; ret; }";
        let device = Emulator::new(Target::Sm100, Options::new(Target::Sm100));
        let loaded = device.load(&Module::parse(text).unwrap()).unwrap();
        let out = device.allocate("out", 32).unwrap();
        for _ in 0..2 {
            let report = device.launch(&loaded, "k", Launch::linear(4, 1), &out.to_le_bytes()).unwrap();
            assert!(report.findings.is_empty(), "{:?}", report.findings);
            let words = device.read(out, 32).unwrap();
            assert_eq!(words.chunks(4).map(|word| word[0]).collect::<Vec<_>>(), [0, 1, 2, 3, 3, 2, 1, 0]);
        }
    }

    #[test]
    fn many_workers_end_with_the_launch() {
        // Every CTA but the last waits for the one after it, so most workers have nothing to run for most of the time.
        let text = ".version 8.6 .target sm_100a .address_size 64 .entry k(.param .u64 flags) { .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd<3>;
            ld.param.u64 %rd0, [flags]; mov.u32 %r0, %ctaid.x; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd2, %rd0, %rd1;
            setp.eq.u32 %p, %r0, 63; @%p bra SET;
            SPIN: ld.acquire.gpu.global.u32 %r1, [%rd2+4]; setp.eq.u32 %p, %r1, 0; @%p bra SPIN;
            SET: st.release.gpu.global.u32 [%rd2], 1; ret; }";
        let pool = rayon::ThreadPoolBuilder::new().num_threads(16).build().unwrap();
        pool.install(|| {
            let device = Emulator::new(Target::Sm100, Options { workers: 16, ..Options::new(Target::Sm100) });
            let loaded = device.load(&Module::parse(text).unwrap()).unwrap();
            let flags = device.allocate("flags", 4 * 64).unwrap();
            device.write(flags, &[0; 4 * 64]).unwrap();
            let report = device.launch(&loaded, "k", Launch::linear(64, 1), &flags.to_le_bytes()).unwrap();
            assert!(report.is_clean(), "{:?}", report.findings);
            let stored = device.read(flags, 4 * 64).unwrap();
            assert!(stored.chunks(4).all(|word| word == [1, 0, 0, 0]));
        });
    }
}
