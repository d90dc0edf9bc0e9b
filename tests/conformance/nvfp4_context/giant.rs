//! Tensors of more than 2^31 and 2^32 elements and bytes, of which a little is touched: places must be 64-bit.

use bakewell::nvfp4_context::{Family, Nvfp4Context, Nvfp4ContextArgs, Scale};
use bakewell::{Buffer, DType, Device, Result, Stream};
use bakewell_conformance::HostTensor;
use bakewell_conformance::nvfp4_context::{Inputs, Spec};
use bakewell_tests::on_every_engine;
use bakewell_tests::runs::{equal, outputs};

use super::{generated, pinned};

/// First page of the last part of the pool. A page is 1024 bytes of codes and 128 of scales: the third page is the
/// first past byte 2^31 or 2^32 of the codes, and of the scales. A GPU gets the first two.
const FIRST_PAGES: [u64; 4] = [(1 << 21) - 2, (1 << 22) - 2, (1 << 24) - 2, (1 << 25) - 2];

/// Where the first request begins. A token is 512 bytes of queries and of output and 4 elements of log-sum-exp: the
/// second token, or the third, is the first past byte 2^31 or 2^32 of the former, and past element 2^31 of the latter.
const FIRST_TOKENS: [u64; 3] = [(1 << 22) - 1, (1 << 23) - 1, (1 << 29) - 2];

/// Entries of the page table between the rows of two requests: the second begins past byte 2^32.
const TABLE_STRIDE: u64 = (1 << 30) + 1;

/// What `small` has, elsewhere.
#[derive(Clone, Copy)]
struct Place {
    first_page: u64,
    first_token: u64,
    table_stride: u64,
}

/// Output and log-sum-exp of the requests of `small`, whose pages lie behind others of the pool, and whose tokens
/// behind tokens of nobody.
fn run(device: &Device, small: &Inputs, place: Place) -> Result<[Vec<u8>; 2]> {
    let Place { first_page, first_token, table_stride } = place;
    let problem = Nvfp4Context {
        num_pages: first_page + small.problem.num_pages,
        total_q: first_token + small.problem.total_q,
        ..small.problem.clone()
    };
    // The last of `total` items, of which the tensor has some.
    let behind = |first: u64, tensor: &HostTensor| {
        let item_bytes = tensor.bytes.len() as u64 / tensor.shape[0];
        let buffer = device.buffer((first + tensor.shape[0]) * item_bytes)?;
        buffer.write(first * item_bytes, &tensor.bytes)?;
        Ok(buffer)
    };
    let pool = |tensor| behind(first_page, tensor);
    let (k, v) = (pool(&small.k_packed)?, pool(&small.v_packed)?);
    let (k_scale, v_scale) = (pool(&small.k_scale)?, pool(&small.v_scale)?);
    let moved = |tensor: &HostTensor, by: u64| -> Result<HostTensor> {
        let moved: Vec<i32> = tensor.to_i32()?.iter().map(|&at| if at < 0 { at } else { at + by as i32 }).collect();
        Ok(HostTensor::of_i32(&tensor.shape, &moved))
    };
    let (rows, width) = (small.problem.batch, small.problem.max_pages);
    let table = device.buffer(((rows - 1) * table_stride + width) * 4)?;
    let page_ids = moved(&small.page_table, first_page)?;
    for (row, ids) in page_ids.bytes.chunks_exact(width as usize * 4).enumerate() {
        table.write(row as u64 * table_stride * 4, ids)?;
    }
    let (q, lengths) = (behind(first_token, &small.q)?, small.seq_lens_kv.upload(device)?);
    // Decode's columns without a query read the first token of all.
    q.write(0, &small.q.bytes)?;
    let offsets = moved(&small.cu_seqlens_q, first_token)?.upload(device)?;
    let (out, lse) = (device.buffer(q.bytes())?, device.buffer(problem.lse_shape().iter().product::<u64>() * 4)?);
    device.plan(&problem)?.launch(
        Stream::DEFAULT,
        Nvfp4ContextArgs {
            q: q.view(DType::U8, &problem.q_shape())?,
            k_packed: k.view(DType::U8, &problem.packed_shape())?,
            v_packed: v.view(DType::U8, &problem.packed_shape())?,
            k_scale: k_scale.view(DType::U8, &problem.scale_shape())?,
            v_scale: v_scale.view(DType::U8, &problem.scale_shape())?,
            page_table: table.strided_view(0, DType::I32, &problem.page_table_shape(), &[table_stride, 1])?,
            seq_lens_kv: lengths.view(DType::I32, &problem.seq_lens_kv_shape())?,
            cu_seqlens_q: offsets.view(DType::I32, &problem.cu_seqlens_q_shape())?,
            out: out.view(DType::U8, &problem.q_shape())?,
            lse: Some(lse.view(DType::F32, &problem.lse_shape())?),
            sinks: None,
            bmm1_scale: Scale::Host(small.bmm1_scale),
            bmm2_scale: Scale::Host(small.bmm2_scale),
            workspace: None,
        },
    )?;
    device.synchronize(Stream::DEFAULT)?;
    let last = |buffer: &Buffer| {
        let token_bytes = buffer.bytes() / problem.total_q;
        let mut bytes = vec![0; (small.problem.total_q * token_bytes) as usize];
        device.memory().read(buffer.address() + first_token * token_bytes, &mut bytes)?;
        Ok(bytes)
    };
    Ok([last(&out)?, last(&lse)?])
}

/// Every family that the device has gives, in each place, the bytes of the small tensors.
fn compare(device: &Device, small: &Inputs, places: &[Place]) -> Result<(), String> {
    for family in [Family::Paged, Family::Decode, Family::Expanded] {
        let small = pinned(small, family);
        if device.plan(&small.problem).is_err() {
            continue;
        }
        let near = outputs(device, &small)?;
        for &place in places {
            let [out, lse] = run(device, &small, place).map_err(|error| error.to_string())?;
            equal(&format!("{family:?}, output"), &near["out"].bytes, &out)?;
            equal(&format!("{family:?}, log-sum-exp"), &near["lse"].bytes, &lse)?;
        }
    }
    Ok(())
}

/// Two requests of three tokens.
fn small() -> Inputs {
    let spec = Spec { q_heads: 4, kv_heads: 1, q_lens: vec![2, 1], kv_lens: vec![70, 33], sinks: false };
    generated(&spec, Some(1))
}

#[test]
fn pages_past_32_bits_are_the_right_ones() {
    let small = small();
    assert!(small.problem.num_pages > 2);
    on_every_engine(|device| {
        let first_pages = match device.runtime().map(|runtime| runtime.name()) {
            Some(name) if name.starts_with("emulated") => &FIRST_PAGES[..],
            Some(_) => &FIRST_PAGES[..2],
            None => {
                println!("skipped {device}: its buffers are not sparse");
                return Ok(());
            }
        };
        let place = |&first_page| Place { first_page, first_token: 0, table_stride: small.problem.max_pages };
        compare(device, &small, &first_pages.iter().map(place).collect::<Vec<_>>())
    });
}

/// Queries, output, log-sum-exp and page table.
#[test]
fn tokens_and_rows_past_32_bits_are_the_right_ones() {
    let small = small();
    on_every_engine(|device| {
        if !device.runtime().is_some_and(|runtime| runtime.name().starts_with("emulated")) {
            println!("skipped {device}: its buffers are not sparse");
            return Ok(());
        }
        let place = |first_token| Place { first_page: 0, first_token, table_stride: TABLE_STRIDE };
        compare(device, &small, &FIRST_TOKENS.map(place))
    });
}
