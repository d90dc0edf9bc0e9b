//! Every way to break the contract, one by one: the typed error, and the argument's name. On the reference and on a
//! device with programs, which nothing reaches before all is checked.

use bakewell::error::Property;
use bakewell::gdn::{Backward, BackwardArgs, Forward, ForwardArgs, Gdn, Input, Pins, Sequences};
use bakewell::{Arch, DType, Device, TensorView};
use bakewell_tests::contract::{apart, recorder};

use super::tensors::{Tensors, assert_refused, problem, refuse_tensors_elsewhere, refused_everywhere};

/// The problem is refused when it is planned.
#[track_caller]
fn refused_plan(argument: &str, property: Property, problem: Gdn) {
    refused_everywhere(argument, property, |device, _| device.plan(&Forward(problem.clone())));
    refused_everywhere(argument, property, |device, _| device.plan(&Backward(problem.clone())));
}

/// The tensors of a forward are refused.
#[track_caller]
fn refused<F>(argument: &str, property: Property, change: F)
where
    F: for<'t> Fn(&'t Tensors, &mut ForwardArgs<'t>),
{
    refused_everywhere(argument, property, |device, prepared| {
        let tensors = Tensors::on(device, &problem());
        let mut args = tensors.forward_args();
        assert!(tensors.forward.bind(args).is_ok());
        change(&tensors, &mut args);
        prepared();
        tensors.forward.bind(args).map(|_| ())
    });
}

/// The tensors of a backward are refused.
#[track_caller]
fn refused_backward<F>(argument: &str, property: Property, change: F)
where
    F: for<'t> Fn(&'t Tensors, &mut BackwardArgs<'t>),
{
    refused_everywhere(argument, property, |device, prepared| {
        let tensors = Tensors::on(device, &problem());
        let mut args = tensors.backward_args();
        assert!(tensors.backward.bind(args).is_ok());
        change(&tensors, &mut args);
        prepared();
        tensors.backward.bind(args).map(|_| ())
    });
}

#[test]
fn element_types() {
    refused("q", Property::DType, |t, args| args.q = t.view("q", DType::F16, &[1, 7, 2, 128]));
    refused("k", Property::DType, |t, args| args.k = t.view("k", DType::F16, &[1, 7, 2, 128]));
    refused("v", Property::DType, |t, args| args.v = t.view("v", DType::F32, &[1, 7, 4, 128]));
    refused("g", Property::DType, |t, args| args.g = Some(t.view("g", DType::Bf16, &[1, 7, 4])));
    refused("beta", Property::DType, |t, args| args.beta = t.view("beta", DType::Bf16, &[1, 7, 4]));
    refused("h0", Property::DType, |t, args| args.h0 = Some(t.view("h0", DType::Bf16, &[2, 4, 128, 128])));
    refused("o", Property::DType, |t, args| args.o = t.view("o", DType::F32, &[1, 7, 4, 128]));
    refused("cu_seqlens", Property::DType, |t, args| args.cu_seqlens = Some(t.view("cu_seqlens", DType::F32, &[3])));
    refused_backward("do", Property::DType, |t, args| args.d_o = t.view("do", DType::F32, &[1, 7, 4, 128]));
    refused_backward("dht", Property::DType, |t, args| {
        args.dht = Some(t.view("dht", DType::Bf16, &[2, 4, 128, 128]));
    });
    refused("ht", Property::DType, |t, args| args.ht = Some(t.view("ht", DType::Bf16, &[2, 4, 128, 128])));
    refused_backward("dq", Property::DType, |t, args| args.dq = t.view("dq", DType::F32, &[1, 7, 2, 128]));
    refused_backward("dk", Property::DType, |t, args| args.dk = t.view("dk", DType::F32, &[1, 7, 2, 128]));
    refused_backward("dv", Property::DType, |t, args| args.dv = t.view("dv", DType::F32, &[1, 7, 4, 128]));
    refused_backward("dg", Property::DType, |t, args| args.dg = Some(t.view("dg", DType::Bf16, &[1, 7, 4])));
    refused_backward("dbeta", Property::DType, |t, args| args.dbeta = t.view("dbeta", DType::Bf16, &[1, 7, 4]));
    refused_backward("dh0", Property::DType, |t, args| {
        args.dh0 = Some(t.view("dh0", DType::Bf16, &[2, 4, 128, 128]));
    });
    refused_plan("beta", Property::DType, Gdn { beta: DType::F16, ..problem() });
}

