//! Runs on an engine, and what they must give; failures in words.

use bakewell::{Device, Stream};
use bakewell_conformance::{CallInputs, HostTensor, Judged, Outputs, Staged, Verdict, run};

/// Runs inputs and holds them against what is expected.
///
/// # Errors
/// What failed, or which output is wrong where.
pub fn verify<I: Judged>(device: &Device, inputs: &I, expected: &I::Expected) -> Result<Verdict, String> {
    let (outputs, _) = inputs.run(device).map_err(text)?;
    let verdict = inputs.judge(&outputs, expected, device).map_err(text)?;
    match &verdict.failure {
        Some(failure) => Err(failure.clone()),
        None => Ok(verdict),
    }
}

/// The outputs of one run.
///
/// # Errors
/// What failed.
pub fn outputs<I: CallInputs>(device: &Device, inputs: &I) -> Result<Outputs, String> {
    run(device, inputs).map(|run| run.outputs).map_err(text)
}

/// Launches a binding three times without clearing anything, and binds anew: equal bytes.
///
/// # Errors
/// What failed or differs.
pub fn running_again_gives_equal_bytes<I: CallInputs>(device: &Device, inputs: &I) -> Result<(), String> {
    let staged = Staged::new(device, inputs).map_err(text)?;
    let bound = staged.bind().map_err(text)?;
    let mut first = None;
    for _ in 0..3 {
        bound.launch(Stream::DEFAULT).map_err(text)?;
        let again = staged.outputs().map_err(text)?;
        equal("same binding", first.get_or_insert(again.clone()), &again)?;
    }
    equal("another binding", &first, &Some(outputs(device, inputs)?))
}

/// Bound and launched, then launched again with other values of an input: what a captured graph does.
///
/// # Errors
/// What failed.
pub fn relaunched<I: CallInputs>(
    device: &Device,
    inputs: &I,
    name: &str,
    values: &[HostTensor],
) -> Result<Vec<Outputs>, String> {
    let staged = Staged::new(device, inputs).map_err(text)?;
    let bound = staged.bind().map_err(text)?;
    bound.launch(Stream::DEFAULT).map_err(text)?;
    let launch = |values: &HostTensor| {
        staged.write(name, values)?;
        staged.poison_outputs()?;
        bound.launch(Stream::DEFAULT)?;
        staged.outputs()
    };
    values.iter().map(|values| launch(values).map_err(text)).collect()
}

/// Two results are the same bytes.
///
/// # Errors
/// `what` they are, when they are not.
pub fn equal<T: PartialEq>(what: &str, a: &T, b: &T) -> Result<(), String> {
    if a == b { Ok(()) } else { Err(format!("{what}: other bytes")) }
}

fn text(error: bakewell::Error) -> String {
    error.to_string()
}
