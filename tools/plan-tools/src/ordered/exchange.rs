//! Point-to-point calls (C = 0).
//!
//! Invariant: both ranks of a pair post the pair's messages in one order and cut the messages alike, because the NIC
//! numbers messages and has no names for them.

use outboard_nic::ordered::descriptor::{Descriptor, Flags, MAX_MESSAGE, PortAddress};
use outboard_plan::{Op, Program, Rank, Span};

use super::{OrderedCall, piece};

/// The operations that one rank posts, without addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankExchange {
    rank: Rank,
    /// Copies, then receives, then sends. The messages of a pair are in the order of their index.
    ops: Vec<Op>,
}

/// The exchanges of a call. `None` if a step follows anything but copies, or if a step multicasts, combines or uses
/// scratch.
pub(super) fn exchanges(programs: &[Program]) -> Option<Vec<RankExchange>> {
    programs.iter().map(exchange).collect()
}

fn exchange(program: &Program) -> Option<RankExchange> {
    let is_copy = |op: Op| matches!(op, Op::Copy { .. });
    let moves = |op: Op| matches!(op, Op::Copy { .. } | Op::Send { .. } | Op::Recv { .. });
    let mut followed = program.steps.iter().flat_map(|step| &step.after).map(|id| program.steps[id.0 as usize].op);
    if program.scratch_bytes > 0 || !followed.all(is_copy) || !program.steps.iter().all(|step| moves(step.op)) {
        return None;
    }
    let mut ops: Vec<Op> = program.steps.iter().map(|step| step.op).collect();
    ops.sort_by_key(|op| match op {
        Op::Recv { index, .. } => (1, *index),
        Op::Send { index, .. } => (2, *index),
        _ => (0, 0),
    });
    Some(RankExchange { rank: program.rank, ops })
}

impl RankExchange {
    /// The descriptors of the exchange; the call ends with the last descriptor.
    pub(super) fn post(&self, call: &OrderedCall<'_>) -> Vec<Descriptor> {
        let mut all: Vec<Descriptor> = self.ops.iter().flat_map(|op| self.descriptors(call, *op)).collect();
        if all.is_empty() {
            // A rank without operations ends its call, too.
            all.push(self.descriptor(call, 0));
        }
        let last = all.last_mut().expect("there is one");
        last.flags = last.flags.with(Flags::ENDS);
        all
    }

    fn descriptor(&self, call: &OrderedCall<'_>, length: u64) -> Descriptor {
        let source_port = call.members[self.rank.0 as usize].port;
        Descriptor { job: call.job, source_port, length: length as u32, ..Descriptor::default() }
    }

    /// The descriptors of one message or copy, which may be longer than one descriptor allows.
    fn descriptors(&self, call: &OrderedCall<'_>, op: Op) -> Vec<Descriptor> {
        let whole = op.reads().or(op.writes()).expect("a message or a copy").len;
        let parts = (0..whole.div_ceil(MAX_MESSAGE).max(1)).map(|at| at * MAX_MESSAGE);
        let one = |start: u64| {
            let len = (whole - start).min(MAX_MESSAGE);
            let part = |span: Span| (len > 0).then_some(Span { offset: span.offset + start, len, ..span });
            let places = |span: Span| part(span).iter().map(|part| piece(call, part)).collect();
            let with = |peer: Rank, flags| {
                let PortAddress { node, port } = call.members[peer.0 as usize];
                Descriptor { flags, dest: node, dest_port: port, ..self.descriptor(call, len) }
            };
            match op {
                Op::Send { to, span, .. } => {
                    let mut descriptor = with(to, Flags::SWAP_REMOTE_DATA);
                    call.carry(&mut descriptor, part(span).as_slice());
                    descriptor
                }
                Op::Recv { from, span, .. } => {
                    Descriptor { result: places(span), ..with(from, Flags::SWAP_REMOTE_ADDRESS) }
                }
                Op::Copy { from, to } => {
                    Descriptor { operand: places(from), result: places(to), ..self.descriptor(call, len) }
                }
                Op::Multicast { .. } | Op::MulticastRecv { .. } | Op::Reduce { .. } => unreachable!("of no exchange"),
            }
        };
        parts.map(one).collect()
    }
}
