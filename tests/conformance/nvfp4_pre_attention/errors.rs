//! Every way to break the contract, one by one: the typed error, the argument's name, and nothing loaded or launched.

use bakewell::error::Property;
use bakewell::nvfp4_pre_attention::{Nvfp4PreAttention, OutputFormat, decide};
use bakewell::{Arch, Architecture, DType, Device, Error};
use bakewell_conformance::call::TensorSpec;
use bakewell_conformance::nvfp4_pre_attention::Inputs;
use bakewell_conformance::{CallInputs, HostTensor, Staged};
use bakewell_tests::contract::{Contract, Tensors, contiguous, recorder};
use bakewell_tests::recording::Call;

use super::small;

fn nvfp4() -> Nvfp4PreAttention {
    small(5, 2)
}

fn e4m3() -> Nvfp4PreAttention {
    Nvfp4PreAttention { out_format: OutputFormat::E4m3, ..nvfp4() }
}

/// The contract of a problem, on the architecture that needs a workspace.
fn contract(problem: &Nvfp4PreAttention) -> Contract<Inputs> {
    Contract { inputs: Inputs::generate(problem, 1), arch: Arch::Sm90 }
}

#[test]
fn malformed_tensors() {
    contract(&nvfp4()).every_tensor_is_checked();
    contract(&e4m3()).every_tensor_is_checked();
}

#[test]
fn outputs_that_overlap() {
    contract(&nvfp4()).outputs_overlap_nothing();
}

#[test]
fn workspaces() {
    contract(&nvfp4()).the_workspace_is_checked();
}

