//! A reliable, ordered sequence of messages between two service processes, over frames that may be lost.
//!
//! Go-back-N: the receiver accepts only the next message. The sender keeps unacknowledged messages and sends them again
//! when its timer expires. Over a lossless fabric the timer never expires. Frames echo clocks, which gives the round
//! trip (RFC 7323 in spirit) and the timer (RFC 6298). Every received frame is a sign of life. A watched end that is
//! silent is sent an empty message, which it must acknowledge.
//!
//! A service process that gives a link up makes a new end of it when it needs the peer again. Each service process
//! numbers its ends in the order of their making, and frames name both ends. So no frame of an abandoned link reaches
//! the next link. The other end follows:
//!
//! | frame of the other end | this end |
//! |---|---|
//! | of the known end, names this end or none | accepts it |
//! | of an older end | drops it |
//! | of the known end, names an older end of ours | drops it, and answers, so that the other end follows |
//! | of a newer end, when no frame has named this end | stays, and receives from the start: nothing was acknowledged |
//! | of a newer end, when a frame has named this end | is given up for a new end |
//!
//! At first no frame has named a new end, so two ends never give each other up in turn.
//!
//! | state of a message | event | next |
//! |---|---|---|
//! | queued (`seq >= cursor`) | `poll` | in flight |
//! | in flight (`una <= seq < cursor`) | acknowledged | gone |
//! | in flight | timer | queued (cursor back to `una`), timer doubled |
//!
//! Invariants: at most [`WINDOW`] messages are in flight, with at most as many bytes of payload as the user allows;
//! `una <= cursor <= una + entries`. Never sees payload.

mod round_trip;
pub(crate) mod serial;

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::time::Duration;

use crate::ids::{CallId, GroupHandle, InstanceId, Instant};
use crate::interface::{FramePayload, MemRef, MemRegion, payload_bytes};
use crate::link::round_trip::{RoundTrip, micros};
use crate::link::serial::{compare32, expand32};
use crate::wire::{FrameBytes, FrameHeader, FrameKind, Message};

pub const WINDOW: usize = 128;
const ACK_EVERY: u32 = 16;
const ACK_DELAY: Duration = Duration::from_millis(20);
/// Most buffers of acknowledged messages that are kept for the next messages.
const MAX_SPARE: usize = 8;
/// Longest retransmission timer. It allows many retries before silence counts as death, however lossy the fabric.
const MAX_RTO: Duration = Duration::from_millis(500);

/// Identifies an acknowledged message to the collective that waits for the acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckTag {
    pub group: GroupHandle,
    pub instance: InstanceId,
    pub kind: AckedKind,
    /// The acknowledgement is requested without delay; else it comes with the acknowledgement of a later message.
    pub urgent: bool,
}

/// Messages whose acknowledgement a collective waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckedKind {
    Nak,
    /// The last bytes of messages from rank to rank.
    Message {
        /// The number under which the messages wait for the acknowledgement.
        number: u64,
    },
}

/// The instance or call whose end makes a message void.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageOwner {
    Instance(GroupHandle, InstanceId),
    Call(CallId),
}

/// An acknowledged message, which needs nothing of its sender any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acked {
    pub owner: Option<MessageOwner>,
    pub tag: Option<AckTag>,
}

#[derive(Debug)]
struct LinkMessage {
    body: Vec<u8>,
    payload: FramePayload,
    owner: Option<MessageOwner>,
    tag: Option<AckTag>,
}

impl LinkMessage {
    fn acked(&self) -> Acked {
        Acked { owner: self.owner, tag: self.tag }
    }

