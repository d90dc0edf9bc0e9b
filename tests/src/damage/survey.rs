//! What a program does when it is whole: where its waits return, and how far its accesses reach.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use bakewell::emulator::check::{Access, Actor, Bytes, Event, Observer};
use bakewell::emulator::memory::{SHARED_START, Space};
use bakewell::emulator::{EmulatedRuntime, Finding, Options};
use bakewell::{Arch, Memory};

/// What a survey saw of one kernel.
#[derive(Debug, Clone, Default)]
pub(super) struct Survey {
    /// Lines with waits behind which a phase was complete.
    pub(super) waited: BTreeSet<u32>,
    /// Of each line, the access to global memory at the highest address.
    pub(super) global: BTreeMap<u32, Reach>,
    /// The same of shared memory.
    pub(super) shared: BTreeMap<u32, Reach>,
}

/// An access to a buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    pub(super) address: u64,
    bytes: u64,
    /// Bytes of the buffer from the address on.
    left: u64,
}

impl Reach {
    /// The least move, in whole accesses of at most 16 bytes, that takes it past the end.
    pub(super) fn past_the_end(&self) -> u64 {
        let unit = self.bytes.min(16);
        self.left.saturating_sub(self.bytes) / unit * unit + unit
    }
}

impl Survey {
    /// Surveys the kernel `entry` in a run on a device with `options`.
    pub(super) fn of(arch: Arch, entry: &str, mut options: Options, run: impl FnOnce(Arc<EmulatedRuntime>)) -> Survey {
        let survey = Arc::new(Mutex::new(Survey::default()));
        let memory = Arc::new(OnceLock::<Weak<EmulatedRuntime>>::new());
        let (keep, entry, device) = (survey.clone(), entry.to_string(), memory.clone());
        options.observer = Some(Arc::new(move |shape, program| {
            let lines = if program.name == entry { program.lines.clone() } else { Vec::new() };
            let memory = device.get().and_then(Weak::upgrade);
            let shared_end = (SHARED_START + shape.shared_bytes).into();
            Box::new(Watch { lines, survey: keep.clone(), memory, shared_end })
        }));
        let runtime = EmulatedRuntime::with_options(arch, options);
        memory.get_or_init(|| Arc::downgrade(&runtime));
        run(runtime);
        let survey = survey.lock().unwrap();
        survey.clone()
    }
}

struct Watch {
    /// Line of each operation; none of other kernels.
    lines: Vec<u32>,
    survey: Arc<Mutex<Survey>>,
    memory: Option<Arc<EmulatedRuntime>>,
    shared_end: u64,
}

impl Watch {
    /// Bytes of the buffer at an address, from there on.
    fn left(&self, space: Space, address: u64) -> u64 {
        match (space, &self.memory) {
            (Space::Global, Some(memory)) => {
                let fits = |bytes| memory.locate(address, bytes).is_ok();
                (0..40).rev().fold(0, |sum, bit| if fits(sum + (1 << bit)) { sum + (1 << bit) } else { sum })
            }
            _ => self.shared_end.saturating_sub(address & 0x00ff_ffff),
        }
    }

    fn note(&self, line: u32, space: Space, address: u64, bytes: u64) {
        let mut survey = self.survey.lock().unwrap();
        let reaches = if space == Space::Global { &mut survey.global } else { &mut survey.shared };
        if reaches.get(&line).is_none_or(|known| address > known.address) {
            let left = self.left(space, address);
            reaches.insert(line, Reach { address, bytes, left });
        }
    }
}

impl Observer for Watch {
    fn access(&mut self, actor: &Actor, access: &Access<'_>) {
        let Some(&line) = self.lines.get(actor.pc as usize) else { return };
        if !matches!(access.space, Space::Global | Space::Shared) {
            return;
        }
        match access.bytes {
            Bytes::Lanes(at, width) => {
                let lanes = (0..at.len()).filter(|&lane| actor.lanes >> lane & 1 != 0);
                if let Some(last) = lanes.map(|lane| at[lane]).max() {
                    self.note(line, access.space, last, width.into());
                }
            }
            Bytes::Range(start, bytes) => self.note(line, access.space, start, bytes),
            Bytes::Runs(..) => {}
        }
    }

    fn event(&mut self, actor: &Actor, event: &Event) {
        if let (Event::MbarrierPass { .. }, Some(&line)) = (event, self.lines.get(actor.pc as usize)) {
            self.survey.lock().unwrap().waited.insert(line);
        }
    }

    fn take_findings(&mut self) -> Vec<(Actor, Finding)> {
        Vec::new()
    }
}
