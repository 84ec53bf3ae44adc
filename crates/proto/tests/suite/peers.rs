//! Service processes that are remembered, and the messages that they get.

use std::collections::BTreeSet;
use std::ops::RangeFrom;
use std::time::Duration;

use outboard_plan::{Program, ProgramBuilder, Rank, Span};
use outboard_proto::wire::{FrameHeader, GroupMessage, InstanceMessage, Message};
use outboard_proto::{
    CallId, CallKind, CollectiveError, Config, Endpoint, Event, GroupError, GroupHandle, GroupRefusal, GroupSpec,
    InstanceId, Instant, OfferId, RankCall, RecordError, Recording, Signature, SpId, TaggedCall, Transmit,
};

use crate::support::{self, frame};

const HERE: u64 = 10;
/// The bytes of a frame that hold the number of the receiving end.
const TO: std::ops::Range<usize> = 8..12;
/// The bytes of a frame that hold the acknowledgement.
const ACK: std::ops::Range<usize> = 16..20;

fn of(spec: &GroupSpec, body: GroupMessage) -> Message {
    Message::Group { group: spec.handle, body }
}

/// A step of a group's barrier.
fn step(spec: &GroupSpec, step: u8, config: &Config) -> Message {
    of(spec, GroupMessage::Create { step, digest: config.digest(), fingerprint: spec.fingerprint() })
}

/// The rank of another service process leaves before the first call.
fn leaves(spec: &GroupSpec, rank: Rank) -> Message {
    of(spec, GroupMessage::Lost { rank, after: InstanceId(0), cause: rank })
}

/// Returns all messages sent at `now`, and all events.
fn drive(here: &mut Endpoint, now: Instant) -> (Vec<(SpId, Message)>, Vec<Event>) {
    here.handle_timeout(now);
    let events = std::iter::from_fn(|| here.poll_event()).collect();
    let frames = std::iter::from_fn(|| here.poll_transmit(now)).filter_map(|transmit| match transmit {
        Transmit::Frame { to, header, .. } => {
            let (_, body) = FrameHeader::decode(&header, 0).expect("our own frames");
            Message::decode(body).ok().map(|message| (to, message))
        }
        Transmit::Multicast(_) => None,
    });
    (frames.collect(), events)
}

/// Each group has another service process, and each time a peer sends that is in no group here.
#[test]
fn idle_peers_beyond_the_limit_are_evicted() {
    let config = Config { idle_peers: 20, ..Config::default() };
    let mut here = Endpoint::new(SpId(HERE), config.clone(), 1);
    let (mut now, mut disconnected) = (Instant(1), 0);
    for other in 100..200 {
        let spec = GroupSpec { handle: GroupHandle(other as u32), ..support::spec(&[HERE, other]) };
        here.handle_create_group(now, &spec, Rank(0));
        drive(&mut here, now);
        here.handle_frame(now, SpId(other), &frame(0, &step(&spec, 0, &config), 0), 0);
        here.handle_frame(now, SpId(other), &frame(1, &leaves(&spec, Rank(1)), 0), 0);
        assert!(drive(&mut here, now).1.contains(&Event::GroupReady {
            group: spec.handle,
            rank: Rank(0),
            result: Ok(())
        }));
        here.handle_leave(now, spec.handle, Rank(0));
        let stranger = SpId(other + 1000);
        here.handle_frame(now, stranger, &frame(0, &Message::Void, 0), 0);
        // First acknowledgements leave. Then the time ends in which a peer may need an answer.
        for after in [Duration::from_secs(1), config.dead_after] {
            now = now + after;
            let (_, events) = drive(&mut here, now);
            disconnected += events.iter().filter(|event| matches!(event, Event::Disconnect { .. })).count();
        }
    }
    assert_eq!((here.load(), here.peers(), disconnected), ((0, 0, 0), 20, 90), "the last twenty");
}

