//! Tensor maps: validated by the rules all runtimes share, then encoded by the driver.

use bakewell_core::tensor_map::{TensorMap, TensorMapRequest};
use bakewell_core::{Result, Runtime};

use crate::CudaRuntime;

impl CudaRuntime {
    pub(crate) fn encode(&self, tensor: &'static str, request: &TensorMapRequest) -> Result<TensorMap> {
        request.validate(tensor, self.arch())?;
        // Encoding is arithmetic on the host; the context is made current because the driver checks the device's rules.
        self.call(tensor, || self.driver.tensor_map_encode(request))
    }
}
