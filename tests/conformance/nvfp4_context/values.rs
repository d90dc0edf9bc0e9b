//! Goldens and generated cases on every engine.

use bakewell_conformance::nvfp4_context::{Case, Expected, Inputs, PagesInputs, cases};
use bakewell_conformance::{Golden, Judged, TensorFile};
use bakewell_reference::small_float::{dequantise, e4m3_to_f64};
use bakewell_tests::runs::verify;
use bakewell_tests::{data, on_every_engine};

use super::goldens;

#[test]
fn every_golden_is_met() {
    let goldens = goldens();
    assert_eq!(goldens.len(), 17);
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

/// All 4096 products of a code and a scale in the reference. NaN is a class.
#[test]
fn the_reference_has_every_product_of_a_code_and_a_scale() {
    let table = TensorFile::load("golden", &data("golden/nvfp4_context/dequant_table.safetensors")).unwrap();
    for (i, &want) in table.tensor("e4m3").unwrap().bytes.iter().enumerate() {
        let (code, scale) = ((i / 256) as u8, (i % 256) as u8);
        let got = dequantise(code, scale);
        let nan = e4m3_to_f64(got).is_nan() && e4m3_to_f64(want).is_nan();
        assert!(got == want || nan, "code {code} scale {scale:#x}");
    }
}

/// Every byte of every page of the goldens' pools, and every product on either side, from each engine's debug entry.
#[test]
fn dequantised_pages_are_exact() {
    let goldens = Golden::<PagesInputs>::load_all(&data("golden/nvfp4_context")).unwrap();
    assert_eq!(goldens.len(), 18);
    let products = PagesInputs::every_product();
    on_every_engine(|device| {
        for golden in &goldens {
            verify(device, &golden.inputs, &golden.expected)
                .map_err(|failure| format!("{}: {failure}", golden.name))?;
        }
        verify(device, &products, &products.expected().unwrap()).map(|_| ())
    });
}
