//! What must not change a result: all of it bitwise.
//!
//! | changed | |
//! |---|---|
//! | family paged or expanded; unsplit, two halves in a tile, three, or two in each of two CTAs | equal bytes |
//! | nothing (run again, also without clearing anything) | equal bytes |
//! | factors on the host or on the device | equal bytes |
//! | order of the pages in the pool, spare pages, cache slots past the length | equal bytes |
//! | other requests in the batch, order of the requests | equal bytes per request |
//! | strides of dimensions of one element | equal bytes |
//! | lengths between launches of one binding | as if bound anew: equal bytes |
//! | number of SMs (in `schedules.rs`) | equal bytes |

use bakewell::nvfp4_context::Family;
use bakewell::{Device, Stream};
use bakewell_conformance::nvfp4_context::{Inputs, PAIRED, ScaleOrigin, Spec, THREE_HALVES};
use bakewell_conformance::{HostTensor, Outputs, Staged};
use bakewell_tests::on_every_engine;
use bakewell_tests::runs::{self, equal, outputs, relaunched, running_again_gives_equal_bytes};

use super::wide::Wide;
use super::{generated, goldens, mixed, pinned, subjects};

/// On the device's own terms: the same arithmetic in the same order, whoever expands the cache.
#[test]
fn the_expanded_family_gives_the_bytes_of_the_paged_one() {
    on_every_engine(|device| {
        let groups = [1, 5, 8].map(|group| {
            let spec =
                Spec { q_heads: 2 * group, kv_heads: 2, q_lens: vec![90, 1], kv_lens: vec![400, 131], sinks: true };
            generated(&spec, None)
        });
        let goldens = goldens().into_iter().map(|golden| golden.inputs);
        for mut inputs in goldens.chain(groups).chain([generated(&mixed(), None)]) {
            inputs.problem.lse = true;
            for splits in [1, 3] {
                inputs.problem.num_splits = Some(splits);
                let expanded = pinned(&inputs, Family::Expanded);
                if device.plan(&expanded.problem).is_err() {
                    continue;
                }
                let paged = outputs(device, &pinned(&inputs, Family::Paged))?;
                equal(&format!("{:?}", expanded.problem), &paged, &outputs(device, &expanded)?)?;
                // Splits are shares of a tile's blocks, of which taller tiles may have others.
                for (family, name) in [(Family::Expanded, THREE_HALVES), (Family::Paged, PAIRED)] {
                    let mut taller = pinned(&inputs, family);
                    taller.problem.schedule = Some(name.to_owned());
                    if splits == 1 {
                        equal(&format!("{:?}", taller.problem), &paged, &outputs(device, &taller)?)?;
                    }
                }
            }
        }
        Ok(())
    });
}

#[test]
fn running_again_and_factors_on_the_device_give_equal_bytes() {
    on_every_engine(|device| {
        for inputs in subjects(device) {
            running_again_gives_equal_bytes(device, &inputs)?;
            let on_the_device = Inputs { scale_origin: ScaleOrigin::Device, ..inputs.clone() };
            equal("factors on the device", &outputs(device, &inputs)?, &outputs(device, &on_the_device)?)?;
        }
        Ok(())
    });
}

/// The pool reversed, with a page in front that no table names.
fn reversed(inputs: &Inputs) -> Inputs {
    let mut other = inputs.clone();
    let pages = other.problem.num_pages;
    other.problem.num_pages = pages + 1;
    for tensor in [&mut other.k_packed, &mut other.v_packed, &mut other.k_scale, &mut other.v_scale] {
        let page_bytes = tensor.bytes.len() / pages as usize;
        let spare = vec![0x7F; page_bytes];
        tensor.bytes =
            [&spare[..]].into_iter().chain(tensor.bytes.chunks_exact(page_bytes).rev()).flatten().copied().collect();
        tensor.shape[0] += 1;
    }
    let moved: Vec<i32> = inputs
        .page_table
        .to_i32()
        .unwrap()
        .iter()
        .map(|&page| if page < 0 { page } else { pages as i32 - page })
        .collect();
    other.page_table = HostTensor::of_i32(&other.page_table.shape, &moved);
    other
}

/// Scales of zero where the generator put NaN because no token is live.
fn clean(inputs: &Inputs) -> Inputs {
    let mut other = inputs.clone();
    for tensor in [&mut other.k_scale, &mut other.v_scale] {
        tensor.bytes.iter_mut().filter(|byte| **byte == 0x7F).for_each(|byte| *byte = 0);
    }
    other
}

#[test]
fn places_of_pages_and_dead_slots_do_not_matter() {
    on_every_engine(|device| {
        for inputs in subjects(device) {
            let first = outputs(device, &inputs)?;
            equal("pages reversed", &first, &outputs(device, &reversed(&inputs))?)?;
            assert_ne!(clean(&inputs), inputs);
            equal("dead slots", &first, &outputs(device, &clean(&inputs))?)?;
        }
        Ok(())
    });
}

