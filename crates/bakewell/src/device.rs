//! Devices: a GPU, the emulator, or the reference.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use bakewell_core::architecture::Library;
use bakewell_core::program::Evidence;
use bakewell_core::schedule::Schedule;
use bakewell_core::{Arch, Buffer, Error, Memory, Program, Result, Runtime, Stream};
#[cfg(feature = "reference")]
use bakewell_reference::HostMemory;

use crate::architectures::{self, Compiled};
use crate::plan::{Plan, Problem};

/// Something that runs the operations. Clones are the same device.
#[derive(Clone)]
pub struct Device {
    pub(crate) engine: Engine,
}

#[derive(Clone)]
pub(crate) enum Engine {
    /// Plain loops over host buffers.
    #[cfg(feature = "reference")]
    Reference(Arc<HostMemory>),
    /// Compiled programs on a GPU or the emulator.
    Programs(Arc<Programs>),
}

/// A runtime and the programs of its architecture. The capability of the device is looked up once, here.
pub(crate) struct Programs {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) compiled: &'static Compiled,
    hardware: bool,
    /// Variants whose missing evidence was already told.
    warned: Mutex<BTreeSet<String>>,
}

impl Device {
    /// The CPU reference: slow, exact, always there.
    ///
    /// # Errors
    /// [`Error::FeatureMissing`] without the feature `reference`.
    pub fn reference() -> Result<Device> {
        #[cfg(feature = "reference")]
        return Ok(Device { engine: Engine::Reference(Arc::new(HostMemory::new("reference"))) });
        #[cfg(not(feature = "reference"))]
        Err(Error::FeatureMissing { feature: "reference" })
    }

    /// A GPU, by the driver's ordinal.
    ///
    /// # Errors
    /// [`Error::FeatureMissing`] without the feature `cuda`, [`Error::NoDriver`] where there is no driver library,
    /// [`Error::NoDevice`], [`Error::UnsupportedDevice`], [`Error::ArchNotCompiled`], or the driver's error.
    pub fn cuda(ordinal: u32) -> Result<Device> {
        #[cfg(feature = "cuda")]
        return Device::over(bakewell_cuda::CudaRuntime::open(ordinal)?, true);
        #[cfg(not(feature = "cuda"))]
        {
            let _ = ordinal;
            Err(Error::FeatureMissing { feature: "cuda" })
        }
    }

    /// The emulator as an architecture, with the SM count of a common product and every check on.
    ///
    /// # Errors
    /// [`Error::FeatureMissing`] without the feature `emulator`, or [`Error::ArchNotCompiled`].
    pub fn emulated(arch: Arch) -> Result<Device> {
        #[cfg(feature = "emulator")]
        return Device::with_runtime(bakewell_emulator::EmulatedRuntime::new(arch));
        #[cfg(not(feature = "emulator"))]
        {
            let _ = arch;
            Err(Error::FeatureMissing { feature: "emulator" })
        }
    }

    /// The emulator with chosen options: seed, completion order, SM count, checks.
    ///
    /// # Errors
    /// [`Error::ArchNotCompiled`].
    #[cfg(feature = "emulator")]
    pub fn emulated_with(arch: Arch, options: bakewell_emulator::Options) -> Result<Device> {
        Device::with_runtime(bakewell_emulator::EmulatedRuntime::with_options(arch, options))
    }

    /// The first GPU if it can be used, else the emulator as the newest architecture compiled in, else the reference.
    /// Why a better one was passed over is logged at `debug`.
    ///
    /// # Errors
    /// That of the last choice.
    pub fn best() -> Result<Device> {
        let newest = architectures::compiled().last().map(|compiled| DeviceName::Emulated(compiled.architecture.arch));
        for name in [DeviceName::Cuda(0)].into_iter().chain(newest) {
            match Device::open(name) {
                Ok(device) => return Ok(device),
                Err(error) => tracing::debug!(%error, "{name} passed over"),
            }
        }
        Device::reference()
    }

