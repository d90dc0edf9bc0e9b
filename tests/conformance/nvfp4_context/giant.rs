//! A pool of more than 2^31 bytes of codes per side, of which a few pages are touched: places must be 64-bit.

use bakewell::nvfp4_context::{Nvfp4Context, Nvfp4ContextArgs, Scale};
use bakewell::{DType, Device, Result, Stream};
use bakewell_conformance::HostTensor;
use bakewell_conformance::nvfp4_context::{Inputs, Spec};
use bakewell_tests::on_every_engine;
use bakewell_tests::runs::{equal, outputs};

use super::generated;

/// First page of the last part of the pool: past 2^31 bytes of codes.
const BASE: u64 = (1 << 21) - 2;

/// The same pages as in `small`, behind `BASE` others.
fn run(device: &Device, small: &Inputs) -> Result<HostTensor> {
    let problem = Nvfp4Context { num_pages: BASE + small.problem.num_pages, lse: false, ..small.problem.clone() };
    let pool = |tensor: &HostTensor| {
        let page_bytes = tensor.bytes.len() as u64 / small.problem.num_pages;
        let pool = device.buffer(problem.num_pages * page_bytes)?;
        pool.write(BASE * page_bytes, &tensor.bytes)?;
        Ok(pool)
    };
    let (k, v) = (pool(&small.k_packed)?, pool(&small.v_packed)?);
    let (k_scale, v_scale) = (pool(&small.k_scale)?, pool(&small.v_scale)?);
    let moved: Vec<i32> =
        small.page_table.to_i32()?.iter().map(|&page| if page < 0 { page } else { page + BASE as i32 }).collect();
    let table = HostTensor::of_i32(&small.page_table.shape, &moved).upload(device)?;
    let (q, lengths) = (small.q.upload(device)?, small.seq_lens_kv.upload(device)?);
    let offsets = small.cu_seqlens_q.upload(device)?;
    let out = device.buffer(small.q.bytes.len() as u64)?;
    device.plan(&problem)?.launch(
        Stream::DEFAULT,
        Nvfp4ContextArgs {
            q: q.view(DType::U8, &problem.q_shape())?,
            k_packed: k.view(DType::U8, &problem.packed_shape())?,
            v_packed: v.view(DType::U8, &problem.packed_shape())?,
            k_scale: k_scale.view(DType::U8, &problem.scale_shape())?,
            v_scale: v_scale.view(DType::U8, &problem.scale_shape())?,
            page_table: table.view(DType::I32, &problem.page_table_shape())?,
            seq_lens_kv: lengths.view(DType::I32, &problem.seq_lens_kv_shape())?,
            cu_seqlens_q: offsets.view(DType::I32, &problem.cu_seqlens_q_shape())?,
            out: out.view(DType::U8, &problem.q_shape())?,
            lse: None,
            sinks: None,
            bmm1_scale: Scale::Host(small.bmm1_scale),
            bmm2_scale: Scale::Host(small.bmm2_scale),
            workspace: None,
        },
    )?;
    device.synchronize(Stream::DEFAULT)?;
    HostTensor::download(&out, DType::U8, &problem.q_shape())
}

#[test]
fn pages_past_32_bits_are_the_right_ones() {
    let spec = Spec { q_heads: 4, kv_heads: 1, q_lens: vec![2, 1], kv_lens: vec![70, 33], sinks: false };
    let small = generated(&spec, Some(1));
    assert!(BASE * 1024 < 1 << 31 && (BASE + small.problem.num_pages) * 1024 > 1 << 31);
    on_every_engine(|device| {
        if device.runtime().is_none() {
            println!("skipped {device}: its buffers are not sparse");
            return Ok(());
        }
        let out = run(device, &small).map_err(|error| error.to_string())?;
        equal("another part of the pool", &outputs(device, &small)?["out"].bytes, &out.bytes)
    });
}
