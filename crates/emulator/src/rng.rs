//! A small seeded generator (SplitMix64): the same seed gives the same schedule everywhere.

/// Seeded random numbers.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// A generator for `seed` and a `stream` within it (a cluster, for example).
    pub fn new(seed: u64, stream: u64) -> Rng {
        let mut rng = Rng { state: seed ^ stream.wrapping_mul(0xD1B5_4A32_D192_ED03) };
        rng.draw();
        rng
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }
}
