//! Writes a program step by step.
//!
//! Invariants: ids are dense and count up from 0, dependencies point backwards. The verifier, not the builder, checks
//! that the program does something sensible.

use std::collections::BTreeSet;

use crate::program::{Op, OpId, Program, Rank, Span, Step};

/// A program under construction.
///
/// ```
/// use outboard_plan::{ProgramBuilder, Rank, Span};
///
/// let mut builder = ProgramBuilder::new(Rank(0), 2);
/// builder.buffers(8, 8, 0);
/// let received = builder.recv(Rank(1), 0, Span::output(0, 8), &[]);
/// let sent = builder.send(Rank(1), 0, Span::input(0, 8), &[]);
/// builder.barrier();
/// let last = builder.send(Rank(1), 1, Span::signal(), &[]);
/// let program = builder.build();
/// assert_eq!(program.steps[last.0 as usize].after, [received, sent]);
/// ```
#[derive(Debug, Clone)]
pub struct ProgramBuilder {
    program: Program,
    /// Whether some later step follows the step of this index.
    followed: Vec<bool>,
    /// The index of the first step after the last barrier.
    barrier: usize,
    /// The steps that no step followed when the last barrier was set. All later steps follow them.
    frontier: Vec<OpId>,
}

impl ProgramBuilder {
    /// An empty program of `rank` in a group of `ranks`, with empty buffers, one chain and one subgroup.
    pub fn new(rank: Rank, ranks: u32) -> Self {
        let program = Program {
            rank,
            ranks,
            steps: Vec::new(),
            input_bytes: 0,
            output_bytes: 0,
            scratch_bytes: 0,
            subgroups: 1,
            chains: 1,
        };
        Self { program, followed: Vec::new(), barrier: 0, frontier: Vec::new() }
    }

    /// Sets the bytes of the three buffers.
    pub fn buffers(&mut self, input: u64, output: u64, scratch: u64) -> &mut Self {
        self.program.input_bytes = input;
        self.program.output_bytes = output;
        self.program.scratch_bytes = scratch;
        self
    }

    /// Sets how many roots multicast at the same time (MC-8) and over how many addresses each root multicasts (MC-10).
    pub fn multicast_layout(&mut self, chains: u32, subgroups: u16) -> &mut Self {
        self.program.chains = chains;
        self.program.subgroups = subgroups;
        self
    }

    /// Appends an operation that starts when all steps in `after`, and all before the last barrier, are complete.
    ///
    /// # Panics
    /// When `after` names a step that does not exist yet.
    pub fn push(&mut self, op: Op, after: &[OpId]) -> OpId {
        let id = self.program.steps.len();
        let mut follows = Vec::with_capacity(after.len());
        // A step behind the barrier already follows all steps before it.
        if !after.iter().any(|id| id.0 as usize >= self.barrier) {
            follows.extend_from_slice(&self.frontier);
        }
        follows.extend(after.iter().copied().filter(|id| id.0 as usize >= self.barrier));
        for earlier in &follows {
            assert!((earlier.0 as usize) < id, "step {id} follows {earlier}, which does not exist yet");
            self.followed[earlier.0 as usize] = true;
        }
        self.program.steps.push(Step { op, after: follows });
        self.followed.push(false);
        OpId(u32::try_from(id).expect("a program has at most 2^32 steps"))
    }

    /// Appends [`Op::Send`]; otherwise as [`push`](Self::push).
    pub fn send(&mut self, to: Rank, index: u32, span: Span, after: &[OpId]) -> OpId {
        self.push(Op::Send { to, index, span }, after)
    }

    /// Appends [`Op::Recv`]; otherwise as [`push`](Self::push). Message data must not wait to be received (MC-4). So
    /// the verifier rejects `after`, or a barrier before the receive, unless `span` is empty.
    pub fn recv(&mut self, from: Rank, index: u32, span: Span, after: &[OpId]) -> OpId {
        self.push(Op::Recv { from, index, span }, after)
    }

