//! Operators of the program, by the Rust interface.

use crate::rank::world;
use crate::service::{Behaviour, FakeService, Reach};
use outboard::{
    Context, Contribution, Element, Error, Group, Operator, Reduction, ReductionOperator, ReductionOutcome, Request,
    Status, UserOperator,
};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A 2x2 matrix by rows. Products wrap, are associative, and do not commute.
type Matrix = [u32; 4];

const BYTES: usize = size_of::<Matrix>();
const UNTOUCHED: Matrix = [0xeeee_eeee; 4];

fn product(left: Matrix, right: Matrix) -> Matrix {
    let cell = |row: usize, column: usize| {
        let term = |at: usize| left[2 * row + at].wrapping_mul(right[2 * at + column]);
        term(0).wrapping_add(term(1))
    };
    [cell(0, 0), cell(0, 1), cell(1, 0), cell(1, 1)]
}

fn matrices(bytes: &[u8]) -> Vec<Matrix> {
    let cell = |bytes: &[u8; 4]| u32::from_ne_bytes(*bytes);
    bytes.as_chunks::<BYTES>().0.iter().map(|one| std::array::from_fn(|at| cell(&one.as_chunks().0[at]))).collect()
}

fn write(matrices: &[Matrix], bytes: &mut [u8]) {
    let all = matrices.as_flattened().iter().flat_map(|cell| cell.to_ne_bytes());
    bytes.iter_mut().zip(all).for_each(|(place, byte)| *place = byte);
}

fn products() -> UserOperator {
    let combine = |left: &[u8], right: &mut [u8]| {
        assert_eq!(left.len(), right.len());
        let pairs = matrices(left).into_iter().zip(matrices(right));
        let combined: Vec<Matrix> = pairs.map(|(left, right)| product(left, right)).collect();
        write(&combined, right);
    };
    UserOperator::new(BYTES, combine).unwrap()
}

/// The contribution of `rank` at `at`.
fn matrix(rank: usize, at: usize) -> Matrix {
    let seed = (rank * 7919 + at * 31) as u32;
    [seed | 1, seed + 2, 3, seed ^ 5]
}

fn vector(rank: usize, length: usize) -> Vec<Matrix> {
    (0..length).map(|at| matrix(rank, at)).collect()
}

/// An operator on matrices, the number of its elements in a matrix, and the reference function.
type Combines = (ReductionOperator, u64, fn(Matrix, Matrix) -> Matrix);

/// An operator of the service process that sums the cells of matrices one by one.
pub(crate) fn sums() -> Combines {
    let sum = Reduction::new(Operator::Sum, Element::U32).unwrap();
    (sum.into(), 4, |left, right| std::array::from_fn(|at| left[at].wrapping_add(right[at])))
}

