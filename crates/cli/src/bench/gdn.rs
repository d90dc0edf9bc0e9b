//! Shapes, inputs, bytes and operations of Gated DeltaNet training.
//!
//! A shape gives a row per way to use it: the forward alone without a tape, on packed rows read in place, on packed
//! rows copied first, and on contiguous tensors; forward and backward; and the step of a layer whose activations are
//! checkpointed, which runs the forward twice. Where a plan cuts sequences, how long it takes depends on how much of a
//! state the gates leave, so that the forward and both calls have a row each where nothing may be forgotten.

use std::fmt;

use anyhow::{Context, ensure};
use bakewell::gdn::{Backward, BackwardArgs, Decision, Forward, ForwardArgs, Gdn, Input, Pins, Sequences};
use bakewell::{Bound as Binding, Buffer, DType, Device, Operation, Plan, Result, Stream, TensorView};
use bakewell_conformance::gdn::{Inputs, judge};
use bakewell_conformance::random::Random;
use bakewell_conformance::{HostTensor, Outputs};
use serde::Deserialize;

use super::clocks::Clocks;
use super::measure::copy_noise;
use super::record::{Bound, KernelTimes, Row};

/// Bytes that the inputs of a graph exceed together: more than four times the L2.
const ROTATION_BYTES: u64 = 256 << 20;
/// Most sets of inputs.
const MOST_SETS: u64 = 16;
/// Fewest calls in a graph.
const FEWEST_CALLS: usize = 4;
const SEED: u64 = 29;
/// Random numbers that tensors are filled with copies of.
const NOISE: usize = 1 << 21;
/// Tokens of the first sequence whose outputs are compared with the reference, which is slow; and length up to which
/// its gradients, which need all of it, are.
const CHECKED_TOKENS: u64 = 2048;
const CHECKED_LENGTH: u64 = 4096;
/// Gates are uniform from this, in nats per token, to 0; write strengths from 0 to the other.
const STRONGEST_GATE: f64 = -0.2;
const GREATEST_STRENGTH: f64 = 1.0;

/// `sequences` sequences of one length.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Shape {
    heads: u64,
    value_heads: u64,
    tokens: u64,
    sequences: u64,
    #[serde(default)]
    pins: Pins,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { heads, value_heads, tokens, sequences, pins } = self;
        let forgetting = if pins.forget_after == Some(0) { " nothing forgotten" } else { "" };
        write!(f, "H{heads} HV{value_heads} T{tokens} seqs{sequences}{forgetting}")
    }
}

/// The shapes of a file's text, or those of the published tables.
///
/// # Errors
/// What is wrong with the text or a shape.
pub(super) fn shapes(text: Option<&str>) -> anyhow::Result<Vec<Shape>> {
    let shapes: Vec<Shape> = match text {
        Some(text) => serde_json::from_str(text).context("shapes")?,
        None => [(2, 6, 262_144, 64), (16, 48, 32_768, 1), (4, 12, 32_768, 1), (16, 16, 8192, 1), (16, 32, 8192, 1)]
            .map(|(heads, value_heads, tokens, sequences)| Shape {
                heads,
                value_heads,
                tokens,
                sequences,
                pins: Pins::default(),
            })
            .to_vec(),
    };
    for shape in &shapes {
        ensure!(shape.tokens > 0 && shape.sequences > 0, "shapes: {shape} has nothing to time");
        ensure!(shape.tokens.is_multiple_of(shape.sequences), "shapes: {shape} has sequences of different lengths");
        shape.problem(true).validate()?;
    }
    Ok(shapes)
}

impl Shape {
    fn problem(&self, training: bool) -> Gdn {
        let length = self.tokens / self.sequences;
        Gdn {
            tokens: self.tokens,
            heads: self.heads,
            value_heads: self.value_heads,
            sequences: Sequences::Offsets((0..=self.sequences).map(|i| i * length).collect()),
            training,
            pins: self.pins.clone(),
            ..Gdn::default()
        }
    }

