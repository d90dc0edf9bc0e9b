//! Scales: what a power of two takes from one and gives to another changes no bit, and each belongs to one place.

use bakewell_conformance::HostTensor;
use bakewell_conformance::nvfp4_context::Spec;
use bakewell_tests::on_every_engine;
use bakewell_tests::runs::{equal, outputs};

use super::{generated, mixed};

/// A binade more in an E4M3 scale of the generator, which leaves it and its products normal numbers.
fn doubled(scales: &mut HostTensor) {
    scales.bytes.iter_mut().filter(|scale| **scale != 0x7F).for_each(|scale| *scale += 8);
}

#[test]
fn powers_of_two_that_cancel_change_no_bit() {
    on_every_engine(|device| {
        for splits in [1, 2] {
            let inputs = generated(&mixed(), Some(splits));
            let mut other = inputs.clone();
            doubled(&mut other.k_scale);
            doubled(&mut other.v_scale);
            other.bmm1_scale /= 2.0;
            other.bmm2_scale /= 2.0;
            equal("scales doubled, factors halved", &outputs(device, &inputs)?, &outputs(device, &other)?)?;
        }
        Ok(())
    });
}

/// Queries that see one page of equal weights: an output byte is the scale of its page, head and group times the code
/// 2, so that a page, head or group read for another is another byte.
#[test]
fn every_output_names_its_page_head_and_group() {
    const REQUESTS: usize = 3;
    let spec = Spec { q_heads: 4, kv_heads: 2, q_lens: vec![1; REQUESTS], kv_lens: vec![16; REQUESTS], sinks: false };
    let mut inputs = generated(&spec, Some(1));
    inputs.bmm2_scale = 1.0;
    inputs.k_packed.bytes.fill(0x00);
    inputs.v_packed.bytes.fill(0x44);
    let scale = |page: usize, head: usize, group: usize| (0x20 + (page * 2 + head) * 8 + group) as u8;
    for (tile, scales) in inputs.v_scale.bytes.chunks_exact_mut(128).enumerate() {
        // `[token / 4][group][token % 4]`.
        scales.iter_mut().enumerate().for_each(|(i, byte)| *byte = scale(tile / 2, tile % 2, i / 4 % 8));
    }
    let pages = inputs.page_table.to_i32().unwrap();
    let width = inputs.problem.max_pages as usize;
    let wanted: Vec<u8> = (0..REQUESTS)
        .flat_map(|request| (0..4).map(move |head| (request, head)))
        .flat_map(|(request, head)| (0..128).map(move |dim| (request, head, dim / 16)))
        // Twice the value is eight codes more.
        .map(|(request, head, group)| scale(pages[request * width] as usize, head / 2, group) + 8)
        .collect();
    on_every_engine(|device| equal("page, head and group", &wanted, &outputs(device, &inputs)?["out"].bytes));
}