    /// Appends [`Op::Multicast`]; otherwise as [`push`](Self::push).
    pub fn multicast(&mut self, span: Span, after: &[OpId]) -> OpId {
        self.push(Op::Multicast { span }, after)
    }

    /// Appends [`Op::MulticastRecv`], which follows nothing: it is posted before the root may send (MC-4).
    ///
    /// # Panics
    /// Behind a barrier, because the receive would follow the barrier.
    pub fn multicast_recv(&mut self, root: Rank, span: Span) -> OpId {
        assert!(self.barrier == 0, "a multicast is received from the start, not behind a barrier");
        self.push(Op::MulticastRecv { root, span }, &[])
    }

    /// Appends [`Op::Copy`]; otherwise as [`push`](Self::push).
    pub fn copy(&mut self, from: Span, to: Span, after: &[OpId]) -> OpId {
        self.push(Op::Copy { from, to }, after)
    }

    /// Appends [`Op::Reduce`]; otherwise as [`push`](Self::push).
    pub fn reduce(&mut self, from: Span, into: Span, from_left: bool, after: &[OpId]) -> OpId {
        self.push(Op::Reduce { from, into, from_left }, after)
    }

    /// A local barrier (GP-2): every step appended later starts when every step so far is complete.
    pub fn barrier(&mut self) {
        let unfollowed = self.followed.iter().enumerate().filter(|(_, followed)| !**followed);
        self.frontier = unfollowed.map(|(id, _)| OpId(u32::try_from(id).expect("ids fit 32 bits"))).collect();
        self.barrier = self.program.steps.len();
    }

    /// Whether a step that follows `after` also follows `step`, directly or through others.
    pub(crate) fn follows(&self, after: &[OpId], step: OpId) -> bool {
        let (mut stack, mut seen) = (after.to_vec(), BTreeSet::new());
        while let Some(later) = stack.pop() {
            if later == step {
                return true;
            }
            let earlier = &self.program.steps[later.0 as usize].after;
            stack.extend(earlier.iter().filter(|id| **id >= step && seen.insert(**id)));
        }
        false
    }

    /// The finished program.
    pub fn build(self) -> Program {
        self.program
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Appends signals to rank 1 that follow nothing.
    fn signals(builder: &mut ProgramBuilder, indices: std::ops::Range<u32>) -> Vec<OpId> {
        indices.map(|index| builder.send(Rank(1), index, Span::signal(), &[])).collect()
    }

    /// GP-2: a step behind a barrier follows every step before it, directly or through other steps.
    #[test]
    fn barrier_orders_all_before_with_all_behind() {
        let mut builder = ProgramBuilder::new(Rank(0), 2);
        let first = signals(&mut builder, 0..2);
        let third = builder.send(Rank(1), 2, Span::signal(), &[first[0]]);
        builder.barrier();
        let fourth = builder.send(Rank(1), 3, Span::signal(), &[first[0]]);
        let fifth = builder.send(Rank(1), 4, Span::signal(), &[fourth]);
        builder.barrier();
        let sixth = builder.send(Rank(1), 5, Span::signal(), &[]);
        let program = builder.build();
        let after = |id: OpId| program.steps[id.0 as usize].after.as_slice();
        assert_eq!(after(fourth), [first[1], third]);
        assert_eq!(after(fifth), [fourth]);
        assert_eq!(after(sixth), [fifth]);
    }

    #[test]
    fn barrier_behind_a_barrier_changes_nothing() {
        let mut builder = ProgramBuilder::new(Rank(0), 2);
        builder.barrier();
        let first = signals(&mut builder, 0..2);
        builder.barrier();
        builder.barrier();
        let last = builder.send(Rank(1), 2, Span::signal(), &[]);
        assert_eq!(builder.build().steps[last.0 as usize].after, first);
    }

    #[test]
    #[should_panic(expected = "which does not exist yet")]
    fn forward_dependency_is_refused() {
        ProgramBuilder::new(Rank(0), 2).send(Rank(1), 0, Span::signal(), &[OpId(0)]);
    }
}
