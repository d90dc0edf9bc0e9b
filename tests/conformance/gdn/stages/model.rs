//! The chunkwise algebra in f64, in the form that the stages use, with every intermediate.
//!
//! ```text
//! L = strict lower(beta_i r_i r_j (K K^T)_ij D_ij)      A = (I + L)^-1
//! X = V - e^c r (K S)        Vn = A (beta X)             S' = e^cL S + K^T (r e^(cL - c) Vn)
//! P = scale r r (Q K^T) D    O  = scale e^c r (Q S) + P Vn
//! ```

use bakewell::schedule::gdn::{Chunk, Segment};

use super::inputs::{CHUNK, DIM, Inputs};

/// The forward of every chunk. Chunks are those of [`Inputs::chunks`] without padding; rows are those of the tensors,
/// and NaN in gaps.
#[derive(Debug)]
pub(super) struct Forward {
    /// `[rows, heads]`.
    pub(super) rq: Vec<f64>,
    /// `[rows, heads]`.
    pub(super) rk: Vec<f64>,
    /// `[rows, value_heads]`, log2 units.
    pub(super) gate: Vec<f64>,
    /// `[chunks, value_heads]`: exponent of two that bounds what the chunk leaves of a state; infinity without a bound.
    pub(super) fade: Vec<f64>,
    /// `[chunks, value_heads, 64, 64]`.
    pub(super) a: Vec<f64>,
    /// `[rows, value_heads, 128]`.
    pub(super) v_new: Vec<f64>,
    /// `[rows, value_heads, 128]`.
    pub(super) o: Vec<f64>,
    /// State before each chunk, `[chunks, value_heads, 128 V, 128 K]`.
    pub(super) h: Vec<f64>,
    /// Final states, `[sequences, value_heads, 128 K, 128 V]`.
    pub(super) ht: Vec<f64>,
}

/// One chunk of one value head: rows of the tensors it needs.
struct Rows<'a> {
    inputs: &'a Inputs,
    first: usize,
    tokens: usize,
    head: usize,
    value_head: usize,
    rq: &'a [f64],
    rk: &'a [f64],
    c: Vec<f64>,
}

