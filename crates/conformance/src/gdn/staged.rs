//! Inputs on a device in several layouts, outputs poisoned and guarded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bakewell::gdn::{Backward, BackwardArgs, Forward, ForwardArgs, Tape};
use bakewell::{Bound, Buffer, DType, Device, Plan, Result, Stream, TensorView};
use serde::Deserialize;

use super::Inputs;
use super::inputs::output_shape;
use crate::guarded::Guarded;
use crate::{HostTensor, Outputs};

/// How the inputs lie on the device. Everything between and around rows is NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Each tensor on its own, dense.
    #[default]
    Contiguous,
    /// `q`, `k` and `v` as head views of one row buffer.
    Packed,
    /// Gaps of 16 bytes after heads and rows, of an element after rows of gates.
    Gapped,
    /// Odd strides and addresses: every input is copied first.
    Copied,
    /// Tokens 2^26 elements apart, and nothing between: the 17th and 33rd of two-byte elements lie past 2^31 and 2^32
    /// bytes, the 33rd and 65th past as many elements.
    Giant,
}

/// Bytes of NaN before and after an input: a chunk of rows of eight heads.
const MARGIN: u64 = 64 * 8 * 256;

/// A tensor somewhere in a buffer.
#[derive(Debug)]
struct Placed {
    buffer: Arc<Buffer>,
    offset: u64,
    dtype: DType,
    shape: Vec<u64>,
    strides: Vec<u64>,
}

/// Elements between the tokens of [`Place::Giant`].
const GIANT_STRIDE: u64 = 1 << 26;

/// Elements after each head, each token, each batch row, and bytes before the tensor.
#[derive(Clone, Copy)]
struct Gaps {
    head: u64,
    token: u64,
    batch: u64,
    bytes: u64,
}

impl Placed {
    fn new(device: &Device, tensor: &HostTensor, gaps: Gaps) -> Result<Placed> {
        let shape = &tensor.shape;
        let last = shape.len() - 1;
        let mut strides = vec![1; shape.len()];
        for i in (0..last).rev() {
            let gap = match (i, last) {
                (0, _) => gaps.batch,
                (1, _) => gaps.token,
                _ => gaps.head,
            };
            strides[i] = strides[i + 1] * shape[i + 1] + gap;
        }
        let element = tensor.dtype.bytes();
        let offset = MARGIN + gaps.bytes;
        let mut bytes = vec![0xFF; (2 * offset + strides[0] * shape[0] * element) as usize];
        scatter(tensor, &strides, &mut bytes[offset as usize..]);
        Ok(Placed {
            buffer: Arc::new(device.upload(&bytes)?),
            offset,
            dtype: tensor.dtype,
            shape: shape.clone(),
            strides,
        })
    }

    /// Rows far apart, of which only what holds data is ever touched.
    fn giant(device: &Device, tensor: &HostTensor) -> Result<Placed> {
        let shape = &tensor.shape;
        let mut strides = bakewell::Dims::new(shape)?.contiguous_strides().as_slice().to_vec();
        let row = strides[1] * tensor.dtype.bytes();
        (strides[0], strides[1]) = (shape[1] * GIANT_STRIDE, GIANT_STRIDE);
        let buffer = device.buffer(shape[1] * GIANT_STRIDE * tensor.dtype.bytes())?;
        for (token, data) in tensor.bytes.chunks_exact(row as usize).enumerate() {
            buffer.write(token as u64 * GIANT_STRIDE * tensor.dtype.bytes(), data)?;
        }
        Ok(Placed { buffer: Arc::new(buffer), offset: 0, dtype: tensor.dtype, shape: shape.clone(), strides })
    }

    fn view(&self) -> Result<TensorView<'_>> {
        self.buffer.strided_view(self.offset, self.dtype, &self.shape, &self.strides)
    }
}

/// Writes the rows of a tensor at these strides.
fn scatter(tensor: &HostTensor, strides: &[u64], to: &mut [u8]) {
    let element = tensor.dtype.bytes();
    let last = strides.len() - 1;
    let row_bytes = (tensor.shape[last] * element) as usize;
    for (row, data) in tensor.bytes.chunks_exact(row_bytes.max(1)).enumerate() {
        let (mut rest, mut at) = (row as u64, 0);
        for i in (0..last).rev() {
            at += rest % tensor.shape[i] * strides[i];
            rest /= tensor.shape[i];
        }
        to[(at * element) as usize..][..row_bytes].copy_from_slice(data);
    }
}

/// `q`, `k` and `v` as views of rows `[(2 H + HV) * 128]`.
fn packed(device: &Device, inputs: &Inputs) -> Result<[Placed; 3]> {
    let problem = &inputs.problem;
    let token = (2 * problem.heads + problem.value_heads) * problem.head_dim;
    let strides = vec![problem.tokens * token, token, problem.head_dim, 1];
    let mut bytes = vec![0xFF; (2 * MARGIN + problem.total_tokens() * token * 2) as usize];
    let first = [0, problem.heads, 2 * problem.heads].map(|head| MARGIN + head * problem.head_dim * 2);
    let tensors = [&inputs.q, &inputs.k, &inputs.v];
    for (tensor, offset) in tensors.into_iter().zip(first) {
        scatter(tensor, &strides, &mut bytes[offset as usize..]);
    }
    let buffer = Arc::new(device.upload(&bytes)?);
    let mut offsets = first.into_iter();
    Ok(tensors.map(|tensor| Placed {
        buffer: buffer.clone(),
        offset: offsets.next().unwrap_or(MARGIN),
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
        strides: strides.clone(),
    }))
}

