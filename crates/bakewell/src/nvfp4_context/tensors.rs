//! The tensors of a call: what is checked before anything is launched, and the tensor maps made of them.

use bakewell_core::error::Property;
use bakewell_core::params::ParamBlock;
use bakewell_core::schedule::nvfp4_context::{HEAD_DIM, Nvfp4Context as Schedule, PAGE_TOKENS};
use bakewell_core::tensor_map::{MapType, Swizzle, TensorMapRequest};
use bakewell_core::{DType, Error, Result, TensorView};

use super::{Nvfp4Context, Nvfp4ContextArgs, Scale};
use crate::arguments::{check_byte_type, check_contiguous, check_dense, check_optional};

/// What the copy engine asks of addresses and strides, in bytes.
pub(super) const COPY_ALIGNMENT: u64 = 16;

/// Checks every tensor against the problem.
pub(super) fn check(problem: &Nvfp4Context, args: &Nvfp4ContextArgs<'_>) -> Result<()> {
    check_byte_type("q", &args.q, &problem.q_shape())?;
    copyable("q", &args.q, 1)?;
    args.cache().check(&problem.packed_shape(), &problem.scale_shape())?;
    check_table(problem, &args.page_table)?;
    for (name, view, shape) in [
        ("seq_lens_kv", &args.seq_lens_kv, problem.seq_lens_kv_shape()),
        ("cu_seqlens_q", &args.cu_seqlens_q, problem.cu_seqlens_q_shape()),
    ] {
        check_dense(name, view, DType::I32, &shape)?;
    }
    check_byte_type("out", &args.out, &problem.q_shape())?;
    check_contiguous("out", &args.out, COPY_ALIGNMENT)?;
    check_optional("lse", args.lse.as_ref(), problem.lse, DType::F32, &problem.lse_shape())?;
    check_optional("sinks", args.sinks.as_ref(), problem.sinks, DType::F32, &problem.sinks_shape())?;
    check_scales(args)
}

/// The tensors of a cache.
pub(super) struct Cache<'v, 'a> {
    pub(super) k_packed: &'v TensorView<'a>,
    pub(super) v_packed: &'v TensorView<'a>,
    pub(super) k_scale: &'v TensorView<'a>,
    pub(super) v_scale: &'v TensorView<'a>,
}

impl Cache<'_, '_> {
    pub(super) fn check(&self, packed_shape: &[u64], scale_shape: &[u64]) -> Result<()> {
        for (name, view) in [("k_packed", self.k_packed), ("v_packed", self.v_packed)] {
            view.expect(name, DType::U8, packed_shape)?;
            copyable(name, view, 1)?;
        }
        for (name, view) in [("k_scale", self.k_scale), ("v_scale", self.v_scale)] {
            check_byte_type(name, view, scale_shape)?;
            copyable(name, view, 2)?;
        }
        Ok(())
    }

    /// Addresses and strides, for kernels that take no tensor maps of them.
    pub(super) fn put(&self, block: &mut ParamBlock) -> Result<()> {
        // Of byte tensors, so in bytes.
        let (k, v) = (self.k_packed.strides(), self.v_packed.strides());
        let (k_scale, v_scale) = (self.k_scale.strides(), self.v_scale.strides());
        block
            .pointer("k", self.k_packed.address())?
            .pointer("v", self.v_packed.address())?
            .pointer("k_scale", self.k_scale.address())?
            .pointer("v_scale", self.v_scale.address())?
            .u64("k_page_stride", k[0])?
            .u64("k_head_stride", k[1])?
            .u64("k_token_stride", k[2])?
            .u64("v_page_stride", v[0])?
            .u64("v_head_stride", v[1])?
            .u64("v_token_stride", v[2])?
            .u64("k_scale_page_stride", k_scale[0])?
            .u64("k_scale_head_stride", k_scale[1])?
            .u64("v_scale_page_stride", v_scale[0])?
            .u64("v_scale_head_stride", v_scale[1])?;
        Ok(())
    }
}

/// Puts address and strides of the queries, likewise.
pub(super) fn put_queries(block: &mut ParamBlock, q: &TensorView<'_>) -> Result<()> {
    let strides = q.strides();
    block.pointer("q", q.address())?.u64("q_token_stride", strides[0])?.u64("q_head_stride", strides[1])?;
    Ok(())
}

/// Checks a byte tensor that the copy engine reads: the innermost `dense` dimensions contiguous, the other strides and
/// the address multiples of 16.
fn copyable(name: &'static str, view: &TensorView<'_>, dense: usize) -> Result<()> {
    if view.is_empty() {
        return Ok(());
    }
    let outer = view.shape().len() - dense;
    let mut contiguous = 1;
    for (dimension, (&size, &stride)) in view.shape().iter().zip(view.strides()).enumerate().rev() {
        let expected = match dimension >= outer {
            true if stride != contiguous => Some(format!("stride {contiguous} of dimension {dimension}")),
            false if stride == 0 || stride % COPY_ALIGNMENT != 0 => {
                Some(format!("a positive stride of dimension {dimension} that is a multiple of {COPY_ALIGNMENT} bytes"))
            }
            _ => None,
        };
        if let Some(expected) = expected {
            return Err(Error::argument(name, Property::Layout, expected, stride));
        }
        contiguous *= size;
    }
    if !view.address().is_multiple_of(COPY_ALIGNMENT) {
        let expected = format!("an address that is a multiple of {COPY_ALIGNMENT}");
        return Err(Error::argument(name, Property::Alignment, expected, format!("{:#x}", view.address())));
    }
    Ok(())
}

