//! Executes one rank's program: tracks which steps may start, and which are done.
//!
//! | state of a step | event | next |
//! |---|---|---|
//! | waiting for `n` others | one of them is done | waiting for `n - 1`; with 0 ready |
//! | ready | [`ProgramRun::next_ready`] | started |
//! | started | [`ProgramRun::retry`] | ready |
//! | started | [`ProgramRun::complete`] | done |
//!
//! Invariant: a step completes once. The collective performs the steps; this machine never sees memory or messages.

use std::collections::VecDeque;
use std::sync::Arc;

use outboard_plan::{Op, OpId, Program, Rank, Span};

use crate::instance::by_rank::ByRank;

/// A program with the tables that all its executions share.
#[derive(Debug, Default)]
pub(crate) struct ProgramGraph {
    program: Arc<Program>,
    /// Number of steps that each step waits for.
    waits: Vec<u32>,
    /// By step: the start of its followers in `dependents`. The last entry is the end of `dependents`.
    begins: Vec<u32>,
    dependents: Vec<OpId>,
    multicasts: ByRank<(OpId, Span)>,
    own: Option<Span>,
}

impl ProgramGraph {
    pub(crate) fn new(program: Arc<Program>) -> Self {
        let steps = &program.steps;
        let mut begins = vec![0; steps.len() + 1];
        steps.iter().flat_map(|step| &step.after).for_each(|before| begins[before.0 as usize] += 1);
        let mut end = 0;
        for begin in &mut begins {
            end += *begin;
            *begin = end;
        }
        // Filled from the end, so that each list begins where the previous list ends.
        let mut dependents = vec![OpId(0); end as usize];
        for (i, step) in steps.iter().enumerate().rev() {
            for before in &step.after {
                let at = &mut begins[before.0 as usize];
                *at -= 1;
                dependents[*at as usize] = OpId(i as u32);
            }
        }
        let (mut multicasts, mut own) = (Vec::new(), None);
        for (i, step) in (0..).zip(steps) {
            match step.op {
                Op::MulticastRecv { root, span } => multicasts.push((root, (OpId(i), span))),
                Op::Multicast { span } => own = Some(span),
                Op::Send { .. } | Op::Recv { .. } | Op::Copy { .. } | Op::Reduce { .. } => {}
            }
        }
        let waits = steps.iter().map(|step| step.after.len() as u32).collect();
        ProgramGraph { waits, begins, dependents, multicasts: multicasts.into_iter().collect(), own, program }
    }

    fn dependents(&self, step: usize) -> &[OpId] {
        &self.dependents[self.begins[step] as usize..self.begins[step + 1] as usize]
    }
}

/// Approximate bytes of a step: the step, its entry in the graph, and its memory, which has two pieces at most.
const STEP_BYTES: u64 = 160;
/// Approximate bytes of each dependency of a step.
const AFTER_BYTES: u64 = 8;

/// Approximate bytes of a program and its execution.
pub(super) fn table_bytes(program: &Program) -> u64 {
    program.steps.iter().map(|step| STEP_BYTES + AFTER_BYTES * step.after.len() as u64).sum()
}

/// The execution of one program; the default has no steps.
#[derive(Debug, Default)]
pub struct ProgramRun {
    graph: Arc<ProgramGraph>,
    /// Steps that each step still waits for.
    waits: Vec<u32>,
    done: Vec<bool>,
    ready: VecDeque<OpId>,
    remaining: usize,
}

impl ProgramRun {
    pub fn new(program: impl Into<Arc<Program>>) -> Self {
        ProgramRun::of(Arc::new(ProgramGraph::new(program.into())))
    }

    /// The execution of a graph that several executions share.
    pub(crate) fn of(graph: Arc<ProgramGraph>) -> Self {
        let waits = graph.waits.clone();
        let ready = (0..).zip(&waits).filter(|(_, waits)| **waits == 0).map(|(i, _)| OpId(i)).collect();
        ProgramRun { done: vec![false; waits.len()], ready, remaining: waits.len(), waits, graph }
    }

    pub fn program(&self) -> &Program {
        &self.graph.program
    }

    pub fn op(&self, id: OpId) -> Op {
        self.graph.program.steps[id.0 as usize].op
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Removes and returns a step that may start. The step counts as started.
    pub fn next_ready(&mut self) -> Option<OpId> {
        self.ready.pop_front()
    }

    /// Makes steps ready again that were started and could not be done yet.
    pub(crate) fn retry(&mut self, steps: Vec<OpId>) {
        self.ready.extend(steps.into_iter().filter(|s| !self.done[s.0 as usize]));
    }

    /// Marks a step as done.
    ///
    /// # Panics
    /// When the step was done before, or follows a step that is not done.
    pub fn complete(&mut self, id: OpId) {
        let i = id.0 as usize;
        assert!(!self.done[i] && self.waits[i] == 0, "a step completes once, after those it follows");
        self.done[i] = true;
        self.remaining -= 1;
        for d in self.graph.dependents(i) {
            let waits = &mut self.waits[d.0 as usize];
            *waits -= 1;
            if *waits == 0 {
                self.ready.push_back(*d);
            }
        }
    }

    pub fn is_done(&self, id: OpId) -> bool {
        self.done[id.0 as usize]
    }

    /// The spans that copies and reductions have written so far.
    pub(crate) fn written_spans(&self) -> impl Iterator<Item = Span> + '_ {
        let steps = self.graph.program.steps.iter().zip(&self.done).filter(|(_, done)| **done);
        steps.filter_map(|(step, _)| match step.op {
            Op::Copy { to: span, .. } | Op::Reduce { into: span, .. } => Some(span),
            Op::Send { .. } | Op::Recv { .. } | Op::Multicast { .. } | Op::MulticastRecv { .. } => None,
        })
    }

    pub fn finished(&self) -> bool {
        self.remaining == 0
    }

    /// The steps that receive: source, index and destination.
    pub fn receives(&self) -> impl Iterator<Item = (OpId, (Rank, u32, Span))> + '_ {
        self.graph.program.steps.iter().zip(0..).filter_map(|(step, i)| match step.op {
            Op::Recv { from, index, span } => Some((OpId(i), (from, index, span))),
            Op::Send { .. } | Op::Copy { .. } | Op::Reduce { .. } | Op::Multicast { .. } | Op::MulticastRecv { .. } => {
                None
            }
        })
    }

    /// The step that receives the multicast of `root`, and its destination.
    pub fn multicast_receive(&self, root: Rank) -> Option<(OpId, Span)> {
        self.graph.multicasts.get(root).copied()
    }

    pub(crate) fn multicast_receives(&self) -> impl Iterator<Item = (Rank, Span)> + '_ {
        self.graph.multicasts.iter().map(|(r, (_, s))| (r, *s))
    }

    /// All ranks that multicast, and their bytes.
    pub fn multicast_roots(&self) -> impl Iterator<Item = (Rank, u64)> + '_ {
        let own = self.graph.own.map(|span| (self.graph.program.rank, span.len));
        own.into_iter().chain(self.graph.multicasts.iter().map(|(root, (_, span))| (root, span.len)))
    }

    pub fn own_multicast(&self) -> Option<Span> {
        self.graph.own
    }
}
