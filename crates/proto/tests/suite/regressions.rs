//! Defects that fuzzing found (`fuzz/`), each as the shortest sequence that showed it.

use outboard_plan::{Element, Operator, Rank, Reduction};
use outboard_proto::wire::{FrameHeader, FrameKind, GroupMessage, InstanceMessage, Message};
use outboard_proto::{
    CallKind, CollectiveError, Config, Endpoint, Event, GroupError, GroupHandle, GroupSpec, InstanceId, Instant,
    Signature, SpId, Transmit,
};

use crate::support::{self, GROUP, frame};

const NOW: Instant = Instant(1);
const HONEST: SpId = SpId(11);
const HOSTILE: SpId = SpId(12);

/// A group with rank 0 here and ranks `1..` at the given service processes.
fn spec(others: &[SpId]) -> GroupSpec {
    let others = others.iter().map(|sp| sp.0);
    support::spec(&[10].into_iter().chain(others).collect::<Vec<_>>())
}

/// A message about the group.
fn of_group(body: GroupMessage) -> Message {
    Message::Group { group: GROUP, body }
}

/// A message about the group's first collective.
fn of_first(body: InstanceMessage) -> Message {
    Message::instance(GROUP, InstanceId(1), body)
}

struct Victim {
    sp: Endpoint,
    seq: u32,
}

impl Victim {
    fn new() -> Victim {
        Victim { sp: Endpoint::new(SpId(10), Config::default(), 1), seq: 0 }
    }

    fn send(&mut self, from: SpId, seq: u32, message: &Message) {
        self.sp.handle_frame(NOW, from, &frame(seq, message, 0), 0);
    }

    /// The next message of the hostile service process.
    fn hostile(&mut self, message: &Message) {
        self.send(HOSTILE, self.seq, message);
        self.seq += 1;
    }

    fn create(&self) -> Message {
        self.create_by(HOSTILE)
    }

    /// The step of the barrier by which `sp` makes a group of rank 0 here and rank 1 at `sp`.
    fn create_by(&self, sp: SpId) -> Message {
        let fingerprint = spec(&[sp]).fingerprint();
        of_group(GroupMessage::Create { step: 0, digest: self.sp.config().digest(), fingerprint })
    }

    fn ready(&mut self) -> Vec<Result<(), GroupError>> {
        std::iter::from_fn(|| self.sp.poll_event())
            .filter_map(|event| if let Event::GroupReady { result, .. } = event { Some(result) } else { None })
            .collect()
    }

    /// Makes a group with both other service processes.
    fn group_of_three(&mut self) {
        let spec = spec(&[HOSTILE, HONEST]);
        let (fingerprint, digest) = (spec.fingerprint(), self.sp.config().digest());
        self.sp.handle_create_group(NOW, &spec, Rank(0));
        self.send(HONEST, 0, &of_group(GroupMessage::Create { step: 0, digest, fingerprint }));
        self.hostile(&of_group(GroupMessage::Create { step: 1, digest, fingerprint }));
        assert_eq!(self.ready(), [Ok(())]);
    }

    /// The error of the call in flight, if it has ended.
    fn ended(&mut self) -> Option<CollectiveError> {
        // A call ends when its orders are done.
        while self.sp.poll_order().is_some() {}
        std::iter::from_fn(|| self.sp.poll_event()).find_map(|event| {
            if let Event::Completed { result, .. } = event { Some(result.expect_err("doomed")) } else { None }
        })
    }

    fn call(&mut self) {
        let signature = Signature { kind: CallKind::Allgather, bytes: 5000 };
        self.sp.handle_call(NOW, support::call(1, 0, 1, signature));
    }
}

/// Whether this is a step of the ready barrier of a collective.
fn is_ready(transmit: &Transmit) -> bool {
    let Transmit::Frame { header, payload, .. } = transmit else { return false };
    let payload = payload.iter().map(|piece| piece.len as u32).sum();
    let (_, message) = FrameHeader::decode(header, payload).expect("its own");
    let ready = |body: &_| matches!(body, GroupMessage::Instance { body: InstanceMessage::Ready { .. }, .. });
    matches!(Message::decode(message), Ok(Message::Group { body, .. }) if ready(&body))
}

