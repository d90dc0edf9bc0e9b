//! The library API: load a module, set buffers, launch, read results, findings and counters.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use crate::async_engine::{AsyncEngine, CompletionPolicy};
use crate::check::Observer;
use crate::check::order::{LaunchState, OrderChecker};
use crate::decode::{Globals, Program, decode_kernel, functions_of, initial_bytes, size_of, survey_kernel};
use crate::error::{Error, Result};
use crate::exec::mbarrier::Mbarriers;
use crate::finding::Finding;
use crate::isa::Target;
use crate::machine::{Cluster, Cta, Grid, IDLE_TURNS, LaunchShape, NamedBarrier, Regs, Status, WARP, Warp};
use crate::memory::{AccessError, GlobalMemory, LocalMemory, SHARED_START, SharedMemory, TensorMemory};
use crate::numerics::approx::Approximation;
use crate::parse::ast;
use crate::rng::Rng;
use crate::trace::Counters;

/// How tensor-core sums are modelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MatrixNumerics {
    /// As measured or documented for the target. The default, and what evidence about a program rests on.
    #[default]
    Hardware,
    /// Exact products, one rounding to f32 per instruction: several times faster where products dominate, for tests
    /// whose subject is order, addresses or control flow.
    Plain,
}

/// Which checkers run. Turning one off never changes results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Checks {
    /// Reads of bytes that nobody wrote.
    pub uninitialised: bool,
    /// Happens-before: races, missing fences, lifetime.
    pub order: bool,
    /// Warnings about missing `tcgen05.fence`, which some compilers never emit.
    pub tensor_fences: bool,
    /// Warnings about generic reads of shared memory that an asynchronous copy overwrites without a proxy fence between.
    pub read_fences: bool,
}

impl Default for Checks {
    fn default() -> Self {
        Checks { uninitialised: true, order: true, tensor_fences: false, read_fences: false }
    }
}

/// Makes the checker of one cluster.
pub type ObserverFactory = Arc<dyn Fn(&LaunchShape, &Program) -> Box<dyn Observer> + Send + Sync>;

/// Options of an emulator.
#[derive(Clone)]
pub struct Options {
    /// Seed of every choice.
    pub seed: u64,
    /// When asynchronous work completes.
    pub policy: CompletionPolicy,
    /// Host threads; 1 makes whole launches deterministic, also between clusters.
    pub workers: usize,
    /// Checkers.
    pub checks: Checks,
    /// SMs of the device.
    pub sm_count: u32,
    /// Tensor-core sums.
    pub numerics: MatrixNumerics,
    /// Approximate functions, perturbed from a seed or not.
    pub approximation: Approximation,
    /// Most warp instructions of one cluster.
    pub instruction_limit: u64,
    /// Makes a checker for each cluster in place of the one that `checks.order` asks for.
    pub observer: Option<ObserverFactory>,
}

impl Options {
    /// Seed 0, random completion, all host threads, all checks, the target's SM count.
    pub fn new(target: Target) -> Options {
        Options {
            seed: 0,
            policy: CompletionPolicy::Random,
            workers: rayon::current_num_threads(),
            checks: Checks::default(),
            sm_count: target.sm_count(),
            numerics: MatrixNumerics::Hardware,
            approximation: Approximation::default(),
            instruction_limit: 20_000_000_000,
            observer: None,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("seed", &self.seed)
            .field("policy", &self.policy)
            .field("workers", &self.workers)
            .field("checks", &self.checks)
            .field("sm_count", &self.sm_count)
            .field("numerics", &self.numerics)
            .finish_non_exhaustive()
    }
}

/// PTX text, parsed.
#[derive(Debug, Clone, PartialEq)]
pub struct Module {
    /// The syntax tree.
    pub tree: ast::Module,
}

impl Module {
    /// Parses PTX text.
    ///
    /// # Errors
    /// [`Error::Parse`] with line, text and reason.
    pub fn parse(text: &str) -> Result<Module> {
        crate::parse::parse(text).map(|tree| Module { tree })
    }

