//! The library API: load a module, set buffers, launch, read results, findings and counters.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bakewell_core::address_space::AddressSpace;

use crate::check::overlap::Earlier;
use crate::decode::{Globals, Program, decode_kernel, functions_of, initial_bytes, size_of, survey_kernel};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::isa::{Target, TargetWord};
use crate::machine::{Grid, LaunchShape};
use crate::memory::{AccessError, GlobalMemory, SHARED_START};
use crate::options::Options;
use crate::parse::ast;
use crate::run::Run;
use crate::trace::Counters;

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
    /// Programmatic launch: it may begin before the launch before it has ended. It runs behind it all the same, and
    /// what it does before `griddepcontrol.wait` is compared with all that launch did.
    pub overlaps: bool,
}

impl Launch {
    /// One-dimensional grid and block, no cluster, no dynamic shared memory, no overlap.
    pub fn linear(ctas: u32, threads: u32) -> Launch {
        Launch { grid: [ctas, 1, 1], block: [threads, 1, 1], cluster: None, dynamic_shared: 0, overlaps: false }
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
    /// How often each line of a kernel was executed, by warps of which a lane was active, with [`Options::profile`].
    pub executed: BTreeMap<(String, u32), u64>,
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
    options: Arc<Options>,
    memory: RwLock<Arc<GlobalMemory>>,
    launches: std::sync::atomic::AtomicU64,
    /// Launches that may still run when the next one begins, unless the host waits for them.
    unfinished: Mutex<Earlier>,
}

impl Emulator {
    /// A device of `target` with empty memory.
    pub fn new(target: Target, options: Options) -> Emulator {
        Emulator::over(GlobalMemory::default(), target, options)
    }

    /// As [`Emulator::new`], with addresses that no other device of the process has.
    pub(crate) fn apart(target: Target, options: Options) -> Emulator {
        Emulator::over(GlobalMemory::of(AddressSpace::apart()), target, options)
    }

    fn over(mut memory: GlobalMemory, target: Target, options: Options) -> Emulator {
        memory.check_init = options.checks.uninitialised;
        Emulator {
            target,
            options: Arc::new(options),
            memory: RwLock::new(Arc::new(memory)),
            launches: std::sync::atomic::AtomicU64::new(0),
            unfinished: Mutex::new(Earlier::from([])),
        }
    }

    /// The options of its launches.
    pub fn options(&self) -> &Options {
        &self.options
    }

    fn memory(&self) -> Arc<GlobalMemory> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the host does to memory comes behind all launches.
    fn wait_for_launches(&self) -> Earlier {
        let mut unfinished = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut unfinished, Earlier::from([]))
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
    /// While a launch runs on another thread; no addresses are left.
    pub fn allocate(&self, name: &str, bytes: u64) -> Result<u64> {
        self.reserve(name, bytes, 256, true)
    }

    fn reserve(&self, name: &str, bytes: u64, align: u64, writable: bool) -> Result<u64> {
        let reserved = self.with_memory(|memory| memory.allocate(name, bytes, align, writable))?;
        reserved.map_err(|what| Error::HostAccess(format!("{name}: {what}")))
    }

    /// Gives a buffer back.
    ///
    /// # Errors
    /// No buffer starts at `address`, or a launch runs.
    pub fn free(&self, address: u64) -> Result<()> {
        self.wait_for_launches();
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
        self.wait_for_launches();
        self.memory().write_host(address, data).map_err(host_error)
    }

    /// Copies bytes from the device; bytes that nobody wrote read as 0.
    ///
    /// # Errors
    /// Outside the buffers.
    pub fn read(&self, address: u64, bytes: usize) -> Result<Vec<u8>> {
        self.wait_for_launches();
        let mut out = vec![0; bytes];
        self.memory().read_as(address, &mut out, false).map_err(host_error)?;
        Ok(out)
    }

    /// Checks that `[address, address + bytes)` lies in one buffer.
    ///
    /// # Errors
    /// Where it lies instead.
    pub fn locate(&self, address: u64, bytes: u64) -> Result<()> {
        let memory = self.memory();
        if !memory.has_address(address) {
            return Err(Error::HostAccess(format!("{address:#x} is not an address of this device")));
        }
        memory.range(address, bytes).map(|_| ()).map_err(host_error)
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
        let word = tree.target.first().map_or("none", String::as_str);
        if !TargetWord::parse(word).is_some_and(|word| word.runs_on(self.target)) {
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
            let address = self.reserve(&variable.name, bytes.max(1), align.into(), writable)?;
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
        let unfinished = self.wait_for_launches();
        let earlier = if launch.overlaps { unfinished } else { Earlier::from([]) };
        let id = self.launches.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let workspace = if program.is_cooperative() { self.grid_workspace()? } else { 0 };
        let first = self.options.first_cluster.as_ref().map_or(0, |first| first(kernel, shape.cluster_count()));
        let grid = Arc::new(Grid::new(shape, id, workspace, first));
        let run = Run::new(program, grid, params, self.memory(), (self.options.clone(), self.target), earlier);
        tracing::debug!(kernel, ?shape, "emulate");
        let (report, unfinished) = run.run();
        if workspace != 0 {
            self.free(workspace)?;
        }
        *self.unfinished.lock().unwrap_or_else(PoisonError::into_inner) = unfinished;
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
