//! The second kernel: its family, what it needs prepared, its geometry, and its parameter block.

use bakewell_core::params::ParamBlock;
use bakewell_core::route::Facts;
use bakewell_core::schedule::Schedule;
use bakewell_core::schedule::nvfp4_pre_attention::tcgen05::{self, Shape, Tcgen05};
use bakewell_core::schedule::nvfp4_pre_attention::weight_image::WeightImage;
use bakewell_core::schedule::nvfp4_pre_attention::wgmma::{self, Wgmma};
use bakewell_core::schedule::nvfp4_pre_attention::{OutputFormat, Tables};
use bakewell_core::{DType, Error, LaunchConfig, Result};

use super::decide::{chosen, config, ctas};
use super::scales::Scales;
use super::{Nvfp4PreAttention, Nvfp4PreAttentionArgs};
use crate::arguments::address_or_null;
use crate::binder::Binder;
use crate::workspace::WorkspaceLayout;

/// Region of the workspace in which the norm kernel leaves the activation as an operand image.
pub(super) const ACTIVATION_IMAGE: &str = "activation_image";

/// The schedule of the second launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gemm {
    /// On tensor memory, with the operands as the contract has them and the weight's scales in pair order.
    Tcgen05(&'static Tcgen05),
    /// On warpgroup tensor cores, with operands decoded to bf16: the activation by the norm kernel, the weight when
    /// binding.
    Wgmma {
        /// Schedule.
        schedule: &'static Wgmma,
        /// What decodes the weight.
        weight_image: &'static WeightImage,
    },
}

/// Address of what was made of the weight when binding: its image, or its scales in pair order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared(u64);

impl Gemm {
    /// The schedule that the architecture's routes name for a format.
    pub(super) fn choose(tables: &'static Tables, facts: &Facts, format: OutputFormat) -> Option<Gemm> {
        let tcgen05 = chosen(&tables.tcgen05, facts, |schedule, choice| {
            schedule.name == choice.schedule && schedule.output == format
        });
        if let Some(schedule) = tcgen05 {
            return Some(Gemm::Tcgen05(schedule));
        }
        let is = |schedule: &Wgmma, name| schedule.name == name && schedule.output == format;
        let schedule = chosen(&tables.wgmma, facts, |schedule, choice| is(schedule, choice.schedule))?;
        Some(Gemm::Wgmma { schedule, weight_image: tables.weight_image.first()? })
    }

