//! A power of two that the queries lose and their factor gains changes no bit.

use bakewell::gqa_decode::GqaDecode;
use bakewell_conformance::HostTensor;
use bakewell_conformance::gqa_decode::{Distribution, Inputs};
use bakewell_tests::on_every_engine;
use bakewell_tests::runs::{equal, outputs};

#[test]
fn powers_of_two_that_cancel_change_no_bit() {
    let problem =
        GqaDecode { capacity: 190, query_heads: 8, kv_heads: 2, q_scale: 0.75, lse: true, ..GqaDecode::default() };
    let mut inputs = Inputs::generate(&problem, &[190, 0, 65], Distribution::Normal, 61).unwrap();
    // Numbers whose half is a normal f16.
    let q: Vec<f64> = inputs.q.to_f64().unwrap().into_iter().map(|x| if x.abs() < 0.001 { 0.0 } else { x }).collect();
    let with = |factor: f64| {
        let values: Vec<f64> = q.iter().map(|x| x * factor).collect();
        HostTensor::rounded(inputs.q.dtype, &inputs.q.shape, &values).unwrap()
    };
    let halved = with(0.5);
    inputs.q = with(1.0);
    let mut other = Inputs { q: halved, ..inputs.clone() };
    other.problem.q_scale = 1.5;
    on_every_engine(|device| equal("queries halved", &outputs(device, &inputs)?, &outputs(device, &other)?));
}