/// The tensors of both calls on a device; ready to be bound and launched.
#[derive(Debug)]
pub struct Staged {
    forward: Plan<Forward>,
    backward: Option<Plan<Backward>>,
    q: Placed,
    k: Placed,
    v: Placed,
    g: Option<Placed>,
    beta: Placed,
    d_o: Option<Placed>,
    cu_seqlens: Option<Buffer>,
    h0: Option<Buffer>,
    dht: Option<Buffer>,
    tape: Guarded,
    workspaces: [Guarded; 2],
    outputs: Vec<Guarded>,
}

impl Staged {
    /// Plans both calls (the backward where there is `do`) and uploads the inputs.
    ///
    /// # Errors
    /// The plans' or the device's.
    pub fn new(device: &Device, inputs: &Inputs) -> Result<Staged> {
        let place = inputs.place;
        let problem = inputs.placed_problem();
        let gaps = match place {
            Place::Contiguous | Place::Packed | Place::Giant => Gaps { head: 0, token: 0, batch: 0, bytes: 0 },
            Place::Gapped => Gaps { head: 8, token: 8, batch: 0, bytes: 0 },
            Place::Copied => Gaps { head: 1, token: 3, batch: 5, bytes: 4 },
        };
        let placed = |tensor| match place {
            Place::Giant => Placed::giant(device, tensor),
            _ => Placed::new(device, tensor, gaps),
        };
        let [q, k, v] = match place {
            Place::Packed => packed(device, inputs)?,
            _ => [placed(&inputs.q)?, placed(&inputs.k)?, placed(&inputs.v)?],
        };
        let forward = device.plan(&Forward(problem.clone()))?;
        let backward = inputs.d_o.as_ref().map(|_| device.plan(&Backward(problem.clone()))).transpose()?;
        let mut outputs = vec![("o", DType::Bf16)];
        if problem.final_state {
            outputs.push(("ht", DType::F32));
        }
        if backward.is_some() {
            outputs.push(("dq", DType::Bf16));
            outputs.push(("dk", DType::Bf16));
            outputs.push(("dv", DType::Bf16));
            if problem.gate {
                outputs.push(("dg", DType::F32));
            }
            outputs.push(("dbeta", problem.beta));
            if problem.initial_state {
                outputs.push(("dh0", DType::F32));
            }
        }
        let outputs =
            outputs.into_iter().map(|(name, dtype)| Guarded::new(device, name, dtype, &output_shape(&problem, name)));
        let workspace = |bytes| Guarded::new(device, "workspace", DType::U8, &[bytes]);
        Ok(Staged {
            tape: Guarded::new(device, "tape", DType::U8, &[forward.tape_bytes()])?,
            workspaces: [
                workspace(forward.workspace_bytes())?,
                workspace(backward.as_ref().map_or(0, Plan::workspace_bytes))?,
            ],
            outputs: outputs.collect::<Result<_>>()?,
            q,
            k,
            v,
            g: if problem.gate { Some(placed(&inputs.g)?) } else { None },
            beta: placed(&inputs.beta)?,
            d_o: inputs.d_o.as_ref().map(placed).transpose()?,
            cu_seqlens: inputs.offsets.as_ref().map(|offsets| upload_offsets(device, offsets)).transpose()?,
            h0: inputs.h0.as_ref().map(|h0| h0.upload(device)).transpose()?,
            dht: inputs.dht.as_ref().map(|dht| dht.upload(device)).transpose()?,
            forward,
            backward,
        })
    }

    /// The plan of the forward.
    pub fn forward_plan(&self) -> &Plan<Forward> {
        &self.forward
    }

    /// The plan of the backward, where there is `do`.
    pub fn backward_plan(&self) -> Option<&Plan<Backward>> {
        self.backward.as_ref()
    }

