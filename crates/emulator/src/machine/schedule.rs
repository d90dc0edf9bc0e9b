//! Who runs next: warps of a cluster in seeded order, lane groups lowest first.

use super::{Block, Cluster, Group, Outcome, Warp};
use crate::async_engine::Sleep;
use crate::check::{Actor, Event};
use crate::decode::Guard;
use crate::exec;
use crate::finding::{Finding, Kind};

/// Where a cluster stands after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// All CTAs exited, or a fault ended it.
    Done,
    /// It would go on; others may run first.
    Paused,
}

/// Most warp instructions of one slice.
const SLICE: u32 = 8192;
/// Spinning slices after which other clusters get a turn.
const SPINS_PER_TURN: u64 = 256;
/// Spinning turns without progress anywhere after which the program is said to live-lock.
pub(crate) const IDLE_TURNS: u64 = 2_000;

/// How a slice of a warp ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slice {
    /// Synchronised, waited or ended.
    Worked,
    /// Went on to the end of the slice.
    Full,
    Spun,
    Faulted,
}

impl Cluster {
    /// Runs until the cluster is done or other clusters should have a turn.
    pub fn run(&mut self) -> Status {
        let grid = self.grid.clone();
        let mut seen_progress = grid.progress();
        let mut idle_turns = 0;
        let mut runnable = Vec::new();
        loop {
            if self.faulted || grid.is_stopped() {
                return self.finish();
            }
            self.complete_ready();
            self.find_runnable(&mut runnable);
            if runnable.is_empty() {
                if self.live_threads() == 0 && self.engine.is_idle() {
                    return self.finish();
                }
                if let Some(action) = self.engine.take_next() {
                    self.perform(action);
                    continue;
                }
                if self.time_out_wait() {
                    continue;
                }
                self.report_deadlock();
                return self.finish();
            }
            let pick = self.rng.below(runnable.len() as u64) as usize;
            let (cta, warp) = runnable[pick];
            let Some(mut taken) = self.ctas[cta].warps[warp].take() else {
                continue;
            };
            let slice = self.run_warp(&mut taken);
            match slice {
                Slice::Full => self.faulted |= self.is_endless(&taken),
                _ => self.lose_sight(&taken),
            }
            let pc = taken.pc();
            self.ctas[cta].warps[warp] = Some(taken);
            match slice {
                Slice::Worked | Slice::Full => {
                    self.spins = 0;
                    grid.advance();
                }
                Slice::Faulted => self.faulted = true,
                Slice::Spun => {
                    self.spins += 1;
                    if self.spins > 4 * runnable.len() as u64
                        && let Some(action) = self.engine.take_next()
                    {
                        self.perform(action);
                        self.spins = 0;
                    } else if self.spins >= SPINS_PER_TURN {
                        self.spins = 0;
                        if self.time_out_wait() {
                            continue;
                        }
                        let progress = grid.progress();
                        if progress != seen_progress || !self.only_cluster() {
                            return Status::Paused;
                        }
                        seen_progress = progress;
                        idle_turns += 1;
                        if idle_turns > IDLE_TURNS {
                            self.report_livelock();
                            return self.finish();
                        }
                    }
                }
            }
            if self.clock > self.options.instruction_limit {
                self.report_limit((cta, warp), pc);
                return self.finish();
            }
        }
    }

    fn only_cluster(&self) -> bool {
        self.grid.shape.cluster_count() == 1
    }

    /// Performs what the engine has ready.
    fn complete_ready(&mut self) {
        while let Some(action) = self.engine.take_ready(self.clock) {
            self.perform(action);
        }
    }

    fn perform(&mut self, action: crate::async_engine::Action) {
        if let Err(fault) = action(self) {
            self.faulted = !fault.warning;
            self.report(*fault);
        }
        self.collect();
    }

    /// Takes findings from the checkers.
    fn collect(&mut self) {
        let Some(observer) = &mut self.observer else {
            return;
        };
        for (actor, mut finding) in observer.take_findings() {
            finding.kernel.clone_from(&self.program.name);
            if finding.line == 0 {
                finding.line = self.program.line_of(actor.pc);
                finding.ptx = self.program.text_of(actor.pc).to_string();
            }
            finding.cta = self.ctas.get(actor.cta as usize).map_or([0; 3], |cta| cta.index);
            self.report(finding);
        }
    }

