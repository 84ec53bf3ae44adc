//! Runs one rank's program: which steps may start, which are done.
//!
//! | state of a step | event | next |
//! |---|---|---|
//! | waiting for `n` others | one of them is done | waiting for `n - 1`; with 0 ready |
//! | ready | [`Run::next_ready`] | started |
//! | started | [`Run::retry`] | ready |
//! | started | [`Run::complete`] | done |
//!
//! Invariant: a step completes once. What a step does is the collective's affair; this machine never
//! sees memory or messages.

use std::collections::VecDeque;
use std::sync::Arc;

use outboard_plan::{Op, OpId, Program, Rank, Span};

use crate::instance::by_rank::ByRank;

/// The execution of one program; by default of one without steps.
#[derive(Debug, Default)]
pub struct Run {
    program: Arc<Program>,
    /// Steps that each step still waits for.
    waits: Vec<u32>,
    done: Vec<bool>,
    dependents: Vec<Vec<OpId>>,
    ready: VecDeque<OpId>,
    remaining: usize,
    multicasts: ByRank<(OpId, Span)>,
    own: Option<Span>,
}

impl Run {
    /// Nothing has started.
    pub fn new(program: impl Into<Arc<Program>>) -> Self {
        let program = program.into();
        let n = program.steps.len();
        let mut run = Run {
            waits: Vec::with_capacity(n),
            done: vec![false; n],
            dependents: vec![Vec::new(); n],
            ready: VecDeque::new(),
            remaining: n,
            multicasts: std::iter::empty().collect(),
            own: None,
            program,
        };
        let mut multicasts = Vec::new();
        for (i, step) in run.program.steps.iter().enumerate() {
            let id = OpId(i as u32);
            run.waits.push(step.after.len() as u32);
            step.after.iter().for_each(|a| run.dependents[a.0 as usize].push(id));
            if step.after.is_empty() {
                run.ready.push_back(id);
            }
            match step.op {
                Op::MulticastRecv { root, span } => multicasts.push((root, (id, span))),
                Op::Multicast { span } => run.own = Some(span),
                Op::Send { .. } | Op::Recv { .. } | Op::Copy { .. } | Op::Reduce { .. } => {}
            }
        }
        run.multicasts = multicasts.into_iter().collect();
        run
    }

    /// What is run.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// What a step does.
    #[must_use]
    pub fn op(&self, id: OpId) -> Op {
        self.program.steps[id.0 as usize].op
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A step that may start, and counts as started.
    pub fn next_ready(&mut self) -> Option<OpId> {
        self.ready.pop_front()
    }

    /// Started steps that could not be done yet are ready again.
    pub(crate) fn retry(&mut self, steps: Vec<OpId>) {
        self.ready.extend(steps.into_iter().filter(|s| !self.done[s.0 as usize]));
    }

    /// A step is done.
    ///
    /// # Panics
    /// When it was before, or follows one that is not.
    pub fn complete(&mut self, id: OpId) {
        let i = id.0 as usize;
        assert!(!self.done[i] && self.waits[i] == 0, "a step completes once, after those it follows");
        self.done[i] = true;
        self.remaining -= 1;
        for d in std::mem::take(&mut self.dependents[i]) {
            let waits = &mut self.waits[d.0 as usize];
            *waits -= 1;
            if *waits == 0 {
                self.ready.push_back(d);
            }
        }
    }

    /// Whether a step is done.
    #[must_use]
    pub fn is_done(&self, id: OpId) -> bool {
        self.done[id.0 as usize]
    }

    /// What copies and reductions have written so far.
    pub(crate) fn made(&self) -> impl Iterator<Item = Span> + '_ {
        let steps = self.program.steps.iter().zip(&self.done).filter(|(_, done)| **done);
        steps.filter_map(|(step, _)| match step.op {
            Op::Copy { to: span, .. } | Op::Reduce { into: span, .. } => Some(span),
            Op::Send { .. } | Op::Recv { .. } | Op::Multicast { .. } | Op::MulticastRecv { .. } => None,
        })
    }

    /// Whether all steps are.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.remaining == 0
    }

    /// The steps that receive: source, index and where to.
    pub fn receives(&self) -> impl Iterator<Item = (OpId, (Rank, u32, Span))> + '_ {
        self.program.steps.iter().zip(0..).filter_map(|(step, i)| match step.op {
            Op::Recv { from, index, span } => Some((OpId(i), (from, index, span))),
            Op::Send { .. } | Op::Copy { .. } | Op::Reduce { .. } | Op::Multicast { .. } | Op::MulticastRecv { .. } => {
                None
            }
        })
    }

    /// The step that receives what `root` multicasts, and where to.
    pub fn multicast_receive(&self, root: Rank) -> Option<(OpId, Span)> {
        self.multicasts.get(root).copied()
    }

    pub(crate) fn multicast_receives(&self) -> impl Iterator<Item = (Rank, Span)> + '_ {
        self.multicasts.iter().map(|(r, (_, s))| (r, *s))
    }

    /// Everybody who multicasts, and how many bytes.
    pub fn multicast_roots(&self) -> impl Iterator<Item = (Rank, u64)> + '_ {
        let own = self.own.map(|span| (self.program.rank, span.len));
        own.into_iter().chain(self.multicasts.iter().map(|(root, (_, span))| (root, span.len)))
    }

    /// What this rank multicasts.
    pub fn own_multicast(&self) -> Option<Span> {
        self.own
    }
}
