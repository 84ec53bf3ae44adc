//! The closed forms of the cost model, compared with a simulation of the actual programs.

use outboard_plan::selection::{Case, Collective, Cost, Duration, Links, Rate, Tuning};
use outboard_plan::{Arguments, Op, Program, Rank, Span, Step, Topology};
use outboard_plan_tools::{EstimateError, VerifyError, estimate, played, programs};

use crate::support::{choice, group};

/// The largest factor between closed form and simulation, in either direction.
const FACTOR: u128 = 2;

/// Algorithms that the model never chooses: people choose them by name.
const BY_NAME: [&str; 2] = ["pairwise", "scatter-destination"];

fn clusters() -> [Cost; 3] {
    let fast = Cost {
        latency: Duration::nanoseconds(2_000),
        message: Duration::nanoseconds(500),
        control: Duration::nanoseconds(3_000),
        bandwidth: Rate::bits_per_second(100_000_000_000),
        multicast: Some(Rate::bits_per_second(90_000_000_000)),
        copy: Rate::bits_per_second(80_000_000_000),
        reduce: Rate::bits_per_second(40_000_000_000),
    };
    let far = Cost { latency: Duration::nanoseconds(1_000_000), ..Cost::default() };
    [Cost::default(), fast, far]
}

#[test]
fn closed_forms_agree_with_the_programs_played() {
    let [near, fast, far] = clusters().map(|cost| Tuning { cost, ..Tuning::default() });
    let of_model = Collective::ALL.into_iter().flat_map(|c| c.choices().iter().map(move |one| (c, *one)));
    for (collective, choice) in
        of_model.chain(BY_NAME.map(|name| (Collective::Alltoall, choice(Collective::Alltoall, name))))
    {
        let mut count = 0;
        for ranks in [1u32, 2, 3, 4, 5, 8, 12, 16, 31, 32, 64] {
            for hosts in [1, 2, 4, 8, ranks].into_iter().filter(|hosts| *hosts <= ranks && ranks.is_multiple_of(*hosts))
            {
                for bytes in [1, 64, 4 << 10, 64 << 10, 4 << 20] {
                    let case = Case { collective, ranks, hosts, bytes, multicast: true, links: Links::Slow };
                    if programs(&case, choice).is_none() {
                        continue;
                    }
                    for tuning in [&near, &fast, &far] {
                        let closed = tuning.candidate(&case, choice).expect("multicast is there");
                        let play = played(&case, choice, &tuning.cost).expect("there are programs").unwrap();
                        // If vectors have fewer bytes than ranks, most blocks are empty, which the closed forms ignore.
                        let at_most = closed.time.0 <= FACTOR * play.0 || bytes < u64::from(ranks);
                        let near = at_most && play.0 <= FACTOR * closed.time.0;
                        assert!(
                            near,
                            "{case:?} by {choice}: {} in closed form, {play} played, {:?}",
                            closed.time, closed.terms
                        );
                        count += 1;
                    }
                }
            }
        }
        println!("{collective} by {choice}: {count} played");
    }
}

#[test]
fn one_message_takes_what_loggp_says() {
    let cost = clusters()[1];
    let bytes = 1 << 20;
    let all = group(choice(Collective::Broadcast, "binomial"), &Arguments::of(&Topology::flat(2), bytes));
    let wire = u128::from(bytes) * 8 * 10;
    let message = 2 * 500_000 + 2_000_000 + wire;
    assert_eq!(estimate(&all, |rank| rank.0, &cost).unwrap().0, 3_000_000 + message);
    let local = 500_000 + u128::from(bytes) * 100;
    assert_eq!(estimate(&all, |_| 0, &cost).unwrap().0, local);
}

#[test]
fn programs_that_do_not_fit_are_refused() {
    let cost = Cost::default();
    let mut all = group(choice(Collective::Allgather, "ring"), &Arguments::of(&Topology::flat(3), 8));
    let refused = |programs: &[Program]| match estimate(programs, |rank| rank.0, &cost).unwrap_err() {
        EstimateError::Plan(error) => error,
        other => panic!("{other}"),
    };
    assert!(matches!(refused(&all[..2]), VerifyError::Group { .. }));
    let never = Op::Recv { from: Rank(1), index: 77, span: Span::signal() };
    all[0].steps.push(Step { op: never, after: Vec::new() });
    assert!(matches!(refused(&all), VerifyError::Unmatched { .. }));
    let cast: Vec<Program> = group(choice(Collective::Broadcast, "multicast"), &Arguments::of(&Topology::flat(2), 8));
    let none = Cost { multicast: None, ..cost };
    assert!(matches!(estimate(&cast, |rank| rank.0, &none), Err(EstimateError::NoMulticast { .. })));
    assert!(estimate(&cast, |_| 0, &none).is_ok(), "within a host nothing is multicast");
}