/// One of three service processes has no rank in the group any more.
#[test]
fn members_whose_ranks_have_left_receive_no_more_messages() {
    let config = Config::default();
    let mut here = Endpoint::new(SpId(HERE), config.clone(), 1);
    let spec = support::spec(&[HERE, 11, 12]);
    let now = Instant(1);
    here.handle_create_group(now, &spec, Rank(0));
    here.handle_frame(now, SpId(12), &frame(0, &step(&spec, 0, &config), 0), 0);
    here.handle_frame(now, SpId(11), &frame(0, &step(&spec, 1, &config), 0), 0);
    here.handle_frame(now, SpId(11), &frame(1, &leaves(&spec, Rank(1)), 0), 0);
    drive(&mut here, now);
    // The loss of that member does not affect the group.
    here.handle_peer_lost(now, SpId(11));
    assert_eq!(here.load().0, 1);
    here.handle_leave(now, spec.handle, Rank(0));
    let (sent, _) = drive(&mut here, now);
    let left = GroupMessage::Lost { rank: Rank(0), after: InstanceId(0), cause: Rank(1) };
    assert_eq!(sent, [(SpId(12), of(&spec, left))], "the first loss is named");
}

/// A member that keeps sending `RequestStep` and acknowledges nothing is lost before its answers are too many.
#[test]
fn a_member_that_acknowledges_nothing_is_lost() {
    let config = Config::default();
    let mut here = Endpoint::new(SpId(HERE), config.clone(), 1);
    let spec = support::spec(&[HERE, 11]);
    let mut now = Instant(1);
    here.handle_create_group(now, &spec, Rank(0));
    here.handle_frame(now, SpId(11), &frame(0, &step(&spec, 0, &config), 0), 0);
    drive(&mut here, now);
    let inquire = of(&spec, GroupMessage::Instance { instance: InstanceId(1), body: InstanceMessage::Inquire });
    let lost = (1..=200_000).find(|seq| {
        now = now + Duration::from_micros(100);
        let mut asked = frame(*seq, &inquire, 0);
        asked[ACK].fill(0);
        here.handle_frame(now, SpId(11), &asked, 0);
        let (_, events) = if seq % 100 == 0 { drive(&mut here, now) } else { Default::default() };
        events.contains(&Event::Disconnect { peer: SpId(11) })
    });
    assert!(lost.is_some(), "{:?}", here.load());
}

/// A peer was silent for too long for an older group, but a newer group with the peer continues. Messages of the newer
/// group use the same link, so that the peer receives none of them twice.
#[test]
fn link_is_kept_for_a_recently_requested_group() {
    let config = Config::default();
    let mut here = Endpoint::new(SpId(HERE), config.clone(), 1);
    let old = support::spec(&[HERE, 11]);
    let young = GroupSpec { handle: GroupHandle(8), ..old.clone() };
    let start = Instant(1);
    here.handle_create_group(start, &old, Rank(0));
    here.handle_frame(start, SpId(11), &frame(0, &step(&old, 0, &config), 0), 0);
    drive(&mut here, start);
    here.handle_create_group(start + config.dead_after / 2, &young, Rank(0));
    let end = start + config.dead_after;
    here.handle_timeout(end);
    let mut said = Vec::new();
    while let Some(Transmit::Frame { header, .. }) = here.poll_transmit(end) {
        let (header, body) = FrameHeader::decode(&header, 0).expect("our own frames");
        assert_eq!((header.link, header.seq), (1, said.len() as u32), "of the first link, each message once");
        said.push(Message::decode(body).expect("our own messages"));
    }
    let error = CollectiveError::PeerLost { sp: SpId(11), rank: Rank(1) };
    assert!(said.contains(&of(&old, GroupMessage::Abort { fingerprint: old.fingerprint(), error })), "{said:?}");
    let young = young.handle;
    let asks =
        |m: &Message| matches!(m, Message::Group { group, body: GroupMessage::RequestStep { .. } } if *group == young);
    assert_eq!(said.iter().filter(|m| asks(m)).count(), 1, "what is still on its way is not asked again: {said:?}");
}

