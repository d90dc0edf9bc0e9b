//! A case and its PTX.

use std::fmt::Write;

use bakewell_core::tensor_map::TensorMapRequest;

/// Bytes of the global buffer behind [`Case::dump`] before a program writes it.
pub const UNWRITTEN: u8 = 0xcd;

/// Values of one operand, one for each thread of the grid.
#[derive(Debug, Clone)]
pub struct Input {
    /// Bits of its register: 16, 32 or 64.
    pub bits: u32,
    /// Thread by thread.
    pub values: Vec<u64>,
}

/// How results are compared.
#[derive(Debug, Clone, Copy)]
pub enum Class {
    /// Every bit.
    Exact,
    /// Recorded and never compared: no program may depend on it.
    Observed,
    /// The device ends with an error, and so must the emulator.
    Illegal,
    /// Within a bound of the true value, which [`Approximate`] states.
    Bound(Approximate),
}

/// An approximate function of one operand.
#[derive(Debug, Clone, Copy)]
pub struct Approximate {
    /// The function in double precision.
    pub function: fn(f64) -> f64,
    /// Format of operand and result.
    pub format: Format,
    /// Subnormal operands and results become zero.
    pub ftz: bool,
    /// Largest error.
    pub bound: f64,
    /// Whether `bound` is relative to the true value.
    pub relative: bool,
    /// Operands of the sweep where the bound holds, by magnitude.
    pub range: (f64, f64),
}

/// A floating-point format of approximate functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// binary32
    F32,
    /// binary16
    F16,
    /// bfloat16
    Bf16,
}

/// Buffer that a tensor map describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The input buffer [`Case::data`].
    Data,
    /// The output buffer of [`Case::dump`] bytes.
    Dump,
}

/// A program of one form and how to run it.
///
/// The body finds operand `i` of its thread in `%i0`, `%i1`, .. and leaves results in `%o0`, `%o1`, ... `%thread`,
/// `%cta`, `%rank` and `%lane` are the thread, the CTA, its rank in the cluster and the lane; `%data` and `%dump` are
/// the addresses of the two buffers and `%map` that of the tensor map. `%p`, `%h`, `%r`, `%rd`, `%f` and `%d` are
/// scratch registers.
#[derive(Debug, Clone)]
pub struct Case {
    /// Unique in its family.
    pub name: String,
    /// Variables of the kernel, such as shared memory.
    pub variables: String,
    /// Instructions.
    pub body: String,
    /// Threads of a CTA.
    pub threads: u32,
    /// CTAs.
    pub ctas: u32,
    /// CTAs of a cluster.
    pub cluster: u32,
    /// Operands.
    pub inputs: Vec<Input>,
    /// Bits of each result register.
    pub outs: Vec<u32>,
    /// Bytes of the input buffer.
    pub data: Vec<u8>,
    /// Bytes of the output buffer, which starts as [`UNWRITTEN`].
    pub dump: usize,
    /// A tensor map over one of the buffers; its address is added when the case runs.
    pub map: Option<(Place, TensorMapRequest)>,
    /// Comparison.
    pub class: Class,
}

impl Case {
    /// One CTA of `threads` threads, no operands, no results.
    pub fn new(name: impl Into<String>, threads: u32, body: impl Into<String>) -> Case {
        Case {
            name: name.into(),
            variables: String::new(),
            body: body.into(),
            threads,
            ctas: 1,
            cluster: 1,
            inputs: Vec::new(),
            outs: Vec::new(),
            data: vec![0; 16],
            dump: 16,
            map: None,
            class: Class::Exact,
        }
    }

    /// Threads of the grid.
    pub fn total(&self) -> usize {
        (self.threads * self.ctas) as usize
    }

    /// The PTX.
    pub fn text(&self) -> String {
        let mut text = String::from(
            ".version 9.0\n.target sm_90a\n.address_size 64\n\
             .visible .entry k(.param .align 64 .b8 all[192])\n{\n\
             .reg .pred %p<16>; .reg .b16 %h<32>; .reg .b32 %r<64>; .reg .f32 %f<32>; .reg .b64 %rd<64>; .reg .f64 %d<16>;\n\
             .reg .b32 %thread, %cta, %rank, %lane, %at; .reg .b64 %data, %dump, %map, %io, %ix;\n",
        );
        text.push_str(&self.variables);
        let mut put = |line: String| {
            text.push_str(&line);
            text.push('\n');
        };
        for (i, input) in self.inputs.iter().enumerate() {
            put(format!(".reg .b{} %i{i};", input.bits));
        }
        for (i, bits) in self.outs.iter().enumerate() {
            put(format!(".reg .b{bits} %o{i};"));
        }
        put(format!(
            "mov.u32 %thread, %tid.x; mov.u32 %cta, %ctaid.x; mov.u32 %rank, %cluster_ctarank; and.b32 %lane, %thread, 31;\n\
             ld.param.u64 %data, [all+16]; ld.param.u64 %dump, [all+24]; mov.b64 %map, all; cvta.param.u64 %map, %map; add.u64 %map, %map, 64;\n\
             mad.lo.u32 %at, %cta, {}, %thread; ld.param.u64 %io, [all];",
            self.threads
        ));
        let total = self.total();
        let mut offset = 0;
        for (i, input) in self.inputs.iter().enumerate() {
            let bytes = input.bits as usize / 8;
            put(format!(
                "mul.wide.u32 %ix, %at, {bytes}; add.u64 %ix, %ix, %io; ld.global.b{} %i{i}, [%ix + {offset}];",
                input.bits
            ));
            offset += (bytes * total).next_multiple_of(16);
        }
        put(self.body.clone());
        put("ld.param.u64 %io, [all+8];".into());
        offset = 0;
        for (i, &bits) in self.outs.iter().enumerate() {
            let bytes = bits as usize / 8;
            put(format!(
                "mul.wide.u32 %ix, %at, {bytes}; add.u64 %ix, %ix, %io; st.global.b{bits} [%ix + {offset}], %o{i};"
            ));
            offset += (bytes * total).next_multiple_of(16);
        }
        text.push_str("ret;\n}\n");
        text
    }

    /// The operand buffer.
    pub fn input_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for input in &self.inputs {
            for value in &input.values {
                bytes.extend_from_slice(&value.to_le_bytes()[..input.bits as usize / 8]);
            }
            bytes.resize(bytes.len().next_multiple_of(16), 0);
        }
        bytes.resize(bytes.len().max(16), 0);
        bytes
    }

    /// Size of the result buffer.
    pub fn output_len(&self) -> usize {
        let each = |bits: &u32| (*bits as usize / 8 * self.total()).next_multiple_of(16);
        self.outs.iter().map(each).sum::<usize>().max(16)
    }

    /// Everything that determines the results, as text: a record made of another case is noticed.
    pub fn fingerprint(&self) -> u64 {
        let mut facts = String::new();
        let _ = write!(facts, "{} {} {} {} {:?}", self.threads, self.ctas, self.cluster, self.dump, self.map);
        crate::record::digest(&[self.text().as_bytes(), &self.input_bytes(), &self.data, facts.as_bytes()])
    }
}
