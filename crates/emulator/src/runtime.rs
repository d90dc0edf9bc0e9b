//! The emulator as a device of Bakewell: programs are loaded from their shipped PTX and run at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bakewell_core::error::Property;
use bakewell_core::runtime::Kernel;
use bakewell_core::tensor_map::{TensorMap, TensorMapRequest};
use bakewell_core::{Arch, LaunchConfig, Memory, Program, Runtime, Stream};

use crate::emulator::{Emulator, Launch, LoadedModule, Module, Report};
use crate::finding::{Finding, Kind};
use crate::layout::tensor_map;
use crate::options::Options;

type CoreError = bakewell_core::Error;
type CoreResult<T> = bakewell_core::Result<T>;

/// Bytes that [`Memory::fill`] writes at a time.
const FILL_CHUNK: u64 = 1 << 16;

/// An emulated GPU of one architecture.
///
/// Launches run to their end before they return; streams have no meaning. A fault of a program is the error
/// [`bakewell_core::Error::Emulation`] with [`Findings`] as its source.
#[derive(Debug)]
pub struct EmulatedRuntime {
    arch: Arch,
    emulator: Emulator,
    kernels: Mutex<Vec<LoadedKernel>>,
    report: Mutex<Report>,
}

#[derive(Debug, Clone)]
struct LoadedKernel {
    program: String,
    entry: String,
    module: Arc<LoadedModule>,
}

/// What was found in one launch: a fault, or warnings where those fail it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings(pub Vec<Finding>);

impl std::fmt::Display for Findings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let first = self.0.iter().find(|finding| !finding.warning).or(self.0.first());
        if let Some(first) = first {
            write!(f, "{first}")?;
        }
        match self.0.len().saturating_sub(1) {
            0 => Ok(()),
            more => write!(f, " (and {more} more)"),
        }
    }
}

impl std::error::Error for Findings {}

impl EmulatedRuntime {
    /// Options for Bakewell's own programs: the SM count of a common product, and every check that they must pass,
    /// warnings included.
    pub fn options(arch: Arch) -> Options {
        let mut options = Options::new(arch.into());
        (options.checks.read_fences, options.checks.tensor_fences) = (true, true);
        options.deny_warnings = true;
        options
    }

    /// A device with [`EmulatedRuntime::options`].
    pub fn new(arch: Arch) -> Arc<EmulatedRuntime> {
        EmulatedRuntime::with_options(arch, EmulatedRuntime::options(arch))
    }

    /// A device with chosen options.
    pub fn with_options(arch: Arch, options: Options) -> Arc<EmulatedRuntime> {
        Arc::new(EmulatedRuntime {
            arch,
            emulator: Emulator::apart(arch.into(), options),
            kernels: Mutex::default(),
            report: Mutex::default(),
        })
    }

    /// The emulator below.
    pub fn emulator(&self) -> &Emulator {
        &self.emulator
    }

    /// Findings, counters and printed text of all launches since this was last asked.
    pub fn take_report(&self) -> Report {
        std::mem::take(&mut *lock(&self.report))
    }

    fn misplaced(&self, error: &crate::Error) -> CoreError {
        CoreError::argument("address", Property::Location, format!("memory of {}", self.name()), error)
    }

    fn failed(program: String, source: impl std::error::Error + Send + Sync + 'static) -> CoreError {
        CoreError::Emulation { program, source: Box::new(source) }
    }
}

