//! The text of plans: it is complete and survives a round trip, and invalid text is rejected without a panic.

use outboard_plan::selection::Collective;
use outboard_plan::{Arguments, Buffer, Op, OpId, Program, Rank, Span, Step, Topology};
use outboard_plan_tools::text::{self, TextReason};
use outboard_plan_tools::{contract, verify};
use proptest::prelude::*;

use crate::support::{choice, group};

fn ring(ranks: u32, bytes: u64) -> Vec<Program> {
    group(choice(Collective::Allgather, "ring"), &Arguments::of(&Topology::flat(ranks), bytes))
}

/// The fenced blocks of docs/plan-format.md that contain plans.
fn examples() -> Vec<&'static str> {
    let document = include_str!("../../../../docs/plan-format.md");
    document.split("```plan\n").skip(1).map(|block| block.split("```").next().unwrap()).collect()
}

#[test]
fn the_documented_example_is_the_plan_that_it_says_it_is() {
    let examples = examples();
    assert_eq!(examples.len(), 1);
    let programs = text::parse(examples[0]).unwrap();
    assert_eq!(programs, ring(2, 8));
    let flat = Topology::flat(2);
    let contract = |rank| contract(choice(Collective::Allgather, "ring"), &Arguments::of(&flat, 8), rank).unwrap();
    verify(&programs, contract).unwrap();
}

#[test]
fn text_is_free_in_its_spaces_and_comments() {
    let free = "# a plan\n\n plan 1 # version\r\n\nrank 0 of 1:input 8B,output 8B,scratch 0B,chains 1,subgroups 1\n\
                \n0 copy input [ 0 .. 8 ] to output[0..8] # all\n1 copy input[0..0] to output[0..0],after 0";
    let programs = text::parse(free).unwrap();
    assert_eq!(programs.len(), 1);
    assert_eq!(programs[0].steps[1].after, [OpId(0)]);
    assert_eq!(text::parse(&text::print(&programs)).unwrap(), programs);
}

/// An error names its place, the fault, and the expected text.
#[test]
fn errors_name_line_column_and_reason() {
    let header = "rank 0 of 1: input 8 B, output 8 B, scratch 0 B, chains 1, subgroups 1";
    let said = |text: String| text::parse(&text).unwrap_err().to_string();
    let step = |step: &str| said(format!("plan 1\n{header}\n{step}\n"));
    assert_eq!(said(String::new()), "line 1, column 1: expected `plan`, found the end of the text");
    assert_eq!(said("plan 2\n".to_owned()), "line 1, column 6: version 2 of the format: this program reads version 1");
    assert_eq!(
        said("plan 1\n".to_owned()),
        "line 2, column 1: expected the program of rank 0, found the end of the text"
    );
    assert_eq!(step("1 copy"), "line 3, column 1: step 1 where step 0 comes: steps count from 0 in each program");
    assert_eq!(
        step("0 move input[0..8]"),
        "line 3, column 3: expected `send`, `receive`, `multicast`, `copy` or `reduce`, found `move`"
    );
    assert_eq!(
        step("0 send input[0..8] to rank 4294967296 as message 0"),
        "line 3, column 28: 4294967296 is too large: at most 4294967295"
    );
    assert_eq!(
        step("0 multicast output[8..7]"),
        "line 3, column 13: the span from 8 to 7: the end is not before the start and at most 2^64 - 1 bytes behind it"
    );
    assert_eq!(
        step("0 multicast output[0..8], after 0"),
        "line 3, column 33: step 0 follows step 0, which is not before it"
    );
    assert_eq!(step("0 multicast output[0..8] now"), "line 3, column 26: expected the end of the line, found `now`");
    assert_eq!(
        said(format!("plan 1\n{header}\n{header}\n")),
        "line 3, column 1: one more program, but the group has 1 ranks and each has its program: remove it"
    );
}

