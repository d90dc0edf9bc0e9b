//! Every way to break the contract, one by one: the typed error, the argument's name, and nothing loaded or launched.

use bakewell::architecture::Table;
use bakewell::error::Property;
use bakewell::nvfp4_context::decide::decide;
use bakewell::nvfp4_context::{CacheLayout, Nvfp4Context, Nvfp4ContextArgs, Plan, Scale};
use bakewell::schedule::nvfp4_pre_attention::Tables;
use bakewell::{Arch, Architecture, Buffer, DType, Device, Error, TensorView};
use bakewell_tests::recording::{Call, RecordingRuntime};

/// A plan that needs everything, and tensors that fit it.
struct Tensors {
    device: Device,
    plan: Plan,
    q: Buffer,
    k_packed: Buffer,
    v_packed: Buffer,
    k_scale: Buffer,
    v_scale: Buffer,
    page_table: Buffer,
    seq_lens_kv: Buffer,
    cu_seqlens_q: Buffer,
    out: Buffer,
    lse: Buffer,
    sinks: Buffer,
    factor: Buffer,
    workspace: Buffer,
}

fn problem() -> Nvfp4Context {
    Nvfp4Context {
        batch: 2,
        total_q: 6,
        q_heads: 8,
        kv_heads: 2,
        num_pages: 20,
        max_pages: 10,
        max_q_len: 4,
        max_kv_len: 160,
        num_splits: Some(2),
        lse: true,
        sinks: true,
        ..Nvfp4Context::default()
    }
}

impl Tensors {
    fn new(device: Device) -> Tensors {
        let problem = problem();
        let plan = device.plan(&problem).unwrap();
        // Twice the size, so that a shifted or strided view still fits.
        let tensor = |shape: &[u64], dtype: DType| {
            device.buffer(2 * shape.iter().product::<u64>() * dtype.bytes() + 16).unwrap()
        };
        Tensors {
            q: tensor(&problem.q_shape(), DType::U8),
            k_packed: tensor(&problem.packed_shape(), DType::U8),
            v_packed: tensor(&problem.packed_shape(), DType::U8),
            k_scale: tensor(&problem.scale_shape(), DType::U8),
            v_scale: tensor(&problem.scale_shape(), DType::U8),
            page_table: tensor(&problem.page_table_shape(), DType::I32),
            seq_lens_kv: tensor(&problem.seq_lens_kv_shape(), DType::I32),
            cu_seqlens_q: tensor(&problem.cu_seqlens_q_shape(), DType::I32),
            out: tensor(&problem.q_shape(), DType::U8),
            lse: tensor(&problem.lse_shape(), DType::F32),
            sinks: tensor(&problem.sinks_shape(), DType::F32),
            factor: tensor(&[64], DType::F32),
            workspace: tensor(&[plan.workspace_bytes() + 256], DType::U8),
            plan,
            device,
        }
    }

    /// The reference needs none; it checks one that is given all the same.
    fn workspace_bytes(&self) -> u64 {
        self.plan.workspace_bytes().max(256)
    }

    fn args(&self) -> Nvfp4ContextArgs<'_> {
        let problem = self.plan.problem();
        let bytes = |buffer, shape: &[u64]| Buffer::view(buffer, DType::U8, shape).unwrap();
        let integers = |buffer, shape: &[u64]| Buffer::view(buffer, DType::I32, shape).unwrap();
        let floats = |buffer, shape: &[u64]| Buffer::view(buffer, DType::F32, shape).unwrap();
        Nvfp4ContextArgs {
            q: bytes(&self.q, &problem.q_shape()),
            k_packed: bytes(&self.k_packed, &problem.packed_shape()),
            v_packed: bytes(&self.v_packed, &problem.packed_shape()),
            k_scale: bytes(&self.k_scale, &problem.scale_shape()),
            v_scale: bytes(&self.v_scale, &problem.scale_shape()),
            page_table: integers(&self.page_table, &problem.page_table_shape()),
            seq_lens_kv: integers(&self.seq_lens_kv, &problem.seq_lens_kv_shape()),
            cu_seqlens_q: integers(&self.cu_seqlens_q, &problem.cu_seqlens_q_shape()),
            out: bytes(&self.out, &problem.q_shape()),
            lse: Some(floats(&self.lse, &problem.lse_shape())),
            sinks: Some(floats(&self.sinks, &problem.sinks_shape())),
            bmm1_scale: Scale::Host(0.1),
            bmm2_scale: Scale::Host(-2.0),
            workspace: Some(bytes(&self.workspace, &[self.workspace_bytes()])),
        }
    }
}