    /// Names of the entries.
    pub fn kernels(&self) -> Vec<&str> {
        let functions = self.tree.functions.iter();
        functions.filter(|f| f.entry && f.body.is_some()).map(|f| f.name.as_str()).collect()
    }

    /// Every instruction that cannot be executed on `target`, with the reason: once per text and reason.
    pub fn unsupported(&self, target: Target) -> Vec<Error> {
        let variables = self.tree.variables.iter().map(|v| (v.name.clone(), 0));
        let globals = variables.chain(functions_of(&self.tree)).collect();
        let mut seen = std::collections::HashSet::new();
        let found = self.kernels().into_iter().flat_map(|name| survey_kernel(&self.tree, name, &globals, target));
        found.filter(|error| seen.insert(error.to_string())).collect()
    }
}

/// A module whose variables lie in an emulator's memory.
#[derive(Debug)]
pub struct LoadedModule {
    tree: ast::Module,
    /// Addresses of global and constant variables and of functions.
    pub globals: Globals,
    programs: Mutex<HashMap<String, Arc<Program>>>,
    target: Target,
}

impl LoadedModule {
    /// The decoded kernel `name`.
    ///
    /// # Errors
    /// What [`decode_kernel`] finds.
    pub fn kernel(&self, name: &str) -> Result<Arc<Program>> {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = programs.get(name) {
            return Ok(program.clone());
        }
        let program = Arc::new(decode_kernel(&self.tree, name, &self.globals, self.target)?);
        programs.insert(name.to_string(), program.clone());
        Ok(program)
    }
}

/// Sizes of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// CTAs.
    pub grid: [u32; 3],
    /// Threads of a CTA.
    pub block: [u32; 3],
    /// CTAs of a cluster; `None` leaves it to the kernel.
    pub cluster: Option<[u32; 3]>,
    /// Dynamic shared memory, bytes.
    pub dynamic_shared: u32,
}

impl Launch {
    /// One-dimensional grid and block, no cluster, no dynamic shared memory.
    pub fn linear(ctas: u32, threads: u32) -> Launch {
        Launch { grid: [ctas, 1, 1], block: [threads, 1, 1], cluster: None, dynamic_shared: 0 }
    }
}

/// What a launch did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Faults and warnings of the program.
    pub findings: Vec<Finding>,
    /// Counters, summed over CTAs.
    pub counters: Counters,
    /// Text that the program printed.
    pub output: String,
}

impl Report {
    /// Whether no fault was found; warnings do not count.
    pub fn is_clean(&self) -> bool {
        self.findings.iter().all(|finding| finding.warning)
    }
}

/// An emulated device.
#[derive(Debug)]
pub struct Emulator {
    /// Architecture.
    pub target: Target,
    options: RwLock<Arc<Options>>,
    memory: RwLock<Arc<GlobalMemory>>,
    launches: std::sync::atomic::AtomicU64,
}

impl Emulator {
    /// A device of `target` with empty memory.
    pub fn new(target: Target, options: Options) -> Emulator {
        let mut memory = GlobalMemory::default();
        memory.check_init = options.checks.uninitialised;
        Emulator {
            target,
            options: RwLock::new(Arc::new(options)),
            memory: RwLock::new(Arc::new(memory)),
            launches: std::sync::atomic::AtomicU64::new(0),
        }
    }

