//! Goldens and generated cases on every engine.

use bakewell_conformance::nvfp4_context::{Case, Expected, Inputs, cases};
use bakewell_conformance::{Judged, TensorFile};
use bakewell_reference::nvfp4_context::{Side, dequantise_page};
use bakewell_reference::small_float::{dequantise, e4m3_to_f64};
use bakewell_tests::runs::verify;
use bakewell_tests::{data, on_every_engine};

use super::goldens;

#[test]
fn every_golden_is_met() {
    let goldens = goldens();
    assert_eq!(goldens.len(), 14);
    on_every_engine(|device| {
        for golden in &goldens {
            for (way, mut inputs) in golden.inputs.ways(device) {
                inputs.problem.lse = true;
                let verdict = verify(device, &inputs, &golden.expected)
                    .map_err(|failure| format!("{} {way}: {failure}", golden.name))?;
                println!("{device} {} {way}: {}", golden.name, verdict.summary);
            }
        }
        Ok(())
    });
}

/// The reference's model, unlike a kernel, has the golden's roundings and no others: every byte is equal.
#[test]
fn the_reference_agrees_with_every_golden() {
    for golden in goldens() {
        let expected = golden.inputs.expected().unwrap();
        assert_eq!(expected.model, golden.expected.model, "{}", golden.name);
        for (got, want) in expected.exact.iter().zip(&golden.expected.exact) {
            assert!((got - want).abs() <= 1e-12 * want.abs().max(1.0), "{}: {got} for {want}", golden.name);
        }
    }
}

#[test]
fn every_generated_case_is_met() {
    let prepared: Vec<(Case, Inputs, Expected)> = cases()
        .into_iter()
        .map(|case| {
            let mut inputs = case.inputs();
            inputs.problem.lse = true;
            let expected = inputs.expected().unwrap();
            (case, inputs, expected)
        })
        .collect();
    on_every_engine(|device| {
        for (case, inputs, expected) in prepared.iter().filter(|(case, ..)| case.runs_on(device)) {
            verify(device, inputs, expected).map_err(|failure| format!("{}: {failure}", case.name))?;
        }
        Ok(())
    });
}

/// All 4096 products of a code and a scale, and every page of the goldens' pools, byte by byte. NaN is a class.
#[test]
fn dequantised_bytes_are_exact() {
    let load =
        |name: &str| TensorFile::load("golden", &data(&format!("golden/nvfp4_context/{name}.safetensors"))).unwrap();
    let same = |got: u8, want: u8| got == want || (e4m3_to_f64(got).is_nan() && e4m3_to_f64(want).is_nan());
    let table = load("dequant_table");
    for (i, &want) in table.tensor("e4m3").unwrap().bytes.iter().enumerate() {
        let (code, scale) = ((i / 256) as u8, (i % 256) as u8);
        assert!(same(dequantise(code, scale), want), "code {code} scale {scale:#x}");
    }
    for name in ["edge_scales_g2", "nan_scales_dequant_only", "raw_codes_g4"] {
        let file = load(name);
        for (codes, scales, wanted, side) in
            [("k_packed", "k_scale", "k_deq", Side::K), ("v_packed", "v_scale", "v_deq", Side::V)]
        {
            let [codes, scales, wanted] = [codes, scales, wanted].map(|tensor| &file.tensor(tensor).unwrap().bytes);
            for ((codes, scales), wanted) in
                codes.chunks_exact(1024).zip(scales.chunks_exact(128)).zip(wanted.chunks_exact(2048))
            {
                let got = dequantise_page(codes, scales, side);
                assert!(got.iter().zip(wanted).all(|(&got, &want)| same(got, want)), "{name}: {side:?}");
            }
        }
    }
}