/// Posts a reduction with every outcome on all ranks, out of place and, if possible, in place; compares results.
pub(crate) fn all_outcomes(world: &[(Context, Group)], count: usize, (combination, elements, combine): &Combines) {
    let ranks = world.len();
    let lengths: Vec<usize> = (0..ranks).map(|rank| rank % 3 * count).collect();
    let counts: Vec<u64> = lengths.iter().map(|length| *length as u64 * elements).collect();
    let start = |rank: usize| lengths[..rank].iter().sum::<usize>();
    let (root, some) = (ranks / 2, count as u64 * elements);
    let outcomes = [
        ReductionOutcome::Reduce { root: root as u32, count: some },
        ReductionOutcome::Allreduce { count: some },
        ReductionOutcome::ReduceScatter { counts: &counts },
        ReductionOutcome::ReduceScatterBlock { count: some },
        ReductionOutcome::Scan { count: some, inclusive: true },
        ReductionOutcome::Scan { count: some, inclusive: false },
    ];
    for (outcome, in_place) in outcomes.into_iter().flat_map(|outcome| [(outcome, false), (outcome, true)]) {
        let mut posted = Vec::new();
        for (me, (_, group)) in world.iter().enumerate() {
            let (length, part, members) = match outcome {
                ReductionOutcome::Reduce { .. } => (count, 0..if me == root { count } else { 0 }, ranks),
                ReductionOutcome::Allreduce { .. } => (count, 0..count, ranks),
                ReductionOutcome::ReduceScatter { .. } => (start(ranks), start(me)..start(me) + lengths[me], ranks),
                ReductionOutcome::ReduceScatterBlock { .. } => (count * ranks, me * count..(me + 1) * count, ranks),
                ReductionOutcome::Scan { inclusive: true, .. } => (count, 0..count, me + 1),
                ReductionOutcome::Scan { inclusive: false, .. } => (count, 0..if me == 0 { 0 } else { count }, me),
            };
            let combined = |at| (1..members).fold(matrix(0, at), |left, rank| combine(left, matrix(rank, at)));
            let mut expected: Vec<Matrix> = part.map(combined).collect();
            let send = vector(me, length);
            let in_place = in_place && !(matches!(outcome, ReductionOutcome::Reduce { .. }) && me != root);
            let mut receive = if in_place { send.clone() } else { vec![UNTOUCHED; length] };
            expected.extend_from_slice(&receive[expected.len()..]);
            let from = if in_place { Contribution::InPlace } else { Contribution::At(send.as_ptr().cast()) };
            // SAFETY: the buffers are kept until the requests have ended.
            let request =
                unsafe { group.ireduction(outcome, combination.clone(), from, receive.as_mut_ptr().cast()) }.unwrap();
            posted.push((request, send, receive, expected));
        }
        for (me, (mut request, send, receive, expected)) in posted.into_iter().enumerate() {
            assert_eq!(request.wait(None), Some(Ok(())));
            assert_eq!(request.test(), Some(Ok(())), "the request stays valid");
            assert!(receive == expected, "{outcome:?} of rank {me} of {ranks}, in place: {in_place}");
            assert!(send == vector(me, send.len()), "what is sent is left alone");
        }
    }
}

/// TH-2: an operator that does not commute, on groups of every size, with memory that the service process can access or
/// not.
#[test]
fn matrix_products_combine_in_rank_order() {
    for reach in [Reach::All, Reach::None] {
        let service = FakeService::start(Behaviour { reach, ..Behaviour::default() });
        for ranks in 1..=6 {
            let world = world(&service, ranks);
            let combines = (ReductionOperator::from(&products()), 1, product as fn(_, _) -> _);
            [0, 1, 100, 5000].into_iter().for_each(|count| all_outcomes(&world, count, &combines));
        }
    }
}

/// Sums that round have the bits of a sum from the left in the order of ranks, whatever arrives first.
#[test]
fn rounding_sums_match_rank_order_bit_for_bit() {
    let service = FakeService::start(Behaviour::default());
    let world = world(&service, 5);
    let number = |rank: usize, at: usize| f64::from((at * 7 + rank) as u32) * 10f64.powi((rank * 5 % 7) as i32) / 3.0;
    let add = |left: &[u8], right: &mut [u8]| {
        for (left, right) in left.as_chunks::<8>().0.iter().zip(right.as_chunks_mut::<8>().0) {
            *right = (f64::from_ne_bytes(*left) + f64::from_ne_bytes(*right)).to_ne_bytes();
        }
    };
    let operator = UserOperator::new(8, add).unwrap();
    let count = 1000;
    let fold = |at: usize, mut ranks: Box<dyn Iterator<Item = usize>>| {
        let first = number(ranks.next().unwrap(), at);
        ranks.fold(first, |sum, rank| sum + number(rank, at)).to_bits()
    };
    let expected: Vec<u64> = (0..count).map(|at| fold(at, Box::new(0..5))).collect();
    let reversed: Vec<u64> = (0..count).map(|at| fold(at, Box::new((0..5).rev()))).collect();
    assert!(expected != reversed, "the numbers round");
    for first in 0..5 {
        let bytes = |rank| (0..count).flat_map(|at| number(rank, at).to_ne_bytes()).collect::<Vec<u8>>();
        let mut posted: Vec<_> = (0..5).map(|rank| (bytes(rank), vec![0u64; count], None::<Request>)).collect();
        for turn in 0..5 {
            let rank = (first + turn) % 5;
            let (send, receive, request) = &mut posted[rank];
            let (outcome, from) =
                (ReductionOutcome::Allreduce { count: count as u64 }, Contribution::At(send.as_ptr()));
            let to = receive.as_mut_ptr().cast();
            // SAFETY: the buffers are kept until the requests have ended.
            *request = Some(unsafe { world[rank].1.ireduction(outcome, &operator, from, to) }.unwrap());
        }
        for (_, receive, request) in &mut posted {
            assert_eq!(request.as_mut().unwrap().wait(None), Some(Ok(())));
            assert!(*receive == expected, "rank {first} posted first");
        }
    }
    // The blocking form, on one rank.
    let alone = crate::rank::world(&service, 1);
    let (send, mut receive) = ([1u8; 16], [0; 16]);
    alone[0].1.allreduce(&operator, &send, &mut receive).unwrap();
    assert_eq!(send, receive);
    assert!(alone[0].1.allreduce(&operator, &send[1..], &mut receive[1..]).is_err(), "it ends within an element");
}

