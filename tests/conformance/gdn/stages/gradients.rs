//! The backward of the chunkwise algebra in f64, with everything that a stage hands to the next.
//!
//! ```text
//! dV2 = e^(cL - c) r (K dS) + P^T dO    dVb = A^T dV2    dS' = e^cL dS + Q^T (scale e^c r dO) - K^T (beta e^c r dVb)
//! R   = scale r r D (dO Vn^T)           N'  = -beta r r D (dVb Vn^T)
//! r dQ = scale e^c r (dO S^T) + R K     r dK = e^(cL - c) r (Vn dS^T) - beta e^c r (dVb S^T) + R^T Q + (N' + N'^T) K
//! ```

use bakewell::schedule::gdn::{Chunk, Segment};
use bakewell_conformance::random::Random;

use super::inputs::{CHUNK, DIM, Inputs, round_bf16, round_f32};
use super::model::{Forward, axpy, dot, transposed};

/// What flows into a backward.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    /// `[rows, value_heads, 128]`, NaN in gaps.
    pub(super) grad_o: Vec<f64>,
    /// `[sequences, value_heads, 128 K, 128 V]`.
    pub(super) dht: Option<Vec<f64>>,
}

impl Upstream {
    pub(super) fn new(inputs: &Inputs, with_dht: bool) -> Upstream {
        let case = &inputs.case;
        let mut random = Random::new(case.seed + 1000);
        let width = case.value_heads * DIM;
        let mut grad_o = round_bf16(random.normal(inputs.rows * width));
        for (row, values) in grad_o.chunks_exact_mut(width).enumerate() {
            if !inputs.is_inside(row) {
                values.fill(f64::NAN);
            }
        }
        let states = case.lengths.len() * case.value_heads * DIM * DIM;
        let dht = with_dht.then(|| round_f32(random.normal(states).into_iter().map(|x| x * 0.2).collect()));
        Upstream { grad_o, dht }
    }

    /// V-major.
    fn final_gradient(&self, inputs: &Inputs, sequence: usize, value_head: usize) -> Vec<f64> {
        let index = sequence * inputs.case.value_heads + value_head;
        self.dht.as_ref().map_or(vec![0.0; DIM * DIM], |dht| transposed(&dht[index * DIM * DIM..][..DIM * DIM]))
    }
}

/// Gradients, and what the adjoint scan leaves for the tail. Rows are those of the tensors, NaN in gaps.
#[derive(Clone, Debug)]
pub(super) struct Backward {
    /// `[rows, value_heads, 128]`.
    pub(super) dvb: Vec<f64>,
    /// Gradient of the state after each chunk, `[chunks, value_heads, 128 V, 128 K]`.
    pub(super) dh: Vec<f64>,
    /// `[sequences, value_heads, 128 K, 128 V]`.
    pub(super) dh0: Vec<f64>,
    /// `[rows, heads, 128]`.
    pub(super) dq: Vec<f64>,
    /// `[rows, heads, 128]`.
    pub(super) dk: Vec<f64>,
    /// `[rows, value_heads, 128]`.
    pub(super) dv: Vec<f64>,
    /// `[rows, value_heads]`.
    pub(super) dg: Vec<f64>,
    /// `[rows, value_heads]`.
    pub(super) dbeta: Vec<f64>,
}

impl Backward {
    pub(super) fn of(inputs: &Inputs, forward: &Forward, upstream: &Upstream) -> Backward {
        let case = &inputs.case;
        let (heads, value_heads, rows) = (case.heads, case.value_heads, inputs.rows);
        let chunks = inputs.chunks();
        let absent = |count: usize| vec![f64::NAN; count];
        let mut backward = Backward {
            dvb: absent(rows * value_heads * DIM),
            dh: absent((chunks.len() - 1) * value_heads * DIM * DIM),
            dh0: Vec::new(),
            dq: absent(rows * heads * DIM),
            dk: absent(rows * heads * DIM),
            dv: absent(rows * value_heads * DIM),
            dg: absent(rows * value_heads),
            dbeta: absent(rows * value_heads),
        };
        for row in (0..rows).filter(|row| inputs.is_inside(*row)) {
            backward.dq[row * heads * DIM..][..heads * DIM].fill(0.0);
            backward.dk[row * heads * DIM..][..heads * DIM].fill(0.0);
        }
        for sequence in 0..case.lengths.len() {
            for value_head in 0..value_heads {
                let mut state = upstream.final_gradient(inputs, sequence, value_head);
                let own = chunks.iter().enumerate().filter(|(_, chunk)| chunk.sequence == sequence as i32);
                for (index, chunk) in own.rev() {
                    let terms = Terms::new(inputs, forward, upstream, index, chunk, value_head);
                    backward.dh[terms.matrix() * DIM * DIM..][..DIM * DIM].copy_from_slice(&state);
                    let dvb = terms.step(&mut state);
                    terms.add_gradients(&dvb, &mut backward);
                }
                backward.dh0.extend(transposed(&state));
            }
        }
        pull_back(inputs, &inputs.q, &forward.rq, &mut backward.dq);
        pull_back(inputs, &inputs.k, &forward.rk, &mut backward.dk);
        backward
    }
}