fn check_table(problem: &Nvfp4Context, table: &TensorView<'_>) -> Result<()> {
    let dtype = if table.dtype() == DType::U32 { DType::U32 } else { DType::I32 };
    table.expect("page_table", dtype, &problem.page_table_shape())?;
    if table.is_empty() {
        return Ok(());
    }
    if table.strides()[1] != 1 {
        return Err(Error::argument("page_table", Property::Layout, "unit stride along pages", table.strides()[1]));
    }
    if problem.batch > 1 && i32::try_from(table.strides()[0]).is_err() {
        return Err(Error::argument("page_table", Property::Size, "a row stride below 2^31", table.strides()[0]));
    }
    if !table.address().is_multiple_of(4) {
        let given = format!("{:#x}", table.address());
        return Err(Error::argument("page_table", Property::Alignment, "an address that is a multiple of 4", given));
    }
    Ok(())
}

fn check_scales(args: &Nvfp4ContextArgs<'_>) -> Result<()> {
    match (&args.bmm1_scale, &args.bmm2_scale) {
        (Scale::Host(bmm1), Scale::Host(bmm2)) => {
            if !(bmm1.is_finite() && *bmm1 > 0.0) {
                return Err(Error::value("bmm1_scale", "a finite positive number", bmm1));
            }
            if !bmm2.is_finite() {
                return Err(Error::value("bmm2_scale", "a finite number", bmm2));
            }
            Ok(())
        }
        (Scale::Device(bmm1), Scale::Device(bmm2)) => {
            for (name, view) in [("bmm1_scale", bmm1), ("bmm2_scale", bmm2)] {
                check_dense(name, view, DType::F32, &[1])?;
            }
            Ok(())
        }
        (Scale::Host(_), Scale::Device(_)) => {
            Err(Error::argument("bmm2_scale", Property::Location, "a host value, like bmm1_scale", "a device tensor"))
        }
        (Scale::Device(_), Scale::Host(_)) => {
            Err(Error::argument("bmm2_scale", Property::Location, "a device tensor, like bmm1_scale", "a host value"))
        }
    }
}

/// A tensor map: parameter field, tensor, request.
pub(super) type Map = (&'static str, &'static str, TensorMapRequest);

fn map(address: u64, dims: &[u64], strides: &[u64], box_dims: &[u32], swizzle: Swizzle) -> TensorMapRequest {
    TensorMapRequest::tiled(MapType::U8, address, dims, strides, box_dims, swizzle)
}

/// The map of the queries.
pub(super) fn queries(problem: &Nvfp4Context, schedule: &Schedule, args: &Nvfp4ContextArgs<'_>) -> Map {
    let pack = u64::from(schedule.pack);
    let strides = args.q.strides();
    let request = map(
        args.q.address(),
        &[problem.head_dim, pack, problem.total_q, problem.q_heads / pack],
        &[strides[1], strides[0], pack * strides[1]],
        &[HEAD_DIM, schedule.pack, schedule.tokens_per_half(), 1],
        Swizzle::B128,
    );
    ("q", "q", request)
}

/// The maps of the cache: a page of a head at a time.
pub(super) fn cache(problem: &Nvfp4Context, args: &Nvfp4ContextArgs<'_>) -> [Map; 4] {
    // A pool without pages serves empty caches only, whose page lies outside any tensor: no byte of it is read.
    let base = |view: &TensorView<'_>| if view.is_empty() { args.q.address() } else { view.address() };
    let pages = problem.num_pages.max(1);
    let codes = |view: &TensorView<'_>| {
        let strides = view.strides();
        map(
            base(view),
            &[problem.head_dim / 2, problem.page_tokens, problem.kv_heads, pages],
            &[strides[2], strides[1], strides[0]],
            &[HEAD_DIM / 2, PAGE_TOKENS, 1, 1],
            Swizzle::None,
        )
    };
    let scales = |view: &TensorView<'_>| {
        let [_, _, tokens, groups] = problem.scale_shape();
        let strides = view.strides();
        let page = tokens * groups;
        map(
            base(view),
            &[page, problem.kv_heads, pages],
            &[strides[1], strides[0]],
            &[page as u32, 1, 1],
            Swizzle::None,
        )
    };
    [
        ("k", "k_packed", codes(&args.k_packed)),
        ("v", "v_packed", codes(&args.v_packed)),
        ("k_scale", "k_scale", scales(&args.k_scale)),
        ("v_scale", "v_scale", scales(&args.v_scale)),
    ]
}
