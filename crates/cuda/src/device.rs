//! Devices: what the driver shows, and the runtime of one of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bakewell_core::runtime::Kernel;
use bakewell_core::tensor_map::{TensorMap, TensorMapRequest};
use bakewell_core::{Arch, LaunchConfig, Program, Result, Runtime, Stream};

use crate::driver::{self, Answer, Context, DeviceAttribute, DeviceHandle, Driver};
use crate::module::{Kernels, Origin};
use crate::{context, real};

/// What the driver says about a device. Reading it makes no context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Ordinal, as in `cuda:0`.
    pub ordinal: u32,
    /// Product name.
    pub name: String,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Number of SMs.
    pub sm_count: u32,
    /// Size of the second-level cache in bytes.
    pub l2_bytes: u64,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Highest SM clock in kHz; like the next two, 0 where the driver does not tell.
    pub sm_clock_khz: u32,
    /// Highest memory clock in kHz.
    pub memory_clock_khz: u32,
    /// Width of the memory bus in bits.
    pub memory_bus_bits: u32,
}

impl DeviceFacts {
    /// The architecture whose programs run on this device.
    ///
    /// # Errors
    /// `Error::UnsupportedDevice` with the reason.
    pub fn arch(&self) -> Result<Arch> {
        let (major, minor) = self.compute_capability;
        Arch::from_compute_capability(major, minor)
    }
}

/// The newest CUDA version that the driver serves, as `(13, 0)`.
///
/// # Errors
/// `Error::NoDriver` where there is none.
pub fn driver_version() -> Result<(u32, u32)> {
    let driver = real::driver()?;
    let version = driver.driver_version().map_err(|failure| driver::error(&*driver, failure, String::new()))?;
    let version = u32::try_from(version).unwrap_or(0);
    Ok((version / 1000, version % 1000 / 10))
}

/// Every device the driver shows, also those that Bakewell does not support.
///
/// # Errors
/// `Error::NoDriver` where there is none; no devices is an empty list.
pub fn devices() -> Result<Vec<DeviceFacts>> {
    devices_of(&*real::driver()?)
}

/// As [`devices`], on a given driver.
///
/// # Errors
/// The driver's.
pub fn devices_of(driver: &dyn Driver) -> Result<Vec<DeviceFacts>> {
    let count = driver.device_count().map_err(|failure| driver::error(driver, failure, String::new()))?;
    (0..count.max(0)).map(|ordinal| facts(driver, ordinal as u32).map(|(_, facts)| facts)).collect()
}

fn facts(driver: &dyn Driver, ordinal: u32) -> Result<(DeviceHandle, DeviceFacts)> {
    let read = || -> Answer<Option<(DeviceHandle, DeviceFacts)>> {
        let count = driver.device_count()?;
        let Some(index) = i32::try_from(ordinal).ok().filter(|&index| index < count) else {
            return Ok(None);
        };
        let device = driver.device(index)?;
        let number =
            |attribute| driver.device_attribute(attribute, device).map(|value| u32::try_from(value).unwrap_or(0));
        let facts = DeviceFacts {
            ordinal,
            name: driver.device_name(device)?,
            compute_capability: (number(DeviceAttribute::ComputeMajor)?, number(DeviceAttribute::ComputeMinor)?),
            sm_count: number(DeviceAttribute::SmCount)?,
            l2_bytes: u64::from(number(DeviceAttribute::L2Bytes)?),
            memory_bytes: driver.device_total_memory(device)?,
            // For people only: a driver that no longer tells is no reason not to use its device.
            sm_clock_khz: number(DeviceAttribute::SmClockKhz).unwrap_or(0),
            memory_clock_khz: number(DeviceAttribute::MemoryClockKhz).unwrap_or(0),
            memory_bus_bits: number(DeviceAttribute::MemoryBusBits).unwrap_or(0),
        };
        Ok(Some((device, facts)))
    };
    match read() {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(real::no_device(ordinal, driver.device_count().unwrap_or(0))),
        Err(failure) => Err(driver::error(driver, failure, String::new())),
    }
}

