//! The first inputs of fuzzing: scripts in which all ranks behave, so that the fuzzer starts deep in the protocol.

use outboard_nic::profile::Profile;
use outboard_plan::selection::Collective;
use outboard_plan::{Arguments, Program, ProgramBuilder, Rank, Span, Topology, program};
use outboard_plan_tools::goal::{self, GoalCosts};
use outboard_plan_tools::text;

use outboard_sim::hostile::acts;

/// Scripts for `hostile_datagrams`: both groups carry out some collectives, with a hostile act in between.
pub fn datagrams() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for ring in 0..2 {
        for size in [2, 4, 5, 6] {
            for kind in 0..5 {
                let mut seed = vec![ring, acts::WAIT, 4];
                for group in 0..2 {
                    // The first caller decides what the call is. Then the others call, and time passes.
                    seed.extend([acts::CALL, group, 0, size, 1, kind]);
                    seed.extend([acts::CALL, group, 1, acts::WAIT, 2, acts::CALL, group, 2, acts::CALL, group, 3]);
                    seed.extend([acts::OVERWRITE, 5 * size, 9, acts::WAIT, 4]);
                }
                seed.extend([acts::FRAME, 1, 0, kind, 1, 0, 1, acts::LEAVE, 2, acts::WAIT, 3]);
                seeds.push(seed);
            }
        }
    }
    // A reduction that needs more scratch than there is staging.
    seeds.push(vec![1, acts::WAIT, 4, acts::CALL, 0, 0, 6, 0, 11]);
    // An unknown process floods before the groups are made.
    seeds.push(vec![0, acts::FRAME, 0, 0xff, 0, 1, 0, 0, 1, 0, 1, acts::WAIT, 4]);
    seeds
}

/// Scripts for `hostile_rank`: a group with an honest rank, calls that are owed and paid, and requests of every kind.
pub fn rank() -> Vec<Vec<u8>> {
    use crate::rank::acts::{
        BYTES, CONNECT, ENTRY, HONEST, OWED, PAID, READ, RECORD, REQUEST, RING, SCRIBBLE, SHARED_GROUP,
    };
    let good = [SHARED_GROUP, OWED, PAID, HONEST, PAID, OWED, READ];
    let bad: [&[u8]; 7] = [
        &[ENTRY, 1, 3, 1, 2, 1, 0, 0, 1, 2, 1, 3],
        &[SCRIBBLE, 2, 0, 3, 1, 1, 1, 1],
        &[RING, 0, 1],
        &[BYTES, 4, 0, 1, 2, 3, 4],
        &[CONNECT, 1, SHARED_GROUP],
        &[CONNECT, 0, BYTES, 3, 0, 1, 2, 3],
        &[OWED, CONNECT, 0],
    ];
    let mut seeds: Vec<Vec<u8>> = bad.iter().map(|bad| [&good, *bad, &[HONEST]].concat()).collect();
    // A message to itself and back, behind a barrier, in two pieces of memory, called twice.
    let recorded = [RECORD, 0, 2, 3, 4, 1, 1, 0, 50, 0, 0, 0, 1, 1, 0, 50, 0, 60, 8, 0, 1, 1, 1];
    seeds.push([&good[..], &recorded, &[HONEST], &recorded, &[READ, HONEST]].concat());
    seeds.extend((0..13).map(|kind| [&good[..], &[REQUEST, kind, 0, 0, 0, 0, 1, 1, READ, HONEST]].concat()));
    seeds
}

/// Scripts for `recording_sequences`: graphs that all ranks call, messages of all sizes, and errors in between.
pub fn sequences() -> Vec<Vec<u8>> {
    use outboard_sim::sequences::acts::{CALL, CALL_ALL, FREE, GO_ON, GRAPH, LEAVE, MESSAGE, RECORD, WAIT};
    let mut seeds = Vec::new();
    for layout in 0..4 {
        for settings in 0..4 {
            let mut seed = vec![layout, settings, settings % 3, settings % 3, settings % 3, settings, layout];
            for group in 0..2 {
                seed.extend([GRAPH, group, settings % 3, layout, settings, GRAPH, group, 1, settings, 7]);
                seed.extend([CALL_ALL, group, 1, 0, CALL_ALL, group, 2, 1, GO_ON, 40, CALL_ALL, group, 0, 1]);
                seed.extend([MESSAGE, group, 0, 1, 2, 0xff, 1, 0, MESSAGE, group, 1, 0, 2, 0x90, 1, 1]);
                seed.extend([GO_ON, 20, WAIT, 2, FREE, group, 0, 0]);
            }
            // Rank 0 sends and receives what rank 1 receives and sends, behind barriers.
            for (rank, first, second) in [(0, 0, 4), (1, 4, 0)] {
                let step = |kind| [kind, 1 - rank, 7, 0, 0x90, 0, 0];
                seed.extend([&[RECORD, 0, rank, 0, 2, 3][..], &step(first), &[8], &step(second), &[0]].concat());
                seed.extend([CALL, 0, rank, 2, 0]);
            }
            seed.extend([LEAVE, 1, 1, 0, GO_ON, 9]);
            seeds.push(seed);
        }
    }
    seeds
}

/// Small plans with every kind of step.
fn small_plans() -> Vec<Vec<Program>> {
    let group = |of: &dyn Fn(Rank) -> Program| (0..3).map(|rank| of(Rank(rank))).collect();
    let flat = Topology::flat(3);
    let planned = |collective: Collective, algorithm: &str, bytes: u64| {
        let choice = collective.read(algorithm).expect("an algorithm");
        let arguments = Arguments { root: Rank(1), ..Arguments::of(&flat, bytes) };
        group(&|rank| program(choice, &arguments, rank).expect("a small group"))
    };
    let reduced = group(&|rank| {
        let mut builder = ProgramBuilder::new(rank, 3);
        builder.buffers(8, 8, 0);
        builder.reduce(Span::input(0, 8), Span::output(0, 8), rank.0 == 0, &[]);
        builder.build()
    });
    vec![
        planned(Collective::Allgather, "ring", 8),
        planned(Collective::Allgather, "multicast:chains=1,subgroups=2", 8),
        reduced,
        planned(Collective::Broadcast, "binomial", 70_000),
    ]
}

/// Texts for `profile_text`: the built-in profiles, as far as the fuzzer's inputs go.
pub fn profiles() -> Vec<Vec<u8>> {
    Profile::built_in_texts().map(|text| text.as_bytes().to_vec()).collect()
}

/// Texts for `plan_text`.
pub fn plans() -> Vec<Vec<u8>> {
    small_plans().iter().map(|programs| text::print(programs).into_bytes()).collect()
}

/// Texts for `goal_import`. One of them has everything that the dialect has.
pub fn schedules() -> Vec<Vec<u8>> {
    let costs = GoalCosts::default();
    let export = |programs: &Vec<Program>| goal::export(programs, costs).expect("few messages").into_bytes();
    let mut schedules: Vec<Vec<u8>> = small_plans().iter().map(export).collect();
    let free = "num_ranks 2 // two\nrank 0 {\na: recv 1b from 1 tag 3 cpu 1 nic 0\nb irequires a /* c */\nb: calc 9 cpu 0\n}\n\
                rank 1 { send 1b to 0 tag 3 }";
    schedules.push(free.as_bytes().to_vec());
    schedules
}
