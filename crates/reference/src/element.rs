//! Element types: to `f64` exactly, from `f64` with one rounding.

use bakewell_core::DType;
use half::{bf16, f16};

/// A floating-point element of a tensor.
pub trait Element: Copy + Send + Sync + 'static {
    /// Its name in tensors.
    const DTYPE: DType;

    /// The value; every element type is a subset of `f64`.
    fn to_f64(self) -> f64;

    /// The nearest element, ties to even.
    fn from_f64(value: f64) -> Self;

    /// Elements from little-endian bytes; a rest shorter than an element is ignored.
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;

    /// Little-endian bytes of elements.
    fn to_bytes(elements: &[Self]) -> Vec<u8>;
}

macro_rules! element {
    ($type:ty, $dtype:expr, $bytes:literal, |$to:ident| $to_f64:expr, |$from:ident| $from_f64:expr) => {
        impl Element for $type {
            const DTYPE: DType = $dtype;

            fn to_f64(self) -> f64 {
                let $to = self;
                $to_f64
            }

            fn from_f64($from: f64) -> Self {
                $from_f64
            }

            fn from_bytes(bytes: &[u8]) -> Vec<Self> {
                bytes.as_chunks::<$bytes>().0.iter().map(|&element| <$type>::from_le_bytes(element)).collect()
            }

            fn to_bytes(elements: &[Self]) -> Vec<u8> {
                elements.iter().flat_map(|element| element.to_le_bytes()).collect()
            }
        }
    };
}

element!(f16, DType::F16, 2, |x| f64::from(x), |x| f16::from_f32(to_odd_f32(x)));
element!(bf16, DType::Bf16, 2, |x| f64::from(x), |x| bf16::from_f32(to_odd_f32(x)));
element!(f32, DType::F32, 4, |x| f64::from(x), |x| x as f32);
element!(f64, DType::F64, 8, |x| x, |x| x);

/// `f64` to `f32`, rounded to odd: an inexact result keeps a set last bit, so that a second rounding to a type at
/// least two bits narrower gives what a single one would.
fn to_odd_f32(value: f64) -> f32 {
    let nearest = value as f32;
    if f64::from(nearest) == value || nearest.is_nan() {
        return nearest;
    }
    let away = f64::from(nearest).abs() > value.abs();
    f32::from_bits((nearest.to_bits() - u32::from(away)) | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 + half an ulp of f16 plus a bit that binary32 loses: rounding twice would find a tie and go down.
    #[test]
    fn rounding_happens_once() {
        let half_ulp = 2f64.powi(-11);
        let above_tie = 1.0 + half_ulp + 2f64.powi(-40);
        assert_eq!(f16::from_f32(above_tie as f32).to_f64(), 1.0, "two roundings go down");
        assert_eq!(<f16 as Element>::from_f64(above_tie).to_bits(), 0x3c01);
        assert_eq!(<f16 as Element>::from_f64(1.0 + half_ulp).to_bits(), 0x3c00, "a tie goes to even");
        assert_eq!(<f16 as Element>::from_f64(1.0 + half_ulp - 2f64.powi(-40)).to_bits(), 0x3c00);
        assert_eq!(<bf16 as Element>::from_f64(1.0 + 2f64.powi(-8) + 2f64.powi(-50)).to_bits(), 0x3f81);
    }

    #[test]
    fn ends_of_the_range_and_specials() {
        let f16_bits = |x| <f16 as Element>::from_f64(x).to_bits();
        assert_eq!(f16_bits(65519.999), 0x7bff, "below the midpoint to 65536");
        assert_eq!(f16_bits(65520.0), 0x7c00);
        assert_eq!(f16_bits(1e300), 0x7c00);
        assert_eq!(f16_bits(-1e300), 0xfc00);
        assert_eq!(f16_bits(-0.0), 0x8000);
        assert_eq!(f16_bits(2f64.powi(-25)), 0x0000, "a tie to zero");
        assert_eq!(f16_bits(2f64.powi(-25) * 1.000_000_1), 0x0001);
        assert_eq!(f16_bits(1e-300), 0x0000);
        assert!(<f16 as Element>::from_f64(f64::NAN).is_nan());
        assert_eq!(<bf16 as Element>::from_f64(f64::INFINITY).to_bits(), 0x7f80);
        assert_eq!(<bf16 as Element>::from_f64(f64::MAX).to_bits(), 0x7f80);
    }

    #[test]
    fn bytes_round_trip() {
        let elements = [f16::from_f32(1.5), f16::from_f32(-2.0)];
        let bytes = f16::to_bytes(&elements);
        assert_eq!(bytes, [0x00, 0x3e, 0x00, 0xc0]);
        assert_eq!(<f16 as Element>::from_bytes(&bytes), elements);
    }
}
