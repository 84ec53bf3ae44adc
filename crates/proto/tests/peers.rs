//! What is remembered of other service processes, and who of them hears what.

use std::time::Duration;

use outboard_plan::Rank;
use outboard_proto::wire::{FrameHeader, GroupMessage, Message};
use outboard_proto::{Config, Endpoint, Event, GroupHandle, GroupSpec, InstanceId, Instant, SpId, Transmit};

mod support;

use support::frame;

const HERE: u64 = 10;

fn of(spec: &GroupSpec, body: GroupMessage) -> Message {
    Message::Group { group: spec.handle, body }
}

/// The step of a group's barrier that `sp` says here.
fn step(spec: &GroupSpec, sp: u64, step: u8, config: &Config) -> Message {
    of(spec, GroupMessage::Create { step, sp: SpId(sp), digest: config.digest(), fingerprint: spec.fingerprint() })
}

/// The rank of another service process leaves before the first call.
fn leaves(spec: &GroupSpec, rank: Rank) -> Message {
    of(spec, GroupMessage::Lost { rank, after: InstanceId(0), well: true, cause: rank })
}

/// All that is sent at `now`, and everything that is told.
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

/// Jobs come and go with other service processes each time, and strangers speak under ever new names.
#[test]
fn peers_of_the_past_are_forgotten() {
    let config = Config { past_peers: 20, ..Config::default() };
    let mut here = Endpoint::new(SpId(HERE), config.clone(), 1);
    let (mut now, mut disconnected) = (Instant(1), 0);
    for other in 100..200 {
        let spec = GroupSpec { handle: GroupHandle(other as u32), ..support::spec(&[HERE, other]) };
        here.handle_create_group(now, &spec, Rank(0));
        drive(&mut here, now);
        here.handle_frame(now, SpId(other), &frame(0, &step(&spec, other, 0, &config), 0), 0);
        here.handle_frame(now, SpId(other), &frame(1, &leaves(&spec, Rank(1)), 0), 0);
        assert!(drive(&mut here, now).1.contains(&Event::GroupReady {
            group: spec.handle,
            rank: Rank(0),
            result: Ok(())
        }));
        here.handle_leave(now, spec.handle, Rank(0));
        let stranger = SpId(other + 1000);
        here.handle_frame(now, stranger, &frame(0, &Message::Void, 0), 0);
        // Acknowledgements go, then the time is over in which somebody may need an answer.
        for after in [Duration::from_secs(1), config.dead_after] {
            now = now + after;
            let (_, events) = drive(&mut here, now);
            disconnected += events.iter().filter(|event| matches!(event, Event::Disconnect { .. })).count();
        }
    }
    assert_eq!((here.load(), here.peers(), disconnected), ((0, 0, 0), 40, 80), "of either kind the last twenty");
}

/// Of three service processes one has nobody in the group any more.
#[test]
fn members_whose_ranks_have_left_hear_nothing_more() {
    let config = Config::default();
    let mut here = Endpoint::new(SpId(HERE), config.clone(), 1);
    let spec = support::spec(&[HERE, 11, 12]);
    let now = Instant(1);
    here.handle_create_group(now, &spec, Rank(0));
    here.handle_frame(now, SpId(12), &frame(0, &step(&spec, 12, 0, &config), 0), 0);
    here.handle_frame(now, SpId(11), &frame(0, &step(&spec, 11, 1, &config), 0), 0);
    here.handle_frame(now, SpId(11), &frame(1, &leaves(&spec, Rank(1)), 0), 0);
    drive(&mut here, now);
    // Its end is nothing to the group.
    here.handle_peer_lost(now, SpId(11));
    assert_eq!(here.load().0, 1);
    here.handle_leave(now, spec.handle, Rank(0));
    let (sent, _) = drive(&mut here, now);
    assert_eq!(sent, [(SpId(12), leaves(&spec, Rank(0)))]);
}
