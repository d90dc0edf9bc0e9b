//! Captured launches, on a GPU, where there are graphs.

use std::sync::Arc;

use bakewell::Device;
use bakewell::cuda::CudaRuntime;

/// The first GPU; says out loud that there is none.
pub fn first_gpu() -> Option<(Arc<CudaRuntime>, Device)> {
    match CudaRuntime::open(0).and_then(|runtime| Ok((runtime, Device::cuda(0)?))) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}