/// The gradient before a segment of a state whose gradient after it is zero, V-major.
pub(super) fn segment_gradient(
    inputs: &Inputs,
    forward: &Forward,
    upstream: &Upstream,
    segment: &Segment,
    value_head: usize,
) -> Vec<f64> {
    let chunks = inputs.chunks();
    let mut state = vec![0.0; DIM * DIM];
    for index in (segment.first_chunk..segment.first_chunk + segment.chunks).rev() {
        let index = index as usize;
        Terms::new(inputs, forward, upstream, index, &chunks[index], value_head).step(&mut state);
    }
    state
}

/// From gradients of `r` times the rows' to those of the rows.
fn pull_back(inputs: &Inputs, x: &[f64], norms: &[f64], gradient: &mut [f64]) {
    if inputs.case.l2norm {
        for ((d, x), r) in gradient.chunks_exact_mut(DIM).zip(x.chunks_exact(DIM)).zip(norms) {
            let along = dot(d, x) * r * r;
            axpy(d, -along, x);
        }
    }
}

/// One chunk of one value head.
struct Terms<'a> {
    inputs: &'a Inputs,
    forward: &'a Forward,
    upstream: &'a Upstream,
    index: usize,
    first: usize,
    tokens: usize,
    head: usize,
    value_head: usize,
}