    /// Lists warps with a group that can run, and unblocks groups whose wait is over.
    fn find_runnable(&mut self, runnable: &mut Vec<(usize, usize)>) {
        runnable.clear();
        for cta in 0..self.ctas.len() {
            for warp in 0..self.ctas[cta].warps.len() {
                let Some(mut taken) = self.ctas[cta].warps[warp].take() else {
                    continue;
                };
                let mut any = false;
                for group in 0..taken.groups.len() {
                    let Group { mask, block, .. } = taken.groups[group];
                    match block {
                        None => any = true,
                        Some(block) if block.is_over(self, &taken, mask) => {
                            taken.groups[group].block = None;
                            any = true;
                        }
                        Some(_) => {}
                    }
                }
                if any {
                    runnable.push((cta, warp));
                }
                self.ctas[cta].warps[warp] = Some(taken);
            }
        }
    }

    /// Runs a warp until it synchronises, blocks or used its slice.
    fn run_warp(&mut self, warp: &mut Warp) -> Slice {
        let program = self.program.clone();
        let mut budget = SLICE;
        let start = budget;
        let result = 'slice: loop {
            let Some((index, other)) = warp.pick() else {
                break Slice::Worked;
            };
            warp.current = index;
            // Stay with this group until it passes the place of another one.
            loop {
                let pc = warp.groups[index].pc;
                let mask = warp.groups[index].mask;
                let Some(instr) = program.instrs.get(pc as usize) else {
                    let fault = self.finding(Kind::Trap, warp, mask, "ran past the end of the program");
                    self.report(*fault);
                    break 'slice Slice::Faulted;
                };
                let active = match instr.guard {
                    Guard::None => mask,
                    Guard::If(p) => mask & warp.regs.pred[p.0 as usize],
                    Guard::Unless(p) => mask & !warp.regs.pred[p.0 as usize],
                };
                budget -= 1;
                if let Some(count) = self.executed.get_mut(pc as usize) {
                    *count += u64::from(active != 0);
                }
                self.counters.thread_instructions += u64::from(active.count_ones());
                if let Some(regs) = program.product_registers.get(pc as usize)
                    && !regs.is_empty()
                    && active != 0
                {
                    exec::wgmma::registers::touch(self, warp, active, regs);
                }
                if !warp.loading.is_empty()
                    && active != 0
                    && let Some(regs) = program.loaded_registers.get(pc as usize)
                    && !regs.is_empty()
                {
                    exec::tcgen05::registers::touch(self, &program, warp, active, regs);
                }
                let outcome = if active == 0 { Outcome::Next } else { exec::execute(self, warp, active, &instr.op) };
                match outcome {
                    Outcome::Next => {
                        warp.groups[index].pc = pc + 1;
                        if budget == 0 {
                            break 'slice Slice::Full;
                        }
                        if pc + 1 >= other {
                            continue 'slice;
                        }
                    }
                    Outcome::Branch(target) if active == mask => {
                        warp.groups[index].pc = target;
                        if budget == 0 {
                            break 'slice Slice::Full;
                        }
                        if target >= other {
                            continue 'slice;
                        }
                    }
                    Outcome::Yield | Outcome::Spin => {
                        warp.groups[index].pc = pc + 1;
                        let spun = matches!(outcome, Outcome::Spin);
                        break 'slice if spun { Slice::Spun } else { Slice::Worked };
                    }
                    other => {
                        if let Some(end) = self.redirect(warp, index, active, other) {
                            break 'slice end;
                        }
                        if budget == 0 {
                            break 'slice Slice::Full;
                        }
                        continue 'slice;
                    }
                }
            }
        };
        let executed = u64::from(start - budget);
        warp.instructions += executed;
        self.clock += executed;
        self.counters.warp_instructions += executed;
        self.collect();
        result
    }

    /// Outcomes that move lanes between groups, block or end them. `Some` ends the slice.
    fn redirect(&mut self, warp: &mut Warp, index: usize, active: u32, outcome: Outcome) -> Option<Slice> {
        let pc = warp.groups[index].pc;
        match outcome {
            Outcome::Next | Outcome::Yield | Outcome::Spin => {
                warp.groups[index].pc = pc + 1;
                None
            }
            Outcome::Branch(target) => {
                split(warp, index, active, target);
                None
            }
            Outcome::Scatter(targets) => {
                let rest = warp.groups[index].mask & !active;
                let callers = warp.groups[index].callers.clone();
                warp.groups.swap_remove(index);
                let stay = (rest, pc + 1);
                for (mask, target) in targets.into_iter().chain([stay]).filter(|t| t.0 != 0) {
                    warp.groups.push(Group { pc: target, mask, callers: callers.clone(), block: None });
                }
                None
            }
            Outcome::Call(target) => {
                let group = split(warp, index, active, target);
                warp.groups[group].callers.push(pc + 1);
                None
            }
            Outcome::Return => {
                match warp.groups[index].callers.last().copied() {
                    Some(target) => {
                        let group = split(warp, index, active, target);
                        warp.groups[group].callers.pop();
                    }
                    None => return self.exit(warp, index, active),
                }
                None
            }
            Outcome::Exit => self.exit(warp, index, active),
            Outcome::Retry(block) => {
                let group = &mut warp.groups[index];
                if group.mask != active {
                    // Lanes that the guard masks off go on; the others try again with the guard still true.
                    let rest = group.mask & !active;
                    group.mask = active;
                    let mut other = group.clone();
                    other.mask = rest;
                    other.pc = pc + 1;
                    warp.groups.push(other);
                }
                warp.groups[index].block = Some(block);
                self.after_block(warp, block)
            }
            Outcome::Wait(block) => {
                let group = &mut warp.groups[index];
                group.pc = pc + 1;
                if group.mask != active {
                    let mut other = group.clone();
                    other.mask = group.mask & !active;
                    group.mask = active;
                    warp.groups.push(other);
                }
                warp.groups[index].block = Some(block);
                self.after_block(warp, block)
            }
            Outcome::Fault(finding) => {
                let fatal = !finding.warning;
                self.report(*finding);
                fatal.then_some(Slice::Faulted)
            }
        }
    }

    /// After a wait for convergence the other groups of the warp go on; otherwise another warp may.
    fn after_block(&self, _warp: &Warp, block: Block) -> Option<Slice> {
        match block {
            Block::Converge { .. } => None,
            _ => Some(Slice::Worked),
        }
    }

    /// Lanes exit.
    fn exit(&mut self, warp: &mut Warp, index: usize, active: u32) -> Option<Slice> {
        exec::copy_groups::before_exit(self, warp, active);
        self.notify(warp, active, &Event::Exit);
        let pc = warp.groups[index].pc;
        let rest = warp.groups[index].mask & !active;
        if rest == 0 {
            warp.groups.swap_remove(index);
        } else {
            warp.groups[index].mask = rest;
            warp.groups[index].pc = pc + 1;
        }
        warp.live &= !active;
        warp.current = 0;
        let cta = &mut self.ctas[warp.cta as usize];
        let threads = active.count_ones();
        cta.live_threads -= threads;
        cta.live_by_warp[warp.index as usize] -= threads;
        let done = cta.is_done();
        exec::barrier::after_exit(self, warp.cta);
        exec::cluster::after_exit(self, warp, active);
        if done {
            self.cta_exit(warp.cta);
        }
        warp.is_done().then_some(Slice::Worked)
    }

    /// The last thread of a CTA exited.
    fn cta_exit(&mut self, rank: u32) {
        let actor = Actor { cta: rank, warp: 0, lanes: 0, pc: 0 };
        if let Some(observer) = &mut self.observer {
            observer.event(&actor, &Event::CtaExit { cta: rank });
        }
        self.counters.ctas += 1;
        exec::barrier::cta_exit(self, rank);
        exec::tcgen05::cta_exit(self, rank);
        exec::mbarrier::cta_exit(self, rank);
    }

    /// Ends one sleep of `try_wait` that did not end yet since anything happened. The program may have other work to do
    /// before the phase can complete; when every sleeper woke in vain, it is a deadlock.
    fn time_out_wait(&mut self) -> bool {
        let sleeper = self.blocks().find_map(|(warp, group, block)| match block {
            Block::Mbarrier { address, times_out: true, .. } => {
                let sleep = Sleep { cta: warp.cta, warp: warp.index, pc: group.pc, address };
                (!self.engine.has_timed_out(&sleep)).then_some((sleep, group.mask))
            }
            _ => None,
        });
        let Some((sleep, mask)) = sleeper else {
            return false;
        };
        if let Some(warp) = &mut self.ctas[sleep.cta as usize].warps[sleep.warp as usize] {
            warp.timed_out |= mask;
            for group in warp.groups.iter_mut().filter(|group| group.mask == mask) {
                group.block = None;
            }
        }
        self.engine.note_timeout(sleep);
        true
    }

    /// Every blocked group.
    fn blocks(&self) -> impl Iterator<Item = (&Warp, &Group, Block)> {
        self.ctas
            .iter()
            .flat_map(|cta| cta.warps.iter().flatten())
            .flat_map(|warp| warp.groups.iter().map(move |group| (&**warp, group)))
            .filter_map(|(warp, group)| group.block.map(|block| (warp, group, block)))
    }

    /// Everyone waits and nothing is in flight: lanes that cannot converge, or a deadlock.
    fn report_deadlock(&mut self) {
        let mut findings = Vec::new();
        let mut waits = Vec::new();
        for (warp, group, block) in self.blocks() {
            let line = self.program.line_of(group.pc);
            let index = self.ctas[warp.cta as usize].index;
            waits.push(format!(
                "cta {index:?} warp {} lanes {:#010x} line {line} {}",
                warp.index,
                group.mask,
                block.describe(self, warp)
            ));
            let (kind, message) = match block {
                Block::Converge { members } => (
                    Kind::Divergence,
                    format!(
                        "lanes {:#010x} never reach the instruction that lanes {:#010x} wait at",
                        members & warp.live & !group.mask,
                        group.mask
                    ),
                ),
                _ => (Kind::Deadlock, block.describe(self, warp)),
            };
            let pc = match block {
                Block::Converge { .. } | Block::Mbarrier { .. } => group.pc,
                _ => group.pc.saturating_sub(1),
            };
            let apart = match block {
                Block::Converge { members } => warp
                    .groups
                    .iter()
                    .all(|other| other.mask & members == 0 || matches!(other.block, Some(Block::Converge { .. }))),
                _ => false,
            };
            let finding = Finding {
                kind,
                warning: false,
                kernel: self.program.name.clone(),
                line: self.program.line_of(pc),
                ptx: self.program.text_of(pc).to_string(),
                cta: index,
                warp: Some(warp.index),
                lanes: group.mask,
                object: None,
                message,
            };
            findings.push((apart, finding));
        }
        let all = waits.join("; ");
        // Lanes apart explain the rest, unless the missing ones wait for something else; the first waiter carries the
        // graph.
        findings.sort_by_key(|(apart, finding)| (!apart, finding.kind == Kind::Divergence));
        let mut findings = findings.into_iter().map(|(_, finding)| finding);
        if let Some(mut first) = findings.next() {
            if first.kind == Kind::Deadlock {
                first.message = format!("no warp can run: {all}");
            }
            self.report(first);
        }
        self.faulted = true;
    }

    pub(crate) fn report_livelock(&mut self) {
        let finding = self.first_live(Kind::Livelock, "warps spin and nothing changes");
        self.report(finding);
        self.faulted = true;
    }

    /// The warp at `pc` executed the last instruction that the options allow.
    fn report_limit(&mut self, (cta, warp): (usize, usize), pc: u32) {
        let message = format!(
            "{} warp instructions in one cluster are the limit that was set: a loop may have no end here",
            self.options.instruction_limit
        );
        let lanes = self.ctas[cta].warps[warp].as_ref().map_or(0, |warp| warp.live);
        let actor = Actor { cta: cta as u32, warp: warp as u32, lanes, pc };
        let finding = self.finding_of(Kind::InstructionLimit, &actor, message);
        self.report(*finding);
        self.faulted = true;
    }

    fn first_live(&self, kind: Kind, message: &str) -> Finding {
        let warp = self.ctas.iter().flat_map(|cta| cta.warps.iter().flatten()).find(|warp| !warp.is_done());
        let pc = warp.map_or(0, |warp| warp.pc());
        Finding {
            kind,
            warning: false,
            kernel: self.program.name.clone(),
            line: self.program.line_of(pc),
            ptx: self.program.text_of(pc).to_string(),
            cta: warp.map_or([0; 3], |warp| self.ctas[warp.cta as usize].index),
            warp: warp.map(|warp| warp.index),
            lanes: warp.map_or(0, |warp| warp.live),
            object: None,
            message: message.to_string(),
        }
    }

    /// Ends the cluster: sums counters, stops the launch after a fault.
    fn finish(&mut self) -> Status {
        self.collect();
        for cta in &self.ctas {
            for warp in cta.warps.iter().flatten() {
                let index = warp.index as usize;
                if self.counters.instructions_by_warp.len() <= index {
                    self.counters.instructions_by_warp.resize(index + 1, 0);
                }
                self.counters.instructions_by_warp[index] += warp.instructions;
            }
        }
        if self.faulted {
            self.grid.stop();
        }
        Status::Done
    }
}

/// Sends the active lanes of a group to `target`; the others go on. Returns the group of the active lanes.
fn split(warp: &mut Warp, index: usize, active: u32, target: u32) -> usize {
    let group = &mut warp.groups[index];
    let rest = group.mask & !active;
    if rest == 0 {
        group.pc = target;
        return index;
    }
    let mut moved = group.clone();
    group.mask = rest;
    group.pc += 1;
    moved.mask = active;
    moved.pc = target;
    warp.groups.push(moved);
    warp.groups.len() - 1
}
