//! The driver calls of the recording driver: as strict as the real ones.

use std::ffi::CStr;

use bakewell_core::tensor_map::{TensorMap, TensorMapRequest};
use bakewell_core::{LaunchConfig, Stream};

use super::{
    CAPTURE_UNSUPPORTED, Described, FakeLaunch, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, MEMORY_BYTES,
    NOT_FOUND, OUT_OF_MEMORY, RecordingDriver, context_of,
};
use crate::driver::{
    Answer, Context, DeviceAttribute, DeviceHandle, Driver, EventHandle, Failure, Function, FunctionAttribute,
    GraphExecHandle, GraphHandle, LaunchAttribute, Module, PointerFacts, PointerKind,
};

impl Driver for RecordingDriver {
    fn driver_version(&self) -> Answer<i32> {
        self.enter("cuDriverGetVersion", "").map(|_| 13_000)
    }

    fn device_count(&self) -> Answer<i32> {
        self.enter("cuDeviceGetCount", "").map(|_| self.devices.len() as i32)
    }

    fn device(&self, ordinal: i32) -> Answer<DeviceHandle> {
        self.enter("cuDeviceGet", ordinal).map(|_| DeviceHandle(ordinal))
    }

    fn device_name(&self, device: DeviceHandle) -> Answer<String> {
        self.enter("cuDeviceGetName", device.0).map(|_| self.devices[device.0 as usize].name.to_owned())
    }

    fn device_total_memory(&self, device: DeviceHandle) -> Answer<u64> {
        self.enter("cuDeviceTotalMem_v2", device.0).map(|_| MEMORY_BYTES)
    }

    fn device_attribute(&self, attribute: DeviceAttribute, device: DeviceHandle) -> Answer<i32> {
        drop(self.enter("cuDeviceGetAttribute", format_args!("{attribute:?}"))?);
        let fake = &self.devices[device.0 as usize];
        Ok(match attribute {
            DeviceAttribute::ComputeMajor => fake.compute_capability.0,
            DeviceAttribute::ComputeMinor => fake.compute_capability.1,
            DeviceAttribute::SmCount => fake.sm_count,
            DeviceAttribute::L2Bytes => 50 << 20,
            DeviceAttribute::SmClockKhz => 1_980_000,
            DeviceAttribute::MemoryClockKhz => 3_201_000,
            DeviceAttribute::MemoryBusBits => 6144,
        })
    }

    fn error_name(&self, code: u32) -> Option<String> {
        let name = match code {
            INVALID_VALUE => "CUDA_ERROR_INVALID_VALUE",
            OUT_OF_MEMORY => "CUDA_ERROR_OUT_OF_MEMORY",
            INVALID_CONTEXT => "CUDA_ERROR_INVALID_CONTEXT",
            INVALID_HANDLE => "CUDA_ERROR_INVALID_HANDLE",
            NOT_FOUND => "CUDA_ERROR_NOT_FOUND",
            CAPTURE_UNSUPPORTED => "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            999 => "CUDA_ERROR_UNKNOWN",
            _ => return None,
        };
        Some(name.to_owned())
    }

    fn primary_context_retain(&self, device: DeviceHandle) -> Answer<Context> {
        let ordinal = device.0 as usize;
        *self.enter("cuDevicePrimaryCtxRetain", ordinal)?.retained.entry(ordinal).or_default() += 1;
        Ok(context_of(ordinal))
    }

    fn primary_context_release(&self, device: DeviceHandle) -> Answer<()> {
        let ordinal = device.0 as usize;
        let mut state = self.enter("cuDevicePrimaryCtxRelease_v2", ordinal)?;
        match state.retained.get_mut(&ordinal) {
            Some(count) if *count > 0 => *count -= 1,
            _ => return Err(Failure { call: "cuDevicePrimaryCtxRelease_v2", code: INVALID_CONTEXT }),
        }
        Ok(())
    }

    fn context_current(&self) -> Answer<Context> {
        Ok(self.enter("cuCtxGetCurrent", "")?.current().unwrap_or(Context(0)))
    }

    fn context_set_current(&self, context: Context) -> Answer<()> {
        self.enter("cuCtxSetCurrent", Described(context))?.current.insert(std::thread::current().id(), context);
        Ok(())
    }

    fn context_synchronize(&self) -> Answer<()> {
        self.enter_uncaptured("cuCtxSynchronize", "").map(|_| ())
    }

    fn memory_allocate(&self, bytes: u64) -> Answer<u64> {
        let (mut state, device) = self.enter_uncaptured("cuMemAlloc_v2", format_args!("{bytes} bytes"))?;
        if bytes > MEMORY_BYTES {
            return Err(Failure { call: "cuMemAlloc_v2", code: OUT_OF_MEMORY });
        }
        let address = ((device as u64 + 1) << 40) + state.next_offset;
        state.next_offset += bytes.next_multiple_of(256) + 256;
        state.allocations.insert(address, (device, vec![0xFF; bytes as usize]));
        Ok(address)
    }