/// The requests `order` of a batch, with the same bounds.
fn select(inputs: &Inputs, order: &[usize]) -> Inputs {
    let starts = inputs.cu_seqlens_q.to_i32().unwrap();
    let token = (inputs.problem.q_heads * inputs.problem.head_dim) as usize;
    let (mut q, mut ends, mut lengths, mut table) = (Vec::new(), vec![0], Vec::new(), Vec::new());
    let width = inputs.problem.max_pages as usize;
    for &request in order {
        let tokens = starts[request] as usize..starts[request + 1] as usize;
        q.extend_from_slice(&inputs.q.bytes[tokens.start * token..tokens.end * token]);
        ends.push(ends[ends.len() - 1] + tokens.len() as i32);
        lengths.push(inputs.seq_lens_kv.to_i32().unwrap()[request]);
        table.extend_from_slice(&inputs.page_table.to_i32().unwrap()[request * width..][..width]);
    }
    let mut selected = inputs.clone();
    selected.problem.batch = order.len() as u64;
    selected.problem.total_q = ends[ends.len() - 1] as u64;
    selected.q.shape = selected.problem.q_shape().to_vec();
    selected.q.bytes = q;
    selected.cu_seqlens_q = HostTensor::of_i32(&[order.len() as u64 + 1], &ends);
    selected.seq_lens_kv = HostTensor::of_i32(&[order.len() as u64], &lengths);
    selected.page_table = HostTensor::of_i32(&selected.problem.page_table_shape(), &table);
    selected
}

/// Output and log-sum-exp of a request.
fn request(inputs: &Inputs, outputs: &Outputs, request: usize) -> [Vec<u8>; 2] {
    let starts = inputs.cu_seqlens_q.to_i32().unwrap();
    let tokens = starts[request] as usize..starts[request + 1] as usize;
    [&outputs["out"], &outputs["lse"]].map(|tensor| {
        let row = tensor.bytes.len() / inputs.problem.total_q as usize;
        tensor.bytes[tokens.start * row..tokens.end * row].to_vec()
    })
}

#[test]
fn neighbours_and_order_do_not_matter() {
    on_every_engine(|device| {
        for all in subjects(device) {
            let together = outputs(device, &all)?;
            let order = [3, 1, 4, 2, 0];
            let reordered = select(&all, &order);
            let elsewhere = outputs(device, &reordered)?;
            for (slot, &i) in order.iter().enumerate() {
                let wanted = request(&all, &together, i);
                equal("another slot", &wanted, &request(&reordered, &elsewhere, slot))?;
                let alone = select(&all, &[i]);
                if alone.problem.total_q > 0 {
                    equal("alone", &wanted, &request(&alone, &outputs(device, &alone)?, 0))?;
                }
            }
        }
        Ok(())
    });
}

/// What a captured graph does: the binding stays, the lengths on the device change.
#[test]
fn lengths_may_change_between_launches_of_a_binding() {
    let spec = Spec { q_heads: 4, kv_heads: 1, q_lens: vec![5, 5], kv_lens: vec![300, 300], sinks: true };
    let few = Spec { q_lens: vec![2, 2], ..spec.clone() };
    on_every_engine(|device| {
        for full in [&spec, &few].map(|spec| generated(spec, Some(2))) {
            let lengths = [[17, 300], [0, 1], [300, 129]].map(|lengths| HostTensor::of_i32(&[2], &lengths));
            let changed = relaunched(device, &full, "seq_lens_kv", &lengths)?;
            for (lengths, changed) in lengths.into_iter().zip(changed) {
                let anew = Inputs { seq_lens_kv: lengths.clone(), ..full.clone() };
                equal(&format!("{:?}", lengths.to_i32()), &outputs(device, &anew)?, &changed)?;
            }
        }
        Ok(())
    });
}

/// Queries, pages and table rows with gaps between them give the bytes of dense tensors.
#[test]
fn strides_do_not_matter() {
    on_every_engine(|device| {
        for inputs in subjects(device) {
            let dense = outputs(device, &inputs)?;
            let strided = strided_outputs(device, &inputs).map_err(|error| error.to_string())?;
            equal("gaps", &dense["out"].bytes, &strided)?;
        }
        Ok(())
    });
}

fn strided_outputs(device: &Device, inputs: &Inputs) -> bakewell::Result<Vec<u8>> {
    let staged = Staged::new(device, inputs)?;
    let mut args = staged.args()?;
    let wide = |tensor: &HostTensor, gaps: &[u64]| Wide::new(device, tensor, gaps);
    // A gap of 16 bytes between heads of q, of pages and heads elsewhere, and of one entry between rows of the table.
    let (q, table) = (wide(&inputs.q, &[32, 16, 0])?, wide(&inputs.page_table, &[1, 0])?);
    let (k, v) = (wide(&inputs.k_packed, &[48, 32, 16, 0])?, wide(&inputs.v_packed, &[16, 16, 0, 0])?);
    let (k_scale, v_scale) = (wide(&inputs.k_scale, &[16, 16, 0, 0])?, wide(&inputs.v_scale, &[0, 32, 0, 0])?);
    args.q = q.view()?;
    args.page_table = table.view()?;
    (args.k_packed, args.v_packed) = (k.view()?, v.view()?);
    (args.k_scale, args.v_scale) = (k_scale.view()?, v_scale.view()?);
    staged.plan().launch(Stream::DEFAULT, args)?;
    Ok(staged.outputs()?["out"].bytes.clone())
}

/// One query of one request over one page with one head.
#[test]
fn strides_of_one_do_not_matter() {
    let spec = Spec { q_heads: 1, kv_heads: 1, q_lens: vec![1], kv_lens: vec![11], sinks: true };
    on_every_engine(|device| {
        for family in [Family::Paged, Family::Decode, Family::Expanded] {
            let inputs = pinned(&generated(&spec, Some(1)), family);
            if device.plan(&inputs.problem).is_ok() {
                runs::strides_of_one_do_not_matter(device, &inputs)?;
            }
        }
        Ok(())
    });
}