impl<'a> Terms<'a> {
    fn new(
        inputs: &'a Inputs,
        forward: &'a Forward,
        upstream: &'a Upstream,
        index: usize,
        chunk: &Chunk,
        value_head: usize,
    ) -> Terms<'a> {
        let (first, tokens) = (chunk.first_token as usize, chunk.tokens as usize);
        Terms { inputs, forward, upstream, index, first, tokens, head: value_head / inputs.group(), value_head }
    }

    fn matrix(&self) -> usize {
        self.index * self.inputs.case.value_heads + self.value_head
    }

    fn key_row(&self, t: usize) -> usize {
        (self.first + t) * self.inputs.case.heads + self.head
    }

    fn value_row(&self, t: usize) -> usize {
        (self.first + t) * self.inputs.case.value_heads + self.value_head
    }

    fn q(&self, t: usize) -> &[f64] {
        &self.inputs.q[self.key_row(t) * DIM..][..DIM]
    }

    fn k(&self, t: usize) -> &[f64] {
        &self.inputs.k[self.key_row(t) * DIM..][..DIM]
    }

    fn values<'b>(&self, tensor: &'b [f64], t: usize) -> &'b [f64] {
        &tensor[self.value_row(t) * DIM..][..DIM]
    }

    fn grad_o(&self, t: usize) -> &[f64] {
        self.values(&self.upstream.grad_o, t)
    }

    fn beta(&self, t: usize) -> f64 {
        self.inputs.beta[self.value_row(t)]
    }

    fn rq(&self, t: usize) -> f64 {
        f64::from(self.inputs.case.scale) * self.forward.rq[self.key_row(t)]
    }

    fn rk(&self, t: usize) -> f64 {
        self.forward.rk[self.key_row(t)]
    }

    fn c(&self, t: usize) -> f64 {
        self.forward.gate[self.value_row(t)] / std::f64::consts::LOG2_E
    }

    /// Decay from after token `s` to `t`.
    fn decay(&self, t: usize, s: usize) -> f64 {
        (self.c(t) - self.c(s)).exp()
    }

    fn keep(&self) -> f64 {
        self.c(self.tokens - 1).exp()
    }

    fn to_end(&self, t: usize) -> f64 {
        self.decay(self.tokens - 1, t) * self.rk(t)
    }

    /// dVb, and the gradient of the state before the chunk for that after it.
    fn step(&self, state: &mut [f64]) -> Vec<Vec<f64>> {
        let dv2: Vec<Vec<f64>> = (0..self.tokens)
            .map(|s| {
                let mut row: Vec<f64> =
                    state.chunks_exact(DIM).map(|row| self.to_end(s) * dot(row, self.k(s))).collect();
                for t in s..self.tokens {
                    let p = self.rq(t) * self.rk(s) * dot(self.q(t), self.k(s)) * self.decay(t, s);
                    axpy(&mut row, p, self.grad_o(t));
                }
                row
            })
            .collect();
        let a = &self.forward.a[self.matrix() * CHUNK * CHUNK..][..CHUNK * CHUNK];
        let dvb: Vec<Vec<f64>> = (0..self.tokens)
            .map(|j| {
                let mut row = vec![0.0; DIM];
                (j..self.tokens).for_each(|i| axpy(&mut row, a[i * CHUNK + j], &dv2[i]));
                row
            })
            .collect();
        state.iter_mut().for_each(|s| *s *= self.keep());
        for (t, dvb) in dvb.iter().enumerate() {
            let from_start = self.rq(t) * self.c(t).exp();
            let back = -self.beta(t) * self.rk(t) * self.c(t).exp();
            for ((row, o), v) in state.chunks_exact_mut(DIM).zip(self.grad_o(t)).zip(dvb) {
                axpy(row, from_start * o, self.q(t));
                axpy(row, back * v, self.k(t));
            }
        }
        dvb
    }

    fn add_gradients(&self, dvb: &[Vec<f64>], backward: &mut Backward) {
        let n = self.tokens;
        let h = &self.forward.h[self.matrix() * DIM * DIM..][..DIM * DIM];
        let dh = backward.dh[self.matrix() * DIM * DIM..][..DIM * DIM].to_vec();
        let v_new = |t| self.values(&self.forward.v_new, t);
        // sum_v x_v S_vk.
        let through = |x: &[f64], state: &[f64], factor: f64| {
            let mut row = vec![0.0; DIM];
            x.iter().zip(state.chunks_exact(DIM)).for_each(|(x, s)| axpy(&mut row, factor * x, s));
            row
        };
        let mut z = vec![0.0; n * n];
        let (mut outer, mut inner) = (vec![0.0; n], vec![0.0; n]);
        for t in 0..n {
            let (start, at) = (self.c(t).exp(), self.key_row(t) * DIM);
            let from_o = through(self.grad_o(t), h, self.rq(t) * start);
            let from_v = through(&dvb[t], h, self.rk(t) * start);
            let from_n = through(v_new(t), &dh, self.to_end(t));
            outer[t] = dot(&from_o, self.q(t)) - self.beta(t) * dot(&from_v, self.k(t));
            inner[t] = dot(&from_n, self.k(t));
            let mut dbeta = dot(&dvb[t], self.values(&self.inputs.v, t)) - dot(&from_v, self.k(t));
            axpy(&mut backward.dq[at..at + DIM], 1.0, &from_o);
            axpy(&mut backward.dk[at..at + DIM], 1.0, &from_n);
            axpy(&mut backward.dk[at..at + DIM], -self.beta(t), &from_v);
            for s in 0..=t {
                let at_s = self.key_row(s) * DIM;
                let r = self.rq(t) * self.rk(s) * self.decay(t, s) * dot(self.grad_o(t), v_new(s));
                axpy(&mut backward.dq[at..at + DIM], r, self.k(s));
                axpy(&mut backward.dk[at_s..at_s + DIM], r, self.q(t));
                if s < t {
                    let m = self.rk(t) * self.rk(s) * self.decay(t, s) * dot(&dvb[t], v_new(s));
                    let keys = dot(self.k(t), self.k(s));
                    axpy(&mut backward.dk[at..at + DIM], -self.beta(t) * m, self.k(s));
                    axpy(&mut backward.dk[at_s..at_s + DIM], -self.beta(t) * m, self.k(t));
                    z[t * n + s] = r * dot(self.q(t), self.k(s)) - self.beta(t) * m * keys;
                    dbeta -= m * keys;
                }
            }
            let row = self.value_row(t);
            backward.dbeta[row] = dbeta;
            backward.dvb[row * DIM..][..DIM].copy_from_slice(&dvb[t]);
            let dv = dvb[t].iter().map(|x| self.beta(t) * x);
            backward.dv[row * DIM..][..DIM].iter_mut().zip(dv).for_each(|(to, x)| *to = x);
        }
        let states = self.keep() * dot(h, &dh);
        for i in 0..n {
            let crossing: f64 = (i..n).map(|m| z[m * n..][..i].iter().sum::<f64>()).sum();
            backward.dg[self.value_row(i)] =
                crossing + outer[i..].iter().sum::<f64>() + inner[..i].iter().sum::<f64>() + states;
        }
    }
}