/// This end has given up a link, but the peer has not. The peer sends a `RequestStep` for a rank that is gone over this
/// link, and gets an answer.
#[test]
fn step_request_over_a_stale_link_is_answered() {
    let mut here = Endpoint::new(SpId(HERE), Config::default(), 1);
    let (spec, offer, now) = (support::spec(&[HERE, 11]), OfferId(HERE), Instant(1));
    here.handle_offer(offer);
    here.handle_offer_withdrawn(now, offer, None);
    let (fingerprint, offers) = (spec.fingerprint(), vec![(Rank(0), offer)]);
    let ask = of(&spec, GroupMessage::RequestStep { fingerprint, address: [11].into(), offers });
    let mut asked = frame(3, &ask, 0);
    asked[TO].fill(5);
    here.handle_frame(now, SpId(11), &asked, 0);
    let refuse = of(&spec, GroupMessage::Refuse { fingerprint, error: CollectiveError::RankLost(Rank(0)) });
    assert_eq!(drive(&mut here, now).0, [(SpId(11), refuse)]);
}

/// Requests a group with these service processes. Returns whether there was room for them.
fn meets(here: &mut Endpoint, now: Instant, number: u32, others: &[u64]) -> bool {
    let members: Vec<u64> = [HERE].into_iter().chain(others.iter().copied()).collect();
    let spec = GroupSpec { handle: GroupHandle(number), ..support::spec(&members) };
    here.handle_create_group(now, &spec, Rank(0));
    let (_, events) = drive(here, now);
    let refused = GroupError::Failed(CollectiveError::Refused { rank: Rank(0), why: GroupRefusal::Peers });
    !events.iter().any(|event| matches!(event, Event::GroupReady { result: Err(error), .. } if *error == refused))
}

#[test]
fn a_group_beyond_the_limit_of_peers_is_refused() {
    let mut here = Endpoint::new(SpId(HERE), Config { peers: 4, ..Config::default() }, 1);
    let now = Instant(1);
    assert!(meets(&mut here, now, 1, &[100, 101, 102]));
    assert!(!meets(&mut here, now, 2, &[102, 103, 104]), "two new ones, and room for one");
    assert!(meets(&mut here, now, 3, &[102, 103]));
    assert!(meets(&mut here, now, 4, &[100, 103]), "peers that are known take no more room");
}

#[test]
fn without_a_descriptor_for_a_peer_this_end_is_named_to_all() {
    let mut here = Endpoint::new(SpId(HERE), Config::default(), 1);
    let (now, spec) = (Instant(1), support::spec(&[11, HERE, 12]));
    here.handle_create_group(now, &spec, Rank(1));
    here.handle_no_descriptors(now, SpId(12));
    let error = CollectiveError::Refused { rank: Rank(1), why: GroupRefusal::Descriptors };
    let (sent, events) = drive(&mut here, now);
    let abort = of(&spec, GroupMessage::Abort { fingerprint: spec.fingerprint(), error: error.clone() });
    assert!(sent.contains(&(SpId(11), abort)), "{sent:?}");
    let refused = Event::GroupReady { group: spec.handle, rank: Rank(1), result: Err(GroupError::Failed(error)) };
    assert!(events.contains(&refused), "{events:?}");
}

/// Past service processes, and peers that are not needed any more, take no room.
#[test]
fn members_of_groups_that_were_left_leave_room() {
    let config = Config { peers: 8, ..Config::default() };
    let mut here = Endpoint::new(SpId(HERE), config.clone(), 1);
    let mut now = Instant(1);
    for number in 1..20_u32 {
        let others: Vec<u64> = (0..4).map(|at| u64::from(100 * number + at)).collect();
        assert!(meets(&mut here, now, number, &others), "group {number}");
        here.handle_leave(now, GroupHandle(number), Rank(0));
        now = now + config.dead_after + Duration::from_secs(1);
        here.handle_timeout(now);
        drive(&mut here, now);
    }
}

