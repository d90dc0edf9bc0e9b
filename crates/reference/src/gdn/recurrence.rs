//! Forward: the state from the first token of a sequence to the last.

use bakewell_core::Result;

use super::{Gdn, transposed_product};

/// What the recurrence gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Forward {
    /// Outputs `[tokens, value_heads, head_dim]`.
    pub o: Vec<f64>,
    /// Final states `[sequences, value_heads, head_dim (key), head_dim (value)]`; of an empty sequence its start state.
    pub ht: Vec<f64>,
}

/// Runs every sequence and value head.
///
/// # Errors
/// [`bakewell_core::Error::Argument`] when `value_heads` is no multiple of `heads`, the offsets decrease, or a slice
/// has another length than its shape.
pub fn recurrence(problem: &Gdn<'_>) -> Result<Forward> {
    problem.validate()?;
    let &Gdn { value_heads, head_dim, scale, .. } = problem;
    let mut o = vec![0.0; problem.v.len()];
    let mut ht = Vec::with_capacity(problem.sequences() * value_heads * problem.state_elements());
    for (sequence, bounds) in problem.offsets.windows(2).enumerate() {
        for value_head in 0..value_heads {
            let mut state = problem.state(problem.h0, sequence, value_head);
            for t in bounds[0]..bounds[1] {
                let token = problem.token(t, value_head);
                let residual = token.residual(&mut state);
                token.write(&mut state, &residual);
                let out = &mut o[(t * value_heads + value_head) * head_dim..][..head_dim];
                let read = transposed_product(&state, &token.q.y);
                out.iter_mut().zip(read).for_each(|(o, x)| *o = scale * x);
            }
            ht.append(&mut state);
        }
    }
    Ok(Forward { o, ht })
}
