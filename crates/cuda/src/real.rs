//! The real driver: a table of function pointers and the calls over it. Nearly all `unsafe` of the project is here.
//!
//! Two facts make the calls sound. The table holds pointers of the types that `cuda.h` declares, into a
//! library that stays open as long as the table. And handles are made only by this file, from what the
//! driver returned. What a particular call needs besides is said at the call.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use bakewell_core::tensor_map::{TensorMap, TensorMapRequest};
use bakewell_core::{Error, LaunchConfig, Result, Stream};
use cudarc::driver::sys;
use libloading::Library;
use once_cell::sync::OnceCell;

use crate::driver::{
    Answer, Context, DeviceAttribute, DeviceHandle, Driver, EventHandle, Failure, Function, FunctionAttribute,
    GraphExecHandle, GraphHandle, LaunchAttribute, Module, NO_DEVICE, PointerFacts, PointerKind,
};
use crate::library;

/// The process's driver, opened and initialised on first use.
///
/// # Errors
/// [`Error::NoDriver`], or the driver's error of `cuInit`. A machine with a driver and no GPU is not an error here.
pub(crate) fn driver() -> Result<Arc<dyn Driver>> {
    static API: OnceCell<Arc<Api>> = OnceCell::new();
    let api = API.get_or_try_init(|| Api::open().map(Arc::new))?;
    Ok(api.clone())
}

macro_rules! functions {
    (typed: { $($name:ident($($argument:ty),*);)* } own: { $($plain:ident($($plain_argument:ty),*);)* }) => {
        /// Driver functions under the names that the library exports.
        #[allow(non_snake_case)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> u32,)*
            $($plain: unsafe extern "C" fn($($plain_argument),*) -> u32,)*
        }

        // The argument lists are those of cudarc's bindings, or this does not compile.
        $(const _: unsafe fn($($argument),*) -> sys::CUresult = sys::$name;)*

        impl Functions {
            fn resolve(library: &Library) -> Result<Functions> {
                Ok(Functions {
                    // SAFETY: the types are those of `cuda.h` (results as the 32-bit number they are), and the
                    // pointers live beside the library in `Api`.
                    $($name: unsafe { library::symbol(library, stringify!($name))? },)*
                    // SAFETY: as above, and enumerations are the 32-bit numbers that C passes.
                    $($plain: unsafe { library::symbol(library, stringify!($plain))? },)*
                })
            }
        }
    };
}

functions! {
    typed: {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut sys::CUdevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, sys::CUdevice);
        cuDeviceTotalMem_v2(*mut usize, sys::CUdevice);
        cuDeviceGetAttribute(*mut c_int, sys::CUdevice_attribute, sys::CUdevice);
        cuDevicePrimaryCtxRetain(*mut sys::CUcontext, sys::CUdevice);
        cuDevicePrimaryCtxRelease_v2(sys::CUdevice);
        cuCtxGetCurrent(*mut sys::CUcontext);
        cuCtxSetCurrent(sys::CUcontext);
        cuCtxSynchronize();
        cuMemAlloc_v2(*mut sys::CUdeviceptr, usize);
        cuMemFree_v2(sys::CUdeviceptr);
        cuMemcpyHtoD_v2(sys::CUdeviceptr, *const c_void, usize);
        cuMemcpyDtoH_v2(*mut c_void, sys::CUdeviceptr, usize);
        cuMemcpyDtoDAsync_v2(sys::CUdeviceptr, sys::CUdeviceptr, usize, sys::CUstream);
        cuMemsetD8_v2(sys::CUdeviceptr, u8, usize);
        cuPointerGetAttributes(c_uint, *mut sys::CUpointer_attribute, *mut *mut c_void, sys::CUdeviceptr);
        cuModuleLoadData(*mut sys::CUmodule, *const c_void);
        cuModuleUnload(sys::CUmodule);
        cuModuleGetFunction(*mut sys::CUfunction, sys::CUmodule, *const c_char);
        cuFuncSetAttribute(sys::CUfunction, sys::CUfunction_attribute, c_int);
        cuFuncGetParamInfo(sys::CUfunction, usize, *mut usize, *mut usize);
        cuLaunchKernelEx(*const sys::CUlaunchConfig, sys::CUfunction, *mut *mut c_void, *mut *mut c_void);
        cuStreamCreate(*mut sys::CUstream, c_uint);
        cuStreamDestroy_v2(sys::CUstream);
        cuStreamSynchronize(sys::CUstream);
        cuEventCreate(*mut sys::CUevent, c_uint);
        cuEventDestroy_v2(sys::CUevent);
        cuEventRecord(sys::CUevent, sys::CUstream);
        cuEventSynchronize(sys::CUevent);
        cuStreamBeginCapture_v2(sys::CUstream, sys::CUstreamCaptureMode);
        cuStreamEndCapture(sys::CUstream, *mut sys::CUgraph);
        cuGraphDestroy(sys::CUgraph);
        cuGraphInstantiateWithFlags(*mut sys::CUgraphExec, sys::CUgraph, std::ffi::c_ulonglong);
        cuGraphExecDestroy(sys::CUgraphExec);
        cuGraphLaunch(sys::CUgraphExec, sys::CUstream);
    }
    // Results and modes as numbers, which a newer driver may extend; and a form that drivers before 12.8 have too.
    own: {
        cuGetErrorName(u32, *mut *const c_char);
        cuEventElapsedTime(*mut f32, sys::CUevent, sys::CUevent);
        cuTensorMapEncodeTiled(
            *mut sys::CUtensorMap, u32, u32, *mut c_void, *const u64, *const u64, *const u32, *const u32,
            u32, u32, u32, u32
        );
    }
}