    /// The same where nothing may be forgotten, unless it is that.
    fn exact(&self) -> Option<Shape> {
        let pins = Pins { forget_after: Some(0), ..self.pins.clone() };
        (pins != self.pins).then(|| Shape { pins, ..self.clone() })
    }

    /// Bytes of a token's `q` and `k`, of its `v`, and of its `g` and `beta`.
    fn token_bytes(&self) -> [u64; 3] {
        [2 * self.heads * 256, self.value_heads * 256, self.value_heads * 8]
    }

    /// Bytes of inputs and outputs of a forward: q, k, v, g, beta, o.
    fn forward_bytes(&self) -> u64 {
        let [keys, values, gates] = self.token_bytes();
        self.tokens * (keys + 2 * values + gates)
    }

    /// Bytes of inputs and outputs of a backward: what the forward read, do, and all gradients.
    fn backward_bytes(&self) -> u64 {
        let [keys, values, gates] = self.token_bytes();
        self.tokens * (2 * keys + 3 * values + 2 * gates)
    }

    /// Operations of the matrix products of both calls, a multiplication and an addition being two: products of
    /// 64 x 64 x 128 per chunk, 8 forward and 19 backward of a value head, 2 and 3 of a key head.
    fn flops(&self) -> [u64; 2] {
        let product = 2 * 64 * 64 * 128;
        let chunks = self.sequences * (self.tokens / self.sequences).div_ceil(64);
        let products = |of_value: u64, of_key: u64| of_value * self.value_heads + of_key * self.heads;
        [(8, 2), (19, 3)].map(|(of_value, of_key)| chunks * products(of_value, of_key) * product)
    }
}

/// How the inputs of a forward lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    Packed,
    Contiguous,
}

/// The tensors of both calls. `q`, `k` and `v` are head views of one buffer, and there are dense copies of them.
struct Set {
    qkv: Buffer,
    q: Buffer,
    k: Buffer,
    v: Buffer,
    g: Buffer,
    beta: Buffer,
    d_o: Buffer,
    o: Buffer,
    tape: Buffer,
    gradients: [Buffer; 5],
}

/// Random numbers on the device: normal ones in bf16, gates and write strengths in f32.
struct Noise {
    normal: Buffer,
    gates: Buffer,
    strengths: Buffer,
}

impl Noise {
    fn new(device: &Device) -> Result<Noise> {
        let mut random = Random::new(SEED);
        let normal = HostTensor::rounded(DType::Bf16, &[NOISE as u64], &random.normal(NOISE))?;
        let mut uniform = |scale: f64| -> Result<Buffer> {
            let values: Vec<f64> = (0..NOISE / 4).map(|_| scale * random.uniform()).collect();
            HostTensor::rounded(DType::F32, &[values.len() as u64], &values)?.upload(device)
        };
        Ok(Noise {
            gates: uniform(STRONGEST_GATE)?,
            strengths: uniform(GREATEST_STRENGTH)?,
            normal: normal.upload(device)?,
        })
    }
}

impl Set {
    fn new(device: &Device, clocks: &Clocks, shape: &Shape, noise: &Noise, tape: u64, index: u64) -> Result<Set> {
        let problem = shape.problem(true);
        let count = |shape: &[u64]| shape.iter().product::<u64>();
        let (q, v, gates) = (count(&problem.q_shape()), count(&problem.v_shape()), count(&problem.gate_shape()));
        // Rows of different tensors and sets differ: each starts elsewhere in the noise.
        let filled = |bytes: u64, noise: &Buffer, place: u64| -> Result<Buffer> {
            let tensor = device.buffer(bytes)?;
            copy_noise(&clocks.runtime, &tensor, noise, index * 7 + place)?;
            Ok(tensor)
        };
        let empty = |bytes: u64| -> Result<Buffer> {
            let tensor = device.buffer(bytes)?;
            tensor.fill(0xFF)?;
            Ok(tensor)
        };
        Ok(Set {
            qkv: filled(2 * (2 * q + v), &noise.normal, 0)?,
            q: filled(2 * q, &noise.normal, 1)?,
            k: filled(2 * q, &noise.normal, 2)?,
            v: filled(2 * v, &noise.normal, 3)?,
            g: filled(4 * gates, &noise.gates, 4)?,
            beta: filled(4 * gates, &noise.strengths, 5)?,
            d_o: filled(2 * v, &noise.normal, 6)?,
            o: empty(2 * v)?,
            tape: device.buffer(tape)?,
            gradients: [empty(2 * q)?, empty(2 * q)?, empty(2 * v)?, empty(4 * gates)?, empty(4 * gates)?],
        })
    }

