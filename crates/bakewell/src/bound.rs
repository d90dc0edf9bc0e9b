//! A plan with its tensors: ready to be enqueued, any number of times.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bakewell_core::runtime::Kernel;
use bakewell_core::{Buffer, Error, LaunchConfig, Operation, Result, Runtime, Stream};

/// A checked, loaded and encoded call. [`Bound::launch`] only enqueues it.
///
/// Keeps the device memory that it allocated; `'a` ties it to the tensors. A workspace serves one launch at a time:
/// launches of one binding on different streams must not overlap.
pub struct Bound<'a> {
    operation: Operation,
    work: Work<'a>,
    _buffers: Vec<Arc<Buffer>>,
    _tensors: PhantomData<&'a ()>,
}

/// What a launch does.
enum Work<'a> {
    /// These kernels in order; none for an empty problem.
    Kernels(Arc<dyn Runtime>, Vec<KernelLaunch>),
    /// Plain loops on the host.
    #[cfg_attr(not(feature = "reference"), allow(dead_code, reason = "only the reference runs on the host"))]
    Host(HostWork<'a>),
}

pub(crate) type HostWork<'a> = Box<dyn Fn() -> Result<()> + Send + Sync + 'a>;

/// One kernel with everything that its launch needs.
#[derive(Debug)]
pub(crate) struct KernelLaunch {
    pub(crate) kernel: Kernel,
    pub(crate) config: LaunchConfig,
    pub(crate) params: Vec<u8>,
}

impl KernelLaunch {
    fn enqueue(&self, runtime: &dyn Runtime, stream: Stream<'_>) -> Result<()> {
        runtime.launch(self.kernel, &self.config, &self.params, stream)
    }
}

impl<'a> Bound<'a> {
    pub(crate) fn kernels(
        operation: Operation,
        runtime: Arc<dyn Runtime>,
        launches: Vec<KernelLaunch>,
        buffers: Vec<Arc<Buffer>>,
    ) -> Bound<'a> {
        Bound { operation, work: Work::Kernels(runtime, launches), _buffers: buffers, _tensors: PhantomData }
    }

    #[cfg(feature = "reference")]
    pub(crate) fn host(operation: Operation, work: HostWork<'a>) -> Bound<'a> {
        Bound { operation, work: Work::Host(work), _buffers: Vec::new(), _tensors: PhantomData }
    }

    /// Enqueues the work on a stream. On a GPU it allocates nothing, waits for nothing, and may be captured in a graph,
    /// which must not outlive the binding and its tensors.
    ///
    /// # Errors
    /// The driver's error, the emulator's finding, or what only shows when the reference reads the values.
    pub fn launch(&self, stream: Stream) -> Result<()> {
        let _span = tracing::debug_span!("launch", operation = self.operation.name()).entered();
        match &self.work {
            Work::Kernels(runtime, launches) => {
                launches.iter().try_for_each(|launch| launch.enqueue(&**runtime, stream))
            }
            Work::Host(work) => work(),
        }
    }

    /// Enqueues one kernel of the launch alone, to time it: its inputs are those that an earlier launch left.
    ///
    /// # Errors
    /// As [`Bound::launch`]; [`Error::Argument`] for a number past the last kernel, of which the reference has none.
    pub fn launch_kernel(&self, index: usize, stream: Stream) -> Result<()> {
        let no_such = |kernels: usize| Err(Error::value("index", format!("one of {kernels} kernels"), index));
        match &self.work {
            Work::Kernels(runtime, launches) => match launches.get(index) {
                Some(launch) => launch.enqueue(&**runtime, stream),
                None => no_such(launches.len()),
            },
            Work::Host(_) => no_such(0),
        }
    }
}

impl fmt::Debug for Bound<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let work: &dyn fmt::Debug = match &self.work {
            Work::Kernels(_, launches) => launches,
            Work::Host(_) => &"reference",
        };
        f.debug_struct("Bound").field("operation", &self.operation).field("work", work).finish_non_exhaustive()
    }
}