#[test]
fn a_plan_has_one_program_for_each_rank_in_order() {
    let text = text::print(&ring(3, 8));
    let reason = |text: &str| text::parse(text).unwrap_err().reason;
    let begin = |rank| text.find(&format!("rank {rank} of")).unwrap();
    assert_eq!(reason(&text[..begin(2)]), TextReason::Missing { found: 2, ranks: 3 });
    let without_first = format!("plan 1\n{}", &text[begin(1)..]);
    assert_eq!(reason(&without_first), TextReason::Order { found: 1, expected: 0 });
    assert_eq!(reason(&text.replace("rank 1 of 3", "rank 1 of 4")), TextReason::Group { found: 4, ranks: 3 });
    assert_eq!(reason(&text.replace("of 3", "of 65536")), TextReason::Ranks { ranks: 65_536 });
    assert_eq!(reason(&text.replace("of 3", "of 0")), TextReason::Ranks { ranks: 0 });
}

fn any_span() -> impl Strategy<Value = Span> {
    let buffer = prop_oneof![Just(Buffer::Input), Just(Buffer::Output), Just(Buffer::Scratch)];
    let number = || prop_oneof![0..100u64, any::<u64>()];
    (buffer, number(), number()).prop_map(|(buffer, offset, len)| Span { buffer, offset, len })
}

fn any_op() -> impl Strategy<Value = Op> {
    let span = || prop_oneof![Just(Span::signal()), Just(Span::input(0, 0)), any_span()];
    let rank = || prop_oneof![0..4u32, any::<u32>()].prop_map(Rank);
    prop_oneof![
        (rank(), any::<u32>(), span()).prop_map(|(to, index, span)| Op::Send { to, index, span }),
        (rank(), any::<u32>(), span()).prop_map(|(from, index, span)| Op::Recv { from, index, span }),
        span().prop_map(|span| Op::Multicast { span }),
        (rank(), span()).prop_map(|(root, span)| Op::MulticastRecv { root, span }),
        (span(), span()).prop_map(|(from, to)| Op::Copy { from, to }),
        (span(), span(), any::<bool>()).prop_map(|(from, into, from_left)| Op::Reduce { from, into, from_left }),
    ]
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let step = |id: usize| {
        let after = prop::collection::vec((0..id.max(1) as u32).prop_map(OpId), 0..=id.min(3));
        (any_op(), after).prop_map(|(op, after)| Step { op, after })
    };
    (0..8usize).prop_flat_map(move |steps| (0..steps).map(step).collect::<Vec<_>>())
}

/// Programs with any values of their types, sensible or not.
fn any_programs() -> impl Strategy<Value = Vec<Program>> {
    let program = (any_steps(), any::<[u64; 3]>(), any::<u16>(), any::<u32>());
    prop::collection::vec(program, 1..5).prop_map(|programs| {
        let ranks = programs.len() as u32;
        let each = programs.into_iter().zip(0..);
        each.map(|((steps, [input_bytes, output_bytes, scratch_bytes], subgroups, chains), rank)| Program {
            rank: Rank(rank),
            ranks,
            steps,
            input_bytes,
            output_bytes,
            scratch_bytes,
            subgroups,
            chains,
        })
        .collect()
    })
}

proptest! {
    #[test]
    fn what_is_printed_is_read_back(programs in any_programs()) {
        prop_assert_eq!(text::parse(&text::print(&programs))?, programs);
    }

    #[test]
    fn plans_of_algorithms_are_read_back(ranks in 1..40u32, bytes in 0..u64::MAX / 40, root: u32, multicast: bool) {
        let programs = ring(ranks, bytes);
        prop_assert_eq!(text::parse(&text::print(&programs))?, programs);
        let (shape, flat) = (if multicast { "multicast:subgroups=2" } else { "binomial" }, Topology::flat(ranks));
        let arguments = Arguments { root: Rank(root % ranks), ..Arguments::of(&flat, bytes) };
        let programs = group(choice(Collective::Broadcast, shape), &arguments);
        prop_assert_eq!(text::parse(&text::print(&programs))?, programs);
    }
}
