//! GOAL schedules: import, export, and the errors of invalid texts.

use outboard_plan::selection::Collective;
use outboard_plan::{Arguments, Op, OpId, Program, ProgramBuilder, Rank, Span, Topology};
use outboard_plan_tools::goal::{self, ExportError, GoalCosts, GoalReason};
use outboard_plan_tools::verify;
use proptest::prelude::*;

use crate::support::{choice, group};

fn ring(ranks: u32, bytes: u64) -> Vec<Program> {
    group(choice(Collective::Allgather, "ring"), &Arguments::of(&Topology::flat(ranks), bytes))
}

/// The plan of a schedule, proven to deliver every message.
fn proven(text: &str) -> Vec<Program> {
    let import = goal::import(text).unwrap();
    verify(&import.programs, |rank| import.contracts[rank.0 as usize].clone()).unwrap();
    import.programs
}

/// The messages of a plan, sorted: source, destination, index, bytes.
fn messages(programs: &[Program]) -> Vec<(u32, u32, u32, u64)> {
    let mut messages = Vec::new();
    for program in programs {
        for step in &program.steps {
            if let Op::Send { to, index, span } = step.op {
                messages.push((program.rank.0, to.0, index, span.len));
            }
        }
    }
    messages.sort_unstable();
    messages
}

#[test]
fn a_plan_reads_as_goal_like_this() {
    let text = goal::export(&ring(3, 8000)[..], GoalCosts::default()).unwrap();
    let rank_1 = "rank 1 {\n\
        l0: recv 8000b from 0 tag 0\n\
        l1: recv 8000b from 0 tag 1\n\
        l2: calc 1000\n\
        l3: send 8000b to 2 tag 0\n\
        l4: send 8000b to 2 tag 1\n\
        l4 requires l0\n\
        }\n";
    assert!(text.starts_with("num_ranks 3\n\nrank 0 {\n"), "{text}");
    assert!(text.contains(rank_1), "{text}");
}

/// Steps that GOAL cannot express directly: signals, reductions, multicasts.
#[test]
fn steps_without_a_word_in_goal_are_paraphrased() {
    let mut root = ProgramBuilder::new(Rank(0), 3);
    root.buffers(8, 0, 16);
    let reduced = root.reduce(Span::input(0, 8), Span::scratch(0, 8), true, &[]);
    let sent = root.multicast(Span::scratch(0, 8), &[reduced]);
    root.send(Rank(1), 7, Span::signal(), &[sent]);
    let mut other = ProgramBuilder::new(Rank(1), 3);
    other.buffers(0, 8, 0);
    other.multicast_recv(Rank(0), Span::output(0, 8));
    other.recv(Rank(0), 7, Span::signal(), &[]);
    let mut last = ProgramBuilder::new(Rank(2), 3);
    last.buffers(0, 8, 0);
    last.multicast_recv(Rank(0), Span::output(0, 8));
    let programs = [root.build(), other.build(), last.build()];
    let text = goal::export(&programs, GoalCosts { copy_ps_per_byte: 0, reduce_ps_per_byte: 126 }).unwrap();
    let expected = "num_ranks 3\n\n\
        rank 0 {\n\
        l0: calc 2\n\
        l1_1: send 8b to 1 tag 4294967294\n\
        l1_2: send 8b to 2 tag 4294967294\n\
        l1: calc 0\n\
        l1 requires l1_1\n\
        l1 requires l1_2\n\
        l1_1 requires l0\n\
        l1_2 requires l0\n\
        l2: send 1b to 1 tag 7\n\
        l2 requires l1\n\
        }\n\n\
        rank 1 {\n\
        l0: recv 8b from 0 tag 4294967294\n\
        l1: recv 1b from 0 tag 7\n\
        }\n\n\
        rank 2 {\n\
        l0: recv 8b from 0 tag 4294967294\n\
        }\n";
    assert_eq!(text, expected);
    assert_eq!(messages(&proven(&text)), [(0, 1, 0, 8), (0, 1, 1, 1), (0, 2, 0, 8)]);
    let mut stranger = ProgramBuilder::new(Rank(0), 1);
    stranger.send(Rank(1), u32::MAX, Span::signal(), &[]);
    let refused = goal::export(&[stranger.build()], GoalCosts::default()).unwrap_err();
    assert_eq!(refused, ExportError::Index { rank: Rank(0), step: OpId(0), index: u32::MAX });
}

