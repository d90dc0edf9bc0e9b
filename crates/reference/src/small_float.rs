//! E4M3 and E2M1, the 8- and 4-bit floating-point formats of quantised tensors.
//!
//! | format | sign, exponent, mantissa | bias | largest | special codes |
//! |---|---|---|---|---|
//! | E4M3 ("fn") | 1, 4, 3 | 7 | 448 | NaN 0x7F and 0xFF, no infinity |
//! | E2M1 | 1, 2, 1 | 1 | 6 | none |
//!
//! Source: OCP 8-bit Floating Point Specification; OCP Microscaling Formats.

/// Largest finite E4M3 value.
pub const E4M3_MAX: f64 = 448.0;

/// The NaN that [`e4m3_from_f64`] gives.
pub const E4M3_NAN: u8 = 0x7F;

const E4M3_MAX_CODE: u8 = 0x7E;

/// Value of an E4M3 byte.
pub fn e4m3_to_f64(byte: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 0xF), f64::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f64::NAN,
        (0, _) => mantissa * 2f64.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Nearest E4M3 byte, ties to the even code, saturating at ±448. The sign of zero is kept; NaN gives 0x7F.
pub fn e4m3_from_f64(value: f64) -> u8 {
    if value.is_nan() {
        return E4M3_NAN;
    }
    let code = nearest(value.abs(), E4M3_MAX_CODE, e4m3_to_f64);
    code | (u8::from(value.is_sign_negative()) << 7)
}

/// Nearest code of a format with these magnitudes in ascending order, ties to the even code, saturating.
fn nearest(magnitude: f64, largest: u8, value: impl Fn(u8) -> f64) -> u8 {
    let below_midpoint = |&code: &u8| {
        // Codes are ordered like their values: the first whose upper midpoint is not passed.
        let midpoint = (value(code) + value(code + 1)) / 2.0;
        magnitude < midpoint || (magnitude == midpoint && code % 2 == 0)
    };
    (0..largest).find(below_midpoint).unwrap_or(largest)
}

/// Value of an E2M1 code, the low four bits of `code`.
pub fn e2m1_to_f64(code: u8) -> f64 {
    const MAGNITUDES: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let magnitude = MAGNITUDES[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Nearest E2M1 code, ties to the even code, saturating at ±6. The sign of zero is kept; NaN gives 7.
pub fn e2m1_from_f64(value: f64) -> u8 {
    nearest(value.abs(), 7, e2m1_to_f64) | (u8::from(value.is_sign_negative()) << 3)
}

/// The E4M3 byte of an NVFP4 element: code times scale, one rounding. A NaN scale gives NaN.
pub fn dequantise(code: u8, scale: u8) -> u8 {
    e4m3_from_f64(e2m1_to_f64(code) * e4m3_to_f64(scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_byte_round_trips() {
        for byte in (0..=255u8).filter(|byte| byte & 0x7F != 0x7F) {
            assert_eq!(e4m3_from_f64(e4m3_to_f64(byte)), byte);
        }
        assert!(e4m3_to_f64(0x7F).is_nan() && e4m3_to_f64(0xFF).is_nan());
        assert_eq!((e4m3_to_f64(0x7E), e4m3_to_f64(0x01), e4m3_to_f64(0x38)), (448.0, 0.001953125, 1.0));
    }

    #[test]
    fn ties_go_to_even_and_large_values_saturate() {
        for code in 0..E4M3_MAX_CODE {
            let midpoint = (e4m3_to_f64(code) + e4m3_to_f64(code + 1)) / 2.0;
            let even = code + code % 2;
            assert_eq!(e4m3_from_f64(midpoint), even);
            assert_eq!(e4m3_from_f64(-midpoint), even | 0x80);
            assert_eq!(e4m3_from_f64(midpoint * (1.0 + 1e-12)), code + 1);
            assert_eq!(e4m3_from_f64(midpoint * (1.0 - 1e-12)), code);
        }
        assert_eq!(e4m3_from_f64(1e9), 0x7E);
        assert_eq!(e4m3_from_f64(f64::NEG_INFINITY), 0xFE);
        assert_eq!((e4m3_from_f64(-0.0), e4m3_from_f64(0.0)), (0x80, 0));
        assert_eq!(e4m3_from_f64(f64::NAN), 0x7F);
    }

    #[test]
    fn every_code_and_every_midpoint_between_two() {
        for code in 0..16u8 {
            assert_eq!(e2m1_from_f64(e2m1_to_f64(code)), code);
        }
        // The limits of each code on |v|, nearest even: [.25, .75, 1.25, 1.75, 2.5, 3.5, 5].
        for (code, limit) in [(0u8, 0.25), (1, 0.75), (2, 1.25), (3, 1.75), (4, 2.5), (5, 3.5), (6, 5.0f32)] {
            let even = code + code % 2;
            for (value, expected) in [(limit, even), (limit.next_down(), code), (limit.next_up(), code + 1)] {
                assert_eq!(e2m1_from_f64(value.into()), expected, "{value}");
                assert_eq!(e2m1_from_f64((-value).into()), expected | 8, "-{value}");
            }
        }
        assert_eq!((e2m1_from_f64(1e30), e2m1_from_f64(f64::NEG_INFINITY)), (7, 15));
        assert_eq!((e2m1_from_f64(-0.0), e2m1_from_f64(-1e-30), e2m1_from_f64(0.0)), (8, 8, 0));
    }

    #[test]
    fn dequantisation_rounds_once() {
        assert_eq!(dequantise(0x7, 0x7E), 0x7E, "6 x 448 saturates");
        assert_eq!(dequantise(0xF, 0x7E), 0xFE);
        assert_eq!(dequantise(0x1, 0x01), 0x00, "half the smallest subnormal is a tie to even");
        assert_eq!(dequantise(0x3, 0x01), 0x02, "1.5 of it is a tie to even too");
        assert_eq!(dequantise(0x8, 0x38), 0x80, "minus zero stays");
        assert_eq!(dequantise(0x2, 0xFF), 0x7F);
    }
}
