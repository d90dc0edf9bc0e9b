//! Tests on the recording driver: what is called, in which order, and what is left after a failure.

mod failures;
mod memory;
mod programs;
mod timing;

use std::sync::Arc;

use bakewell_core::program::{Artifact, Embedded, ProgramRecord, Resources, Sha256Hex};
use bakewell_core::schedule::Budgets;
use bakewell_core::{Arch, LaunchConfig, Operation, Program};

use crate::CudaRuntime;
use crate::mock::{FakeDevice, RecordingDriver};

const H200: FakeDevice = FakeDevice::new((9, 0), 132);

/// Two devices of one kind.
pub(crate) fn two_devices() -> Arc<RecordingDriver> {
    RecordingDriver::new(&[H200, H200])
}

/// The runtime of a device, its opening calls already taken from the record.
pub(crate) fn open(driver: &Arc<RecordingDriver>, ordinal: u32) -> Arc<CudaRuntime> {
    let runtime = CudaRuntime::with_driver(driver.clone(), ordinal).unwrap();
    driver.take_calls();
    runtime
}

/// A program whose cubin is `content`, with its digest, for the given dynamic shared memory.
fn program(content: &[u8], dynamic_shared_bytes: u32) -> Program {
    let artifact = |bytes: &[u8]| Artifact { sha256: Sha256Hex::of(bytes), bytes: bytes.len() as u64 };
    let record = ProgramRecord {
        operation: Operation::GqaDecode,
        variant: "fake".into(),
        entry: "fake_entry".into(),
        schedule: serde_json::Value::Null,
        budgets: Budgets { threads: 128, dynamic_shared_bytes, barrier_bytes: 0, tmem_columns: 0 },
        flags: Vec::new(),
        sources: Default::default(),
        closure: Sha256Hex::of(b"closure"),
        abi: Sha256Hex::of(b"abi"),
        ptx: artifact(b"ptx"),
        cubin: artifact(content),
        resources: Resources::default(),
    };
    let pack = |bytes: &[u8]| -> &'static [u8] {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest).leak()
    };
    let embedded =
        Embedded { operation: Operation::GqaDecode, variant: "fake", ptx: pack(b"ptx"), cubin: pack(content) };
    Program { arch: Arch::Sm90, record: Box::leak(Box::new(record)), embedded }
}

fn config() -> LaunchConfig {
    LaunchConfig {
        grid: [4, 1, 1],
        cluster: [1; 3],
        block: 128,
        dynamic_shared_bytes: 0,
        programmatic_serialization: false,
    }
}
