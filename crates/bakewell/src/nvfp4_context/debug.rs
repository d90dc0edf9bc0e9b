//! A look into the cache: what the kernels make of its codes and scales, byte for byte.
//!
//! ```text
//! k[page, head, token, dim] = E4M3(code * scale)      nearest even, saturating; one rounding
//! ```
//!
//! | tensor | dtype | shape | layout |
//! |---|---|---|---|
//! | `k_packed`, `v_packed` | u8 | `[num_pages, kv_heads, 16, 64]` | as in a call of attention |
//! | `k_scale`, `v_scale` | e4m3 | `[num_pages, kv_heads, 16, 8]` | likewise |
//! | `k`, `v` | e4m3 | `[num_pages, kv_heads, 16, 128]` | contiguous, addresses multiples of 16 |
//!
//! Every page of the pool, whether a table names it or not, tokens and dims in natural order. No length takes part, so
//! that what attention replaces by zeros, tokens past a request's last, is shown as it lies. Programs expand by the
//! functions of their architecture's paged kernels; on sm90 those transpose V, and this program transposes it back.
//!
#![cfg_attr(feature = "reference", doc = "```")]
#![cfg_attr(not(feature = "reference"), doc = "```no_run")]
//! use bakewell::nvfp4_context::debug::{Pages, PagesArgs};
//! use bakewell::{DType, Device, Stream};
//!
//! let device = Device::reference()?;
//! let problem = Pages { num_pages: 1, kv_heads: 1 };
//! // Code 5 is 3, code 2 is 1; the scale is 2.
//! let (codes, scales) = (device.upload(&[0x25; 16 * 64])?, device.upload(&[0x40; 16 * 8])?);
//! let (k, v) = (device.buffer(16 * 128)?, device.buffer(16 * 128)?);
//! device.plan(&problem)?.launch(
//!     Stream::DEFAULT,
//!     PagesArgs {
//!         k_packed: codes.view(DType::U8, &problem.packed_shape())?,
//!         v_packed: codes.view(DType::U8, &problem.packed_shape())?,
//!         k_scale: scales.view(DType::U8, &problem.scale_shape())?,
//!         v_scale: scales.view(DType::U8, &problem.scale_shape())?,
//!         k: k.view(DType::U8, &problem.shape())?,
//!         v: v.view(DType::U8, &problem.shape())?,
//!     },
//! )?;
//! assert_eq!(k.read()?[..2], [0x4C, 0x40], "6 and 2");
//! # Ok::<(), bakewell::Error>(())
//! ```

use std::fmt;
#[cfg(feature = "reference")]
use std::sync::Arc;

use bakewell_core::error::Property;
use bakewell_core::params::ParamBlock;
use bakewell_core::program::program_name;
use bakewell_core::schedule::Schedule;
use bakewell_core::schedule::nvfp4_context::{self, BLOCK_KEYS, HEAD_DIM, PAGE_TOKENS, SCALE_GROUP};
use bakewell_core::{Arch, Architecture, Error, LaunchConfig, Operation, Result, TensorView};
#[cfg(feature = "reference")]
use bakewell_reference::HostMemory;
use serde::{Deserialize, Serialize};

use super::tensors::{COPY_ALIGNMENT, Cache};
use super::{MAX_COUNT, Nvfp4Context};
use crate::arguments::{Argument, Arguments, check_byte_type, check_contiguous};
use crate::binder::Binder;
#[cfg(feature = "reference")]
use crate::bound::HostWork;
use crate::plan::{Problem, check_sm_count, describe, sealed::Sealed};
use crate::workspace::WorkspaceLayout;

/// Most KV heads: what a grid has room for beside its first dimension.
const MAX_HEADS: u64 = LaunchConfig::MAX_GRID[1] as u64;

/// The pages of a cache. The default is those of the default problem of attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pages {
    /// Pages of the pool.
    pub num_pages: u64,
    /// KV heads.
    pub kv_heads: u64,
}

impl Default for Pages {
    fn default() -> Pages {
        Pages::of(&Nvfp4Context::default())
    }
}

impl Pages {
    /// The pages that a problem of attention reads from.
    pub fn of(problem: &Nvfp4Context) -> Pages {
        Pages { num_pages: problem.num_pages, kv_heads: problem.kv_heads }
    }

    /// Shape of `k_packed` and `v_packed`.
    pub fn packed_shape(&self) -> [u64; 4] {
        [self.num_pages, self.kv_heads, PAGE_TOKENS.into(), u64::from(HEAD_DIM) / 2]
    }

    /// Shape of `k_scale` and `v_scale`.
    pub fn scale_shape(&self) -> [u64; 4] {
        [self.num_pages, self.kv_heads, PAGE_TOKENS.into(), (HEAD_DIM / SCALE_GROUP).into()]
    }

    /// Shape of `k` and `v`.
    pub fn shape(&self) -> [u64; 4] {
        [self.num_pages, self.kv_heads, PAGE_TOKENS.into(), HEAD_DIM.into()]
    }
}

