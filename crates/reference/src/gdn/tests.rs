//! Slopes of the recurrence, edges, and refusals.

use super::*;

/// Numbers in [-1, 1) from a linear congruence.
fn noise(seed: u64, count: usize) -> Vec<f64> {
    let mut x = seed;
    let mut next = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 11) as f64 * 2f64.powi(-52) - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Everything that a problem borrows.
struct Owned {
    offsets: Vec<usize>,
    inputs: [Vec<f64>; 6],
    d_o: Vec<f64>,
    dht: Vec<f64>,
}

const HEADS: usize = 2;
const VALUE_HEADS: usize = 4;
const DIM: usize = 3;

impl Owned {
    /// Sequences of 40, 0 and 2 tokens: more than one span, none, less than one.
    fn new() -> Owned {
        let (tokens, sequences) = (42, 3);
        let sizes = [
            tokens * HEADS * DIM,
            tokens * HEADS * DIM,
            tokens * VALUE_HEADS * DIM,
            tokens * VALUE_HEADS,
            tokens * VALUE_HEADS,
            sequences * VALUE_HEADS * DIM * DIM,
        ];
        let mut inputs = [1, 2, 3, 4, 5, 6].map(|seed| noise(seed, sizes[seed as usize - 1]));
        inputs[3].iter_mut().for_each(|g| *g = -0.4 * g.abs());
        let (d_o, dht) = (noise(7, sizes[2]), noise(8, sizes[5]));
        Owned { offsets: vec![0, 40, 40, 42], inputs, d_o, dht }
    }

    fn problem(&self, l2norm: bool) -> Gdn<'_> {
        let [q, k, v, g, beta, h0] = &self.inputs;
        Gdn {
            heads: HEADS,
            value_heads: VALUE_HEADS,
            head_dim: DIM,
            scale: 0.7,
            l2norm,
            offsets: &self.offsets,
            q,
            k,
            v,
            g,
            beta,
            h0: Some(h0),
        }
    }

    /// The scalar whose gradients the adjoint gives.
    fn loss(&self, l2norm: bool) -> f64 {
        let forward = recurrence(&self.problem(l2norm)).unwrap();
        dot(&forward.o, &self.d_o) + dot(&forward.ht, &self.dht)
    }
}

/// Central differences of every input, of which every third element is moved.
#[test]
fn gradients_are_the_slopes_of_the_recurrence() {
    const STEP: f64 = 1e-5;
    for l2norm in [false, true] {
        let owned = Owned::new();
        let g = adjoint(&owned.problem(l2norm), &owned.d_o, Some(&owned.dht)).unwrap();
        for (input, gradient) in [g.dq, g.dk, g.dv, g.dg, g.dbeta, g.dh0].into_iter().enumerate() {
            for i in (0..gradient.len()).step_by(3) {
                let moved = |by: f64| {
                    let mut owned = Owned::new();
                    owned.inputs[input][i] += by;
                    owned.loss(l2norm)
                };
                let slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                let error = (gradient[i] - slope).abs();
                assert!(error < 1e-7, "l2norm {l2norm}, input {input}, element {i}: {} for {slope}", gradient[i]);
            }
        }
    }
}

#[test]
fn an_empty_sequence_hands_its_state_through() {
    let owned = Owned::new();
    let state = VALUE_HEADS * DIM * DIM;
    let forward = recurrence(&owned.problem(true)).unwrap();
    assert_eq!(forward.ht[state..2 * state], owned.inputs[5][state..2 * state]);
    let gradients = adjoint(&owned.problem(true), &owned.d_o, Some(&owned.dht)).unwrap();
    assert_eq!(gradients.dh0[state..2 * state], owned.dht[state..2 * state]);
}

/// No `h0` is a zero one, no `dht` a zero one.
#[test]
fn absent_states_are_zero() {
    let owned = Owned::new();
    let zero = vec![0.0; owned.dht.len()];
    let (without, with) = (Gdn { h0: None, ..owned.problem(false) }, Gdn { h0: Some(&zero), ..owned.problem(false) });
    assert_eq!(recurrence(&without).unwrap(), recurrence(&with).unwrap());
    let [absent, given] = [None, Some(zero.as_slice())].map(|dht| adjoint(&with, &owned.d_o, dht).unwrap());
    assert_eq!(absent, given);
}

/// A gate of -700 leaves 1e-304 of the state: `dg` is of that size and still right, where a difference of larger sums
/// would be noise.
#[test]
fn the_gradient_of_a_strong_gate_is_accurate_relative_to_itself() {
    let g = [-700.0];
    let problem = Gdn {
        heads: 1,
        value_heads: 1,
        head_dim: 1,
        scale: 1.0,
        l2norm: false,
        offsets: &[0, 1],
        q: &[2.0],
        k: &[0.5],
        v: &[3.0],
        g: &g,
        beta: &[0.5],
        h0: Some(&[4.0]),
    };
    // o = q (S' + k beta (v - k S')), so do/dS' = q (1 - beta k^2) = 1.75 and dg = 1.75 S' = 7 e^g.
    let wanted = 7.0 * (-700f64).exp();
    let gradients = adjoint(&problem, &[1.0], None).unwrap();
    assert!((gradients.dg[0] / wanted - 1.0).abs() < 1e-15, "{} for {wanted}", gradients.dg[0]);
}

#[test]
fn bad_arguments_are_named() {
    let owned = Owned::new();
    let good = owned.problem(false);
    let message = |problem: Gdn<'_>| recurrence(&problem).unwrap_err().to_string();
    assert_eq!(message(Gdn { heads: 3, ..good }), "value_heads: expected a positive multiple of 3 key heads, got 4");
    assert_eq!(message(Gdn { heads: 0, ..good }), "value_heads: expected a positive multiple of 0 key heads, got 4");
    assert_eq!(
        message(Gdn { offsets: &[0, 41, 40, 42], ..good }),
        "offsets: expected offsets from 0 that never decrease, got [0, 41, 40, 42]"
    );
    assert_eq!(message(Gdn { offsets: &[0, 41], ..good }), "q: expected 246 elements, got 252");
    assert_eq!(message(Gdn { h0: Some(&[0.0]), ..good }), "h0: expected 108 elements, got 1");
    let mut decays = good.g.to_vec();
    decays[5] = 0.75;
    assert_eq!(message(Gdn { g: &decays, ..good }), "g: expected logarithms of decays, at most 0, got 0.75");
    assert_eq!(adjoint(&good, &[], None).unwrap_err().to_string(), "do: expected 504 elements, got 0");
    assert_eq!(adjoint(&good, &owned.d_o, Some(&[])).unwrap_err().to_string(), "dht: expected 108 elements, got 0");
}
