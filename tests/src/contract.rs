//! What every operation promises about the tensors of a call, a binding and a launch.

use std::sync::Arc;

use bakewell::arguments::Arguments as _;
use bakewell::error::Property;
use bakewell::{Arch, Bound, Buffer, DType, Device, Error, Plan, Problem, Result, Stream};
use bakewell_conformance::CallInputs;
use bakewell_conformance::call::{Buffers, TensorSpec, Views};

use crate::recording::{Call, RecordingRuntime};

type Args<'a, I> = <<I as CallInputs>::Problem as Problem>::Args<'a>;

/// A planned problem with buffers for its tensors, twice the size so that a shifted or strided view still fits, inputs
/// written to their start.
#[derive(Debug)]
pub struct Tensors<I: CallInputs> {
    /// The device.
    pub device: Device,
    /// The plan.
    pub plan: Plan<I::Problem>,
    inputs: I,
    buffers: Buffers,
    workspace: Buffer,
}

impl<I: CallInputs> Tensors<I> {
    /// Plans and allocates.
    ///
    /// # Errors
    /// The plan's or the device's.
    pub fn new(device: Device, inputs: &I) -> Result<Tensors<I>> {
        let plan = device.plan(inputs.problem())?;
        let buffers = Buffers::new(&device, inputs.specs(), |spec| spec.bytes() + 16)?;
        for spec in inputs.specs().iter().filter(|spec| !spec.output) {
            if let Some(tensor) = inputs.tensor(spec.name) {
                buffers.get(spec.name)?.write(0, &tensor.bytes)?;
            }
        }
        let workspace = device.buffer(2 * (plan.workspace_bytes() + 256))?;
        Ok(Tensors { inputs: inputs.clone(), buffers, workspace, plan, device })
    }

    /// Bytes of the workspace that is given. The reference needs none; it checks one that is given all the same.
    pub fn workspace_bytes(&self) -> u64 {
        self.plan.workspace_bytes().max(256)
    }

    /// The buffer of a tensor, or of the workspace.
    ///
    /// # Panics
    /// For a name that is none.
    pub fn buffer(&self, name: &str) -> &Buffer {
        if name == "workspace" { &self.workspace } else { self.buffers.get(name).unwrap() }
    }

    /// Views that fit, workspace included.
    ///
    /// # Panics
    /// Never.
    pub fn views(&self) -> Views<'_> {
        let mut views = self.buffers.views().unwrap();
        views.put("workspace", self.workspace.view(DType::U8, &[self.workspace_bytes()]).unwrap());
        views
    }

    /// The arguments made of views.
    ///
    /// # Errors
    /// As [`CallInputs::args`].
    pub fn args<'a>(&self, views: &Views<'a>) -> Result<Args<'a, I>> {
        self.inputs.args(views)
    }

    /// Binds views.
    ///
    /// # Errors
    /// The binding's.
    pub fn bind<'a>(&self, views: &Views<'a>) -> Result<Bound<'a>> {
        self.plan.bind(self.args(views)?)
    }

    /// Each tensor, the workspace included, that is on another device is refused by its name.
    ///
    /// # Panics
    /// When one is not.
    pub fn refuse_those_of(&self, elsewhere: &Device) {
        let workspace = TensorSpec::output("workspace", DType::U8, &[self.workspace_bytes()]);
        // A call that takes no workspace has none that could be elsewhere.
        let workspace = self.args(&self.views()).unwrap().workspace().map(|_| workspace);
        for spec in self.inputs.specs().into_iter().chain(workspace) {
            let foreign = elsewhere.buffer(spec.bytes()).unwrap();
            let mut views = self.views();
            views.put(spec.name, foreign.view(spec.dtype, &spec.shape).unwrap());
            assert_misplaced(self.bind(&views), spec.name, &self.device, foreign.address());
        }
    }
}