/// Calls a driver function inside an `unsafe` block and names it in the failure.
macro_rules! call {
    ($api:ident.$name:ident($($argument:expr),* $(,)?)) => {
        check(stringify!($name), ($api.functions.$name)($($argument),*))
    };
}

fn check(call: &'static str, code: u32) -> Answer<()> {
    if code == 0 { Ok(()) } else { Err(Failure { call, code }) }
}

/// A failure of our own making where an argument cannot reach the driver: `CUDA_ERROR_INVALID_VALUE`.
fn invalid(call: &'static str) -> Failure {
    Failure { call, code: 1 }
}

struct Api {
    functions: Functions,
    /// Keeps the functions' code mapped.
    _library: Library,
}

impl Api {
    fn open() -> Result<Api> {
        let library = library::open()?;
        let functions = Functions::resolve(&library)?;
        let api = Api { functions, _library: library };
        // SAFETY: takes a number, and 0 is the only one allowed.
        match unsafe { call!(api.cuInit(0)) } {
            Ok(()) | Err(Failure { code: NO_DEVICE, .. }) => Ok(api),
            Err(failure) => Err(crate::driver::error(&api, failure, String::new())),
        }
    }
}

fn stream_pointer(stream: Stream) -> sys::CUstream {
    stream.raw() as usize as sys::CUstream
}

fn bytes_of(call: &'static str, bytes: u64) -> Answer<usize> {
    usize::try_from(bytes).map_err(|_| invalid(call))
}

impl Api {
    /// Offset of a kernel's first parameter from the start of the parameter bank, and its size, in bytes.
    fn first_parameter(&self, function: Function) -> Answer<(usize, usize)> {
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: the function's module is loaded; writes two sizes through the pointers.
        unsafe { call!(self.cuFuncGetParamInfo(function.0 as sys::CUfunction, 0, &mut offset, &mut bytes)) }?;
        Ok((offset, bytes))
    }
}

impl Driver for Api {
    fn driver_version(&self) -> Answer<i32> {
        let mut version = 0;
        // SAFETY: writes one number through the pointer.
        unsafe { call!(self.cuDriverGetVersion(&mut version)) }?;
        Ok(version)
    }

    fn device_count(&self) -> Answer<i32> {
        let mut count = 0;
        // SAFETY: writes one number through the pointer.
        match unsafe { call!(self.cuDeviceGetCount(&mut count)) } {
            Ok(()) => Ok(count),
            // After `cuInit` found no device, the driver counts as not initialised.
            Err(Failure { code: NO_DEVICE | 3, .. }) => Ok(0),
            Err(failure) => Err(failure),
        }
    }