#[test]
fn shapes() {
    refused("q", Property::Rank, |t, args| args.q = t.view("q", DType::Bf16, &[7, 2, 128]));
    refused("q", Property::Shape, |t, args| args.q = t.view("q", DType::Bf16, &[1, 7, 2, 64]));
    refused("k", Property::Shape, |t, args| args.k = t.view("k", DType::Bf16, &[1, 7, 4, 128]));
    refused("k", Property::Rank, |t, args| args.k = t.view("k", DType::Bf16, &[7, 2, 128]));
    // Another batch, other tokens, other heads, another dimension.
    for shape in [[2, 7, 4, 128], [1, 6, 4, 128], [1, 7, 2, 128], [1, 7, 4, 64]] {
        refused("v", Property::Shape, move |t, args| args.v = t.view("v", DType::Bf16, &shape));
    }
    refused("v", Property::Rank, |t, args| args.v = t.view("v", DType::Bf16, &[7, 4, 128]));
    refused("g", Property::Rank, |t, args| args.g = Some(t.view("g", DType::F32, &[7, 4])));
    refused("beta", Property::Rank, |t, args| args.beta = t.view("beta", DType::F32, &[7, 4]));
    refused("g", Property::Shape, |t, args| args.g = Some(t.view("g", DType::F32, &[1, 7, 2])));
    refused("beta", Property::Shape, |t, args| args.beta = t.view("beta", DType::F32, &[1, 7, 2]));
    refused("h0", Property::Shape, |t, args| args.h0 = Some(t.view("h0", DType::F32, &[1, 4, 128, 128])));
    refused("cu_seqlens", Property::Rank, |t, args| {
        args.cu_seqlens = Some(t.view("cu_seqlens", DType::I32, &[1, 3]));
    });
    refused("cu_seqlens", Property::Shape, |t, args| args.cu_seqlens = Some(t.view("cu_seqlens", DType::I32, &[4])));
    refused_backward("do", Property::Shape, |t, args| args.d_o = t.view("do", DType::Bf16, &[1, 7, 2, 128]));
    refused_backward("dht", Property::Shape, |t, args| {
        args.dht = Some(t.view("dht", DType::F32, &[2, 2, 128, 128]));
    });
    refused_backward("dg", Property::Shape, |t, args| args.dg = Some(t.view("dg", DType::F32, &[1, 7, 2])));
    refused("o", Property::Shape, |t, args| args.o = t.view("o", DType::Bf16, &[1, 7, 2, 128]));
    refused("ht", Property::Shape, |t, args| args.ht = Some(t.view("ht", DType::F32, &[2, 4, 128, 64])));
    refused_backward("dq", Property::Shape, |t, args| args.dq = t.view("dq", DType::Bf16, &[1, 7, 4, 128]));
    refused_backward("dk", Property::Shape, |t, args| args.dk = t.view("dk", DType::Bf16, &[1, 7, 4, 128]));
    refused_backward("dv", Property::Shape, |t, args| args.dv = t.view("dv", DType::Bf16, &[1, 7, 2, 128]));
    refused_backward("dbeta", Property::Shape, |t, args| args.dbeta = t.view("dbeta", DType::F32, &[1, 7, 2]));
    refused_backward("dh0", Property::Shape, |t, args| args.dh0 = Some(t.view("dh0", DType::F32, &[1, 4, 128, 128])));
}

/// A backward checks what it reads again as its forward did.
#[test]
fn inputs_of_a_backward() {
    refused_backward("q", Property::Shape, |t, args| args.q = t.view("q", DType::Bf16, &[1, 7, 4, 128]));
    refused_backward("k", Property::DType, |t, args| args.k = t.view("k", DType::F16, &[1, 7, 2, 128]));
    refused_backward("v", Property::Rank, |t, args| args.v = t.view("v", DType::Bf16, &[7, 4, 128]));
    refused_backward("g", Property::DType, |t, args| args.g = Some(t.view("g", DType::Bf16, &[1, 7, 4])));
    refused_backward("beta", Property::DType, |t, args| args.beta = t.view("beta", DType::Bf16, &[1, 7, 4]));
    refused_backward("h0", Property::Presence, |_, args| args.h0 = None);
    refused_backward("cu_seqlens", Property::Shape, |t, args| {
        args.cu_seqlens = Some(t.view("cu_seqlens", DType::I32, &[2]));
    });
}

#[test]
fn sizes_of_the_problem() {
    refused_plan("heads", Property::Value, Gdn { heads: 0, ..problem() });
    refused_plan("value_heads", Property::Value, Gdn { value_heads: 0, ..problem() });
    refused_plan("value_heads", Property::Value, Gdn { value_heads: 3, ..problem() });
    refused_plan("head_dim", Property::Value, Gdn { head_dim: 64, ..problem() });
    refused_plan("scale", Property::Value, Gdn { scale: Some(f32::NAN), ..problem() });
    let batch = Gdn { sequences: Sequences::Batch, ..problem() };
    refused_plan("tokens", Property::Size, Gdn { tokens: 1 << 31, ..batch.clone() });
    refused_plan("tokens", Property::Size, Gdn { batch: u64::MAX, tokens: 3, ..batch.clone() });
    let tokens = (1 << 31) - 1;
    refused_plan("value_heads", Property::Size, Gdn { tokens, value_heads: 1 << 20, heads: 1, ..batch });
}

