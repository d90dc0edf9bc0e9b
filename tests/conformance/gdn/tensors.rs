//! A small problem with everything that is optional, buffers for its tensors, and what it is to be refused.

use bakewell::error::Property;
use bakewell::gdn::{Backward, BackwardArgs, Forward, ForwardArgs, Gdn, Sequences};
use bakewell::{Arch, Buffer, DType, Device, Error, Plan, TensorView};
use bakewell_tests::contract::{assert_misplaced, recorder};
use bakewell_tests::recording::Call;
use bakewell_tests::runs::with_stride_of_one;

/// Two sequences of 3 and 4 tokens with everything that is optional.
pub(super) fn problem() -> Gdn {
    Gdn {
        tokens: 7,
        heads: 2,
        value_heads: 4,
        sequences: Sequences::Offsets(vec![0, 3, 7]),
        initial_state: true,
        final_state: true,
        ..Gdn::default()
    }
}

/// Both plans, and one large buffer per tensor.
pub(super) struct Tensors {
    pub(super) forward: Plan<Forward>,
    pub(super) backward: Plan<Backward>,
    buffers: Vec<Buffer>,
    /// Stride of dimensions of one element; `None` leaves the contiguous one.
    pub(super) stride_of_one: Option<u64>,
}

const NAMES: [&str; 17] =
    ["q", "k", "v", "g", "beta", "cu_seqlens", "h0", "o", "ht", "tape", "do", "dht", "dq", "dk", "dv", "dg", "dbeta"];

impl Tensors {
    pub(super) fn new(problem: &Gdn) -> Tensors {
        Tensors::on(&Device::reference().unwrap(), problem)
    }

    pub(super) fn on(device: &Device, problem: &Gdn) -> Tensors {
        let forward = device.plan(&Forward(problem.clone())).unwrap();
        let state = problem.state_shape().iter().product::<u64>() * 4;
        let bytes = (2 * state).max(forward.tape_bytes());
        Tensors {
            forward,
            backward: device.plan(&Backward(problem.clone())).unwrap(),
            // One more for `dh0`. All hold any of the tensors, twice.
            buffers: (0..=NAMES.len()).map(|_| device.buffer(bytes).unwrap()).collect(),
            stride_of_one: None,
        }
    }

    pub(super) fn buffer(&self, name: &str) -> &Buffer {
        &self.buffers[NAMES.iter().position(|known| *known == name).unwrap_or(NAMES.len())]
    }

    pub(super) fn view(&self, name: &str, dtype: DType, shape: &[u64]) -> TensorView<'_> {
        let buffer = self.buffer(name);
        match self.stride_of_one {
            None => buffer.view(dtype, shape).unwrap(),
            Some(stride) => buffer.strided_view(0, dtype, shape, &with_stride_of_one(shape, stride)).unwrap(),
        }
    }

    /// Puts a tensor into memory of its own somewhere else.
    pub(super) fn move_to(&mut self, name: &str, device: &Device) {
        let at = NAMES.iter().position(|known| *known == name).unwrap_or(NAMES.len());
        self.buffers[at] = device.buffer(self.buffers[at].bytes()).unwrap();
    }

    pub(super) fn forward_args(&self) -> ForwardArgs<'_> {
        let problem = &self.forward.problem().0;
        let (q, v, gates, state) = (problem.q_shape(), problem.v_shape(), problem.gate_shape(), problem.state_shape());
        ForwardArgs {
            q: self.view("q", DType::Bf16, &q),
            k: self.view("k", DType::Bf16, &q),
            v: self.view("v", DType::Bf16, &v),
            g: Some(self.view("g", DType::F32, &gates)),
            beta: self.view("beta", problem.beta, &gates),
            cu_seqlens: Some(self.view("cu_seqlens", DType::I32, &problem.cu_seqlens_shape())),
            h0: Some(self.view("h0", DType::F32, &state)),
            o: self.view("o", DType::Bf16, &v),
            ht: Some(self.view("ht", DType::F32, &state)),
            tape: Some(self.forward.tape(self.view("tape", DType::U8, &[self.forward.tape_bytes()])).unwrap()),
            workspace: None,
        }
    }

    pub(super) fn backward_args(&self) -> BackwardArgs<'_> {
        let forward = self.forward_args();
        let problem = &self.forward.problem().0;
        let (q, v, gates, state) = (problem.q_shape(), problem.v_shape(), problem.gate_shape(), problem.state_shape());
        BackwardArgs {
            q: forward.q,
            k: forward.k,
            v: forward.v,
            g: forward.g,
            beta: forward.beta,
            cu_seqlens: forward.cu_seqlens,
            h0: forward.h0,
            tape: forward.tape.unwrap(),
            d_o: self.view("do", DType::Bf16, &v),
            dht: Some(self.view("dht", DType::F32, &state)),
            dq: self.view("dq", DType::Bf16, &q),
            dk: self.view("dk", DType::Bf16, &q),
            dv: self.view("dv", DType::Bf16, &v),
            dg: Some(self.view("dg", DType::F32, &gates)),
            dbeta: self.view("dbeta", problem.beta, &gates),
            dh0: Some(self.view("dh0", DType::F32, &state)),
            workspace: None,
        }
    }
}

