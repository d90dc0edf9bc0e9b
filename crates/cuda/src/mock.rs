//! A recording driver: every call by name, failures on demand, fake devices and memory.
//!
//! It is strict where the real driver is: a call without a current context, a handle of another context, a
//! freed address, or an allocation during a capture fails with the real code. Kernels do nothing unless
//! [`RecordingDriver::set_kernel`] says what they write.

mod calls;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use bakewell_core::{LaunchConfig, Stream};

use crate::driver::{Answer, Context, Failure, LaunchAttribute, Module, PointerFacts};

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const INVALID_CONTEXT: u32 = 201;
const INVALID_HANDLE: u32 = 400;
const NOT_FOUND: u32 = 500;
const CAPTURE_UNSUPPORTED: u32 = 900;

/// Memory of each fake device in bytes.
const MEMORY_BYTES: u64 = 1 << 30;

/// A device that the driver pretends to show.
#[derive(Clone, Debug)]
pub struct FakeDevice {
    /// Product name.
    pub name: &'static str,
    /// Compute capability.
    pub compute_capability: (i32, i32),
    /// Number of SMs.
    pub sm_count: i32,
}

impl FakeDevice {
    /// A device of this capability and SM count.
    pub const fn new(compute_capability: (i32, i32), sm_count: i32) -> FakeDevice {
        FakeDevice { name: "Fake GPU", compute_capability, sm_count }
    }
}

/// One recorded call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Driver function.
    pub name: &'static str,
    /// Arguments, for people.
    pub arguments: String,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name, self.arguments)
    }
}

/// One recorded launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeLaunch {
    /// Ordinal of the device.
    pub device: usize,
    /// Entry point.
    pub entry: String,
    /// Geometry.
    pub config: LaunchConfig,
    /// Attributes.
    pub attributes: Vec<LaunchAttribute>,
    /// Parameter bytes.
    pub params: Vec<u8>,
    /// Handle of the stream.
    pub stream: u64,
}

/// What a kernel writes, as addresses and bytes.
pub type FakeKernel = Box<dyn Fn(&FakeLaunch) -> Vec<(u64, Vec<u8>)> + Send>;

/// How many things of the driver are alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Alive {
    pub contexts: usize,
    pub allocations: usize,
    pub modules: usize,
    pub streams: usize,
    pub events: usize,
    pub graphs: usize,
}

#[derive(Default)]
struct State {
    silent: bool,
    kernel: Option<FakeKernel>,
    calls: Vec<Call>,
    launches: Vec<FakeLaunch>,
    /// Calls until one fails, and its code.
    fail: Option<(usize, u32)>,
    /// Retain counts by ordinal.
    retained: BTreeMap<usize, usize>,
    current: HashMap<ThreadId, Context>,
    allocations: BTreeMap<u64, (usize, Vec<u8>)>,
    pretended: BTreeMap<u64, PointerFacts>,
    modules: BTreeMap<Module, Context>,
    functions: BTreeMap<usize, (Module, String)>,
    streams: Vec<u64>,
    events: Vec<usize>,
    graphs: Vec<usize>,
    capturing: Vec<u64>,
    handles: usize,
    next_offset: u64,
}

impl State {
    fn handle(&mut self) -> usize {
        self.handles += 1;
        self.handles
    }
}

/// The recording driver. Clones of its `Arc` see the same state.
pub struct RecordingDriver {
    devices: Vec<FakeDevice>,
    state: Mutex<State>,
}

impl RecordingDriver {
    /// A driver that shows these devices.
    pub fn new(devices: &[FakeDevice]) -> Arc<RecordingDriver> {
        Arc::new(RecordingDriver { devices: devices.to_vec(), state: Mutex::default() })
    }

