use std::collections::{BTreeMap, HashMap};

use super::*;
use crate::arguments::{Arguments, program};
use crate::builder::ProgramBuilder;
use crate::topology::Topology;

/// What a rank has, by buffer.
type Memory = HashMap<Buffer, Vec<u8>>;

/// Carries lists out with counters alone, in an order drawn from `seed`: what each rank holds at the end.
struct Ranks {
    lists: Vec<List>,
    counters: Vec<Vec<u64>>,
    begun: Vec<Vec<bool>>,
    /// Memory of the NIC, by rank and buffer, and messages under way.
    memory: Vec<Memory>,
    messages: BTreeMap<(Rank, Rank, u32), Vec<u8>>,
}

fn slot(memory: &mut Memory, span: Span) -> &mut [u8] {
    &mut memory.get_mut(&span.buffer).expect("input or output")[span.offset as usize..][..span.len as usize]
}

impl Ranks {
    fn new(programs: &[Program]) -> Ranks {
        let lists: Vec<List> = programs.iter().map(|program| List::lower(program).expect("taken")).collect();
        let memory = programs.iter().map(|program| {
            let input = (0..program.input_bytes).map(|at| (at * 7 + u64::from(program.rank.0) * 31) as u8).collect();
            Memory::from([(Buffer::Input, input), (Buffer::Output, vec![0xEE; program.output_bytes as usize])])
        });
        Ranks {
            counters: lists.iter().map(|list| vec![0; list.counters as usize]).collect(),
            begun: lists.iter().map(|list| vec![false; list.tasks.len()]).collect(),
            memory: memory.collect(),
            messages: BTreeMap::new(),
            lists,
        }
    }

    /// Does one task if it may begin and its message is there.
    fn step(&mut self, rank: usize, at: usize) -> bool {
        let Task { after, action } = self.lists[rank].tasks[at];
        let reached = |t: Threshold| self.counters[rank][t.counter as usize] >= t.value;
        if self.begun[rank][at] || !after.is_none_or(reached) {
            return false;
        }
        let me = Rank(rank as u32);
        let counts = match action {
            Action::Send { to, index, span, counts } => {
                let bytes = if span.len == 0 { Vec::new() } else { slot(&mut self.memory[rank], span).to_vec() };
                assert!(self.messages.insert((me, to, index), bytes).is_none(), "one message of a name");
                counts
            }
            Action::Receive { from, index, span, counts } => {
                let Some(bytes) = self.messages.remove(&(from, me, index)) else { return false };
                assert_eq!(bytes.len() as u64, span.len);
                if span.len > 0 {
                    slot(&mut self.memory[rank], span).copy_from_slice(&bytes);
                }
                counts
            }
            Action::Add { to } => to,
        };
        self.begun[rank][at] = true;
        let before = self.ended(rank);
        self.counters[rank][counts as usize] += 1;
        assert!(!before, "the end is behind every task");
        true
    }

    fn ended(&self, rank: usize) -> bool {
        let List { end, tasks, .. } = &self.lists[rank];
        !tasks.is_empty() && self.counters[rank][end.counter as usize] >= end.value
    }

    fn run(&mut self, mut seed: u64) {
        let mut left: Vec<(usize, usize)> = (0..self.lists.len())
            .flat_map(|rank| (0..self.lists[rank].tasks.len()).map(move |at| (rank, at)))
            .collect();
        while !left.is_empty() {
            let before = left.len();
            for _ in 0..left.len() {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (seed >> 33) as usize % left.len();
                if self.step(left[at].0, left[at].1) {
                    left.swap_remove(at);
                    if left.is_empty() {
                        break;
                    }
                }
            }
            left.retain(|(rank, at)| !self.step(*rank, *at));
            assert!(left.len() < before, "nothing can go on: {left:?}");
        }
        assert!(self.messages.is_empty());
        (0..self.lists.len()).for_each(|rank| assert!(self.lists[rank].tasks.is_empty() || self.ended(rank)));
    }
}

fn programs(collective: Collective, ranks: u32, bytes: u64, root: Rank) -> Vec<Program> {
    let (topology, choice) = (Topology::flat(ranks), choice(collective, ranks, bytes).expect("taken"));
    let arguments = Arguments { root, ..Arguments::of(&topology, bytes) };
    (0..ranks).map(|rank| program(choice, &arguments, Rank(rank)).expect("a plan")).collect()
}

/// The bytes that each rank has at the end, as the programs say step by step.
fn expected(collective: Collective, memory: &[Memory], bytes: usize, root: Rank) -> Vec<Vec<u8>> {
    let input = |rank: usize| memory[rank][&Buffer::Input].as_slice();
    let ranks = memory.len();
    let root = root.0 as usize;
    (0..ranks)
        .map(|rank| match collective {
            Collective::Allgather => (0..ranks).flat_map(|of| input(of).to_vec()).collect(),
            Collective::Broadcast if rank == root => Vec::new(),
            Collective::Broadcast => input(root).to_vec(),
            Collective::Alltoall => (0..ranks).flat_map(|of| input(of)[rank * bytes..][..bytes].to_vec()).collect(),
            Collective::Gather if rank == root => (0..ranks).flat_map(|of| input(of).to_vec()).collect(),
            Collective::Gather | Collective::Barrier => Vec::new(),
            Collective::Scatter => input(root)[rank * bytes..][..bytes].to_vec(),
            other => unreachable!("{other} is not taken"),
        })
        .collect()
}

