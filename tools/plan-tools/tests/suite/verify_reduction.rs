//! The verifier on small hand-made reductions: each defect of a combination is found, named and placed.

use outboard_plan::{Program, ProgramBuilder, Rank, Span};
use outboard_plan_tools::{
    Contract, ContributionFault, ContributionSpan, Contributors, PromisedSpan, VerifyError, verify,
};

const OURS: Span = Span::input(0, 8);
const THEIRS: Span = Span::scratch(0, 8);
const RESULT: Span = Span::output(0, 8);

/// Ranks with two elements of 4 B of input and output and 32 B of scratch.
fn group(ranks: u32, build: impl Fn(&mut ProgramBuilder, u32)) -> Vec<Program> {
    let program = |rank: u32| {
        let mut builder = ProgramBuilder::new(Rank(rank), ranks);
        builder.buffers(8, 8, 32);
        build(&mut builder, rank);
        builder.build()
    };
    (0..ranks).map(program).collect()
}

fn promise(of: Contributors) -> Contract {
    let after = vec![PromisedSpan { span: RESULT, from: 0, of }];
    Contract { element_bytes: Some(4), input_bytes: 8, output_bytes: 8, before: Vec::new(), after }
}

/// The combination of all ranks in rank order.
fn all(count: u32) -> Contract {
    promise(Contributors::Round { first: Rank(0), count })
}

/// Verifies a reduction to which every rank contributes its input.
fn verify_reduction(programs: &[Program], contract: impl Fn(Rank) -> Contract) -> Result<(), VerifyError> {
    verify(programs, |rank| Contract {
        before: vec![ContributionSpan { span: OURS, source: rank, from: 0 }],
        ..contract(rank)
    })
}

fn refused(programs: &[Program], contract: impl Fn(Rank) -> Contract) -> VerifyError {
    verify_reduction(programs, contract).unwrap_err()
}

/// Two ranks send each other their vectors; each puts its own on the left if `left` returns true.
fn exchange(left: impl Fn(u32) -> bool) -> Vec<Program> {
    group(2, |builder, rank| {
        let other = Rank(1 - rank);
        let received = builder.recv(other, 0, THEIRS, &[]);
        let sent = builder.send(other, 0, OURS, &[]);
        let combined = builder.reduce(OURS, THEIRS, left(rank), &[received]);
        builder.copy(THEIRS, RESULT, &[combined, sent]);
    })
}

/// TH-2: the lower rank is the left operand on both ranks; otherwise the order on one of them is wrong.
#[test]
fn order_of_contributions_is_proven() {
    let sound = exchange(|rank| rank == 0);
    assert_eq!(verify_reduction(&sound, |_| all(2)), Ok(()));
    let own_first = exchange(|_| true);
    let fault = ContributionFault::Order { found: Rank(1), expected: Rank(0) };
    let error = refused(&own_first, |_| all(2));
    assert_eq!(error, VerifyError::Differs { rank: Rank(1), other: Rank(0), offset: 0 });
    let listed = |rank: Rank| promise(Contributors::Listed([rank, Rank(1 - rank.0)].into()));
    assert_eq!(verify_reduction(&own_first, listed), Ok(()));
    let last_first = exchange(|rank| rank == 1);
    let error = refused(&last_first, |_| all(2));
    assert_eq!(error, VerifyError::Contribution { rank: Rank(0), offset: 0, fault });
    assert_eq!(
        error.to_string(),
        "at byte 0 of the output of rank 0, what rank 1 contributes stands where that of rank 0 belongs"
    );
}

/// Rank 0 combines the messages of the other ranks in the order of `sources`; a rank may send more than once.
fn collected(ranks: u32, sources: &'static [u32]) -> Vec<Program> {
    group(ranks, |builder, rank| {
        if rank > 0 {
            for index in (0u32..).zip(sources).filter(|(_, source)| **source == rank).map(|(index, _)| index) {
                builder.send(Rank(0), index, OURS, &[]);
            }
            return;
        }
        let mut last = builder.copy(OURS, RESULT, &[]);
        for (index, source) in (0u32..).zip(sources) {
            let staged = Span::scratch(u64::from(index) * 8, 8);
            let received = builder.recv(Rank(*source), index, staged, &[]);
            last = builder.reduce(staged, RESULT, false, &[received, last]);
        }
    })
}

/// A combination of `count` ranks is promised to the root; nothing in the output is promised to other ranks.
fn rooted(count: u32) -> impl Fn(Rank) -> Contract {
    move |rank| {
        let promised = all(count);
        if rank.0 == 0 { promised } else { Contract { after: Vec::new(), ..promised } }
    }
}

