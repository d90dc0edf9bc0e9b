//! The pages of a cache: what goes into the debug entry, and whether its bytes are right.

use std::borrow::Cow;
use std::time::Duration;

use bakewell::error::Property;
use bakewell::nvfp4_context::debug::{Pages, PagesArgs};
use bakewell::{DType, Device, Error, Operation, Result};
use bakewell_reference::nvfp4_context::{PAGE_CODES, PAGE_SCALES, Side, dequantise_page};

use super::Inputs;
use crate::call::{CallInputs, TensorSpec, Views};
use crate::compare::compare;
use crate::judged::{Judged, Planned, Verdict};
use crate::staged::{Outputs, run};
use crate::tensor::e4m3_values;
use crate::{HostTensor, TensorFile};

/// A cache.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names of the operation's documentation")]
pub struct PagesInputs {
    pub problem: Pages,
    pub k_packed: HostTensor,
    pub v_packed: HostTensor,
    pub k_scale: HostTensor,
    pub v_scale: HostTensor,
}

/// E4M3 bytes of `k` and `v`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagesExpected([Vec<u8>; 2]);

/// The outputs by the names that files have, in the order of the debug entry's arguments.
const OUTPUTS: [&str; 2] = ["k_deq", "v_deq"];

impl PagesInputs {
    /// The cache of a call of attention.
    pub fn of(inputs: &Inputs) -> PagesInputs {
        PagesInputs {
            problem: Pages::of(&inputs.problem),
            k_packed: inputs.k_packed.clone(),
            v_packed: inputs.v_packed.clone(),
            k_scale: inputs.k_scale.clone(),
            v_scale: inputs.v_scale.clone(),
        }
    }

    /// Every code under every scale, in places that differ between K and V: two pages, four with another head.
    pub fn every_product() -> PagesInputs {
        let problem = Pages { num_pages: 2, kv_heads: 2 };
        let tensor = |shape: [u64; 4], byte: &dyn Fn(usize) -> u8| {
            let bytes = (0..shape.iter().product::<u64>() as usize).map(byte).collect();
            HostTensor { dtype: DType::U8, shape: shape.to_vec(), bytes }
        };
        // Eight bytes hold the sixteen codes of a group; each token begins elsewhere.
        let codes = |shift: usize| {
            tensor(problem.packed_shape(), &move |i| {
                let first = (2 * i + i / 64 + shift) % 16;
                (first | ((first + 1) % 16) << 4) as u8
            })
        };
        // 256 scales fill two tiles of a page and head.
        let scales = |step: usize| tensor(problem.scale_shape(), &move |i| (i * step + i / 256) as u8);
        PagesInputs {
            k_packed: codes(0),
            v_packed: codes(5),
            k_scale: scales(1),
            v_scale: scales(3),
            problem: problem.clone(),
        }
    }
}

impl CallInputs for PagesInputs {
    type Problem = Pages;

    fn problem(&self) -> &Pages {
        &self.problem
    }

    fn specs(&self) -> Vec<TensorSpec> {
        let problem = &self.problem;
        vec![
            TensorSpec::input("k_packed", DType::U8, &problem.packed_shape()),
            TensorSpec::input("v_packed", DType::U8, &problem.packed_shape()),
            TensorSpec::input("k_scale", DType::E4m3, &problem.scale_shape()),
            TensorSpec::input("v_scale", DType::E4m3, &problem.scale_shape()),
            TensorSpec::output("k", DType::E4m3, &problem.shape()),
            TensorSpec::output("v", DType::E4m3, &problem.shape()),
        ]
    }

    fn tensor(&self, name: &str) -> Option<Cow<'_, HostTensor>> {
        let tensor = match name {
            "k_packed" => &self.k_packed,
            "v_packed" => &self.v_packed,
            "k_scale" => &self.k_scale,
            "v_scale" => &self.v_scale,
            _ => return None,
        };
        Some(Cow::Borrowed(tensor))
    }

    fn args<'a>(&self, views: &Views<'a>) -> Result<PagesArgs<'a>> {
        Ok(PagesArgs {
            k_packed: views.need("k_packed")?,
            v_packed: views.need("v_packed")?,
            k_scale: views.need("k_scale")?,
            v_scale: views.need("v_scale")?,
            k: views.need("k")?,
            v: views.need("v")?,
        })
    }
}

impl Judged for PagesInputs {
    const OPERATION: Operation = Operation::Nvfp4Context;
    type Expected = PagesExpected;

    fn from_file(file: &TensorFile) -> Result<PagesInputs> {
        let tensor = |name| file.tensor(name).cloned();
        let k_packed = tensor("k_packed")?;
        let [num_pages, kv_heads, _, _] = k_packed.shape[..] else {
            let given = format!("{:?}", k_packed.shape);
            return Err(Error::argument("k_packed", Property::Rank, "[num_pages, kv_heads, 16, 64]", given));
        };
        Ok(PagesInputs {
            problem: Pages { num_pages, kv_heads },
            k_packed,
            v_packed: tensor("v_packed")?,
            k_scale: tensor("k_scale")?,
            v_scale: tensor("v_scale")?,
        })
    }

