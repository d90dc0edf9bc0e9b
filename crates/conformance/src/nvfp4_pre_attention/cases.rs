//! Generated cases: the borders of every tile, every number of destinations, both formats, several rotations.

use bakewell::nvfp4_pre_attention::{Nvfp4PreAttention, OutputFormat};

use super::Inputs;

/// A generated case.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// What it is about.
    pub name: String,
    /// The problem.
    pub problem: Nvfp4PreAttention,
    seed: u64,
}

impl Case {
    /// Its inputs.
    pub fn inputs(&self) -> Inputs {
        Inputs::generate(&self.problem, self.seed)
    }
}

/// Around the borders of tiles of 8, 16 and 128 tokens: results have 128 rows of scales in a tile, a cluster 256
/// tokens.
const TOKENS: [u64; 11] = [1, 2, 7, 8, 15, 16, 127, 128, 129, 255, 257];

/// Every number of destinations, with one head each where heads are even.
const DESTINATIONS: [u64; 4] = [1, 2, 4, 8];

/// Whole stages of K, and tails of one to three sets of scales.
const HIDDEN: [u64; 4] = [256, 320, 448, 512];

/// Rotations: most often that of the model, which has programs of its own, and of every other kind one.
const ROTATED: [u64; 7] = [96, 64, 96, 128, 16, 32, 112];

const TABLE_ROWS: [u64; 4] = [3, 1, 9, 17];

/// Tokens, destinations, heads, hidden elements, rotated elements, table rows.
type Size = [u64; 6];

/// Hidden elements of whole windows of K = 96, and those of the model, for which the norm kernel has a program of its
/// own.
const LONG_ROWS: [Size; 4] =
    [[5, 1, 2, 768, 96, 3], [3, 1, 2, 1536, 96, 3], [2, 8, 8, 768, 96, 3], [3, 1, 2, 5376, 96, 3]];

/// All tokens with all destinations; the others in turn, so that they meet in many ways.
fn sizes() -> impl Iterator<Item = Size> {
    let short = TOKENS.into_iter().enumerate().flat_map(|(i, tokens)| {
        DESTINATIONS.into_iter().enumerate().map(move |(j, destinations)| {
            let (hidden, rotated) = (HIDDEN[(i + j) % HIDDEN.len()], ROTATED[(3 * i + j) % ROTATED.len()]);
            [tokens, destinations, destinations.max(2), hidden, rotated, TABLE_ROWS[i % TABLE_ROWS.len()]]
        })
    });
    short.chain(LONG_ROWS)
}

/// Every case, in each format.
pub fn cases() -> Vec<Case> {
    let formats = [OutputFormat::Nvfp4, OutputFormat::E4m3];
    let sizes = sizes().enumerate();
    sizes
        .flat_map(|(i, [tokens, destinations, heads, hidden, rope_dim, table_rows])| {
            formats.map(|out_format| Case {
                name: format!("m{tokens}_p{destinations}_n{heads}_h{hidden}_r{rope_dim}_{}", out_format.name()),
                problem: Nvfp4PreAttention {
                    tokens,
                    destinations,
                    heads,
                    hidden,
                    rope_dim,
                    table_rows,
                    out_format,
                    debug: true,
                    ..Nvfp4PreAttention::default()
                },
                seed: 100 + i as u64,
            })
        })
        .collect()
}
