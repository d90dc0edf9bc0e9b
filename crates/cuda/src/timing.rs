//! What benchmarks need: streams, events, captured graphs, asynchronous copies.
//!
//! Everything here belongs to one [`CudaRuntime`], makes its context current only during a call, and gives
//! itself back when dropped.

use std::fmt;
use std::sync::Arc;

use bakewell_core::{Memory, Result, Stream};

use crate::CudaRuntime;
use crate::driver::{Answer, EventHandle, GraphExecHandle, GraphHandle};

/// A stream that is not ordered with the default stream.
#[derive(Debug)]
pub struct OwnedStream {
    runtime: Arc<CudaRuntime>,
    /// Lent by [`OwnedStream::stream`] for the life of the owner only.
    stream: Stream<'static>,
}

impl OwnedStream {
    /// Creates a stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(runtime: &Arc<CudaRuntime>) -> Result<OwnedStream> {
        let stream = runtime.call("", || runtime.driver.stream_create())?;
        Ok(OwnedStream { runtime: runtime.clone(), stream })
    }

    /// The handle to launch on.
    pub fn stream(&self) -> Stream<'_> {
        self.stream
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        give_back(&self.runtime, || self.runtime.driver.stream_destroy(self.stream));
    }
}

/// A point on a stream whose time is taken when the GPU reaches it.
#[derive(Debug)]
pub struct Event {
    runtime: Arc<CudaRuntime>,
    event: EventHandle,
}

impl Event {
    /// Creates an event.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(runtime: &Arc<CudaRuntime>) -> Result<Event> {
        let event = runtime.call("", || runtime.driver.event_create())?;
        Ok(Event { runtime: runtime.clone(), event })
    }

    /// Enqueues the event.
    ///
    /// # Errors
    /// The driver's.
    pub fn record(&self, stream: Stream) -> Result<()> {
        self.runtime.call("", || self.runtime.driver.event_record(self.event, stream))
    }

    /// Waits until the GPU has reached the event.
    ///
    /// # Errors
    /// The driver's, also that of earlier work.
    pub fn synchronize(&self) -> Result<()> {
        self.runtime.call("", || self.runtime.driver.event_synchronize(self.event))
    }

    /// Time from `start` to this event in microseconds. Both must have been reached.
    ///
    /// # Errors
    /// The driver's.
    pub fn elapsed_us(&self, start: &Event) -> Result<f64> {
        let elapsed = self.runtime.call("", || self.runtime.driver.event_elapsed_ms(start.event, self.event))?;
        Ok(f64::from(elapsed) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        give_back(&self.runtime, || self.runtime.driver.event_destroy(self.event));
    }
}

/// Captured work that can be launched any number of times. What it was captured from stays borrowed.
pub struct Graph<'a> {
    runtime: Arc<CudaRuntime>,
    exec: GraphExecHandle,
    /// Bindings and memory that the captured launches use, borrowed or owned.
    _used: Box<dyn Fn(Stream) -> Result<()> + 'a>,
}

impl<'a> Graph<'a> {
    /// Captures what `enqueue` puts on the stream. Nothing of it runs until [`Graph::launch`].
    ///
    /// The graph keeps `enqueue`: what the captured launches use must belong to it or be borrowed by it, and nothing
    /// that `enqueue` makes and drops again.
    ///
    /// # Errors
    /// The error of `enqueue` (the capture is ended and thrown away), or the driver's.
    pub fn capture(
        runtime: &Arc<CudaRuntime>,
        stream: &OwnedStream,
        enqueue: impl Fn(Stream) -> Result<()> + 'a,
    ) -> Result<Graph<'a>> {
        let driver = &*runtime.driver;
        runtime.call("", || driver.capture_begin(stream.stream))?;
        let capture = Capture { runtime, stream: stream.stream() };
        enqueue(stream.stream())?;
        let exec = runtime.call("", || {
            let graph = capture.end()?;
            let exec = driver.graph_instantiate(graph);
            if let Err(failure) = driver.graph_destroy(graph) {
                tracing::warn!(call = failure.call, code = failure.code, "the captured graph");
            }
            exec
        })?;
        Ok(Graph { runtime: runtime.clone(), exec, _used: Box::new(enqueue) })
    }

    /// Enqueues the captured work.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(&self, stream: Stream) -> Result<()> {
        self.runtime.call("", || self.runtime.driver.graph_launch(self.exec, stream))
    }
}

impl fmt::Debug for Graph<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("exec", &self.exec).finish_non_exhaustive()
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        give_back(&self.runtime, || self.runtime.driver.graph_exec_destroy(self.exec));
    }
}

/// A capture that is under way. Dropped without [`Capture::end`], it is ended and its graph thrown away.
struct Capture<'r> {
    runtime: &'r CudaRuntime,
    stream: Stream<'r>,
}

impl Capture<'_> {
    fn end(self) -> Answer<GraphHandle> {
        let graph = self.runtime.driver.capture_end(self.stream);
        std::mem::forget(self);
        graph
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        give_back(self.runtime, || {
            let graph = self.runtime.driver.capture_end(self.stream)?;
            self.runtime.driver.graph_destroy(graph)
        });
    }
}

impl CudaRuntime {
    /// Enqueues a copy inside the device. Both ranges are checked first.
    ///
    /// # Errors
    /// `Error::Argument` for memory of another place, or the driver's.
    pub fn copy_async(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<()> {
        self.check_range(to, bytes)?;
        self.check_range(from, bytes)?;
        self.call("", || self.driver.memory_copy_async(to, from, bytes, stream))
    }
}

fn give_back(runtime: &CudaRuntime, body: impl FnOnce() -> Answer<()>) {
    if let Err(error) = runtime.call("", body) {
        tracing::warn!(%error, "giving a handle back to {}", runtime.name());
    }
}