    fn device(&self, ordinal: i32) -> Answer<DeviceHandle> {
        let mut device = 0;
        // SAFETY: writes one number through the pointer.
        unsafe { call!(self.cuDeviceGet(&mut device, ordinal)) }?;
        Ok(DeviceHandle(device))
    }

    fn device_name(&self, device: DeviceHandle) -> Answer<String> {
        let mut name = [0u8; 256];
        // SAFETY: writes at most the given 255 bytes, which leaves a terminating zero.
        unsafe { call!(self.cuDeviceGetName(name.as_mut_ptr().cast(), 255, device.0)) }?;
        let text = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    fn device_total_memory(&self, device: DeviceHandle) -> Answer<u64> {
        let mut bytes = 0;
        // SAFETY: writes one number through the pointer.
        unsafe { call!(self.cuDeviceTotalMem_v2(&mut bytes, device.0)) }?;
        Ok(bytes as u64)
    }

    fn device_attribute(&self, attribute: DeviceAttribute, device: DeviceHandle) -> Answer<i32> {
        use sys::CUdevice_attribute as A;
        let attribute = match attribute {
            DeviceAttribute::ComputeMajor => A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            DeviceAttribute::ComputeMinor => A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            DeviceAttribute::SmCount => A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            DeviceAttribute::L2Bytes => A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
            DeviceAttribute::SmClockKhz => A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
            DeviceAttribute::MemoryClockKhz => A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE,
            DeviceAttribute::MemoryBusBits => A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH,
        };
        let mut value = 0;
        // SAFETY: writes one number through the pointer.
        unsafe { call!(self.cuDeviceGetAttribute(&mut value, attribute, device.0)) }?;
        Ok(value)
    }

    fn error_name(&self, code: u32) -> Option<String> {
        let mut name = ptr::null();
        // SAFETY: writes a pointer to a static string, or null for an unknown code.
        unsafe { call!(self.cuGetErrorName(code, &mut name)) }.ok()?;
        if name.is_null() {
            return None;
        }
        // SAFETY: not null, so a zero-terminated string in the library, which stays open.
        Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    }

    fn primary_context_retain(&self, device: DeviceHandle) -> Answer<Context> {
        let mut context = ptr::null_mut();
        // SAFETY: writes one handle through the pointer.
        unsafe { call!(self.cuDevicePrimaryCtxRetain(&mut context, device.0)) }?;
        Ok(Context(context as usize))
    }

    fn primary_context_release(&self, device: DeviceHandle) -> Answer<()> {
        // SAFETY: the runtime that retained the context releases it once, when nothing uses it any more.
        unsafe { call!(self.cuDevicePrimaryCtxRelease_v2(device.0)) }
    }

    fn context_current(&self) -> Answer<Context> {
        let mut context = ptr::null_mut();
        // SAFETY: writes one handle through the pointer.
        unsafe { call!(self.cuCtxGetCurrent(&mut context)) }?;
        Ok(Context(context as usize))
    }

    fn context_set_current(&self, context: Context) -> Answer<()> {
        // SAFETY: the handle is a retained primary context, or what was current before (null is allowed).
        unsafe { call!(self.cuCtxSetCurrent(context.0 as sys::CUcontext)) }
    }

    fn context_synchronize(&self) -> Answer<()> {
        // SAFETY: takes nothing.
        unsafe { call!(self.cuCtxSynchronize()) }
    }

    fn memory_allocate(&self, bytes: u64) -> Answer<u64> {
        let bytes = bytes_of("cuMemAlloc_v2", bytes)?;
        let mut address = 0;
        // SAFETY: writes one address through the pointer.
        unsafe { call!(self.cuMemAlloc_v2(&mut address, bytes)) }?;
        Ok(address)
    }

    fn memory_free(&self, address: u64) -> Answer<()> {
        // SAFETY: the driver refuses an address that is not an allocation.
        unsafe { call!(self.cuMemFree_v2(address)) }
    }

    fn memory_write(&self, address: u64, bytes: &[u8]) -> Answer<()> {
        // SAFETY: reads `bytes.len()` bytes of the slice; the destination was found to be device memory.
        unsafe { call!(self.cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len())) }
    }

