//! The debug entry that shows pages: its contract. Its bytes are in `values.rs`.

use bakewell::error::Property;
use bakewell::nvfp4_context::debug::Pages;
use bakewell::{Arch, DType, Stream};
use bakewell_conformance::call::TensorSpec;
use bakewell_conformance::nvfp4_context::PagesInputs;
use bakewell_conformance::{CallInputs, HostTensor, Staged};
use bakewell_tests::contract::{Contract, contiguous, recorder};
use bakewell_tests::on_every_engine;
use bakewell_tests::recording::Call;
use bakewell_tests::runs::{equal, outputs};

use super::wide::Wide;

fn contract() -> Contract<PagesInputs> {
    Contract { inputs: PagesInputs::every_product(), arch: Arch::Sm103 }
}

#[test]
fn malformed_tensors() {
    let contract = contract();
    for TensorSpec { name, dtype, shape, .. } in contract.inputs.specs() {
        contract.refuses(name, Property::Rank, |t, views| {
            views.put(name, t.buffer(name).view(dtype, &shape[..3]).unwrap());
        });
        for dimension in 0..shape.len() {
            let mut other = shape.clone();
            other[dimension] -= 1;
            contract.refuses(name, Property::Shape, |t, views| {
                views.put(name, t.buffer(name).view(dtype, &other).unwrap());
            });
        }
        contract.refuses(name, Property::DType, |t, views| {
            views.put(name, t.buffer(name).view(DType::F16, &shape).unwrap());
        });
        contract.refuses(name, Property::Alignment, |t, views| {
            views.put(name, t.buffer(name).strided_view(4, dtype, &shape, &contiguous(&shape)).unwrap());
        });
        let mut strides = contiguous(&shape);
        strides[0] += 8;
        contract.refuses(name, Property::Layout, |t, views| {
            views.put(name, t.buffer(name).strided_view(0, dtype, &shape, &strides).unwrap());
        });
    }
    contract.outputs_overlap_nothing();
    contract.foreign_memory_is_refused();
}

#[test]
fn sizes_that_no_program_takes() {
    let contract = contract();
    for kv_heads in [0, 65_536] {
        contract.refuses_plan("kv_heads", Property::Value, Pages { num_pages: 1, kv_heads });
    }
    contract.refuses_plan("num_pages", Property::Size, Pages { num_pages: 1 << 30, kv_heads: 1 });
}

/// No workspace, no tensor map; nothing at all without pages.
#[test]
fn binding_loads_and_a_launch_launches() {
    let (device, recording) = recorder(Arch::Sm90);
    let staged = Staged::new(&device, &contract().inputs).unwrap();
    recording.take_calls();
    let bound = staged.bind().unwrap();
    assert!(matches!(recording.take_calls().as_slice(), [Call::Load(_)]));
    bound.launch(Stream::DEFAULT).unwrap();
    assert!(matches!(recording.take_calls().as_slice(), [Call::Launch(..)]));
    for (num_pages, ctas) in [(1, 1), (8, 1), (9, 2)] {
        let plan = device.plan(&Pages { num_pages, kv_heads: 3 }).unwrap();
        assert_eq!(plan.decision().unwrap().launch.unwrap().grid, [ctas, 3, 2]);
    }
    let plan = device.plan(&Pages { num_pages: 0, kv_heads: 1 }).unwrap();
    assert_eq!((plan.decision().unwrap().launch, plan.schedules().len()), (None, 0));
}

/// Gaps between pages, heads and tokens; of codes also more than 2^32 bytes between pages, where buffers are sparse.
#[test]
fn strides_do_not_matter() {
    let inputs = PagesInputs::every_product();
    on_every_engine(|device| {
        let dense = outputs(device, &inputs)?;
        let far =
            if device.runtime().is_some_and(|runtime| runtime.name().starts_with("emulated")) { 1 << 32 } else { 48 };
        let strided = || -> bakewell::Result<_> {
            let staged = Staged::new(device, &inputs)?;
            let wide = |tensor: &HostTensor, gaps: &[u64]| Wide::new(device, tensor, gaps);
            let (k, v) = (wide(&inputs.k_packed, &[far, 32, 16, 0])?, wide(&inputs.v_packed, &[16, 16, 0, 0])?);
            let (k_scale, v_scale) = (wide(&inputs.k_scale, &[16, 16, 0, 0])?, wide(&inputs.v_scale, &[0, 32, 0, 0])?);
            let mut args = staged.args()?;
            (args.k_packed, args.v_packed) = (k.view()?, v.view()?);
            (args.k_scale, args.v_scale) = (k_scale.view()?, v_scale.view()?);
            staged.plan().launch(Stream::DEFAULT, args)?;
            staged.outputs()
        };
        equal("gaps", &dense, &strided().map_err(|error| error.to_string())?)
    });
}