    /// The schedule.
    pub fn schedule(&self) -> &'static dyn Schedule {
        match self {
            Gemm::Tcgen05(schedule) => *schedule,
            Gemm::Wgmma { schedule, .. } => *schedule,
        }
    }

    /// The schedule of the program that prepares the weight, where there is one.
    pub fn preparation_schedule(&self) -> Option<&'static dyn Schedule> {
        match self {
            Gemm::Tcgen05(_) => None,
            Gemm::Wgmma { weight_image, .. } => Some(*weight_image),
        }
    }

    /// Geometry of the launch.
    pub(super) fn launch(&self, problem: &Nvfp4PreAttention, sm_count: u32) -> Result<LaunchConfig> {
        let (ctas, cluster) = match self {
            Gemm::Tcgen05(_) => (ctas(shape(problem).ctas())?, tcgen05::PAIR_CTAS),
            Gemm::Wgmma { .. } if sm_count < wgmma::CLUSTER => {
                return Err(Error::value("sm_count", "at least 2, for a cluster of two CTAs", sm_count));
            }
            Gemm::Wgmma { .. } => (Wgmma::ctas(problem.tokens, problem.heads, sm_count), wgmma::CLUSTER),
        };
        Ok(config(self.schedule(), [ctas, 1, 1], cluster))
    }

    /// Geometry of the program that prepares the weight.
    pub(super) fn preparation(&self, problem: &Nvfp4PreAttention) -> Option<LaunchConfig> {
        match self {
            Gemm::Tcgen05(_) => None,
            Gemm::Wgmma { weight_image, .. } => {
                // Both below 2^32 by `validate`.
                let grid = WeightImage::grid(problem.columns() as u32, problem.hidden as u32);
                Some(config(*weight_image, grid, 1))
            }
        }
    }

    /// What the norm kernel leaves for the GEMM besides the tensors of the call.
    pub(super) fn workspace(&self, problem: &Nvfp4PreAttention) -> Result<WorkspaceLayout> {
        let mut layout = WorkspaceLayout::default();
        match self {
            Gemm::Tcgen05(_) => {}
            Gemm::Wgmma { .. } => {
                let rows = problem.tokens.next_multiple_of(wgmma::IMAGE_ROWS.into());
                layout.push(ACTIVATION_IMAGE, DType::Bf16, &[rows, problem.hidden])?;
            }
        }
        Ok(layout)
    }

    /// Brings the weight into the form that the kernel reads; done once.
    pub(super) fn prepare(
        &self,
        problem: &Nvfp4PreAttention,
        args: &Nvfp4PreAttentionArgs<'_>,
        binder: &mut Binder<'_>,
    ) -> Result<Prepared> {
        match self {
            Gemm::Tcgen05(_) => {
                let mut scales = vec![0; args.qkv_weight_sf.extent_bytes()? as usize];
                binder.memory().read(args.qkv_weight_sf.address(), &mut scales)?;
                let sets = problem.hidden / u64::from(tcgen05::SET_K);
                Ok(Prepared(binder.upload(&tcgen05::pair_order(&scales, sets as usize))?.address()))
            }
            Gemm::Wgmma { weight_image, .. } => {
                let image = binder.buffer(wgmma::image_bytes(problem.columns(), problem.hidden))?.address();
                let mut block = ParamBlock::new(weight_image.params());
                block
                    .pointer("codes", args.qkv_weight_q.address())?
                    .pointer("scales", args.qkv_weight_sf.address())?
                    .pointer("image", image)?
                    .u32("columns", problem.hidden as u32)?;
                if let Some(launch) = self.preparation(problem) {
                    binder.run(*weight_image, &launch, &block.finish()?)?;
                }
                Ok(Prepared(image))
            }
        }
    }

    /// The parameter block of the launch.
    pub(super) fn params(
        &self,
        problem: &Nvfp4PreAttention,
        args: &Nvfp4PreAttentionArgs<'_>,
        scales: &Scales,
        prepared: Prepared,
        binder: &Binder<'_>,
    ) -> Result<Vec<u8>> {
        let mut block = ParamBlock::new(self.schedule().params());
        match self {
            Gemm::Tcgen05(schedule) => {
                let shape = shape(problem);
                for (field, tensor, request) in [
                    ("a", "activation_q", shape.activation_map(args.activation_q.address())),
                    ("b", "qkv_weight_q", shape.weight_map(args.qkv_weight_q.address())),
                    ("a_scales", "activation_sf", shape.activation_scales_map(args.activation_sf.address())),
                    ("b_scales", "qkv_weight_sf", shape.weight_scales_map(prepared.0)),
                    ("out", "out_q", shape.output_map(args.out_q.address(), schedule.output)),
                ] {
                    block.tensor_map(field, &binder.tensor_map(tensor, &request)?)?;
                }
            }
            Gemm::Wgmma { .. } => {
                block
                    .pointer("activation", binder.region(ACTIVATION_IMAGE))?
                    .pointer("weight", prepared.0)?
                    .pointer("out_q", args.out_q.address())?;
            }
        }
        let [inverse_q, inverse_k, inverse_v] = scales.inverses();
        block
            .pointer("rope_cos_sin", args.rope_cos_sin.address())?
            .pointer("q_norm_weight", args.q_norm_weight.address())?
            .pointer("k_norm_weight", args.k_norm_weight.address())?
            .pointer("out_global_scale", address_or_null(args.out_global_scale.as_ref()))?
            .pointer("out_sf", address_or_null(args.out_sf.as_ref()))?
            .pointer("debug_q", address_or_null(args.debug_q_bf16.as_ref()))?
            .pointer("debug_k", address_or_null(args.debug_k_bf16.as_ref()))?
            .f32("alpha", scales.alpha())?
            .f32("eps", problem.eps)?
            .f32("inverse_scale_q", inverse_q)?
            .f32("inverse_scale_k", inverse_k)?
            .f32("inverse_scale_v", inverse_v)?
            // All below 2^32 by `validate`.
            .u32("tokens", problem.tokens as u32)?
            .u32("hidden", problem.hidden as u32)?
            .u32("heads", problem.heads as u32)?
            .u32("destinations", problem.destinations as u32)?
            .u32("rope_dim", problem.rope_dim as u32)?;
        block.finish()
    }
}

/// What the geometry on tensor memory depends on.
fn shape(problem: &Nvfp4PreAttention) -> Shape {
    let &Nvfp4PreAttention { tokens, hidden, heads, destinations, .. } = problem;
    Shape { tokens, hidden, heads, destinations }
}
