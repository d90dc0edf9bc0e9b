//! A launch while it runs: which clusters are on the device, whose turn it is, what a fresh cluster looks like.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::async_engine::AsyncEngine;
use crate::check::Observer;
use crate::check::order::OrderChecker;
use crate::check::overlap::{Earlier, LaunchState};
use crate::decode::Program;
use crate::emulator::Report;
use crate::exec::mbarrier::Mbarriers;
use crate::isa::Target;
use crate::machine::{Cluster, Cta, Grid, IDLE_TURNS, NamedBarrier, Regs, Status, WARP, Warp};
use crate::memory::{GlobalMemory, LocalMemory, SHARED_START, SharedMemory, TensorMemory};
use crate::options::Options;
use crate::rng::Rng;
use crate::trace::Counters;

/// A launch while it runs.
pub(crate) struct Run {
    grid: Arc<Grid>,
    program: Arc<Program>,
    params: Arc<Vec<u8>>,
    global: Arc<GlobalMemory>,
    options: Arc<Options>,
    target: Target,
    /// Clusters by what happens to them next.
    turns: Mutex<Turns>,
    /// A worker gave its cluster back.
    turn_over: Condvar,
    report: Mutex<Report>,
    /// Progress when it was last seen to change, and turns that ended in vain since.
    idle: Mutex<(u64, u64)>,
    /// What the happens-before checkers of its clusters share.
    order: Arc<LaunchState>,
    /// Launches that may still run.
    earlier: Earlier,
}

/// The clusters of a launch that are on the device.
#[derive(Default)]
struct Turns {
    /// Linear indices of clusters that have not begun.
    waiting: VecDeque<u64>,
    /// Begun, and waiting for other clusters.
    paused: VecDeque<Box<Cluster>>,
    /// Held by workers. What they give back may let others go on.
    running: usize,
}

impl Run {
    /// A launch of which nothing ran.
    pub(crate) fn new(
        program: Arc<Program>,
        grid: Arc<Grid>,
        params: &[u8],
        global: Arc<GlobalMemory>,
        (options, target): (Arc<Options>, Target),
        earlier: Earlier,
    ) -> Run {
        Run {
            order: LaunchState::new(program.clone()),
            earlier,
            grid,
            program,
            params: Arc::new(params.to_vec()),
            global,
            options,
            target,
            turns: Mutex::default(),
            turn_over: Condvar::new(),
            report: Mutex::new(Report::default()),
            idle: Mutex::new((0, 0)),
        }
    }

    /// Runs all clusters. Also gives the launches that may still run when a dependent one begins.
    pub(crate) fn run(self) -> (Report, Earlier) {
        self.turns().waiting.extend((0..self.resident()).map_while(|_| self.grid.take_cluster()));
        let workers = self.options.workers.max(1);
        if workers == 1 || self.grid.shape.cluster_count() == 1 {
            self.work();
        } else {
            rayon::scope(|scope| {
                for _ in 0..workers {
                    scope.spawn(|_| self.work());
                }
            });
        }
        let mut report = self.report.into_inner().unwrap_or_else(PoisonError::into_inner);
        report.findings.sort_by_key(|finding| (finding.cta, finding.warp, finding.line, finding.kind));
        (report, self.order.unfinished(&self.earlier))
    }