/// The binding is refused with this argument and property, on the reference and on a device with programs.
fn refused<F>(argument: &str, property: Property, change: F)
where
    F: for<'t> Fn(&'t Tensors, &mut Nvfp4ContextArgs<'t>),
{
    let recording = RecordingRuntime::new(Arch::Sm103, 152);
    for device in [Device::reference().unwrap(), Device::with_runtime(recording.clone()).unwrap()] {
        let tensors = Tensors::new(device);
        let mut args = tensors.args();
        change(&tensors, &mut args);
        recording.take_calls();
        match tensors.plan.bind(args) {
            Err(Error::Argument { argument: named, property: about, expected, given }) => {
                assert_eq!((named, about), (argument, property), "expected {expected}, got {given}");
                assert!(!expected.is_empty() && !given.is_empty());
            }
            other => panic!("{} accepts it: {other:?}", tensors.device),
        }
        assert_eq!(recording.take_calls(), [], "nothing happens before the checks are over");
    }
}

/// The problem is refused when it is planned, with this argument and property.
fn refused_plan(argument: &str, property: Property, problem: Nvfp4Context) {
    for device in [Device::reference().unwrap(), Device::with_runtime(RecordingRuntime::new(Arch::Sm110, 20)).unwrap()]
    {
        match device.plan(&problem) {
            Err(Error::Argument { argument: named, property: about, .. }) => {
                assert_eq!((named, about), (argument, property));
            }
            other => panic!("{device} accepts {problem:?}: {other:?}"),
        }
    }
}

/// Puts a view in the place of the tensor of that name.
fn put<'t>(args: &mut Nvfp4ContextArgs<'t>, name: &str, view: TensorView<'t>) {
    match name {
        "q" => args.q = view,
        "k_packed" => args.k_packed = view,
        "v_packed" => args.v_packed = view,
        "k_scale" => args.k_scale = view,
        "v_scale" => args.v_scale = view,
        "page_table" => args.page_table = view,
        "seq_lens_kv" => args.seq_lens_kv = view,
        "cu_seqlens_q" => args.cu_seqlens_q = view,
        "out" => args.out = view,
        "lse" => args.lse = Some(view),
        "sinks" => args.sinks = Some(view),
        other => panic!("no tensor {other}"),
    }
}

/// Every tensor: name, element type, shape.
fn tensors() -> Vec<(&'static str, DType, Vec<u64>)> {
    let problem = problem();
    vec![
        ("q", DType::U8, problem.q_shape().to_vec()),
        ("k_packed", DType::U8, problem.packed_shape().to_vec()),
        ("v_packed", DType::U8, problem.packed_shape().to_vec()),
        ("k_scale", DType::U8, problem.scale_shape().to_vec()),
        ("v_scale", DType::U8, problem.scale_shape().to_vec()),
        ("page_table", DType::I32, problem.page_table_shape().to_vec()),
        ("seq_lens_kv", DType::I32, problem.seq_lens_kv_shape().to_vec()),
        ("cu_seqlens_q", DType::I32, problem.cu_seqlens_q_shape().to_vec()),
        ("out", DType::U8, problem.q_shape().to_vec()),
        ("lse", DType::F32, problem.lse_shape().to_vec()),
        ("sinks", DType::F32, problem.sinks_shape().to_vec()),
    ]
}

fn buffer<'t>(tensors: &'t Tensors, name: &str) -> &'t Buffer {
    match name {
        "q" => &tensors.q,
        "k_packed" => &tensors.k_packed,
        "v_packed" => &tensors.v_packed,
        "k_scale" => &tensors.k_scale,
        "v_scale" => &tensors.v_scale,
        "page_table" => &tensors.page_table,
        "seq_lens_kv" => &tensors.seq_lens_kv,
        "cu_seqlens_q" => &tensors.cu_seqlens_q,
        "out" => &tensors.out,
        "lse" => &tensors.lse,
        "sinks" => &tensors.sinks,
        other => panic!("no tensor {other}"),
    }
}

