//! Graph capture and the helpers of the benchmarks.

use bakewell_core::{Buffer, Error, Memory, Runtime, Stream};

use super::{config, open, program, two_devices};
use crate::ceilings::{CHUNK_BYTES, Ceilings};
use crate::mock::Alive;
use crate::timing::{Event, Graph, OwnedStream};

#[test]
fn a_launch_is_legal_in_a_capture_and_an_allocation_is_a_typed_error() {
    let driver = two_devices();
    let runtime = open(&driver, 0);
    let kernel = runtime.load(&program(b"\x7fELF", 0)).unwrap();
    let stream = OwnedStream::new(&runtime).unwrap();
    let graph = Graph::capture(&runtime, &stream, |stream| {
        runtime.launch(kernel, &config(), &[0; 8], stream)?;
        runtime.launch(kernel, &config(), &[1; 8], stream)
    })
    .unwrap();
    assert_eq!(driver.launches().len(), 2);
    assert!(driver.launches().iter().all(|launch| launch.stream == stream.stream().raw()));
    graph.launch(stream.stream()).unwrap();

    let error = Graph::capture(&runtime, &stream, |_| runtime.allocate(64).map(|_| ())).unwrap_err();
    assert!(matches!(error, Error::Driver { code: 900, .. }), "{error}");
    // The failed capture was ended: the stream is free for the next one.
    Graph::capture(&runtime, &stream, |_| Ok(())).unwrap();
    drop(graph);
    drop((stream, runtime));
    assert_eq!(driver.alive(), Alive::default());
}

#[test]
fn events_give_microseconds() {
    let driver = two_devices();
    let runtime = open(&driver, 0);
    let (start, end) = (Event::new(&runtime).unwrap(), Event::new(&runtime).unwrap());
    start.record(Stream::DEFAULT).unwrap();
    end.record(Stream::DEFAULT).unwrap();
    end.synchronize().unwrap();
    assert_eq!(end.elapsed_us(&start).unwrap(), 250.0);
    drop((start, end));
    assert_eq!(driver.alive().events, 0);
}

#[test]
fn copies_inside_the_device_are_checked_and_move_bytes() {
    let driver = two_devices();
    let runtime = open(&driver, 0);
    let from = Buffer::from_bytes(runtime.clone(), &[1, 2, 3, 4]).unwrap();
    let to = Buffer::from_bytes(runtime.clone(), &[9; 4]).unwrap();
    runtime.copy_async(to.address() + 1, from.address(), 2, Stream::DEFAULT).unwrap();
    assert_eq!(to.read().unwrap(), [9, 1, 2, 9]);
    assert!(runtime.copy_async(to.address(), from.address(), 5, Stream::DEFAULT).is_err());
}

#[test]
fn the_reading_kernel_gets_whole_chunks_of_checked_memory() {
    let driver = two_devices();
    let runtime = open(&driver, 0);
    let ceilings = Ceilings::load(&runtime).unwrap();
    let buffer = Buffer::new(runtime.clone(), 3 * CHUNK_BYTES + 5).unwrap();
    ceilings.empty(Stream::DEFAULT).unwrap();
    ceilings.read(buffer.address(), buffer.bytes(), 0, Stream::DEFAULT).unwrap();
    ceilings.read(buffer.address(), buffer.bytes(), 2, Stream::DEFAULT).unwrap();
    ceilings.read(buffer.address(), CHUNK_BYTES - 1, 0, Stream::DEFAULT).unwrap();
    assert!(ceilings.read(buffer.address(), 4 * CHUNK_BYTES, 0, Stream::DEFAULT).is_err());
    let launches = driver.launches();
    let grids: Vec<u32> = launches.iter().map(|launch| launch.config.grid[0]).collect();
    assert_eq!(grids, [1, 3, 2]);
    assert_eq!(launches[1].params[..8], buffer.address().to_le_bytes());
    assert_eq!(launches[1].params[8..16], 3u64.to_le_bytes());
}
