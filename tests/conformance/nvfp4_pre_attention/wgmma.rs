//! The GEMM on warpgroup tensor cores alone: from the goldens' activations to their outputs, byte for byte.

use bakewell::schedule::nvfp4_pre_attention::wgmma::Wgmma;
use bakewell::{Device, architectures};
use bakewell_conformance::nvfp4_pre_attention::Golden;
use bakewell_conformance::nvfp4_pre_attention::wgmma::{Inputs, Outputs, run};
use bakewell_tests::{data, on_every_engine};

/// The schedules of a device for an output; none without warpgroup tensor cores.
fn schedules(device: &Device, inputs: &Inputs) -> Vec<&'static Wgmma> {
    let Some(arch) = device.arch() else { return Vec::new() };
    let all = architectures::find(arch).unwrap().architecture.nvfp4_pre_attention.wgmma.schedules;
    all.iter().filter(|schedule| schedule.output == inputs.output()).collect()
}

fn goldens() -> Vec<(String, Inputs, Outputs)> {
    let goldens = Golden::load_all(&data("golden/nvfp4_pre_attention")).unwrap();
    let load = |golden: Golden| {
        let tensor = |name| golden.tensor(name).unwrap().clone();
        let expected = Outputs {
            out_q: tensor("out_q"),
            out_sf: golden.tensor("out_sf").ok().cloned(),
            debug_q: tensor("q_bf16"),
            debug_k: tensor("k_bf16"),
        };
        (golden.name.clone(), Inputs::of(&golden).unwrap(), expected)
    };
    goldens.into_iter().map(load).collect()
}

/// Also the rows of which the specification determines nothing: the files pin words that any order of the sums gives.
#[test]
fn every_golden_is_met_in_every_byte() {
    let goldens = goldens();
    on_every_engine(|device| {
        for (name, inputs, expected) in &goldens {
            for schedule in schedules(device, inputs) {
                let got = run(device, schedule, inputs).map_err(|error| format!("{name}: {error}"))?;
                if got != *expected {
                    return Err(format!("{name}: other bytes"));
                }
            }
        }
        Ok(())
    });
}

/// One cluster walks all tiles: rings wrap, words and accumulators are handed on from tile to tile.
#[cfg(feature = "emulator")]
#[test]
fn every_seed_and_every_number_of_sms_gives_the_bytes_of_the_golden() {
    use bakewell::Arch;
    use bakewell_tests::emulated::{ORDERS, every_order_gives_the_same};

    let goldens = goldens();
    let (_, inputs, expected) = goldens.iter().find(|(name, ..)| name == "rand_p4_nvfp4_m130_h256_n4").unwrap();
    for (orders, sm_count) in [(&ORDERS[..3], 2), (&ORDERS[3..4], 5)] {
        every_order_gives_the_same("GEMM", Arch::Sm90, sm_count, orders, |device| {
            for schedule in schedules(device, inputs) {
                if run(device, schedule, inputs).map_err(|error| error.to_string())? != *expected {
                    return Err(format!("{}, {sm_count} SMs: other bytes", schedule.name));
                }
            }
            Ok(())
        });
    }
}