    /// The options of launches from now on.
    pub fn options(&self) -> Arc<Options> {
        self.options.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the seed of launches from now on.
    pub fn set_seed(&self, seed: u64) {
        let mut options = self.options.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = (**options).clone();
        changed.seed = seed;
        *options = Arc::new(changed);
    }

    fn memory(&self) -> Arc<GlobalMemory> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the address space; waits for launches that use it.
    fn with_memory<T>(&self, change: impl FnOnce(&mut GlobalMemory) -> T) -> Result<T> {
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        match Arc::get_mut(&mut memory) {
            Some(memory) => Ok(change(memory)),
            None => Err(Error::HostAccess("a launch is running: memory cannot be allocated or freed".to_string())),
        }
    }

    /// Reserves `bytes` of global memory; only touched pages are backed. `name` appears in findings.
    ///
    /// # Errors
    /// While a launch runs on another thread.
    pub fn allocate(&self, name: &str, bytes: u64) -> Result<u64> {
        self.with_memory(|memory| memory.allocate(name, bytes, 256, true))
    }

    /// Gives a buffer back.
    ///
    /// # Errors
    /// No buffer starts at `address`, or a launch runs.
    pub fn free(&self, address: u64) -> Result<()> {
        if self.with_memory(|memory| memory.free(address))? {
            Ok(())
        } else {
            Err(Error::HostAccess(format!("no buffer starts at {address:#x}")))
        }
    }

    /// Copies bytes to the device.
    ///
    /// # Errors
    /// Outside the buffers.
    pub fn write(&self, address: u64, data: &[u8]) -> Result<()> {
        self.memory().write_host(address, data).map_err(host_error)
    }

    /// Copies bytes from the device; bytes that nobody wrote read as 0.
    ///
    /// # Errors
    /// Outside the buffers.
    pub fn read(&self, address: u64, bytes: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; bytes];
        self.memory().read_as(address, &mut out, false).map_err(host_error)?;
        Ok(out)
    }

    /// Checks that `[address, address + bytes)` lies in one buffer.
    ///
    /// # Errors
    /// Where it lies instead.
    pub fn locate(&self, address: u64, bytes: u64) -> Result<()> {
        self.memory().range(address, bytes).map(|_| ()).map_err(host_error)
    }

    /// Makes bytes count as never written; their values stay.
    pub fn forget(&self, address: u64, bytes: u64) {
        self.memory().forget(address, bytes);
    }

    /// Whether all of the bytes were written, by the host or by a program.
    pub fn is_initialised(&self, address: u64, bytes: u64) -> bool {
        self.memory().is_initialised(address, bytes)
    }

    /// Places the variables of a module in memory.
    ///
    /// # Errors
    /// The target does not run the module; bad initialisers.
    pub fn load(&self, module: &Module) -> Result<LoadedModule> {
        let tree = module.tree.clone();
        let word = tree.target.first().cloned().unwrap_or_default();
        if !self.target.runs(&word) {
            return Err(Error::launch("module", format!("a .target that {} runs", self.target), word));
        }
        let mut globals: Globals = functions_of(&tree).collect();
        let placed: Vec<_> = tree
            .variables
            .iter()
            .filter(|v| matches!(v.space, ast::Space::Global | ast::Space::Const) && !v.external)
            .collect();
        for variable in &placed {
            let (_, bytes, align) = size_of(&tree, variable)?;
            let writable = variable.space == ast::Space::Global;
            let address =
                self.with_memory(|memory| memory.allocate(&variable.name, bytes.max(1), align.into(), writable))?;
            globals.insert(variable.name.clone(), address);
        }
        for variable in placed {
            let (_, bytes, _) = size_of(&tree, variable)?;
            let mut data = initial_bytes(&tree, variable, &globals)?;
            // Variables without initialiser start as zeros.
            data.resize(bytes as usize, 0);
            self.write(globals[&variable.name], &data)?;
        }
        Ok(LoadedModule { tree, globals, programs: Mutex::new(HashMap::new()), target: self.target })
    }

    /// Runs a kernel to its end. `params` is the parameter block.
    ///
    /// # Errors
    /// The kernel cannot be decoded, or the launch does not fit it or the device. Faults of the program are findings
    /// of the report.
    pub fn launch(&self, module: &LoadedModule, kernel: &str, launch: Launch, params: &[u8]) -> Result<Report> {
        let program = module.kernel(kernel)?;
        let shape = self.shape(&program, launch)?;
        if params.len() != program.param_bytes as usize {
            return Err(Error::launch("params", format!("{} bytes", program.param_bytes), params.len()));
        }
        let id = self.launches.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let workspace = if program.is_cooperative() { self.grid_workspace()? } else { 0 };
        let run = Run {
            grid: Arc::new(Grid::new(shape, id, workspace)),
            program,
            params: Arc::new(params.to_vec()),
            global: self.memory(),
            options: self.options(),
            target: self.target,
            turns: Mutex::default(),
            turn_over: Condvar::new(),
            report: Mutex::new(Report::default()),
            idle: Mutex::new((0, 0)),
            order: Arc::default(),
        };
        tracing::debug!(kernel, ?shape, "emulate");
        let report = run.run();
        if workspace != 0 {
            self.free(workspace)?;
        }
        Ok(report)
    }

