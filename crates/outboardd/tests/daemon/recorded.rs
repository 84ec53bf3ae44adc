//! Recorded groups and single messages on one host, through the real client library (GP-1, GP-2, GP-5, GP-6).

use crate::support::conformance::{self, Service};
use crate::support::refusable::Calls;
use crate::support::{Daemon, again, rank_at};

/// Calls that the kernel refuses to the daemon, which leaves cross-memory access, the memory descriptor or staging.
const WAYS: [&[Calls]; 3] = [&[], &[Calls::CrossMemory], &[Calls::CrossMemory, Calls::Descriptor]];

/// GP-8, with every tier of memory access (SP-4). With staging, all starts in flight share one copy (GP-9).
#[test]
fn recorded_patterns_are_called_again_and_again() {
    for refused in WAYS {
        let mut daemon = Daemon::start_refusable(again(), &[]);
        refused.iter().for_each(|&calls| daemon.refuse(calls, libc::EPERM));
        conformance::recordings_and_messages(&daemon.into());
    }
}

/// A rank without a descriptor for a recording has no part in it. The next recording of this rank still matches the
/// next recording of the others.
#[test]
fn a_recording_that_fails_counts() {
    let daemon = Daemon::start(&[]);
    rank_at(&daemon.socket(), "unrecorded").finish();
}

/// One thread posts until no request is left, while another thread calls a recording of staged memory (GP-9).
#[test]
fn threads_that_record_and_post_wait_for_one_another_in_one_order() {
    let mut daemon = Daemon::start_refusable(again(), &[]);
    [Calls::CrossMemory, Calls::Descriptor].into_iter().for_each(|calls| daemon.refuse(calls, libc::EPERM));
    rank_at(&daemon.socket(), "posting-threads").finish();
}

#[test]
fn gp_5_a_repeated_call_is_one_message_to_the_service_process() {
    conformance::a_start_is_one_call(&Service::from(Daemon::start(&[])));
}