/// Memory of groups and recordings is freed with them.
#[test]
fn groups_and_recordings_beyond_the_quota_are_refused() {
    let tables_quota = 16 << 10;
    let mut here = Endpoint::new(SpId(HERE), Config { tables_quota, ..Config::default() }, 1);
    let now = Instant(1);
    let group = |number: u32, ranks: usize| {
        let others = (1..ranks as u64).map(|at| 1000 * u64::from(number) + at);
        let members: Vec<u64> = [HERE].into_iter().chain(others).collect();
        GroupSpec { handle: GroupHandle(number), ..support::spec(&members) }
    };
    let ask = |here: &mut Endpoint, spec: &GroupSpec| {
        here.handle_create_group(now, spec, Rank(0));
        drive(here, now).1
    };
    let refused = GroupError::Failed(CollectiveError::Refused { rank: Rank(0), why: GroupRefusal::Tables });
    let is_refused = |events: &[Event]| {
        events.iter().any(|event| matches!(event, Event::GroupReady { result: Err(error), .. } if *error == refused))
    };
    assert!(!is_refused(&ask(&mut here, &group(1, 40))));
    assert!(is_refused(&ask(&mut here, &group(2, 40))), "two of forty members are more than 16 KiB");
    here.handle_leave(now, GroupHandle(1), Rank(0));
    drive(&mut here, now);
    assert!(!is_refused(&ask(&mut here, &group(3, 1))), "room again");
    let recording = |steps: usize| {
        let mut builder = ProgramBuilder::new(Rank(0), 1);
        for at in 0..steps as u64 {
            builder.copy(Span::output(16 * at, 8), Span::output(16 * at + 8, 8), &[]);
        }
        let program = Program { output_bytes: 16 * steps as u64, ..builder.build() };
        Recording { program: program.into(), reductions: Vec::new() }
    };
    assert_eq!(here.handle_record(GroupHandle(3), Rank(0), 1, recording(60)), Ok(()));
    assert_eq!(here.handle_record(GroupHandle(3), Rank(0), 2, recording(60)), Err(RecordError::Quota));
    assert!(here.handle_free(GroupHandle(3), Rank(0), 1));
    assert_eq!(here.handle_record(GroupHandle(3), Rank(0), 2, recording(60)), Ok(()));
    let call = TaggedCall::Recorded { recording: 2 };
    let signature = Signature { kind: CallKind::Tagged(call), bytes: 960 };
    here.handle_call(now, RankCall { group: GroupHandle(3), ..support::call(1, 0, 0, signature) });
    here.handle_memory_fault(now, CallId(1));
    here.handle_create_group(now, &group(5, 40), Rank(0));
    assert!(is_refused(&drive(&mut here, now).1), "a broken group's recording counts, as its rank has not freed it");
    assert!(here.handle_free(GroupHandle(3), Rank(0), 2), "its call has ended with the group");
    assert_eq!(here.handle_record(GroupHandle(3), Rank(0), 3, recording(60)), Ok(()), "all of what it took");
    here.handle_leave(now, GroupHandle(3), Rank(0));
    drive(&mut here, now);
    assert!(!is_refused(&ask(&mut here, &group(4, 40))), "all of it");
}

fn spec_of_three(number: u32) -> GroupSpec {
    GroupSpec { handle: GroupHandle(number), ..support::spec(&[HERE, 11, 12]) }
}

/// Makes a group of three service processes. First the groups with the numbers in `broken` break.
fn three_meet(here: &mut Endpoint, config: &Config, number: u32, seq: &mut RangeFrom<u32>, broken: &[u32]) {
    let (now, spec) = (Instant(1), spec_of_three(number));
    let aborts = broken.iter().map(|number| {
        let spec = spec_of_three(*number);
        let (fingerprint, error) = (spec.fingerprint(), CollectiveError::RankLost(Rank(1)));
        of(&spec, GroupMessage::Abort { fingerprint, error })
    });
    here.handle_create_group(now, &spec, Rank(0));
    for message in aborts.chain([step(&spec, 1, config)]) {
        here.handle_frame(now, SpId(11), &frame(seq.next().expect("many"), &message, 0), 0);
    }
    here.handle_frame(now, SpId(12), &frame(number - 1, &step(&spec, 0, config), 0), 0);
    drive(here, now);
}

/// Rank 0 of a group of three calls. Returns the error if the call failed.
fn call_of_three(
    here: &mut Endpoint,
    id: u64,
    number: u32,
    instance: u64,
    signature: Signature,
) -> Option<CollectiveError> {
    let group = GroupHandle(number);
    here.handle_call(Instant(1), RankCall { group, ..support::call(id, 0, instance, signature) });
    while here.poll_order().is_some() {}
    let told = drive(here, Instant(1)).1.into_iter();
    told.filter_map(|event| if let Event::Completed { result, .. } = event { result.err() } else { None }).next()
}