/// The whole dialect, with more freedom in line breaks than LogGOPSim allows.
#[test]
fn a_schedule_becomes_a_plan_like_this() {
    let text = "// a tree\n num_ranks 3\r\n\
        rank 0 { l1: send 1b to 1 tag 5 l2: send 2b to 1 tag 4 cpu 1 nic 2 /* and\n the other */ send 3b to 2\n\
          l2 requires l1 }\n\
        rank 1 {\n\
        late requires b\n\
        a: recv 2b from 0 tag 4\n\
        b: recv 1b from 0 tag 5 nic 0\n\
        c: calc 1000 cpu 3\n\
        c requires a\n\
        late: send 0b to 2 tag 9\n\
        late irequires c\n\
        }\n\
        rank 2 {\n recv 3b from 0\n recv 0b from 1 tag 9\n}\n";
    let programs = proven(text);
    let rank_0 = &programs[0];
    assert_eq!(
        rank_0.steps.iter().map(|step| step.op).collect::<Vec<_>>(),
        [
            Op::Send { to: Rank(1), index: 0, span: Span::input(0, 1) },
            Op::Send { to: Rank(1), index: 1, span: Span::input(1, 2) },
            Op::Send { to: Rank(2), index: 0, span: Span::input(3, 3) },
        ]
    );
    assert_eq!(rank_0.steps[1].after, [OpId(0)]);
    // Messages are matched by tag: the first receive takes the second message.
    let rank_1 = &programs[1];
    assert_eq!(rank_1.steps[0].op, Op::Recv { from: Rank(0), index: 1, span: Span::output(0, 2) });
    assert_eq!(rank_1.steps[1].op, Op::Recv { from: Rank(0), index: 0, span: Span::output(2, 1) });
    assert_eq!(rank_1.steps[2].op, Op::Copy { from: Span::signal(), to: Span::signal() });
    assert_eq!(rank_1.steps[2].after, [OpId(0)]);
    // The send follows `b`, and all that `c` requires.
    assert_eq!(rank_1.steps[3].op, Op::Send { to: Rank(2), index: 0, span: Span::signal() });
    assert_eq!(rank_1.steps[3].after, [OpId(0), OpId(1)]);
    assert_eq!((rank_1.input_bytes, rank_1.output_bytes), (0, 3));
}

/// MC-4: receives of data are posted at once; steps that require them still follow everything that they require.
#[test]
fn a_receive_that_requires_something_is_posted_at_once() {
    let text = "num_ranks 2\n\
        rank 0 { a: recv 4b from 1 tag 0\n b: recv 4b from 1 tag 1\n b requires a\n c: send 4b to 1 tag 0\n c requires b }\n\
        rank 1 { send 4b to 0 tag 0\n send 4b to 0 tag 1\n recv 4b from 0 tag 0 }";
    let steps = &proven(text)[0].steps;
    assert!(steps[1].after.is_empty());
    assert_eq!(steps[2].op, Op::Copy { from: Span::signal(), to: Span::signal() });
    assert_eq!(steps[2].after, [OpId(0), OpId(1)]);
    assert_eq!(steps[3].after, [OpId(2)]);
}

