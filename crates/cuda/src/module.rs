//! Programs become kernels: hash check, module load, function look-up, settings. Once per device and program.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bakewell_core::program::Sha256Hex;
use bakewell_core::runtime::Kernel;
use bakewell_core::{Arch, Error, Program, Result};
use once_cell::sync::OnceCell;

use crate::CudaRuntime;
use crate::driver::{Answer, Driver, Function, FunctionAttribute, Module};

/// A kernel that is ready to launch.
#[derive(Clone, Copy)]
pub(crate) struct Loaded {
    pub(crate) function: Function,
    pub(crate) module: Module,
    /// Largest dynamic shared memory that the kernel was prepared for, in bytes.
    pub(crate) dynamic_shared_bytes: u32,
    /// Names the program in errors.
    pub(crate) origin: Origin,
}

/// Where a kernel came from.
#[derive(Clone, Copy)]
pub(crate) enum Origin {
    Program(Program),
    /// A helper of the benchmarks.
    Helper(&'static str),
}

impl Origin {
    pub(crate) fn name(&self) -> String {
        match self {
            Origin::Program(program) => program.name(),
            Origin::Helper(name) => (*name).to_owned(),
        }
    }
}

/// Digest of the cubin and entry point: two programs with the same are the same kernel.
type ProgramKey = (Sha256Hex, String);

/// The kernels of one device. A [`Kernel`] is an index into `loaded`, so that a launch finds its function
/// with one uncontended read lock and without hashing.
#[derive(Default)]
pub(crate) struct Kernels {
    by_program: Mutex<BTreeMap<ProgramKey, Arc<OnceCell<Kernel>>>>,
    loaded: RwLock<Vec<Loaded>>,
}

impl Kernels {
    pub(crate) fn get(&self, kernel: Kernel) -> Option<Loaded> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        usize::try_from(kernel.0).ok().and_then(|index| loaded.get(index)).copied()
    }

    pub(crate) fn add(&self, kernel: Loaded) -> Kernel {
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        loaded.push(kernel);
        Kernel(loaded.len() as u64 - 1)
    }

    /// Unloads everything; failures are reported to the log.
    pub(crate) fn unload(&self, driver: &dyn Driver) {
        for kernel in self.loaded.write().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if let Err(failure) = driver.module_unload(kernel.module) {
                tracing::warn!(call = failure.call, code = failure.code, "{}", kernel.origin.name());
            }
        }
    }

    fn cell(&self, program: &Program) -> Arc<OnceCell<Kernel>> {
        let key = (program.record.cubin.sha256.clone(), program.record.entry.clone());
        let mut cells = self.by_program.lock().unwrap_or_else(PoisonError::into_inner);
        cells.entry(key).or_default().clone()
    }
}

impl CudaRuntime {
    pub(crate) fn load_once(&self, program: &Program) -> Result<Kernel> {
        if program.arch != self.arch {
            return Err(Error::value("program", format!("one for {}", self.arch), program.name()));
        }
        self.kernels.cell(program).get_or_try_init(|| self.load_program(program)).copied()
    }

    /// Loads PTX text that the driver compiles: programs of tests and records, which belong to no schedule. Every call
    /// loads anew; the kernel takes no dynamic shared memory.
    ///
    /// # Errors
    /// `Error::Argument` for text or names with a zero byte, or the driver's.
    pub fn load_source(&self, ptx: &str, entry: &str) -> Result<Kernel> {
        let zero_ended = |argument, text: &str| {
            CString::new(text).map_err(|_| Error::value(argument, "text without a zero byte", "one with"))
        };
        let (source, entry) = (zero_ended("ptx", ptx)?, zero_ended("entry", entry)?);
        let (module, function) =
            self.call("PTX text", || load_image(&*self.driver, source.as_bytes_with_nul(), &entry, &[]))?;
        Ok(self.kernels.add(Loaded { function, module, dynamic_shared_bytes: 0, origin: Origin::Helper("PTX text") }))
    }

    fn load_program(&self, program: &Program) -> Result<Kernel> {
        let cubin = program.cubin()?;
        let entry = entry_name(&program.record.entry, program)?;
        let budgets = &program.record.budgets;
        let settings = settings(self.arch, budgets.dynamic_shared_bytes);
        let (module, function) =
            self.call_for(&Origin::Program(*program), || load_image(&*self.driver, &cubin, &entry, &settings))?;
        tracing::info!(program = program.name(), device = self.ordinal, sha256 = %program.record.cubin.sha256, "loaded");
        let dynamic_shared_bytes = budgets.dynamic_shared_bytes;
        Ok(self.kernels.add(Loaded { function, module, dynamic_shared_bytes, origin: Origin::Program(*program) }))
    }
}

fn entry_name(entry: &str, program: &Program) -> Result<CString> {
    CString::new(entry).map_err(|_| Error::Corrupt {
        program: program.name(),
        what: "entry point",
        expected: "a name without a zero byte".to_owned(),
        given: format!("{entry:?}"),
    })
}

/// What a kernel needs to be told before its first launch, so that launches set nothing.
fn settings(arch: Arch, dynamic_shared_bytes: u32) -> Vec<(FunctionAttribute, i32)> {
    let mut settings = Vec::new();
    if dynamic_shared_bytes > 0 {
        settings.push((FunctionAttribute::MaxDynamicSharedBytes, dynamic_shared_bytes as i32));
    }
    let limits = arch.limits();
    if limits.max_cluster > limits.portable_cluster {
        settings.push((FunctionAttribute::NonPortableClusterAllowed, 1));
    }
    settings
}

/// Loads a module and prepares one of its kernels; unloads the module again when that fails.
pub(crate) fn load_image(
    driver: &dyn Driver,
    image: &[u8],
    entry: &std::ffi::CStr,
    settings: &[(FunctionAttribute, i32)],
) -> Answer<(Module, Function)> {
    let module = driver.module_load(image)?;
    let prepare = || {
        let function = driver.module_function(module, entry)?;
        for &(attribute, value) in settings {
            driver.function_set(function, attribute, value)?;
        }
        Ok(function)
    };
    match prepare() {
        Ok(function) => Ok((module, function)),
        Err(failure) => {
            // The first failure is the one to report.
            let _ = driver.module_unload(module);
            Err(failure)
        }
    }
}