    fn memory_free(&self, address: u64) -> Answer<()> {
        let (mut state, _) = self.enter_uncaptured("cuMemFree_v2", "")?;
        let freed = state.allocations.remove(&address);
        freed.map(|_| ()).ok_or(Failure { call: "cuMemFree_v2", code: INVALID_VALUE })
    }

    fn memory_write(&self, address: u64, bytes: &[u8]) -> Answer<()> {
        self.with_bytes("cuMemcpyHtoD_v2", address, bytes.len() as u64, |slice| slice.copy_from_slice(bytes))
    }

    fn memory_read(&self, address: u64, bytes: &mut [u8]) -> Answer<()> {
        self.with_bytes("cuMemcpyDtoH_v2", address, bytes.len() as u64, |slice| bytes.copy_from_slice(slice))
    }

    fn memory_fill(&self, address: u64, value: u8, bytes: u64) -> Answer<()> {
        self.with_bytes("cuMemsetD8_v2", address, bytes, |slice| slice.fill(value))
    }

    fn memory_copy_async(&self, to: u64, from: u64, bytes: u64, _stream: Stream) -> Answer<()> {
        const NAME: &str = "cuMemcpyDtoDAsync_v2";
        let (mut state, device) = self.enter_context(NAME, format_args!("{bytes} bytes"))?;
        let content = state.bytes(NAME, device, from, bytes)?.to_vec();
        state.bytes(NAME, device, to, bytes)?.copy_from_slice(&content);
        Ok(())
    }

    fn pointer(&self, address: u64) -> Answer<PointerFacts> {
        let state = self.enter("cuPointerGetAttributes", "")?;
        if let Some(facts) = state.pretended.get(&address) {
            return Ok(*facts);
        }
        let owner = state.allocations.range(..=address).next_back();
        let facts = owner.filter(|(start, (_, content))| address - **start < content.len() as u64).map(
            |(&start, (device, content))| PointerFacts {
                kind: PointerKind::Device,
                ordinal: *device as i32,
                start,
                bytes: content.len() as u64,
            },
        );
        Ok(facts.unwrap_or(PointerFacts { kind: PointerKind::Unknown, ordinal: 0, start: 0, bytes: 0 }))
    }

    fn tensor_map_encode(&self, request: &TensorMapRequest) -> Answer<TensorMap> {
        drop(self.enter_context("cuTensorMapEncodeTiled", format_args!("{:?}", request.dims))?);
        let mut words = [0; 16];
        words[0] = request.address;
        words[1..=request.dims.len()].copy_from_slice(&request.dims);
        Ok(TensorMap(words))
    }

    fn module_load(&self, image: &[u8]) -> Answer<Module> {
        let (mut state, ordinal) = self.enter_uncaptured("cuModuleLoadData", format_args!("{} bytes", image.len()))?;
        let handle = state.handle();
        state.modules.insert(Module(handle), context_of(ordinal));
        Ok(Module(handle))
    }

    fn module_unload(&self, module: Module) -> Answer<()> {
        let (mut state, _) = self.enter_context("cuModuleUnload", "")?;
        state.functions.retain(|_, (owner, _)| *owner != module);
        let unloaded = state.modules.remove(&module);
        unloaded.map(|_| ()).ok_or(Failure { call: "cuModuleUnload", code: INVALID_HANDLE })
    }

    fn module_function(&self, module: Module, entry: &CStr) -> Answer<Function> {
        let entry = entry.to_string_lossy().into_owned();
        let (mut state, _) = self.enter_context("cuModuleGetFunction", &entry)?;
        if !state.modules.contains_key(&module) {
            return Err(Failure { call: "cuModuleGetFunction", code: INVALID_HANDLE });
        }
        let handle = state.handle();
        state.functions.insert(handle, (module, entry));
        Ok(Function(handle))
    }

    fn function_set(&self, function: Function, attribute: FunctionAttribute, value: i32) -> Answer<()> {
        let (state, _) = self.enter_context("cuFuncSetAttribute", format_args!("{attribute:?}, {value}"))?;
        let known = state.functions.contains_key(&function.0);
        if known { Ok(()) } else { Err(Failure { call: "cuFuncSetAttribute", code: INVALID_HANDLE }) }
    }

