//! The stage `tables` against the tables that the host builds.

use bakewell::gdn::tables::Tables;
use bakewell::schedule::Schedule;
use bakewell::schedule::gdn::{Chunk, Gdn, Segment, Sequence};
use bakewell::{Arch, Device, LaunchConfig, Result, Stream};
use bakewell_core::params::ParamBlock;

/// Entries that these offsets leave over must be padding; the three tables as bytes.
struct Built {
    chunks: Vec<u8>,
    segments: Vec<u8>,
    sequences: Vec<u8>,
}

/// Launches the stage with room for any offsets of so many tokens and sequences.
fn build(device: &Device, offsets: &[i64], tokens: u64, segment_chunks: u64, wide: bool) -> Result<Built> {
    let sequences = offsets.len() as u64 - 1;
    let chunks = tokens / 64 + sequences;
    let segments = sequences + chunks.checked_div(segment_chunks).unwrap_or(0);
    let cu_seqlens: Vec<u8> = match wide {
        true => offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect(),
        false => offsets.iter().flat_map(|&offset| (offset as i32).to_le_bytes()).collect(),
    };
    let cu_seqlens = device.upload(&cu_seqlens)?;
    let sizes = [chunks * Chunk::BYTES, segments * Segment::BYTES, sequences * Sequence::BYTES];
    let [chunk_table, segment_table, sequence_table] = sizes.map(|bytes| device.buffer(bytes));
    let tables = [chunk_table?, segment_table?, sequence_table?];
    tables.iter().try_for_each(|table| table.fill(0xFF))?;
    let mut block = ParamBlock::new(Gdn::TABLES.params());
    block
        .pointer("cu_seqlens", cu_seqlens.address())?
        .pointer("chunks", tables[0].address())?
        .pointer("segments", tables[1].address())?
        .pointer("sequences", tables[2].address())?
        .u32("tokens", tokens as u32)?
        .u32("sequence_count", sequences as u32)?
        .u32("chunk_count", chunks as u32)?
        .u32("segment_count", segments as u32)?
        .u32("segment_chunks", segment_chunks as u32)?
        .u32("cu_seqlens_i64", u32::from(wide))?;
    let (library, runtime) = (device.library()?.unwrap(), device.runtime().unwrap());
    let kernel = runtime.load(&library.program(Gdn::TABLES.operation(), Gdn::TABLES.name)?)?;
    let config = LaunchConfig {
        grid: [1; 3],
        cluster: [1; 3],
        block: Gdn::TABLES.threads,
        dynamic_shared_bytes: Gdn::TABLES.dynamic_shared_bytes(),
        programmatic_serialization: false,
    };
    runtime.launch(kernel, &config, &block.finish()?, Stream::DEFAULT)?;
    runtime.synchronize(Stream::DEFAULT)?;
    Ok(Built { chunks: tables[0].read()?, segments: tables[1].read()?, sequences: tables[2].read()? })
}

/// Fills up with padding.
fn padded(mut bytes: Vec<u8>, len: usize, padding: [u8; 16]) -> Vec<u8> {
    while bytes.len() < len {
        bytes.extend(padding);
    }
    bytes
}

fn equal_to_the_hosts(device: &Device, lengths: &[u64], segment_chunks: u64) {
    let mut offsets = vec![0];
    lengths.iter().for_each(|length| offsets.push(offsets[offsets.len() - 1] + length));
    let tokens = offsets[offsets.len() - 1];
    let signed: Vec<i64> = offsets.iter().map(|&offset| offset as i64).collect();
    // The device lists sequences as they come.
    let host = Tables::new(&offsets, segment_chunks, false);
    for wide in [false, true] {
        let built = build(device, &signed, tokens, segment_chunks, wide).unwrap();
        let what = format!("{device}, {} sequences of {tokens} tokens by {segment_chunks}, i64 {wide}", lengths.len());
        let chunks = padded(host.chunk_bytes(), built.chunks.len(), Chunk::PADDING.to_bytes());
        assert!(built.chunks == chunks, "{what}: chunks");
        let segments = padded(host.segment_bytes(), built.segments.len(), Segment::PADDING.to_bytes());
        assert!(built.segments == segments, "{what}: segments");
        assert!(built.sequences == host.sequence_bytes(), "{what}: sequences");
    }
}

/// More sequences than threads, empty ones at every end, one long one, cut and whole.
#[test]
fn the_device_builds_the_tables_of_the_host() {
    let many: Vec<u64> = (0..600).map(|i| [0, 1, 63, 64, 65, 200][i % 6]).collect();
    let long = [0, 64 * 300 + 5, 0, 0, 1, 129];
    for arch in [Arch::Sm90, Arch::Sm100] {
        let device = Device::emulated(arch).unwrap();
        for segment_chunks in [0, 1, 7] {
            equal_to_the_hosts(&device, &many, segment_chunks);
            equal_to_the_hosts(&device, &long, segment_chunks);
            equal_to_the_hosts(&device, &[0], segment_chunks);
        }
    }
}

/// Offsets that break the contract: nothing is written past a table, and no chunk reaches past the tokens.
#[test]
fn wild_offsets_stay_inside() {
    let device = Device::emulated(Arch::Sm90).unwrap();
    for offsets in [[0, i64::MAX, -5, 300], [700, 100, 650, 90], [0, 640, 0, 640]] {
        let built = build(&device, &offsets, 640, 2, true).unwrap();
        for chunk in built.chunks.chunks_exact(16) {
            let [first, tokens, ..] = chunk.as_chunks::<4>().0 else { panic!("16 bytes") };
            assert!(u32::from_le_bytes(*first) + u32::from_le_bytes(*tokens) <= 640, "{offsets:?}");
        }
    }
}