#[test]
fn sequences() {
    let with = |sequences| Gdn { sequences, ..problem() };
    let offsets = |offsets: &[u64]| with(Sequences::Offsets(offsets.to_vec()));
    refused_plan("cu_seqlens", Property::Shape, offsets(&[0]));
    refused_plan("cu_seqlens", Property::Value, offsets(&[1, 7]));
    refused_plan("cu_seqlens", Property::Value, offsets(&[0, 5, 4, 7]));
    refused_plan("cu_seqlens", Property::Value, offsets(&[0, 6]));
    refused_plan("batch", Property::Value, Gdn { batch: 2, ..offsets(&[0, 7]) });
    refused_plan("batch", Property::Value, Gdn { batch: 2, ..with(Sequences::Device(2)) });
    refused_plan("sequences", Property::Value, with(Sequences::Device(0)));
    refused_plan("sequences", Property::Size, with(Sequences::Device(1 << 20)));
    refused_plan("sequences", Property::Size, Gdn { batch: 1 << 20, tokens: 0, ..with(Sequences::Batch) });
    let device = Tensors::new(&with(Sequences::Device(2)));
    let without = ForwardArgs { cu_seqlens: None, ..device.forward_args() };
    assert_refused(device.forward.bind(without), "cu_seqlens", Property::Presence);
    let batched = Tensors::new(&with(Sequences::Batch));
    assert_refused(batched.forward.bind(batched.forward_args()), "cu_seqlens", Property::Presence);
}

#[test]
fn what_is_optional_is_there_exactly_when_planned() {
    refused("g", Property::Presence, |_, args| args.g = None);
    refused_backward("dg", Property::Presence, |_, args| args.dg = None);
    refused("h0", Property::Presence, |_, args| args.h0 = None);
    refused("ht", Property::Presence, |_, args| args.ht = None);
    refused("tape", Property::Presence, |_, args| args.tape = None);
    refused_backward("dh0", Property::Presence, |_, args| args.dh0 = None);
    let plain = Gdn { initial_state: false, final_state: false, ..problem() };
    let tensors = Tensors::new(&plain);
    let args = ForwardArgs { h0: None, ht: None, ..tensors.forward_args() };
    let state = Some(tensors.view("h0", DType::F32, &plain.state_shape()));
    tensors.forward.bind(args).unwrap();
    assert_refused(tensors.forward.bind(ForwardArgs { h0: state, ..args }), "h0", Property::Presence);
    assert_refused(tensors.forward.bind(ForwardArgs { ht: state, ..args }), "ht", Property::Presence);
    let backward = BackwardArgs { h0: None, dh0: None, ..tensors.backward_args() };
    assert_refused(tensors.backward.bind(backward), "dht", Property::Presence);
    let inference = Gdn { training: false, ..problem() };
    let tensors = Tensors::new(&inference);
    assert_refused(tensors.forward.bind(tensors.forward_args()), "tape", Property::Presence);
}

#[test]
fn a_backward_needs_a_problem_of_training() {
    let device = Device::emulated(bakewell::Arch::Sm90).unwrap();
    let inference = Gdn { training: false, ..problem() };
    assert_refused(device.plan(&Backward(inference)), "training", Property::Value);
}