    fn launch(
        &self,
        function: Function,
        config: &LaunchConfig,
        attributes: &[LaunchAttribute],
        params: &[u8],
        stream: Stream,
    ) -> Answer<()> {
        const NAME: &str = "cuLaunchKernelEx";
        let arguments = format_args!(
            "grid {:?}, block {}, {} shared bytes, {attributes:?}, {} parameter bytes, stream {}",
            config.grid,
            config.block,
            config.dynamic_shared_bytes,
            params.len(),
            stream.raw()
        );
        let (mut state, device) = self.enter_context(NAME, arguments)?;
        let fault = Failure { call: NAME, code: INVALID_HANDLE };
        let (module, entry) = state.functions.get(&function.0).ok_or(fault)?;
        if state.modules.get(module) != Some(&context_of(device)) {
            return Err(fault);
        }
        if state.silent {
            return Ok(());
        }
        let launch = FakeLaunch {
            device,
            entry: entry.clone(),
            config: *config,
            attributes: attributes.to_vec(),
            params: params.to_vec(),
            stream: stream.raw(),
        };
        let writes = state.kernel.as_ref().map(|kernel| kernel(&launch)).unwrap_or_default();
        for (address, content) in writes {
            state.bytes(NAME, device, address, content.len() as u64)?.copy_from_slice(&content);
        }
        state.launches.push(launch);
        Ok(())
    }

    #[allow(unsafe_code)]
    fn stream_create(&self) -> Answer<Stream<'static>> {
        let (mut state, _) = self.enter_uncaptured("cuStreamCreate", "")?;
        let handle = state.handle() as u64;
        state.streams.push(handle);
        // SAFETY: no driver follows a handle of this one.
        Ok(unsafe { Stream::from_raw(handle) })
    }

    fn stream_destroy(&self, stream: Stream) -> Answer<()> {
        let (mut state, _) = self.enter_context("cuStreamDestroy_v2", "")?;
        remove(&mut state.streams, stream.raw(), "cuStreamDestroy_v2")
    }

    fn stream_synchronize(&self, stream: Stream) -> Answer<()> {
        let (state, _) = self.enter_uncaptured("cuStreamSynchronize", stream.raw())?;
        if state.is_stream(stream) {
            Ok(())
        } else {
            Err(Failure { call: "cuStreamSynchronize", code: INVALID_HANDLE })
        }
    }

    fn event_create(&self) -> Answer<EventHandle> {
        let (mut state, _) = self.enter_context("cuEventCreate", "")?;
        let handle = state.handle();
        state.events.push(handle);
        Ok(EventHandle(handle))
    }

    fn event_destroy(&self, event: EventHandle) -> Answer<()> {
        let (mut state, _) = self.enter_context("cuEventDestroy_v2", "")?;
        remove(&mut state.events, event.0, "cuEventDestroy_v2")
    }

    fn event_record(&self, _event: EventHandle, stream: Stream) -> Answer<()> {
        self.enter_context("cuEventRecord", stream.raw()).map(|_| ())
    }

    fn event_synchronize(&self, _event: EventHandle) -> Answer<()> {
        self.enter_uncaptured("cuEventSynchronize", "").map(|_| ())
    }

    fn event_elapsed_ms(&self, _start: EventHandle, _end: EventHandle) -> Answer<f32> {
        self.enter_context("cuEventElapsedTime", "").map(|_| 0.25)
    }

    fn capture_begin(&self, stream: Stream) -> Answer<()> {
        self.enter_uncaptured("cuStreamBeginCapture_v2", stream.raw())?.0.capturing.push(stream.raw());
        Ok(())
    }

    fn capture_end(&self, stream: Stream) -> Answer<GraphHandle> {
        let (mut state, _) = self.enter_context("cuStreamEndCapture", stream.raw())?;
        remove(&mut state.capturing, stream.raw(), "cuStreamEndCapture")?;
        let handle = state.handle();
        state.graphs.push(handle);
        Ok(GraphHandle(handle))
    }

    fn graph_destroy(&self, graph: GraphHandle) -> Answer<()> {
        let mut state = self.enter("cuGraphDestroy", "")?;
        remove(&mut state.graphs, graph.0, "cuGraphDestroy")
    }

    fn graph_instantiate(&self, _graph: GraphHandle) -> Answer<GraphExecHandle> {
        let (mut state, _) = self.enter_context("cuGraphInstantiateWithFlags", "")?;
        let handle = state.handle();
        state.graphs.push(handle);
        Ok(GraphExecHandle(handle))
    }

    fn graph_exec_destroy(&self, graph: GraphExecHandle) -> Answer<()> {
        let mut state = self.enter("cuGraphExecDestroy", "")?;
        remove(&mut state.graphs, graph.0, "cuGraphExecDestroy")
    }

    fn graph_launch(&self, _graph: GraphExecHandle, stream: Stream) -> Answer<()> {
        self.enter_context("cuGraphLaunch", stream.raw()).map(|_| ())
    }
}

fn remove<T: PartialEq>(list: &mut Vec<T>, item: T, call: &'static str) -> Answer<()> {
    match list.iter().position(|known| *known == item) {
        Some(index) => {
            list.remove(index);
            Ok(())
        }
        None => Err(Failure { call, code: INVALID_HANDLE }),
    }
}
