//! A runtime that executes nothing and remembers everything.

use std::sync::{Arc, Mutex, PoisonError};

use bakewell::runtime::Kernel;
use bakewell::tensor_map::{TensorMap, TensorMapRequest};
use bakewell::{Arch, Error, LaunchConfig, Memory, Program, Result, Runtime, Stream};
use bakewell_reference::HostMemory;

/// A call that a [`RecordingRuntime`] received.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Bytes.
    Allocate(u64),
    /// Address.
    Free(u64),
    /// Address and bytes.
    Write(u64, u64),
    /// Address and bytes.
    Read(u64, u64),
    /// Address, value, bytes.
    Fill(u64, u8, u64),
    /// Name of the program.
    Load(String),
    /// Kernel, geometry, parameter block, handle of the stream.
    Launch(Kernel, LaunchConfig, Vec<u8>, u64),
    /// Waited for the stream of this handle.
    Synchronize(u64),
    /// Tensor.
    EncodeTensorMap(&'static str),
}

/// A device of any architecture and size with real memory and no execution.
#[derive(Debug)]
pub struct RecordingRuntime {
    arch: Arch,
    sm_count: u32,
    memory: HostMemory,
    calls: Mutex<Vec<Call>>,
    fail_at: Mutex<Option<usize>>,
}

impl RecordingRuntime {
    /// A device that has recorded nothing.
    pub fn new(arch: Arch, sm_count: u32) -> Arc<RecordingRuntime> {
        Arc::new(RecordingRuntime {
            arch,
            sm_count,
            memory: HostMemory::new(&format!("recorded:{arch}")),
            calls: Mutex::default(),
            fail_at: Mutex::default(),
        })
    }

    /// The calls since the last time, in order.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes the n-th call from now (0: the next) fail as a driver would. `None`: nothing fails.
    pub fn fail_at(&self, n: Option<usize>) {
        *self.fail_at.lock().unwrap_or_else(PoisonError::into_inner) = n;
    }

    /// Number of live allocations.
    pub fn allocations(&self) -> usize {
        self.memory.allocations()
    }

    fn record(&self, call: Call) -> Result<()> {
        let mut fail_at = self.fail_at.lock().unwrap_or_else(PoisonError::into_inner);
        let fails = *fail_at == Some(0);
        *fail_at = fail_at.and_then(|n| n.checked_sub(1));
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
        match fails {
            true => Err(Error::Driver { call: "injected", program: String::new(), code: 2, name: "FAILURE".into() }),
            false => Ok(()),
        }
    }
}

impl Memory for RecordingRuntime {
    fn name(&self) -> String {
        self.memory.name()
    }

    fn allocate(&self, bytes: u64) -> Result<u64> {
        self.record(Call::Allocate(bytes))?;
        self.memory.allocate(bytes)
    }

    fn free(&self, address: u64) {
        // A free that fails has nobody to tell, so a failure injected here shows nowhere.
        let _ = self.record(Call::Free(address));
        self.memory.free(address);
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        self.record(Call::Write(address, bytes.len() as u64))?;
        self.memory.write(address, bytes)
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        self.record(Call::Read(address, bytes.len() as u64))?;
        self.memory.read(address, bytes)
    }

    fn fill(&self, address: u64, value: u8, bytes: u64) -> Result<()> {
        self.record(Call::Fill(address, value, bytes))?;
        self.memory.fill(address, value, bytes)
    }

    fn locate(&self, address: u64, bytes: u64) -> Result<(), String> {
        self.memory.locate(address, bytes)
    }
}

impl Runtime for RecordingRuntime {
    fn arch(&self) -> Arch {
        self.arch
    }

    fn sm_count(&self) -> u32 {
        self.sm_count
    }

    fn encode_tensor_map(&self, tensor: &'static str, request: &TensorMapRequest) -> Result<TensorMap> {
        self.record(Call::EncodeTensorMap(tensor))?;
        request.validate(tensor, self.arch)?;
        Ok(TensorMap([0; 16]))
    }

    fn load(&self, program: &Program) -> Result<Kernel> {
        self.record(Call::Load(program.name()))?;
        program.cubin()?;
        Ok(Kernel(7))
    }

    fn launch(&self, kernel: Kernel, config: &LaunchConfig, params: &[u8], stream: Stream) -> Result<()> {
        self.record(Call::Launch(kernel, *config, params.to_vec(), stream.raw()))?;
        config.validate(self.arch)
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        self.record(Call::Synchronize(stream.raw()))
    }
}