/// Each layer starts after the whole layer before it: steps and dependencies grow only with the text.
#[test]
fn a_plan_is_at_most_a_few_times_as_long_as_its_schedule() {
    let width = 100;
    for order in ["requires", "irequires"] {
        let mut text = "num_ranks 1\nrank 0 {\n".to_owned();
        (0..width).for_each(|i| text += &format!("a{i}: calc 1\n"));
        text += "m: calc 1\n";
        (0..width).for_each(|i| text += &format!("m requires a{i}\nb{i}: calc 1\nb{i} {order} m\n"));
        text += "}\n";
        let statements = text.lines().count();
        let steps = &proven(&text)[0].steps;
        assert!(steps.len() <= statements, "{}", steps.len());
        assert!(steps.iter().map(|step| step.after.len()).sum::<usize>() <= 2 * statements);
    }
}

#[test]
fn errors_name_line_column_and_reason() {
    let said = |text: &str| goal::import(text).unwrap_err().to_string();
    let two =
        |rank_0: &str, rank_1: &str| said(&format!("num_ranks 2\nrank 0 {{\n{rank_0}\n}}\nrank 1 {{\n{rank_1}\n}}\n"));
    assert_eq!(said("ranks 2"), "line 1, column 1: expected `num_ranks`, found `ranks`");
    assert_eq!(said("num_ranks 0"), "line 1, column 11: 0 ranks: a plan has 1 to 65535");
    assert_eq!(said("num_ranks 65536"), "line 1, column 11: 65536 ranks: a plan has 1 to 65535");
    assert_eq!(said("num_ranks 1\nrank 0 {\n/* no end"), "line 3, column 1: the comment that begins here has no end");
    assert_eq!(
        said("num_ranks 1\nrank 0 {\n"),
        "line 3, column 1: expected an operation, a label or `}`, found the end of the text"
    );
    assert_eq!(
        said("num_ranks 1\nrank 0 { }\nrank 0 { }"),
        "line 3, column 1: rank 0 has had its operations on line 2: join both"
    );
    assert_eq!(
        said("num_ranks 1\nrank 1 { }"),
        "line 2, column 6: rank 1, but `num_ranks` says 1 and ranks count from 0"
    );
    assert_eq!(two("l1: put 8b to 1", ""), "line 3, column 5: expected `send`, `recv` or `calc`, found `put`");
    assert_eq!(two("l1: send 8 to 1", ""), "line 3, column 12: expected `b`, found `to`");
    assert_eq!(two("l1: send 8b from 1", ""), "line 3, column 13: expected `to`, found `from`");
    assert_eq!(two("l1 needs l2", ""), "line 3, column 4: expected `:`, `requires` or `irequires`, found `needs`");
    assert_eq!(
        two("send 8b to 0", ""),
        "line 3, column 12: a message of rank 0 to itself: use `calc` for work inside a rank"
    );
    assert_eq!(
        two("recv 8b from -1", ""),
        "line 3, column 14: -1 stands for any source or tag: a plan names every message, \
         so give the source and tag that it takes"
    );
    assert_eq!(two("a: calc 1\na: calc 2", ""), "line 4, column 1: the label `a` is that of line 3: choose another");
    assert_eq!(two("a: calc 1\na requires b", ""), "line 4, column 12: no operation of this rank has the label `b`");
    assert_eq!(
        two("a: calc 1\nb: calc 1\na requires b\nb irequires a", ""),
        "line 3, column 4: this operation requires itself, directly or through others of its rank"
    );
    assert_eq!(
        two("send 8b to 1 tag 3", "recv 8b from 0 tag 4"),
        "line 6, column 1: no send on rank 0 is left for this message of tag 4"
    );
    assert_eq!(
        two("a: send 8b to 1 tag 3", ""),
        "line 3, column 4: no recv on rank 1 is left for this message of tag 3"
    );
    assert_eq!(
        two("send 8b to 1 tag 3", "recv 9b from 0 tag 3"),
        "line 6, column 1: 9 bytes are received here, but 8 are sent on line 3: make them equal"
    );
    let huge = "send 18446744073709551615b to 1 tag 0\nsend 1b to 1 tag 0";
    assert_eq!(
        two(huge, ""),
        "line 4, column 1: with this message rank 0 has more than 2^64 bytes on one side: lower the sizes"
    );
}

