//! Findings of the happens-before checker in words: one for each kind and pair of lines.

use std::sync::Arc;

use super::order::Reported;
use super::shadow::Record;
use super::{Access, Actor, Proxy, Use};
use crate::decode::Program;
use crate::finding::{Finding, Kind};
use crate::memory::{GlobalMemory, Space};

/// Collects findings.
#[derive(Debug)]
pub struct Reporter {
    program: Arc<Program>,
    memory: Arc<GlobalMemory>,
    reported: Reported,
    findings: Vec<(Actor, Finding)>,
}

impl Reporter {
    /// Nothing found yet.
    pub fn new(program: Arc<Program>, memory: Arc<GlobalMemory>) -> Reporter {
        Reporter { program, memory, reported: Reported::default(), findings: Vec::new() }
    }

    /// Takes what was found since the last call.
    pub fn take(&mut self) -> Vec<(Actor, Finding)> {
        std::mem::take(&mut self.findings)
    }

    /// The buffer at an address, and where in it.
    pub fn place(&self, space: Space, address: u64) -> String {
        let (buffer, offset) = self.locate(space, address);
        format!("{buffer} + {offset}")
    }

    fn locate(&self, space: Space, address: u64) -> (String, u64) {
        match space {
            Space::Global => match self.memory.find(address) {
                Some(buffer) => (buffer.name.clone(), address - buffer.base),
                None => ("global".to_string(), address),
            },
            Space::Shared => {
                let offset = address as u32 & 0x00ff_ffff;
                let dynamic = self.program.dynamic_start();
                let names = self.program.shared_names.iter().filter(|(_, start)| **start <= offset);
                let (name, start) = match names.max_by_key(|(_, start)| **start) {
                    _ if offset >= dynamic => ("dynamic shared memory", dynamic),
                    Some((name, &start)) => (name.as_str(), start),
                    None => ("shared memory", 0),
                };
                let rank = address >> 24;
                let of = if rank > 0 { format!(" of CTA rank {rank}") } else { String::new() };
                (format!("{name}{of}"), u64::from(offset - start))
            }
            // Four columns share a cell of the shadow.
            _ => (format!("tensor memory lane {} column", address >> 16 & 0xffff), address & 0xffff),
        }
    }

    fn push(&mut self, kind: Kind, actor: &Actor, other: u32, object: Option<String>, message: String, warning: bool) {
        let pair = (kind, self.program.line_of(actor.pc), other);
        if !self.reported.insert(pair) {
            return;
        }
        let finding = Finding {
            kind,
            warning,
            kernel: self.program.name.clone(),
            line: self.program.line_of(actor.pc),
            ptx: self.program.text_of(actor.pc).to_string(),
            cta: [0; 3],
            warp: Some(actor.warp),
            lanes: actor.lanes,
            object,
            message,
        };
        self.findings.push((*actor, finding));
    }

    /// A finding without a second access.
    pub fn plain(&mut self, kind: Kind, actor: &Actor, message: String, warning: bool) {
        self.push(kind, actor, 0, None, message, warning);
    }

    /// A finding about a mbarrier.
    pub fn barrier(&mut self, kind: Kind, actor: &Actor, address: u32, message: String, warning: bool) {
        let object = format!("mbarrier {}", self.place(Space::Shared, address.into()));
        self.push(kind, actor, 0, Some(object), message, warning);
    }

    /// Two accesses without order.
    ///
    /// `in_effect`: devices keep the order. The one before is a `tcgen05.ld` that was issued in order, and only its
    /// wait is missing, or a relaxed cluster barrier lies between.
    pub fn race(&mut self, actor: &Actor, access: &Access<'_>, before: &Record, address: u64, in_effect: bool) {
        let (buffer, offset) = self.locate(access.space, address);
        let mine = describe(access.usage, access.proxy != Proxy::Generic || access.operation != 0);
        let other = self.other(before);
        let hint = match (before.operation != 0, before.write, before.is_complete()) {
            (true, true, false) => "; nothing observed its completion",
            (true, true, true) => "; this access does not come behind a wait for its completion",
            (true, false, _) => "; this access does not come behind a wait for its reads",
            (false, ..) if access.operation != 0 => "; its issue is not ordered behind that",
            (false, ..) if in_effect => "; only a relaxed cluster barrier lies between the two",
            (false, ..) => "; no synchronisation orders the two",
        };
        let message = format!("{mine} of {buffer} + {offset} races with {other}{hint}");
        let line = self.program.line_of(before.actor.pc);
        // Warps that all store one value, and lanes that all issue one copy, are common and harmless on devices.
        let one_value = access.usage == Use::Rewrite && before.write && before.operation == 0;
        let same_warp = (before.actor.cta, before.actor.warp, before.actor.pc) == (actor.cta, actor.warp, actor.pc);
        let one_copy = same_warp && before.write && before.operation != 0 && access.usage == Use::Write;
        self.push(Kind::Race, actor, line, Some(buffer), message, one_value || one_copy || in_effect);
    }