#[test]
fn missing_repeated_and_strange_contributions_are_told_apart() {
    let fault = |sources, count| match refused(&collected(4, sources), rooted(count)) {
        VerifyError::Contribution { rank: Rank(0), offset: 0, fault } => fault,
        other => panic!("{other}"),
    };
    assert_eq!(fault(&[1, 2], 4), ContributionFault::Missing(Rank(3)));
    assert_eq!(fault(&[1, 2, 2, 3], 4), ContributionFault::Twice(Rank(2)));
    assert_eq!(fault(&[1, 2, 3], 3), ContributionFault::Stranger(Rank(3)));
    assert_eq!(fault(&[2, 1, 3], 4), ContributionFault::Order { found: Rank(2), expected: Rank(1) });
    assert_eq!(ContributionFault::Twice(Rank(2)).to_string(), "what rank 2 contributes is there twice");
}

/// Equal contributions in equal order, but in different pairs: floating-point results would differ.
#[test]
fn pairs_that_differ_between_ranks_are_refused() {
    let programs = group(3, |builder, rank| {
        let others = (0..3).filter(|other| *other != rank).map(Rank);
        let staged = |other: Rank| Span::scratch(u64::from(other.0) * 8, 8);
        let own = builder.copy(OURS, staged(Rank(rank)), &[]);
        let mut ready = vec![own];
        for other in others {
            ready.push(builder.recv(other, 0, staged(other), &[]));
            builder.send(other, 0, OURS, &[]);
        }
        let [a, b, c] = [0, 1, 2].map(|rank| staged(Rank(rank)));
        let combined = if rank < 2 {
            let first = builder.reduce(a, b, true, &ready);
            builder.reduce(b, c, true, &[first])
        } else {
            let first = builder.reduce(b, c, true, &ready);
            builder.reduce(a, c, true, &[first])
        };
        builder.barrier();
        builder.copy(c, RESULT, &[combined]);
    });
    assert_eq!(refused(&programs, |_| all(3)), VerifyError::Differs { rank: Rank(2), other: Rank(1), offset: 0 });
}

/// A group of one that combines its input with a copy of the input.
fn combined_with_itself(from: Span, into: Span) -> Vec<Program> {
    group(1, |builder, _| {
        let copied = builder.copy(OURS, THEIRS, &[]);
        let combined = builder.reduce(from, into, true, &[copied]);
        builder.copy(THEIRS, RESULT, &[combined]);
    })
}

#[test]
fn different_elements_and_parts_of_elements_are_not_combined() {
    let shifted = combined_with_itself(Span::input(4, 4), Span::scratch(0, 4));
    let error = refused(&shifted, |_| all(1));
    assert!(matches!(error, VerifyError::Elements { left: 4, right: 0, .. }), "{error}");
    let cut = combined_with_itself(Span::input(0, 6), Span::scratch(0, 6));
    let error = refused(&cut, |_| all(1));
    assert!(matches!(error, VerifyError::CutsElement { bytes: 4, .. }), "{error}");
}

#[test]
fn result_at_the_wrong_place_or_missing_is_refused() {
    let swapped = group(1, |builder, _| {
        builder.copy(Span::input(0, 4), Span::output(4, 4), &[]);
        builder.copy(Span::input(4, 4), Span::output(0, 4), &[]);
    });
    let error = refused(&swapped, |_| all(1));
    assert_eq!(error, VerifyError::WrongElement { rank: Rank(0), offset: 0, found: 4, expected: 0 });
    let half = group(1, |builder, _| {
        builder.copy(Span::input(0, 4), Span::output(0, 4), &[]);
    });
    assert_eq!(refused(&half, |_| all(1)), VerifyError::Missing { rank: Rank(0), offset: 4 });
    let strayed = group(1, |builder, _| {
        builder.copy(OURS, RESULT, &[]);
    });
    let nothing = |_| Contract { after: Vec::new(), ..all(1) };
    assert_eq!(refused(&strayed, nothing), VerifyError::Stray { rank: Rank(0), offset: 0 });
}

/// A result that arrives over a vector that is still being sent is right unless the call is in place.
#[test]
fn plans_that_are_wrong_in_place_are_refused() {
    let programs = group(2, |builder, rank| {
        if rank == 0 {
            builder.send(Rank(1), 0, OURS, &[]);
            builder.recv(Rank(1), 0, RESULT, &[]);
        } else {
            let received = builder.recv(Rank(0), 0, THEIRS, &[]);
            let combined = builder.reduce(OURS, THEIRS, false, &[received]);
            builder.send(Rank(0), 0, THEIRS, &[combined]);
            builder.copy(THEIRS, RESULT, &[combined]);
        }
    });
    let error = refused(&programs, |_| all(2));
    assert!(matches!(error, VerifyError::Conflict { shared: RESULT, .. }), "{error}");
}

#[test]
fn collectives_that_move_data_do_not_combine() {
    let contract = |_| Contract { element_bytes: None, before: Vec::new(), after: Vec::new(), ..all(1) };
    let error = verify(&exchange(|rank| rank == 0), contract).unwrap_err();
    assert!(matches!(error, VerifyError::ReadsNothing { .. }), "{error}");
    let combines = group(1, |builder, _| {
        builder.reduce(Span::scratch(0, 4), Span::scratch(4, 4), true, &[]);
    });
    let error = verify(&combines, contract).unwrap_err();
    assert!(matches!(error, VerifyError::Combines { .. }), "{error}");
}
