//! The two engines: the emulator, and a device whose driver compiles the PTX.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use bakewell_core::tensor_map::TensorMapRequest;
use bakewell_core::{Buffer, LaunchConfig, Runtime, Stream};
use bakewell_cuda::CudaRuntime;
use bakewell_emulator::layout::tensor_map;
use bakewell_emulator::{Emulator, Launch, Module, Options, Target};

use crate::case::{Case, Place, UNWRITTEN};

/// Runs cases.
pub trait Engine {
    /// The results: result registers, one after the other, then the output buffer if the program has one.
    ///
    /// # Errors
    /// The program is refused or fails.
    fn run(&self, case: &Case) -> Result<Vec<u8>>;
}

/// The emulator of sm_90.
#[derive(Debug)]
pub struct Emulated;

/// A GPU of the same architecture.
#[derive(Debug)]
pub struct Device(pub Arc<CudaRuntime>);

fn request(case: &Case, data: u64, dump: u64) -> Option<TensorMapRequest> {
    let (place, map) = case.map.as_ref()?;
    Some(TensorMapRequest { address: if *place == Place::Data { data } else { dump }, ..map.clone() })
}

/// The parameter block: addresses of operands, results, data and output buffer, then the tensor map.
fn params(addresses: [u64; 4], map: [u8; 128]) -> Vec<u8> {
    let mut params: Vec<u8> = addresses.iter().flat_map(|a| a.to_le_bytes()).collect();
    params.resize(64, 0);
    params.extend(map);
    params
}

/// The output buffer counts where a program has more than the least one.
fn joined(case: &Case, mut out: Vec<u8>, dump: Vec<u8>) -> Vec<u8> {
    if case.outs.is_empty() {
        return dump;
    }
    if case.dump > 16 {
        out.extend(dump);
    }
    out
}

impl Engine for Emulated {
    fn run(&self, case: &Case) -> Result<Vec<u8>> {
        let target = Target::Sm90;
        let mut options = Options::new(target);
        options.workers = 1;
        let device = Emulator::new(target, options);
        let loaded = device.load(&Module::parse(&case.text())?)?;
        let new = |name: &str, bytes: &[u8]| -> Result<u64> {
            let address = device.allocate(name, bytes.len() as u64)?;
            device.write(address, bytes)?;
            Ok(address)
        };
        let input = new("in", &case.input_bytes())?;
        let out = new("out", &vec![UNWRITTEN; case.output_len()])?;
        let (data, dump) = (new("data", &case.data)?, new("dump", &vec![UNWRITTEN; case.dump])?);
        let map = match request(case, data, dump) {
            Some(request) => {
                request.validate("map", bakewell_core::Arch::Sm90)?;
                tensor_map::encode(&request).to_bytes()
            }
            None => [0; 128],
        };
        let launch = Launch { cluster: Some([case.cluster, 1, 1]), ..Launch::linear(case.ctas, case.threads) };
        let report = device.launch(&loaded, "k", launch, &params([input, out, data, dump], map))?;
        if let Some(finding) = report.findings.iter().find(|finding| !finding.warning) {
            bail!("{finding}");
        }
        Ok(joined(case, device.read(out, case.output_len())?, device.read(dump, case.dump)?))
    }
}

impl Engine for Device {
    fn run(&self, case: &Case) -> Result<Vec<u8>> {
        ensure!(self.0.arch() == bakewell_core::Arch::Sm90, "the cases are written for sm90");
        let kernel = self.0.load_source(&case.text(), "k")?;
        let input = Buffer::from_bytes(self.0.clone(), &case.input_bytes())?;
        let out = Buffer::from_bytes(self.0.clone(), &vec![UNWRITTEN; case.output_len()])?;
        let data = Buffer::from_bytes(self.0.clone(), &case.data)?;
        let dump = Buffer::from_bytes(self.0.clone(), &vec![UNWRITTEN; case.dump])?;
        let map = match request(case, data.address(), dump.address()) {
            Some(request) => self.0.encode_tensor_map("map", &request)?.to_bytes(),
            None => [0; 128],
        };
        let config = LaunchConfig {
            grid: [case.ctas, 1, 1],
            cluster: [case.cluster, 1, 1],
            block: case.threads,
            dynamic_shared_bytes: 0,
            programmatic_serialization: false,
        };
        let params = params([&input, &out, &data, &dump].map(Buffer::address), map);
        self.0.launch(kernel, &config, &params, Stream::DEFAULT)?;
        self.0.synchronize(Stream::DEFAULT)?;
        Ok(joined(case, out.read()?, dump.read()?))
    }
}
