//! Schedules, SM counts, and orders of warps and of asynchronous work: equal bytes, no finding.

use bakewell::emulator::CompletionPolicy;
use bakewell::nvfp4_context::{Family, Nvfp4Context};
use bakewell::schedule::nvfp4_context::Nvfp4Context as Schedule;
use bakewell::{Arch, Device, architectures};
use bakewell_conformance::Outputs;
use bakewell_conformance::nvfp4_context::{Inputs, PAIRED, Spec};
use bakewell_tests::emulated::{ORDERS, device, every_order_gives_the_same};
use bakewell_tests::runs::{equal, outputs};

use super::{generated, goldens, mixed, pinned};

/// The architectures with tensor memory: one kernel source, one schedule each.
const TENSOR_MEMORY: [Arch; 4] = [Arch::Sm100, Arch::Sm103, Arch::Sm107, Arch::Sm110];

fn run(device: &Device, what: &str, inputs: &Inputs) -> Outputs {
    outputs(device, inputs).unwrap_or_else(|failure| panic!("{device}, {what}: {failure}"))
}

/// Rings of 2 and 8 packed tiles, late and early release of the rescale slots, both kinds of barrier initialisation,
/// rescale and dequantisation.
#[test]
fn all_schedules_of_tensor_memory_give_equal_bytes() {
    let devices = TENSOR_MEMORY.map(|arch| device(arch, |_| ()));
    let names: Vec<_> =
        devices.iter().map(|device| device.plan(&mixed_problem()).unwrap().decision().unwrap().schedule.name).collect();
    assert_eq!(names, ["paged_k2", "paged_k8", "paged_k8", "paged_k8"]);
    for golden in goldens() {
        for splits in [1, 2] {
            let mut inputs = golden.inputs.clone();
            inputs.problem.num_splits = Some(splits);
            inputs.problem.lse = true;
            let first = run(&devices[0], &golden.name, &inputs);
            for other in &devices[1..] {
                let what = format!("{} on {other}, {splits} splits", golden.name);
                equal(&what, &first, &run(other, &golden.name, &inputs)).unwrap();
            }
        }
    }
}

/// Rings of 2 and of 8 packed tiles, and nothing else that differs: the goldens, and requests of nine and five blocks,
/// so that both wrap.
#[test]
fn the_depth_of_the_ring_changes_no_bit() {
    let schedules = architectures::find(Arch::Sm103).unwrap().architecture.nvfp4_context.schedules;
    let named = |name: &str, pack| schedules.iter().find(|s| s.name == name && s.pack == pack && !s.split).unwrap();
    for pack in [1, 8] {
        let (deep, shallow) = (named("paged_k8", pack), named("paged_k2", pack));
        assert_eq!((deep.packed_stages, shallow.packed_stages), (8, 2));
        assert_eq!(Schedule { name: deep.name, packed_stages: deep.packed_stages, ..*shallow }, *deep);
    }
    let device = device(Arch::Sm103, |_| ());
    let pinned = |inputs: &Inputs, name: &str| {
        let schedule = Some(name.to_owned());
        let problem = Nvfp4Context { schedule, num_splits: Some(1), lse: true, ..inputs.problem.clone() };
        let chosen = device.plan(&problem).unwrap().decision().unwrap().schedule;
        assert_eq!(chosen.name, name);
        (chosen.pack, Inputs { problem, ..inputs.clone() })
    };
    let long = Spec { q_heads: 8, kv_heads: 1, q_lens: vec![3, 1], kv_lens: vec![1100, 600], sinks: true };
    let goldens = goldens().into_iter().map(|golden| (golden.name, golden.inputs));
    let mut compared = Vec::new();
    for (name, inputs) in goldens.chain([("long".to_owned(), generated(&long, None))]) {
        let ((pack, deep), (other, shallow)) = (pinned(&inputs, "paged_k8"), pinned(&inputs, "paged_k2"));
        if pack == other {
            equal(&name, &run(&device, &name, &deep), &run(&device, &name, &shallow)).unwrap();
            compared.push(name);
        }
    }
    let wanted =
        ["onetile_1x1x16_g8", "peaky_logits_g8", "poison_unused_g8", "prefix_share_g8", "growing_max_g1", "long"];
    assert!(wanted.iter().all(|name| compared.iter().any(|compared| compared == name)), "{compared:?}");
}

/// The shallow ring under other orders of warps and of copies.
#[test]
fn every_seed_gives_the_same_bytes_with_a_shallow_ring() {
    let spec = Spec { q_heads: 8, kv_heads: 1, q_lens: vec![3, 1], kv_lens: vec![300, 130], sinks: false };
    let mut inputs = generated(&spec, Some(1));
    inputs.problem.schedule = Some("paged_k2".to_owned());
    every_order_gives_the_same("shallow ring", Arch::Sm103, 1, &ORDERS[..4], |device| outputs(device, &inputs));
}

fn mixed_problem() -> Nvfp4Context {
    generated(&mixed(), None).problem
}

/// One CTA walks all tiles, three share them forth and back, or each has one.
#[test]
fn the_number_of_sms_does_not_matter() {
    let spec = Spec { q_heads: 8, kv_heads: 2, q_lens: vec![70, 1], kv_lens: vec![200, 150], sinks: false };
    for arch in Arch::ALL {
        let every = device(arch, |_| ());
        let ways = [(Family::Paged, None), (Family::Paged, Some(PAIRED)), (Family::Expanded, None)]
            .into_iter()
            .flat_map(|(family, schedule)| [1, 2].map(|splits| (family, schedule, splits)));
        for (family, schedule, splits) in ways {
            let mut inputs = pinned(&generated(&spec, Some(splits)), family);
            inputs.problem.schedule = schedule.map(str::to_owned);
            let Ok(plan) = every.plan(&inputs.problem) else {
                assert!((family == Family::Expanded || schedule.is_some()) && arch != Arch::Sm90);
                continue;
            };
            let cluster = plan.decision().unwrap().schedule.cluster();
            let all = run(&every, "all SMs", &inputs);
            for sm_count in [cluster, 3] {
                let few = device(arch, |options| options.sm_count = sm_count);
                let plan = few.plan(&inputs.problem).unwrap();
                assert_eq!(plan.decision().unwrap().launch.unwrap().grid[0], sm_count / cluster);
                equal(&format!("{arch}, {sm_count} SMs"), &all, &run(&few, "few SMs", &inputs)).unwrap();
            }
        }
    }
}

/// Two tiles of three and two blocks on one CTA: every ring wraps, and every role passes from one tile to the next.
#[test]
fn every_seed_gives_the_same_bytes() {
    let spec = Spec { q_heads: 4, kv_heads: 1, q_lens: vec![3, 1], kv_lens: vec![300, 130], sinks: false };
    for arch in Arch::ALL {
        for (way, inputs) in generated(&spec, None).ways(&device(arch, |_| ())) {
            every_order_gives_the_same(way, arch, 1, &ORDERS[..4], |device| outputs(device, &inputs));
        }
    }
}

/// Eight random orders for a golden of two requests, of one block and of two.
#[test]
fn eight_seeds_of_a_golden_give_the_same_bytes() {
    let golden = goldens().into_iter().find(|golden| golden.name == "tail_2x3x129_g4").expect("the golden");
    let orders: Vec<_> = (10..18).map(|seed| (seed, CompletionPolicy::Random)).collect();
    for arch in TENSOR_MEMORY {
        for (way, inputs) in golden.inputs.ways(&device(arch, |_| ())) {
            every_order_gives_the_same(way, arch, 2, &orders, |device| outputs(device, &inputs));
        }
    }
}
