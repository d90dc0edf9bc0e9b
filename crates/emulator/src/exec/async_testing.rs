//! Runs a kernel of the asynchronous families under every completion policy and several seeds.

use crate::async_engine::CompletionPolicy;
use crate::emulator::{Emulator, Launch, Module, Report};
use crate::isa::Target;
use crate::options::{Checks, Options};

/// A kernel and its launch. `%rd0` holds the address of the input, `%rd1` that of the output, `%r0` the thread, `%r1`
/// the rank in the cluster. Shared memory: `bars` (8 mbarriers), `tile` (32 KiB, aligned to 1024).
#[derive(Clone)]
pub(crate) struct Case<'a> {
    pub(crate) target: Target,
    pub(crate) body: &'a str,
    pub(crate) threads: u32,
    pub(crate) ctas: u32,
    pub(crate) cluster: u32,
    pub(crate) input: Vec<u8>,
    pub(crate) output: usize,
    pub(crate) sm_count: Option<u32>,
    /// Checkers.
    pub(crate) checks: Checks,
    /// Makes the record of the parameter `map` from the addresses of input and output.
    pub(crate) map: Option<fn(u64, u64) -> [u8; 128]>,
}

impl<'a> Case<'a> {
    pub(crate) fn new(body: &'a str) -> Case<'a> {
        Case {
            target: Target::Sm100,
            body,
            threads: 32,
            ctas: 1,
            cluster: 1,
            input: (0..65536u32).map(|i| (i * 7 + i / 251) as u8).collect(),
            output: 65536,
            sm_count: None,
            checks: Checks::default(),
            map: None,
        }
    }

    fn text(&self) -> String {
        format!(
            ".version 9.4\n.target {}\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out, .param .align 64 .b8 map[128])\n{{\n\
             .reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .f32 %f<16>; .reg .b64 %rd<32>; .reg .b128 %x<4>;\n\
             .shared .align 8 .b64 bars[8]; .shared .align 1024 .b8 tile[32768];\n\
             ld.param.u64 %rd0, [in]; ld.param.u64 %rd1, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, %cluster_ctarank;\n{}\nret;\n}}\n",
            self.target, self.body
        )
    }

    /// One run. The output starts as 0xcd.
    pub(crate) fn run(&self, policy: CompletionPolicy, seed: u64) -> (Report, Vec<u8>) {
        let module = Module::parse(&self.text()).unwrap();
        let mut options = Options::new(self.target);
        (options.policy, options.seed, options.workers, options.checks) = (policy, seed, 1, self.checks);
        options.sm_count = self.sm_count.unwrap_or(options.sm_count);
        let device = Emulator::new(self.target, options);
        let input = device.allocate("input", self.input.len() as u64).unwrap();
        device.write(input, &self.input).unwrap();
        let output = device.allocate("output", self.output as u64).unwrap();
        device.write(output, &vec![0xcd; self.output]).unwrap();
        let loaded = device.load(&module).unwrap();
        let mut params: Vec<u8> = [input, output].iter().flat_map(|a| a.to_le_bytes()).collect();
        params.resize(64, 0);
        params.extend(self.map.map_or([0; 128], |make| make(input, output)));
        let launch = Launch { cluster: Some([self.cluster, 1, 1]), ..Launch::linear(self.ctas, self.threads) };
        let report = device.launch(&loaded, "k", launch, &params).unwrap();
        (report, device.read(output, self.output).unwrap())
    }

    /// Runs under all policies and seeds; every run must be clean and give the same output, which is returned.
    pub(crate) fn output(&self) -> Vec<u8> {
        let mut first = None;
        for (policy, seed) in schedules() {
            let (report, output) = self.run(policy, seed);
            assert!(report.findings.is_empty(), "{policy:?} seed {seed}: {}", report.findings[0]);
            let first = first.get_or_insert_with(|| output.clone());
            assert!(*first == output, "{policy:?} seed {seed} gives other bytes");
        }
        first.unwrap_or_default()
    }

    /// Runs under all policies and seeds; every run must report a finding that contains `text`.
    pub(crate) fn finds(&self, text: &str) {
        for (policy, seed) in schedules() {
            let (report, _) = self.run(policy, seed);
            let all: Vec<String> = report.findings.iter().map(|f| f.to_string()).collect();
            assert!(
                all.iter().any(|found| found.contains(text)),
                "{policy:?} seed {seed}: expected {text:?} in {all:#?}"
            );
        }
    }
}

fn schedules() -> impl Iterator<Item = (CompletionPolicy, u64)> {
    let fixed = [CompletionPolicy::Eager, CompletionPolicy::Lazy].into_iter().flat_map(|p| [(p, 0), (p, 1)]);
    fixed.chain((0..6).map(|seed| (CompletionPolicy::Random, seed)))
}

/// Little-endian words.
pub(crate) fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w)).collect()
}
