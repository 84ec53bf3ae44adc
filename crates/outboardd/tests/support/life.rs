//! Actions of ranks while daemons, hosts and other ranks end.

use std::collections::VecDeque;
use std::time::Duration;

use outboard::{Context, Group, Status};

use super::scenarios::{check, failed, gather_alone, me, pause, post, print_line, wait_for_death, wait_for_line};

/// A time longer than the silence after which a host counts as dead.
const LONG: Duration = Duration::from_secs(5);
const AT_ONCE: usize = 256;

/// A rank loses its daemon and attaches to the next daemon, while objects of the first attachment still exist.
pub(super) fn reattaches() {
    let first = Context::attach(None).expect("a daemon answers");
    let group = first.create_group(&first.offer().expect("an offer")[..], 1, 0).expect("the group is made");
    pause("ready");
    let error = first.offer().expect_err("it is gone");
    assert_eq!(error.status(), Status::ServiceLost, "{error}");
    let second = Context::attach(None).expect("the next one answers");
    gather_alone(&second);
    drop((group, first));
    gather_alone(&second);
    second.detach().expect("no group is left");
    print_line("done");
}

/// Rank 1 calls only after the daemon was ordered to end.
pub(super) fn drained(group: &Group) {
    let (rank, ranks) = me(group);
    if rank == 1 {
        pause("ready");
    }
    let posted = post(group, 0, 10_000, false);
    if rank == 0 {
        print_line("posted");
    }
    check(posted, ranks);
}

/// Rank 1 never calls, and the daemon is ordered to end.
pub(super) fn given_up(group: &Group) {
    if me(group).0 == 1 {
        print_line("ready");
        return wait_for_line();
    }
    let posted = post(group, 0, 10_000, false);
    print_line("posted");
    let error = failed(posted);
    assert_eq!(error.status(), Status::ServiceLost, "{error}");
    print_line(&error.to_string());
}

/// Keeps as many calls in flight as allowed, until the rank is killed.
pub(super) fn busy(group: &Group) -> ! {
    let (_, ranks) = me(group);
    let mut in_flight = VecDeque::new();
    for call in 0.. {
        in_flight.push_back(post(group, call, 8, false));
        if in_flight.len() == AT_ONCE {
            if call + 1 == AT_ONCE {
                print_line("busy");
            }
            check(in_flight.pop_front().expect("many"), ranks);
        }
    }
    unreachable!("it is killed")
}

/// The last rank is stopped for longer than a host may be silent.
pub(super) fn halted(group: &Group) {
    let (rank, ranks) = me(group);
    check(post(group, 0, 10_000, false), ranks);
    if rank == ranks - 1 {
        pause("ready");
    }
    let mut posted = post(group, 1, 10_000, false);
    if rank < ranks - 1 {
        let ended = posted.request.wait(Some(LONG));
        assert!(ended.is_none(), "a rank that is late is not an error: {ended:?}");
        print_line("waits");
    }
    check(posted, ranks);
}

/// The last two ranks do not call, and end with their host.
pub(super) fn a_host_dies(group: &Group) {
    let (rank, ranks) = me(group);
    check(post(group, 0, 10_000, false), ranks);
    if rank + 2 >= ranks {
        wait_for_death();
    }
    let posted = post(group, 1, 10_000, false);
    print_line("posted");
    let error = failed(posted);
    assert_eq!(error.status(), Status::PeerLost, "{error}");
    pause(&error.to_string());
}
