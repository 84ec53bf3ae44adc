//! The contributions of ranks to a call, and its results: the call's whole plan, carried out step by step on bytes.
//!
//! Every engine that carries out the plan must end with the same bits (TH-2). [`super::service_process`] shows that
//! they are the bits of the service process. Pure.

use std::collections::BTreeMap;

use outboard_arithmetic::reduce;
use outboard_plan::{Arguments, Buffer, Element, Op, OpId, Program, Rank, Reduction, Span, program};

use super::{InputValues, NicCall};
use crate::oracle::CallName;
use crate::reductions::{contribution, mix};

impl NicCall {
    /// The contribution of `rank` to call number `number` of its job, `bytes` bytes long.
    pub(super) fn contribution(&self, rank: Rank, number: u64, bytes: u64) -> Vec<u8> {
        let origin = CallName { group: 0, member: rank.0 as usize, instance: number + 1 }.origin();
        let element = self.reduction.map_or(Element::U8, Reduction::element);
        match (self.values, element) {
            (InputValues::Cancelling, Element::F64) => {
                let value = |at: u64| [1e16f64, 1.0, -1e16][mix(origin.name() ^ at << 20) as usize % 3];
                (0..bytes / 8).flat_map(|at| value(at).to_ne_bytes()).collect()
            }
            _ => contribution(origin, element, 0..bytes),
        }
    }
}

struct RankBuffers([Vec<u8>; 3]);

impl RankBuffers {
    fn of(&mut self, span: Span) -> &mut [u8] {
        let index = match span.buffer {
            Buffer::Input => 0,
            Buffer::Output => 1,
            Buffer::Scratch => 2,
        };
        &mut self.0[index][span.offset as usize..][..span.len as usize]
    }
}

/// The final output of every rank, given the contributions.
pub(super) fn outputs(
    call: &NicCall,
    arguments: &Arguments<'_>,
    contributed: impl Fn(Rank, u64) -> Vec<u8>,
) -> Vec<Vec<u8>> {
    let ranks = (0..arguments.topology.ranks()).map(Rank);
    let programs: Vec<Program> =
        ranks.map(|rank| program(call.choice, arguments, rank).expect("a plan that was lowered")).collect();
    let buffers = |program: &Program| {
        let input = contributed(program.rank, program.input_bytes);
        RankBuffers([input, vec![0; program.output_bytes as usize], vec![0; program.scratch_bytes as usize]])
    };
    let mut memory: Vec<RankBuffers> = programs.iter().map(buffers).collect();
    let mut done: Vec<Vec<bool>> = programs.iter().map(|program| vec![false; program.steps.len()]).collect();
    let mut sent: BTreeMap<(Rank, Rank, u32), Vec<u8>> = BTreeMap::new();
    let mut went = true;
    while std::mem::take(&mut went) {
        for (program, (memory, done)) in programs.iter().zip(memory.iter_mut().zip(&mut done)) {
            for (id, step) in program.steps.iter().enumerate() {
                let ready = !done[id] && step.after.iter().all(|OpId(on)| done[*on as usize]);
                if ready && carry_out((program.rank, program.ranks), step.op, memory, &mut sent, call.reduction) {
                    (done[id], went) = (true, true);
                }
            }
        }
    }
    assert!(done.iter().flatten().all(|done| *done), "the plan of {call:?} gets stuck");
    memory.into_iter().map(|RankBuffers([_, output, _])| output).collect()
}

/// The index of multicast messages. A rank multicasts once, so these messages need no index of their own.
const MULTICAST: u32 = u32::MAX;

/// Carries out a step, unless it waits for its message.
fn carry_out(
    (rank, ranks): (Rank, u32),
    op: Op,
    memory: &mut RankBuffers,
    sent: &mut BTreeMap<(Rank, Rank, u32), Vec<u8>>,
    reduction: Option<Reduction>,
) -> bool {
    match op {
        Op::Send { to, index, span } => {
            sent.insert((rank, to, index), memory.of(span).to_vec());
        }
        Op::Multicast { span } => {
            let bytes = memory.of(span).to_vec();
            sent.extend((0..ranks).map(|to| ((rank, Rank(to), MULTICAST), bytes.clone())));
        }
        Op::MulticastRecv { root, span } => {
            return carry_out((rank, ranks), Op::Recv { from: root, index: MULTICAST, span }, memory, sent, reduction);
        }
        Op::Recv { from, index, span } => {
            let Some(message) = sent.remove(&(from, rank, index)) else { return false };
            memory.of(span).copy_from_slice(&message);
        }
        Op::Copy { from, to } => {
            let bytes = memory.of(from).to_vec();
            memory.of(to).copy_from_slice(&bytes);
        }
        Op::Reduce { from, into, from_left } => {
            let bytes = memory.of(from).to_vec();
            reduce(reduction.expect("a call that combines"), &bytes, memory.of(into), from_left);
        }
    }
    true
}