/// An operator, and a weak reference that shows whether anything still holds the operator.
fn watched() -> (UserOperator, Weak<()>) {
    let held = Arc::new(());
    let watch = Arc::downgrade(&held);
    let combine = move |_: &[u8], right: &mut [u8]| {
        let _kept = &held;
        right.fill(7);
    };
    (UserOperator::new(1, combine).unwrap(), watch)
}

/// Posts an allreduce of 64 bytes on all ranks.
fn post(world: &[(Context, Group)], operator: &UserOperator, receives: &mut [[u8; 64]]) -> Vec<Request> {
    static SEND: [u8; 64] = [1; 64];
    let from = Contribution::At(SEND.as_ptr());
    let one = |((_, group), receive): (&(Context, Group), &mut [u8; 64])| {
        // SAFETY: every test keeps its buffers until its requests have ended.
        unsafe { group.ireduction(ReductionOutcome::Allreduce { count: 64 }, operator, from, receive.as_mut_ptr()) }
            .unwrap()
    };
    world.iter().zip(receives).map(one).collect()
}

#[test]
fn failed_reduction_returns_its_status_and_releases_the_operator() {
    let failing = Some((Status::RankLost, "rank 1 died"));
    let service = FakeService::start(Behaviour { failing, ..Behaviour::default() });
    let world = world(&service, 2);
    let (operator, watch) = watched();
    let mut receives = [[0; 64]; 2];
    let mut requests = post(&world, &operator, &mut receives);
    drop(operator);
    for request in &mut requests {
        assert_eq!(request.wait(None).unwrap().unwrap_err().status(), Status::RankLost);
    }
    assert!(watch.upgrade().is_none(), "ended requests hold no operator");
    assert_eq!(receives, [[0; 64]; 2], "nothing was combined");
}

#[test]
fn lost_service_process_releases_the_operator() {
    let service = FakeService::start(Behaviour { holding: true, ..Behaviour::default() });
    let world = world(&service, 2);
    let (operator, watch) = watched();
    let mut receives = [[0; 64]; 2];
    let mut requests = post(&world, &operator, &mut receives);
    drop((service, operator));
    for request in &mut requests {
        assert_eq!(request.wait(None).unwrap().unwrap_err().status(), Status::ServiceLost);
    }
    assert!(watch.upgrade().is_none(), "ended requests hold no operator");
}

/// The collective of a dropped request goes on; destroying the group sees its end and combines.
#[test]
fn dropped_request_still_combines() {
    let service = FakeService::start(Behaviour { holding: true, ..Behaviour::default() });
    let world = world(&service, 2);
    let (operator, watch) = watched();
    let mut receives = [[0; 64]; 2];
    drop((post(&world, &operator, &mut receives), operator));
    assert!(watch.upgrade().is_some(), "the collective goes on");
    service.release();
    drop(world);
    assert!(watch.upgrade().is_none());
    assert_eq!(receives, [[7; 64]; 2]);
}

