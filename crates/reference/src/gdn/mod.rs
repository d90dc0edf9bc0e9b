//! The gated delta rule, token by token: outputs, final states and every gradient.
//!
//! One state `S` of `[head_dim, head_dim]` (key by value) per sequence and value head. Value head `j` reads key head
//! `j / (value_heads / heads)`. From the start state, or zero, each token does
//!
//! ```text
//! S' = e^g S                 decay
//! r  = v - S'^T k            what the state does not yet say about k
//! S  = S' + k (beta r)^T     the delta rule
//! o  = scale S^T q           scale touches the output only
//! ```
//!
//! and, from the last token to the first with `dS` the gradient of the state after the token, the adjoint does
//!
//! ```text
//! dS += scale q do^T         dq = scale S do
//! dw  = dS^T k               dbeta = dw . r         dr = dv = beta dw
//! dk  = dS (beta r) - S' dr  dS' = dS - k dr^T
//! dg  = dS' . S'             dS of the token before = e^g dS'
//! ```
//!
//! `dg` is one product, small because `S'` is: it is exact relative to itself however strong the decay. `dq` and `dk`
//! of a key head are sums over its value heads. With `l2norm`, `q` and `k` are replaced by
//! `y = x / sqrt(x . x + 1e-6)`, unrounded, and a gradient `d` of `y` becomes `(d - (d . y) y) / sqrt(x . x + 1e-6)`.
//!
//! # Two tokens by hand
//!
//! `head_dim` 1, scale 1, start state 4, both gates `e^g = 1/2`, both `beta = 1/2`:
//!
//! | token | k, v, q | S' | r | S | o |
//! |---|---|---|---|---|---|
//! | 1 | 1, 3, 1 | 2 | 3 - 2 = 1 | 2 + 1/2 = 2.5 | 2.5 |
//! | 2 | 1, 3.25, 2 | 1.25 | 3.25 - 1.25 = 2 | 1.25 + 1 = 2.25 | 4.5 |
//!
//! Back with `do = 1, 1` and no gradient of the final state:
//!
//! | token | dS | dq | dw | dbeta | dv | dk | dS' | dg | dS before |
//! |---|---|---|---|---|---|---|---|---|---|
//! | 2 | 2 | 2.25 | 2 | 4 | 1 | 2 - 1.25 = 0.75 | 1 | 1.25 | 0.5 |
//! | 1 | 0.5 + 1 = 1.5 | 2.5 | 1.5 | 1.5 | 0.75 | 0.75 - 1.5 = -0.75 | 0.75 | 1.5 | 0.375 |
//!
//! The last number is the gradient of the start state. Indeed `o1 + o2 = S1 + 2 S2 = 1.5 S1 + 3.25` and
//! `S1 = h0 / 4 + 1.5`, so its derivative by `h0` is 0.375.
//!
//! ```
//! use bakewell_reference::gdn::{Gdn, adjoint, recurrence};
//!
//! let (ln_half, half) = (0.5f64.ln(), 0.5);
//! let problem = Gdn {
//!     heads: 1, value_heads: 1, head_dim: 1, scale: 1.0, l2norm: false, offsets: &[0, 2],
//!     q: &[1.0, 2.0], k: &[1.0, 1.0], v: &[3.0, 3.25], g: &[ln_half; 2], beta: &[half; 2], h0: Some(&[4.0]),
//! };
//! let forward = recurrence(&problem)?;
//! assert_eq!((forward.o, forward.ht), (vec![2.5, 4.5], vec![2.25]));
//! let gradients = adjoint(&problem, &[1.0, 1.0], None)?;
//! assert_eq!((gradients.dk, gradients.dg, gradients.dh0), (vec![-0.75, 0.75], vec![1.5, 1.25], vec![0.375]));
//! # Ok::<(), bakewell_core::Error>(())
//! ```
//!
//! | module | subject |
//! |---|---|
//! | [`mod@recurrence`] | forward |
//! | [`mod@adjoint`] | backward |

pub mod adjoint;
pub mod recurrence;

use bakewell_core::error::Property;
use bakewell_core::{Error, Result};

pub use adjoint::{Gradients, adjoint};
pub use recurrence::{Forward, recurrence};

/// Added to the sum of squares of a row under the root.
pub const L2_EPSILON: f64 = 1e-6;

/// A problem; all slices row-major and contiguous.
#[derive(Clone, Copy, Debug)]
pub struct Gdn<'a> {
    /// Key heads.
    pub heads: usize,
    /// Value heads, a multiple of `heads`.
    pub value_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Factor of the output.
    pub scale: f64,
    /// Whether rows of `q` and `k` are normalised first.
    pub l2norm: bool,
    /// First token of each sequence and the end of the last, `[sequences + 1]`: from 0, not decreasing.
    pub offsets: &'a [usize],
    /// `[tokens, heads, head_dim]`.
    pub q: &'a [f64],
    /// `[tokens, heads, head_dim]`.
    pub k: &'a [f64],
    /// `[tokens, value_heads, head_dim]`.
    pub v: &'a [f64],
    /// Natural logarithm of the decay, at most 0, `[tokens, value_heads]`.
    pub g: &'a [f64],
    /// Strength of a write, `[tokens, value_heads]`.
    pub beta: &'a [f64],
    /// Start states `[sequences, value_heads, head_dim (key), head_dim (value)]`; zero without.
    pub h0: Option<&'a [f64]>,
}