impl Rows<'_> {
    fn q(&self, t: usize) -> &[f64] {
        &self.inputs.q[((self.first + t) * self.inputs.case.heads + self.head) * DIM..][..DIM]
    }

    fn k(&self, t: usize) -> &[f64] {
        &self.inputs.k[((self.first + t) * self.inputs.case.heads + self.head) * DIM..][..DIM]
    }

    fn v(&self, t: usize) -> &[f64] {
        &self.inputs.v[((self.first + t) * self.inputs.case.value_heads + self.value_head) * DIM..][..DIM]
    }

    fn beta(&self, t: usize) -> f64 {
        self.inputs.beta[(self.first + t) * self.inputs.case.value_heads + self.value_head]
    }

    fn r(&self, norms: &[f64], t: usize) -> f64 {
        norms[(self.first + t) * self.inputs.case.heads + self.head]
    }

    /// Inverse of `I + L`, 64 x 64, identity past the chunk.
    fn inverse(&self) -> Vec<f64> {
        let mut a = vec![0.0; CHUNK * CHUNK];
        for i in 0..CHUNK {
            a[i * CHUNK + i] = 1.0;
        }
        for i in 0..self.tokens {
            for j in 0..i {
                let decay = (self.c[i] - self.c[j]).exp();
                let l = self.beta(i) * self.r(self.rk, i) * self.r(self.rk, j) * dot(self.k(i), self.k(j)) * decay;
                let (done, rest) = a.split_at_mut(i * CHUNK);
                axpy(&mut rest[..CHUNK], -l, &done[j * CHUNK..][..CHUNK]);
            }
        }
        a
    }

    /// `Vn` of a state (V-major), `values` false for the map of the state alone.
    fn v_new(&self, a: &[f64], state: &[f64], values: bool) -> Vec<f64> {
        let y: Vec<f64> = (0..self.tokens)
            .flat_map(|t| {
                let factor = self.c[t].exp() * self.r(self.rk, t);
                state.chunks_exact(DIM).enumerate().map(move |(v, row)| {
                    let value = if values { self.v(t)[v] } else { 0.0 };
                    self.beta(t) * (value - factor * dot(row, self.k(t)))
                })
            })
            .collect();
        let mut v_new = vec![0.0; self.tokens * DIM];
        for t in 0..self.tokens {
            for s in 0..=t {
                axpy(&mut v_new[t * DIM..][..DIM], a[t * CHUNK + s], &y[s * DIM..][..DIM]);
            }
        }
        v_new
    }

    /// The state after the chunk.
    fn update(&self, state: &mut [f64], v_new: &[f64]) {
        let last = self.c[self.tokens - 1];
        state.iter_mut().for_each(|s| *s *= last.exp());
        for t in 0..self.tokens {
            let factor = (last - self.c[t]).exp() * self.r(self.rk, t);
            for (row, value) in state.chunks_exact_mut(DIM).zip(&v_new[t * DIM..][..DIM]) {
                axpy(row, factor * value, self.k(t));
            }
        }
    }

    fn output(&self, state: &[f64], v_new: &[f64], t: usize) -> Vec<f64> {
        let scale = f64::from(self.inputs.case.scale) * self.r(self.rq, t);
        let factor = scale * self.c[t].exp();
        let mut o: Vec<f64> = state.chunks_exact(DIM).map(|row| factor * dot(row, self.q(t))).collect();
        for s in 0..=t {
            let p = scale * self.r(self.rk, s) * dot(self.q(t), self.k(s)) * (self.c[t] - self.c[s]).exp();
            axpy(&mut o, p, &v_new[s * DIM..][..DIM]);
        }
        o
    }
}

impl Forward {
    pub(super) fn of(inputs: &Inputs) -> Forward {
        let case = &inputs.case;
        let (heads, value_heads) = (case.heads, case.value_heads);
        let norms = |x: &[f64]| -> Vec<f64> {
            let norm = |row: &[f64]| if case.l2norm { (dot(row, row) + 1e-6).sqrt().recip() } else { 1.0 };
            let norms = x.chunks_exact(DIM).map(norm).enumerate();
            norms.map(|(i, norm)| if inputs.is_inside(i / heads) { norm } else { f64::NAN }).collect()
        };
        let (rq, rk) = (norms(&inputs.q), norms(&inputs.k));
        let chunks = inputs.chunks();
        let chunks = &chunks[..chunks.len() - 1];
        let mut forward = Forward {
            gate: vec![f64::NAN; inputs.rows * value_heads],
            fade: vec![f64::INFINITY; chunks.len() * value_heads],
            a: Vec::new(),
            v_new: vec![f64::NAN; inputs.rows * value_heads * DIM],
            o: vec![f64::NAN; inputs.rows * value_heads * DIM],
            h: vec![f64::NAN; chunks.len() * value_heads * DIM * DIM],
            ht: Vec::new(),
            rq: Vec::new(),
            rk: Vec::new(),
        };
        forward.a = vec![f64::NAN; chunks.len() * value_heads * CHUNK * CHUNK];
        for sequence in 0..case.lengths.len() {
            for value_head in 0..value_heads {
                let mut state = initial_state(inputs, sequence, value_head);
                let own = chunks.iter().enumerate().filter(|(_, chunk)| chunk.sequence == sequence as i32);
                for (index, chunk) in own {
                    let rows = rows_of(inputs, chunk, value_head, &rq, &rk);
                    let matrix = index * value_heads + value_head;
                    let a = rows.inverse();
                    forward.h[matrix * DIM * DIM..][..DIM * DIM].copy_from_slice(&state);
                    let v_new = rows.v_new(&a, &state, true);
                    for t in 0..rows.tokens {
                        let at = (rows.first + t) * value_heads + value_head;
                        forward.gate[at] = rows.c[t] * std::f64::consts::LOG2_E;
                        forward.v_new[at * DIM..][..DIM].copy_from_slice(&v_new[t * DIM..][..DIM]);
                        forward.o[at * DIM..][..DIM].copy_from_slice(&rows.output(&state, &v_new, t));
                    }
                    forward.a[matrix * CHUNK * CHUNK..][..CHUNK * CHUNK].copy_from_slice(&a);
                    if case.l2norm && (0..rows.tokens).all(|t| (0.0..=2.0).contains(&rows.beta(t))) {
                        forward.fade[matrix] = rows.c[rows.tokens - 1] * std::f64::consts::LOG2_E;
                    }
                    rows.update(&mut state, &v_new);
                }
                forward.ht.extend(transposed(&state));
            }
        }
        Forward { rq, rk, ..forward }
    }
}

