//! What binding and launching ask of a device, on one that records.

use bakewell::gqa_decode::{GqaDecode, GqaDecodeArgs, Plan};
use bakewell::{Arch, Buffer, DType, Device, Error, Stream};
use bakewell_tests::recording::{Call, RecordingRuntime};

struct Setup {
    recording: std::sync::Arc<RecordingRuntime>,
    plan: Plan,
    tensors: [Buffer; 4],
}

impl Setup {
    fn new(problem: &GqaDecode) -> Setup {
        let recording = RecordingRuntime::new(Arch::Sm90, 132);
        let device = Device::with_runtime(recording.clone()).unwrap();
        let buffer = |bytes: u64| device.buffer(bytes).unwrap();
        let q_bytes = problem.q_shape().iter().product::<u64>() * 2;
        let tensors = [
            buffer(q_bytes),
            buffer(problem.kv_shape().iter().product::<u64>() * 2),
            buffer(problem.batch * 4),
            buffer(q_bytes),
        ];
        let plan = device.plan(problem).unwrap();
        recording.take_calls();
        Setup { recording, plan, tensors }
    }

    fn args(&self) -> GqaDecodeArgs<'_> {
        let problem = self.plan.problem();
        let [q, kv, lengths, out] = &self.tensors;
        GqaDecodeArgs {
            q: q.view(DType::F16, &problem.q_shape()).unwrap(),
            kv: kv.view(DType::F16, &problem.kv_shape()).unwrap(),
            sequence_lengths: lengths.view(DType::I32, &problem.sequence_lengths_shape()).unwrap(),
            out: out.view(DType::F16, &problem.q_shape()).unwrap(),
            lse: None,
            workspace: None,
        }
    }
}

/// A split count that no cluster size of 16 makes without global partials.
fn split_problem() -> GqaDecode {
    GqaDecode { batch: 3, capacity: 5000, num_splits: Some(10), q_scale: 0.75, ..GqaDecode::default() }
}

#[test]
fn binding_loads_once_and_zeroes_the_counters_and_a_launch_only_launches() {
    let setup = Setup::new(&split_problem());
    let decision = setup.plan.decision().unwrap();
    let completed = decision.workspace.region("completed").expect("partials need counters");
    let bound = setup.plan.bind(setup.args()).unwrap();
    match setup.recording.take_calls().as_slice() {
        [Call::Allocate(bytes), Call::Fill(_, 0, zeroed), Call::Load(program)] => {
            assert_eq!(*program, decision.program());
            assert_eq!((*bytes, *zeroed), (decision.workspace.bytes, 3 * 8 * 4));
            assert_eq!(*zeroed, completed.bytes);
        }
        other => panic!("{other:?}"),
    }

    // SAFETY: the recording runtime follows no handle.
    let other = unsafe { Stream::from_raw(0x1234) };
    for stream in [Stream::DEFAULT, other] {
        bound.launch(stream).unwrap();
        match setup.recording.take_calls().as_slice() {
            [Call::Launch(_, config, _, on)] => {
                assert_eq!((*config, *on), (decision.launch.unwrap(), stream));
            }
            other => panic!("a launch does more than launch: {other:?}"),
        }
    }

    drop(bound);
    assert!(matches!(setup.recording.take_calls().as_slice(), [Call::Free(_)]));
    assert_eq!(setup.recording.allocations(), 4, "the tensors");
}

