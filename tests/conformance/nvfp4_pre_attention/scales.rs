//! A power of two that the activation's encode scale loses goes into its block scales, and no further.

use bakewell::nvfp4::global_scale;
use bakewell::nvfp4_pre_attention::{Nvfp4PreAttention, OutputFormat};
use bakewell_conformance::HostTensor;
use bakewell_conformance::nvfp4_pre_attention::Inputs;
use bakewell_tests::on_every_engine;
use bakewell_tests::runs::{equal, outputs};

use super::small;

#[test]
fn powers_of_two_that_cancel_change_no_result() {
    for out_format in [OutputFormat::Nvfp4, OutputFormat::E4m3] {
        let inputs = Inputs::generate(&Nvfp4PreAttention { out_format, ..small(19, 2) }, 12);
        // Far from both ends of the block scales.
        let with =
            |largest: f32| Inputs { x_global_scale: HostTensor::of(&[1], &[global_scale(largest)]), ..inputs.clone() };
        let (one, half) = (with(16.0), with(32.0));
        on_every_engine(|device| {
            let (mut one, half) = (outputs(device, &one)?, outputs(device, &half)?);
            // A binade less is eight codes less; a block of zeros stays one.
            let scales = one.get_mut("activation_sf").ok_or("no scales")?;
            scales.bytes.iter_mut().filter(|scale| **scale != 0).for_each(|scale| *scale -= 8);
            equal("encode scale halved", &one, &half)
        });
    }
}
