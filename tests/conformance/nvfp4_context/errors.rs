//! Every way to break the contract, one by one: the typed error, the argument's name, and nothing loaded or launched.

use bakewell::error::Property;
use bakewell::nvfp4_context::decide::decide;
use bakewell::nvfp4_context::{CacheLayout, Nvfp4Context, Nvfp4ContextArgs, Scale};
use bakewell::{Arch, Architecture, DType, Device, Error};
use bakewell_conformance::HostTensor;
use bakewell_conformance::nvfp4_context::{Inputs, ScaleOrigin, Spec};
use bakewell_tests::contract::{Contract, Tensors, recorder};

/// A problem that needs every tensor and a workspace.
fn contract() -> Contract<Inputs> {
    let spec = Spec { q_heads: 8, kv_heads: 2, q_lens: vec![4, 2], kv_lens: vec![140, 16], sinks: true };
    let mut inputs = Inputs::generate(&spec, 3);
    inputs.problem = Nvfp4Context { num_splits: Some(2), lse: true, ..inputs.problem };
    Contract { inputs, arch: Arch::Sm103 }
}

fn problem() -> Nvfp4Context {
    contract().inputs.problem
}

fn on_the_reference() -> Tensors<Inputs> {
    Tensors::new(Device::reference().unwrap(), &contract().inputs).unwrap()
}

fn refused_strides(name: &'static str, dtype: DType, shape: &[u64], strides: &[u64]) {
    contract().refuses(name, Property::Layout, |t, views| {
        views.put(name, t.buffer(name).strided_view(0, dtype, shape, strides).unwrap());
    });
}

/// Among them K and V of different shapes, a wrong page size and a wrong head dimension.
#[test]
fn malformed_tensors() {
    contract().every_tensor_is_checked();
}

/// With every tensor that there can be: factors on the device too.
#[test]
fn tensors_of_another_device() {
    let mut contract = contract();
    contract.inputs.scale_origin = ScaleOrigin::Device;
    contract.foreign_memory_is_refused();
}

#[test]
fn outputs_that_overlap() {
    contract().outputs_overlap_nothing();
}

#[test]
fn workspaces() {
    contract().the_workspace_is_checked();
}

#[test]
fn presence() {
    contract().presence_is_checked("lse", Nvfp4Context { lse: false, ..problem() });
    contract().presence_is_checked("sinks", Nvfp4Context { sinks: false, ..problem() });
}

/// E4M3 tensors come as bytes or as E4M3, page ids signed or not.
#[test]
fn both_spellings_of_a_type_are_legal() {
    let tensors = on_the_reference();
    let mut views = tensors.views();
    for (name, dtype, shape) in [
        ("q", DType::U8, problem().q_shape().as_slice()),
        ("k_scale", DType::U8, &problem().scale_shape()),
        ("out", DType::U8, &problem().q_shape()),
        ("page_table", DType::U32, &problem().page_table_shape()),
    ] {
        views.put(name, tensors.buffer(name).view(dtype, shape).unwrap());
    }
    tensors.bind(&views).unwrap();
}

#[test]
fn strides_that_the_copy_engine_cannot_take() {
    let (q, packed, scale) = (problem().q_shape(), problem().packed_shape(), problem().scale_shape());
    refused_strides("q", DType::U8, &q, &[1024, 1, 8]);
    refused_strides("q", DType::U8, &q, &[1032, 128, 1]);
    refused_strides("q", DType::U8, &q, &[0, 128, 1]);
    for name in ["k_packed", "v_packed"] {
        refused_strides(name, DType::U8, &packed, &[2048, 1024, 64, 2]);
        refused_strides(name, DType::U8, &packed, &[2048, 1024, 72, 1]);
        refused_strides(name, DType::U8, &packed, &[2056, 1024, 64, 1]);
    }
    for name in ["k_scale", "v_scale"] {
        // A page's scales with a gap between tokens: not one tile of 128 bytes.
        refused_strides(name, DType::U8, &scale, &[512, 256, 16, 1]);
        refused_strides(name, DType::U8, &scale, &[264, 128, 8, 1]);
    }
}

#[test]
fn non_contiguous() {
    refused_strides("out", DType::U8, &problem().q_shape(), &[1040, 128, 1]);
    let [batch, pages] = problem().page_table_shape();
    refused_strides("page_table", DType::I32, &[batch, pages], &[2 * pages, 2]);
    for (name, dtype, shape) in [
        ("seq_lens_kv", DType::I32, problem().seq_lens_kv_shape()),
        ("cu_seqlens_q", DType::I32, problem().cu_seqlens_q_shape()),
        ("sinks", DType::F32, problem().sinks_shape()),
    ] {
        refused_strides(name, dtype, &shape, &[2]);
    }
    refused_strides("lse", DType::F32, &problem().lse_shape(), &[1, 6]);
}