/// Destroying the group gives back all buffers, also if requests are still held: nothing is written later.
#[test]
fn destroyed_group_writes_no_buffer_later() {
    for reach in [Reach::All, Reach::None] {
        let service = FakeService::start(Behaviour { reach, ..Behaviour::default() });
        let world = world(&service, 2);
        let (operator, watch) = watched();
        let (mut combined, mut gathered) = ([[0; 64]; 2], [[0; 64]; 2]);
        let mut requests = post(&world, &operator, &mut combined);
        for ((_, group), receive) in world.iter().zip(&mut gathered) {
            requests.push(crate::rank::post(group, &[5; 32], receive).unwrap());
        }
        drop(operator);
        world.into_iter().for_each(|(_, group)| group.destroy().unwrap());
        assert!(watch.upgrade().is_none());
        assert_eq!((combined, gathered), ([[7; 64]; 2], [[5; 64]; 2]));
        (combined, gathered) = ([[0; 64]; 2], [[0; 64]; 2]);
        for request in &mut requests {
            assert_eq!(request.wait(None), Some(Ok(())), "its result stays");
        }
        drop(requests);
        assert_eq!((combined, gathered), ([[0; 64]; 2], [[0; 64]; 2]));
    }
}

/// A request whose wait times out combines nothing yet; an operator that panics fails only its own request.
#[test]
fn panicking_operator_fails_its_request() {
    let service = FakeService::start(Behaviour { holding: true, ..Behaviour::default() });
    let world = world(&service, 2);
    let (kind, _) = watched();
    let wild = UserOperator::new(1, |_, _| panic!("of the operator")).unwrap();
    let mut receives = [[[0; 64]; 2]; 2];
    let [first, second] = &mut receives;
    let (mut failing, mut fine) = (post(&world, &wild, first), post(&world, &kind, second));
    assert_eq!(failing[0].wait(Some(Duration::from_millis(1))), None);
    service.release();
    for (failing, fine) in failing.iter_mut().zip(&mut fine) {
        let error = failing.wait(None).unwrap().unwrap_err();
        assert!(
            matches!(&error, Error::Argument { argument: "op", problem } if problem.contains("panicked")),
            "{error}"
        );
        assert_eq!(failing.test(), Some(Err(error)), "it stays so");
        assert_eq!(fine.wait(None), Some(Ok(())));
    }
    assert_eq!(receives, [[[0; 64]; 2], [[7; 64]; 2]]);
}

#[test]
fn wrong_arguments_of_operators_are_named() {
    let none = UserOperator::new(0, |_, _| ()).unwrap_err().to_string();
    assert!(none.contains("`element_bytes` is 0"), "{none}");
    let service = FakeService::start(Behaviour::default());
    let world = world(&service, 2);
    let operator = products();
    let mut memory = UNTOUCHED;
    let (at, null) = (memory.as_mut_ptr().cast::<u8>(), std::ptr::null_mut());
    let refused = |rank: usize, outcome: ReductionOutcome<'_>, from: Contribution, to: *mut u8, problem: &str| {
        // SAFETY: the call is rejected before any buffer is touched.
        let error = unsafe { world[rank].1.ireduction(outcome, &operator, from, to) }.unwrap_err();
        assert!(error.to_string().contains(problem), "{error}");
    };
    let one = ReductionOutcome::Allreduce { count: 1 };
    refused(0, ReductionOutcome::Reduce { root: 2, count: 1 }, Contribution::At(at), at, "`root` is 2");
    refused(0, ReductionOutcome::Reduce { root: 1, count: 1 }, Contribution::InPlace, at, "rank 1, alone");
    refused(0, one, Contribution::At(null), at, "`send` is NULL");
    refused(0, one, Contribution::At(at), null, "`receive` is NULL");
    refused(
        0,
        ReductionOutcome::Scan { count: u64::MAX / 16, inclusive: true },
        Contribution::At(at),
        at,
        "more than the address space",
    );
    refused(
        0,
        ReductionOutcome::ReduceScatter { counts: &[1] },
        Contribution::At(at),
        at,
        "1 entries: the group has 2 ranks",
    );
    refused(
        1,
        ReductionOutcome::Allreduce { count: 1 << 58 },
        Contribution::At(at),
        at,
        "no memory for 2 contributions",
    );
}