    /// The tape.
    ///
    /// # Errors
    /// None of its own.
    pub fn tape(&self) -> Result<Tape<'_>> {
        self.forward.tape(self.tape.view()?)
    }

    /// The tensors of the forward.
    ///
    /// # Errors
    /// None of its own.
    pub fn forward_args(&self) -> Result<ForwardArgs<'_>> {
        Ok(ForwardArgs {
            q: self.q.view()?,
            k: self.k.view()?,
            v: self.v.view()?,
            g: self.g.as_ref().map(Placed::view).transpose()?,
            beta: self.beta.view()?,
            cu_seqlens: self.cu_seqlens()?,
            h0: self.state(&self.h0)?,
            o: self.output("o")?,
            ht: self.optional("ht")?,
            tape: if self.forward.problem().0.training { Some(self.tape()?) } else { None },
            workspace: Some(self.workspaces[0].view()?),
        })
    }

    /// The tensors of the backward; `None` without `do`.
    ///
    /// # Errors
    /// None of its own.
    pub fn backward_args(&self) -> Result<Option<BackwardArgs<'_>>> {
        let Some(d_o) = &self.d_o else { return Ok(None) };
        Ok(Some(BackwardArgs {
            q: self.q.view()?,
            k: self.k.view()?,
            v: self.v.view()?,
            g: self.g.as_ref().map(Placed::view).transpose()?,
            beta: self.beta.view()?,
            cu_seqlens: self.cu_seqlens()?,
            h0: self.state(&self.h0)?,
            tape: self.tape()?,
            d_o: d_o.view()?,
            dht: self.state(&self.dht)?,
            dq: self.output("dq")?,
            dk: self.output("dk")?,
            dv: self.output("dv")?,
            dg: self.optional("dg")?,
            dbeta: self.output("dbeta")?,
            dh0: self.optional("dh0")?,
            workspace: Some(self.workspaces[1].view()?),
        }))
    }

    /// Binds both calls, in order.
    ///
    /// # Errors
    /// The bindings'.
    pub fn bind(&self) -> Result<Vec<Bound<'_>>> {
        let mut bound = vec![self.forward.bind(self.forward_args()?)?];
        if let (Some(plan), Some(args)) = (&self.backward, self.backward_args()?) {
            bound.push(plan.bind(args)?);
        }
        Ok(bound)
    }

    /// Writes other offsets where the next launch reads them.
    ///
    /// # Errors
    /// The device's.
    pub fn set_offsets(&self, offsets: &[u64]) -> Result<()> {
        match &self.cu_seqlens {
            Some(buffer) => buffer.write(0, &offsets_tensor(offsets).bytes),
            None => Ok(()),
        }
    }

    /// Fills outputs, tape and workspaces with NaN again.
    ///
    /// # Errors
    /// The device's.
    pub fn poison(&self) -> Result<()> {
        self.outputs.iter().chain(&self.workspaces).chain([&self.tape]).try_for_each(Guarded::poison)
    }

    /// The outputs after all work of the default stream.
    ///
    /// # Errors
    /// The error of work that failed; [`bakewell::Error::Argument`] for a write outside a tensor.
    pub fn outputs(&self) -> Result<Outputs> {
        self.forward.device().synchronize(Stream::DEFAULT)?;
        for memory in self.workspaces.iter().chain([&self.tape]) {
            memory.read()?;
        }
        let read = |output: &Guarded| Ok((output.name, output.read()?));
        Ok(Outputs(self.outputs.iter().map(read).collect::<Result<_>>()?))
    }

    fn cu_seqlens(&self) -> Result<Option<TensorView<'_>>> {
        let shape = self.forward.problem().0.cu_seqlens_shape();
        self.cu_seqlens.as_ref().map(|buffer| buffer.view(DType::I32, &shape)).transpose()
    }

    fn state<'b>(&self, buffer: &'b Option<Buffer>) -> Result<Option<TensorView<'b>>> {
        let shape = self.forward.problem().0.state_shape();
        buffer.as_ref().map(|buffer| buffer.view(DType::F32, &shape)).transpose()
    }

    fn optional(&self, name: &str) -> Result<Option<TensorView<'_>>> {
        self.outputs.iter().find(|output| output.name == name).map(Guarded::view).transpose()
    }

    fn output(&self, name: &'static str) -> Result<TensorView<'_>> {
        self.optional(name)?.ok_or_else(|| bakewell::Error::value("output", "one of the problem", name))
    }
}

fn offsets_tensor(offsets: &[u64]) -> HostTensor {
    let offsets: Vec<i32> = offsets.iter().map(|&offset| offset as i32).collect();
    HostTensor::of_i32(&[offsets.len() as u64], &offsets)
}

fn upload_offsets(device: &Device, offsets: &[u64]) -> Result<Buffer> {
    offsets_tensor(offsets).upload(device)
}

/// Both calls, run once.
#[derive(Debug)]
pub struct Run {
    /// What came out.
    pub outputs: Outputs,
    /// The plan of the forward.
    pub forward: Plan<Forward>,
    /// The plan of the backward, where there is `do`.
    pub backward: Option<Plan<Backward>>,
    /// From launch to the end of the work of each call, without planning, binding and copies of outputs.
    pub times: Vec<Duration>,
}

/// Plans, binds, launches once, and waits.
///
/// # Errors
/// Those of [`Staged`].
pub fn run(device: &Device, inputs: &Inputs) -> Result<Run> {
    let staged = Staged::new(device, inputs)?;
    let mut times = Vec::new();
    for bound in staged.bind()? {
        let start = Instant::now();
        bound.launch(Stream::DEFAULT)?;
        device.synchronize(Stream::DEFAULT)?;
        times.push(start.elapsed());
    }
    Ok(Run { outputs: staged.outputs()?, forward: staged.forward, backward: staged.backward, times })
}