/// A device that records.
///
/// # Panics
/// When the architecture is not compiled in.
pub fn recorder(arch: Arch) -> (Device, Arc<RecordingRuntime>) {
    let recording = RecordingRuntime::new(arch, arch.typical_sm_count());
    (Device::with_runtime(recording.clone()).unwrap(), recording)
}

/// Pairs of devices: of one kind, and of two.
///
/// # Panics
/// When the architecture is not compiled in.
pub fn apart(arch: Arch) -> Vec<[Device; 2]> {
    let reference = || Device::reference().unwrap();
    let mut pairs = vec![[reference(), reference()], [recorder(arch).0, reference()]];
    if cfg!(feature = "emulator") {
        let emulated = || Device::emulated(arch).unwrap();
        pairs.extend([[emulated(), emulated()], [emulated(), reference()], [reference(), emulated()]]);
    }
    pairs
}

/// A tensor at this address was refused because it is not in the device's memory.
///
/// # Panics
/// When it was not, or for another reason.
#[track_caller]
pub fn assert_misplaced<T: std::fmt::Debug>(outcome: Result<T>, name: &str, device: &Device, address: u64) {
    match outcome {
        Err(Error::Argument { argument, property: Property::Location, expected, given }) => {
            assert_eq!((argument, expected), (name, format!("memory of {device}")));
            assert!(given.contains(&format!("{address:#x}")), "{given}");
        }
        other => panic!("{name} on {device}: {other:?}"),
    }
}

/// The contract of an operation, tried with inputs whose problem needs every tensor and a workspace.
#[derive(Debug)]
pub struct Contract<I> {
    /// Inputs.
    pub inputs: I,
    /// Architecture of the device that records.
    pub arch: Arch,
}

impl<I: CallInputs> Contract<I> {
    /// Views changed like this are refused with this argument and property, on the reference and on a device with
    /// programs, before anything happens there.
    ///
    /// # Panics
    /// When they are not.
    pub fn refuses<F>(&self, argument: &str, property: Property, change: F)
    where
        F: for<'t> Fn(&'t Tensors<I>, &mut Views<'t>),
    {
        self.refuses_args(argument, property, |tensors| {
            let mut views = tensors.views();
            change(tensors, &mut views);
            tensors.args(&views).unwrap()
        });
    }

