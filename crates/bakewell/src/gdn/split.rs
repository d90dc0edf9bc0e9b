//! Whether long sequences are cut into segments that are scanned at the same time.
//!
//! A cut sequence costs a pre-scan of its segments (what each does to a state), the composition of their start states,
//! and then the scan itself. With `n` chunks of the longest sequence cut into `k`,
//!
//! ```text
//! T(1) = (n step + start) rounds
//! T(k) = (ceil(n / k) step + start) rounds + (min(ceil(n / k), remembered) step' + start') rounds' + launches
//! ```
//!
//! where rounds are CTAs over what the SMs hold at once, and primes mark the pre-scan. Where nothing is forgotten every
//! chunk is pre-scanned, twice as many CTAs make M as well, and `(k - 1) boundary` is added. It pays only while SMs
//! would be idle. The smallest of 1..=16 wins, ties go to fewer segments, and whole sequences stay unless a cut gains
//! 5 %.

use bakewell_core::schedule::gdn::Costs;

use super::tables::segments_of;

/// Most segments of a sequence.
pub const MOST_SEGMENTS: u64 = 16;

/// Share of the time of whole sequences that a cut must stay below.
const WORTH: f64 = 0.95;

/// CTAs of the scan and of the pre-scan for a number of segments, over what the SMs hold at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Nanoseconds of a chunk in a CTA of the scan.
    pub(crate) step: u32,
    /// Rounds of the scan.
    pub(crate) rounds: u64,
    /// Rounds of the pre-scan.
    pub(crate) prescan_rounds: u64,
}

/// The longest segment in chunks, 0 for whole sequences: a pure function of its arguments.
///
/// `chunks` counts those of each sequence, `load` tells what a number of segments, of which so many are scanned before,
/// asks of the device, `forgets` whether the pre-scan may forget.
pub(crate) fn segment_chunks(chunks: &[u64], costs: &Costs, forgets: bool, load: impl Fn(u64, u64) -> Load) -> u64 {
    let longest = chunks.iter().copied().max().unwrap_or(0);
    let time = |k: u64| {
        let length = longest.div_ceil(k);
        let segments: u64 = chunks.iter().map(|&n| segments_of(n, if k == 1 { 0 } else { length })).sum();
        let load = load(segments, segments - chunks.len() as u64);
        let main = load.rounds * (length * u64::from(load.step) + u64::from(costs.scan_start));
        if k == 1 {
            return main as f64;
        }
        let scanned = if forgets { length.min(costs.remembered.into()) } else { length };
        let composed = if forgets { 0 } else { (k - 1) * u64::from(costs.boundary) };
        let prescan = scanned * u64::from(costs.prescan_step) + u64::from(costs.prescan_start);
        (main + load.prescan_rounds * prescan + composed + u64::from(costs.launches)) as f64
    };
    let whole = time(1);
    let mut best = (1, whole * WORTH);
    for k in 2..=MOST_SEGMENTS.min(longest) {
        let time = time(k);
        if time < best.1 {
            best = (k, time);
        }
    }
    if best.0 == 1 { 0 } else { longest.div_ceil(best.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        scan_steps: &[(128, 2000), (64, 1000)],
        scan_start: 0,
        prescan_step: 950,
        prescan_start: 0,
        remembered: 4,
        boundary: 1500,
        launches: 5000,
    };

    /// One CTA of 64 columns per segment, head and half; before, as many for each map.
    fn cut(chunks: &[u64], value_heads: u64, sm_count: u64, forgets: bool) -> u64 {
        segment_chunks(chunks, &COSTS, forgets, |segments, before| Load {
            step: 1000,
            rounds: (segments * value_heads * 2).div_ceil(sm_count),
            prescan_rounds: (before * value_heads * if forgets { 2 } else { 4 }).div_ceil(sm_count),
        })
    }

    #[test]
    fn idle_sms_are_filled_and_full_ones_left_alone() {
        let exact = |chunks: &[u64], value_heads| cut(chunks, value_heads, 132, false);
        assert_eq!(exact(&[512], 48), 0, "96 CTAs of 132");
        assert_eq!(exact(&[64; 64], 6), 0, "six rounds already");
        assert_eq!(exact(&[512], 12), 47, "24 CTAs: eleven segments fill two rounds");
        assert_eq!(exact(&[128], 16), 43, "32 CTAs: three segments, pre-scanned in one round");
        assert_eq!(exact(&[0, 1], 1), 0, "nothing to cut");
        assert_eq!(exact(&[], 1), 0);
    }

    #[test]
    fn where_pre_scans_are_short_more_is_cut() {
        assert_eq!(cut(&[512], 48, 132, true), 128, "96 CTAs of 132: four segments fill three rounds");
        assert_eq!(cut(&[64; 64], 6, 132, true), 0, "six rounds already");
        assert_eq!(cut(&[128], 16, 132, true), 32, "32 CTAs: four segments fill a round");
    }

    /// A gain below 5 % is none.
    #[test]
    fn whole_sequences_stay_unless_a_cut_is_worth_it() {
        let times = |gain: f64| {
            let chunks = [1000];
            let step = (1e6 * (1.0 - gain) / 500.0) as u32;
            let costs = Costs { prescan_step: 0, boundary: 0, launches: 0, ..COSTS };
            segment_chunks(&chunks, &costs, false, |segments, _| Load {
                step: if segments == 1 { 1000 } else { step },
                rounds: if segments <= 2 { 1 } else { 100 },
                prescan_rounds: 0,
            })
        };
        assert_eq!((times(0.04), times(0.06)), (0, 500));
    }
}
