//! Two service processes with one rank each: the messages that they exchange, and when they detect a disagreement
//! (SP-5, GP-1, GP-5).

use outboard_plan::alltoall::Blocks;
use outboard_plan::{Buffer, ProgramBuilder, Rank, Span};
use outboard_proto::wire::{FRAME_HEADER_BYTES, GroupMessage, Message, TransferMessage};
use outboard_proto::{
    CallKind, CollectiveError, Config, Endpoint, Event, Instant, RankCall, Recording, Signature, SpId, TaggedCall,
    Transmit,
};

use crate::support::{self, GROUP};

const NOW: Instant = Instant(1);
/// A block that is requested in several pieces.
const LONG: u64 = 4 << 20;
/// Late enough for a stand-in of an absent rank.
const STOOD_IN: Instant = Instant(2_000_000);
/// 100,000 bytes take more messages than this: an announcement and more than two pieces.
const LEAST_SENT: usize = 3;
/// More rounds than any of these exchanges has.
const MOST_ROUNDS: usize = 1000;

struct Pair([Endpoint; 2]);

impl Pair {
    /// Two service processes with one rank each, and their group.
    fn new() -> Pair {
        let (ids, spec) = ([10, 11], support::spec(&[10, 11]));
        // Links take no time, since the clock stands still.
        let config = Config { link_rate: 1 << 50, ..Config::default() };
        let mut pair = Pair(ids.map(|id| Endpoint::new(SpId(id), config.clone(), 1)));
        (0..2).for_each(|rank| pair.0[rank].handle_create_group(NOW, &spec, Rank(rank as u32)));
        pair.run();
        pair
    }

    /// `rank` calls an all-to-all that sends and expects one block of these bytes.
    fn call(&mut self, rank: usize, sends: u64, expects: u64) {
        let spans = |buffer, bytes| {
            let len = |other| if other == rank { 0 } else { bytes };
            (0..2).map(|other| Span { buffer, offset: 0, len: len(other) }).collect()
        };
        let blocks = Blocks { send: spans(Buffer::Input, sends), receive: spans(Buffer::Output, expects) };
        let signature = Signature { kind: CallKind::Alltoallv, bytes: 0 };
        let call = support::call(rank as u64, rank as u32, 1, signature);
        self.0[rank].handle_call(NOW, RankCall { blocks: Some(blocks.into()), ..call });
    }

    /// `rank` makes a tagged call.
    fn call_tagged(&mut self, rank: usize, call: TaggedCall, bytes: u64) {
        let signature = Signature { kind: CallKind::Tagged(call), bytes };
        self.0[rank].handle_call(NOW, support::call(rank as u64, rank as u32, 0, signature));
    }

    fn send_single(&mut self, bytes: u64) {
        self.call_tagged(0, TaggedCall::Send { to: Rank(1), tag: 5 }, bytes);
    }

    fn receive_single(&mut self, bytes: u64) {
        self.call_tagged(1, TaggedCall::Receive { from: Rank(0), tag: 5 }, bytes);
    }

    /// Both ranks record messages of these bytes from rank 0 to rank 1, and call the recording once.
    fn record(&mut self, messages: u32, bytes: u64) {
        for rank in 0..2 {
            let mut builder = ProgramBuilder::new(Rank(rank), 2);
            builder.buffers(0, u64::from(messages) * bytes, 0);
            for tag in 0..messages {
                match rank {
                    0 => builder.send(Rank(1), tag, Span::output(0, bytes), &[]),
                    _ => builder.recv(Rank(0), tag, Span::output(u64::from(tag) * bytes, bytes), &[]),
                };
            }
            let recording = Recording { program: builder.build().into(), reductions: Vec::new() };
            self.0[rank as usize].handle_record(GROUP, Rank(rank), 1, recording).expect("sound");
        }
        (0..2).for_each(|rank| self.call_recorded(rank, u64::from(messages) * bytes));
        assert_eq!(self.run(), [Ok(()), Ok(())]);
    }

    fn call_recorded(&mut self, rank: usize, bytes: u64) {
        self.call_tagged(rank, TaggedCall::Recorded { recording: 1 }, bytes);
    }

