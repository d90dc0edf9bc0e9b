//! The scales that a binding reads, and what follows from them.

use bakewell_core::{Error, Memory, Result, TensorView};

use super::Nvfp4PreAttentionArgs;

/// Scales known on the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scales {
    /// Encode scale of the activation.
    pub(super) activation: f32,
    /// Encode scale of the weight.
    pub(super) weight: f32,
    /// Decode scales of the results, where they have such.
    pub(super) decode: Option<[f32; 3]>,
}

impl Scales {
    /// Reads them from the device, after earlier work on it, and checks the one that only a kernel uses too.
    ///
    /// # Errors
    /// The device's, or [`Error::Argument`] that names a scale that is not positive and finite.
    pub(super) fn read(memory: &dyn Memory, args: &Nvfp4PreAttentionArgs<'_>) -> Result<Scales> {
        let [activation] = numbers(memory, "x_global_scale", &args.x_global_scale)?;
        let [weight] = numbers(memory, "w_global_scale", &args.w_global_scale)?;
        if let Some(view) = &args.out_global_scale {
            numbers::<1>(memory, "out_global_scale", view)?;
        }
        let decode = args.qkv_scales.as_ref().map(|view| numbers(memory, "qkv_scales", view)).transpose()?;
        let scales = Scales { activation, weight, decode };
        let alpha = scales.alpha();
        if !(alpha.is_finite() && alpha > 0.0) {
            let expected = "a scale whose product with x_global_scale has a positive finite reciprocal";
            return Err(Error::value("w_global_scale", expected, format!("{weight} beside {activation}")));
        }
        Ok(scales)
    }

    /// What the GEMM's sums are multiplied by: each operation rounded to f32.
    pub(super) fn alpha(&self) -> f32 {
        1.0 / (self.activation * self.weight)
    }

    /// What Q, K and V are multiplied by before they are rounded to E4M3; 1 for NVFP4, which has no use for it.
    pub(super) fn inverses(&self) -> [f32; 3] {
        self.decode.map_or([1.0; 3], |decode| decode.map(|scale| (1.0 / f64::from(scale)) as f32))
    }
}

/// The elements of a small f32 tensor, positive and finite.
fn numbers<const N: usize>(memory: &dyn Memory, name: &'static str, view: &TensorView<'_>) -> Result<[f32; N]> {
    let mut bytes = [[0; 4]; N];
    memory.read(view.address(), bytes.as_flattened_mut())?;
    let numbers = bytes.map(f32::from_le_bytes);
    match numbers.iter().find(|number| !(number.is_finite() && **number > 0.0)) {
        Some(number) => Err(Error::value(name, "positive finite numbers", number)),
        None => Ok(numbers),
    }
}
