//! Tables of chunks, segments and sequences: which tokens a CTA works on.
//!
//! Chunks are listed in token order. Segments are listed longest sequence first, so that long work starts first; the
//! order changes no bits.

use std::cmp::Reverse;

use bakewell_core::schedule::gdn::{CHUNK_TOKENS, Chunk, Segment, Sequence};

/// The three tables of one layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    /// In token order.
    pub chunks: Vec<Chunk>,
    /// In the order of CTAs.
    pub segments: Vec<Segment>,
    /// In the caller's order.
    pub sequences: Vec<Sequence>,
}

/// Segments of a sequence of `chunks` chunks when none is to be longer than `segment_chunks` (0: any length).
pub(crate) fn segments_of(chunks: u64, segment_chunks: u64) -> u64 {
    if segment_chunks == 0 { 1 } else { chunks.div_ceil(segment_chunks).max(1) }
}

impl Tables {
    /// Tables of sequences that lie one after another, `offsets` being their first tokens and the end: below 2^31.
    ///
    /// A sequence of `n` chunks is cut into `k = ceil(n / segment_chunks)` segments at `floor(i n / k)`; 0 cuts none.
    pub fn new(offsets: &[u64], segment_chunks: u64, longest_first: bool) -> Tables {
        let spans: Vec<[u64; 2]> = offsets.windows(2).map(|pair| [pair[0], pair[1]]).collect();
        let mut chunks = Vec::new();
        let mut first_chunks = Vec::with_capacity(spans.len());
        for (sequence, &[start, end]) in spans.iter().enumerate() {
            first_chunks.push(chunks.len() as u64);
            chunks.extend((start..end).step_by(CHUNK_TOKENS as usize).map(|first| Chunk {
                first_token: first as u32,
                tokens: u64::from(CHUNK_TOKENS).min(end - first) as u32,
                sequence: sequence as i32,
                reserved: 0,
            }));
        }
        let mut order: Vec<usize> = (0..spans.len()).collect();
        if longest_first {
            order.sort_by_key(|&sequence| Reverse(spans[sequence][1] - spans[sequence][0]));
        }
        let mut segments = Vec::new();
        let mut sequences = vec![Sequence { first_segment: 0, segments: 0 }; spans.len()];
        for sequence in order {
            let n = (spans[sequence][1] - spans[sequence][0]).div_ceil(CHUNK_TOKENS.into());
            let k = segments_of(n, segment_chunks);
            sequences[sequence] = Sequence { first_segment: segments.len() as u32, segments: k as u32 };
            segments.extend((0..k).map(|i| Segment {
                first_chunk: (first_chunks[sequence] + i * n / k) as u32,
                chunks: ((i + 1) * n / k - i * n / k) as u32,
                sequence: sequence as i32,
                index: i as u32,
            }));
        }
        Tables { chunks, segments, sequences }
    }

    /// The chunk table as the kernels read it.
    pub fn chunk_bytes(&self) -> Vec<u8> {
        self.chunks.iter().flat_map(|chunk| chunk.to_bytes()).collect()
    }

    /// The segment table as the kernels read it.
    pub fn segment_bytes(&self) -> Vec<u8> {
        self.segments.iter().flat_map(|segment| segment.to_bytes()).collect()
    }

    /// The sequence table as the kernels read it.
    pub fn sequence_bytes(&self) -> Vec<u8> {
        self.sequences.iter().flat_map(|sequence| sequence.to_bytes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_stop_at_sequences_and_segments_come_longest_first() {
        let tables = Tables::new(&[0, 1, 64, 64, 193], 2, true);
        let chunks: Vec<_> = tables.chunks.iter().map(|c| (c.first_token, c.tokens, c.sequence)).collect();
        assert_eq!(chunks, [(0, 1, 0), (1, 63, 1), (64, 64, 3), (128, 64, 3), (192, 1, 3)]);
        let segments: Vec<_> = tables.segments.iter().map(|s| (s.first_chunk, s.chunks, s.sequence, s.index)).collect();
        assert_eq!(segments, [(2, 1, 3, 0), (3, 2, 3, 1), (1, 1, 1, 0), (0, 1, 0, 0), (2, 0, 2, 0)]);
        let sequences: Vec<_> = tables.sequences.iter().map(|s| (s.first_segment, s.segments)).collect();
        assert_eq!(sequences, [(3, 1), (2, 1), (4, 1), (0, 2)]);
    }

    #[test]
    fn equal_lengths_keep_the_callers_order() {
        let tables = Tables::new(&[0, 5, 15, 20, 30], 0, true);
        assert_eq!(tables.segments.iter().map(|s| s.sequence).collect::<Vec<_>>(), [1, 3, 0, 2]);
        let as_given = Tables::new(&[0, 5, 15, 20, 30], 0, false);
        assert_eq!(as_given.segments.iter().map(|s| s.sequence).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(as_given.chunks, tables.chunks);
    }

    /// Every chunk lies in exactly one segment of its own sequence, lengths differ by one at most, none is too long.
    #[test]
    fn segments_cover_every_chunk_once() {
        for length in [0, 1, 64, 65, 640, 704, 6400] {
            for segment_chunks in [0, 1, 3, 4, 100] {
                let tables = Tables::new(&[0, 100, 100 + length], segment_chunks, true);
                let mut seen = vec![0; tables.chunks.len()];
                for segment in &tables.segments {
                    for chunk in segment.first_chunk..segment.first_chunk + segment.chunks {
                        seen[chunk as usize] += 1;
                        assert_eq!(tables.chunks[chunk as usize].sequence, segment.sequence);
                    }
                }
                assert!(seen.iter().all(|&times| times == 1));
                let last = tables.sequences[1];
                let sizes: Vec<u32> = tables.segments[last.first_segment as usize..][..last.segments as usize]
                    .iter()
                    .map(|segment| segment.chunks)
                    .collect();
                let (min, max) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
                assert!(max - min <= 1 && (segment_chunks == 0 || u64::from(*max) <= segment_chunks), "{sizes:?}");
            }
        }
    }

    #[test]
    fn rows_are_little_endian_words() {
        let tables = Tables::new(&[0, 65], 1, true);
        assert_eq!(tables.chunk_bytes()[16..], [64, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(tables.segment_bytes()[16..], [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(tables.sequence_bytes(), [0, 0, 0, 0, 2, 0, 0, 0]);
    }
}