fn left(rank: Rank, after: InstanceId) -> Message {
    of_group(GroupMessage::Lost { rank, after, cause: rank })
}

/// A rank that dies before it has requested its group keeps no part of the group alive.
#[test]
fn group_requested_by_some_local_ranks_is_retired_when_these_leave() {
    let mut victim = Victim::new();
    let spec = spec(&[SpId(10), HONEST]);
    victim.sp.handle_create_group(NOW, &spec, Rank(0));
    victim.sp.handle_leave(NOW, GROUP, Rank(0));
    assert_eq!(victim.sp.load().0, 0, "nobody is left to leave it");
    // A later request gets the reason why there is no such group, and does not wait for the group.
    victim.ready();
    victim.sp.handle_create_group(NOW, &spec, Rank(1));
    assert_eq!(victim.ready(), [Err(GroupError::Failed(CollectiveError::RankLost(Rank(0))))]);
    assert_eq!(victim.sp.load().0, 0);
}

/// A death fails the calls of a rank, which leaves. The news of the leaving overtakes the news of the death.
#[test]
fn rank_that_leaves_after_a_death_reports_the_dead_rank() {
    let mut victim = Victim::new();
    victim.group_of_three();
    let told = |cause| of_group(GroupMessage::Lost { rank: Rank(1), after: InstanceId(0), cause });
    victim.hostile(&told(Rank(2)));
    victim.call();
    assert_eq!(victim.ended(), Some(CollectiveError::RankLost(Rank(2))));
}

/// The handle of a group does not give access to the group: a group of other members with this handle is refused.
#[test]
fn a_group_is_made_by_its_own_members_alone() {
    let mut victim = Victim::new();
    victim.sp.handle_create_group(NOW, &spec(&[HOSTILE]), Rank(0));
    let other = GroupSpec { key: [3, 5], ..spec(&[HOSTILE]) };
    let digest = victim.sp.config().digest();
    let stolen = of_group(GroupMessage::Create { step: 0, digest, fingerprint: other.fingerprint() });
    victim.hostile(&stolen);
    assert_eq!(victim.ready(), []);
    let create = victim.create();
    victim.hostile(&create);
    assert_eq!(victim.ready(), [Ok(())]);
}

/// Nothing waits for a peer that had not sent before its group was left. A later group with the peer is made.
#[test]
fn peer_that_never_sent_is_evicted_after_its_group() {
    let mut victim = Victim::new();
    let forged = GroupSpec { handle: GroupHandle(9), ..spec(&[HONEST]) };
    victim.sp.handle_create_group(NOW, &forged, Rank(0));
    victim.sp.handle_leave(NOW, forged.handle, Rank(0));
    let later = NOW + std::time::Duration::from_secs(60);
    let mut now = NOW;
    while now < later {
        while victim.sp.poll_transmit(now).is_some() {}
        now = victim.sp.poll_timeout().unwrap_or(later).max(now + std::time::Duration::from_millis(1));
        victim.sp.handle_timeout(now);
    }
    assert_eq!(victim.sp.poll_timeout(), None, "nothing is sent to it any more");
    assert_eq!(victim.sp.peers(), 0);
    victim.ready();
    let create = victim.create_by(HONEST);
    victim.send(HONEST, 0, &create);
    victim.sp.handle_create_group(later, &spec(&[HONEST]), Rank(0));
    assert_eq!(victim.ready(), [Ok(())]);
}