    /// `q`, `k`, `v` in a layout.
    fn inputs(&self, problem: &Gdn, layout: Layout) -> Result<[TensorView<'_>; 3]> {
        let (q, v) = (problem.q_shape(), problem.v_shape());
        if layout == Layout::Contiguous {
            return Ok([self.q.view(DType::Bf16, &q)?, self.k.view(DType::Bf16, &q)?, self.v.view(DType::Bf16, &v)?]);
        }
        let token = (2 * problem.heads + problem.value_heads) * problem.head_dim;
        let strides = [problem.tokens * token, token, problem.head_dim, 1];
        let view = |head: u64, shape: &[u64]| self.qkv.strided_view(head * 256, DType::Bf16, shape, &strides);
        Ok([view(0, &q)?, view(problem.heads, &q)?, view(2 * problem.heads, &v)?])
    }

    fn forward<'a>(&'a self, plan: &Plan<Forward>, layout: Layout) -> Result<Binding<'a>> {
        let problem = &plan.problem().0;
        let [q, k, v] = self.inputs(problem, layout)?;
        plan.bind(ForwardArgs {
            q,
            k,
            v,
            g: Some(self.g.view(DType::F32, &problem.gate_shape())?),
            beta: self.beta.view(DType::F32, &problem.gate_shape())?,
            cu_seqlens: None,
            h0: None,
            o: self.o.view(DType::Bf16, &problem.v_shape())?,
            ht: None,
            tape: match problem.training {
                true => Some(plan.tape(self.tape.view(DType::U8, &[self.tape.bytes()])?)?),
                false => None,
            },
            workspace: None,
        })
    }

    fn backward<'a>(&'a self, forward: &Plan<Forward>, plan: &Plan<Backward>) -> Result<Binding<'a>> {
        let problem = &plan.problem().0;
        let [q, k, v] = self.inputs(problem, Layout::Packed)?;
        let [dq, dk, dv, dg, dbeta] = &self.gradients;
        plan.bind(BackwardArgs {
            q,
            k,
            v,
            g: Some(self.g.view(DType::F32, &problem.gate_shape())?),
            beta: self.beta.view(DType::F32, &problem.gate_shape())?,
            cu_seqlens: None,
            h0: None,
            tape: forward.tape(self.tape.view(DType::U8, &[self.tape.bytes()])?)?,
            d_o: self.d_o.view(DType::Bf16, &problem.v_shape())?,
            dht: None,
            dq: dq.view(DType::Bf16, &problem.q_shape())?,
            dk: dk.view(DType::Bf16, &problem.q_shape())?,
            dv: dv.view(DType::Bf16, &problem.v_shape())?,
            dg: Some(dg.view(DType::F32, &problem.gate_shape())?),
            dbeta: dbeta.view(DType::F32, &problem.gate_shape())?,
            dh0: None,
            workspace: None,
        })
    }
}

/// Times every shape in every use, and what an exact pre-scan makes of those that are cut.
pub(super) fn measure_all(device: &Device, clocks: &Clocks, shapes: &[Shape]) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for shape in shapes {
        eprintln!("{shape}");
        rows.extend(measure(device, clocks, shape, |_| true)?);
        let cut = decision(&device.plan(&Forward(shape.problem(true)))?)?.division.cut;
        if let Some(exact) = shape.exact().filter(|_| cut) {
            eprintln!("{exact}");
            rows.extend(measure(device, clocks, &exact, |name| [PACKED, BOTH].contains(&name))?);
        }
    }
    Ok(rows)
}