/// Each tensor where it is aligned to half of what it must be, and to just that.
#[test]
fn alignments() {
    for contract in [contract(&nvfp4()), contract(&e4m3())] {
        for TensorSpec { name, dtype, shape, .. } in contract.inputs.specs() {
            let needed = match name {
                "out_sf" => 8,
                "adaln_index" | "x_global_scale" | "w_global_scale" | "out_global_scale" | "qkv_scales" => 4,
                _ => 16,
            };
            let strides = contiguous(&shape);
            contract.refuses(name, Property::Alignment, |t, views| {
                views.put(name, t.buffer(name).strided_view(needed / 2, dtype, &shape, &strides).unwrap());
            });
            let tensors = Tensors::new(Device::reference().unwrap(), &contract.inputs).unwrap();
            if let Some(tensor) = contract.inputs.tensor(name) {
                tensors.buffer(name).write(needed, &tensor.bytes).unwrap();
            }
            let mut views = tensors.views();
            views.put(name, tensors.buffer(name).strided_view(needed, dtype, &shape, &strides).unwrap());
            tensors.bind(&views).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

#[test]
fn gaps_between_elements() {
    let contract = contract(&nvfp4());
    // Of a dimension of one element no stride is wrong.
    for TensorSpec { name, dtype, shape, .. } in contract.inputs.specs().into_iter().filter(|spec| spec.shape != [1]) {
        let strides: Vec<u64> = contiguous(&shape).iter().map(|stride| 2 * stride).collect();
        contract.refuses(name, Property::Layout, |t, views| {
            views.put(name, t.buffer(name).strided_view(0, dtype, &shape, &strides).unwrap());
        });
    }
}

/// A tensor that the format needs is missing, or one is there that it has no use for.
#[test]
fn tensors_of_the_other_format() {
    for (problem, name) in [(nvfp4(), "out_global_scale"), (nvfp4(), "out_sf"), (e4m3(), "qkv_scales")] {
        contract(&problem).refuses(name, Property::Presence, |_, views| views.remove(name));
    }
    for (problem, name, dtype, shape) in [
        (nvfp4(), "qkv_scales", DType::F32, &[3][..]),
        (e4m3(), "out_global_scale", DType::F32, &[1]),
        (e4m3(), "out_sf", DType::U8, &[2, 1024]),
    ] {
        contract(&problem).refuses(name, Property::Presence, |t, views| {
            views.put(name, t.buffer("qkv_weight_q").view(dtype, shape).unwrap());
        });
    }
}

/// The three come together, as planned, or not at all.
#[test]
fn some_of_the_debug_tensors() {
    let without = Nvfp4PreAttention { debug: false, ..nvfp4() };
    for (name, shape) in
        [("debug_adaln_bf16", &[5, 320][..]), ("debug_q_bf16", &[5, 4, 128]), ("debug_k_bf16", &[5, 4, 128])]
    {
        contract(&nvfp4()).refuses(name, Property::Presence, |_, views| views.remove(name));
        contract(&without).refuses(name, Property::Presence, |t, views| {
            views.put(name, t.buffer("qkv_weight_q").view(DType::Bf16, shape).unwrap());
        });
    }
}

/// Scale bytes come as bytes or as E4M3, and E4M3 results as bytes.
#[test]
fn both_spellings_of_a_type_are_legal() {
    for problem in [nvfp4(), e4m3()] {
        let inputs = Inputs::generate(&problem, 1);
        let tensors = Tensors::new(Device::reference().unwrap(), &inputs).unwrap();
        let mut views = tensors.views();
        for TensorSpec { name, dtype, shape, .. } in inputs.specs() {
            if name.ends_with("_sf") || (name == "out_q" && dtype == DType::E4m3) {
                let other = if dtype == DType::U8 { DType::E4m3 } else { DType::U8 };
                views.put(name, tensors.buffer(name).view(other, &shape).unwrap());
            }
        }
        tensors.bind(&views).unwrap();
    }
}

/// Scales are read when binding; a bad one is named, and nothing has been loaded or launched.
#[test]
fn scales_that_are_not_positive_and_finite() {
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let one = HostTensor::of(&[1], &[bad]);
        refused_value("x_global_scale", &Inputs { x_global_scale: one.clone(), ..Inputs::generate(&nvfp4(), 1) });
        refused_value("w_global_scale", &Inputs { w_global_scale: one.clone(), ..Inputs::generate(&nvfp4(), 1) });
        refused_value("out_global_scale", &Inputs { out_global_scale: Some(one), ..Inputs::generate(&nvfp4(), 1) });
        let three = Some(HostTensor::of(&[3], &[1.0, 1.0, bad]));
        refused_value("qkv_scales", &Inputs { qkv_scales: three, ..Inputs::generate(&e4m3(), 1) });
    }
    // Each is fine; the reciprocal of their product is 0 in f32.
    let large = HostTensor::of(&[1], &[1e30f32]);
    let inputs = Inputs { x_global_scale: large.clone(), w_global_scale: large, ..Inputs::generate(&nvfp4(), 1) };
    refused_value("w_global_scale", &inputs);
}

fn refused_value(name: &str, inputs: &Inputs) {
    let (device, recording) = recorder(Arch::Sm90);
    for device in [Device::reference().unwrap(), device] {
        let staged = Staged::new(&device, inputs).unwrap();
        recording.take_calls();
        match staged.bind() {
            Err(Error::Argument { argument, property: Property::Value, .. }) => assert_eq!(argument, name),
            other => panic!("{device}, {name}: {other:?}"),
        }
        assert!(recording.take_calls().iter().all(|call| matches!(call, Call::Read(..))));
    }
}

#[test]
fn problems_outside_the_contract() {
    let base = Nvfp4PreAttention::default;
    let contract = contract(&nvfp4());
    let refused = |argument, problem| contract.refuses_plan(argument, Property::Value, problem);
    for destinations in [0, 3, 5, 16] {
        refused("destinations", Nvfp4PreAttention { destinations, heads: 240, ..base() });
    }
    refused("destinations", Nvfp4PreAttention { destinations: 8, heads: 12, ..base() });
    for heads in [0, 1, 57, 1 << 23] {
        refused("heads", Nvfp4PreAttention { heads, ..base() });
    }
    for hidden in [0, 64, 192, 300, 5380, (1 << 24) + 64] {
        refused("hidden", Nvfp4PreAttention { hidden, ..base() });
    }
    for head_dim in [0, 64, 256] {
        refused("head_dim", Nvfp4PreAttention { head_dim, ..base() });
    }
    for rope_dim in [0, 8, 24, 144] {
        refused("rope_dim", Nvfp4PreAttention { rope_dim, ..base() });
    }
    for table_rows in [0, 1 << 31] {
        refused("table_rows", Nvfp4PreAttention { table_rows, ..base() });
    }
    for eps in [0.0, -1e-5, f32::NAN, f32::INFINITY] {
        refused("eps", Nvfp4PreAttention { eps, ..base() });
    }
    for tokens in [1_597_830, 1 << 40, u64::MAX] {
        contract.refuses_plan("tokens", Property::Size, Nvfp4PreAttention { tokens, ..base() });
    }
    let unknown = serde_json::from_str::<Nvfp4PreAttention>(r#"{"out_format": "fp16"}"#).unwrap_err();
    assert!(unknown.to_string().contains("nvfp4"), "{unknown}");
    assert!(serde_json::from_str::<Nvfp4PreAttention>(r#"{"destinations": true}"#).is_err());
}

#[test]
fn devices_without_what_it_needs() {
    static NOTHING: Architecture = Architecture::empty(Arch::Sm100);
    let error = decide(&nvfp4(), &NOTHING, 148).unwrap_err();
    assert!(matches!(error, Error::NoProgram { arch: Arch::Sm100, .. }), "{error}");
    let error = decide(&nvfp4(), &NOTHING, 0).unwrap_err();
    assert!(matches!(error, Error::Argument { argument: "sm_count", .. }), "{error}");
    // The clusters of the Hopper GEMM need two SMs.
    let hopper = bakewell::architectures::find(Arch::Sm90).unwrap().architecture;
    let error = decide(&nvfp4(), hopper, 1).unwrap_err();
    assert!(matches!(error, Error::Argument { argument: "sm_count", .. }), "{error}");
}