/// The tensors of a call; shapes as in the [module documentation](self).
#[derive(Clone, Copy, Debug)]
pub struct PagesArgs<'a> {
    /// Codes of K.
    pub k_packed: TensorView<'a>,
    /// Codes of V.
    pub v_packed: TensorView<'a>,
    /// Scales of K.
    pub k_scale: TensorView<'a>,
    /// Scales of V.
    pub v_scale: TensorView<'a>,
    /// K; must not overlap any other tensor.
    pub k: TensorView<'a>,
    /// V, likewise.
    pub v: TensorView<'a>,
}

impl<'a> Arguments<'a> for PagesArgs<'a> {
    fn tensors(&self) -> Vec<Argument<'_, 'a>> {
        vec![
            Argument::read("k_packed", &self.k_packed),
            Argument::read("v_packed", &self.v_packed),
            Argument::read("k_scale", &self.k_scale),
            Argument::read("v_scale", &self.v_scale),
            Argument::write("k", &self.k),
            Argument::write("v", &self.v),
        ]
    }

    fn workspace(&self) -> Option<&TensorView<'a>> {
        None
    }
}

impl<'a> PagesArgs<'a> {
    fn cache(&self) -> Cache<'_, 'a> {
        Cache { k_packed: &self.k_packed, v_packed: &self.v_packed, k_scale: &self.k_scale, v_scale: &self.v_scale }
    }
}

/// What a plan is: everything about a launch but the tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Architecture of the program.
    pub arch: Arch,
    /// Schedule of the program.
    pub schedule: &'static nvfp4_context::Pages,
    /// Geometry, a CTA for the K and one for the V of eight pages of a head; `None` without pages.
    pub launch: Option<LaunchConfig>,
    /// None is needed.
    pub workspace: WorkspaceLayout,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = program_name(self.arch, Operation::Nvfp4Context, &self.schedule.variant());
        describe(f, &program, self.launch.as_ref(), "no splits", &self.workspace, &[])
    }
}

impl Sealed for Pages {}

impl Problem for Pages {
    const OPERATION: Operation = Operation::Nvfp4Context;
    type Decision = Decision;
    type Args<'a> = PagesArgs<'a>;

    fn validate(&self) -> Result<()> {
        if !(1..=MAX_HEADS).contains(&self.kv_heads) {
            return Err(Error::value("kv_heads", format!("1..={MAX_HEADS}"), self.kv_heads));
        }
        if self.num_pages >= MAX_COUNT {
            return Err(Error::argument("num_pages", Property::Size, "less than 2^30", self.num_pages));
        }
        Ok(())
    }

    fn decide(&self, architecture: &'static Architecture, sm_count: u32) -> Result<Decision> {
        self.validate()?;
        check_sm_count(sm_count)?;
        let arch = architecture.arch;
        let schedule = architecture.nvfp4_context_pages.first();
        let schedule = schedule.ok_or_else(|| Error::no_program(Self::OPERATION, arch, "pages of the cache", []))?;
        // All counts are small by `validate`.
        let blocks = self.num_pages.div_ceil(u64::from(BLOCK_KEYS / PAGE_TOKENS)) as u32;
        let budgets = schedule.budgets();
        let launch = LaunchConfig {
            grid: [blocks, self.kv_heads as u32, 2],
            cluster: [1, 1, 1],
            block: budgets.threads,
            dynamic_shared_bytes: budgets.dynamic_shared_bytes,
            programmatic_serialization: false,
        };
        let launch = (blocks > 0).then_some(launch);
        launch.iter().try_for_each(|launch| launch.validate(arch))?;
        Ok(Decision { arch, schedule, launch, workspace: WorkspaceLayout::default() })
    }

    fn workspace(decision: &Decision) -> &WorkspaceLayout {
        &decision.workspace
    }

    fn schedules(decision: &Decision) -> Vec<&'static dyn Schedule> {
        decision.launch.iter().map(|_| decision.schedule as &'static dyn Schedule).collect()
    }

    fn check(&self, args: &PagesArgs<'_>) -> Result<()> {
        args.cache().check(&self.packed_shape(), &self.scale_shape())?;
        for (name, view) in [("k", &args.k), ("v", &args.v)] {
            check_byte_type(name, view, &self.shape())?;
            check_contiguous(name, view, COPY_ALIGNMENT)?;
        }
        Ok(())
    }

    fn bind(&self, decision: &Decision, args: &PagesArgs<'_>, binder: &mut Binder<'_>) -> Result<()> {
        let Some(config) = decision.launch else { return Ok(()) };
        let mut block = ParamBlock::new(decision.schedule.params());
        args.cache().put(&mut block)?;
        block
            .pointer("k_out", args.k.address())?
            .pointer("v_out", args.v.address())?
            // Small by `validate`.
            .u32("pages", self.num_pages as u32)?
            .u32("kv_heads", self.kv_heads as u32)?;
        binder.launch(decision.schedule, config, block.finish()?)
    }

    #[cfg(feature = "reference")]
    fn bind_reference<'a>(&self, memory: Arc<HostMemory>, args: Self::Args<'a>) -> Result<HostWork<'a>> {
        Ok(Box::new(move || super::reference::pages(&memory, &args)))
    }
}