    /// `k_deq` and `v_deq`.
    fn golden(file: &TensorFile) -> Result<Option<PagesExpected>> {
        if !file.tensors.contains_key("k_deq") {
            return Ok(None);
        }
        let shape = PagesInputs::from_file(file)?.problem.shape();
        Ok(Some(PagesExpected([file.codes("k_deq", &shape)?, file.codes("v_deq", &shape)?])))
    }

    fn expected(&self) -> Result<PagesExpected> {
        let side = |codes: &HostTensor, scales: &HostTensor, side| {
            let pages = codes.bytes.chunks_exact(PAGE_CODES).zip(scales.bytes.chunks_exact(PAGE_SCALES));
            pages.flat_map(|(codes, scales)| dequantise_page(codes, scales, side)).collect()
        };
        Ok(PagesExpected([side(&self.k_packed, &self.k_scale, Side::K), side(&self.v_packed, &self.v_scale, Side::V)]))
    }

    fn complete(&self) -> PagesInputs {
        self.clone()
    }

    fn variations(&self) -> Vec<(&'static str, PagesInputs)> {
        Vec::new()
    }

    fn plan(&self, device: &Device) -> Result<Planned> {
        Ok(Planned::default().and(&device.plan(&self.problem)?))
    }

    fn run(&self, device: &Device) -> Result<(Outputs, Duration)> {
        let run = run(device, self)?;
        let tensors = run.outputs.0.into_iter().map(|(_, tensor)| tensor);
        Ok((Outputs(OUTPUTS.into_iter().zip(tensors).collect()), run.time))
    }

    /// Every byte; a NaN is as good as another.
    fn judge(&self, outputs: &Outputs, expected: &PagesExpected, _device: &Device) -> Result<Verdict> {
        let (got, want) = (OUTPUTS.map(|name| &outputs[name].bytes).map(Vec::as_slice).concat(), expected.0.concat());
        let shape = [&[OUTPUTS.len() as u64][..], &self.problem.shape()].concat();
        let comparison = compare(&shape, &e4m3_values(&got), &e4m3_values(&want))?;
        let is_nan = |byte: u8| byte & 0x7F == 0x7F;
        let same = |got: u8, want: u8| got == want || (is_nan(got) && is_nan(want));
        let wrong: Vec<usize> = (0..want.len()).filter(|&i| !same(got[i], want[i])).collect();
        let place = |i: usize| {
            let tensor = want.len() / OUTPUTS.len();
            let (name, i) = (OUTPUTS[i / tensor], i % tensor);
            let (row, dim, heads) = (i / 128, i % 128, self.problem.kv_heads as usize);
            format!("{name} at [{}, {}, {}, {dim}]", row / 16 / heads, row / 16 % heads, row % 16)
        };
        Ok(Verdict {
            comparison,
            summary: format!("{} of {} bytes are right", want.len() - wrong.len(), want.len()),
            failure: wrong.first().map(|&i| format!("{}: {:#04x} for {:#04x}", place(i), got[i], want[i])),
        })
    }

    /// Codes, scales and what becomes of them.
    fn live_bytes(&self) -> Result<u64> {
        Ok(self.specs().iter().map(TensorSpec::bytes).sum())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_product_occurs_on_each_side() {
        let inputs = PagesInputs::every_product();
        // Place of a scale in a page: [token][group], and [token / 4][group][token % 4].
        let place = |side, token: usize, group: usize| match side {
            Side::K => token * 8 + group,
            Side::V => token / 4 * 32 + group * 4 + token % 4,
        };
        for (codes, scales, side) in
            [(&inputs.k_packed, &inputs.k_scale, Side::K), (&inputs.v_packed, &inputs.v_scale, Side::V)]
        {
            let mut products = BTreeSet::new();
            let pages = codes.bytes.chunks_exact(PAGE_CODES).zip(scales.bytes.chunks_exact(PAGE_SCALES));
            for (codes, scales) in pages {
                for (i, byte) in codes.iter().enumerate() {
                    let scale = scales[place(side, i / 64, i % 64 / 8)];
                    products.extend([(byte & 0xF, scale), (byte >> 4, scale)]);
                }
            }
            assert_eq!(products.len(), 16 * 256);
        }
    }

    #[test]
    fn one_wrong_byte_is_named() {
        let inputs = PagesInputs::every_product();
        let expected = inputs.expected().unwrap();
        let device = Device::reference().unwrap();
        let (right, _) = inputs.run(&device).unwrap();
        let judge = |outputs: &Outputs| inputs.judge(outputs, &expected, &device).unwrap().failure;
        assert_eq!(judge(&right), None);
        let zero = expected.0[1].iter().position(|&byte| byte == 0).unwrap();
        let mut wrong = right.clone();
        wrong.get_mut("v_deq").unwrap().bytes[zero] = 0x80;
        let failure = judge(&wrong).expect("the sign of zero counts");
        assert!(failure.starts_with("v_deq at [") && failure.ends_with("0x80 for 0x00"), "{failure}");
    }
}