/// Staging for late ranks must leave room for the scratch that their collective needs before it can begin. Otherwise
/// the collective would wait for its own staging forever (SP-6).
#[test]
fn a_collective_that_stood_in_for_its_ranks_does_not_wait_for_itself() {
    let bytes = 33_000;
    // Room for either the output of one rank or the scratch, not for both.
    let config = Config { staging_quota: 60_000, ..Config::default() };
    let mut victim = Victim { sp: Endpoint::new(SpId(10), config, 1), seq: 0 };
    let spec = spec(&[HONEST, SpId(10)]);
    let (digest, fingerprint) = (victim.sp.config().digest(), spec.fingerprint());
    [Rank(0), Rank(2)].into_iter().for_each(|rank| victim.sp.handle_create_group(NOW, &spec, rank));
    victim.send(HONEST, 0, &of_group(GroupMessage::Create { step: 0, digest, fingerprint }));
    assert_eq!(victim.ready(), [Ok(()), Ok(())]);
    let reduction = Reduction::new(Operator::Sum, Element::U8).expect("defined by MPI");
    let signature = Signature { kind: CallKind::Scan { reduction, inclusive: true }, bytes };
    victim.send(HONEST, 1, &of_first(InstanceMessage::Ready { step: 0, signature, rank: Rank(1) }));
    let (mut now, mut entered) = (NOW, false);
    for step in 0..20 {
        now = victim.sp.poll_timeout().unwrap_or(now).max(now + std::time::Duration::from_millis(1));
        victim.sp.handle_timeout(now);
        if let 10 | 11 = step {
            let rank = [0, 2][step as usize - 10];
            victim.sp.handle_call(now, support::call(step, rank, 1, signature));
        }
        while let Some(transmit) = victim.sp.poll_transmit(now) {
            entered |= is_ready(&transmit);
        }
    }
    assert!(entered, "both ranks have called");
}

/// A group that is being made survives the loss of a link: the steps of its making are sent again over the next link.
/// Steps of a call's barrier are not sent again. So the barrier of a call may not be entered for late ranks before the
/// group is made.
#[test]
fn no_barrier_is_entered_before_the_group_is_made() {
    let mut victim = Victim::new();
    let spec = spec(&[HONEST, HOSTILE]);
    victim.sp.handle_create_group(NOW, &spec, Rank(0));
    let digest = victim.sp.config().digest();
    let step = |step| of_group(GroupMessage::Create { step, digest, fingerprint: spec.fingerprint() });
    let signature = Signature { kind: CallKind::Allgather, bytes: 0 };
    victim.hostile(&step(0));
    victim.hostile(&of_first(InstanceMessage::Ready { step: 0, signature, rank: Rank(2) }));
    let later = NOW + victim.sp.config().stand_in_after;
    let entered = |victim: &mut Victim| {
        victim.sp.handle_timeout(later);
        std::iter::from_fn(|| victim.sp.poll_transmit(later)).any(|transmit| is_ready(&transmit))
    };
    assert!(!entered(&mut victim) && victim.ready().is_empty());
    victim.send(HONEST, 0, &step(1));
    assert!(entered(&mut victim), "it stands in for its rank as soon as the group is made");
    assert_eq!(victim.ready(), [Ok(())]);
}

/// A member that has left after its last call may owe us something for this call, and is watched.
#[test]
fn death_after_leaving_fails_ranks_that_still_call() {
    let mut victim = Victim::new();
    victim.group_of_three();
    victim.call();
    victim.hostile(&left(Rank(1), InstanceId(1)));
    let mut now = NOW;
    let error = (0..1000).find_map(|_| {
        now = victim.sp.poll_timeout().into_iter().chain(victim.sp.next_transmit()).min()?;
        victim.sp.handle_timeout(now);
        // The member whose step is awaited is alive, and acknowledges all frames.
        while let Some(transmit) = victim.sp.poll_transmit(now) {
            if let Transmit::Frame { to: HONEST, header, payload, .. } = transmit {
                let payload = payload.iter().map(|piece| piece.len as u32).sum();
                let (sent, _) = FrameHeader::decode(&header, payload).expect("its own");
                let mut bytes = Vec::new();
                let bare = FrameHeader {
                    kind: FrameKind::Bare,
                    ack_now: false,
                    link: 1,
                    to: sent.link,
                    seq: 1,
                    ack: sent.seq + 1,
                    ..sent
                };
                FrameHeader { payload_len: 0, ..bare }.encode(&mut bytes);
                victim.sp.handle_frame(now, HONEST, &bytes, 0);
            }
        }
        victim.ended()
    });
    assert_eq!(error, Some(CollectiveError::PeerLost { sp: HOSTILE, rank: Rank(1) }));
}
