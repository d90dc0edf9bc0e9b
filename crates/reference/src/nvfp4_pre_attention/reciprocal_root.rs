//! `1 / sqrt(x)` in f32, rounded to nearest even once.

use std::cmp::Ordering;

/// The f32 nearest to `1 / sqrt(x)`, for a positive normal number; about that of anything else.
///
/// The f64 result, rounded, is it or a neighbour: the midpoints to the neighbours decide, exactly. A tie cannot occur:
/// a midpoint has 25 significant bits, the square of one 49 or more, and no f32 times that is a power of two.
pub(super) fn reciprocal_root(x: f32) -> f32 {
    let near = (1.0 / f64::from(x).sqrt()) as f32;
    if !x.is_normal() {
        return near;
    }
    let midpoint = |a: f32, b: f32| (f64::from(a) + f64::from(b)) / 2.0;
    if square_times(midpoint(near.next_down(), near), x) == Ordering::Greater {
        near.next_down()
    } else if square_times(midpoint(near, near.next_up()), x) == Ordering::Less {
        near.next_up()
    } else {
        near
    }
}

/// `x m^2` against 1, exactly, for an `m` of at most 25 significant bits.
fn square_times(m: f64, x: f32) -> Ordering {
    let parts = |value: f64| {
        let bits = value.to_bits();
        ((bits & ((1 << 52) - 1) | 1 << 52) as u128, (bits >> 52 & 0x7FF) as i32 - 1075)
    };
    let ((m, m_exponent), (x, x_exponent)) = (parts(m), parts(f64::from(x)));
    // Trailing zeros away: 25 + 25 + 24 bits at most.
    let product = (m >> 28) * (m >> 28) * (x >> 29);
    let exponent = 2 * (m_exponent + 28) + x_exponent + 29;
    // The product is within a factor of four of 1.
    product.cmp(&(1 << -exponent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_roots() {
        for (x, root) in [(1.0, 1.0), (4.0, 0.5), (0.25, 2.0), (2f32.powi(-20), 1024.0), (1e30, 1e-15)] {
            assert_eq!(reciprocal_root(x), root);
        }
    }

    /// Both midpoints around the result are on the right side of the true value, for numbers over two binades.
    #[test]
    fn the_result_is_the_nearest() {
        for bits in (0x3F80_0000..0x4080_0000u32).step_by(997) {
            let x = f32::from_bits(bits);
            let root = reciprocal_root(x);
            let (below, above) = (root.next_down(), root.next_up());
            let midpoint = |a: f32, b: f32| (f64::from(a) + f64::from(b)) / 2.0;
            assert_eq!(square_times(midpoint(below, root), x), Ordering::Less);
            assert_eq!(square_times(midpoint(root, above), x), Ordering::Greater);
        }
    }
}