fn is_out_of_room(error: Option<CollectiveError>) -> bool {
    matches!(error, Some(CollectiveError::Staging { rank: Rank(0), .. }))
}

/// The bitmap of a block's chunks is freed at the end of the call.
#[test]
fn chunks_of_blocks_count_to_the_quota() {
    let config = Config { tables_quota: 2 << 20, ..Config::default() };
    let mut here = Endpoint::new(SpId(HERE), config.clone(), 1);
    let mut seq = 0..;
    let mut gather = |number: u32, chunks: u64, broken: &[u32]| {
        three_meet(&mut here, &config, number, &mut seq, broken);
        let signature = Signature { kind: CallKind::Allgather, bytes: chunks * u64::from(config.chunk_bytes) };
        call_of_three(&mut here, number.into(), number, 1, signature)
    };
    assert!(is_out_of_room(gather(1, 1 << 24, &[])));
    assert_eq!(gather(2, 1 << 16, &[]), None);
    assert!(is_out_of_room(gather(3, 1 << 16, &[])), "two at once");
    (4..12).for_each(|number| assert_eq!(gather(number, 1 << 16, &[number - 2, number - 1]), None, "group {number}"));
}

#[test]
fn programs_of_calls_in_flight_count_to_the_quota() {
    let config = Config { tables_quota: 64 << 10, ..Config::default() };
    let mut here = Endpoint::new(SpId(HERE), config.clone(), 1);
    let (mut seq, mut ids) = (0.., 0..);
    for (round, kind) in [CallKind::Allgather, CallKind::Alltoall, CallKind::Allgather].into_iter().enumerate() {
        let number = round as u32 + 1;
        let before: Vec<u32> = (1..number).rev().take(1).collect();
        three_meet(&mut here, &config, number, &mut seq, &before);
        let signature = Signature { kind, bytes: 20 << 10 };
        let mut call = |instance| call_of_three(&mut here, ids.next().expect("many"), number, instance, signature);
        let refused = (1..1000).map(|instance| (instance, call(instance))).find(|(_, error)| error.is_some());
        let (calls, error) = refused.expect("they do not fit all");
        assert!(is_out_of_room(error) && (10..200).contains(&calls), "{calls} calls");
    }
}

/// The first group of three is made; the second member's frames are numbered from `seq` on.
fn three_have_met() -> (Endpoint, GroupSpec, RangeFrom<u32>) {
    let (config, mut seq) = (Config::default(), 0..);
    let mut here = Endpoint::new(SpId(HERE), config.clone(), 1);
    three_meet(&mut here, &config, 1, &mut seq, &[]);
    (here, spec_of_three(1), seq)
}

fn fails_after(spec: &GroupSpec, after: u64, cause: Rank) -> Message {
    of(spec, GroupMessage::Failures { fingerprint: spec.fingerprint(), after: InstanceId(after), cause })
}

/// A lost link loses the news of a loss, or of the group's end. A member that waits long queries the other members.
#[test]
fn failure_query_is_answered_with_the_lost_rank() {
    let (mut here, spec, mut seq) = three_have_met();
    let (other, waiting, now, mut number) = (SpId(11), SpId(12), Instant(1), 0);
    let mut told = |said: Message, waits_for: &[(u64, u64)]| {
        here.handle_frame(now, other, &frame(seq.next().expect("many"), &said, 0), 0);
        for &(fingerprint, instance) in waits_for {
            number += 1;
            let waits =
                of(&spec, GroupMessage::QueryFailures { fingerprint, newest: InstanceId(instance), oldest: None });
            here.handle_frame(now, waiting, &frame(number, &waits, 0), 0);
        }
        let of_group = |(to, message)| (to == waiting && matches!(message, Message::Group { .. })).then_some(message);
        drive(&mut here, now).0.into_iter().filter_map(of_group).collect::<Vec<_>>()
    };
    let (ours, messages) = (spec.fingerprint(), 0);
    assert_eq!(told(Message::Void, &[(ours, 1), (ours, messages)]), [], "all is well");
    let leaves_later = of(&spec, GroupMessage::Lost { rank: Rank(1), after: InstanceId(2), cause: Rank(1) });
    assert_eq!(told(leaves_later.clone(), &[(ours, 2), (ours, messages), (ours + 1, 3)]), []);
    assert_eq!(told(leaves_later, &[(ours, 3)]), [fails_after(&spec, 2, Rank(1))]);
    assert_eq!(told(fails_after(&spec, 0, Rank(1)), &[(ours, 1)]), [fails_after(&spec, 0, Rank(1))], "passed on");
    let error = CollectiveError::Memory(Rank(1));
    let ended = of(&spec, GroupMessage::Abort { fingerprint: ours, error });
    assert_eq!(told(ended.clone(), &[(ours, messages)]), [ended]);
}

