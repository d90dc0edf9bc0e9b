//! Goldens and generated cases on every engine.

use bakewell_conformance::gdn::Ratios;

use super::goldens;

/// The recurrence in f64 against outputs in f32 of another one: a rounding apart.
#[test]
fn the_reference_agrees_with_every_golden() {
    let goldens = goldens();
    assert_eq!(goldens.len(), 10);
    for golden in goldens {
        let expected = golden.inputs.expected().unwrap();
        for (name, want) in &golden.expected {
            let ratios = Ratios::of(&expected[name], want);
            println!("{}: {name} {ratios:?}", golden.name);
            assert!(ratios.max < 1e-6, "{}: {name} {ratios:?}", golden.name);
        }
    }
}
