//! The launch: one `cuLaunchKernelEx` between making the context current and restoring the caller's.
//!
//! Nothing here allocates, copies, waits or loads, so a launch is legal while a graph is captured.

use bakewell_core::error::Property;
use bakewell_core::runtime::Kernel;
use bakewell_core::{Error, LaunchConfig, Result, Stream};

use crate::CudaRuntime;
use crate::driver::LaunchAttribute;

impl CudaRuntime {
    pub(crate) fn enqueue(&self, kernel: Kernel, config: &LaunchConfig, params: &[u8], stream: Stream) -> Result<()> {
        let loaded = self
            .kernels
            .get(kernel)
            .ok_or_else(|| Error::value("kernel", "a kernel that this device loaded", kernel.0))?;
        config.validate(self.arch)?;
        if config.dynamic_shared_bytes > loaded.dynamic_shared_bytes {
            return Err(Error::argument(
                "dynamic_shared_bytes",
                Property::Size,
                format!("at most the {} bytes of {}", loaded.dynamic_shared_bytes, loaded.origin.name()),
                config.dynamic_shared_bytes,
            ));
        }
        let (attributes, count) = attributes(config);
        self.call_for(&loaded.origin, || {
            self.driver.launch(loaded.function, config, &attributes[..count], params, stream)
        })
    }
}

/// The attributes that the configuration asks for, and how many. A plain launch has none.
fn attributes(config: &LaunchConfig) -> ([LaunchAttribute; 2], usize) {
    let mut list = [LaunchAttribute::ProgrammaticSerialization; 2];
    let mut count = 0;
    if config.cluster_size() > 1 {
        list[count] = LaunchAttribute::Cluster(config.cluster);
        count += 1;
    }
    if config.programmatic_serialization {
        list[count] = LaunchAttribute::ProgrammaticSerialization;
        count += 1;
    }
    (list, count)
}