/// A faulty member sends an invalid message. The link does not repeat the message, and a call may wait for a valid one.
#[test]
fn invalid_message_breaks_the_group_and_names_its_sender() {
    let lost = |after| GroupMessage::Lost { rank: Rank(1), after: InstanceId(after), cause: Rank(1) };
    let signature = Signature { kind: CallKind::Barrier, bytes: 0 };
    let ready = InstanceMessage::Ready { step: 7, signature, rank: Rank(1) };
    let ready = GroupMessage::Instance { instance: InstanceId(1), body: ready };
    for said in [vec![lost(2), lost(9)], vec![ready]] {
        let (mut here, spec, mut seq) = three_have_met();
        for body in said {
            here.handle_frame(Instant(1), SpId(11), &frame(seq.next().expect("many"), &of(&spec, body), 0), 0);
        }
        let (fingerprint, error) = (spec.fingerprint(), CollectiveError::Protocol(SpId(11)));
        let told = drive(&mut here, Instant(1)).0;
        assert!(told.contains(&(SpId(12), of(&spec, GroupMessage::Abort { fingerprint, error }))), "{told:?}");
    }
}

/// No call precedes the barrier that makes its group.
#[test]
fn call_before_the_group_is_made_breaks_the_group() {
    let (config, spec) = (Config::default(), spec_of_three(1));
    let mut here = Endpoint::new(SpId(HERE), config.clone(), 1);
    let signature = Signature { kind: CallKind::Barrier, bytes: 0 };
    let ready = InstanceMessage::Ready { step: 0, signature, rank: Rank(2) };
    let early = Message::instance(spec.handle, InstanceId(1), ready);
    here.handle_frame(Instant(1), SpId(12), &frame(0, &early, 0), 0);
    here.handle_create_group(Instant(1), &spec, Rank(0));
    let (told, events) = drive(&mut here, Instant(1));
    let (group, rank, error) = (spec.handle, Rank(0), CollectiveError::Protocol(SpId(12)));
    let result = Err(GroupError::Failed(error.clone()));
    assert!(events.contains(&Event::GroupReady { group, rank, result }), "{events:?}");
    let abort = of(&spec, GroupMessage::Abort { fingerprint: spec.fingerprint(), error });
    assert!(told.contains(&(SpId(11), abort)), "{told:?}");
}

/// A call mismatches an ended call, whose rank had nothing for any other rank. Only the waiting rank can detect the
/// mismatch.
#[test]
fn failure_query_reports_a_mismatch_with_an_ended_call() {
    let (mut here, spec, _) = three_have_met();
    let scatter = |bytes| Signature { kind: CallKind::Scatter { root: Rank(0) }, bytes };
    let nothing = call_of_three(&mut here, 1, 1, 1, scatter(0));
    assert_eq!(nothing, None);
    let waits = |signature| {
        let oldest = Some((InstanceId(1), signature, Rank(2)));
        of(&spec, GroupMessage::QueryFailures { fingerprint: spec.fingerprint(), newest: InstanceId(1), oldest })
    };
    here.handle_frame(Instant(1), SpId(12), &frame(1, &waits(scatter(0)), 0), 0);
    let aborts = |told: Vec<(SpId, Message)>| {
        let abort = |message| matches!(message, Message::Group { body: GroupMessage::Abort { .. }, .. });
        told.into_iter().filter_map(|(to, message)| abort(message).then_some(to)).collect::<Vec<_>>()
    };
    assert_eq!(aborts(drive(&mut here, Instant(1)).0), []);
    here.handle_frame(Instant(1), SpId(12), &frame(2, &waits(scatter(8)), 0), 0);
    assert_eq!(aborts(drive(&mut here, Instant(1)).0), [SpId(11), SpId(12)]);
}