/// Times one shape in the uses that are wanted, after its results were found right.
fn measure(
    device: &Device,
    clocks: &Clocks,
    shape: &Shape,
    wanted: impl Fn(&'static str) -> bool,
) -> anyhow::Result<Vec<Row>> {
    let inference = |copies: &[Input]| {
        let problem = Gdn { copies: copies.to_vec(), ..shape.problem(false) };
        device.plan(&Forward(problem))
    };
    let (plain, copied) = (inference(&[])?, inference(&[Input::Q, Input::K, Input::V])?);
    let training = device.plan(&Forward(shape.problem(true)))?;
    let backward = device.plan(&Backward(shape.problem(true)))?;
    let noise = Noise::new(device)?;
    let sets = (ROTATION_BYTES / shape.forward_bytes().max(1) + 1).clamp(2, MOST_SETS);
    let sets = (0..sets).map(|index| Set::new(device, clocks, shape, &noise, training.tape_bytes(), index));
    let sets = sets.collect::<Result<Vec<_>>>()?;
    device.synchronize(Stream::DEFAULT)?;

    let bind = |plan: &Plan<Forward>, layout| -> Result<Vec<Vec<Binding<'_>>>> {
        sets.iter().map(|set| Ok(vec![set.forward(plan, layout)?])).collect()
    };
    let steps = |forwards: &[&Plan<Forward>]| -> Result<Vec<Vec<Binding<'_>>>> {
        let step = |set| {
            let mut step = Vec::new();
            for plan in forwards {
                step.push(Set::forward(set, plan, Layout::Packed)?);
            }
            step.push(Set::backward(set, &training, &backward)?);
            Ok(step)
        };
        sets.iter().map(step).collect()
    };
    let [forward, back] = shape.flops();
    let (forward_bytes, both) = (shape.forward_bytes(), shape.forward_bytes() + shape.backward_bytes());
    let (plain_plan, training_plan) = (decision(&plain)?, decision(&training)?);
    let backward_plan = backward.decision().context("a GPU plan has programs")?;
    let alone = |name, calls, plan| Use { name, calls, plans: vec![plan], bytes: forward_bytes, flops: forward };
    let uses = [
        alone(PACKED, bind(&plain, Layout::Packed)?, plain_plan),
        alone("forward, packed, copied first", bind(&copied, Layout::Packed)?, decision(&copied)?),
        alone(CONTIGUOUS, bind(&plain, Layout::Contiguous)?, plain_plan),
        alone("forward with tape", bind(&training, Layout::Packed)?, training_plan),
        Use {
            name: BOTH,
            calls: steps(&[&training])?,
            plans: vec![training_plan, backward_plan],
            bytes: both,
            flops: forward + back,
        },
        Use {
            name: "checkpointed step",
            calls: steps(&[&plain, &training])?,
            plans: vec![plain_plan, training_plan, backward_plan],
            bytes: both + forward_bytes,
            flops: 2 * forward + back,
        },
    ];
    let wanted = uses.into_iter().filter(|used| wanted(used.name));
    wanted.map(|used| used.measure(device, clocks, shape, &sets)).collect()
}

const PACKED: &str = "forward, packed";
const CONTIGUOUS: &str = "forward, contiguous";
const BOTH: &str = "forward + backward";

/// One way to use a shape: launches of a call for each set of inputs.
struct Use<'a> {
    name: &'static str,
    calls: Vec<Vec<Binding<'a>>>,
    plans: Vec<&'a Decision>,
    bytes: u64,
    flops: u64,
}