    /// Clusters that are on the device at the same time.
    fn resident(&self) -> u64 {
        let shape = &self.grid.shape;
        let by_threads = self.target.threads_per_sm() / shape.threads().next_multiple_of(32);
        let by_shared = self.target.shared_per_sm() / (shape.shared_bytes + SHARED_START);
        let per_sm = by_threads.min(by_shared).min(self.target.ctas_per_sm()).max(1);
        let ctas = u64::from(self.options.sm_count.max(1)) * u64::from(per_sm);
        (ctas / u64::from(shape.cluster_size())).max(1)
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One worker: runs clusters until none is left.
    fn work(&self) {
        while let Some(mut cluster) = self.next_cluster() {
            let status = cluster.run();
            let paused = match status {
                Status::Paused if !self.is_stuck() => Some(cluster),
                Status::Paused => {
                    cluster.report_livelock();
                    self.collect(*cluster);
                    self.grid.stop();
                    None
                }
                Status::Done => {
                    self.collect(*cluster);
                    None
                }
            };
            let next = match status {
                Status::Done if !self.grid.is_stopped() => self.grid.take_cluster(),
                _ => None,
            };
            let mut turns = self.turns();
            turns.running -= 1;
            turns.paused.extend(paused);
            turns.waiting.extend(next);
            self.turn_over.notify_all();
        }
    }

    /// The cluster whose turn it is; `None` when none is left and no worker can bring one.
    fn next_cluster(&self) -> Option<Box<Cluster>> {
        let mut turns = self.turns();
        loop {
            if let Some(linear) = turns.waiting.pop_front() {
                turns.running += 1;
                drop(turns);
                return Some(Box::new(self.cluster(linear)));
            }
            if let Some(cluster) = turns.paused.pop_front() {
                turns.running += 1;
                return Some(cluster);
            }
            if turns.running == 0 {
                return None;
            }
            turns = self.turn_over.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether clusters have taken turns for long without any of them making progress.
    fn is_stuck(&self) -> bool {
        let progress = self.grid.progress();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        *idle = if idle.0 == progress { (progress, idle.1 + 1) } else { (progress, 0) };
        idle.1 > IDLE_TURNS.max(64 * self.grid.shape.cluster_count())
    }

    fn collect(&self, cluster: Cluster) {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.counters.merge(&cluster.counters);
        report.output.push_str(&cluster.output);
        let counts = cluster.executed.iter().zip(0..).filter(|(count, _)| **count > 0);
        for (count, pc) in counts {
            *report.executed.entry((self.program.name.clone(), self.program.line_of(pc))).or_default() += count;
        }
        for finding in cluster.findings {
            let known = report
                .findings
                .iter()
                .any(|f| f.kind == finding.kind && f.line == finding.line && f.object == finding.object);
            if !known {
                report.findings.push(finding);
            }
        }
    }

    /// Makes the cluster of a linear index.
    fn cluster(&self, linear: u64) -> Cluster {
        let shape = &self.grid.shape;
        let index = shape.cluster_index(linear);
        let ctas = (0..shape.cluster_size()).map(|rank| self.cta(index, rank)).collect();
        let seed = self.options.seed;
        Cluster {
            index,
            linear,
            ctas,
            program: self.program.clone(),
            params: self.params.clone(),
            grid: self.grid.clone(),
            global: self.global.clone(),
            options: self.options.clone(),
            engine: AsyncEngine::new(self.options.policy, seed, linear),
            barrier: Default::default(),
            clock: 0,
            rng: Rng::new(seed, linear),
            observer: self.observer(linear),
            findings: Vec::new(),
            faulted: false,
            executed: if self.options.profile { vec![0; self.program.instrs.len()] } else { Vec::new() },
            counters: Counters::default(),
            products: Default::default(),
            unpacked: Default::default(),
            output: String::new(),
            spins: 0,
            watch: None,
        }
    }

    /// The checker of the cluster of a linear index.
    fn observer(&self, linear: u64) -> Option<Box<dyn Observer>> {
        let shape = &self.grid.shape;
        match &self.options.observer {
            Some(make) => Some(make(shape, &self.program)),
            None if self.options.checks.order => Some(Box::new(OrderChecker::new(
                self.order.clone(),
                self.earlier.clone(),
                shape,
                self.global.clone(),
                linear,
                self.options.checks,
            ))),
            None => None,
        }
    }

    fn cta(&self, cluster: [u32; 3], rank: u32) -> Cta {
        let shape = &self.grid.shape;
        let [cx, cy, _] = shape.cluster;
        let inside = [rank % cx, rank / cx % cy, rank / (cx * cy)];
        let index = std::array::from_fn(|i| cluster[i] * shape.cluster[i] + inside[i]);
        let threads = shape.threads();
        let check = self.options.checks.uninitialised;
        let live: Vec<u32> =
            (0..threads.div_ceil(WARP as u32)).map(|warp| (threads - warp * WARP as u32).min(WARP as u32)).collect();
        let warps = live.iter().enumerate().map(|(warp, &lanes)| {
            let mask = u32::MAX >> (WARP as u32 - lanes);
            let local = LocalMemory::new(self.program.local_bytes, check);
            let mut warp = Warp::new(rank, warp as u32, mask, self.registers(), local);
            warp.register_budget = self.program.demands.registers_at_launch().unwrap_or(0);
            Some(Box::new(warp))
        });
        Cta {
            rank,
            index,
            shared: SharedMemory::new(shape.shared_bytes, check),
            tensor: self.target.has_tensor_memory().then(|| Box::new(TensorMemory::new())),
            tensor_changes: 0,
            mbarriers: Mbarriers::default(),
            barriers: std::array::from_fn(|_| NamedBarrier::default()),
            register_pool: 0,
            register_changes: vec![Vec::new(); live.len()],
            warps: warps.collect(),
            live_threads: threads,
            live_by_warp: live,
        }
    }

    /// Registers with the program's constants in place.
    fn registers(&self) -> Regs {
        let mut regs = Regs::new(self.program.registers);
        for &(reg, value) in &self.program.constants32 {
            regs.set::<u32>(reg, u32::MAX, &[value; WARP]);
        }
        for &(reg, value) in &self.program.constants64 {
            regs.set::<u64>(reg, u32::MAX, &[value; WARP]);
        }
        for &(reg, value) in &self.program.constants128 {
            regs.set::<u128>(reg, u32::MAX, &[value; WARP]);
        }
        if let Some(p) = self.program.constant_predicates[1] {
            regs.set_pred(p, u32::MAX, u32::MAX);
        }
        regs
    }
}
