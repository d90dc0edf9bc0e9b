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

/// Shape of an output.
pub(super) fn output_shape(problem: &Gdn, output: &str) -> Vec<u64> {
    match output {
        "o" | "dv" => problem.v_shape().to_vec(),
        "dq" | "dk" => problem.q_shape().to_vec(),
        "dg" | "dbeta" => problem.gate_shape().to_vec(),
        _ => problem.state_shape().to_vec(),
    }
}

impl Inputs {
    /// Inputs from a file with `q`, `k`, `v`, `beta`, if there are `g`, `cu_seqlens`, `h0`, `do`, `dht`, and in the
    /// metadata `scale`, `l2norm` (false if absent) and `final_state` (whether there is `dht` if absent).
    ///
    /// # Errors
    /// [`Error::Argument`] that names what is missing or has another rank than it must.
    pub fn from_file(file: &TensorFile) -> Result<Inputs> {
        let tensor = |name| file.tensor(name).cloned();
        let there = |name| file.tensors.contains_key(name);
        let (q, v, beta) = (tensor("q")?, tensor("v")?, tensor("beta")?);
        let rank =
            |name, expected, shape: &[u64]| Err(Error::argument(name, Property::Rank, expected, format!("{shape:?}")));
        let [batch, tokens, heads, head_dim] = q.shape[..] else {
            return rank("q", "[B, T, H, 128]", &q.shape);
        };
        let [_, _, value_heads, _] = v.shape[..] else {
            return rank("v", "[B, T, HV, 128]", &v.shape);
        };
        let offsets = file.tensors.get("cu_seqlens").map(integers).transpose()?;
        let problem = Gdn {
            gate: there("g"),
            batch,
            tokens,
            heads,
            value_heads,
            head_dim,
            sequences: offsets.clone().map_or(Sequences::Batch, Sequences::Offsets),
            scale: file.parameter("scale")?,
            l2norm: file.flag("l2norm")?.unwrap_or(false),
            beta: beta.dtype,
            initial_state: there("h0"),
            final_state: file.flag("final_state")?.unwrap_or(there("dht")),
            training: there("do"),
            ..Gdn::default()
        };
        // Not all of these reach a binding with the shape that they have in the file.
        let optional = |name, shape: &[u64]| Ok(file.optional(name, shape)?.cloned());
        let state = |name| match file.optional(name, &problem.state_shape())? {
            Some(tensor) if tensor.dtype != DType::F32 => {
                Err(Error::argument(name, Property::DType, DType::F32, tensor.dtype))
            }
            tensor => Ok(tensor.cloned()),
        };
        let gates = problem.gate_shape();
        file.shaped("v", &problem.v_shape())?;
        file.shaped("beta", &gates)?;
        let zeros = || HostTensor::of(&gates, &vec![0f32; gates.iter().product::<u64>() as usize]);
        Ok(Inputs {
            q,
            k: file.shaped("k", &problem.q_shape())?.clone(),
            v,
            g: optional("g", &gates)?.unwrap_or_else(zeros),
            beta,
            offsets,
            h0: state("h0")?,
            d_o: optional("do", &problem.v_shape())?,
            dht: state("dht")?,
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
        DType::I32 => tensor.to_i32()?.into_iter().map(i64::from).collect(),
        other => return Err(Error::argument("cu_seqlens", Property::DType, "i32 or i64", other)),
    };
    let unsigned = |offset: i64| u64::try_from(offset).map_err(|_| Error::value("cu_seqlens", "0 or more", offset));
    signed.into_iter().map(unsigned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Judged;

    fn zeros(dtype: DType, shape: &[u64]) -> HostTensor {
        let bytes = shape.iter().product::<u64>() * dtype.bytes();
        HostTensor { dtype, shape: shape.to_vec(), bytes: vec![0; bytes as usize] }
    }

    /// Two tokens of one key head and two value heads.
    fn file() -> TensorFile {
        let mut file = TensorFile::default();
        for (name, dtype, shape) in [
            ("q", DType::Bf16, &[1, 2, 1, 128][..]),
            ("k", DType::Bf16, &[1, 2, 1, 128]),
            ("v", DType::Bf16, &[1, 2, 2, 128]),
            ("g", DType::F32, &[1, 2, 2]),
            ("beta", DType::F32, &[1, 2, 2]),
            ("h0", DType::F32, &[1, 2, 128, 128]),
            ("do", DType::Bf16, &[1, 2, 2, 128]),
            ("dht", DType::F32, &[1, 2, 128, 128]),
        ] {
            file.tensors.insert(name.into(), zeros(dtype, shape));
        }
        file
    }

    #[test]
    fn tensors_of_another_shape_are_named() {
        assert!(Inputs::from_file(&file()).is_ok());
        for name in ["k", "v", "g", "beta", "h0", "do", "dht"] {
            for shape in [&[][..], &[2], &[1, 2, 3, 1, 128], &[1, 0, 1, 128]] {
                let mut file = file();
                let tensor = file.tensors.get_mut(name).unwrap();
                *tensor = zeros(tensor.dtype, shape);
                let text = Inputs::from_file(&file).unwrap_err().to_string();
                assert!(text.starts_with(&format!("{name}: expected ")), "{text}");
                assert!(text.ends_with(&format!("got {shape:?}")), "{text}");
            }
        }
        let mut file = file();
        file.tensors.insert("h0".into(), zeros(DType::I32, &[1, 2, 128, 128]));
        assert_eq!(Inputs::from_file(&file).unwrap_err().to_string(), "h0: expected f32, got i32");
    }

    #[test]
    fn without_gates_the_size_comes_from_tensors_that_are_there() {
        let mut file = file();
        file.tensors.remove("g");
        assert_eq!(Inputs::from_file(&file).unwrap().g, zeros(DType::F32, &[1, 2, 2]));
        for (name, shape) in [("q", [1, 1 << 60, 0, 128]), ("v", [1, 1 << 60, 1, 0])] {
            file.tensors
                .insert(name.into(), HostTensor { dtype: DType::Bf16, shape: shape.to_vec(), bytes: Vec::new() });
        }
        let text = Inputs::from_file(&file).unwrap_err().to_string();
        assert!(text.starts_with("v: expected shape [1, "), "{text}");
    }

    #[test]
    fn goldens_offsets_and_flags_that_are_not_what_they_must_be_are_named() {
        let mut file = file();
        file.tensors.insert("o".into(), zeros(DType::F32, &[1, 2, 1, 128]));
        let golden = Inputs::golden(&file).unwrap_err().to_string();
        assert_eq!(golden, "o: expected shape [1, 2, 2, 128], got [1, 2, 1, 128]");
        file.metadata.insert("l2norm".into(), "1".into());
        let flag = Inputs::from_file(&file).unwrap_err().to_string();
        assert!(flag.starts_with("l2norm: expected true or false in the file's metadata, got \"1\""), "{flag}");
        file.tensors.insert("cu_seqlens".into(), zeros(DType::F32, &[2]));
        let offsets = Inputs::from_file(&file).unwrap_err().to_string();
        assert_eq!(offsets, "cu_seqlens: expected i32 or i64, got f32");
    }
}