    /// Zeros for the barriers of a cooperative launch.
    fn grid_workspace(&self) -> Result<u64> {
        const BYTES: usize = 64;
        let address = self.allocate("grid workspace", BYTES as u64)?;
        self.write(address, &[0; BYTES])?;
        Ok(address)
    }

    /// Checks a launch against the kernel and the device.
    fn shape(&self, program: &Program, launch: Launch) -> Result<LaunchShape> {
        let demands = &program.demands;
        let threads = launch.block.iter().try_fold(1u32, |n, &d| n.checked_mul(d)).unwrap_or(u32::MAX);
        if threads == 0 || threads > 1024 {
            return Err(Error::launch("block", "1 to 1024 threads", threads));
        }
        if let Some(exact) = demands.block_exact
            && exact != launch.block
        {
            return Err(Error::launch("block", format!("{exact:?} (.reqntid)"), format!("{:?}", launch.block)));
        }
        if let Some(most) = demands.block_most
            && threads > most.iter().product()
        {
            return Err(Error::launch("block", format!("at most {most:?} threads (.maxntid)"), threads));
        }
        let limits = [(1u64 << 31) - 1, 65535, 65535];
        for (i, name) in ["grid.x", "grid.y", "grid.z"].into_iter().enumerate() {
            if launch.grid[i] == 0 || u64::from(launch.grid[i]) > limits[i] {
                return Err(Error::launch(name, format!("1 to {}", limits[i]), launch.grid[i]));
            }
        }
        let cluster = match (demands.cluster_exact, launch.cluster) {
            (Some(exact), Some(given)) if exact != given => {
                return Err(Error::launch("cluster", format!("{exact:?} (.reqnctapercluster)"), format!("{given:?}")));
            }
            (Some(exact), _) => exact,
            (None, Some(given)) => given,
            (None, None) => [1; 3],
        };
        let size = cluster.iter().try_fold(1u32, |n, &d| n.checked_mul(d)).unwrap_or(0);
        if size == 0 || size > 16 {
            return Err(Error::launch("cluster", "1 to 16 CTAs", format!("{cluster:?}")));
        }
        if (0..3).any(|i| !launch.grid[i].is_multiple_of(cluster[i])) {
            return Err(Error::launch(
                "grid",
                format!("a multiple of the cluster {cluster:?}"),
                format!("{:?}", launch.grid),
            ));
        }
        let shared = u64::from(program.dynamic_start() - SHARED_START) + u64::from(launch.dynamic_shared);
        let most = self.target.shared_per_cta();
        if shared > u64::from(most) {
            return Err(Error::launch(
                "dynamic_shared",
                format!("at most {most} bytes together with {} static", program.shared_static),
                launch.dynamic_shared,
            ));
        }
        Ok(LaunchShape {
            grid: launch.grid,
            block: launch.block,
            cluster,
            explicit_cluster: demands.cluster_explicit || demands.cluster_exact.is_some() || launch.cluster.is_some(),
            dynamic_shared: launch.dynamic_shared,
            shared_bytes: shared as u32,
        })
    }
}

fn host_error(error: AccessError) -> Error {
    Error::HostAccess(match error {
        AccessError::OutOfBounds(text) | AccessError::Uninitialised(text) | AccessError::Misaligned(text) => text,
    })
}

/// A launch while it runs.
struct Run {
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
    fn run(self) -> Report {
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
        report
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
            counters: Counters::default(),
            output: String::new(),
            spins: 0,
        }
    }

    /// The checker of the cluster of a linear index.
    fn observer(&self, linear: u64) -> Option<Box<dyn Observer>> {
        let shape = &self.grid.shape;
        match &self.options.observer {
            Some(make) => Some(make(shape, &self.program)),
            None if self.options.checks.order => Some(Box::new(OrderChecker::new(
                self.order.clone(),
                shape,
                self.program.clone(),
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
            released_dependents: false,
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
