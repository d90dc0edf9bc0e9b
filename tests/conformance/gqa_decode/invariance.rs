//! What must not change a result, and how exactly.
//!
//! | changed | promise |
//! |---|---|
//! | nothing (run again, also without clearing anything) | equal bytes |
//! | cache slots past the length | equal bytes |
//! | order of the requests, other requests in the batch (split count fixed) | equal bytes per request |
//! | lengths below 0 or above the capacity, to the bound next to them | equal bytes; the reference refuses them |
//! | capacity | tolerance |
//! | split count | tolerance |
//! | strides of dimensions of one element | equal bytes |
//! | lengths between launches of one binding | as if bound anew: equal bytes |

use bakewell::gqa_decode::GqaDecode;
use bakewell_conformance::gqa_decode::{Distribution, Inputs, out_tolerance};
use bakewell_conformance::{HostTensor, Judged};
use bakewell_tests::on_every_engine;
use bakewell_tests::runs::{self, equal, outputs, relaunched};

use super::check;

const LENGTHS: [i32; 5] = [190, 0, 1, 64, 129];

fn problem(num_splits: Option<u32>) -> GqaDecode {
    GqaDecode { capacity: 190, query_heads: 8, kv_heads: 2, num_splits, lse: true, ..GqaDecode::default() }
}

fn inputs(num_splits: Option<u32>) -> Inputs {
    Inputs::generate(&problem(num_splits), &LENGTHS, Distribution::Normal, 11).unwrap()
}

#[test]
fn running_again_gives_equal_bytes() {
    on_every_engine(|device| {
        let splits = [None, Some(1), Some(4)];
        splits.into_iter().try_for_each(|splits| runs::running_again_gives_equal_bytes(device, &inputs(splits)))
    });
}

#[test]
fn slots_past_the_length_do_not_matter() {
    on_every_engine(|device| {
        let poisoned = inputs(None);
        let mut clean = poisoned.clone();
        let finite =
            clean.kv.to_f64().unwrap().iter().map(|x| if x.is_finite() { *x } else { 0.25 }).collect::<Vec<_>>();
        clean.kv = HostTensor::rounded(clean.kv.dtype, &clean.kv.shape, &finite).unwrap();
        assert_ne!(clean.kv, poisoned.kv);
        equal("other tail", &outputs(device, &poisoned)?, &outputs(device, &clean)?)
    });
}

/// A short capacity, a ring of tiles, and registers that stream them; every access to the cache is checked.
#[test]
fn a_length_outside_the_capacity_counts_as_the_bound_next_to_it() {
    on_every_engine(|device| {
        for (capacity, num_splits) in [(64, None), (190, Some(2)), (8200, None)] {
            let last = capacity as i32;
            let problem =
                GqaDecode { capacity, query_heads: 4, kv_heads: 1, num_splits, lse: true, ..GqaDecode::default() };
            let within = Inputs::generate(&problem, &[last, 0], Distribution::Normal, 12).unwrap();
            for lengths in [[last + 1, -1], [i32::MAX, i32::MIN]] {
                let outside = Inputs { sequence_lengths: HostTensor::of_i32(&[2], &lengths), ..within.clone() };
                let got = outputs(device, &outside);
                match device.arch() {
                    Some(_) => equal(&format!("{lengths:?}"), &outputs(device, &within)?, &got?)?,
                    None => assert!(got.unwrap_err().contains("sequence_lengths: expected 0..="), "{lengths:?}"),
                }
            }
        }
        Ok(())
    });
}

#[test]
fn neighbours_and_order_do_not_matter() {
    on_every_engine(|device| {
        for num_splits in [Some(1), Some(2)] {
            let all = inputs(num_splits);
            let together = outputs(device, &all)?;
            let order = [3, 1, 4, 0, 2];
            let reordered = outputs(device, &all.select(&order).unwrap())?;
            let row = together["out"].bytes.len() / LENGTHS.len();
            let request = |bytes: &[u8], i: usize| bytes[i * row..(i + 1) * row].to_vec();
            for (slot, &i) in order.iter().enumerate() {
                let wanted = request(&together["out"].bytes, i);
                equal("another slot", &wanted, &request(&reordered["out"].bytes, slot))?;
                equal("alone", &wanted, &outputs(device, &all.select(&[i]).unwrap())?["out"].bytes)?;
            }
        }
        Ok(())
    });
}

#[test]
fn capacity_and_split_count_change_roundings_only() {
    on_every_engine(|device| {
        let expected = inputs(None).expected().unwrap();
        let tolerance = out_tolerance(problem(None).dtype);
        for num_splits in [1, 2, 4, 8, 10, 16] {
            check(&outputs(device, &inputs(Some(num_splits)))?["out"], &expected.out, &tolerance)
                .map_err(|failure| format!("{num_splits} splits: {failure}"))?;
        }
        // The same keys in a larger cache.
        let narrow = inputs(None);
        for capacity in [191, 256, 1000] {
            let wide = widen(&narrow, capacity);
            check(&outputs(device, &wide)?["out"], &expected.out, &tolerance)
                .map_err(|failure| format!("capacity {capacity}: {failure}"))?;
        }
        Ok(())
    });
}

/// The same inputs in a cache of a larger capacity; new slots hold NaN.
fn widen(inputs: &Inputs, capacity: u64) -> Inputs {
    let row_bytes = (inputs.problem.head_dim * inputs.problem.dtype.bytes()) as usize;
    let plane = inputs.problem.capacity as usize * row_bytes;
    let mut wide = inputs.clone();
    wide.problem.capacity = capacity;
    wide.kv.shape = wide.problem.kv_shape().to_vec();
    wide.kv.bytes = inputs
        .kv
        .bytes
        .chunks_exact(plane)
        .flat_map(|keys| {
            let mut keys = keys.to_vec();
            keys.resize(capacity as usize * row_bytes, 0xFF);
            keys
        })
        .collect();
    wide
}

#[test]
fn lengths_may_change_between_launches_of_a_binding() {
    on_every_engine(|device| {
        // Every slot holds a number, so that any length is legal.
        let full = Inputs::generate(&problem(None), &[190; 5], Distribution::Normal, 12).unwrap();
        let lengths = [LENGTHS, [0; 5], [190; 5], [1, 2, 3, 4, 5]].map(|lengths| HostTensor::of_i32(&[5], &lengths));
        let changed = relaunched(device, &full, "sequence_lengths", &lengths)?;
        for (lengths, changed) in lengths.into_iter().zip(changed) {
            let anew = Inputs { sequence_lengths: lengths.clone(), ..full.clone() };
            equal(&format!("{:?}", lengths.to_i32()), &outputs(device, &anew)?, &changed)?;
        }
        Ok(())
    });
}

/// One request with one key of one head, or with as many heads as a program serves that takes no groups of one.
#[test]
fn strides_of_one_do_not_matter() {
    on_every_engine(|device| {
        for query_heads in [1, 4] {
            let problem =
                GqaDecode { batch: 1, capacity: 1, query_heads, kv_heads: 1, lse: true, ..GqaDecode::default() };
            if device.plan(&problem).is_ok() {
                let inputs = Inputs::generate(&problem, &[1], Distribution::Normal, 5).unwrap();
                runs::strides_of_one_do_not_matter(device, &inputs)?;
            }
        }
        Ok(())
    });
}