/// What cannot be read in place is refused, with a word about the copies, and accepted among them.
#[test]
fn layouts_are_read_in_place_or_named_as_copies() {
    type Change = for<'t> fn(&'t Tensors, &mut ForwardArgs<'t>);
    fn strided<'t>(t: &'t Tensors, name: &str, offset: u64, shape: &[u64], strides: &[u64]) -> TensorView<'t> {
        let dtype = if name == "g" { DType::F32 } else { DType::Bf16 };
        t.buffer(name).strided_view(offset, dtype, shape, strides).unwrap()
    }
    let cases: [(Input, Property, Change); 5] = [
        (Input::Q, Property::Layout, |t, args| args.q = strided(t, "q", 0, &[1, 7, 2, 128], &[9999, 256, 1, 2])),
        (Input::K, Property::Layout, |t, args| args.k = strided(t, "k", 0, &[1, 7, 2, 128], &[9999, 260, 128, 1])),
        (Input::V, Property::Alignment, |t, args| args.v = strided(t, "v", 8, &[1, 7, 4, 128], &[9999, 512, 128, 1])),
        (Input::V, Property::Layout, |t, args| args.v = strided(t, "v", 0, &[1, 7, 4, 128], &[9999, 0, 128, 1])),
        (Input::G, Property::Layout, |t, args| args.g = Some(strided(t, "g", 0, &[1, 7, 4], &[9999, 8, 2]))),
    ];
    for (input, property, change) in cases {
        refused(input.name(), property, change);
        let tensors = Tensors::new(&Gdn { copies: vec![input], ..problem() });
        let mut args = tensors.forward_args();
        change(&tensors, &mut args);
        tensors.forward.bind(args).unwrap();
    }
    // Batch rows that do not follow one another.
    let batched = Gdn { batch: 2, tokens: 3, sequences: Sequences::Batch, ..problem() };
    let tensors = Tensors::new(&batched);
    let apart = strided(&tensors, "q", 0, &[2, 3, 2, 128], &[1024, 256, 128, 1]);
    let args = ForwardArgs { q: apart, cu_seqlens: None, ..tensors.forward_args() };
    assert_refused(tensors.forward.bind(args), "q", Property::Layout);
}

#[test]
fn strides_that_kernels_follow_are_accepted() {
    let tensors = Tensors::new(&problem());
    let mut args = tensors.forward_args();
    let row = (2 + 2 + 4) * 128;
    let head = |first: u64, heads: u64| {
        let view =
            tensors.buffer("q").strided_view(first * 256, DType::Bf16, &[1, 7, heads, 128], &[7 * row, row, 128, 1]);
        view.unwrap()
    };
    (args.q, args.k, args.v) = (head(0, 2), head(2, 2), head(4, 4));
    args.g = Some(tensors.buffer("g").strided_view(4, DType::F32, &[1, 7, 4], &[77, 11, 1]).unwrap());
    args.cu_seqlens = Some(tensors.view("cu_seqlens", DType::I64, &[3]));
    tensors.forward.bind(args).unwrap();
}

#[test]
fn outputs_are_dense_and_apart() {
    refused("o", Property::Layout, |t, args| {
        args.o = t.buffer("o").strided_view(0, DType::Bf16, &[1, 7, 4, 128], &[9999, 1024, 128, 1]).unwrap();
    });
    refused("h0", Property::Alignment, |t, args| {
        let shape = [2, 4, 128, 128];
        args.h0 = Some(t.buffer("h0").strided_view(4, DType::F32, &shape, &[65536, 16384, 128, 1]).unwrap());
    });
    refused("o", Property::Alias, |t, args| args.o = t.view("v", DType::Bf16, &[1, 7, 4, 128]));
    refused_backward("dq", Property::Alias, |t, args| args.dq = t.view("dk", DType::Bf16, &[1, 7, 2, 128]));
}

#[test]
fn tensors_of_another_device() {
    for [here, there] in apart(Arch::Sm90) {
        refuse_tensors_elsewhere(&here, &there);
    }
}

#[test]
fn memory_for_tapes_and_workspaces() {
    let tensors = Tensors::new(&problem());
    assert_refused(tensors.forward.tape(tensors.view("tape", DType::F32, &[64])), "tape", Property::DType);
    let odd = tensors.buffer("tape").strided_view(16, DType::U8, &[64], &[1]).unwrap();
    assert_refused(tensors.forward.tape(odd), "tape", Property::Alignment);
    refused("workspace", Property::DType, |t, args| args.workspace = Some(t.view("dg", DType::F32, &[64])));
    let (device, _) = recorder(Arch::Sm90);
    let tensors = Tensors::on(&device, &problem());
    let short = tensors.view("dg", DType::U8, &[tensors.forward.tape_bytes() - 1]);
    assert_refused(tensors.forward.tape(short), "tape", Property::Size);
    let memory = device.buffer(tensors.backward.workspace_bytes() - 1).unwrap();
    let workspace = Some(memory.view(DType::U8, &[memory.bytes()]).unwrap());
    let backward = BackwardArgs { workspace, ..tensors.backward_args() };
    assert_refused(tensors.backward.bind(backward), "workspace", Property::Size);
}

#[test]
fn pins() {
    let pinned = |pins| Gdn { pins, ..problem() };
    refused_plan("value_columns", Property::Value, pinned(Pins { value_columns: Some(48), ..Pins::default() }));
    let unknown = serde_json::from_str::<Pins>(r#"{"engine": "systolic"}"#).unwrap_err().to_string();
    assert!(unknown.contains("systolic") && unknown.contains("registers"), "{unknown}");
    assert!(serde_json::from_str::<Pins>(r#"{"segment_chunks": -1}"#).is_err());
}
