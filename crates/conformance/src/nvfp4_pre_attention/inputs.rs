//! Inputs, generators of them, and what the reference makes of them.

use std::f64::consts::TAU;

use bakewell::error::Property;
use bakewell::nvfp4;
use bakewell::nvfp4_pre_attention::{Nvfp4PreAttention, OutputFormat};
use bakewell::{DType, Error, Result};
use bakewell_reference::Element;
use bakewell_reference::nvfp4_pre_attention::{self as reference, OutputScale, Stages};
use half::bf16;

use crate::HostTensor;
use crate::random::Random;

/// A problem and its input tensors, named as in [`bakewell::nvfp4_pre_attention`].
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names of the operation's documentation")]
pub struct Inputs {
    pub problem: Nvfp4PreAttention,
    pub x: HostTensor,
    pub x_norm_weight: HostTensor,
    pub adaln_scale: HostTensor,
    pub adaln_shift: HostTensor,
    pub adaln_index: HostTensor,
    pub x_global_scale: HostTensor,
    pub qkv_weight_q: HostTensor,
    pub qkv_weight_sf: HostTensor,
    pub w_global_scale: HostTensor,
    pub q_norm_weight: HostTensor,
    pub k_norm_weight: HostTensor,
    pub rope_cos_sin: HostTensor,
    pub out_global_scale: Option<HostTensor>,
    pub qkv_scales: Option<HostTensor>,
}

