//! Inputs, and generators of them.

use bakewell::DType;
use bakewell::nvfp4_context::Nvfp4Context;
use bakewell_reference::nvfp4_context as reference;
use bakewell_reference::small_float::e4m3_from_f64;

use crate::HostTensor;
use crate::random::Random;

/// A problem and its input tensors, named as in [`bakewell::nvfp4_context`].
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names of the operation's documentation")]
pub struct Inputs {
    pub problem: Nvfp4Context,
    pub q: HostTensor,
    pub k_packed: HostTensor,
    pub v_packed: HostTensor,
    pub k_scale: HostTensor,
    pub v_scale: HostTensor,
    pub page_table: HostTensor,
    pub seq_lens_kv: HostTensor,
    pub cu_seqlens_q: HostTensor,
    pub sinks: Option<HostTensor>,
    pub bmm1_scale: f32,
    pub bmm2_scale: f32,
    pub scale_origin: ScaleOrigin,
}

/// Where a call finds the two factors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScaleOrigin {
    /// On the host.
    #[default]
    Host,
    /// On the device.
    Device,
}

/// What generated inputs look like.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Query heads.
    pub q_heads: u64,
    /// KV heads.
    pub kv_heads: u64,
    /// Query tokens of each request.
    pub q_lens: Vec<i32>,
    /// Keys of each request.
    pub kv_lens: Vec<i32>,
    /// Whether there are sinks.
    pub sinks: bool,
}

impl Inputs {
    /// Random inputs. Pages are dealt in random order; scales where no token is live are NaN, and table entries past a
    /// request's last page are -1.
    pub fn generate(spec: &Spec, seed: u64) -> Inputs {
        const SPARE_PAGES: usize = 2;
        let mut random = Random::new(seed);
        let pages_of = |keys: i32| (keys.max(0) as usize).div_ceil(reference::PAGE_TOKENS);
        let used: usize = spec.kv_lens.iter().map(|&keys| pages_of(keys)).sum();
        let widest = spec.kv_lens.iter().map(|&keys| pages_of(keys)).max().unwrap_or(0).max(1);
        let mut order: Vec<i32> = (0..(used + SPARE_PAGES) as i32).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, (random.bits() % (i as u64 + 1)) as usize);
        }
        let mut offsets = vec![0];
        offsets.extend(spec.q_lens.iter().scan(0, |end, &queries| {
            *end += queries;
            Some(*end)
        }));
        let longest = |lengths: &[i32]| lengths.iter().copied().max().unwrap_or(0).max(0) as u64;
        let problem = Nvfp4Context {
            batch: spec.kv_lens.len() as u64,
            total_q: *offsets.last().unwrap_or(&0) as u64,
            q_heads: spec.q_heads,
            kv_heads: spec.kv_heads,
            num_pages: order.len() as u64,
            max_pages: widest as u64 + 1,
            max_q_len: longest(&spec.q_lens),
            max_kv_len: longest(&spec.kv_lens),
            sinks: spec.sinks,
            ..Nvfp4Context::default()
        };
        let (table, live) = deal(&problem, &spec.kv_lens, &order);
        let bytes = |shape: &[u64], bytes: Vec<u8>| HostTensor { dtype: DType::U8, shape: shape.to_vec(), bytes };
        let normal = |random: &mut Random, shape: &[u64]| -> Vec<u8> {
            let count = shape.iter().product::<u64>() as usize;
            random.normal(count).into_iter().map(e4m3_from_f64).collect()
        };
        let q = normal(&mut random, &problem.q_shape());
        let mut codes =
            |shape: &[u64]| -> Vec<u8> { (0..shape.iter().product::<u64>()).map(|_| random.bits() as u8).collect() };
        let (k_packed, v_packed) = (codes(&problem.packed_shape()), codes(&problem.packed_shape()));
        let heads = spec.kv_heads as usize;
        let mut scales = |place: fn(usize, usize) -> usize| {
            let mut all = vec![0u8; problem.scale_shape().iter().product::<u64>() as usize];
            for (tile, page) in all.chunks_exact_mut(128).enumerate() {
                for (token, group) in (0..16).flat_map(|token| (0..8).map(move |group| (token, group))) {
                    // 2^-4 to just under 2^-1, all different from 1; NaN where nothing may be read.
                    let mid = 0x18 + (random.bits() % 24) as u8;
                    page[place(token, group)] = if live[tile / heads * 16 + token] { mid } else { 0x7F };
                }
            }
            all
        };
        let k_scale = scales(|token, group| token * 8 + group);
        let v_scale = scales(|token, group| token / 4 * 32 + group * 4 + token % 4);
        let sinks = spec.sinks.then(|| {
            let values = random.normal(spec.q_heads as usize);
            HostTensor::of(&[spec.q_heads], &values.into_iter().map(|value| value as f32).collect::<Vec<_>>())
        });
        Inputs {
            q: bytes(&problem.q_shape(), q),
            k_packed: bytes(&problem.packed_shape(), k_packed),
            v_packed: bytes(&problem.packed_shape(), v_packed),
            k_scale: bytes(&problem.scale_shape(), k_scale),
            v_scale: bytes(&problem.scale_shape(), v_scale),
            page_table: HostTensor::of_i32(&problem.page_table_shape(), &table),
            seq_lens_kv: HostTensor::of_i32(&[problem.batch], &spec.kv_lens),
            cu_seqlens_q: HostTensor::of_i32(&[problem.batch + 1], &offsets),
            sinks,
            // Products have a standard deviation near 8: logits near 1.
            bmm1_scale: 0.118,
            bmm2_scale: 0.9,
            scale_origin: ScaleOrigin::Host,
            problem,
        }
    }
}

/// Page table of the requests, and which tokens of the pool are live.
fn deal(problem: &Nvfp4Context, kv_lens: &[i32], order: &[i32]) -> (Vec<i32>, Vec<bool>) {
    let width = problem.max_pages as usize;
    let mut table = vec![-1; kv_lens.len() * width];
    let mut live = vec![false; order.len() * reference::PAGE_TOKENS];
    let mut next = order.iter();
    for (row, &keys) in table.chunks_exact_mut(width).zip(kv_lens) {
        let keys = keys.max(0) as usize;
        for (entry, &page) in row.iter_mut().zip(next.by_ref().take(keys.div_ceil(reference::PAGE_TOKENS))) {
            *entry = page;
        }
        for token in 0..keys {
            let page = row[token / reference::PAGE_TOKENS] as usize;
            live[page * reference::PAGE_TOKENS + token % reference::PAGE_TOKENS] = true;
        }
    }
    (table, live)
}
