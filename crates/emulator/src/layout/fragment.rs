//! Register fragments of `mma.sync` and `wgmma` (ISA notes, async 5.7 and 6.2).
//!
//! Every certain shape follows one rule: with `e = 32 / bits` elements in a 32-bit register (one in a 64-bit register
//! for `f64`), lane `t`, `g = t / 4`, `q = t % 4`, register `j` of A holds row `g + 8 * (j % 2)`, columns
//! `q * e + 4 * e * (j / 2)` onward; register `j` of B holds column `g`, k from `q * e + 4 * e * j` onward. Shapes with
//! 8 rows use only the even rule.

/// Row and column of an element of A, or k and column of an element of B, or row and column of C and D.
pub type Position = (u32, u32);

/// Elements in one register of an operand of `bits`-bit elements.
#[inline]
pub const fn elements_per_register(bits: u32) -> u32 {
    if bits >= 32 { 1 } else { 32 / bits }
}

/// Row and k of element `element` of register `register` of A, 16-row shapes.
#[inline]
pub const fn a(bits: u32, lane: u32, register: u32, element: u32) -> Position {
    let e = elements_per_register(bits);
    (lane / 4 + 8 * (register % 2), (lane % 4) * e + element + 4 * e * (register / 2))
}

/// Row and k of element `element` of register `register` of A, 8-row shapes (m8n8).
#[inline]
pub const fn a8(bits: u32, lane: u32, register: u32, element: u32) -> Position {
    let e = elements_per_register(bits);
    (lane / 4, (lane % 4) * e + element + 4 * e * register)
}

/// k and column of element `element` of register `register` of B.
#[inline]
pub const fn b(bits: u32, lane: u32, register: u32, element: u32) -> Position {
    let e = elements_per_register(bits);
    ((lane % 4) * e + element + 4 * e * register, lane / 4)
}

/// Row and column of accumulator element `i`: two adjacent columns per row, then the rows 8 below (m8n8 has only the
/// first two). 16-bit accumulators pack elements `2 * r` and `2 * r + 1` into register `r`.
#[inline]
pub const fn c(lane: u32, i: u32) -> Position {
    (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2)
}

/// Row and column of accumulator element `i` of a wgmma, `0..n / 2`: warp `warp` (0..4) of the group.
#[inline]
pub const fn wgmma_d(warp: u32, lane: u32, i: u32) -> Position {
    (16 * warp + lane / 4 + 8 * ((i >> 1) & 1), 8 * (i >> 2) + 2 * (lane % 4) + (i & 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element exactly once.
    fn covers(positions: impl Iterator<Item = Position>, rows: u32, columns: u32) {
        let mut seen = vec![false; (rows * columns) as usize];
        let mut count = 0;
        for (row, column) in positions {
            assert!(row < rows && column < columns, "({row}, {column})");
            assert!(!std::mem::replace(&mut seen[(row * columns + column) as usize], true), "({row}, {column}) twice");
            count += 1;
        }
        assert_eq!(count, rows * columns);
    }

    fn all(registers: u32, elements: u32) -> impl Iterator<Item = (u32, u32, u32)> {
        (0..32).flat_map(move |t| (0..registers).flat_map(move |j| (0..elements).map(move |i| (t, j, i))))
    }

    #[test]
    fn fragments_are_bijections() {
        for (bits, ks) in [(4, &[32, 64][..]), (8, &[16, 32]), (16, &[8, 16]), (32, &[4, 8]), (64, &[4, 8, 16])] {
            let e = elements_per_register(bits);
            for &k in ks {
                let registers = k / (4 * e);
                covers(all(2 * registers, e).map(|(t, j, i)| a(bits, t, j, i)), 16, k);
                covers(all(registers, e).map(|(t, j, i)| a8(bits, t, j, i)), 8, k);
                covers(all(registers, e).map(|(t, j, i)| b(bits, t, j, i)), k, 8);
            }
        }
        covers(all(1, 4).map(|(t, _, i)| c(t, i)), 16, 8);
        covers(all(1, 2).map(|(t, _, i)| c(t, i)), 8, 8);
        for n in [8, 24, 256] {
            let d = (0..4).flat_map(|w| all(1, n / 2).map(move |(t, _, i)| wgmma_d(w, t, i)));
            covers(d, 64, n);
        }
    }

    /// The table of the ISA notes, column by column.
    #[test]
    fn fragments_match_the_table() {
        for t in 0..32 {
            let (g, q) = (t / 4, t % 4);
            for i in 0..4u32 {
                assert_eq!(a(32, t, i, 0), (g + 8 * (i & 1), q + 4 * (i >> 1)), "tf32");
                assert_eq!(c(t, i), (g + 8 * (i >> 1), 2 * q + (i & 1)));
            }
            for i in 0..8u32 {
                assert_eq!(a(16, t, i / 2, i % 2), (g + 8 * ((i >> 1) & 1), 2 * q + (i & 1) + 8 * (i >> 2)), "f16 k16");
                assert_eq!(b(8, t, i / 4, i % 4), (4 * q + (i & 3) + 16 * (i >> 2), g), "s8 k32");
                assert_eq!(a(8, t, i / 4, i % 4), (g + 8 * (i >> 2), 4 * q + (i & 3)), "s8 k16");
            }
            for i in 0..16u32 {
                assert_eq!(a(8, t, i / 4, i % 4), (g + 8 * ((i >> 2) & 1), 4 * q + (i & 3) + 16 * (i >> 3)), "s8 k32");
                assert_eq!(b(4, t, i / 8, i % 8), (8 * q + (i & 7) + 32 * (i >> 3), g), "s4 k64");
            }
            for i in 0..32u32 {
                assert_eq!(a(4, t, i / 8, i % 8), (g + 8 * ((i >> 3) & 1), 8 * q + (i & 7) + 32 * (i >> 4)), "s4 k64");
            }
        }
        assert_eq!(wgmma_d(2, 5, 6), (32 + 1 + 8, 8 + 2));
    }
}
