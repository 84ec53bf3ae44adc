//! All programs that differ from a valid one in one step, dependency or field.

use outboard_plan::{Buffer, Op, OpId, Program, Rank, Span};

/// The spans that differ from `span` by a byte or in the buffer.
fn resized(span: Span) -> Vec<Span> {
    let Span { buffer, offset, len } = span;
    let mut spans = vec![Span { offset: offset + 1, ..span }, Span { len: len + 1, ..span }];
    spans.extend(offset.checked_sub(1).map(|offset| Span { offset, ..span }));
    spans.extend(len.checked_sub(1).map(|len| Span { len, ..span }));
    if len > 0 {
        let buffers = [Buffer::Input, Buffer::Output, Buffer::Scratch];
        spans.extend(buffers.into_iter().filter(|other| *other != buffer).map(|buffer| Span { buffer, ..span }));
    }
    spans
}

/// Every operation that differs from `op` in one field.
fn altered(op: Op, ranks: u32) -> Vec<Op> {
    let others = |rank: Rank| (0..=ranks).map(Rank).filter(move |other| *other != rank);
    let indices = |index: u32| (0..=index + 1).filter(move |other| *other != index);
    let mut ops = Vec::new();
    match op {
        Op::Send { to, index, span } => {
            ops.extend(others(to).map(|to| Op::Send { to, index, span }));
            ops.extend(indices(index).map(|index| Op::Send { to, index, span }));
            ops.extend(resized(span).into_iter().map(|span| Op::Send { to, index, span }));
            ops.push(Op::Multicast { span });
        }
        Op::Recv { from, index, span } => {
            ops.extend(others(from).map(|from| Op::Recv { from, index, span }));
            ops.extend(indices(index).map(|index| Op::Recv { from, index, span }));
            ops.extend(resized(span).into_iter().map(|span| Op::Recv { from, index, span }));
            ops.push(Op::MulticastRecv { root: from, span });
        }
        Op::Multicast { span } => {
            ops.extend(resized(span).into_iter().map(|span| Op::Multicast { span }));
            ops.push(Op::Send { to: Rank(0), index: 0, span });
        }
        Op::MulticastRecv { root, span } => {
            ops.extend(others(root).map(|root| Op::MulticastRecv { root, span }));
            ops.extend(resized(span).into_iter().map(|span| Op::MulticastRecv { root, span }));
            ops.push(Op::Recv { from: root, index: 0, span });
        }
        Op::Copy { from, to } => {
            ops.extend(resized(from).into_iter().map(|from| Op::Copy { from, to }));
            ops.extend(resized(to).into_iter().map(|to| Op::Copy { from, to }));
            ops.push(Op::Copy { from: to, to: from });
            ops.push(Op::Reduce { from, into: to, from_left: true });
        }
        Op::Reduce { from, into, from_left } => {
            ops.extend(resized(from).into_iter().map(|from| Op::Reduce { from, into, from_left }));
            ops.extend(resized(into).into_iter().map(|into| Op::Reduce { from, into, from_left }));
            ops.push(Op::Reduce { from: into, into: from, from_left });
            ops.push(Op::Reduce { from, into, from_left: !from_left });
            ops.push(Op::Copy { from, to: into });
        }
    }
    ops
}

/// `program` without step `id`. Steps that followed step `id` do not follow its predecessors instead.
fn without(program: &Program, id: usize) -> Program {
    let mut program = program.clone();
    program.steps.remove(id);
    for step in &mut program.steps {
        step.after.retain(|earlier| earlier.0 as usize != id);
        for earlier in step.after.iter_mut().filter(|earlier| earlier.0 as usize > id) {
            earlier.0 -= 1;
        }
    }
    program
}

/// Whether another step of `after` follows the step at `dependency` anyway.
fn implied(program: &Program, after: &[OpId], dependency: usize) -> bool {
    let mut follows: Vec<OpId> = after.to_vec();
    let step = follows.remove(dependency);
    while let Some(later) = follows.pop() {
        if later == step {
            return true;
        }
        follows.extend(program.steps[later.0 as usize].after.iter().filter(|earlier| **earlier >= step));
    }
    false
}

fn set_destination(op: &mut Op, destination: Span) {
    match op {
        Op::Recv { span, .. }
        | Op::MulticastRecv { span, .. }
        | Op::Copy { to: span, .. }
        | Op::Reduce { into: span, .. } => *span = destination,
        Op::Send { .. } | Op::Multicast { .. } => panic!("{op} has no destination"),
    }
}

/// Every program that differs from `program` in one step, dependency or number, or by the destinations of two steps.
pub(crate) fn damaged(program: &Program) -> Vec<Program> {
    let mut all = Vec::new();
    let mut with = |damage: &dyn Fn(&mut Program)| {
        let mut program = program.clone();
        damage(&mut program);
        all.push(program);
    };
    with(&|program| program.output_bytes += 1);
    if program.output_bytes > 0 {
        with(&|program| program.output_bytes -= 1);
    }
    with(&|program| program.input_bytes += 1);
    with(&|program| program.chains += 1);
    if program.ranks > 1 {
        // In a group of one, every number of subgroups agrees.
        with(&|program| program.subgroups += 1);
    }
    with(&|program| program.ranks += 1);
    with(&|program| program.rank.0 += 1);
    for (id, step) in program.steps.iter().enumerate() {
        with(&|program| *program = without(program, id));
        with(&|program| program.steps.push(step.clone()));
        with(&|program| program.steps[id].after.push(OpId(id as u32)));
        for dependency in (0..step.after.len()).filter(|dependency| !implied(program, &step.after, *dependency)) {
            with(&|program| {
                program.steps[id].after.remove(dependency);
            });
        }
        for op in altered(step.op, program.ranks) {
            with(&|program| program.steps[id].op = op);
        }
        if id > 0 && matches!(step.op, Op::Recv { span, .. } | Op::MulticastRecv { span, .. } if !span.is_empty()) {
            with(&|program| program.steps[id].after.push(OpId(0)));
        }
        for other in 0..id {
            if let (Some(a), Some(b)) = (step.op.writes(), program.steps[other].op.writes())
                && !a.is_empty()
                && !b.is_empty()
                && a != b
            {
                with(&|program| set_destination(&mut program.steps[id].op, b));
                with(&|program| {
                    set_destination(&mut program.steps[id].op, b);
                    set_destination(&mut program.steps[other].op, a);
                });
            }
        }
    }
    all
}