/// Sends and receives, each after some earlier operations of its rank, in an order in which no rank waits for ever.
fn any_schedule() -> impl Strategy<Value = String> {
    let message = (0..3u32, 1..3u32, 0..9u64, 0..2u32, any::<u16>(), any::<u16>(), any::<u16>());
    prop::collection::vec(message, 0..12).prop_map(|messages| {
        let mut ranks = vec![Vec::new(); 3];
        let mut sizes = std::collections::BTreeMap::new();
        for (from, distance, bytes, tag, requires, requires_start, calc) in messages {
            let to = (from + distance) % 3;
            // Equal names have equal sizes, so all possible matches fit.
            let bytes = *sizes.entry((from, to, tag)).or_insert(bytes);
            let send = format!("send {bytes}b to {to} tag {tag}");
            let recv = format!("recv {bytes}b from {from} tag {tag}");
            let work = (from, format!("calc {calc}"));
            for (rank, operation) in [work, (from, send), (to, recv)] {
                let lines: &mut Vec<String> = &mut ranks[rank as usize];
                let label = lines.iter().filter(|line| line.contains(':')).count();
                lines.push(format!("l{label}: {operation}"));
                let near = |mask: u16| (0..label.min(16)).filter(move |back| mask >> back & 1 == 1);
                lines.extend(near(requires & calc).map(|back| format!("l{label} requires l{}", label - 1 - back)));
                let starts = near(requires_start & calc);
                lines.extend(starts.map(|back| format!("l{label} irequires l{}", label - 1 - back)));
            }
        }
        let block = |(rank, lines): (usize, &Vec<String>)| format!("rank {rank} {{\n{}\n}}\n", lines.join("\n"));
        format!("num_ranks 3\n{}", ranks.iter().enumerate().map(block).collect::<String>())
    })
}

proptest! {
    /// Every message of a schedule arrives, and export followed by import keeps the messages of a plan.
    #[test]
    fn schedules_deliver_every_message(text in any_schedule()) {
        let programs = proven(&text);
        let again = goal::export(&programs, GoalCosts::default()).unwrap();
        let at_least_one = |messages: Vec<(u32, u32, u32, u64)>| -> Vec<_> {
            messages.into_iter().map(|(from, to, index, bytes)| (from, to, index, bytes.max(1))).collect()
        };
        prop_assert_eq!(messages(&proven(&again)), at_least_one(messages(&programs)));
        prop_assert_eq!(text.matches("send").count(), messages(&programs).len());
    }

    #[test]
    fn plans_keep_their_messages_through_goal(ranks in 1..20u32, bytes in 1..1000u64, root: u32) {
        let plan = ring(ranks, bytes);
        prop_assert_eq!(messages(&proven(&goal::export(&plan, GoalCosts::default()).unwrap())), messages(&plan));
        let flat = Topology::flat(ranks);
        let arguments = Arguments { root: Rank(root % ranks), ..Arguments::of(&flat, bytes) };
        let plan = group(choice(Collective::Broadcast, "binomial"), &arguments);
        prop_assert_eq!(messages(&proven(&goal::export(&plan, GoalCosts::default()).unwrap())), messages(&plan));
    }
}

/// A circle through several ranks is not an error of the text; the verifier finds it.
#[test]
fn ranks_that_wait_for_each_other_are_left_to_the_verifier() {
    let rank =
        |me: u32, other: u32| format!("rank {me} {{ a: recv 1b from {other}\nb: send 1b to {other}\nb requires a }}\n");
    let import = goal::import(&format!("num_ranks 2\n{}{}", rank(0, 1), rank(1, 0))).unwrap();
    let verdict = verify(&import.programs, |rank| import.contracts[rank.0 as usize].clone());
    assert!(matches!(verdict, Err(outboard_plan_tools::VerifyError::Deadlock { .. })), "{verdict:?}");
    let reason = goal::import("num_ranks 1 rank 0 { a: calc 1 a requires a }").unwrap_err().reason;
    assert_eq!(reason, GoalReason::Circle);
}