#[test]
fn wrong_rank() {
    for (name, dtype, shape) in tensors() {
        let more: Vec<u64> = shape.iter().copied().chain([1]).collect();
        refused(name, Property::Rank, |t, args| put(args, name, buffer(t, name).view(dtype, &more).unwrap()));
    }
}

/// Among them K and V of different shapes, a wrong page size and a wrong head dimension.
#[test]
fn wrong_shape() {
    for (name, dtype, shape) in tensors() {
        for dimension in 0..shape.len() {
            let mut other = shape.clone();
            other[dimension] += 1;
            refused(name, Property::Shape, |t, args| put(args, name, buffer(t, name).view(dtype, &other).unwrap()));
        }
    }
}

#[test]
fn wrong_dtype() {
    for (name, dtype, shape) in tensors() {
        let other = if dtype == DType::U8 { DType::Bf16 } else { DType::F16 };
        refused(name, Property::DType, |t, args| put(args, name, buffer(t, name).view(other, &shape).unwrap()));
    }
    refused("workspace", Property::DType, |t, args| {
        args.workspace = Some(t.workspace.view(DType::F32, &[t.workspace_bytes() / 4]).unwrap());
    });
}

/// E4M3 tensors come as bytes or as E4M3, page ids signed or not.
#[test]
fn both_spellings_of_a_type_are_legal() {
    let tensors = Tensors::new(Device::reference().unwrap());
    let problem = problem();
    let mut args = tensors.args();
    args.q = tensors.q.view(DType::E4m3, &problem.q_shape()).unwrap();
    args.k_scale = tensors.k_scale.view(DType::E4m3, &problem.scale_shape()).unwrap();
    args.out = tensors.out.view(DType::E4m3, &problem.q_shape()).unwrap();
    args.page_table = tensors.page_table.view(DType::U32, &problem.page_table_shape()).unwrap();
    tensors.plan.bind(args).unwrap();
}

#[test]
fn strides_that_the_copy_engine_cannot_take() {
    let q = problem().q_shape();
    let packed = problem().packed_shape();
    let scale = problem().scale_shape();
    let refused_strides = |name: &'static str, shape: &[u64], strides: &[u64]| {
        refused(name, Property::Layout, |t, args| {
            put(args, name, buffer(t, name).strided_view(0, DType::U8, shape, strides).unwrap());
        });
    };
    refused_strides("q", &q, &[1024, 1, 8]);
    refused_strides("q", &q, &[1032, 128, 1]);
    refused_strides("q", &q, &[0, 128, 1]);
    for name in ["k_packed", "v_packed"] {
        refused_strides(name, &packed, &[2048, 1024, 64, 2]);
        refused_strides(name, &packed, &[2048, 1024, 72, 1]);
        refused_strides(name, &packed, &[2056, 1024, 64, 1]);
    }
    for name in ["k_scale", "v_scale"] {
        // A page's scales with a gap between tokens: not one tile of 128 bytes.
        refused_strides(name, &scale, &[512, 256, 16, 1]);
        refused_strides(name, &scale, &[264, 128, 8, 1]);
    }
}

#[test]
fn non_contiguous() {
    let problem = problem();
    refused("out", Property::Layout, |t, args| {
        args.out = t.out.strided_view(0, DType::U8, &problem.q_shape(), &[1040, 128, 1]).unwrap();
    });
    refused("page_table", Property::Layout, |t, args| {
        args.page_table = t.page_table.strided_view(0, DType::I32, &[2, 10], &[20, 2]).unwrap();
    });
    for name in ["seq_lens_kv", "cu_seqlens_q", "sinks"] {
        let (_, dtype, shape) = tensors().into_iter().find(|(tensor, ..)| *tensor == name).unwrap();
        refused(name, Property::Layout, |t, args| {
            put(args, name, buffer(t, name).strided_view(0, dtype, &shape, &[2]).unwrap());
        });
    }
    refused("lse", Property::Layout, |t, args| {
        args.lse = Some(t.lse.strided_view(0, DType::F32, &[6, 8], &[1, 6]).unwrap());
    });
}

#[test]
fn misaligned() {
    for (name, dtype, shape) in tensors() {
        let mut strides = vec![1; shape.len()];
        for i in (0..shape.len() - 1).rev() {
            strides[i] = strides[i + 1] * shape[i + 1];
        }
        let offset = if dtype == DType::U8 { 8 } else { 2 };
        refused(name, Property::Alignment, |t, args| {
            put(args, name, buffer(t, name).strided_view(offset, dtype, &shape, &strides).unwrap());
        });
    }
    refused("workspace", Property::Alignment, |t, args| {
        args.workspace = Some(t.workspace.strided_view(16, DType::U8, &[t.workspace_bytes()], &[1]).unwrap());
    });
}

