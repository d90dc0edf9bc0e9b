//! The matrix product of cuBLAS, a peer where the machine has the library: looked for when a benchmark runs, never
//! linked.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use bakewell::cuda::CudaRuntime;
use bakewell::{Buffer, Error, Stream};
use libloading::Library;

/// Names of the library, the newest first; left to the system's loader.
#[cfg(not(windows))]
const NAMES: &[&str] = &["libcublas.so.13", "libcublas.so.12", "libcublas.so"];
#[cfg(windows)]
const NAMES: &[&str] = &["cublas64_13.dll", "cublas64_12.dll"];

/// Bytes that it may use beside the operands: what its documentation advises for sm_90, twice.
const WORKSPACE_BYTES: u64 = 64 << 20;

/// Numbers of `cublas_api.h` and `library_types.h`.
const OP_N: c_int = 0;
const OP_T: c_int = 1;
const R_16BF: c_int = 14;
const COMPUTE_32F: c_int = 68;
const GEMM_DEFAULT: c_int = -1;

type Handle = *mut c_void;
type GemmEx = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const f32,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    c_int,
    c_int,
    *const f32,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;
type SetStream = unsafe extern "C" fn(Handle, *mut c_void) -> c_int;
type SetWorkspace = unsafe extern "C" fn(Handle, *mut c_void, usize) -> c_int;

/// The library with a handle for one GPU.
pub(super) struct Cublas {
    runtime: Arc<CudaRuntime>,
    handle: Handle,
    workspace: Buffer,
    gemm: GemmEx,
    set_stream: SetStream,
    set_workspace: SetWorkspace,
    destroy: unsafe extern "C" fn(Handle) -> c_int,
    /// As CUDA counts: 130100 is 13.1.
    version: c_int,
    /// Keeps the functions where they are.
    _library: Library,
}

/// `out[m, n] = a[m, k] . b[n, k]` of bf16 with f32 sums; all row-major.
pub(super) struct Product {
    a: Buffer,
    b: Buffer,
    out: Buffer,
    sizes: [c_int; 3],
}

impl Product {
    /// Allocates the matrices.
    ///
    /// # Errors
    /// A size that the library cannot count, or the device's.
    pub(super) fn new(runtime: &Arc<CudaRuntime>, [m, n, k]: [u64; 3]) -> Result<Product> {
        let size = |size: u64| c_int::try_from(size).with_context(|| format!("a side of {size}"));
        let matrix = |elements: u64| Buffer::new(runtime.clone(), 2 * elements);
        Ok(Product { a: matrix(m * k)?, b: matrix(n * k)?, out: matrix(m * n)?, sizes: [size(m)?, size(n)?, size(k)?] })
    }

    /// `a` and `b`, to be filled.
    pub(super) fn operands(&self) -> [&Buffer; 2] {
        [&self.a, &self.b]
    }
}

impl Cublas {
    /// Opens the library.
    ///
    /// # Errors
    /// That there is none, or what is wrong with it.
    pub(super) fn open(runtime: &Arc<CudaRuntime>) -> Result<Cublas> {
        // SAFETY: the initialisers of NVIDIA's library ask nothing of the process.
        let library = NAMES.iter().find_map(|&name| unsafe { Library::new(name) }.ok());
        let library = library.with_context(|| format!("none of {} was found by the loader", NAMES.join(", ")))?;
        // SAFETY: the types are those of `cublas_api.h`, its enumerations the ints that C passes; the library is kept.
        let (create, version, destroy, gemm, set_stream, set_workspace) = unsafe {
            (
                *library.get::<unsafe extern "C" fn(*mut Handle) -> c_int>(b"cublasCreate_v2")?,
                *library.get::<unsafe extern "C" fn(Handle, *mut c_int) -> c_int>(b"cublasGetVersion_v2")?,
                *library.get(b"cublasDestroy_v2")?,
                *library.get(b"cublasGemmEx")?,
                *library.get(b"cublasSetStream_v2")?,
                *library.get(b"cublasSetWorkspace_v2")?,
            )
        };
        let (mut handle, mut number) = (ptr::null_mut(), 0);
        // SAFETY: both pointers are to locals that outlive the calls.
        done("cublasCreate", runtime.with_context(|| unsafe { create(&mut handle) })?)?;
        // SAFETY: as above; the handle is what the library made.
        done("cublasGetVersion", unsafe { version(handle, &mut number) })?;
        let workspace = Buffer::new(runtime.clone(), WORKSPACE_BYTES)?;
        let runtime = runtime.clone();
        Ok(Cublas {
            runtime,
            handle,
            workspace,
            gemm,
            set_stream,
            set_workspace,
            destroy,
            version: number,
            _library: library,
        })
    }

    /// `cuBLAS 13.1`.
    pub(super) fn name(&self) -> String {
        format!("cuBLAS {}.{}", self.version / 10_000, self.version / 100 % 100)
    }

    /// Enqueues a product.
    ///
    /// # Errors
    /// The library's.
    pub(super) fn enqueue(&self, product: &Product, stream: Stream) -> bakewell::Result<()> {
        let [m, n, k] = product.sizes;
        let (one, zero) = (1f32, 0f32);
        let pointer = |buffer: &Buffer| buffer.address() as *mut c_void;
        let (a, b, out) = (pointer(&product.a), pointer(&product.b), pointer(&product.out));
        // The library counts columns first: out^T[n, m] = b[n, k] . a^T[k, m].
        //
        // SAFETY: the handle lives; the matrices have these sizes, and the caller keeps them until the stream has done
        // the work; the factors are read before the call returns.
        self.runtime.with_context(|| unsafe {
            done("cublasSetStream", (self.set_stream)(self.handle, stream.raw() as *mut c_void))?;
            let workspace = pointer(&self.workspace);
            done("cublasSetWorkspace", (self.set_workspace)(self.handle, workspace, WORKSPACE_BYTES as usize))?;
            let status = (self.gemm)(
                self.handle,
                OP_T,
                OP_N,
                n,
                m,
                k,
                &one,
                b,
                R_16BF,
                k,
                a,
                R_16BF,
                k,
                &zero,
                out,
                R_16BF,
                n,
                COMPUTE_32F,
                GEMM_DEFAULT,
            );
            done("cublasGemmEx", status)
        })?
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        // SAFETY: the handle is not used again. Nobody is left to be told of a failure.
        let _ = self.runtime.with_context(|| unsafe { (self.destroy)(self.handle) });
    }
}

fn done(call: &'static str, status: c_int) -> bakewell::Result<()> {
    match status {
        0 => Ok(()),
        _ => Err(Error::Driver {
            call,
            program: String::new(),
            code: status.unsigned_abs(),
            name: "a cublasStatus_t".to_owned(),
        }),
    }
}
