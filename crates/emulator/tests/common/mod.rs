//! What the checker tests share: run a kernel given as text, and say what was found.

// Every test crate uses a part of this.
#![allow(dead_code)]

use bakewell_emulator::{CompletionPolicy, Emulator, Finding, Kind, Launch, Module, Options, Report, Target};

/// A kernel `k(.param .u64 data)` and how to launch it.
pub(crate) struct Case {
    pub(crate) target: Target,
    pub(crate) launch: Launch,
    /// Bytes of the buffer `data`, which starts as zeros.
    pub(crate) bytes: usize,
}

impl Case {
    pub(crate) fn new(ctas: u32, threads: u32) -> Case {
        Case { target: Target::Sm90, launch: Launch::linear(ctas, threads), bytes: 65536 }
    }

    pub(crate) fn on(mut self, target: Target) -> Case {
        self.target = target;
        self
    }

    pub(crate) fn cluster(mut self, ctas: u32) -> Case {
        self.launch.cluster = Some([ctas, 1, 1]);
        self
    }

    /// Runs `body` under every policy and a few seeds; all reports.
    pub(crate) fn run(&self, declarations: &str, body: &str) -> Vec<Report> {
        let text = format!(
            ".version 9.2\n.target {}\n.address_size 64\n{declarations}\n.visible .entry k(.param .u64 data) {{
.reg .pred %p<16>; .reg .b16 %h<8>; .reg .b32 %r<64>; .reg .b64 %rd<64>; .reg .f32 %f<64>; .reg .b32 %tid, %warp, %lane, %cta, %rank;
.reg .b64 %data;
mov.u32 %tid, %tid.x; shr.u32 %warp, %tid, 5; and.b32 %lane, %tid, 31; mov.u32 %cta, %ctaid.x; mov.u32 %rank, %cluster_ctarank;
ld.param.u64 %data, [data];
{body}
ret;
}}\n",
            self.target
        );
        let module = Module::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let policies = [
            (CompletionPolicy::Eager, 1),
            (CompletionPolicy::Lazy, 2),
            (CompletionPolicy::Random, 3),
            (CompletionPolicy::Random, 4),
        ];
        let run = |(policy, seed)| {
            let mut options = Options::new(self.target);
            options.policy = policy;
            options.seed = seed;
            options.workers = 1;
            options.checks.tensor_fences = true;
            options.checks.read_fences = true;
            let device = Emulator::new(self.target, options);
            let data = device.allocate("data", self.bytes as u64).unwrap();
            device.write(data, &vec![0; self.bytes]).unwrap();
            let loaded = device.load(&module).unwrap();
            device
                .launch(&loaded, "k", self.launch, &data.to_le_bytes())
                .unwrap_or_else(|error| panic!("{error}\n{text}"))
        };
        policies.into_iter().map(run).collect()
    }

    /// Asserts that nothing is found, warnings included.
    #[track_caller]
    pub(crate) fn clean(&self, declarations: &str, body: &str) {
        for report in self.run(declarations, body) {
            assert!(report.findings.is_empty(), "{}", list(&report.findings));
        }
    }

    /// Asserts that every run finds a fault of `kind` whose message, line and PTX text contain these words.
    #[track_caller]
    pub(crate) fn fault(&self, declarations: &str, body: &str, kind: Kind, words: &[&str]) {
        self.found(declarations, body, &[kind], words, false);
    }

    /// Asserts that every run finds a fault of one of `kinds`: the schedule decides which.
    #[track_caller]
    pub(crate) fn fault_of(&self, declarations: &str, body: &str, kinds: &[Kind], words: &[&str]) {
        self.found(declarations, body, kinds, words, false);
    }

    /// Asserts that every run warns.
    #[track_caller]
    pub(crate) fn warning(&self, declarations: &str, body: &str, kind: Kind, words: &[&str]) {
        self.found(declarations, body, &[kind], words, true);
    }

    #[track_caller]
    fn found(&self, declarations: &str, body: &str, kinds: &[Kind], words: &[&str], warning: bool) {
        for report in self.run(declarations, body) {
            let fits = |f: &&Finding| {
                let text = f.to_string();
                kinds.contains(&f.kind) && f.warning == warning && words.iter().all(|word| text.contains(word))
            };
            let found = report.findings.iter().find(fits);
            assert!(found.is_some(), "expected {kinds:?} with {words:?}, found:\n{}", list(&report.findings));
            // What a CTA still holds at its end is no instruction's fault.
            assert!(found.is_some_and(|f| f.kind == Kind::Leak || f.line > 0 && !f.ptx.is_empty()));
        }
    }
}

/// Findings, a paragraph each.
pub(crate) fn list(findings: &[Finding]) -> String {
    findings.iter().map(|finding| format!("{finding}\n")).collect()
}