/// A member that waits long queries the others. A call that failed there fails here, too, and a rank that leaves later
/// reports the failure.
#[test]
fn long_wait_queries_failures_and_fails_with_the_others() {
    let (mut here, spec, _) = three_have_met();
    let barrier = Signature { kind: CallKind::Barrier, bytes: 0 };
    (1..=2).for_each(|number| assert_eq!(call_of_three(&mut here, number, 1, number, barrier), None));
    let (fingerprint, oldest) = (spec.fingerprint(), Some((InstanceId(1), barrier, Rank(0))));
    let waits = of(&spec, GroupMessage::QueryFailures { fingerprint, newest: InstanceId(2), oldest });
    let asked = (1..5).find_map(|beat| {
        let now = Instant(1) + here.config().heartbeat * beat;
        [11, 12].into_iter().for_each(|sp| here.handle_frame(now, SpId(sp), &frame(1, &Message::Void, 0), 0));
        let to = drive(&mut here, now).0.into_iter().filter_map(|(to, said)| (said == waits).then_some(to));
        Some((now, to.collect::<BTreeSet<_>>())).filter(|(_, to)| !to.is_empty())
    });
    let (now, to) = asked.expect("it asks");
    assert_eq!(to, BTreeSet::from([SpId(11), SpId(12)]));
    here.handle_frame(now, SpId(12), &frame(2, &fails_after(&spec, 0, Rank(1)), 0), 0);
    let lost = CollectiveError::RankLost(Rank(1));
    let failed = |event: &Event| matches!(event, Event::Completed { result: Err(error), .. } if *error == lost);
    assert!(drive(&mut here, now).1.iter().any(failed));
    here.handle_leave(now, spec.handle, Rank(0));
    let left = GroupMessage::Lost { rank: Rank(0), after: InstanceId(0), cause: Rank(1) };
    let said = drive(&mut here, now).0;
    assert!(said.contains(&(SpId(12), of(&spec, left))), "{said:?}");
}

/// One member's report breaks a group here before the group is made. The report to another member was lost with its
/// link.
#[test]
fn failure_query_for_an_unmade_group_is_answered_with_the_error() {
    let mut here = Endpoint::new(SpId(HERE), Config::default(), 1);
    let (spec, now) = (support::spec(&[HERE, 11, 12]), Instant(1));
    here.handle_create_group(now, &spec, Rank(0));
    let (fingerprint, error) = (spec.fingerprint(), CollectiveError::RankLost(Rank(1)));
    let ended = of(&spec, GroupMessage::Abort { fingerprint, error });
    here.handle_frame(now, SpId(11), &frame(0, &ended, 0), 0);
    drive(&mut here, now);
    let waits = of(&spec, GroupMessage::QueryFailures { fingerprint, newest: InstanceId(1), oldest: None });
    here.handle_frame(now, SpId(12), &frame(0, &waits, 0), 0);
    assert!(drive(&mut here, now).0.contains(&(SpId(12), ended)));
}