    fn memory_read(&self, address: u64, bytes: &mut [u8]) -> Answer<()> {
        // SAFETY: writes `bytes.len()` bytes of the slice before it returns; the source was found to be device memory.
        unsafe { call!(self.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len())) }
    }

    fn memory_fill(&self, address: u64, value: u8, bytes: u64) -> Answer<()> {
        let bytes = bytes_of("cuMemsetD8_v2", bytes)?;
        // SAFETY: the range was found to be device memory.
        unsafe { call!(self.cuMemsetD8_v2(address, value, bytes)) }
    }

    fn memory_copy_async(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Answer<()> {
        let bytes = bytes_of("cuMemcpyDtoDAsync_v2", bytes)?;
        // SAFETY: both ranges were found to be device memory; the stream's owner keeps it alive (`core::Stream`).
        unsafe { call!(self.cuMemcpyDtoDAsync_v2(to, from, bytes, stream_pointer(stream))) }
    }

    fn pointer(&self, address: u64) -> Answer<PointerFacts> {
        use sys::CUpointer_attribute as A;
        let mut memory_type = 0u32;
        let mut managed = 0u32;
        let mut ordinal = -1i32;
        let mut start = 0u64;
        let mut bytes = 0usize;
        let mut attributes = [
            A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            A::CU_POINTER_ATTRIBUTE_IS_MANAGED,
            A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            A::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        ];
        let mut values: [*mut c_void; 5] = [
            (&raw mut memory_type).cast(),
            (&raw mut managed).cast(),
            (&raw mut ordinal).cast(),
            (&raw mut start).cast(),
            (&raw mut bytes).cast(),
        ];
        // SAFETY: both lists have five entries, and each value has the size that its attribute documents (a
        // boolean writes one byte of a zeroed word). An address the driver does not know leaves zeros.
        unsafe { call!(self.cuPointerGetAttributes(5, attributes.as_mut_ptr(), values.as_mut_ptr(), address)) }?;
        let kind = match (managed != 0, memory_type) {
            (true, _) => PointerKind::Managed,
            (_, 1) => PointerKind::Host,
            (_, 2) => PointerKind::Device,
            _ => PointerKind::Unknown,
        };
        Ok(PointerFacts { kind, ordinal, start, bytes: bytes as u64 })
    }

    fn tensor_map_encode(&self, request: &TensorMapRequest) -> Answer<TensorMap> {
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: the request was validated: `dims`, `box_dims` and `element_strides` have `dims.len()` entries,
        // `strides` one fewer, as the encoder reads. The address is only recorded. `map` is 128-byte aligned.
        unsafe {
            call!(self.cuTensorMapEncodeTiled(
                &mut map,
                request.dtype as u32,
                request.dims.len() as u32,
                request.address as usize as *mut c_void,
                request.dims.as_ptr(),
                request.strides.as_ptr(),
                request.box_dims.as_ptr(),
                request.element_strides.as_ptr(),
                request.interleave as u32,
                request.swizzle as u32,
                request.l2_promotion as u32,
                request.oob_fill as u32,
            ))
        }?;
        Ok(TensorMap(map.opaque))
    }

    fn module_load(&self, image: &[u8]) -> Answer<Module> {
        let ends_itself = image.starts_with(b"\x7fELF") || image.last() == Some(&0);
        if !ends_itself {
            return Err(invalid("cuModuleLoadData"));
        }
        let mut module = ptr::null_mut();
        // SAFETY: an ELF image states its own size, and it is one of ours whose digest was compared; text ends with
        // a zero byte, just checked.
        unsafe { call!(self.cuModuleLoadData(&mut module, image.as_ptr().cast())) }?;
        Ok(Module(module as usize))
    }

    fn module_unload(&self, module: Module) -> Answer<()> {
        // SAFETY: the handle came from `module_load`; its owner unloads it once, after its last use.
        unsafe { call!(self.cuModuleUnload(module.0 as sys::CUmodule)) }
    }

    fn module_function(&self, module: Module, entry: &CStr) -> Answer<Function> {
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded; the name is zero-terminated.
        unsafe { call!(self.cuModuleGetFunction(&mut function, module.0 as sys::CUmodule, entry.as_ptr())) }?;
        Ok(Function(function as usize))
    }

    fn function_set(&self, function: Function, attribute: FunctionAttribute, value: i32) -> Answer<()> {
        use sys::CUfunction_attribute as A;
        let attribute = match attribute {
            FunctionAttribute::MaxDynamicSharedBytes => A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            FunctionAttribute::NonPortableClusterAllowed => A::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
        };
        // SAFETY: the function belongs to a module that is loaded.
        unsafe { call!(self.cuFuncSetAttribute(function.0 as sys::CUfunction, attribute, value)) }
    }

    fn launch(
        &self,
        function: Function,
        config: &LaunchConfig,
        attributes: &[LaunchAttribute],
        params: &[u8],
        stream: Stream,
    ) -> Answer<()> {
        let mut raw = [sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_IGNORE,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { pad: [0; 64] },
        }; 2];
        for (raw, attribute) in raw.iter_mut().zip(attributes) {
            (raw.id, raw.value) = launch_attribute(*attribute);
        }
        let raw_config = sys::CUlaunchConfig {
            gridDimX: config.grid[0],
            gridDimY: config.grid[1],
            gridDimZ: config.grid[2],
            blockDimX: config.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: config.dynamic_shared_bytes,
            hStream: stream_pointer(stream),
            attrs: raw.as_mut_ptr(),
            numAttrs: attributes.len().min(raw.len()) as u32,
        };
        let mut size = params.len();
        // The buffer form, because it tells the driver how many bytes there are to read.
        let mut extra: [*mut c_void; 5] = [
            sys::CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT as usize as *mut c_void,
            params.as_ptr().cast_mut().cast(),
            sys::CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT as usize as *mut c_void,
            (&raw mut size).cast(),
            ptr::null_mut(),
        ];
        let mut extra = if params.is_empty() { ptr::null_mut() } else { extra.as_mut_ptr() };
        // A block that waits for its alignment behind the start of the parameter bank has no place in the buffer form,
        // which begins at that start: it goes by pointer, once its size is known to be the program's.
        let mut by_pointer: [*mut c_void; 1] = [params.as_ptr().cast_mut().cast()];
        let mut pointers = ptr::null_mut();
        if !params.is_empty() {
            let (first, bytes) = self.first_parameter(function)?;
            if first != 0 {
                if bytes != params.len() {
                    return Err(invalid("cuLaunchKernelEx"));
                }
                (pointers, extra) = (by_pointer.as_mut_ptr(), ptr::null_mut());
            }
        }
        // SAFETY: the configuration points at `numAttrs` attributes. Either `extra` is a list that ends with null and
        // names `size` bytes of parameters, or `pointers` names the one parameter of the kernel, whose size was
        // compared. All of them live until the call returns, and the driver copies them. The function's module is
        // loaded, and the stream's owner keeps the stream alive (`core::Stream`).
        unsafe { call!(self.cuLaunchKernelEx(&raw_config, function.0 as sys::CUfunction, pointers, extra)) }
    }

    fn stream_create(&self) -> Answer<Stream<'static>> {
        let mut stream = ptr::null_mut();
        // SAFETY: writes one handle through the pointer; 1 asks for a stream without ties to the default one.
        unsafe { call!(self.cuStreamCreate(&mut stream, 1)) }?;
        // SAFETY: the driver has just created it; `OwnedStream`, which destroys it, lends it for its own life only.
        Ok(unsafe { Stream::from_raw(stream as usize as u64) })
    }

    fn stream_destroy(&self, stream: Stream) -> Answer<()> {
        // SAFETY: called once by the owner that created the stream.
        unsafe { call!(self.cuStreamDestroy_v2(stream_pointer(stream))) }
    }

    fn stream_synchronize(&self, stream: Stream) -> Answer<()> {
        // SAFETY: the stream's owner keeps it alive (`core::Stream`).
        unsafe { call!(self.cuStreamSynchronize(stream_pointer(stream))) }
    }

    fn event_create(&self) -> Answer<EventHandle> {
        let mut event = ptr::null_mut();
        // SAFETY: writes one handle through the pointer.
        unsafe { call!(self.cuEventCreate(&mut event, 0)) }?;
        Ok(EventHandle(event as usize))
    }

    fn event_destroy(&self, event: EventHandle) -> Answer<()> {
        // SAFETY: called once by the owner that created the event.
        unsafe { call!(self.cuEventDestroy_v2(event.0 as sys::CUevent)) }
    }

    fn event_record(&self, event: EventHandle, stream: Stream) -> Answer<()> {
        // SAFETY: event and stream are kept alive by their owners.
        unsafe { call!(self.cuEventRecord(event.0 as sys::CUevent, stream_pointer(stream))) }
    }

    fn event_synchronize(&self, event: EventHandle) -> Answer<()> {
        // SAFETY: the event is kept alive by its owner.
        unsafe { call!(self.cuEventSynchronize(event.0 as sys::CUevent)) }
    }

    fn event_elapsed_ms(&self, start: EventHandle, end: EventHandle) -> Answer<f32> {
        let mut milliseconds = 0.0;
        // SAFETY: writes one number through the pointer; the events are kept alive by their owners.
        unsafe { call!(self.cuEventElapsedTime(&mut milliseconds, start.0 as sys::CUevent, end.0 as sys::CUevent)) }?;
        Ok(milliseconds)
    }

    fn capture_begin(&self, stream: Stream) -> Answer<()> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is kept alive by its owner.
        unsafe { call!(self.cuStreamBeginCapture_v2(stream_pointer(stream), mode)) }
    }

    fn capture_end(&self, stream: Stream) -> Answer<GraphHandle> {
        let mut graph = ptr::null_mut();
        // SAFETY: writes one handle through the pointer; the stream is kept alive by its owner.
        unsafe { call!(self.cuStreamEndCapture(stream_pointer(stream), &mut graph)) }?;
        Ok(GraphHandle(graph as usize))
    }

    fn graph_destroy(&self, graph: GraphHandle) -> Answer<()> {
        // SAFETY: called once by the owner of the captured graph.
        unsafe { call!(self.cuGraphDestroy(graph.0 as sys::CUgraph)) }
    }

    fn graph_instantiate(&self, graph: GraphHandle) -> Answer<GraphExecHandle> {
        let mut exec = ptr::null_mut();
        // SAFETY: writes one handle through the pointer; the graph is kept alive by its owner.
        unsafe { call!(self.cuGraphInstantiateWithFlags(&mut exec, graph.0 as sys::CUgraph, 0)) }?;
        Ok(GraphExecHandle(exec as usize))
    }

    fn graph_exec_destroy(&self, graph: GraphExecHandle) -> Answer<()> {
        // SAFETY: called once by the owner that instantiated the graph.
        unsafe { call!(self.cuGraphExecDestroy(graph.0 as sys::CUgraphExec)) }
    }

    fn graph_launch(&self, graph: GraphExecHandle, stream: Stream) -> Answer<()> {
        // SAFETY: graph and stream are kept alive by their owners.
        unsafe { call!(self.cuGraphLaunch(graph.0 as sys::CUgraphExec, stream_pointer(stream))) }
    }
}

fn launch_attribute(attribute: LaunchAttribute) -> (sys::CUlaunchAttributeID, sys::CUlaunchAttributeValue) {
    // Unused bytes of the union are zero, as the driver asks of fields it may add.
    let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
    match attribute {
        LaunchAttribute::Cluster([x, y, z]) => {
            value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
            (sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value)
        }
        LaunchAttribute::ProgrammaticSerialization => {
            value.programmaticStreamSerializationAllowed = 1;
            (sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, value)
        }
    }
}

/// The error of `cuda:N` where the driver shows fewer devices.
pub(crate) fn no_device(ordinal: u32, count: i32) -> Error {
    Error::NoDevice { ordinal, count: u32::try_from(count).unwrap_or(0) }
}