    /// A device over any runtime.
    ///
    /// # Errors
    /// [`Error::ArchNotCompiled`] when the programs of its architecture are not compiled in.
    pub fn with_runtime(runtime: Arc<dyn Runtime>) -> Result<Device> {
        Device::over(runtime, false)
    }

    fn over(runtime: Arc<dyn Runtime>, hardware: bool) -> Result<Device> {
        let compiled = architectures::find(runtime.arch())?;
        let programs = Programs { runtime, compiled, hardware, warned: Mutex::default() };
        Ok(Device { engine: Engine::Programs(Arc::new(programs)) })
    }

    /// The device of a name.
    ///
    /// # Errors
    /// Those of the constructor that the name stands for.
    pub fn open(name: DeviceName) -> Result<Device> {
        match name {
            DeviceName::Auto => Device::best(),
            DeviceName::Cuda(ordinal) => Device::cuda(ordinal),
            DeviceName::Emulated(arch) => Device::emulated(arch),
            DeviceName::Reference => Device::reference(),
        }
    }

    /// Plans a problem of any operation: a pure decision, reusable, that allocates and loads nothing.
    ///
    /// # Errors
    /// [`Error::Argument`] for a problem that breaks the contract, [`Error::NoProgram`] for one that no program serves.
    pub fn plan<P: Problem>(&self, problem: &P) -> Result<Plan<P>> {
        Plan::new(problem, self)
    }

    /// `cuda:0`, `emulated:sm110`, `reference`.
    pub fn name(&self) -> String {
        self.memory().name()
    }

    /// Architecture; `None` for the reference.
    pub fn arch(&self) -> Option<Arch> {
        self.runtime().map(|runtime| runtime.arch())
    }

    /// Streaming multiprocessors; `None` for the reference.
    pub fn sm_count(&self) -> Option<u32> {
        self.runtime().map(|runtime| runtime.sm_count())
    }

    /// What executes programs; `None` for the reference.
    pub fn runtime(&self) -> Option<&Arc<dyn Runtime>> {
        match &self.engine {
            #[cfg(feature = "reference")]
            Engine::Reference(_) => None,
            Engine::Programs(programs) => Some(&programs.runtime),
        }
    }

    /// The programs of the device's architecture; `None` for the reference.
    ///
    /// # Errors
    /// As [`Compiled::library`].
    pub fn library(&self) -> Result<Option<&'static Library>> {
        match &self.engine {
            #[cfg(feature = "reference")]
            Engine::Reference(_) => Ok(None),
            Engine::Programs(programs) => programs.compiled.library().map(Some),
        }
    }

    /// The device's memory.
    pub fn memory(&self) -> Arc<dyn Memory> {
        match &self.engine {
            #[cfg(feature = "reference")]
            Engine::Reference(memory) => memory.clone(),
            Engine::Programs(programs) => programs.runtime.clone(),
        }
    }

    /// Allocates `bytes`. Content is undefined.
    ///
    /// # Errors
    /// As [`Memory::allocate`].
    pub fn buffer(&self, bytes: u64) -> Result<Buffer> {
        Buffer::new(self.memory(), bytes)
    }

    /// Allocates and copies host bytes.
    ///
    /// # Errors
    /// As [`Memory::allocate`] and [`Memory::write`].
    pub fn upload(&self, content: &[u8]) -> Result<Buffer> {
        Buffer::from_bytes(self.memory(), content)
    }

    /// Waits for all work of a stream.
    ///
    /// # Errors
    /// The error of work that failed.
    pub fn synchronize(&self, stream: Stream) -> Result<()> {
        self.runtime().map_or(Ok(()), |runtime| runtime.synchronize(stream))
    }
}