/// One GPU: its memory, its programs, its launches.
///
/// Holds the device's primary context, the one that the CUDA runtime API and cudarc use too. A call makes
/// it current and restores the caller's context afterwards, so that devices and libraries mix freely.
pub struct CudaRuntime {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) ordinal: u32,
    pub(crate) arch: Arch,
    pub(crate) context: Context,
    pub(crate) kernels: Kernels,
    device: DeviceHandle,
    facts: DeviceFacts,
}

impl CudaRuntime {
    /// The runtime of a device; the same one for every caller, so that programs are loaded once per process.
    ///
    /// # Errors
    /// `Error::NoDriver`, `Error::NoDevice`, `Error::UnsupportedDevice`, or the driver's.
    pub fn open(ordinal: u32) -> Result<Arc<CudaRuntime>> {
        static RUNTIMES: Mutex<BTreeMap<u32, Arc<CudaRuntime>>> = Mutex::new(BTreeMap::new());
        let driver = real::driver()?;
        let mut runtimes = RUNTIMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = runtimes.get(&ordinal) {
            return Ok(runtime.clone());
        }
        let runtime = CudaRuntime::with_driver(driver, ordinal)?;
        runtimes.insert(ordinal, runtime.clone());
        Ok(runtime)
    }

    /// A runtime of its own over a given driver; for tests with a recording one.
    ///
    /// # Errors
    /// As [`CudaRuntime::open`].
    pub fn with_driver(driver: Arc<dyn Driver>, ordinal: u32) -> Result<Arc<CudaRuntime>> {
        let (device, facts) = facts(&*driver, ordinal)?;
        let arch = facts.arch()?;
        let context = driver
            .primary_context_retain(device)
            .map_err(|failure| driver::error(&*driver, failure, format!("cuda:{ordinal}")))?;
        Ok(Arc::new(CudaRuntime { driver, ordinal, arch, context, kernels: Kernels::default(), device, facts }))
    }

    /// What the driver said about the device.
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// Runs foreign code, such as another library's, with the device's context current; the caller's is restored.
    ///
    /// # Errors
    /// The driver's, of entering or leaving.
    pub fn with_context<T>(&self, body: impl FnOnce() -> T) -> Result<T> {
        self.call("", || Ok(body()))
    }

    /// Runs driver calls with the device's context current; `about` names the program or symbol in the error.
    pub(crate) fn call<T>(&self, about: &str, body: impl FnOnce() -> Answer<T>) -> Result<T> {
        context::with(&*self.driver, self.context, body)
            .map_err(|failure| driver::error(&*self.driver, failure, about.to_owned()))
    }

    /// As [`CudaRuntime::call`]; the program's name is made only when something failed.
    pub(crate) fn call_for<T>(&self, origin: &Origin, body: impl FnOnce() -> Answer<T>) -> Result<T> {
        context::with(&*self.driver, self.context, body)
            .map_err(|failure| driver::error(&*self.driver, failure, origin.name()))
    }
}

impl Runtime for CudaRuntime {
    fn arch(&self) -> Arch {
        self.arch
    }

    fn sm_count(&self) -> u32 {
        self.facts.sm_count
    }

    fn encode_tensor_map(&self, tensor: &'static str, request: &TensorMapRequest) -> Result<TensorMap> {
        self.encode(tensor, request)
    }

    fn load(&self, program: &Program) -> Result<Kernel> {
        self.load_once(program)
    }

    fn launch(&self, kernel: Kernel, config: &LaunchConfig, params: &[u8], stream: Stream) -> Result<()> {
        self.enqueue(kernel, config, params, stream)
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        self.call("", || self.driver.stream_synchronize(stream))
    }
}

impl Drop for CudaRuntime {
    fn drop(&mut self) {
        let unloaded = self.call("", || {
            self.kernels.unload(&*self.driver);
            Ok(())
        });
        let released = self.driver.primary_context_release(self.device);
        if let Err(error) = unloaded.and(released.map_err(|f| driver::error(&*self.driver, f, String::new()))) {
            tracing::warn!(%error, "cuda:{}", self.ordinal);
        }
    }
}

impl std::fmt::Debug for CudaRuntime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaRuntime(cuda:{}, {}, {})", self.ordinal, self.facts.name, self.arch)
    }
}