#[track_caller]
pub(super) fn assert_refused<T: std::fmt::Debug>(outcome: bakewell::Result<T>, argument: &str, property: Property) {
    match outcome {
        Err(Error::Argument { argument: named, property: about, expected, given }) => {
            assert_eq!((named, about), (argument, property), "expected {expected}, got {given}");
            assert!(!expected.is_empty() && !given.is_empty());
        }
        other => panic!("accepted: {other:?}"),
    }
}

/// Each tensor of both calls, tape and workspace included, that is elsewhere is refused by its name.
pub(crate) fn refuse_tensors_elsewhere(here: &Device, elsewhere: &Device) {
    let outputs_of_backward = ["do", "dht", "dq", "dk", "dv", "dg", "dbeta", "dh0"];
    for name in NAMES.into_iter().chain(["dh0"]) {
        let mut tensors = Tensors::on(here, &problem());
        if name == "tape" && tensors.forward.tape_bytes() == 0 {
            // Nothing of it is anywhere.
            continue;
        }
        tensors.move_to(name, elsewhere);
        let address = tensors.buffer(name).address();
        if !outputs_of_backward.contains(&name) {
            assert_misplaced(tensors.forward.bind(tensors.forward_args()), name, here, address);
        }
        if !["o", "ht"].contains(&name) {
            assert_misplaced(tensors.backward.bind(tensors.backward_args()), name, here, address);
        }
    }
    let tensors = Tensors::on(here, &problem());
    let most = tensors.forward.workspace_bytes().max(tensors.backward.workspace_bytes()).max(256);
    let memory = elsewhere.buffer(most).unwrap();
    let workspace = Some(memory.view(DType::U8, &[most]).unwrap());
    let forward = tensors.forward.bind(ForwardArgs { workspace, ..tensors.forward_args() });
    let backward = tensors.backward.bind(BackwardArgs { workspace, ..tensors.backward_args() });
    assert_misplaced(forward, "workspace", here, memory.address());
    assert_misplaced(backward, "workspace", here, memory.address());
}

/// Both kinds of device refuse what `attempt` binds or plans, and the one that records has seen no call for it.
/// `attempt` is given a word to say when its own preparations are over.
#[track_caller]
pub(super) fn refused_everywhere<Attempt, Outcome>(argument: &str, property: Property, attempt: Attempt)
where
    Attempt: Fn(&Device, &dyn Fn()) -> bakewell::Result<Outcome>,
    Outcome: std::fmt::Debug,
{
    let (recorder, recording) = recorder(Arch::Sm90);
    for device in [Device::reference().unwrap(), recorder] {
        let prepared = || drop(recording.take_calls());
        prepared();
        assert_refused(attempt(&device, &prepared), argument, property);
        let calls = recording.take_calls();
        // Buffers of the attempt are given back behind it.
        assert!(calls.iter().all(|call| matches!(call, Call::Free(_))), "{calls:?}");
    }
}
