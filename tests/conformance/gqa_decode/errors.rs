//! Every way to break the contract, one by one: the typed error, the argument's name, and nothing loaded or launched.

use bakewell::error::Property;
use bakewell::gqa_decode::GqaDecode;
use bakewell::{Arch, DType, Device, Error};
use bakewell_conformance::HostTensor;
use bakewell_conformance::gqa_decode::{Distribution, Inputs};
use bakewell_tests::contract::{Contract, Tensors, recorder};

/// A problem that needs every tensor and a workspace.
fn contract() -> Contract<Inputs> {
    let problem = GqaDecode { capacity: 96, num_splits: Some(16), lse: true, ..GqaDecode::default() };
    let inputs = Inputs::generate(&problem, &[96, 50], Distribution::Normal, 3).unwrap();
    Contract { inputs, arch: Arch::Sm90 }
}

fn on_the_reference() -> Tensors<Inputs> {
    Tensors::new(Device::reference().unwrap(), &contract().inputs).unwrap()
}

#[test]
fn malformed_tensors() {
    contract().every_tensor_is_checked();
}

#[test]
fn outputs_that_overlap() {
    contract().outputs_overlap_nothing();
    // The last 16 bytes of the values.
    contract().refuses("out", Property::Alias, |t, views| {
        let end =
            t.buffer("kv").strided_view(2 * 2 * 8 * 96 * 128 * 2 - 16, DType::F16, &[2, 32, 128], &[4096, 128, 1]);
        views.put("out", end.unwrap());
    });
}

#[test]
fn workspaces() {
    contract().the_workspace_is_checked();
}

#[test]
fn presence_of_the_log_sum_exp() {
    let contract = contract();
    contract.presence_is_checked("lse", GqaDecode { lse: false, ..contract.inputs.problem.clone() });
}

#[test]
fn non_contiguous() {
    let refused = |name: &'static str, dtype, shape: &[u64], strides: &[u64]| {
        contract().refuses(name, Property::Layout, |t, views| {
            views.put(name, t.buffer(name).strided_view(0, dtype, shape, strides).unwrap());
        });
    };
    refused("q", DType::F16, &[2, 32, 128], &[33 * 128, 128, 1]);
    refused("out", DType::F16, &[2, 32, 128], &[33 * 128, 128, 1]);
    refused("kv", DType::F16, &[2, 2, 8, 96, 128], &[2 * 8 * 96 * 128, 8 * 96 * 128, 128, 8 * 128, 1]);
    refused("sequence_lengths", DType::I32, &[2], &[2]);
    refused("lse", DType::F32, &[2, 32], &[1, 2]);
}

/// Aligned to elements is not enough: kernels move vectors of 16 bytes.
#[test]
fn half_a_vector() {
    for name in ["q", "out"] {
        contract().refuses(name, Property::Alignment, |t, views| {
            views.put(name, t.buffer(name).strided_view(8, DType::F16, &[2, 32, 128], &[32 * 128, 128, 1]).unwrap());
        });
    }
}

/// Inputs may share memory with each other: nobody writes them.
#[test]
fn inputs_that_overlap_are_legal() {
    let tensors = on_the_reference();
    let mut views = tensors.views();
    views.put("q", tensors.buffer("kv").view(DType::F16, &[2, 32, 128]).unwrap());
    tensors.bind(&views).unwrap();
}

#[test]
fn problems_that_break_the_contract() {
    let default = GqaDecode::default;
    let refused = |argument, problem| contract().refuses_plan(argument, Property::Value, problem);
    contract().refuses_plan("dtype", Property::DType, GqaDecode { dtype: DType::F32, ..default() });
    refused("capacity", GqaDecode { capacity: 0, ..default() });
    for q_scale in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        refused("q_scale", GqaDecode { q_scale, ..default() });
    }
    for splits in [0, 3, 5, 7, 9, 12, 17, 32, u32::MAX] {
        refused("num_splits", GqaDecode { num_splits: Some(splits), ..default() });
    }
    refused("query_heads", GqaDecode { query_heads: 30, ..default() });
    refused("query_heads", GqaDecode { query_heads: 0, ..default() });
    refused("kv_heads", GqaDecode { kv_heads: 0, ..default() });
    refused("head_dim", GqaDecode { head_dim: 0, ..default() });
}

#[test]
fn sizes_past_the_address_arithmetic() {
    let default = GqaDecode::default;
    let refused = |argument, problem| contract().refuses_plan(argument, Property::Size, problem);
    refused("kv", GqaDecode { capacity: 1 << 50, batch: 1 << 10, ..default() });
    refused("kv", GqaDecode { capacity: u64::MAX, ..default() });
    refused("q", GqaDecode { batch: u64::MAX, ..default() });
}

/// More than a grid can hold, though the addresses fit.
#[test]
fn sizes_past_the_grid() {
    let (device, _) = recorder(Arch::Sm110);
    let batch = GqaDecode { batch: 1 << 31, capacity: 1, ..GqaDecode::default() };
    let heads = GqaDecode { kv_heads: 65_536, query_heads: 4 * 65_536, ..GqaDecode::default() };
    for (argument, problem) in [("batch", batch), ("kv_heads", heads)] {
        match device.plan(&problem) {
            Err(Error::Argument { argument: named, property: Property::Size, .. }) => assert_eq!(named, argument),
            other => panic!("{other:?}"),
        }
    }
}

/// The reference reads the lengths when it runs, and then says which is wrong.
#[test]
fn lengths_outside_the_capacity_on_the_reference() {
    let tensors = on_the_reference();
    for lengths in [[0i32, 97], [-1, 0]] {
        tensors.buffer("sequence_lengths").write(0, &HostTensor::of_i32(&[2], &lengths).bytes).unwrap();
        let error = tensors.bind(&tensors.views()).unwrap().launch(bakewell::Stream::DEFAULT).unwrap_err();
        assert!(matches!(error, Error::Argument { argument: "sequence_lengths", .. }), "{error}");
    }
}