    /// The calls since the last time this was asked, as `name(arguments)`.
    pub fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.state().calls).iter().map(Call::to_string).collect()
    }

    /// The names of the calls since the last time calls were asked for.
    pub fn take_names(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.state().calls).iter().map(|call| call.name).collect()
    }

    /// Every launch so far.
    pub fn launches(&self) -> Vec<FakeLaunch> {
        self.state().launches.clone()
    }

    /// Lets the call after `calls` more calls fail with `code`.
    pub fn fail_after(&self, calls: usize, code: u32) {
        self.state().fail = Some((calls, code));
    }

    /// Says what every kernel writes from now on, at once also while its launch is captured.
    pub fn set_kernel(&self, kernel: FakeKernel) {
        self.state().kernel = Some(kernel);
    }

    /// Stops or resumes recording. A launch that is not recorded allocates nothing here either.
    pub fn record(&self, on: bool) {
        self.state().silent = !on;
    }

    /// Whether the failure asked for is still to come; it is called off.
    pub fn take_pending_failure(&self) -> bool {
        self.state().fail.take().is_some()
    }

    /// What is alive.
    pub fn alive(&self) -> Alive {
        let state = self.state();
        Alive {
            contexts: state.retained.values().filter(|&&count| count > 0).count(),
            allocations: state.allocations.len(),
            modules: state.modules.len(),
            streams: state.streams.len(),
            events: state.events.len(),
            graphs: state.graphs.len(),
        }
    }

    /// Ordinal of the device whose context is current on this thread.
    pub fn current(&self) -> Option<usize> {
        self.state().current().and_then(ordinal_of)
    }

    /// Makes a device's context, or none, current on this thread, as a caller would.
    pub fn make_current(&self, ordinal: Option<usize>) {
        let context = ordinal.map_or(Context(0), context_of);
        self.state().current.insert(std::thread::current().id(), context);
    }

    /// Pretends that an address has these facts.
    pub fn pretend(&self, address: u64, facts: PointerFacts) {
        self.state().pretended.insert(address, facts);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a call, and fails it when its turn has come.
    fn enter(&self, name: &'static str, arguments: impl fmt::Display) -> Answer<MutexGuard<'_, State>> {
        let mut state = self.state();
        if !state.silent {
            state.calls.push(Call { name, arguments: arguments.to_string() });
        }
        match &mut state.fail {
            Some((0, code)) => {
                let failure = Failure { call: name, code: *code };
                state.fail = None;
                Err(failure)
            }
            Some((calls, _)) => {
                *calls -= 1;
                Ok(state)
            }
            None => Ok(state),
        }
    }

    /// As [`RecordingDriver::enter`], for calls that need a current context; gives its device.
    fn enter_context(
        &self,
        name: &'static str,
        arguments: impl fmt::Display,
    ) -> Answer<(MutexGuard<'_, State>, usize)> {
        let state = self.enter(name, arguments)?;
        let current = state.current().and_then(ordinal_of);
        let retained = |ordinal: &usize| state.retained.get(ordinal).is_some_and(|&count| count > 0);
        match current.filter(retained) {
            Some(ordinal) => Ok((state, ordinal)),
            None => Err(Failure { call: name, code: INVALID_CONTEXT }),
        }
    }

    /// As [`RecordingDriver::enter_context`], for calls that no capture allows.
    fn enter_uncaptured(
        &self,
        name: &'static str,
        arguments: impl fmt::Display,
    ) -> Answer<(MutexGuard<'_, State>, usize)> {
        let (state, ordinal) = self.enter_context(name, arguments)?;
        if state.capturing.is_empty() {
            Ok((state, ordinal))
        } else {
            Err(Failure { call: name, code: CAPTURE_UNSUPPORTED })
        }
    }

    /// The bytes of an allocation of the current device.
    fn with_bytes<T>(
        &self,
        name: &'static str,
        address: u64,
        bytes: u64,
        body: impl FnOnce(&mut [u8]) -> T,
    ) -> Answer<T> {
        let (mut state, device) = self.enter_uncaptured(name, format_args!("{bytes} bytes"))?;
        state.bytes(name, device, address, bytes).map(body)
    }
}

impl State {
    /// The bytes of an allocation of a device.
    fn bytes(&mut self, call: &'static str, device: usize, address: u64, bytes: u64) -> Answer<&mut [u8]> {
        let fault = Failure { call, code: INVALID_VALUE };
        let (&start, (owner, content)) = self.allocations.range_mut(..=address).next_back().ok_or(fault)?;
        let from = (address - start) as usize;
        let slice = content.get_mut(from..from.saturating_add(bytes as usize));
        slice.filter(|_| *owner == device).ok_or(fault)
    }

    fn current(&self) -> Option<Context> {
        self.current.get(&std::thread::current().id()).copied().filter(|context| context.0 != 0)
    }

    fn is_stream(&self, stream: Stream) -> bool {
        stream == Stream::DEFAULT || self.streams.contains(&stream.raw())
    }
}

fn context_of(ordinal: usize) -> Context {
    Context(0x1000 + ordinal)
}

fn ordinal_of(context: Context) -> Option<usize> {
    context.0.checked_sub(0x1000)
}

/// A context as people name it.
struct Described(Context);

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match ordinal_of(self.0) {
            Some(ordinal) => write!(f, "cuda:{ordinal}"),
            None => f.write_str("none"),
        }
    }
}
