//! `bakewell bench`: times of an operation beside the ceilings measured in the same run.
//!
//! | module | subject |
//! |---|---|
//! | [`clocks`] | the clocks: cold, rotating, and what a launch costs the host |
//! | [`ceilings`] | what this GPU can do at best |
//! | [`measure`](mod@measure) | one shape of any operation, checked and timed |
//! | [`gqa_decode`] | shapes, inputs and bytes of grouped-query decode attention |
//! | [`nvfp4_context`] | shapes, inputs and bytes of NVFP4 paged-context attention |
//! | [`nvfp4_pre_attention`] | shapes, inputs, bytes and operations of NVFP4 pre-attention |
//! | [`gdn`] | shapes, uses, bytes and operations of Gated DeltaNet training |
//! | [`cublas`] | the matrix product of cuBLAS, a peer where the machine has it |
//! | [`emulator`] | speed of the emulator on the host |
//! | [`record`] | the record of a run |

pub(crate) mod ceilings;
pub(crate) mod clocks;
#[allow(unsafe_code, reason = "calls a library that it opens")]
mod cublas;
mod emulator;
mod gdn;
mod gqa_decode;
mod measure;
mod nvfp4_context;
mod nvfp4_pre_attention;
pub(crate) mod record;

use std::path::PathBuf;

use anyhow::Context;
use bakewell::cuda::CudaRuntime;
use bakewell::{Device, DeviceName, Operation};
use clap::builder::{PossibleValuesParser, TypedValueParser};

use self::clocks::Clocks;
use self::measure::{Shape, measure};
use self::record::{Record, Row};
use crate::args::open;
use crate::report::Report;

/// Arguments of `bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Operation, or `emulator`: its own speed on this host.
    #[arg(value_parser = subjects())]
    subject: Subject,
    /// JSON file with a list of shapes: `[{"problem": {"batch": 4, "capacity": 256}, "lengths": [64, 127, 191, 256]}]`;
    /// a single length stands for every request. Without it: the shapes of the published tables.
    #[arg(long)]
    shapes: Option<PathBuf>,
    /// The GPU: cuda:N.
    #[arg(long, default_value = "cuda:0")]
    device: DeviceName,
    /// Where the record goes, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// What is timed.
#[derive(Clone, Copy)]
enum Subject {
    Operation(Operation),
    Emulator,
}

/// Reads a subject; help lists the names.
fn subjects() -> impl TypedValueParser<Value = Subject> {
    let names = Operation::ALL.map(Operation::name).into_iter().chain(["emulator"]);
    PossibleValuesParser::new(names).map(|name| Operation::parse(&name).map_or(Subject::Emulator, Subject::Operation))
}

pub(crate) fn main(args: &Args) -> anyhow::Result<Report> {
    let operation = match args.subject {
        Subject::Operation(operation) => operation,
        Subject::Emulator => {
            anyhow::ensure!(args.shapes.is_none(), "shapes: expected none for the emulator");
            return emulator::main(args.json.as_deref());
        }
    };
    let DeviceName::Cuda(ordinal) = args.device else {
        anyhow::bail!("device: expected cuda:N, since only a GPU has a clock to read, got {}", args.device);
    };
    let shapes = args
        .shapes
        .as_ref()
        .map(|path| {
            std::fs::read_to_string(path)
                .with_context(|| format!("shapes: expected a readable JSON file, got {}", path.display()))
        })
        .transpose()?;
    let device = open(args.device, 0)?.device;
    let runtime = CudaRuntime::open(ordinal)?;
    let bench = Clocks::new(&runtime)?;
    let mut record = Record::new(runtime.facts(), ceilings::measure(&bench)?);
    let shapes = shapes.as_deref();
    record.rows = match operation {
        Operation::GqaDecode => measure_all(&device, &bench, &gqa_decode::shapes(shapes)?)?,
        Operation::Nvfp4Context => measure_all(&device, &bench, &nvfp4_context::shapes(shapes)?)?,
        Operation::Nvfp4PreAttention => measure_all(&device, &bench, &nvfp4_pre_attention::shapes(shapes)?)?,
        Operation::Gdn => gdn::measure_all(&device, &bench, &gdn::shapes(shapes)?)?,
    };
    record::write(args.json.as_deref(), &record)?;
    Ok(Report::fine(record.render()))
}

fn measure_all<S: Shape>(device: &Device, clocks: &Clocks, shapes: &[S]) -> anyhow::Result<Vec<Row>> {
    let one = |shape: &S| {
        eprintln!("{shape}");
        measure(device, clocks, shape)
    };
    shapes.iter().map(one).collect()
}