    /// Like [`Self::deliver`], but returns only the transfer messages.
    fn transfers(&mut self, from: usize) -> Vec<TransferMessage> {
        let transfer = |message| match message {
            Message::Group { body: GroupMessage::Transfer(transfer), .. } => transfer,
            Message::Group { .. } | Message::Void => panic!("{message:?}"),
        };
        self.deliver(from).into_iter().map(transfer).collect()
    }

    /// Executes all orders of one machine and delivers its frames to the other. Returns the messages.
    fn deliver(&mut self, from: usize) -> Vec<Message> {
        let mut messages = Vec::new();
        while self.0[from].poll_order().is_some() {}
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

    /// Runs until nothing moves. Returns the results of the calls, by rank.
    fn run(&mut self) -> Vec<Result<(), CollectiveError>> {
        for _ in 0..MOST_ROUNDS {
            (0..2).for_each(|rank| _ = self.deliver(rank));
        }
        let events = self.0.iter_mut().flat_map(|sp| std::iter::from_fn(|| sp.poll_event()).collect::<Vec<_>>());
        events
            .filter_map(|event| if let Event::Completed { result, .. } = event { Some(result) } else { None })
            .collect()
    }
}

fn is_data(message: &TransferMessage) -> bool {
    matches!(message, TransferMessage::Data(_))
}

/// Bytes of each message that an offer announces without sending these bytes.
fn offered(message: &TransferMessage) -> Vec<u64> {
    let TransferMessage::Offer { ready, .. } = message else { return Vec::new() };
    ready.iter().filter(|rts| !rts.eager).map(|rts| rts.bytes).collect()
}

/// The bytes up to which an offer clears messages early.
fn cleared(message: &TransferMessage) -> Vec<u64> {
    let TransferMessage::Offer { early, .. } = message else { return Vec::new() };
    early.iter().map(|cts| cts.up_to).collect()
}

/// The last caller has the request already, and sends without another request.
#[test]
fn sp_5_the_last_to_call_sends_at_once() {
    let mut pair = Pair::new();
    pair.call(0, 0, 100_000);
    pair.deliver(0);
    pair.call(1, 100_000, 0);
    let sent = pair.transfers(1);
    assert_eq!(offered(&sent[0]), [100_000], "the block is announced before its bytes: {sent:?}");
    assert!(sent[1..].iter().all(is_data) && sent.len() > LEAST_SENT, "all of it, not asked for since: {sent:?}");
    assert_eq!(pair.run(), [Ok(()), Ok(())]);
}

/// Bytes that were requested while their announcement was on its way come once.
#[test]
fn sp_5_crossing_rts_and_early_cts_request_every_byte_once() {
    let mut pair = Pair::new();
    for (sends, expects, rank) in [(3 << 20, 1 << 20, 0), (1 << 20, 3 << 20, 1)] {
        pair.call(rank, sends, expects);
    }
    assert_eq!(pair.run(), [Ok(()), Ok(())]);
    assert_eq!(pair.0.each_ref().map(|sp| sp.counters().violations), [0, 0]);
}

/// If one rank expects a block that the other does not have, both calls fail, whichever rank calls first.
#[test]
fn sp_5_unsent_block_fails_the_group_when_both_have_called() {
    let error = CollectiveError::Block { source_rank: Rank(1), sent: 0, destination: Rank(0), expected: 5000 };
    for first in [0, 1] {
        let mut pair = Pair::new();
        for rank in [first, 1 - first] {
            // In the other direction both ranks agree, so that neither rank is idle.
            let (sends, expects) = [(100, 5000), (0, 100)][rank];
            pair.call(rank, sends, expects);
            pair.deliver(rank);
        }
        assert_eq!(pair.run(), [Err(error.clone()), Err(error.clone())], "{first} calls first");
    }
}

/// Bytes of a block have come for a rank with a stand-in. The rank then calls without a receive for the block, so both
/// calls fail. If the whole block has left its source, the source's call has ended before and does not fail.
#[test]
fn sp_6_unreceived_block_fails_the_group_when_its_rank_calls() {
    let error = Err(CollectiveError::Block { source_rank: Rank(0), sent: LONG, destination: Rank(1), expected: 0 });
    for (rounds, source) in [(0, error.clone()), (1, error.clone()), (200, Ok(()))] {
        let mut pair = Pair::new();
        pair.call(0, LONG, 0);
        pair.deliver(0);
        pair.0[1].handle_timeout(STOOD_IN);
        (0..rounds).for_each(|_| [1, 0].into_iter().for_each(|rank| _ = pair.deliver(rank)));
        pair.call(1, 0, 0);
        assert_eq!(pair.run(), [source, error.clone()], "after {rounds} rounds");
    }
}

/// Bytes of a large message come when its receive is posted, before the send or after it.
#[test]
fn gp_1_large_messages_are_offered_and_come_when_they_are_received() {
    for sent_first in [true, false] {
        let mut pair = Pair::new();
        if !sent_first {
            pair.receive_single(100_000);
            assert_eq!(pair.transfers(1), [], "a single message is not asked for before it is offered");
        }
        pair.send_single(100_000);
        let sent = pair.transfers(0);
        assert_eq!((sent.len(), offered(&sent[0])), (1, vec![100_000]), "{sent:?}");
        if sent_first {
            assert_eq!(pair.transfers(1), []);
            pair.receive_single(100_000);
        }
        let granted = pair.transfers(1);
        let whole = |message: &_| matches!(message, TransferMessage::Cts(all) if all[0].up_to == 100_000);
        assert!(granted.len() == 1 && whole(&granted[0]), "{granted:?}");
        let data = pair.transfers(0);
        assert!(data.len() >= LEAST_SENT && data.iter().all(is_data), "{data:?}");
        assert_eq!(pair.run(), [Ok(()), Ok(())]);
    }
}

/// Bytes of a small message come with its offer, received or not, and complete the send.
#[test]
fn gp_1_small_messages_do_not_wait_for_their_receives() {
    let mut pair = Pair::new();
    pair.send_single(100);
    let sent = pair.transfers(0);
    let eager = |message: &_| matches!(message, TransferMessage::Offer { ready, .. } if ready[0].eager);
    assert!(sent.len() == 1 && eager(&sent[0]), "{sent:?}");
    let done = pair.transfers(1);
    assert!(matches!(&done[..], [TransferMessage::Done(numbers)] if numbers.len() == 1), "{done:?}");
    assert_eq!(pair.run(), [Ok(())], "before it is received");
    pair.receive_single(100);
    assert_eq!(pair.run(), [Ok(())]);
}

/// From the second call on a recording's large messages are not offered, whichever end calls first.
#[test]
fn gp_5_receivers_of_recorded_messages_clear_them_early() {
    for sent_first in [true, false] {
        let mut pair = Pair::new();
        pair.record(2, 100_000);
        if sent_first {
            pair.call_recorded(0, 200_000);
            assert_eq!(pair.transfers(0), [], "they are held");
        }
        pair.call_recorded(1, 200_000);
        let early = pair.transfers(1);
        assert_eq!((early.len(), cleared(&early[0])), (1, vec![100_000; 2]), "{early:?}");
        if !sent_first {
            pair.call_recorded(0, 200_000);
        }
        let data = pair.transfers(0);
        assert!(data.len() >= LEAST_SENT && data.iter().all(is_data), "{data:?}");
        assert_eq!(pair.run(), [Ok(()), Ok(())]);
    }
}

/// A message beyond the room for early CTS is offered when both have called.
#[test]
fn gp_5_recorded_messages_beyond_the_room_are_offered() {
    const BYTES: u64 = 2 << 20;
    let mut pair = Pair::new();
    pair.record(3, BYTES);
    pair.call_recorded(0, 3 * BYTES);
    assert_eq!(pair.transfers(0), []);
    pair.call_recorded(1, 3 * BYTES);
    let early = cleared(&pair.transfers(1)[0]);
    let held = early.iter().filter(|up_to| **up_to == 0).count();
    assert_eq!((early.len(), held), (3, 1), "{early:?}");
    let sent = pair.transfers(0);
    assert_eq!(sent.iter().flat_map(offered).collect::<Vec<_>>(), vec![BYTES; held]);
    assert_eq!(pair.run(), [Ok(()), Ok(())]);
}