impl Programs {
    /// The program of a schedule. Warns once per variant on a GPU when the program never ran on hardware.
    pub(crate) fn program(&self, schedule: &dyn Schedule) -> Result<Program> {
        let program = self.compiled.program(schedule)?;
        let evidence = self.compiled.library()?.evidence(&program);
        if self.hardware && !matches!(evidence, Evidence::Hardware { .. }) {
            let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
            if warned.insert(schedule.variant()) {
                tracing::warn!(program = program.name(), %evidence, "this program has no record of a run on hardware");
            }
        }
        Ok(program)
    }
}

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Programs({})", self.runtime.name())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({self})")
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// Name of a device in commands: `auto`, `cuda:N`, `emulated:smNN` or `reference`.
///
/// ```
/// use bakewell::{Arch, DeviceName};
///
/// assert_eq!("emulated:sm103".parse::<DeviceName>()?, DeviceName::Emulated(Arch::Sm103));
/// assert_eq!(DeviceName::Cuda(1).to_string(), "cuda:1");
/// # Ok::<(), bakewell::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeviceName {
    /// [`Device::best`].
    #[default]
    Auto,
    /// GPU of this ordinal.
    Cuda(u32),
    /// The emulator as this architecture.
    Emulated(Arch),
    /// The reference.
    Reference,
}

impl FromStr for DeviceName {
    type Err = Error;

    fn from_str(text: &str) -> Result<DeviceName> {
        let unknown = || Error::value("device", "auto, cuda:N, emulated:smNN or reference", text);
        match text.split_once(':') {
            None if text == "auto" => Ok(DeviceName::Auto),
            None if text == "reference" => Ok(DeviceName::Reference),
            Some(("cuda", ordinal)) => ordinal.parse().map(DeviceName::Cuda).map_err(|_| unknown()),
            Some(("emulated", arch)) => Arch::parse(arch).map(DeviceName::Emulated),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Auto => f.write_str("auto"),
            DeviceName::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            DeviceName::Emulated(arch) => write!(f, "emulated:{arch}"),
            DeviceName::Reference => f.write_str("reference"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for name in ["auto", "cuda:0", "cuda:17", "emulated:sm90", "emulated:sm110", "reference"] {
            assert_eq!(name.parse::<DeviceName>().unwrap().to_string(), name);
        }
        for name in ["", "cuda", "cuda:", "cuda:-1", "gpu", "reference:0", "emulated"] {
            let error = name.parse::<DeviceName>().unwrap_err();
            assert!(matches!(error, Error::Argument { argument: "device", .. }), "{name}: {error}");
        }
        assert!(matches!("emulated:sm89".parse::<DeviceName>(), Err(Error::Argument { argument: "arch", .. })));
    }

    /// Run with other features by `cargo xtask ci`.
    #[test]
    fn what_is_not_compiled_in_is_said() {
        fn missing<T>(result: Result<T>) -> Option<&'static str> {
            match result {
                Err(Error::FeatureMissing { feature }) => Some(feature),
                _ => None,
            }
        }
        assert_eq!(missing(Device::reference()), (!cfg!(feature = "reference")).then_some("reference"));
        assert_eq!(missing(Device::cuda(0)), (!cfg!(feature = "cuda")).then_some("cuda"));
        let enabled: Vec<Arch> = architectures::compiled().iter().map(|compiled| compiled.architecture.arch).collect();
        for arch in Arch::ALL {
            match Device::emulated(arch) {
                Ok(device) => assert!(enabled.contains(&arch) && device.arch() == Some(arch)),
                Err(Error::FeatureMissing { feature }) => assert!(!cfg!(feature = "emulator") && feature == "emulator"),
                Err(Error::ArchNotCompiled { arch: asked, compiled }) => {
                    assert_eq!((asked, &compiled), (arch, &enabled));
                    assert!(!enabled.contains(&arch));
                }
                Err(other) => panic!("{other}"),
            }
        }
    }

    #[cfg(all(feature = "emulator", feature = "sm110"))]
    #[test]
    fn the_emulator_takes_options() {
        let options =
            bakewell_emulator::Options { sm_count: 3, ..bakewell_emulator::EmulatedRuntime::options(Arch::Sm110) };
        assert_eq!(Device::emulated_with(Arch::Sm110, options).unwrap().sm_count(), Some(3));
    }

    #[test]
    fn devices_can_be_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Device>();
        shared::<crate::Bound<'static>>();
        shared::<crate::gqa_decode::Plan>();
    }
}