impl Use<'_> {
    fn measure(self, device: &Device, clocks: &Clocks, shape: &Shape, sets: &[Set]) -> anyhow::Result<Row> {
        let Use { name, calls, plans, bytes, flops } = self;
        let run = |call: usize, stream: Stream<'_>| {
            calls[call % calls.len()].iter().try_for_each(|bound| bound.launch(stream))
        };
        run(0, clocks.stream.stream())?;
        device.synchronize(clocks.stream.stream())?;
        let with_gradients = plans.len() > 1;
        let layout = if name == CONTIGUOUS { Layout::Contiguous } else { Layout::Packed };
        let checked = check(device, shape, &sets[0], layout, with_gradients);
        let checked = checked.with_context(|| format!("{shape} {name}"))?;
        let calls_per_graph = calls.len().max(FEWEST_CALLS);
        let cold_us = clocks.cold(|stream| run(0, stream))?;
        let mut kernels = Vec::new();
        for (bound, plan) in calls[0].iter().zip(&plans) {
            for (i, program) in plan.programs().into_iter().enumerate() {
                kernels.push(KernelTimes { program, cold_us: clocks.cold(|stream| bound.launch_kernel(i, stream))? });
            }
        }
        Ok(Row {
            shape: format!("{shape} {name}"),
            problem: serde_json::to_value(shape.problem(with_gradients))?,
            lengths: Vec::new(),
            inputs: Some(format!(
                "gates uniform in {STRONGEST_GATE}..0 nats, beta in 0..{GREATEST_STRENGTH}, all else normal"
            )),
            program: plans.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
            sha256: digests(device, &plans)?,
            geometry: [("segments", plans[0].division.segments as u32)].into_iter().collect(),
            bytes,
            bound: Bound::Copy,
            flops: Some(flops),
            kernels,
            sets: sets.len(),
            calls_per_graph,
            checked,
            cold_us,
            rotating_us: clocks.rotating(calls_per_graph, run)?,
            host_us: clocks.host(cold_us.median, |stream| run(0, stream))?,
            peers: Vec::new(),
        })
    }
}

fn decision(plan: &Plan<Forward>) -> anyhow::Result<&Decision> {
    plan.decision().context("a GPU plan has programs")
}

/// Compares results of the first key head and its value heads with the reference, at the start of the first sequence or
/// over all of it, and says what was done.
fn check(device: &Device, shape: &Shape, set: &Set, layout: Layout, with_gradients: bool) -> anyhow::Result<String> {
    let problem = shape.problem(with_gradients);
    let length = shape.tokens / shape.sequences;
    let gradients = with_gradients && length <= CHECKED_LENGTH;
    let tokens = if gradients { length } else { length.min(CHECKED_TOKENS) };
    let group = shape.value_heads / shape.heads;
    let part = |buffer: &Buffer, dtype: DType, offset: u64, row: u64, heads: u64, dim: u64| -> Result<HostTensor> {
        let mut bytes = Vec::new();
        let all = buffer.read()?;
        for token in 0..tokens {
            let start = (offset + token * row) * dtype.bytes();
            bytes.extend_from_slice(&all[start as usize..][..(heads * dim * dtype.bytes()) as usize]);
        }
        let shape = if dim > 1 { vec![1, tokens, heads, dim] } else { vec![1, tokens, heads] };
        Ok(HostTensor { dtype, shape, bytes })
    };
    let (key_row, value_row) = (shape.heads * 128, shape.value_heads * 128);
    let rows = |buffer: &Buffer, row: u64, heads: u64| part(buffer, DType::Bf16, 0, row, heads, 128);
    let gates = |buffer: &Buffer| part(buffer, DType::F32, 0, shape.value_heads, group, 1);
    let packed = |first: u64, heads: u64| part(&set.qkv, DType::Bf16, first * 128, 2 * key_row + value_row, heads, 128);
    let [q, k, v] = match layout {
        Layout::Contiguous => [rows(&set.q, key_row, 1)?, rows(&set.k, key_row, 1)?, rows(&set.v, value_row, group)?],
        _ => [packed(0, 1)?, packed(shape.heads, 1)?, packed(2 * shape.heads, group)?],
    };
    let d_o = if gradients { Some(rows(&set.d_o, value_row, group)?) } else { None };
    let inputs = Inputs {
        problem: Gdn { tokens, heads: 1, value_heads: group, sequences: Sequences::Batch, ..problem },
        q,
        k,
        v,
        g: gates(&set.g)?,
        beta: gates(&set.beta)?,
        offsets: None,
        h0: None,
        d_o,
        dht: None,
        place: Default::default(),
    };
    let mut outputs = Outputs(vec![("o", rows(&set.o, value_row, group)?)]);
    if gradients {
        let [dq, dk, dv, dg, dbeta] = &set.gradients;
        outputs.0.extend([("dq", rows(dq, key_row, 1)?), ("dk", rows(dk, key_row, 1)?)]);
        outputs.0.extend([("dv", rows(dv, value_row, group)?), ("dg", gates(dg)?), ("dbeta", gates(dbeta)?)]);
    }
    let judgement = judge(&inputs, &outputs, &inputs.expected()?, device.arch())?;
    ensure!(judgement.failure.is_none(), "{}", judgement.failure.unwrap_or_default());
    let said = judgement.ratios.iter().map(|(name, ratios)| format!("{name} {:.1e}", ratios.rms));
    Ok(format!("rms ratios over {tokens} tokens: {}", said.collect::<Vec<_>>().join(", ")))
}

