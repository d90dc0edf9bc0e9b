//! The norm kernel alone: every schedule of every architecture, byte for byte.

use bakewell::schedule::nvfp4_pre_attention::norm::Norm;
use bakewell::{DType, Device, architectures};
use bakewell_conformance::HostTensor;
use bakewell_conformance::nvfp4_pre_attention::Golden;
use bakewell_conformance::nvfp4_pre_attention::norm::{Inputs, Outputs, run};
use bakewell_conformance::nvfp4_pre_attention::wgmma;
use bakewell_conformance::random::Random;
use bakewell_tests::{data, on_every_engine};

fn inputs(golden: &Golden) -> Inputs {
    let tensor = |name| golden.tensor(name).unwrap().clone();
    Inputs {
        x: tensor("x"),
        weight: tensor("x_norm_weight"),
        adaln_scale: tensor("adaln_scale"),
        adaln_shift: tensor("adaln_shift"),
        adaln_index: tensor("adaln_index"),
        global_scale: tensor("x_global_scale"),
        eps: golden.parameter("eps").unwrap(),
        out_sf: golden.tensor("out_sf").map_or([0, 0], |out_sf| [out_sf.shape[0], out_sf.shape[1]]),
        debug: true,
    }
}

/// The image that the program for weights makes of the golden's activation, on an architecture whose norm kernel writes
/// one.
fn image(device: &Device, schedule: &Norm, golden: &Golden) -> Option<HostTensor> {
    let codes = golden.tensor("activation_q").unwrap();
    let rows = codes.shape[0].next_multiple_of(128);
    schedule.image.then(|| {
        let image = wgmma::image(device, codes, golden.tensor("activation_sf").unwrap()).unwrap();
        HostTensor::download(&image, DType::Bf16, &[rows, 2 * codes.shape[1]]).unwrap()
    })
}

/// The last tile of each destination is zeroed, the others are left alone.
fn cleared([destinations, bytes]: [u64; 2]) -> Option<HostTensor> {
    const TILE: usize = 1024;
    let one = [vec![0xFF; (bytes as usize).checked_sub(TILE)?], vec![0; TILE]].concat();
    Some(HostTensor { dtype: DType::U8, shape: vec![destinations, bytes], bytes: one.repeat(destinations as usize) })
}

#[test]
fn every_golden_is_met_in_every_byte() {
    let goldens = Golden::load_all(&data("golden/nvfp4_pre_attention")).unwrap();
    assert_eq!(goldens.len(), 15);
    on_every_engine(|device| {
        let Some(arch) = device.arch() else { return Ok(()) };
        let tables = &architectures::find(arch).unwrap().architecture.nvfp4_pre_attention;
        let generic = tables.norm.schedules.iter().find(|schedule| schedule.hidden == 0).unwrap();
        for golden in &goldens {
            let inputs = inputs(golden);
            let expected = Outputs {
                activation_q: golden.tensor("activation_q").unwrap().clone(),
                activation_sf: golden.tensor("activation_sf").unwrap().clone(),
                debug_adaln: Some(golden.tensor("adaln_bf16").unwrap().clone()),
                image: image(device, generic, golden),
                out_sf: cleared(inputs.out_sf),
            };
            let got = run(device, generic, &inputs).map_err(|error| format!("{}: {error}", golden.name))?;
            if got != expected {
                return Err(format!("{}: other bytes", golden.name));
            }
        }
        Ok(())
    });
}

/// Five chunks and a half in registers, or read twice: the same bytes. One row has no table row.
#[test]
fn a_row_in_registers_gives_the_bytes_of_a_row_read_twice() {
    let inputs = random(5376, 3, [2, -1, 0]);
    on_every_engine(|device| {
        let Some(arch) = device.arch() else { return Ok(()) };
        let tables = &architectures::find(arch).unwrap().architecture.nvfp4_pre_attention;
        let run = |hidden| {
            let schedule = tables.norm.schedules.iter().find(|schedule| schedule.hidden == hidden).unwrap();
            run(device, schedule, &inputs).map_err(|error| error.to_string())
        };
        let (kept, read_twice) = (run(5376)?, run(0)?);
        if kept != read_twice {
            return Err("other bytes".to_owned());
        }
        let rows = kept.activation_q.bytes.chunks(5376 / 2);
        assert_eq!(rows.map(|row| row.iter().all(|&byte| byte == 0)).collect::<Vec<_>>(), [false, true, false]);
        Ok(())
    });
}

/// Values of a few units, tables of three rows.
fn random<const TOKENS: usize>(hidden: u64, table_rows: u64, index: [i32; TOKENS]) -> Inputs {
    let mut random = Random::new(5);
    let mut bf16 = |shape: &[u64], scale: f64| {
        let normal = random.normal(shape.iter().product::<u64>() as usize);
        let values: Vec<f64> = normal.iter().map(|value| scale * value).collect();
        HostTensor::rounded(DType::Bf16, shape, &values).unwrap()
    };
    let table = [table_rows, hidden];
    Inputs {
        x: bf16(&[TOKENS as u64, hidden], 3.0),
        weight: bf16(&[hidden], 1.0),
        adaln_scale: bf16(&table, 0.5),
        adaln_shift: bf16(&table, 0.5),
        adaln_index: HostTensor::of_i32(&[TOKENS as u64], &index),
        global_scale: HostTensor::of(&[1], &[413.5f32]),
        eps: 1e-5,
        out_sf: [0, 0],
        debug: true,
    }
}