/// What a segment does to a state: `S' = M S + H`.
#[derive(Debug)]
pub(super) struct SegmentMap {
    /// `[128 V, 128 K]`.
    pub(super) h: Vec<f64>,
    /// A row per column of `M`.
    pub(super) m: Vec<f64>,
}

impl SegmentMap {
    pub(super) fn of(inputs: &Inputs, model: &Forward, segment: &Segment, value_head: usize) -> SegmentMap {
        let mut h = vec![0.0; DIM * DIM];
        let mut m: Vec<f64> = (0..DIM * DIM).map(|i| if i / DIM == i % DIM { 1.0 } else { 0.0 }).collect();
        let first = segment.first_chunk as usize;
        for chunk in &inputs.chunks()[first..first + segment.chunks as usize] {
            let rows = rows_of(inputs, chunk, value_head, &model.rq, &model.rk);
            let a = rows.inverse();
            for (state, values) in [(&mut h, true), (&mut m, false)] {
                let v_new = rows.v_new(&a, state, values);
                rows.update(state, &v_new);
            }
        }
        SegmentMap { h, m }
    }

    /// The state after the segment; V-major.
    pub(super) fn apply(&self, state: &[f64]) -> Vec<f64> {
        let mut next = self.h.clone();
        for (to, from) in next.chunks_exact_mut(DIM).zip(state.chunks_exact(DIM)) {
            from.iter().zip(self.m.chunks_exact(DIM)).for_each(|(s, column)| axpy(to, *s, column));
        }
        next
    }
}

fn rows_of<'a>(inputs: &'a Inputs, chunk: &Chunk, value_head: usize, rq: &'a [f64], rk: &'a [f64]) -> Rows<'a> {
    let (first, tokens) = (chunk.first_token as usize, chunk.tokens as usize);
    let mut sum = 0.0;
    let gates = (first..first + tokens).map(|row| inputs.g[row * inputs.case.value_heads + value_head]);
    let c = gates.map(|g| {
        sum += g;
        sum
    });
    let c = c.collect();
    Rows { inputs, first, tokens, head: value_head / inputs.group(), value_head, rq, rk, c }
}

/// V-major.
fn initial_state(inputs: &Inputs, sequence: usize, value_head: usize) -> Vec<f64> {
    let index = sequence * inputs.case.value_heads + value_head;
    inputs.h0.as_ref().map_or(vec![0.0; DIM * DIM], |h0| transposed(&h0[index * DIM * DIM..][..DIM * DIM]))
}

/// A 128 x 128 matrix, rows for columns.
pub(super) fn transposed(matrix: &[f64]) -> Vec<f64> {
    (0..DIM * DIM).map(|i| matrix[i % DIM * DIM + i / DIM]).collect()
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(super) fn axpy(y: &mut [f64], factor: f64, x: &[f64]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += factor * x);
}