    /// An access before `griddepcontrol.wait` to what an earlier launch, of `program`, uses.
    pub fn overlap(&mut self, actor: &Actor, access: &Access<'_>, before: &Record, address: u64, program: &Program) {
        let (buffer, offset) = self.locate(access.space, address);
        let mine = describe(access.usage, access.operation != 0);
        let other = other_in(program, before);
        let message = format!(
            "{mine} of {buffer} + {offset} before griddepcontrol.wait races with {other} of the earlier launch of {}",
            program.name
        );
        let line = program.line_of(before.actor.pc);
        self.push(Kind::Race, actor, line, Some(buffer), message, false);
    }

    /// A generic write that the asynchronous proxy may not see.
    pub fn missing_proxy_fence(
        &mut self,
        actor: &Actor,
        access: &Access<'_>,
        before: &Record,
        address: u64,
        by_issuer: bool,
    ) {
        let (buffer, offset) = self.locate(access.space, address);
        let mine = describe(access.usage, true);
        let other = self.other(before);
        let line = self.program.line_of(before.actor.pc);
        let fence = match (access.proxy, access.space) {
            (Proxy::TensorMap, _) => "fence.proxy.tensormap",
            (_, Space::Global) => "fence.proxy.async.global",
            _ => "fence.proxy.async.shared::cta",
        };
        let message = if by_issuer {
            format!(
                "{mine} of {buffer} + {offset} relies on a proxy fence of another warp than that of {other}: the writer should execute {fence}"
            )
        } else {
            format!("{mine} of {buffer} + {offset} may not see {other}: no {fence} lies between")
        };
        self.push(Kind::MissingProxyFence, actor, line, Some(buffer), message, by_issuer);
    }

    /// A generic read whose bytes an asynchronous write may reach too early.
    pub fn unfenced_read(&mut self, actor: &Actor, access: &Access<'_>, before: &Record, address: u64) {
        let (buffer, offset) = self.locate(access.space, address);
        let mine = describe(access.usage, true);
        let other = self.other(before);
        let line = self.program.line_of(before.actor.pc);
        let message = format!(
            "{mine} of {buffer} + {offset} may overtake {other}: the reader should execute fence.proxy.async.shared::cta before it signals"
        );
        self.push(Kind::MissingProxyFence, actor, line, Some(buffer), message, true);
    }

    /// An access to tensor memory with no `tcgen05.fence::after_thread_sync` before it, or one before it that none
    /// follows.
    pub fn missing_tensor_fence(&mut self, actor: &Actor, before: &Record, address: u64, after: bool) {
        let place = self.place(Space::Tensor, address);
        let line = self.program.line_of(before.actor.pc);
        let done = if before.write { "wrote" } else { "read" };
        let message = if after {
            format!(
                "no tcgen05.fence::after_thread_sync between the synchronisation and this use of {place}, which line {line} {done}"
            )
        } else {
            format!(
                "no tcgen05.fence::before_thread_sync between line {line}, which {done} {place}, and the synchronisation"
            )
        };
        self.push(Kind::TensorMemory, actor, 0, None, message, true);
    }

    /// The other access in words.
    fn other(&self, record: &Record) -> String {
        other_in(&self.program, record)
    }
}

/// An access of a program in words.
fn other_in(program: &Program, record: &Record) -> String {
    let usage = if record.write { Use::Write } else { Use::Read };
    let what = describe(usage, record.operation != 0 || record.asynchronous);
    let Actor { cta, warp, lanes, pc } = record.actor;
    let line = program.line_of(pc);
    format!(
        "the {what} at line {line} `{}` by warp {warp} lanes {lanes:#010x} of CTA rank {cta} in cluster {}",
        program.text_of(pc),
        record.cluster
    )
}

fn describe(usage: Use, asynchronous: bool) -> String {
    let what = match usage {
        Use::Read => "read",
        Use::Write => "write",
        Use::Rewrite => "write of the same values",
        Use::Atomic => "atomic",
        Use::Free => "deallocation",
    };
    format!("{}{what}", if asynchronous { "asynchronous " } else { "" })
}