#[test]
fn the_parameter_block_says_what_was_bound() {
    let setup = Setup::new(&split_problem());
    let decision = setup.plan.decision().unwrap().clone();
    let bound = setup.plan.bind(setup.args()).unwrap();
    let calls = setup.recording.take_calls();
    let [Call::Allocate(_), Call::Fill(counters, ..), Call::Load(_)] = calls.as_slice() else { panic!("{calls:?}") };
    bound.launch(Stream::DEFAULT).unwrap();
    let calls = setup.recording.take_calls();
    let [Call::Launch(_, _, params, _)] = calls.as_slice() else { panic!("{calls:?}") };

    // Offsets as kernels/gqa_decode/params.cuh: nine pointers, capacity, then 32-bit fields.
    let u64_at = |offset: usize| u64::from_le_bytes(params[offset..offset + 8].try_into().unwrap());
    let u32_at = |offset: usize| u32::from_le_bytes(params[offset..offset + 4].try_into().unwrap());
    for (i, tensor) in setup.tensors.iter().enumerate() {
        assert_eq!(u64_at(8 * i), tensor.address());
    }
    assert_eq!(u64_at(32), 0, "no log-sum-exp");
    let base = counters - decision.workspace.region("completed").unwrap().offset;
    for (offset, region) in [(40, "partial_out"), (48, "partial_max"), (56, "partial_sum"), (64, "completed")] {
        assert_eq!(u64_at(offset), base + decision.workspace.region(region).unwrap().offset, "{region}");
    }
    assert_eq!(u64_at(72), 5000);
    assert_eq!((u32_at(80), u32_at(84)), (8, 10));
    let scale = 0.75 / 128f64.sqrt() * std::f64::consts::LOG2_E;
    let given = f64::from(f32::from_bits(u32_at(88)));
    assert!((given / scale - 1.0).abs() <= 2f64.powi(-24), "{given} for {scale}");
    assert_eq!(params.len(), 96);
}

#[test]
fn a_workspace_of_the_caller_is_used_and_never_grown() {
    let setup = Setup::new(&split_problem());
    let workspace = setup.plan.device().buffer(setup.plan.workspace_bytes()).unwrap();
    setup.recording.take_calls();
    let view = workspace.view(DType::U8, &[workspace.bytes()]).unwrap();
    let bound = setup.plan.bind(GqaDecodeArgs { workspace: Some(view), ..setup.args() }).unwrap();
    let calls = setup.recording.take_calls();
    assert!(matches!(calls.as_slice(), [Call::Fill(..), Call::Load(_)]), "{calls:?}");
    bound.launch(Stream::DEFAULT).unwrap();
    let calls = setup.recording.take_calls();
    let [Call::Launch(_, _, params, _)] = calls.as_slice() else { panic!("{calls:?}") };
    assert_eq!(params[40..48], workspace.address().to_le_bytes());
}

#[test]
fn one_split_needs_no_workspace_and_an_empty_batch_nothing_at_all() {
    let setup = Setup::new(&GqaDecode { capacity: 5000, num_splits: Some(1), ..GqaDecode::default() });
    let bound = setup.plan.bind(setup.args()).unwrap();
    assert!(matches!(setup.recording.take_calls().as_slice(), [Call::Load(_)]));
    drop(bound);

    let setup = Setup::new(&GqaDecode { batch: 0, ..GqaDecode::default() });
    let bound = setup.plan.bind(setup.args()).unwrap();
    bound.launch(Stream::DEFAULT).unwrap();
    assert_eq!(setup.recording.take_calls(), []);
}

/// A failure of any call of bind and launch is the caller's error, and leaves no allocation behind.
#[test]
fn a_failure_at_any_call_is_an_error_and_leaks_nothing() {
    for n in 0.. {
        let setup = Setup::new(&split_problem());
        setup.recording.fail_at(Some(n));
        let result = setup.plan.launch(Stream::DEFAULT, setup.args());
        assert_eq!(setup.recording.allocations(), 4, "call {n}");
        match result {
            Err(Error::Driver { call: "injected", .. }) => assert!(n < 4, "call {n}"),
            Err(other) => panic!("call {n}: {other}"),
            // Allocate, fill, load, launch; the fifth call is the free, which cannot fail.
            Ok(()) => {
                assert_eq!(n, 4);
                break;
            }
        }
    }
}

#[test]
fn plans_of_two_types_use_two_programs() {
    let setup = |dtype| {
        let problem = GqaDecode { dtype, ..split_problem() };
        let device = Device::with_runtime(RecordingRuntime::new(Arch::Sm90, 132)).unwrap();
        device.plan(&problem).unwrap().decision().unwrap().program()
    };
    assert_ne!(setup(DType::F16), setup(DType::Bf16));
}