/// Every collective that is taken ends with its bytes, whatever the order in which its tasks complete.
#[test]
fn lists_carry_out_what_their_programs_say() {
    let taken = Collective::ALL.into_iter().filter(|collective| choice(*collective, 2, 1).is_ok());
    for (collective, ranks) in taken.flat_map(|collective| [1, 2, 3, 4, 5, 8, 13, 33].map(|ranks| (collective, ranks)))
    {
        for (bytes, seed) in [(0, 1), (1, 2), (5, 3), (5, 4)] {
            let bytes = if collective == Collective::Barrier { 0 } else { bytes };
            let root = Rank(ranks / 2);
            let programs = programs(collective, ranks, bytes, root);
            let mut engines = Ranks::new(&programs);
            let expected = expected(collective, &engines.memory, bytes as usize, root);
            engines.run(seed);
            for (rank, program) in programs.iter().enumerate() {
                let copies = program.steps.iter().filter_map(|step| match step.op {
                    Op::Copy { from, to } => Some((from, to)),
                    _ => None,
                });
                for (from, to) in copies {
                    let bytes = slot(&mut engines.memory[rank], from).to_vec();
                    slot(&mut engines.memory[rank], to).copy_from_slice(&bytes);
                }
                assert_eq!(engines.memory[rank][&Buffer::Output], expected[rank], "{collective} {ranks} {bytes}");
            }
        }
    }
}

/// The widest lists have as many counters as is said.
#[test]
fn counters_are_bounded_by_the_ranks() {
    for collective in Collective::ALL.into_iter().filter(|collective| choice(*collective, 2, 1).is_ok()) {
        for program in programs(collective, MOST_RANKS, 1, Rank(0)) {
            assert!(List::lower(&program).expect("taken").counters <= MOST_COUNTERS, "{collective}");
        }
        assert_eq!(choice(collective, MOST_RANKS + 1, 1), Err(Refused::Ranks { ranks: MOST_RANKS + 1 }));
    }
}

/// A step that several sets wait for is joined to them; what nobody waits for ends the list.
#[test]
fn waits_for_several_are_joined_by_adding() {
    let mut builder = ProgramBuilder::new(Rank(0), 3);
    builder.buffers(4, 8, 0);
    let one = builder.recv(Rank(1), 0, Span::output(0, 4), &[]);
    let two = builder.recv(Rank(2), 0, Span::output(4, 4), &[]);
    builder.send(Rank(1), 0, Span::input(0, 4), &[one]);
    builder.send(Rank(2), 0, Span::output(0, 4), &[one, two]);
    let list = List::lower(&builder.build()).expect("messages alone");
    let adds: Vec<&Task> = list.tasks.iter().filter(|task| matches!(task.action, Action::Add { .. })).collect();
    assert_eq!(list.end, Threshold { counter: END, value: 4 }, "two sends, and two that clear what comes");
    let waits = |rank: Rank| {
        let sends = |task: &&Task| matches!(task.action, Action::Send { to, span, .. } if to == rank && span.len > 0);
        list.tasks.iter().find(sends).expect("sent").after
    };
    assert_eq!(waits(Rank(1)).map(|after| after.value), Some(2), "it has come, and the next one is cleared");
    assert_eq!(waits(Rank(2)).map(|after| after.value), Some(3));
    let joined: Vec<u32> = [Rank(1), Rank(2)].into_iter().filter_map(|to| Some(waits(to)?.counter)).collect();
    let added: Vec<u32> =
        adds.iter().filter_map(|task| if let Action::Add { to } = task.action { Some(to) } else { None }).collect();
    assert_eq!(added, joined, "the first receive is joined to both");
    assert_eq!((list.gathers, list.delivers.len()), (vec![Span::input(0, 4)], 2));
}

/// A rank that has not called is sent nothing but words without bytes, however often the others call.
#[test]
fn nothing_with_bytes_goes_to_who_has_not_called() {
    let taken = Collective::ALL.into_iter().filter(|collective| choice(*collective, 2, 1).is_ok());
    for (collective, late) in taken.flat_map(|collective| (0..5).map(move |late| (collective, late))) {
        let bytes = if collective == Collective::Barrier { 0 } else { 7 };
        let mut engines = Ranks::new(&programs(collective, 5, bytes, Rank(1)));
        let others = || (0..5).filter(|rank| *rank != late);
        let mut again = true;
        while std::mem::take(&mut again) {
            for rank in others() {
                (0..engines.lists[rank].tasks.len()).for_each(|at| again |= engines.step(rank, at));
            }
        }
        let mut held = engines.messages.iter().filter(|((_, to, _), _)| to.0 as usize == late);
        assert!(held.all(|(_, bytes)| bytes.is_empty()), "{collective}, rank {late} is late");
    }
}

/// What deferred work cannot do is refused, and the step named.
#[test]
fn what_needs_a_processor_is_refused_by_step() {
    let refused = |build: &dyn Fn(&mut ProgramBuilder)| {
        let mut builder = ProgramBuilder::new(Rank(0), 2);
        builder.buffers(8, 8, 8);
        build(&mut builder);
        List::lower(&builder.build()).expect_err("refused").to_string()
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
