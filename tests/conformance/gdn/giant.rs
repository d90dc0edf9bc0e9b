//! Inputs whose later tokens lie past 2^31 elements: places must be 64-bit.

use bakewell_conformance::gdn::{Case, Place};

use super::{equal, on_some_engines, outputs};

/// Tokens 63 and 64 lie on either side of 2^31 elements.
#[test]
fn tokens_past_32_bits_are_the_right_ones() {
    let inputs = Case { lengths: vec![60, 9], heads: 2, value_heads: 2, ..Case::default() }.inputs().unwrap();
    on_some_engines(|device| {
        if device.runtime().is_none() {
            println!("skipped {device}: its buffers are not sparse");
            return Ok(());
        }
        let near = outputs(device, &inputs, Place::Contiguous)?;
        equal("far apart", &near, &outputs(device, &inputs, Place::Giant)?)
    });
}