    fn names(&self, region: MemRegion) -> bool {
        self.payload.iter().any(|piece| piece.region == region)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum ReceivedFrame<'a> {
    /// The next message, encoded.
    Message(&'a [u8]),
    /// Nothing for the upper layer: bare, duplicate, or out of order.
    Nothing,
}

/// How a frame relates to the link with its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameAge {
    /// The frame belongs to a link that one of the two ends has given up.
    Stale,
    Current,
    /// The sender has given this link up and made another.
    Newer,
}

#[derive(Debug)]
pub struct Link {
    /// Numbers of this end and of the other; 0: the other is not known yet.
    number: u32,
    other: u32,
    /// A frame of the other end has named this end.
    is_named: bool,
    entries: VecDeque<LinkMessage>,
    /// Buffers for the bodies of messages to come.
    spare: Vec<Vec<u8>>,
    una: u64,
    cursor: u64,
    highest_sent: u64,
    /// Payload queued and in flight.
    payload_bytes: u64,
    /// Bytes of payload that may be queued and in flight before bulk waits.
    window: u64,
    /// Payload sent since the last request for an acknowledgement.
    bytes_since_ack_request: u64,
    /// Acknowledgement was requested up to this number.
    ack_requested: u64,
    rto_floor: Duration,
    backoff: u32,
    timer: Option<Instant>,
    expected: u64,
    unacked_frames: u32,
    ack_due: Option<Instant>,
    round_trip: RoundTrip,
    last_received: Instant,
    /// The last time at which the other end owed nothing.
    owed_since: Instant,
    heartbeat: Option<Duration>,
    retransmissions: u64,
}

impl Link {
    /// A new end; `number` exceeds the numbers of former ends. `rto_floor` bounds the retransmission timer from below.
    pub fn new(number: u32, now: Instant, rto_floor: Duration) -> Self {
        Link {
            number,
            other: 0,
            is_named: false,
            entries: VecDeque::new(),
            spare: Vec::new(),
            una: 0,
            cursor: 0,
            highest_sent: 0,
            payload_bytes: 0,
            window: 0,
            bytes_since_ack_request: 0,
            ack_requested: 0,
            rto_floor,
            backoff: 0,
            timer: None,
            expected: 0,
            unacked_frames: 0,
            ack_due: None,
            round_trip: RoundTrip::default(),
            last_received: now,
            owed_since: now,
            heartbeat: None,
            retransmissions: 0,
        }
    }

    /// Sets how many bytes of payload may be queued and in flight. A later message waits behind no more bytes.
    pub fn set_window(&mut self, bytes: u64) {
        self.window = bytes;
    }

    /// Whether bulk messages may be queued: the windows of messages and of bytes both have room.
    pub fn has_room(&self) -> bool {
        self.entries.len() < WINDOW && self.payload_bytes < self.window
    }

    pub(crate) fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    pub fn backlog(&self) -> usize {
        self.entries.len()
    }

    /// The shortest measured round trip: the delay of the path without queues.
    pub fn least_round_trip(&self) -> Option<Duration> {
        self.round_trip.least()
    }

    pub fn retransmissions(&self) -> u64 {
        self.retransmissions
    }

    /// From `now` on, the other end owes an acknowledgement of everything.
    pub fn expect_answer(&mut self, now: Instant) {
        self.owed_since = now;
    }

    /// Ignores the silence of the other end so far, and sends the unacknowledged messages again at once.
    pub(crate) fn resume(&mut self, now: Instant) {
        (self.cursor, self.timer, self.backoff) = (self.una, None, 0);
        self.owed_since = now;
    }

    pub fn has_received(&self) -> bool {
        self.round_trip.has_received()
    }

    /// Since when the other end has been silent although it owed a sign of life.
    pub fn silent_since(&self) -> Instant {
        self.last_received.max(self.owed_since)
    }

    /// Polls the other end for a sign of life after every `period` of silence; `None` disables it.
    pub fn set_heartbeat(&mut self, period: Option<Duration>) {
        self.heartbeat = period;
    }

    /// When to poll for a sign of life. `None` while the other end owes an acknowledgement anyway.
    pub fn beat_at(&self) -> Option<Instant> {
        self.heartbeat.filter(|_| self.entries.is_empty()).map(|period| self.silent_since() + period)
    }

    /// Queues a message. The message becomes void when `owner` ends. A repeatable message is skipped if an equal one is
    /// queued: the other end receives the equal message anyway.
    pub fn push(
        &mut self,
        now: Instant,
        message: &Message,
        payload: FramePayload,
        owner: Option<MessageOwner>,
        tag: Option<AckTag>,
    ) {
        if self.entries.is_empty() {
            self.owed_since = now;
            // Most links never hold more than one message at once, and there is one link for each peer.
            self.entries.reserve_exact(1);
        }
        let mut body = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(64));
        message.encode(&mut body);
        if message.is_repeatable() && self.entries.iter().rev().take(WINDOW).any(|e| e.body == body) {
            body.clear();
            return self.spare.push(body);
        }
        self.payload_bytes += payload_bytes(&payload);
        self.entries.push_back(LinkMessage { body, payload, owner, tag });
    }

