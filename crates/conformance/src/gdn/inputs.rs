//! Inputs from files, and what the reference makes of them.

use std::collections::BTreeMap;

use bakewell::error::Property;
use bakewell::gdn::{Gdn, Input, Sequences};
use bakewell::{DType, Error, Result};
use bakewell_reference::gdn as reference;

use super::Place;
use crate::{HostTensor, TensorFile};

/// A problem and its tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Inputs {
    /// Sizes and options.
    pub problem: Gdn,
    /// `[B, T, H, 128]`, bf16.
    pub q: HostTensor,
    /// `[B, T, H, 128]`, bf16.
    pub k: HostTensor,
    /// `[B, T, HV, 128]`, bf16.
    pub v: HostTensor,
    /// `[B, T, HV]`, f32; not given to a problem without gates, and zero there.
    pub g: HostTensor,
    /// `[B, T, HV]`, f32 or bf16.
    pub beta: HostTensor,
    /// First token of each sequence, and the end; not given where every batch row is a sequence.
    pub offsets: Option<Vec<u64>>,
    /// `[N, HV, 128, 128]`, f32.
    pub h0: Option<HostTensor>,
    /// `[B, T, HV, 128]`, bf16; without it there is no backward.
    pub d_o: Option<HostTensor>,
    /// `[N, HV, 128, 128]`, f32.
    pub dht: Option<HostTensor>,
    /// How the inputs lie on a device.
    pub place: Place,
}

/// What should come out, by name.
pub type Expected = BTreeMap<&'static str, Vec<f64>>;

/// Norms of the products that each `dbeta` sums; not an output.
pub(super) const DBETA_TERMS: &str = "dbeta_terms";

/// The outputs of both calls, in the order in which they are shown.
pub const OUTPUTS: [&str; 8] = ["o", "ht", "dq", "dk", "dv", "dg", "dbeta", "dh0"];

impl Inputs {
    /// Inputs from a file with `q`, `k`, `v`, `beta`, if there are `g`, `cu_seqlens`, `h0`, `do`, `dht`, and in the
    /// metadata `scale`, `l2norm` (false if absent) and `final_state` (whether there is `dht` if absent).
    ///
    /// # Errors
    /// [`Error::Argument`] that names what is missing or has another rank than it must.
    pub fn from_file(file: &TensorFile) -> Result<Inputs> {
        let tensor = |name| file.tensor(name).cloned();
        let optional = |name: &str| file.tensors.get(name).cloned();
        let (q, v, beta) = (tensor("q")?, tensor("v")?, tensor("beta")?);
        let rank =
            |name, expected, shape: &[u64]| Err(Error::argument(name, Property::Rank, expected, format!("{shape:?}")));
        let [batch, tokens, heads, head_dim] = q.shape[..] else {
            return rank("q", "[B, T, H, 128]", &q.shape);
        };
        let [_, _, value_heads, _] = v.shape[..] else {
            return rank("v", "[B, T, HV, 128]", &v.shape);
        };
        let offsets = optional("cu_seqlens").map(|offsets| integers(&offsets)).transpose()?;
        let (h0, d_o, dht) = (optional("h0"), optional("do"), optional("dht"));
        let gates = [batch, tokens, value_heads];
        let zeros = || HostTensor::of(&gates, &vec![0f32; gates.iter().product::<u64>() as usize]);
        let g = optional("g");
        let problem = Gdn {
            gate: g.is_some(),
            batch,
            tokens,
            heads,
            value_heads,
            head_dim,
            sequences: offsets.clone().map_or(Sequences::Batch, Sequences::Offsets),
            scale: file.parameter("scale")?,
            l2norm: file.parameter("l2norm")?.unwrap_or(false),
            beta: beta.dtype,
            initial_state: h0.is_some(),
            final_state: file.parameter("final_state")?.unwrap_or(dht.is_some()),
            training: d_o.is_some(),
            ..Gdn::default()
        };
        Ok(Inputs {
            q,
            k: tensor("k")?,
            v,
            g: g.unwrap_or_else(zeros),
            beta,
            offsets,
            h0,
            d_o,
            dht,
            place: Place::default(),
            problem,
        })
    }

    /// The problem of inputs that lie so: what cannot be read in place is copied.
    pub(super) fn placed_problem(&self) -> Gdn {
        let copies = match self.place {
            Place::Copied => vec![Input::Q, Input::K, Input::V, Input::G, Input::Beta, Input::Do],
            _ => self.problem.copies.clone(),
        };
        Gdn { copies, ..self.problem.clone() }
    }

    /// The same with offsets that only the device knows.
    pub fn with_device_offsets(mut self) -> Inputs {
        self.problem.sequences = Sequences::Device(self.problem.sequence_count());
        self
    }

    /// What the reference computes from the exact inputs, unrounded; gradients where there is `do`.
    ///
    /// # Errors
    /// The reference's.
    pub fn expected(&self) -> Result<Expected> {
        let problem = &self.problem;
        let widened = |tensor: &Option<HostTensor>| tensor.as_ref().map(HostTensor::to_f64).transpose();
        let rows = (0..=problem.batch).map(|row| row * problem.tokens).collect();
        let offsets: Vec<u64> = self.offsets.clone().unwrap_or(rows);
        let offsets: Vec<usize> = offsets.into_iter().map(|offset| offset as usize).collect();
        let (q, k, v) = (self.q.to_f64()?, self.k.to_f64()?, self.v.to_f64()?);
        let (g, beta, h0) = (self.g.to_f64()?, self.beta.to_f64()?, widened(&self.h0)?);
        let sizes = reference::Gdn {
            heads: problem.heads as usize,
            value_heads: problem.value_heads as usize,
            head_dim: problem.head_dim as usize,
            scale: problem.output_scale().into(),
            l2norm: problem.l2norm,
            offsets: &offsets,
            q: &q,
            k: &k,
            v: &v,
            g: &g,
            beta: &beta,
            h0: h0.as_deref(),
        };
        let forward = reference::recurrence(&sizes)?;
        let mut expected = Expected::from([("o", forward.o)]);
        if problem.final_state {
            expected.insert("ht", forward.ht);
        }
        if let Some(d_o) = &self.d_o {
            let gradients = reference::adjoint(&sizes, &d_o.to_f64()?, widened(&self.dht)?.as_deref())?;
            expected.extend([("dq", gradients.dq), ("dk", gradients.dk), ("dv", gradients.dv)]);
            expected.extend([("dbeta", gradients.dbeta), (DBETA_TERMS, gradients.dbeta_terms)]);
            if problem.gate {
                expected.insert("dg", gradients.dg);
            }
            if problem.initial_state {
                expected.insert("dh0", gradients.dh0);
            }
        }
        Ok(expected)
    }
}

/// Offsets out of an i32 or i64 tensor.
fn integers(tensor: &HostTensor) -> Result<Vec<u64>> {
    let signed: Vec<i64> = match tensor.dtype {
        DType::I64 => tensor.bytes.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect(),
        _ => tensor.to_i32()?.into_iter().map(i64::from).collect(),
    };
    let unsigned = |offset: i64| u64::try_from(offset).map_err(|_| Error::value("cu_seqlens", "0 or more", offset));
    signed.into_iter().map(unsigned).collect()
}