/// Collectives continue between two members, but a message between ranks does not come.
#[test]
fn waiting_message_queries_failures_while_collectives_continue() {
    let (config, spec) = (Config::default(), support::spec(&[HERE, 11]));
    let (mut here, mut now, mut seq) = (Endpoint::new(SpId(HERE), config.clone(), 1), Instant(1), 0..);
    let mut hear = |here: &mut Endpoint, now, said: &Message| {
        here.handle_frame(now, SpId(11), &frame(seq.next().expect("many"), said, 0), 0);
    };
    here.handle_create_group(now, &spec, Rank(0));
    hear(&mut here, now, &step(&spec, 0, &config));
    let receive = CallKind::Tagged(TaggedCall::Receive { from: Rank(1), tag: 0 });
    here.handle_call(now, support::call(100, 0, 0, Signature { kind: receive, bytes: 8 }));
    let signature = Signature { kind: CallKind::Barrier, bytes: 0 };
    let asked = (1..8).find(|&number| {
        here.handle_call(now, support::call(number, 0, number, signature));
        now = now + config.heartbeat;
        let said = drive(&mut here, now).0;
        let body = InstanceMessage::Ready { step: 0, signature, rank: Rank(1) };
        hear(&mut here, now, &Message::instance(spec.handle, InstanceId(number), body));
        let ended = drive(&mut here, now).1;
        let well =
            |event: &Event| matches!(event, Event::Completed { call: CallId(call), result: Ok(()) } if *call == number);
        assert!(ended.iter().any(well), "{ended:?}");
        let (fingerprint, newest) = (spec.fingerprint(), InstanceId(number));
        let oldest = Some((newest, signature, Rank(0)));
        said.contains(&(SpId(11), of(&spec, GroupMessage::QueryFailures { fingerprint, newest, oldest })))
    });
    assert!(asked.is_some_and(|number| number > 1), "{asked:?}");
}

/// The driver is full for one peer: it gets no frame or wake-up for this peer, but all frames for the others.
#[test]
fn no_frames_for_a_peer_whose_send_queue_is_full() {
    let (mut here, spec, mut seq) = three_have_met();
    let (full_of, now) = (SpId(11), Instant(1) + here.config().heartbeat);
    here.handle_full(full_of, true);
    here.handle_frame(Instant(1), full_of, &frame(seq.next().expect("many"), &Message::Void, 0), 0);
    here.handle_leave(Instant(1), spec.handle, Rank(0));
    let left = of(&spec, GroupMessage::Lost { rank: Rank(0), after: InstanceId(0), cause: Rank(0) });
    let said = drive(&mut here, now).0;
    assert!(said.contains(&(SpId(12), left.clone())) && said.iter().all(|(to, _)| *to != full_of), "{said:?}");
    assert!(here.next_transmit().is_none_or(|at| at > now));
    here.handle_full(full_of, false);
    assert_eq!(drive(&mut here, now).0, [(full_of, left)]);
}

/// A peer goes on sending. If the peer acknowledges nothing, it is lost and is named. If it acknowledges slowly, it is
/// not lost.
#[test]
fn a_peer_that_sends_and_acknowledges_nothing_is_lost() {
    let (config, spec, other) = (Config::default(), support::spec(&[HERE, 11]), SpId(11));
    let inquire = of(&spec, GroupMessage::Instance { instance: InstanceId(1), body: InstanceMessage::Inquire });
    let speak = |beats_for_each: u32| {
        let (mut here, mut now) = (Endpoint::new(SpId(HERE), config.clone(), 1), Instant(1));
        here.handle_create_group(now, &spec, Rank(0));
        here.handle_frame(now, other, &frame(0, &step(&spec, 0, &config), 0), 0);
        let mut told = drive(&mut here, now).1;
        for beat in 1..100 {
            now = now + config.heartbeat;
            let mut said = frame(beat, &inquire, 0);
            said[ACK].copy_from_slice(&(beat / beats_for_each).to_le_bytes());
            here.handle_frame(now, other, &said, 0);
            told.extend(drive(&mut here, now).1);
        }
        here.handle_call(now, support::call(1, 0, 1, Signature { kind: CallKind::Barrier, bytes: 0 }));
        told.extend(drive(&mut here, now).1);
        let named = |event: &Event| matches!(event, Event::Violation { peer: Some(peer), .. } if *peer == other);
        let error = CollectiveError::PeerLost { sp: other, rank: Rank(1) };
        let fails = Event::Completed { call: CallId(1), result: Err(error) };
        [told.iter().any(named), told.contains(&Event::Disconnect { peer: other }), told.contains(&fails)]
    };
    assert_eq!((speak(u32::MAX), speak(10)), ([true; 3], [false; 3]));
}
