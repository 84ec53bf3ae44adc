//! Some ranks are at their limits: meanwhile other ranks that attach, send requests or die are served.

use std::time::{Duration, Instant};

use outboard::{Context, Contribution};

use crate::support::scenarios::LIMIT;
use crate::support::{Daemon, expect_line_from_all, group, ranks};

/// Promised limit on the time to attach; usually attaching takes some milliseconds.
const PROMISED: Duration = Duration::from_secs(5);

/// Attaches, makes a group alone, and leaves; returns the time taken.
fn visit(daemon: &Daemon) -> Duration {
    let began = Instant::now();
    let context = Context::attach(Some(&daemon.socket())).expect("room");
    let group = context.create_group(&context.offer().expect("an offer")[..], 1, 0).expect("the group is made");
    group.destroy().expect("no request is in flight");
    context.detach().expect("no group is left");
    began.elapsed()
}

#[test]
fn busy_ranks_hold_up_nobody() {
    let mut daemon = Daemon::start(&[]);
    let mut busy = ranks("busy", &daemon, 2);
    expect_line_from_all(&mut busy, "busy");
    let visits: Vec<Duration> = (0..20).map(|_| visit(&daemon)).collect();
    println!("attached and left in {visits:?}");
    assert!(visits.iter().all(|visit| *visit < PROMISED), "{visits:?}");
    assert_eq!(daemon.statistics()["ranks"], 2);
    // The remaining rank is busy with failing calls.
    busy[1].kill();
    let killed = Instant::now();
    while daemon.statistics()["ranks"] != 1 && busy.len() == 2 {
        assert!(killed.elapsed() < PROMISED, "a dead rank is not noticed");
        // The remaining rank ends by itself when it gets an error.
        if daemon.statistics()["ranks"] == 0 {
            break;
        }
    }
    busy[0].kill();
    assert!(daemon.stop().success());
}

/// Ranks of one host exchange more bytes than one turn copies, and do not wait for the exchange in the library.
#[test]
fn long_copies_hold_up_nobody() {
    const BLOCK: usize = 256 << 20;
    let mut daemon = Daemon::start(&[]);
    let groups = group(&daemon, 2);
    let sent = [1, 2].map(|byte: u8| vec![byte; BLOCK]);
    let mut received = [0, 1].map(|_| vec![0_u8; 2 * BLOCK]);
    // On a busy machine all bytes may be copied before a visitor comes, so the test tries again. If copies delayed
    // visitors, no visitor would leave during the copies.
    let amid_copies = (0..20).any(|_| {
        received.iter_mut().for_each(|blocks| blocks.fill(0));
        let post = |rank: usize| {
            let at = Contribution::At(sent[rank].as_ptr());
            // SAFETY: the buffers outlive the wait for the request's end.
            unsafe { groups[rank].iallgather(at, received[rank].as_mut_ptr(), BLOCK as u64) }.expect("posted")
        };
        let mut requests = [0, 1].map(post);
        let mut left = 0;
        while requests.iter_mut().any(|request| request.test().is_none()) {
            left += 1;
            visit(&daemon);
        }
        for request in &mut requests {
            request.wait(Some(LIMIT)).expect("it ends").expect("it succeeds");
        }
        for blocks in &received {
            assert!(blocks[..BLOCK].iter().all(|byte| *byte == 1) && blocks[BLOCK..].iter().all(|byte| *byte == 2));
        }
        // The first visitor may have left before the copies, and the last visitor after them.
        left > 2
    });
    assert!(amid_copies, "nobody attaches and leaves while {BLOCK} bytes are copied four times");
    drop(groups);
    assert!(daemon.stop().success());
}