#[test]
fn factors() {
    fn args<'t>(t: &'t Tensors<Inputs>, bmm1_scale: Scale<'t>, bmm2_scale: Scale<'t>) -> Nvfp4ContextArgs<'t> {
        Nvfp4ContextArgs { bmm1_scale, bmm2_scale, ..t.args(&t.views()).unwrap() }
    }
    /// Some floats of the device as a factor.
    fn device<'t>(t: &'t Tensors<Inputs>, dtype: DType, shape: &[u64]) -> Scale<'t> {
        Scale::Device(t.buffer("sinks").view(dtype, shape).unwrap())
    }
    let (host, one) = (Scale::Host(0.5), &[1u64][..]);
    for bmm1 in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY] {
        contract().refuses_args("bmm1_scale", Property::Value, |t| args(t, Scale::Host(bmm1), host));
    }
    for bmm2 in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        contract().refuses_args("bmm2_scale", Property::Value, |t| args(t, host, Scale::Host(bmm2)));
    }
    contract().refuses_args("bmm2_scale", Property::Location, |t| args(t, device(t, DType::F32, one), host));
    contract().refuses_args("bmm2_scale", Property::Location, |t| args(t, host, device(t, DType::F32, one)));
    for (dtype, shape, property) in
        [(DType::F16, one, Property::DType), (DType::F32, &[2], Property::Shape), (DType::F32, &[1, 1], Property::Rank)]
    {
        contract()
            .refuses_args("bmm1_scale", property, |t| args(t, device(t, dtype, shape), device(t, DType::F32, one)));
    }
}

#[test]
fn what_no_program_does() {
    let refused = |argument, problem| contract().refuses_plan(argument, Property::Value, problem);
    refused("layout", Nvfp4Context { layout: CacheLayout::Nhd, ..problem() });
    refused("causal", Nvfp4Context { causal: false, ..problem() });
    refused("sliding_window", Nvfp4Context { sliding_window: Some(128), ..problem() });
    refused("page_tokens", Nvfp4Context { page_tokens: 32, ..problem() });
    refused("head_dim", Nvfp4Context { head_dim: 64, ..problem() });
    refused("q_heads", Nvfp4Context { q_heads: 7, ..problem() });
    refused("q_heads", Nvfp4Context { q_heads: 0, ..problem() });
    refused("kv_heads", Nvfp4Context { kv_heads: 0, ..problem() });
    for splits in [0, 65, u32::MAX] {
        refused("num_splits", Nvfp4Context { num_splits: Some(splits), ..problem() });
    }
    // 140 keys need 9 entries.
    refused("max_pages", Nvfp4Context { max_pages: 8, ..problem() });
}

#[test]
fn sizes_past_32_bits() {
    let big = 1 << 30;
    let refused = |argument, problem| contract().refuses_plan(argument, Property::Size, problem);
    refused("batch", Nvfp4Context { batch: big, ..problem() });
    refused("total_q", Nvfp4Context { total_q: u64::MAX, ..problem() });
    refused("q_heads", Nvfp4Context { q_heads: big, ..problem() });
    refused("num_pages", Nvfp4Context { num_pages: big, ..problem() });
    refused("max_q_len", Nvfp4Context { max_q_len: big, ..problem() });
    refused("max_kv_len", Nvfp4Context { max_kv_len: big, ..problem() });
    // The sizes fit, the number of tiles does not.
    let tiles = Nvfp4Context { batch: 1 << 20, max_q_len: 1 << 20, max_kv_len: 16, ..problem() };
    let (device, _) = recorder(Arch::Sm110);
    assert!(matches!(device.plan(&tiles), Err(Error::Argument { property: Property::Size, .. })));
}

#[cfg(feature = "emulator")]
#[test]
fn a_row_of_the_table_past_32_bits() {
    let tensors = Tensors::new(Device::emulated(Arch::Sm103).unwrap(), &contract().inputs).unwrap();
    let wide = tensors.device.buffer((1 << 33) + 40).unwrap();
    let mut views = tensors.views();
    views.put("page_table", wide.strided_view(0, DType::I32, &problem().page_table_shape(), &[1 << 31, 1]).unwrap());
    let error = tensors.bind(&views).unwrap_err();
    assert!(matches!(error, Error::Argument { argument: "page_table", property: Property::Size, .. }), "{error}");
}

#[test]
fn an_architecture_without_programs() {
    static NOTHING: Architecture = Architecture::empty(Arch::Sm100);
    let error = decide(&problem(), &NOTHING, 148).unwrap_err();
    assert!(matches!(error, Error::NoProgram { arch: Arch::Sm100, .. }), "{error}");
    let error = decide(&problem(), &NOTHING, 0).unwrap_err();
    assert!(matches!(error, Error::Argument { argument: "sm_count", .. }), "{error}");
}

/// The reference reads lengths, offsets and pages when it runs, and then says which is wrong.
#[test]
fn values_on_the_device_that_the_reference_refuses() {
    for (argument, lengths, offsets, page) in [
        ("seq_lens_kv", [-1, 16], [0, 4, 6], 0),
        ("seq_lens_kv", [161, 16], [0, 4, 6], 0),
        ("cu_seqlens_q", [16, 16], [0, 7, 6], 0),
        ("cu_seqlens_q", [16, 16], [1, 4, 6], 0),
        ("page_table", [16, 16], [0, 4, 6], problem().num_pages as i32),
        ("page_table", [16, 16], [0, 4, 6], -1),
    ] {
        let tensors = on_the_reference();
        let pages = vec![page; problem().page_table_shape().iter().product::<u64>() as usize];
        for (name, values) in
            [("seq_lens_kv", lengths.to_vec()), ("cu_seqlens_q", offsets.to_vec()), ("page_table", pages)]
        {
            tensors.buffer(name).write(0, &HostTensor::of_i32(&[values.len() as u64], &values).bytes).unwrap();
        }
        let error = tensors.bind(&tensors.views()).unwrap().launch(bakewell::Stream::DEFAULT).unwrap_err();
        assert!(matches!(error, Error::Argument { argument: named, .. } if named == argument), "{argument}: {error}");
    }
}
