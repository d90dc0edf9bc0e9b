//! The GEMM kernel on tensor memory alone, fed the reference's activation.

use std::cell::OnceCell;

use bakewell::architectures;
use bakewell::nvfp4_pre_attention::{Nvfp4PreAttention, OutputFormat};
use bakewell::schedule::nvfp4_pre_attention::tcgen05::Tcgen05;
use bakewell::{Arch, Device};
use bakewell_conformance::nvfp4_pre_attention::tcgen05::{run, serves};
use bakewell_conformance::nvfp4_pre_attention::{Expected, Inputs, judge};
use bakewell_conformance::staged::Outputs;
use bakewell_reference::nvfp4_pre_attention::Stages;
use bakewell_tests::emulated::{self, ORDERS, every_order_gives_the_same};
use bakewell_tests::on_every_engine;
use bakewell_tests::runs::equal;

use super::goldens;

const TENSOR_MEMORY: [Arch; 4] = [Arch::Sm100, Arch::Sm103, Arch::Sm107, Arch::Sm110];

fn schedules(arch: Arch) -> &'static [Tcgen05] {
    architectures::find(arch).unwrap().architecture.nvfp4_pre_attention.tcgen05.schedules
}

fn serving(arch: Arch, problem: &Nvfp4PreAttention) -> Vec<&'static Tcgen05> {
    schedules(arch).iter().filter(|schedule| serves(schedule, problem)).collect()
}

/// Runs a schedule and compares with the reference.
fn checked(device: &Device, schedule: &Tcgen05, inputs: &Inputs, stages: &Stages) -> Result<Outputs, String> {
    let what = |error: &dyn std::fmt::Display| format!("{device} {}: {error}", schedule.name);
    let outputs = run(device, schedule, inputs, stages).map_err(|error| what(&error))?;
    let judgement = judge(inputs, &outputs, &Expected::of(stages.clone())).map_err(|error| what(&error))?;
    judgement.failure.map_or(Ok(outputs), |failure| Err(what(&failure)))
}

fn generated(problem: Nvfp4PreAttention, seed: u64) -> (Inputs, Stages) {
    let inputs = Inputs::generate(&Nvfp4PreAttention { table_rows: 3, ..problem }, seed);
    let stages = inputs.stages().unwrap();
    (inputs, stages)
}

#[test]
fn every_schedule_meets_the_goldens_that_it_serves() {
    let goldens = goldens();
    on_every_engine(|device| {
        let Some(arch) = device.arch() else { return Ok(()) };
        for (golden, inputs) in &goldens {
            let stages = inputs.stages().unwrap();
            for schedule in serving(arch, &inputs.problem) {
                checked(device, schedule, inputs, &stages).map_err(|error| format!("{}: {error}", golden.name))?;
            }
        }
        Ok(())
    });
}

/// Epilogues of one role and of two, a thread and two threads per row, products of 64 and of 96, scales in the ring of
/// the matrices and in their own: the same bytes, also with other orders of warps and of asynchronous work.
#[test]
fn all_schedules_give_equal_bytes_under_every_seed() {
    let problem =
        Nvfp4PreAttention { tokens: 140, hidden: 1536, heads: 2, debug: true, ..Nvfp4PreAttention::default() };
    for out_format in [OutputFormat::Nvfp4, OutputFormat::E4m3] {
        let (inputs, stages) = generated(Nvfp4PreAttention { out_format, ..problem.clone() }, 3);
        let schedules = serving(Arch::Sm103, &inputs.problem);
        let names: Vec<&str> = schedules.iter().map(|schedule| schedule.name).collect();
        let all = ["gemm_rows", "gemm_sets", "gemm_sets_k96", "gemm_sets_k96_separate", "gemm_roles"];
        assert_eq!(names, if out_format == OutputFormat::Nvfp4 { &all[..] } else { &all[..3] });
        let first = OnceCell::new();
        for schedule in schedules {
            every_order_gives_the_same(schedule.name, Arch::Sm103, 2, &ORDERS[..3], |device| {
                let outputs = checked(device, schedule, &inputs, &stages)?;
                let first = first.get_or_init(|| outputs.clone());
                equal("another schedule", first, &outputs)?;
                Ok(outputs)
            });
        }
    }
}

/// Partial tiles of tokens, an odd number of tiles, tails of K, every rotation, every number of destinations.
#[test]
fn generated_shapes_agree_with_the_reference() {
    let base = Nvfp4PreAttention { hidden: 256, heads: 2, debug: false, ..Nvfp4PreAttention::default() };
    let shapes = [
        (Arch::Sm100, Nvfp4PreAttention { tokens: 1, rope_dim: 16, ..base.clone() }),
        (Arch::Sm100, Nvfp4PreAttention { tokens: 129, heads: 4, destinations: 4, ..base.clone() }),
        (Arch::Sm100, Nvfp4PreAttention { tokens: 7, hidden: 448, rope_dim: 48, ..base.clone() }),
        (Arch::Sm100, Nvfp4PreAttention { tokens: 257, rope_dim: 112, destinations: 2, ..base.clone() }),
        (Arch::Sm103, Nvfp4PreAttention { tokens: 129, heads: 8, destinations: 8, ..base.clone() }),
        (Arch::Sm103, Nvfp4PreAttention { tokens: 16, hidden: 320, ..base.clone() }),
        (Arch::Sm103, Nvfp4PreAttention { tokens: 15, hidden: 768, destinations: 2, ..base.clone() }),
        (Arch::Sm107, Nvfp4PreAttention { tokens: 8, rope_dim: 80, ..base.clone() }),
        (Arch::Sm110, Nvfp4PreAttention { tokens: 2, hidden: 512, rope_dim: 128, ..base.clone() }),
    ];
    for (arch, problem) in shapes {
        let device = Device::emulated(arch).unwrap();
        for out_format in [OutputFormat::Nvfp4, OutputFormat::E4m3] {
            let (inputs, stages) = generated(Nvfp4PreAttention { out_format, ..problem.clone() }, 7);
            for schedule in serving(arch, &inputs.problem) {
                checked(&device, schedule, &inputs, &stages).unwrap_or_else(|error| panic!("{error}: {problem:?}"));
            }
        }
    }
}

/// One cluster takes over all tiles but its own.
#[test]
fn few_sms_take_over_all_tiles() {
    let problem =
        Nvfp4PreAttention { tokens: 700, hidden: 256, heads: 4, destinations: 2, ..Nvfp4PreAttention::default() };
    let (inputs, stages) = generated(problem, 11);
    for arch in TENSOR_MEMORY {
        let device = emulated::device(arch, |options| (options.seed, options.sm_count) = (5, 2));
        let schedule = serving(arch, &inputs.problem)[1];
        checked(&device, schedule, &inputs, &stages).unwrap();
    }
}