/// A panic elsewhere leaves lists and counters usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory for EmulatedRuntime {
    fn name(&self) -> String {
        format!("emulated:{}", self.arch)
    }

    fn allocate(&self, bytes: u64) -> CoreResult<u64> {
        self.emulator.allocate(&format!("a buffer of {bytes} bytes"), bytes).map_err(|error| self.misplaced(&error))
    }

    fn free(&self, address: u64) {
        if let Err(error) = self.emulator.free(address) {
            tracing::warn!(%error, "{}", self.name());
        }
    }

    fn write(&self, address: u64, bytes: &[u8]) -> CoreResult<()> {
        self.emulator.write(address, bytes).map_err(|error| self.misplaced(&error))
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> CoreResult<()> {
        let content = self.emulator.read(address, bytes.len()).map_err(|error| self.misplaced(&error))?;
        bytes.copy_from_slice(&content);
        Ok(())
    }

    fn fill(&self, address: u64, value: u8, bytes: u64) -> CoreResult<()> {
        self.emulator.locate(address, bytes).map_err(|error| self.misplaced(&error))?;
        let chunk = vec![value; bytes.min(FILL_CHUNK) as usize];
        let mut done = 0;
        while done < bytes {
            let size = (bytes - done).min(FILL_CHUNK);
            self.write(address + done, &chunk[..size as usize])?;
            done += size;
        }
        Ok(())
    }

    fn locate(&self, address: u64, bytes: u64) -> Result<(), String> {
        self.emulator.locate(address, bytes).map_err(|error| error.to_string())
    }
}

impl Runtime for EmulatedRuntime {
    fn arch(&self) -> Arch {
        self.arch
    }

    fn sm_count(&self) -> u32 {
        self.emulator.options().sm_count
    }

    fn encode_tensor_map(&self, tensor: &'static str, request: &TensorMapRequest) -> CoreResult<TensorMap> {
        request.validate(tensor, self.arch)?;
        Ok(tensor_map::encode(request))
    }

    fn load(&self, program: &Program) -> CoreResult<Kernel> {
        let name = program.name();
        let mut kernels = lock(&self.kernels);
        if let Some(index) = kernels.iter().position(|kernel| kernel.program == name) {
            return Ok(Kernel(index as u64));
        }
        let mut text = program.ptx()?.to_string();
        if let Some(patch) = &self.emulator.options().patch {
            text = patch(&name, text);
        }
        let load = || {
            let module = self.emulator.load(&Module::parse(&text)?)?;
            // Decoding finds what cannot be executed now, not at the first launch.
            module.kernel(&program.record.entry)?;
            Ok(Arc::new(module))
        };
        let module = load().map_err(|error: crate::Error| Self::failed(name.clone(), error))?;
        tracing::info!(program = name, device = self.name(), "loaded");
        kernels.push(LoadedKernel { program: name, entry: program.record.entry.clone(), module });
        Ok(Kernel(kernels.len() as u64 - 1))
    }

    fn launch(&self, kernel: Kernel, config: &LaunchConfig, params: &[u8], _stream: Stream) -> CoreResult<()> {
        config.validate(self.arch)?;
        let loaded = lock(&self.kernels).get(kernel.0 as usize).cloned();
        let LoadedKernel { program, entry, module } =
            loaded.ok_or_else(|| CoreError::value("kernel", "one that this device loaded", format!("{kernel:?}")))?;
        let launch = Launch {
            grid: config.grid,
            block: [config.block, 1, 1],
            cluster: Some(config.cluster),
            dynamic_shared: config.dynamic_shared_bytes,
            overlaps: config.programmatic_serialization,
        };
        let report = self
            .emulator
            .launch(&module, &entry, launch, params)
            .map_err(|error| Self::failed(program.clone(), error))?;
        // A NaN scale is the caller's data, not the program's mistake.
        let of_the_program = |finding: &Finding| finding.kind != Kind::Undefined;
        let denied = self.emulator.options().deny_warnings && report.findings.iter().any(of_the_program);
        let faults = (denied || !report.is_clean()).then(|| Findings(report.findings.clone()));
        let mut total = lock(&self.report);
        total.findings.extend(report.findings);
        total.counters.merge(&report.counters);
        total.output.push_str(&report.output);
        for (line, count) in report.executed {
            *total.executed.entry(line).or_default() += count;
        }
        match faults {
            Some(faults) => Err(Self::failed(program, faults)),
            None => Ok(()),
        }
    }

    fn synchronize(&self, _stream: Stream) -> CoreResult<()> {
        Ok(())
    }
}
