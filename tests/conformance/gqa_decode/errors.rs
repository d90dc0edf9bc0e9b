//! Every way to break the contract, one by one: the typed error, the argument's name, and nothing loaded or launched.

use bakewell::error::Property;
use bakewell::gqa_decode::{GqaDecode, GqaDecodeArgs, Plan};
use bakewell::{Arch, Buffer, DType, Device, Error};
use bakewell_tests::recording::{Call, RecordingRuntime};

/// A plan that needs everything, and tensors that fit it.
struct Tensors {
    device: Device,
    plan: Plan,
    q: Buffer,
    kv: Buffer,
    lengths: Buffer,
    out: Buffer,
    lse: Buffer,
    workspace: Buffer,
}

impl Tensors {
    fn new(device: Device) -> Tensors {
        let problem = GqaDecode { batch: 2, capacity: 96, num_splits: Some(16), lse: true, ..GqaDecode::default() };
        let plan = device.plan(&problem).unwrap();
        // Twice the size, so that a shifted or strided view still fits.
        let tensor =
            |shape: &[u64], dtype: DType| device.buffer(2 * shape.iter().product::<u64>() * dtype.bytes()).unwrap();
        Tensors {
            q: tensor(&problem.q_shape(), DType::F16),
            kv: tensor(&problem.kv_shape(), DType::F16),
            lengths: tensor(&problem.sequence_lengths_shape(), DType::I32),
            out: tensor(&problem.q_shape(), DType::F16),
            lse: tensor(&problem.lse_shape(), DType::F32),
            workspace: tensor(&[plan.workspace_bytes() + 256], DType::U8),
            plan,
            device,
        }
    }

    /// The reference needs none; it checks one that is given all the same.
    fn workspace_bytes(&self) -> u64 {
        self.plan.workspace_bytes().max(256)
    }

    fn args(&self) -> GqaDecodeArgs<'_> {
        let problem = self.plan.problem();
        GqaDecodeArgs {
            q: self.q.view(DType::F16, &problem.q_shape()).unwrap(),
            kv: self.kv.view(DType::F16, &problem.kv_shape()).unwrap(),
            sequence_lengths: self.lengths.view(DType::I32, &[2]).unwrap(),
            out: self.out.view(DType::F16, &problem.q_shape()).unwrap(),
            lse: Some(self.lse.view(DType::F32, &problem.lse_shape()).unwrap()),
            workspace: Some(self.workspace.view(DType::U8, &[self.workspace_bytes()]).unwrap()),
        }
    }
}