impl Inputs {
    /// Those of a problem, by their names.
    ///
    /// # Errors
    /// That of `tensor`, but for the scales of the results: whether they are there is for the call to say.
    pub fn of(problem: Nvfp4PreAttention, tensor: impl Fn(&'static str) -> Result<HostTensor>) -> Result<Inputs> {
        Ok(Inputs {
            problem,
            x: tensor("x")?,
            x_norm_weight: tensor("x_norm_weight")?,
            adaln_scale: tensor("adaln_scale")?,
            adaln_shift: tensor("adaln_shift")?,
            adaln_index: tensor("adaln_index")?,
            x_global_scale: tensor("x_global_scale")?,
            qkv_weight_q: tensor("qkv_weight_q")?,
            qkv_weight_sf: tensor("qkv_weight_sf")?,
            w_global_scale: tensor("w_global_scale")?,
            q_norm_weight: tensor("q_norm_weight")?,
            k_norm_weight: tensor("k_norm_weight")?,
            rope_cos_sin: tensor("rope_cos_sin")?,
            out_global_scale: tensor("out_global_scale").ok(),
            qkv_scales: tensor("qkv_scales").ok(),
        })
    }

    /// Random inputs of a valid problem: hidden states of a few units, weights of unit columns, table rows inside and
    /// outside the tables, no scale a power of two.
    ///
    /// # Panics
    /// For a problem that breaks the contract.
    pub fn generate(problem: &Nvfp4PreAttention, seed: u64) -> Inputs {
        let mut random = Random::new(seed);
        let mut normal = |shape: &[u64], mean: f64, deviation: f64| {
            let values = random.normal(shape.iter().product::<u64>() as usize);
            let values: Vec<f64> = values.into_iter().map(|value| mean + deviation * value).collect();
            HostTensor::rounded(DType::Bf16, shape, &values).unwrap_or_else(|error| panic!("{error}"))
        };
        let head = [problem.head_dim];
        let x = normal(&problem.x_shape(), 0.0, 3.0);
        let x_norm_weight = normal(&[problem.hidden], 1.0, 0.2);
        let [adaln_scale, adaln_shift] = [0; 2].map(|_| normal(&problem.table_shape(), 0.0, 0.3));
        let [q_norm_weight, k_norm_weight] = [0; 2].map(|_| normal(&head, 1.0, 0.2));
        let deviation = 1.0 / (problem.hidden as f64).sqrt();
        let weights = normal(&[problem.columns(), problem.hidden], 0.0, deviation);

        let weights: Vec<f32> = bf16::from_bytes(&weights.bytes).into_iter().map(bf16::to_f32).collect();
        let largest = weights.iter().fold(0f32, |largest, weight| largest.max(weight.abs()));
        let w_global_scale = nvfp4::global_scale(largest);
        let hidden = problem.hidden as usize;
        let quantised = nvfp4::quantise(&weights, hidden, w_global_scale).unwrap_or_else(|error| panic!("{error}"));
        let tiles = nvfp4::swizzle_scales(&quantised.scales, hidden / nvfp4::BLOCK);
        let bytes = |shape: &[u64], bytes| HostTensor { dtype: DType::U8, shape: shape.to_vec(), bytes };

        // One row in eight lies outside, on either side.
        let outside = [-1, i32::MIN, i32::MAX, problem.table_rows as i32];
        let index = |bits: u64| match bits % 8 {
            0 => outside[(bits >> 32) as usize % outside.len()],
            _ => ((bits >> 8) % problem.table_rows) as i32,
        };
        let index: Vec<i32> = (0..problem.tokens).map(|_| index(random.bits())).collect();
        let half = problem.rope_dim / 2;
        let rotation: Vec<f64> = (0..problem.tokens)
            .flat_map(|_| {
                let angles: Vec<f64> = (0..half).map(|_| TAU * random.uniform()).collect();
                let cosines: Vec<f64> = angles.iter().map(|angle| angle.cos()).collect();
                [cosines, angles.into_iter().map(f64::sin).collect()].concat()
            })
            .collect();
        let scalar = |value: f32| HostTensor::of(&[1], &[value]);
        let nvfp4_output = problem.out_format == OutputFormat::Nvfp4;
        Inputs {
            problem: problem.clone(),
            x,
            x_norm_weight,
            adaln_scale,
            adaln_shift,
            adaln_index: HostTensor::of_i32(&[problem.tokens], &index),
            x_global_scale: scalar(nvfp4::global_scale(6.3)),
            qkv_weight_q: bytes(&problem.weight_shape(), quantised.codes),
            qkv_weight_sf: bytes(&problem.weight_scales_shape(), tiles.unwrap_or_else(|error| panic!("{error}"))),
            w_global_scale: scalar(w_global_scale),
            q_norm_weight,
            k_norm_weight,
            rope_cos_sin: HostTensor::rounded(DType::Bf16, &problem.rope_shape(), &rotation)
                .unwrap_or_else(|error| panic!("{error}")),
            out_global_scale: nvfp4_output.then(|| scalar(nvfp4::global_scale(5.1))),
            qkv_scales: (!nvfp4_output).then(|| HostTensor::of(&[3], &[0.011f32, 0.013, 0.017])),
        }
    }

    /// Every stage, computed by the reference.
    ///
    /// # Errors
    /// [`Error::Argument`] that names a tensor of the wrong size.
    pub fn stages(&self) -> Result<Stages> {
        let bf16s = |tensor: &HostTensor| bf16::from_bytes(&tensor.bytes);
        let scalars = |name, tensor: &Option<HostTensor>| match tensor {
            Some(tensor) => Ok(f32::from_bytes(&tensor.bytes)),
            None => Err(Error::argument(name, Property::Presence, "a tensor", "none")),
        };
        let scalar = |tensor: &HostTensor| f32::from_bytes(&tensor.bytes).first().copied().unwrap_or(f32::NAN);
        let output = match self.problem.out_format {
            OutputFormat::Nvfp4 => OutputScale::Nvfp4(scalars("out_global_scale", &self.out_global_scale)?[0]),
            OutputFormat::E4m3 => match scalars("qkv_scales", &self.qkv_scales)?[..] {
                [q, k, v] => OutputScale::E4m3([q, k, v]),
                ref other => return Err(Error::argument("qkv_scales", Property::Shape, "[3]", other.len())),
            },
        };
        reference::nvfp4_pre_attention(&reference::Nvfp4PreAttention {
            hidden: self.problem.hidden as usize,
            heads: self.problem.heads as usize,
            destinations: self.problem.destinations as usize,
            rope_dim: self.problem.rope_dim as usize,
            eps: self.problem.eps,
            x: &bf16s(&self.x),
            x_norm_weight: &bf16s(&self.x_norm_weight),
            adaln_scale: &bf16s(&self.adaln_scale),
            adaln_shift: &bf16s(&self.adaln_shift),
            adaln_index: &self.adaln_index.to_i32()?,
            x_global_scale: scalar(&self.x_global_scale),
            qkv_weight_q: &self.qkv_weight_q.bytes,
            qkv_weight_sf: &self.qkv_weight_sf.bytes,
            w_global_scale: scalar(&self.w_global_scale),
            q_norm_weight: &bf16s(&self.q_norm_weight),
            k_norm_weight: &bf16s(&self.k_norm_weight),
            rope_cos_sin: &bf16s(&self.rope_cos_sin),
            output,
        })
    }
}
