//! Loops that cannot end: a warp that comes back to the registers that it had, and touched no memory and synchronised
//! with nobody meanwhile, will do the same again for ever, whatever others do.

use super::{Cluster, Group, Regs, WARP, Warp};
use crate::decode::{Program, SpecialRegister};
use crate::exec::Op;
use crate::exec::moves::MoveOp;
use crate::finding::Kind;
use crate::trace::Counters;

/// One warp of a cluster, watched while it uses its slices up. The state to compare with is renewed at slices 1, 2, 4,
/// 8 and so on, so that a loop of any length is found in a few times its length.
pub struct Watch {
    cta: u32,
    warp: u32,
    slices: u64,
    renewal: u64,
    state: State,
}

/// What a warp's further way depends on when it touches no memory.
struct State {
    groups: Vec<Group>,
    regs: Regs,
    stack_used: [u32; WARP],
    touched: Counters,
    instructions: u64,
}

impl State {
    fn of(cluster: &Cluster, warp: &Warp) -> State {
        State {
            groups: warp.groups.clone(),
            regs: warp.regs.clone(),
            stack_used: warp.stack_used,
            touched: touched(&cluster.counters),
            instructions: warp.instructions,
        }
    }

    fn comes_again(&self, cluster: &Cluster, warp: &Warp) -> bool {
        self.touched == touched(&cluster.counters)
            && self.groups == warp.groups
            && self.stack_used == warp.stack_used
            && self.regs == warp.regs
    }
}

/// Counters of what reads or changes anything beyond registers.
fn touched(counters: &Counters) -> Counters {
    let mut touched = counters.clone();
    (touched.warp_instructions, touched.thread_instructions, touched.exponentials) = (0, 0, 0);
    touched
}

impl Program {
    /// Whether it reads a clock.
    fn reads_time(&self) -> bool {
        use SpecialRegister as S;
        self.instrs.iter().any(|instr| {
            let Op::Move(MoveOp::Special { special, .. }) = instr.op else {
                return false;
            };
            let clocks = [S::Clock, S::ClockHi, S::Clock64, S::Globaltimer, S::GlobaltimerLo, S::GlobaltimerHi];
            clocks.contains(&special)
        })
    }
}

impl Cluster {
    /// A warp used its slice up. Reports a loop that cannot end, and says whether there is one.
    pub(super) fn is_endless(&mut self, warp: &Warp) -> bool {
        // What a saved frame holds comes back into registers.
        if !warp.frames.is_empty() {
            return false;
        }
        let Some(mut watch) = self.watch.take() else {
            if !self.program.reads_time() {
                let state = State::of(self, warp);
                self.watch = Some(Box::new(Watch { cta: warp.cta, warp: warp.index, slices: 1, renewal: 2, state }));
            }
            return false;
        };
        if (watch.cta, watch.warp) == (warp.cta, warp.index) {
            if watch.state.comes_again(self, warp) {
                let lanes = warp.groups.get(warp.current).map_or(warp.live, |group| group.mask);
                let message = format!(
                    "this loop never ends: after {} instructions the warp has all registers as they were, and it touched no memory meanwhile",
                    warp.instructions - watch.state.instructions
                );
                let finding = self.finding(Kind::Livelock, warp, lanes, message);
                self.report(*finding);
                return true;
            }
            watch.slices += 1;
            if watch.slices == watch.renewal {
                watch.renewal *= 2;
                watch.state = State::of(self, warp);
            }
        }
        self.watch = Some(watch);
        false
    }

    /// A warp synchronised, waited or ended: it is no longer watched.
    pub(super) fn lose_sight(&mut self, warp: &Warp) {
        if self.watch.as_ref().is_some_and(|watch| (watch.cta, watch.warp) == (warp.cta, warp.index)) {
            self.watch = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::emulator::{Emulator, Launch, Module};
    use crate::finding::{Finding, Kind};
    use crate::isa::Target;
    use crate::options::Options;

    /// Findings of `ctas` CTAs of 64 threads that execute `body`, with few instructions to spend.
    fn findings(ctas: u32, body: &str) -> Vec<Finding> {
        let text = format!(
            ".version 8.0\n.target sm_90a\n.address_size 64\n.shared .align 4 .b8 s[64];\n.entry k() {{ .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<4>; mov.u32 %r0, %tid.x;\n{body}\nret; }}"
        );
        let options = Options { instruction_limit: 3_000_000, workers: 1, ..Options::new(Target::Sm90) };
        let device = Emulator::new(Target::Sm90, options);
        let loaded = device.load(&Module::parse(&text).unwrap()).unwrap();
        device.launch(&loaded, "k", Launch::linear(ctas, 64), &[]).unwrap().findings
    }

    #[track_caller]
    fn never_ends(ctas: u32, body: &str, line: u32) {
        let found = findings(ctas, body);
        let [found] = found.as_slice() else { panic!("one finding, got {found:?}") };
        assert_eq!((found.kind, found.warning), (Kind::Livelock, false), "{found}");
        assert!(found.message.contains("this loop never ends") && found.line == line, "{found}");
    }

    #[test]
    fn loops_without_an_end_are_told() {
        never_ends(1, "L: bra L;", 6);
        never_ends(3, "mov.u32 %r1, 7;\nL: xor.b32 %r1, %r1, 3; setp.eq.u32 %p1, %r1, 5; @!%p1 bra L;", 7);
        // Half a warp; the others wait for it, and so does the other warp.
        never_ends(1, "and.b32 %r1, %r0, 16; setp.eq.u32 %p1, %r1, 0;\nL: @%p1 bra L;\nbar.sync 0;", 7);
        // A long way round: 65536 values, of which none is the wanted one.
        never_ends(
            1,
            "mov.u32 %r1, 0;\nL: add.u32 %r1, %r1, 3; and.b32 %r1, %r1, 65535; setp.eq.u32 %p1, %r1, 65536; @!%p1 bra L;",
            7,
        );
    }

    #[test]
    fn loops_that_end_or_may_end_are_not() {
        let counted = "mov.u32 %r1, 0;\nL: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 100000; @%p1 bra L;";
        assert_eq!(findings(1, counted), []);
        // Registers come again; memory and the clock do not.
        let stored = "mov.u32 %r2, s; st.shared.u32 [%r2], 0; bar.sync 0;\nL: ld.shared.u32 %r1, [%r2]; setp.gt.u32 %p1, %r1, 100; @%p1 ret; mov.u32 %r1, 0;
            setp.eq.u32 %p2, %r0, 0; @%p2 atom.shared.add.u32 %r3, [%r2], 1; mov.u32 %r3, 0; bra L;";
        assert!(findings(1, stored).iter().all(|found| found.kind == Kind::Race), "{:?}", findings(1, stored));
        let timed = "L: mov.u64 %rd1, %clock64; setp.gt.u64 %p1, %rd1, 1000000; mov.u64 %rd1, 0; @!%p1 bra L;";
        assert_eq!(findings(1, timed), []);
        let limit = findings(1, "mov.u64 %rd1, 0;\nL: add.u64 %rd1, %rd1, 1; bra L;");
        let [found] = limit.as_slice() else { panic!("{limit:?}") };
        assert_eq!((found.kind, found.line), (Kind::InstructionLimit, 7), "{found}");
        assert!(found.message.starts_with("3000000 warp instructions in one cluster"), "{found}");
    }
}