/// The binding is refused with this argument and property, on the reference and on a device with programs.
fn refused<F>(argument: &str, property: Property, change: F)
where
    F: for<'t> Fn(&'t Tensors, &mut GqaDecodeArgs<'t>),
{
    let recording = RecordingRuntime::new(Arch::Sm90, 132);
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
fn refused_plan(argument: &str, property: Property, problem: GqaDecode) {
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

#[test]
fn wrong_rank() {
    refused("q", Property::Rank, |t, args| args.q = t.q.view(DType::F16, &[2, 32 * 128]).unwrap());
    refused("kv", Property::Rank, |t, args| args.kv = t.kv.view(DType::F16, &[4, 8, 96, 128]).unwrap());
    refused("sequence_lengths", Property::Rank, |t, args| {
        args.sequence_lengths = t.lengths.view(DType::I32, &[2, 1]).unwrap();
    });
    refused("out", Property::Rank, |t, args| args.out = t.out.view(DType::F16, &[64, 128]).unwrap());
    refused("lse", Property::Rank, |t, args| args.lse = Some(t.lse.view(DType::F32, &[64]).unwrap()));
}

#[test]
fn wrong_shape() {
    refused("q", Property::Shape, |t, args| args.q = t.q.view(DType::F16, &[2, 32, 64]).unwrap());
    refused("kv", Property::Shape, |t, args| args.kv = t.kv.view(DType::F16, &[2, 2, 96, 8, 128]).unwrap());
    refused("sequence_lengths", Property::Shape, |t, args| {
        args.sequence_lengths = t.lengths.view(DType::I32, &[3]).unwrap();
    });
    refused("out", Property::Shape, |t, args| args.out = t.out.view(DType::F16, &[1, 32, 128]).unwrap());
    refused("lse", Property::Shape, |t, args| args.lse = Some(t.lse.view(DType::F32, &[32, 2]).unwrap()));
}

#[test]
fn wrong_dtype() {
    refused("q", Property::DType, |t, args| args.q = t.q.view(DType::Bf16, &[2, 32, 128]).unwrap());
    refused("kv", Property::DType, |t, args| args.kv = t.kv.view(DType::Bf16, &[2, 2, 8, 96, 128]).unwrap());
    refused("sequence_lengths", Property::DType, |t, args| {
        args.sequence_lengths = t.lengths.view(DType::I64, &[2]).unwrap();
    });
    refused("out", Property::DType, |t, args| args.out = t.out.view(DType::U8, &[2, 32, 128]).unwrap());
    refused("lse", Property::DType, |t, args| args.lse = Some(t.lse.view(DType::F16, &[2, 32]).unwrap()));
    refused("workspace", Property::DType, |t, args| {
        args.workspace = Some(t.workspace.view(DType::F32, &[t.workspace_bytes() / 4]).unwrap());
    });
    refused_plan("dtype", Property::DType, GqaDecode { dtype: DType::F32, ..GqaDecode::default() });
}

#[test]
fn memory_of_another_device() {
    // The same addresses on a device whose memory does not reach so far.
    let elsewhere = Device::reference().unwrap();
    let far = elsewhere.buffer(1 << 30).unwrap();
    let foreign = elsewhere.buffer(1 << 20).unwrap();
    drop(far);
    let address = foreign.address();
    assert!(address > 1 << 30);
    for argument in ["q", "kv", "sequence_lengths", "out", "lse", "workspace"] {
        let tensors = Tensors::new(Device::reference().unwrap());
        let mut args = tensors.args();
        match argument {
            "q" => args.q = foreign.view(DType::F16, &[2, 32, 128]).unwrap(),
            "kv" => args.kv = foreign.view(DType::F16, &[2, 2, 8, 96, 128]).unwrap(),
            "sequence_lengths" => args.sequence_lengths = foreign.view(DType::I32, &[2]).unwrap(),
            "out" => args.out = foreign.view(DType::F16, &[2, 32, 128]).unwrap(),
            "lse" => args.lse = Some(foreign.view(DType::F32, &[2, 32]).unwrap()),
            _ => args.workspace = Some(foreign.view(DType::U8, &[512]).unwrap()),
        }
        match tensors.plan.bind(args) {
            Err(Error::Argument { argument: named, property: Property::Location, expected, given }) => {
                assert_eq!(named, argument);
                assert_eq!(expected, "memory of reference");
                assert!(given.contains(&format!("{address:#x}")), "{given}");
            }
            other => panic!("{argument}: {other:?}"),
        }
    }
}

#[test]
fn non_contiguous() {
    let gaps = [33 * 128, 128, 1];
    refused("q", Property::Layout, |t, args| args.q = t.q.strided_view(0, DType::F16, &[2, 32, 128], &gaps).unwrap());
    refused("out", Property::Layout, |t, args| {
        args.out = t.out.strided_view(0, DType::F16, &[2, 32, 128], &gaps).unwrap();
    });
    refused("kv", Property::Layout, |t, args| {
        let transposed = [2 * 8 * 96 * 128, 8 * 96 * 128, 128, 8 * 128, 1];
        args.kv = t.kv.strided_view(0, DType::F16, &[2, 2, 8, 96, 128], &transposed).unwrap();
    });
    refused("sequence_lengths", Property::Layout, |t, args| {
        args.sequence_lengths = t.lengths.strided_view(0, DType::I32, &[2], &[2]).unwrap();
    });
    refused("lse", Property::Layout, |t, args| {
        args.lse = Some(t.lse.strided_view(0, DType::F32, &[2, 32], &[1, 2]).unwrap());
    });
}

#[test]
fn misaligned() {
    let dense = [32 * 128, 128, 1];
    refused("q", Property::Alignment, |t, args| {
        args.q = t.q.strided_view(2, DType::F16, &[2, 32, 128], &dense).unwrap();
    });
    refused("out", Property::Alignment, |t, args| {
        args.out = t.out.strided_view(8, DType::F16, &[2, 32, 128], &dense).unwrap();
    });
    refused("sequence_lengths", Property::Alignment, |t, args| {
        args.sequence_lengths = t.lengths.strided_view(2, DType::I32, &[2], &[1]).unwrap();
    });
    refused("workspace", Property::Alignment, |t, args| {
        args.workspace = Some(t.workspace.strided_view(16, DType::U8, &[t.workspace_bytes()], &[1]).unwrap());
    });
}

#[test]
fn outputs_that_overlap() {
    refused("out", Property::Alias, |t, args| args.out = t.q.view(DType::F16, &[2, 32, 128]).unwrap());
    refused("out", Property::Alias, |t, args| {
        // The last 16 bytes of the values.
        args.out =
            t.kv.strided_view(2 * 2 * 8 * 96 * 128 * 2 - 16, DType::F16, &[2, 32, 128], &[4096, 128, 1]).unwrap();
    });
    refused("out", Property::Alias, |t, args| args.lse = Some(t.out.view(DType::F32, &[2, 32]).unwrap()));
    refused("lse", Property::Alias, |t, args| {
        args.sequence_lengths = t.lse.view(DType::I32, &[2]).unwrap();
    });
    refused("workspace", Property::Alias, |t, args| {
        args.workspace = Some(t.kv.view(DType::U8, &[t.workspace_bytes()]).unwrap());
    });
}

/// Inputs may share memory with each other: nobody writes them.
#[test]
fn inputs_that_overlap_are_legal() {
    let device = Device::reference().unwrap();
    let tensors = Tensors::new(device);
    let mut args = tensors.args();
    args.q = tensors.kv.view(DType::F16, &[2, 32, 128]).unwrap();
    tensors.plan.bind(args).unwrap();
}

#[test]
fn presence_of_the_log_sum_exp() {
    refused("lse", Property::Presence, |_, args| args.lse = None);
    let tensors = Tensors::new(Device::reference().unwrap());
    let plan = tensors.device.plan(&GqaDecode { lse: false, ..tensors.plan.problem().clone() }).unwrap();
    match plan.bind(tensors.args()) {
        Err(Error::Argument { argument: "lse", property: Property::Presence, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_workspace_that_is_too_small() {
    let recording = RecordingRuntime::new(Arch::Sm90, 132);
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
fn capacity_zero_with_requests() {
    refused_plan("capacity", Property::Value, GqaDecode { capacity: 0, ..GqaDecode::default() });
}

#[test]
fn scales_that_are_not_finite_and_positive() {
    for q_scale in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        refused_plan("q_scale", Property::Value, GqaDecode { q_scale, ..GqaDecode::default() });
    }
}

#[test]
fn split_counts_that_are_not_supported() {
    for splits in [0, 3, 5, 7, 9, 12, 17, 32, u32::MAX] {
        refused_plan("num_splits", Property::Value, GqaDecode { num_splits: Some(splits), ..GqaDecode::default() });
    }
}

#[test]
fn heads_that_do_not_divide() {
    let default = GqaDecode::default;
    refused_plan("query_heads", Property::Value, GqaDecode { query_heads: 30, ..default() });
    refused_plan("query_heads", Property::Value, GqaDecode { query_heads: 0, ..default() });
    refused_plan("kv_heads", Property::Value, GqaDecode { kv_heads: 0, ..default() });
    refused_plan("head_dim", Property::Value, GqaDecode { head_dim: 0, ..default() });
}

#[test]
fn sizes_past_the_address_arithmetic() {
    let default = GqaDecode::default;
    refused_plan("kv", Property::Size, GqaDecode { capacity: 1 << 50, batch: 1 << 10, ..default() });
    refused_plan("kv", Property::Size, GqaDecode { capacity: u64::MAX, ..default() });
    refused_plan("q", Property::Size, GqaDecode { batch: u64::MAX, ..default() });
}

/// More than a grid can hold, though the addresses fit.
#[test]
fn sizes_past_the_grid() {
    let device = Device::with_runtime(RecordingRuntime::new(Arch::Sm110, 20)).unwrap();
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
    let tensors = Tensors::new(Device::reference().unwrap());
    for lengths in [[0i32, 97], [-1, 0]] {
        tensors.lengths.write(0, &lengths.map(i32::to_le_bytes).concat()).unwrap();
        let error = tensors.plan.launch(bakewell::Stream::DEFAULT, tensors.args()).unwrap_err();
        assert!(matches!(error, Error::Argument { argument: "sequence_lengths", .. }), "{error}");
    }
}