    /// The same for arguments made from the tensors.
    ///
    /// # Panics
    /// When they are not refused.
    pub fn refuses_args<F>(&self, argument: &str, property: Property, args: F)
    where
        F: for<'t> Fn(&'t Tensors<I>) -> Args<'t, I>,
    {
        let (device, recording) = recorder(self.arch);
        for device in [Device::reference().unwrap(), device] {
            let tensors = Tensors::new(device, &self.inputs).unwrap();
            let args = args(&tensors);
            recording.take_calls();
            match tensors.plan.bind(args) {
                Err(Error::Argument { argument: named, property: about, expected, given }) => {
                    assert_eq!((named, about), (argument, property), "expected {expected}, got {given}");
                    assert!(!expected.is_empty() && !given.is_empty());
                }
                other => panic!("{} accepts it: {other:?}", tensors.device),
            }
            assert_eq!(recording.take_calls(), [], "nothing happens before the checks are over");
        }
    }

    /// A problem is refused when it is planned, with this argument and property.
    ///
    /// # Panics
    /// When it is not.
    pub fn refuses_plan(&self, argument: &str, property: Property, problem: I::Problem) {
        for device in [Device::reference().unwrap(), recorder(self.arch).0] {
            match device.plan(&problem) {
                Err(Error::Argument { argument: named, property: about, .. }) => {
                    assert_eq!((named, about), (argument, property));
                }
                other => panic!("{device} accepts {problem:?}: {other:?}"),
            }
        }
    }

    /// Another rank, another size of each dimension, another type, an address between elements, memory of another
    /// device.
    ///
    /// # Panics
    /// When a tensor is accepted.
    pub fn every_tensor_is_checked(&self) {
        for TensorSpec { name, dtype, shape, .. } in self.inputs.specs() {
            let more: Vec<u64> = shape.iter().copied().chain([1]).collect();
            self.refuses(name, Property::Rank, |t, views| views.put(name, t.buffer(name).view(dtype, &more).unwrap()));
            for dimension in 0..shape.len() {
                let mut other = shape.clone();
                other[dimension] -= 1;
                self.refuses(name, Property::Shape, |t, views| {
                    views.put(name, t.buffer(name).view(dtype, &other).unwrap());
                });
            }
            let other = if dtype == DType::F16 || dtype.bytes() == 1 { DType::Bf16 } else { DType::F16 };
            self.refuses(name, Property::DType, |t, views| {
                views.put(name, t.buffer(name).view(other, &shape).unwrap())
            });
            let strides = contiguous(&shape);
            let between = if dtype.bytes() == 1 { 4 } else { dtype.bytes() / 2 };
            self.refuses(name, Property::Alignment, |t, views| {
                views.put(name, t.buffer(name).strided_view(between, dtype, &shape, &strides).unwrap());
            });
        }
        self.foreign_memory_is_refused();
    }

    /// Memory of another device, of the same kind and of another.
    ///
    /// # Panics
    /// When a tensor is accepted.
    pub fn foreign_memory_is_refused(&self) {
        for [here, there] in apart(self.arch) {
            Tensors::new(here, &self.inputs).unwrap().refuse_those_of(&there);
        }
    }

    /// Every output over every other tensor.
    ///
    /// # Panics
    /// When an overlap is accepted.
    pub fn outputs_overlap_nothing(&self) {
        let specs = self.inputs.specs();
        for output in specs.iter().filter(|spec| spec.output) {
            for other in specs.iter().filter(|other| other.name != output.name) {
                // The smaller of the two in the buffer of the larger.
                let (inner, outer) = if output.bytes() <= other.bytes() { (output, other) } else { (other, output) };
                let tensors = Tensors::new(Device::reference().unwrap(), &self.inputs).unwrap();
                let mut views = tensors.views();
                views.put(inner.name, tensors.buffer(outer.name).view(inner.dtype, &inner.shape).unwrap());
                match tensors.bind(&views) {
                    Err(Error::Argument { argument, property: Property::Alias, .. }) => {
                        assert!([output.name, other.name].contains(&argument), "{argument}");
                    }
                    accepted => panic!("{} over {}: {accepted:?}", inner.name, outer.name),
                }
            }
        }
    }

    /// A workspace of another type, at another address, over a tensor, too small.
    ///
    /// # Panics
    /// When it is accepted.
    pub fn the_workspace_is_checked(&self) {
        self.refuses("workspace", Property::DType, |t, views| {
            views.put("workspace", t.buffer("workspace").view(DType::F32, &[t.workspace_bytes() / 4]).unwrap());
        });
        self.refuses("workspace", Property::Alignment, |t, views| {
            let shifted = t.buffer("workspace").strided_view(16, DType::U8, &[t.workspace_bytes()], &[1]);
            views.put("workspace", shifted.unwrap());
        });
        let largest =
            self.inputs.specs().into_iter().filter(|spec| !spec.output).max_by_key(TensorSpec::bytes).unwrap();
        self.refuses("workspace", Property::Alias, |t, views| {
            let start = t.buffer("workspace").view(largest.dtype, &largest.shape);
            match start {
                Ok(view) => views.put(largest.name, view),
                Err(_) => {
                    views.put("workspace", t.buffer(largest.name).view(DType::U8, &[t.workspace_bytes()]).unwrap())
                }
            }
        });
        let (device, recording) = recorder(self.arch);
        let tensors = Tensors::new(device, &self.inputs).unwrap();
        let needed = tensors.plan.workspace_bytes();
        assert!(needed > 0, "{}", tensors.plan);
        recording.take_calls();
        let mut views = tensors.views();
        views.put("workspace", tensors.buffer("workspace").view(DType::U8, &[needed - 1]).unwrap());
        let text = tensors.bind(&views).unwrap_err().to_string();
        assert_eq!(text, format!("workspace: expected at least {needed} bytes, got {}", needed - 1));
        assert_eq!(recording.take_calls(), []);
    }

    /// A tensor is missing, or there although `without` (the same problem but for it) does not want it.
    ///
    /// # Panics
    /// When either is accepted.
    pub fn presence_is_checked(&self, name: &'static str, without: I::Problem) {
        self.refuses(name, Property::Presence, |_, views| views.remove(name));
        let tensors = Tensors::new(Device::reference().unwrap(), &self.inputs).unwrap();
        let plan = tensors.device.plan(&without).unwrap();
        match plan.bind(tensors.args(&tensors.views()).unwrap()) {
            Err(Error::Argument { argument, property: Property::Presence, .. }) => assert_eq!(argument, name),
            other => panic!("{other:?}"),
        }
    }

    /// A binding allocates the workspace, runs what prepares and loads the programs, each launch only launches them,
    /// and a dropped binding gives its memory back. Returns what binding asked of the device.
    ///
    /// # Panics
    /// When a call does something else.
    pub fn a_launch_only_launches(&self, streams: &[Stream<'_>]) -> Vec<Call> {
        let (device, recording) = recorder(self.arch);
        let tensors = Tensors::new(device, &self.inputs).unwrap();
        let mut views = tensors.views();
        views.remove("workspace");
        let before = recording.allocations();
        recording.take_calls();
        let bound = tensors.bind(&views).unwrap();
        let binding = recording.take_calls();
        assert_eq!(binding.first(), Some(&Call::Allocate(tensors.plan.workspace_bytes())));
        let loaded: Vec<&String> = binding.iter().filter_map(loaded).collect();
        let (prepared, loaded) = loaded.split_at(tensors.plan.preparations().len());
        assert_eq!(loaded, tensors.plan.programs().iter().collect::<Vec<_>>());
        let run = binding.iter().filter(|call| matches!(call, Call::Launch(..)));
        assert_eq!(run.count(), prepared.len(), "only preparations run while binding");
        for &stream in streams {
            bound.launch(stream).unwrap();
            let calls = recording.take_calls();
            assert_eq!(calls.len(), loaded.len(), "{calls:?}");
            assert!(calls.iter().all(|call| matches!(call, Call::Launch(.., on) if *on == stream.raw())), "{calls:?}");
        }
        drop(bound);
        assert!(recording.take_calls().iter().all(|call| matches!(call, Call::Free(_))));
        assert_eq!(recording.allocations(), before);
        binding
    }

    /// A failure of any call of bind and launch is the caller's error, and leaves no allocation behind.
    ///
    /// # Panics
    /// When one is not.
    pub fn failures_leak_nothing(&self) {
        for n in 0.. {
            let (device, recording) = recorder(self.arch);
            let tensors = Tensors::new(device, &self.inputs).unwrap();
            let mut views = tensors.views();
            views.remove("workspace");
            let before = recording.allocations();
            recording.fail_at(Some(n));
            let result = tensors.plan.launch(Stream::DEFAULT, tensors.args(&views).unwrap());
            assert_eq!(recording.allocations(), before, "call {n}");
            match result {
                Err(Error::Driver { call: "injected", .. }) => {}
                Err(other) => panic!("call {n}: {other}"),
                // Past the last call; the free of the workspace cannot fail.
                Ok(()) => {
                    assert!(n >= 4, "allocate, fill, load and launch: {n}");
                    return;
                }
            }
        }
    }
}

fn loaded(call: &Call) -> Option<&String> {
    match call {
        Call::Load(program) => Some(program),
        _ => None,
    }
}

/// Strides of the contiguous tensor, in elements.
pub fn contiguous(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    strides
}