    /// The unacknowledged messages, in order. The other end may not have received them.
    pub(crate) fn into_unacknowledged(self) -> impl Iterator<Item = (Message, FramePayload, Acked)> {
        self.entries.into_iter().map(|e| {
            let acked = e.acked();
            (Message::decode(&e.body).expect("own messages decode"), e.payload, acked)
        })
    }

    /// The owner has ended: voids its messages on this link.
    pub fn void_owner(&mut self, owner: MessageOwner) {
        self.void_if(|e| e.owner == Some(owner));
    }

    /// The memory is freed: messages that name it are sent [without payload](Message::without_payload). Returns how
    /// many of these messages had an owner.
    pub fn void_memory(&mut self, region: MemRegion) -> usize {
        self.void_if(|e| e.names(region))
    }

    fn void_if(&mut self, void: impl Fn(&LinkMessage) -> bool) -> usize {
        let mut owned = 0;
        for e in self.entries.iter_mut().filter(|e| void(e)) {
            let message = Message::decode(&e.body).expect("own messages decode");
            e.body.clear();
            message.without_payload().encode(&mut e.body);
            self.payload_bytes -= payload_bytes(&std::mem::take(&mut e.payload));
            owned += usize::from(e.owner.take().is_some());
            e.tag = None;
        }
        owned
    }

    pub(crate) fn frame_age(&self, header: &FrameHeader) -> FrameAge {
        match compare32(header.link, self.other) {
            Ordering::Greater if self.other != 0 => FrameAge::Newer,
            Ordering::Less if self.other != 0 => FrameAge::Stale,
            // A frame that names an older end acknowledges messages of that end.
            _ if header.to != 0 && header.to != self.number => FrameAge::Stale,
            _ => FrameAge::Current,
        }
    }

    /// Whether a frame carries the message that is expected next.
    pub(crate) fn is_next(&self, header: &FrameHeader) -> bool {
        let expected = expand32(header.seq, self.expected) == self.expected;
        self.frame_age(header) == FrameAge::Current && header.kind == FrameKind::Message && expected
    }

    /// The other end is new. If no frame has named this end, it stays and sends everything again. Returns whether it
    /// stays.
    pub(crate) fn adopt_new_end(&mut self) -> bool {
        if !self.is_named {
            (self.expected, self.unacked_frames, self.ack_due) = (0, 0, None);
            (self.cursor, self.timer) = (self.una, None);
        }
        !self.is_named
    }

    /// A [stale](FrameAge::Stale) frame. If its sender still uses the former link, the answer names this link.
    pub(crate) fn handle_stale(&mut self, now: Instant, header: &FrameHeader) {
        let is_older = self.other != 0 && compare32(header.link, self.other) == Ordering::Less;
        if header.kind == FrameKind::Message && !is_older {
            self.ack_due = Some(now);
        }
    }

