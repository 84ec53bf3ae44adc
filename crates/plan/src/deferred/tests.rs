use super::*;
use crate::arguments::{Arguments, program};
use crate::builder::ProgramBuilder;
use crate::topology::Topology;

fn taken() -> impl Iterator<Item = Collective> {
    Collective::ALL.into_iter().filter(|collective| choice(*collective, 2, 1).is_ok())
}

fn programs(collective: Collective, ranks: u32, bytes: u64, root: Rank) -> Vec<Program> {
    let (topology, choice) = (Topology::flat(ranks), choice(collective, ranks, bytes).expect("taken"));
    let arguments = Arguments { root, ..Arguments::of(&topology, bytes) };
    (0..ranks).map(|rank| program(choice, &arguments, Rank(rank)).expect("a plan")).collect()
}

fn counter_of(task: &DeferredTask) -> u32 {
    match task.action {
        DeferredAction::Send { counts, .. }
        | DeferredAction::Receive { counts, .. }
        | DeferredAction::Add { to: counts } => counts,
    }
}

/// The end follows every task: every counter is awaited until all its tasks have added. No message with bytes leaves
/// before its receiver has cleared it, so no bytes are sent to a rank that has not called. The simulator shows that
/// lists leave the bytes of their programs.
#[test]
fn list_ends_after_all_tasks_and_sends_only_cleared_messages() {
    for (collective, ranks) in taken().flat_map(|collective| [1, 2, 5, 8, 33].map(|ranks| (collective, ranks))) {
        let bytes = if collective == Collective::Barrier { 0 } else { 7 };
        for program in programs(collective, ranks, bytes, Rank(ranks / 2)) {
            let DeferredList { counters, tasks, end, .. } = DeferredList::lower(&program).expect("taken");
            let awaited: Vec<Threshold> = tasks.iter().filter_map(|task| task.after).chain([end]).collect();
            for counter in 0..counters {
                let adding = tasks.iter().filter(|task| counter_of(task) == counter).count() as u64;
                let mut values = awaited.iter().filter(|after| after.counter == counter).map(|after| after.value);
                assert!(
                    values.next() == Some(adding) && values.all(|value| value == adding),
                    "{collective}: {counter}"
                );
            }
            for task in &tasks {
                let DeferredAction::Send { to, index, span, .. } = task.action else { continue };
                let clears = |other: &&DeferredTask| {
                    let name = (to, index | CLEARS);
                    matches!(other.action, DeferredAction::Receive { from, index, .. } if (from, index) == name)
                };
                if !span.is_empty() {
                    let cleared = counter_of(tasks.iter().find(clears).expect("it is cleared"));
                    let after = task.after.expect("it waits").counter;
                    let joins = |task: &DeferredTask| {
                        let waits = task.after.is_some_and(|own| own.counter == cleared);
                        waits && matches!(task.action, DeferredAction::Add { to } if to == after)
                    };
                    assert!(after == cleared || tasks.iter().any(joins), "{collective} to {to}");
                }
            }
        }
    }
}

/// The widest lists have exactly the documented number of counters.
#[test]
fn counters_are_bounded_by_the_ranks() {
    for collective in taken() {
        for program in programs(collective, MOST_RANKS, 1, Rank(0)) {
            assert!(DeferredList::lower(&program).expect("taken").counters <= MOST_COUNTERS, "{collective}");
        }
        assert_eq!(choice(collective, MOST_RANKS + 1, 1), Err(DeferredError::Ranks { ranks: MOST_RANKS + 1 }));
    }
}

/// Add tasks connect a step to each set of steps that awaits the step. A step that no set awaits counts towards the end
/// of the list.
#[test]
fn steps_of_several_waits_are_joined_by_add_tasks() {
    let mut builder = ProgramBuilder::new(Rank(0), 3);
    builder.buffers(4, 8, 0);
    let one = builder.recv(Rank(1), 0, Span::output(0, 4), &[]);
    let two = builder.recv(Rank(2), 0, Span::output(4, 4), &[]);
    builder.send(Rank(1), 0, Span::input(0, 4), &[one]);
    builder.send(Rank(2), 0, Span::output(0, 4), &[one, two]);
    let list = DeferredList::lower(&builder.build()).expect("messages alone");
    let adds: Vec<&DeferredTask> =
        list.tasks.iter().filter(|task| matches!(task.action, DeferredAction::Add { .. })).collect();
    assert_eq!(list.end, Threshold { counter: END, value: 4 }, "two sends, and two that clear what comes");
    let waits = |rank: Rank| {
        let sends = |task: &&DeferredTask| match task.action {
            DeferredAction::Send { to, span, .. } => to == rank && span.len > 0,
            DeferredAction::Receive { .. } | DeferredAction::Add { .. } => false,
        };
        list.tasks.iter().find(sends).expect("sent").after
    };
    assert_eq!(waits(Rank(1)).map(|after| after.value), Some(2), "it has come, and the next one is cleared");
    assert_eq!(waits(Rank(2)).map(|after| after.value), Some(3));
    let joined: Vec<u32> = [Rank(1), Rank(2)].into_iter().filter_map(|to| Some(waits(to)?.counter)).collect();
    let added: Vec<u32> = adds
        .iter()
        .filter_map(|task| if let DeferredAction::Add { to } = task.action { Some(to) } else { None })
        .collect();
    assert_eq!(added, joined, "the first receive is joined to both");
    assert_eq!((list.gathers, list.delivers.len()), (vec![Span::input(0, 4)], 2));
}

/// Steps that deferred work cannot do are rejected, and the error names the step.
#[test]
fn error_names_the_step_that_needs_a_processor() {
    let refused = |build: &dyn Fn(&mut ProgramBuilder)| {
        let mut builder = ProgramBuilder::new(Rank(0), 2);
        builder.buffers(8, 8, 8);
        build(&mut builder);
        DeferredList::lower(&builder.build()).expect_err("refused").to_string()
    };
    let copied = refused(&|builder| {
        let here = builder.recv(Rank(1), 0, Span::output(0, 4), &[]);
        let copied = builder.copy(Span::output(0, 4), Span::output(4, 4), &[here]);
        builder.send(Rank(1), 0, Span::output(4, 4), &[copied]);
    });
    assert!(copied.starts_with("step 2: a message behind a copy"), "{copied}");
    let part = refused(&|builder| {
        let here = builder.recv(Rank(1), 0, Span::output(0, 4), &[]);
        builder.send(Rank(1), 0, Span::output(0, 2), &[here]);
    });
    assert!(part.starts_with("step 1: a message of part"), "{part}");
    let scratch = refused(&|builder| {
        builder.recv(Rank(1), 0, Span::scratch(0, 4), &[]);
    });
    assert!(scratch.starts_with("step 0: a message of scratch"), "{scratch}");
    let large = choice(Collective::Alltoall, 4, MOST_BYTES / 4 + 1).expect_err("many copies").to_string();
    assert!(large.contains(&MOST_BYTES.to_string()), "{large}");
    let combined = choice(Collective::Allreduce, 4, 8).expect_err("no processor").to_string();
    assert!(combined.contains("allreduce"), "{combined}");
}
