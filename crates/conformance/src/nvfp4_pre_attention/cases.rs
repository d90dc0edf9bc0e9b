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

/// Tokens, destinations, heads, hidden elements, rotated elements. Tiles have 128 tokens, and results 128 rows of scales;
/// stages of a GEMM have 32 to 256 elements. 5376 are those of the model, for which the norm kernel has a program of its own.
const SIZES: [(u64, u64, u64, u64, u64); 15] = [
    (1, 1, 2, 256, 96),
    (2, 8, 8, 320, 96),
    (7, 2, 2, 448, 64),
    (8, 4, 4, 512, 128),
    (15, 1, 2, 320, 32),
    (16, 2, 4, 256, 16),
    (127, 1, 2, 320, 96),
    (128, 1, 2, 256, 96),
    (129, 2, 2, 256, 112),
    (255, 1, 2, 256, 96),
    (257, 2, 2, 320, 96),
    (5, 1, 2, 768, 96),
    (3, 1, 2, 1536, 96),
    (2, 8, 8, 768, 96),
    (3, 1, 2, 5376, 96),
];

/// Every case, in each format.
pub fn cases() -> Vec<Case> {
    let formats = [OutputFormat::Nvfp4, OutputFormat::E4m3];
    let sizes = SIZES.into_iter().enumerate();
    sizes
        .flat_map(|(i, (tokens, destinations, heads, hidden, rope_dim))| {
            formats.map(|out_format| Case {
                name: format!("m{tokens}_p{destinations}_n{heads}_h{hidden}_r{rope_dim}_{}", out_format.name()),
                problem: Nvfp4PreAttention {
                    tokens,
                    destinations,
                    heads,
                    hidden,
                    rope_dim,
                    table_rows: 3,
                    out_format,
                    debug: true,
                    ..Nvfp4PreAttention::default()
                },
                seed: 100 + i as u64,
            })
        })
        .collect()
}
