//! Inputs whose later tokens lie past 2^31 and 2^32 bytes and elements: places must be 64-bit.

use bakewell_conformance::gdn::{Case, Place};

use super::{equal, on_some_engines, outputs};

/// 69 tokens, so that the last ones are past 2^32 elements.
#[test]
fn tokens_past_32_bits_are_the_right_ones() {
    for (heads, value_heads) in [(2, 2), (1, 3)] {
        tokens_past_32_bits(heads, value_heads);
    }
}

fn tokens_past_32_bits(heads: u64, value_heads: u64) {
    let inputs = Case { lengths: vec![60, 9], heads, value_heads, ..Case::default() }.inputs().unwrap();
    on_some_engines(|device| {
        if device.runtime().is_none() {
            println!("skipped {device}: its buffers are not sparse");
            return Ok(());
        }
        let near = outputs(device, &inputs, Place::Contiguous)?;
        equal("far apart", &near, &outputs(device, &inputs, Place::Giant)?)
    });
}
