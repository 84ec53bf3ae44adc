//! Two service processes, one rank each, and an exchange of blocks: who tells whom what, and when they are found to disagree
//! (SP-5).

use std::sync::Arc;

use outboard_plan::alltoall::Blocks;
use outboard_plan::{Buffer, Rank, Span};
use outboard_proto::wire::{FRAME_HEADER_BYTES, GroupMessage, Message, TransferMessage};
use outboard_proto::{
    Call, CallId, CallKind, CollectiveError, Config, Endpoint, Event, GroupHandle, GroupSpec, HostId, InstanceId,
    Instant, Member, Signature, SpId, Transmit,
};

const NOW: Instant = Instant(1);
const GROUP: GroupHandle = GroupHandle(7);
/// The announcement and the pieces of 100,000 bytes: more than two.
const LEAST_SENT: usize = 3;

struct Pair([Endpoint; 2]);

impl Pair {
    /// Two ranks, one at each, and their group.
    fn new() -> Pair {
        let ids = [SpId(10), SpId(11)];
        let member = |sp: SpId| Member { sp, host: HostId(sp.0), address: Arc::from([sp.0 as u8]) };
        let spec = GroupSpec { handle: GROUP, key: [3, 4], job: 1, members: ids.map(member).to_vec() };
        let mut pair = Pair(ids.map(|id| Endpoint::new(id, Config::default(), 1)));
        (0..2).for_each(|rank| pair.0[rank].handle_create_group(NOW, &spec, Rank(rank as u32)));
        pair.run();
        pair
    }

    /// `rank` calls with a block for the other of so many bytes, and one of the other.
    fn call(&mut self, rank: usize, sends: u64, expects: u64) {
        let spans = |buffer, bytes| {
            let len = |other| if other == rank { 0 } else { bytes };
            (0..2).map(|other| Span { buffer, offset: 0, len: len(other) }).collect()
        };
        let blocks = Blocks { send: spans(Buffer::Input, sends), receive: spans(Buffer::Output, expects) };
        self.0[rank].handle_call(
            NOW,
            Call {
                id: CallId(rank as u64),
                group: GROUP,
                rank: Rank(rank as u32),
                instance: InstanceId(1),
                signature: Signature { kind: CallKind::Alltoallv, bytes: 0 },
                in_place: false,
                blocks: Some(blocks.into()),
                deadline: None,
            },
        );
    }

    /// Delivers all frames of one to the other: its messages.
    fn deliver(&mut self, from: usize) -> Vec<Message> {
        let mut messages = Vec::new();
        let other = 1 - from;
        let id = self.0[from].id();
        while let Some(Transmit::Frame { header, payload, .. }) = self.0[from].poll_transmit(NOW) {
            messages.extend(Message::decode(&header[FRAME_HEADER_BYTES..]));
            let bytes = payload.iter().map(|piece| piece.len).sum::<u64>();
            self.0[other].handle_frame(NOW, id, &header, bytes as u32);
            while self.0[other].poll_order().is_some() {}
        }
        messages
    }

    /// Until nothing is said any more: how calls have ended, by rank.
    fn run(&mut self) -> Vec<Result<(), CollectiveError>> {
        for _ in 0..1000 {
            if self.deliver(0).is_empty() && self.deliver(1).is_empty() {
                break;
            }
        }
        let events = self.0.iter_mut().flat_map(|sp| std::iter::from_fn(|| sp.poll_event()).collect::<Vec<_>>());
        events
            .filter_map(|event| if let Event::Completed { result, .. } = event { Some(result) } else { None })
            .collect()
    }
}

/// Whoever calls last has been asked already, and sends without being asked again.
#[test]
fn sp_5_the_last_to_call_sends_at_once() {
    let mut pair = Pair::new();
    pair.call(0, 0, 100_000);
    pair.deliver(0);
    pair.call(1, 100_000, 0);
    let sent = pair.deliver(1);
    let body = |message: &Message| match message {
        Message::Group { body: GroupMessage::Transfer(transfer), .. } => Some(transfer.clone()),
        Message::Group { .. } | Message::Void => None,
    };
    let offered = |m: &Message| matches!(body(m), Some(TransferMessage::Offer { ready, .. }) if ready.len() == 1);
    let data = |message: &Message| matches!(body(message), Some(TransferMessage::Data(_)));
    assert!(offered(&sent[0]), "the block is announced before its bytes: {sent:?}");
    assert!(
        sent[1..].iter().all(data) && sent.len() > LEAST_SENT,
        "all of it, though nothing was asked for since: {sent:?}"
    );
    assert_eq!(pair.run(), [Ok(()), Ok(())]);
}

/// What was asked for while its announcement was on its way comes once.
#[test]
fn sp_5_announcements_and_requests_that_cross_ask_for_nothing_twice() {
    let mut pair = Pair::new();
    for (sends, expects, rank) in [(3 << 20, 1 << 20, 0), (1 << 20, 3 << 20, 1)] {
        pair.call(rank, sends, expects);
    }
    assert_eq!(pair.run(), [Ok(()), Ok(())]);
    assert_eq!(pair.0.each_ref().map(|sp| sp.counters().violations), [0, 0]);
}

/// Whichever calls first, a block that one expects and the other does not have is named to both, not waited for.
#[test]
fn sp_5_a_block_that_nobody_has_is_missed_when_both_have_called() {
    let error = CollectiveError::Block { source_rank: Rank(1), sent: 0, destination: Rank(0), expected: 5000 };
    for first in [0, 1] {
        let mut pair = Pair::new();
        for rank in [first, 1 - first] {
            // The other way both agree, so that neither is idle.
            let (sends, expects) = [(100, 5000), (0, 100)][rank];
            pair.call(rank, sends, expects);
            pair.deliver(rank);
        }
        assert_eq!(pair.run(), [Err(error.clone()), Err(error.clone())], "{first} calls first");
    }
}