    /// A frame of the other end of this link. Appends the messages that it acknowledges to `acked`.
    pub fn handle<'a>(
        &mut self,
        now: Instant,
        header: &FrameHeader,
        body: &'a [u8],
        acked: &mut Vec<Acked>,
    ) -> ReceivedFrame<'a> {
        self.other = header.link;
        self.last_received = now;
        self.round_trip.measure(now, header);
        self.is_named |= header.to == self.number;
        // A frame that names an older end acknowledges messages of that end.
        if header.to == 0 || header.to == self.number {
            self.handle_ack(now, expand32(header.ack, self.una), acked);
        }
        let seq = expand32(header.seq, self.expected);
        match header.kind {
            // A bare frame never answers a bare frame: two ends with gaps would answer each other forever.
            FrameKind::Bare => ReceivedFrame::Nothing,
            FrameKind::Message if seq == self.expected => {
                self.expected += 1;
                self.unacked_frames += 1;
                let due = if header.ack_now || self.unacked_frames >= ACK_EVERY { now } else { now + ACK_DELAY };
                self.ack_due = Some(self.ack_due.map_or(due, |d| d.min(due)));
                ReceivedFrame::Message(body)
            }
            FrameKind::Message => {
                self.ack_due = Some(now);
                ReceivedFrame::Nothing
            }
        }
    }

    fn handle_ack(&mut self, now: Instant, ack: u64, acked: &mut Vec<Acked>) {
        if ack <= self.una || ack > self.highest_sent {
            return;
        }
        // Entries are kept until their acknowledgement.
        for mut e in self.entries.drain(..(ack - self.una) as usize) {
            self.payload_bytes -= payload_bytes(&e.payload);
            acked.push(e.acked());
            if self.spare.len() < MAX_SPARE {
                e.body.clear();
                self.spare.push(e.body);
            }
        }
        self.una = ack;
        self.cursor = self.cursor.max(self.una);
        self.bytes_since_ack_request = self.bytes_since_ack_request.min(self.payload_bytes);
        self.backoff = 0;
        self.timer = (self.cursor > self.una).then(|| now + self.rto());
    }

    fn rto(&self) -> Duration {
        (self.round_trip.timeout(self.rto_floor) * (1 << self.backoff.min(6))).min(MAX_RTO.max(self.rto_floor))
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        if self.timer.is_some_and(|t| t <= now) {
            self.retransmissions += self.cursor - self.una;
            self.cursor = self.una;
            self.backoff += 1;
            self.timer = None;
        }
    }

    /// The next frame to send at `now`, header and payload: a message, else an acknowledgement that is due.
    pub fn poll(&mut self, now: Instant) -> Option<(FrameBytes, FramePayload)> {
        self.poll_message(now).or_else(|| self.poll_bare(now))
    }

    /// The next frame that carries a message. A caller that can queue more messages does so before [`Self::poll`]: a
    /// message also carries the acknowledgement that would else leave in a frame of its own.
    pub fn poll_message(&mut self, now: Instant) -> Option<(FrameBytes, FramePayload)> {
        let is_blocked = self.is_blocked();
        if is_blocked || self.beat_at().is_some_and(|t| t <= now) {
            self.push(now, &Message::Void, FramePayload::default(), None, None);
        }
        let e = self.entries.get(self.in_flight()).filter(|_| self.in_flight() < WINDOW)?;
        let (payload, tagged) = (e.payload.clone(), e.tag.is_some_and(|tag| tag.urgent));
        let seq = self.cursor;
        self.cursor += 1;
        self.highest_sent = self.highest_sent.max(self.cursor);
        if self.timer.is_none() {
            self.timer = Some(now + self.rto());
        }
        self.bytes_since_ack_request += payload_bytes(&payload);
        // An acknowledgement is requested for the first round trip, and when the window is nearly full, so that waiting
        // bulk can continue. Traffic in the other direction acknowledges the rest.
        let fills = !payload.is_empty() && self.bytes_since_ack_request >= self.window / 4 * 3;
        let ask = tagged || self.round_trip.smoothed().is_none() || fills || is_blocked;
        if ask {
            self.bytes_since_ack_request = 0;
            self.ack_requested = self.cursor;
        }
        let header = self.header(now, FrameKind::Message, seq, ask, &payload);
        let frame = header.frame(&self.entries[(seq - self.una) as usize].body);
        self.acknowledged();
        Some((frame, payload))
    }

    /// Whether [`Self::poll_message`] has a queued message, whatever the time.
    pub fn has_message(&self) -> bool {
        self.in_flight() < self.entries.len().min(WINDOW) || self.is_blocked()
    }

    /// More is in flight than the window allows, and no queued message could request an acknowledgement.
    fn is_blocked(&self) -> bool {
        self.payload_bytes > 0 && !self.has_room() && self.all_sent() && self.ack_requested <= self.una
    }

    fn in_flight(&self) -> usize {
        (self.cursor - self.una) as usize
    }

    fn poll_bare(&mut self, now: Instant) -> Option<(FrameBytes, FramePayload)> {
        self.ack_due.filter(|t| *t <= now)?;
        let header = self.header(now, FrameKind::Bare, self.cursor, false, &[]);
        self.acknowledged();
        Some((header.frame(&[]), FramePayload::default()))
    }

    fn all_sent(&self) -> bool {
        self.in_flight() == self.entries.len()
    }

    fn header(&self, now: Instant, kind: FrameKind, seq: u64, ack_now: bool, payload: &[MemRef]) -> FrameHeader {
        let (echo, echo_age) = self.round_trip.echo(now);
        FrameHeader {
            kind,
            ack_now,
            link: self.number,
            to: self.other,
            seq: seq as u32,
            ack: self.expected as u32,
            payload_len: payload_bytes(payload) as u32,
            clock: micros(now),
            echo,
            echo_age,
        }
    }

    /// Every frame that leaves acknowledges all received messages.
    fn acknowledged(&mut self) {
        self.ack_due = None;
        self.unacked_frames = 0;
    }

    /// When [`Self::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timer
    }

    /// When [`Self::poll`] has a separate acknowledgement to send.
    pub fn ack_due(&self) -> Option<Instant> {
        self.ack_due
    }
}

#[cfg(test)]
mod tests;
