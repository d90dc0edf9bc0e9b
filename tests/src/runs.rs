//! Runs on an engine, and what they must give; failures in words.

use bakewell::{Device, Stream};
use bakewell_conformance::call::Buffers;
use bakewell_conformance::{CallInputs, HostTensor, Judged, Outputs, Staged, Verdict, run};

use crate::contract::contiguous;

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

/// Strides that callers leave in dimensions of one element, where none means anything.
pub const STRIDES_OF_ONE: [u64; 4] = [0, 3, 1 << 40, u64::MAX];

/// Strides of the contiguous tensor, but for this one of dimensions of one element.
pub fn with_stride_of_one(shape: &[u64], stride: u64) -> Vec<u64> {
    shape.iter().zip(contiguous(shape)).map(|(&size, packed)| if size == 1 { stride } else { packed }).collect()
}

/// Tensors whose dimensions of one element have any stride give the bytes of contiguous ones.
///
/// # Errors
/// What failed or differs.
pub fn strides_of_one_do_not_matter<I: CallInputs>(device: &Device, inputs: &I) -> Result<(), String> {
    let wanted = outputs(device, inputs)?;
    for stride in STRIDES_OF_ONE {
        let buffers = Buffers::new(device, inputs.specs(), |_| 0).map_err(text)?;
        let run = || {
            let mut views = buffers.views()?;
            for spec in inputs.specs() {
                let buffer = buffers.get(spec.name)?;
                if let Some(tensor) = inputs.tensor(spec.name) {
                    buffer.write(0, &tensor.bytes)?;
                }
                let strides = with_stride_of_one(&spec.shape, stride);
                views.put(spec.name, buffer.strided_view(0, spec.dtype, &spec.shape, &strides)?);
            }
            device.plan(inputs.problem())?.launch(Stream::DEFAULT, inputs.args(&views)?)?;
            device.synchronize(Stream::DEFAULT)
        };
        run().map_err(text)?;
        for spec in inputs.specs().into_iter().filter(|spec| spec.output) {
            let got = buffers.download(spec.name).map_err(text)?;
            equal(&format!("{}, stride {stride}", spec.name), &wanted[spec.name].bytes, &got.bytes)?;
        }
    }
    Ok(())
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