impl Gdn<'_> {
    /// Number of sequences.
    pub fn sequences(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Tokens of all sequences.
    pub fn tokens(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0)
    }

    fn state_elements(&self) -> usize {
        self.head_dim * self.head_dim
    }

    /// Key head that a value head reads.
    fn key_head(&self, value_head: usize) -> usize {
        value_head / (self.value_heads / self.heads)
    }

    /// The state of a sequence and value head out of all of them, zero without any.
    fn state(&self, states: Option<&[f64]>, sequence: usize, value_head: usize) -> Vec<f64> {
        let elements = self.state_elements();
        match states {
            Some(states) => states[(sequence * self.value_heads + value_head) * elements..][..elements].to_vec(),
            None => vec![0.0; elements],
        }
    }

    /// What token `t` gives a value head.
    fn token(&self, t: usize, value_head: usize) -> Token<'_> {
        let (dim, head) = (self.head_dim, self.key_head(value_head));
        let row = |x: &[f64]| Row::new(&x[(t * self.heads + head) * dim..][..dim], self.l2norm);
        let at = t * self.value_heads + value_head;
        let v = &self.v[at * dim..][..dim];
        Token { q: row(self.q), k: row(self.k), v, decay: self.g[at].exp(), beta: self.beta[at] }
    }

    fn validate(&self) -> Result<()> {
        let &Gdn { heads, value_heads, head_dim, .. } = self;
        if heads == 0 || value_heads == 0 || !value_heads.is_multiple_of(heads) {
            let expected = format!("a positive multiple of {heads} key heads");
            return Err(Error::value("value_heads", expected, value_heads));
        }
        if self.offsets.first() != Some(&0) || !self.offsets.is_sorted() {
            let expected = "offsets from 0 that never decrease";
            return Err(Error::value("offsets", expected, format!("{:?}", self.offsets)));
        }
        let (tokens, sequences) = (self.tokens(), self.sequences());
        expect_len("q", tokens * heads * head_dim, self.q)?;
        expect_len("k", tokens * heads * head_dim, self.k)?;
        expect_len("v", tokens * value_heads * head_dim, self.v)?;
        expect_len("g", tokens * value_heads, self.g)?;
        expect_len("beta", tokens * value_heads, self.beta)?;
        // A decay itself, given for its logarithm, is positive.
        if let Some(gate) = self.g.iter().find(|&&gate| gate > 0.0) {
            return Err(Error::value("g", "logarithms of decays, at most 0", gate));
        }
        match self.h0 {
            Some(h0) => expect_len("h0", sequences * value_heads * self.state_elements(), h0),
            None => Ok(()),
        }
    }
}

fn expect_len(argument: &'static str, expected: usize, given: &[f64]) -> Result<()> {
    if given.len() == expected {
        return Ok(());
    }
    Err(Error::argument(argument, Property::Shape, format!("{expected} elements"), given.len()))
}

/// A row of `q` or `k` as the recurrence uses it.
struct Row {
    /// The row, normalised if asked for.
    y: Vec<f64>,
    /// What it was multiplied by; 1 without normalisation.
    reciprocal: f64,
    normalised: bool,
}

impl Row {
    fn new(x: &[f64], normalised: bool) -> Row {
        let reciprocal = if normalised { (dot(x, x) + L2_EPSILON).sqrt().recip() } else { 1.0 };
        Row { y: x.iter().map(|x| x * reciprocal).collect(), reciprocal, normalised }
    }

    /// Turns a gradient of the used row into one of the given row.
    fn pull_back(&self, gradient: &mut [f64]) {
        if self.normalised {
            let along = dot(gradient, &self.y);
            gradient.iter_mut().zip(&self.y).for_each(|(d, y)| *d = self.reciprocal * (*d - along * y));
        }
    }
}

/// One token of one value head.
struct Token<'a> {
    q: Row,
    k: Row,
    v: &'a [f64],
    decay: f64,
    beta: f64,
}

impl Token<'_> {
    /// Decays the state; gives what it does not yet say about `k`.
    fn residual(&self, state: &mut [f64]) -> Vec<f64> {
        state.iter_mut().for_each(|s| *s *= self.decay);
        let mut residual = self.v.to_vec();
        for (row, k) in state.chunks_exact(residual.len()).zip(&self.k.y) {
            residual.iter_mut().zip(row).for_each(|(r, s)| *r -= k * s);
        }
        residual
    }

    /// Writes `k (beta residual)^T`.
    fn write(&self, state: &mut [f64], residual: &[f64]) {
        add_outer(state, &self.k.y, self.beta, residual);
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `matrix += factor * column row^T`.
fn add_outer(matrix: &mut [f64], column: &[f64], factor: f64, row: &[f64]) {
    for (line, c) in matrix.chunks_exact_mut(row.len()).zip(column) {
        line.iter_mut().zip(row).for_each(|(m, r)| *m += factor * c * r);
    }
}

/// `matrix vector`.
fn product(matrix: &[f64], vector: &[f64]) -> Vec<f64> {
    matrix.chunks_exact(vector.len()).map(|row| dot(row, vector)).collect()
}

/// `matrix^T vector`.
fn transposed_product(matrix: &[f64], vector: &[f64]) -> Vec<f64> {
    let mut sum = vec![0.0; matrix.len() / vector.len()];
    for (row, v) in matrix.chunks_exact(sum.len()).zip(vector) {
        sum.iter_mut().zip(row).for_each(|(s, m)| *s += v * m);
    }
    sum
}

#[cfg(test)]
mod tests;
