//! One copy in place of several whose spans adjoin.
//!
//! Invariants: copies become one only where they follow the same steps, so that no step comes to wait for one that
//! waits for it. Never moves other steps.

use std::collections::HashMap;

use crate::program::{Buffer, Op, OpId, Program, Span, Step};

/// Where a copy begins or ends, and the number of what it follows: the same for two copies that can become one there.
type Edge = (Buffer, u64, Buffer, u64, usize);

/// The same with copies joined that follow the same steps, and of which one reads and writes where the other ends to
/// read and write.
#[must_use]
pub fn fuse_copies(mut program: Program) -> Program {
    let mut steps: Vec<Step> = Vec::with_capacity(program.steps.len());
    // By old number.
    let mut renumbered: Vec<OpId> = Vec::with_capacity(program.steps.len());
    let (mut begins, mut ends): (HashMap<Edge, usize>, HashMap<Edge, usize>) = (HashMap::new(), HashMap::new());
    // Each set of steps that some copy follows has a number.
    let mut numbers: HashMap<Vec<OpId>, usize> = HashMap::new();
    for Step { op, after } in program.steps {
        let mut after: Vec<OpId> = after.into_iter().map(|id| renumbered[id.0 as usize]).collect();
        after.sort_unstable();
        after.dedup();
        let Op::Copy { from, to } = op else {
            renumbered.push(OpId(steps.len() as u32));
            steps.push(Step { op, after });
            continue;
        };
        let number = numbers.get(&after).copied().unwrap_or(numbers.len());
        let begin = |from: Span, to: Span| (from.buffer, from.offset, to.buffer, to.offset, number);
        let end = |from: Span, to: Span| (from.buffer, from.offset + from.len, to.buffer, to.offset + to.len, number);
        let before = ends.remove(&begin(from, to));
        let behind = begins.remove(&end(from, to));
        let neighbour = before.or(behind).filter(|at| join(&mut steps[*at].op, from, to));
        let at = neighbour.unwrap_or(steps.len());
        if neighbour.is_none() {
            numbers.entry(after.clone()).or_insert(number);
            steps.push(Step { op, after });
        }
        if let Op::Copy { from, to } = steps[at].op {
            begins.insert(begin(from, to), at);
            ends.insert(end(from, to), at);
        }
        renumbered.push(OpId(at as u32));
    }
    program.steps = steps;
    program
}

/// Widens the copy `op` by the adjoining copy of `from` to `to`, unless what it reads and writes would then overlap.
fn join(op: &mut Op, from: Span, to: Span) -> bool {
    let Op::Copy { from: old_from, to: old_to } = op else { return false };
    let widened = |a: Span, b: Span| Span { buffer: a.buffer, offset: a.offset.min(b.offset), len: a.len + b.len };
    let (from, to) = (widened(*old_from, from), widened(*old_to, to));
    let apart = from.buffer != to.buffer || from.offset + from.len <= to.offset || to.offset + to.len <= from.offset;
    if apart {
        (*old_from, *old_to) = (from, to);
    }
    apart
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::ProgramBuilder;
    use crate::program::Rank;

    fn copies(program: &Program) -> Vec<(Span, Span)> {
        let copies = program.steps.iter().filter_map(|step| match step.op {
            Op::Copy { from, to } => Some((from, to)),
            _ => None,
        });
        copies.collect()
    }

    #[test]
    fn adjoining_copies_become_one_in_any_order() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
            let mut builder = ProgramBuilder::new(Rank(0), 2);
            builder.buffers(24, 24, 0);
            let ids = order.map(|i| builder.copy(Span::input(8 * i, 8), Span::output(8 * i, 8), &[]));
            builder.send(Rank(1), 0, Span::output(0, 24), &ids);
            let program = fuse_copies(builder.build());
            assert_eq!(copies(&program), [(Span::input(0, 24), Span::output(0, 24))]);
            assert_eq!(program.steps[1].after, [OpId(0)]);
        }
    }

    #[test]
    fn copies_stay_apart_where_they_must() {
        let mut builder = ProgramBuilder::new(Rank(0), 2);
        builder.buffers(16, 64, 64);
        let first = builder.copy(Span::input(0, 8), Span::output(0, 8), &[]);
        // Another order in the destination.
        builder.copy(Span::input(8, 8), Span::output(40, 8), &[]);
        // Follows another step, though it adjoins.
        builder.copy(Span::input(8, 8), Span::output(8, 8), &[first]);
        // Joined they would read what they write.
        builder.copy(Span::scratch(0, 8), Span::scratch(8, 8), &[first]);
        builder.copy(Span::scratch(8, 8), Span::scratch(16, 8), &[first]);
        let program = builder.build();
        assert_eq!(fuse_copies(program.clone()), program);
    }
}