#[test]
fn memory_of_another_device() {
    let elsewhere = Device::reference().unwrap();
    let far = elsewhere.buffer(1 << 30).unwrap();
    let foreign = elsewhere.buffer(1 << 20).unwrap();
    drop(far);
    for (name, dtype, shape) in tensors() {
        let tensors = Tensors::new(Device::reference().unwrap());
        let mut args = tensors.args();
        put(&mut args, name, foreign.view(dtype, &shape).unwrap());
        match tensors.plan.bind(args) {
            Err(Error::Argument { argument, property: Property::Location, .. }) => assert_eq!(argument, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn outputs_that_overlap() {
    let shape = problem().q_shape();
    refused("out", Property::Alias, |t, args| args.out = t.q.view(DType::U8, &shape).unwrap());
    refused("lse", Property::Alias, |t, args| {
        args.seq_lens_kv = t.lse.view(DType::I32, &[2]).unwrap();
    });
}

#[test]
fn presence() {
    refused("lse", Property::Presence, |_, args| args.lse = None);
    refused("sinks", Property::Presence, |_, args| args.sinks = None);
    let tensors = Tensors::new(Device::reference().unwrap());
    for (argument, problem) in
        [("lse", Nvfp4Context { lse: false, ..problem() }), ("sinks", Nvfp4Context { sinks: false, ..problem() })]
    {
        match tensors.device.plan(&problem).unwrap().bind(tensors.args()) {
            Err(Error::Argument { argument: named, property: Property::Presence, .. }) => assert_eq!(named, argument),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn factors() {
    for bmm1 in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY] {
        refused("bmm1_scale", Property::Value, |_, args| args.bmm1_scale = Scale::Host(bmm1));
    }
    for bmm2 in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        refused("bmm2_scale", Property::Value, |_, args| args.bmm2_scale = Scale::Host(bmm2));
    }
    refused("bmm2_scale", Property::Location, |t, args| {
        args.bmm1_scale = Scale::Device(t.factor.view(DType::F32, &[1]).unwrap());
    });
    refused("bmm2_scale", Property::Location, |t, args| {
        args.bmm2_scale = Scale::Device(t.factor.view(DType::F32, &[1]).unwrap());
    });
    for (dtype, shape, property) in [
        (DType::F16, &[1][..], Property::DType),
        (DType::F32, &[2], Property::Shape),
        (DType::F32, &[1, 1], Property::Rank),
    ] {
        refused("bmm1_scale", property, |t, args| {
            args.bmm1_scale = Scale::Device(t.factor.view(dtype, shape).unwrap());
            args.bmm2_scale = Scale::Device(t.factor.view(DType::F32, &[1]).unwrap());
        });
    }
}

#[test]
fn a_workspace_that_is_too_small() {
    let recording = RecordingRuntime::new(Arch::Sm103, 152);
    let tensors = Tensors::new(Device::with_runtime(recording.clone()).unwrap());
    let needed = tensors.plan.workspace_bytes();
    assert!(needed > 0, "{}", tensors.plan);
    let mut args = tensors.args();
    args.workspace = Some(tensors.workspace.view(DType::U8, &[needed - 1]).unwrap());
    let text = tensors.plan.bind(args).unwrap_err().to_string();
    assert_eq!(text, format!("workspace: expected at least {needed} bytes, got {}", needed - 1));
    assert!(!recording.take_calls().iter().any(|call| matches!(call, Call::Load(_) | Call::Launch(..))));
}

#[test]
fn what_no_program_does() {
    refused_plan("layout", Property::Value, Nvfp4Context { layout: CacheLayout::Nhd, ..problem() });
    refused_plan("causal", Property::Value, Nvfp4Context { causal: false, ..problem() });
    refused_plan("sliding_window", Property::Value, Nvfp4Context { sliding_window: Some(128), ..problem() });
    refused_plan("page_tokens", Property::Value, Nvfp4Context { page_tokens: 32, ..problem() });
    refused_plan("head_dim", Property::Value, Nvfp4Context { head_dim: 64, ..problem() });
    refused_plan("q_heads", Property::Value, Nvfp4Context { q_heads: 7, ..problem() });
    refused_plan("q_heads", Property::Value, Nvfp4Context { q_heads: 0, ..problem() });
    refused_plan("kv_heads", Property::Value, Nvfp4Context { kv_heads: 0, ..problem() });
    for splits in [0, 65, u32::MAX] {
        refused_plan("num_splits", Property::Value, Nvfp4Context { num_splits: Some(splits), ..problem() });
    }
}

#[test]
fn sizes_past_32_bits() {
    let big = 1 << 30;
    refused_plan("batch", Property::Size, Nvfp4Context { batch: big, ..problem() });
    refused_plan("total_q", Property::Size, Nvfp4Context { total_q: u64::MAX, ..problem() });
    refused_plan("q_heads", Property::Size, Nvfp4Context { q_heads: big, ..problem() });
    refused_plan("num_pages", Property::Size, Nvfp4Context { num_pages: big, ..problem() });
    refused_plan("max_q_len", Property::Size, Nvfp4Context { max_q_len: big, ..problem() });
    refused_plan("max_kv_len", Property::Size, Nvfp4Context { max_kv_len: big, ..problem() });
    // 160 keys need 10 entries.
    refused_plan("max_pages", Property::Value, Nvfp4Context { max_pages: 9, ..problem() });
    // The sizes fit, the number of tiles does not.
    let tiles = Nvfp4Context { batch: 1 << 20, max_q_len: 1 << 20, max_kv_len: 16, ..problem() };
    let device = Device::with_runtime(RecordingRuntime::new(Arch::Sm110, 20)).unwrap();
    assert!(matches!(device.plan(&tiles), Err(Error::Argument { property: Property::Size, .. })));
}

#[cfg(feature = "emulator")]
#[test]
fn a_row_of_the_table_past_32_bits() {
    let tensors = Tensors::new(Device::emulated(Arch::Sm103).unwrap());
    let wide = tensors.device.buffer((1 << 33) + 40).unwrap();
    let mut args = tensors.args();
    args.page_table = wide.strided_view(0, DType::I32, &[2, 10], &[1 << 31, 1]).unwrap();
    let error = tensors.plan.bind(args).unwrap_err();
    assert!(matches!(error, Error::Argument { argument: "page_table", property: Property::Size, .. }), "{error}");
}

#[test]
fn an_architecture_without_programs() {
    static NOTHING: Architecture = Architecture {
        arch: Arch::Sm100,
        manifest: "",
        evidence: "",
        embedded: &[],
        gqa_decode: Table { schedules: &[], routes: &[] },
        nvfp4_context: Table { schedules: &[], routes: &[] },
        nvfp4_pre_attention: Tables::NONE,
        gdn: Table { schedules: &[], routes: &[] },
    };
    let error = decide(&problem(), &NOTHING, 148).unwrap_err();
    assert!(matches!(error, Error::NoProgram { arch: Arch::Sm100, .. }), "{error}");
    let error = decide(&problem(), &NOTHING, 0).unwrap_err();
    assert!(matches!(error, Error::Argument { argument: "sm_count", .. }), "{error}");
}

/// The reference reads lengths, offsets and pages when it runs, and then says which is wrong.
#[test]
fn values_on_the_device_that_the_reference_refuses() {
    let integers = |values: &[i32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    for (argument, lengths, offsets, page) in [
        ("seq_lens_kv", [-1, 16], [0, 4, 6], 0),
        ("seq_lens_kv", [161, 16], [0, 4, 6], 0),
        ("cu_seqlens_q", [16, 16], [0, 7, 6], 0),
        ("cu_seqlens_q", [16, 16], [1, 4, 6], 0),
        ("page_table", [16, 16], [0, 4, 6], 20),
        ("page_table", [16, 16], [0, 4, 6], -1),
    ] {
        let tensors = Tensors::new(Device::reference().unwrap());
        tensors.seq_lens_kv.write(0, &integers(&lengths)).unwrap();
        tensors.cu_seqlens_q.write(0, &integers(&offsets)).unwrap();
        tensors.page_table.write(0, &integers(&[page; 20])).unwrap();
        let error = tensors.plan.launch(bakewell::Stream::DEFAULT, tensors.args()).unwrap_err();
        assert!(matches!(error, Error::Argument { argument: named, .. } if named == argument), "{argument}: {error}");
    }
}
