//! Frames of functions that are called again before they return.

use super::{WARP, Warp};
use crate::decode::FrameRange;

/// Registers and local bytes of a function, saved across a call.
#[derive(Debug, Clone, Default)]
pub struct SavedFrame {
    /// Lanes that have not taken theirs back.
    pub mask: u32,
    pred: Vec<u32>,
    w32: Vec<[u32; WARP]>,
    w64: Vec<[u64; WARP]>,
    w128: Vec<[u128; WARP]>,
    /// Local bytes of the saved lanes, lane by lane; all lanes have room.
    local: Vec<u8>,
}

fn span(from: u32, to: u32) -> std::ops::Range<usize> {
    from as usize..to as usize
}

impl SavedFrame {
    /// The frame in `ranges` as it stands for the lanes of `mask`.
    pub fn of(warp: &Warp, mask: u32, ranges: &[FrameRange]) -> SavedFrame {
        let mut saved = SavedFrame { mask, ..SavedFrame::default() };
        for range in ranges {
            let (from, to) = (range.first, range.end);
            saved.pred.extend(&warp.regs.pred[span(from.pred, to.pred)]);
            saved.w32.extend(&warp.regs.w32[span(from.w32, to.w32)]);
            saved.w64.extend(&warp.regs.w64[span(from.w64, to.w64)]);
            saved.w128.extend(&warp.regs.w128[span(from.w128, to.w128)]);
        }
        for lane in 0..WARP {
            for range in ranges {
                saved.local.extend(warp.local.peek(lane, range.local.start, range.local.end - range.local.start));
            }
        }
        saved
    }

    /// Writes a lane's values back.
    pub fn restore(&mut self, warp: &mut Warp, lane: usize, ranges: &[FrameRange]) {
        let bit = 1 << lane;
        let each = |from: fn(&FrameRange) -> std::ops::Range<usize>| ranges.iter().flat_map(from);
        for (at, saved) in each(|r| span(r.first.pred, r.end.pred)).zip(&self.pred) {
            warp.regs.pred[at] = warp.regs.pred[at] & !bit | saved & bit;
        }
        for (at, saved) in each(|r| span(r.first.w32, r.end.w32)).zip(&self.w32) {
            warp.regs.w32[at][lane] = saved[lane];
        }
        for (at, saved) in each(|r| span(r.first.w64, r.end.w64)).zip(&self.w64) {
            warp.regs.w64[at][lane] = saved[lane];
        }
        for (at, saved) in each(|r| span(r.first.w128, r.end.w128)).zip(&self.w128) {
            warp.regs.w128[at][lane] = saved[lane];
        }
        let bytes = self.local.len() / WARP;
        let mut rest = &self.local[lane * bytes..(lane + 1) * bytes];
        for range in ranges {
            let (part, tail) = rest.split_at((range.local.end - range.local.start) as usize);
            warp.local.poke(lane, range.local.start, part);
            rest = tail;
        }
        self.mask &= !bit;
    }
}
