//! Calls on tokens that repeat a few: byte for byte what the few give, where the order of sums cannot matter.

use std::ops::Range;

use bakewell::Device;
use bakewell::nvfp4_pre_attention::{Nvfp4PreAttention, OutputFormat};
use bakewell_conformance::nvfp4_pre_attention::Inputs;
use bakewell_conformance::nvfp4_pre_attention::repeated::{Repeated, borders, exact, few};
use bakewell_conformance::{Judged, Outputs};
use bakewell_tests::on_every_engine;
use bakewell_tests::runs::outputs;

use super::small;

fn problem(out_format: OutputFormat) -> Nvfp4PreAttention {
    Nvfp4PreAttention { out_format, heads: 4, ..small(1, 1) }
}

/// The first difference of a call, in some windows.
fn difference(
    device: &Device,
    (few, wanted): (&Inputs, &Outputs),
    (tokens, destinations): (u64, u64),
    windows: &[Range<u64>],
) -> Result<Option<String>, String> {
    let call = Repeated::run(device, few, tokens, destinations).map_err(|error| error.to_string())?;
    call.difference(wanted, windows).map_err(|error| error.to_string())
}

fn none(difference: Option<String>) -> Result<(), String> {
    difference.map_or(Ok(()), Err)
}

#[test]
fn every_byte_of_the_exact_construction() {
    for (out_format, tokens, destinations) in
        [(OutputFormat::Nvfp4, 300, 2), (OutputFormat::E4m3, 129, 4), (OutputFormat::Nvfp4, 128, 1)]
    {
        let few = exact(&problem(out_format), 31).unwrap();
        let (determined, rows) = few.expected().unwrap().determined_rows();
        assert_eq!(determined, rows);
        let wanted = outputs(&Device::reference().unwrap(), &few).unwrap();
        on_every_engine(|device| {
            none(difference(device, (&few, &wanted), (tokens, destinations), &[Range { start: 0, end: tokens }])?)
        });
    }
    let long = Nvfp4PreAttention { hidden: 29_184, ..problem(OutputFormat::Nvfp4) };
    assert!(exact(&long, 31).unwrap_err().to_string().starts_with("hidden"));
}

/// Also where sums may depend on their order: every engine keeps to one.
#[test]
fn tokens_that_are_equal_get_equal_bytes() {
    let few = few(&problem(OutputFormat::Nvfp4), 32);
    on_every_engine(|device| {
        let wanted = outputs(device, &few)?;
        none(difference(device, (&few, &wanted), (257, 2), &[0..128, 128..257])?)
    });
}

/// The comparison itself: one bit of any output, and inputs of the next token.
#[test]
fn other_bytes_are_found() {
    let reference = Device::reference().unwrap();
    let whole = Range { start: 0, end: 140 };
    for out_format in [OutputFormat::Nvfp4, OutputFormat::E4m3] {
        let few = exact(&problem(out_format), 33).unwrap();
        let wanted = outputs(&reference, &few).unwrap();
        let found = |inputs: &Inputs, wanted: &Outputs| {
            difference(&reference, (inputs, wanted), (140, 2), std::slice::from_ref(&whole)).unwrap()
        };
        assert_eq!(found(&few, &wanted), None);
        for name in wanted.0.iter().map(|(name, _)| *name) {
            let mut wrong = wanted.clone();
            wrong.get_mut(name).unwrap().bytes[0] ^= 1;
            assert!(found(&few, &wrong).is_some_and(|found| found.starts_with(name)), "{name}");
        }
        for shifted in ["rope_cos_sin", "adaln_index"] {
            let mut other = few.clone();
            match shifted {
                "rope_cos_sin" => other.rope_cos_sin.bytes.rotate_left(2 * 96),
                _ => other.adaln_index.bytes.rotate_left(4),
            }
            assert!(found(&other, &wanted).is_some(), "{shifted}");
        }
    }
}

/// A row of hidden states has 10752 bytes, one of results 96 times 112.
#[test]
fn windows_lie_around_the_borders_of_32_bits() {
    let most = Nvfp4PreAttention { tokens: 1_597_829, ..Nvfp4PreAttention::default() };
    let windows = borders(&most);
    for token in [0, (1 << 31) / 10_752, (1 << 32) / 10_752, (1 << 33) / 10_752, (1 << 31) / 2688, 1_597_828] {
        assert!(windows.iter().any(|window| window.contains(&token)), "{token}: {windows:?}");
    }
    assert_eq!(borders(&Nvfp4PreAttention { tokens: 140, ..most }), [0..128, 128..140]);
}