/// Digests of the cubins of the plans, in order.
fn digests(device: &Device, decisions: &[&Decision]) -> anyhow::Result<String> {
    let library = device.library()?.context("a GPU has programs")?;
    let steps = decisions.iter().flat_map(|decision| &decision.steps);
    let digests = steps.map(|step| {
        let program = library.program(Operation::Gdn, step.schedule.name)?;
        Ok(program.record.cubin.sha256.to_string())
    });
    Ok(digests.collect::<Result<Vec<_>>>()?.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand for one chunk of one key head and three value heads: 64 rows of 2 x 256 + 2 x 768 + 24 bytes; 26
    /// products.
    #[test]
    fn bytes_and_operations_are_those_of_the_formulas() {
        let shape = Shape { heads: 1, value_heads: 3, tokens: 64, sequences: 1, pins: Pins::default() };
        assert_eq!(shape.forward_bytes(), 64 * (512 + 1536 + 24));
        assert_eq!(shape.backward_bytes(), 64 * (1024 + 2304 + 48));
        assert_eq!(shape.flops(), [26 * 1_048_576, 60 * 1_048_576]);
        // The floors of the published shapes, 314 and 1149 us at 790 TFLOP/s of another form, bound ours from above.
        let first = &shapes(None).unwrap()[0];
        assert_eq!(first.to_string(), "H2 HV6 T262144 seqs64");
        assert!(first.flops()[0] as f64 / 790e6 < 314.0);
    }

    #[test]
    fn an_exact_shape_says_so_and_has_no_other() {
        let shape = &shapes(None).unwrap()[1];
        let exact = shape.exact().unwrap();
        assert_eq!(exact.to_string(), "H16 HV48 T32768 seqs1 nothing forgotten");
        assert_eq!(exact.problem(true).pins.forget_after, Some(0));
        assert!(exact.exact().is_none());
    }

    #[test]
    fn shapes_of_a_file_are_checked() {
        let error = |text: &str| format!("{:#}", shapes(Some(text)).unwrap_err());
        assert!(error(r#"[{"heads":2,"value_heads":6,"tokens":100,"sequences":3}]"#).contains("different lengths"));
        assert!(error(r#"[{"heads":2,"value_heads":3,"tokens":100,"sequences":1}]"#).contains("value_heads"));
        assert!(error(r#"[{"heads":2,"value_heads":4,"tokens":0,"sequences":1}]"#).contains("nothing to time"));
    }
}
