//! Backward: the gradient of the state from the last token of a sequence to the first.

use std::ops::Range;

use bakewell_core::Result;

use super::{Gdn, add_outer, dot, expect_len, product, transposed_product};

/// Tokens between two states that are kept; those between are run again.
const KEPT_EVERY: usize = 32;

/// Gradients of a sum of products: of `o` with `do`, and of `ht` with `dht`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// `[tokens, heads, head_dim]`, summed over the value heads of a key head.
    pub dq: Vec<f64>,
    /// `[tokens, heads, head_dim]`, likewise.
    pub dk: Vec<f64>,
    /// `[tokens, value_heads, head_dim]`.
    pub dv: Vec<f64>,
    /// `[tokens, value_heads]`.
    pub dg: Vec<f64>,
    /// `[tokens, value_heads]`.
    pub dbeta: Vec<f64>,
    /// Norm of the products that each `dbeta` is the sum of, `[tokens, value_heads]`: what rounded factors leave in it.
    pub dbeta_terms: Vec<f64>,
    /// `[sequences, value_heads, head_dim (key), head_dim (value)]`, of a zero start state too.
    pub dh0: Vec<f64>,
}

/// Runs the adjoint of every sequence and value head. `d_o` is shaped like `o`, `dht` like `ht`; zero without.
///
/// # Errors
/// As [`recurrence`](super::recurrence()), also about `do` and `dht`.
pub fn adjoint(problem: &Gdn<'_>, d_o: &[f64], dht: Option<&[f64]>) -> Result<Gradients> {
    problem.validate()?;
    let states = problem.sequences() * problem.value_heads * problem.state_elements();
    expect_len("do", problem.v.len(), d_o)?;
    if let Some(dht) = dht {
        expect_len("dht", states, dht)?;
    }
    let mut gradients = Gradients {
        dq: vec![0.0; problem.q.len()],
        dk: vec![0.0; problem.k.len()],
        dv: vec![0.0; problem.v.len()],
        dg: vec![0.0; problem.g.len()],
        dbeta: vec![0.0; problem.beta.len()],
        dbeta_terms: vec![0.0; problem.beta.len()],
        dh0: Vec::with_capacity(states),
    };
    for (sequence, bounds) in problem.offsets.windows(2).enumerate() {
        for value_head in 0..problem.value_heads {
            let start = problem.state(problem.h0, sequence, value_head);
            let mut d_state = problem.state(dht, sequence, value_head);
            sequence_adjoint(problem, bounds[0]..bounds[1], value_head, start, d_o, &mut d_state, &mut gradients);
            gradients.dh0.append(&mut d_state);
        }
    }
    pull_back(problem, problem.q, &mut gradients.dq);
    pull_back(problem, problem.k, &mut gradients.dk);
    Ok(gradients)
}

/// One sequence of one value head. `d_state` goes from the gradient of the final state to that of the start state.
fn sequence_adjoint(
    problem: &Gdn<'_>,
    tokens: Range<usize>,
    value_head: usize,
    start: Vec<f64>,
    d_o: &[f64],
    d_state: &mut [f64],
    gradients: &mut Gradients,
) {
    let spans: Vec<_> = spans(tokens).collect();
    let mut kept = vec![start];
    for span in &spans {
        let last = states(problem, span.clone(), value_head, &kept[kept.len() - 1]).pop();
        kept.extend(last);
    }
    for (span, start) in spans.iter().zip(&kept).rev() {
        let states = states(problem, span.clone(), value_head, start);
        for (i, t) in span.clone().enumerate().rev() {
            let before = if i == 0 { start } else { &states[i - 1] };
            token_adjoint(problem, t, value_head, [before, &states[i]], d_o, d_state, gradients);
        }
    }
}

/// One token between the states `before` and `after`; `d_state` goes from the gradient of `after` to that of
/// `before`.
fn token_adjoint(
    problem: &Gdn<'_>,
    t: usize,
    value_head: usize,
    [before, after]: [&Vec<f64>; 2],
    d_o: &[f64],
    d_state: &mut [f64],
    gradients: &mut Gradients,
) {
    let dim = problem.head_dim;
    let token = problem.token(t, value_head);
    let at = t * problem.value_heads + value_head;
    let key_row = (t * problem.heads + problem.key_head(value_head)) * dim;
    let d_o = &d_o[at * dim..][..dim];
    let mut decayed = before.clone();
    let residual = token.residual(&mut decayed);

    add_outer(d_state, &token.q.y, problem.scale, d_o);
    let dq = product(after, d_o);
    gradients.dq[key_row..][..dim].iter_mut().zip(dq).for_each(|(sum, d)| *sum += problem.scale * d);

    let d_write = transposed_product(d_state, &token.k.y);
    gradients.dbeta[at] = dot(&d_write, &residual);
    let squares = d_write.iter().zip(&residual).map(|(d, r)| (d * r).powi(2));
    gradients.dbeta_terms[at] = squares.sum::<f64>().sqrt();
    let d_residual: Vec<f64> = d_write.iter().map(|d| token.beta * d).collect();
    gradients.dv[at * dim..][..dim].copy_from_slice(&d_residual);

    let (written, read) = (product(d_state, &residual), product(&decayed, &d_residual));
    let dk = written.iter().zip(read).map(|(written, read)| token.beta * written - read);
    gradients.dk[key_row..][..dim].iter_mut().zip(dk).for_each(|(sum, d)| *sum += d);

    add_outer(d_state, &token.k.y, -1.0, &d_residual);
    gradients.dg[at] = dot(d_state, &decayed);
    d_state.iter_mut().for_each(|d| *d *= token.decay);
}

/// The tokens in pieces of at most `KEPT_EVERY`.
fn spans(tokens: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = tokens.end;
    tokens.step_by(KEPT_EVERY).map(move |first| first..end.min(first + KEPT_EVERY))
}

/// The states after each of some tokens.
fn states(problem: &Gdn<'_>, tokens: Range<usize>, value_head: usize, start: &[f64]) -> Vec<Vec<f64>> {
    let mut state = start.to_vec();
    let step = |t| {
        let token = problem.token(t, value_head);
        let residual = token.residual(&mut state);
        token.write(&mut state, &residual);
        state.clone()
    };
    tokens.map(step).collect()
}

/// Turns gradients of normalised rows into those of the given ones.
fn pull_back(problem: &Gdn<'_>, x: &[f64], gradient: &mut [f64]) {
    for (x, gradient) in x.chunks_exact(problem.head_dim).zip(gradient.chunks_exact_mut(problem.head_dim)) {
        super::Row::new(x, problem.l2norm).pull_back(gradient);
    }
}
