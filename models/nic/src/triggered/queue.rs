//! One queue pair with its completion queues: posted requests, messages in flight, completions.
//!
//! | sending is | event | becomes |
//! |---|---|---|
//! | going | a send is enabled | going, its message is in flight |
//! | going | the oldest message in flight is taken | going, with one more completion |
//! | going | the oldest message in flight finds no receive | resting: all messages in flight are to be sent again |
//! | resting | the rest is over | going, from that message on |
//!
//! Messages arrive in order. A message that finds no enabled receive is rejected, and later messages are dropped until
//! the rejected one comes again. Invariants: `flying <= enabled <= sends.len()`, `ready <= receives.len()`; while
//! resting, `flying == 0`.

use std::collections::VecDeque;

use crate::engine::MemorySegment;

/// A send whose message has not been taken yet.
#[derive(Debug, Clone)]
pub(super) struct PostedSend {
    /// The places from which the message is gathered.
    pub(super) from: Vec<MemorySegment>,
    /// The place in the NIC to which the bytes were copied with the request.
    pub(super) inline: Option<u32>,
}

/// The fate of a message that arrives.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ArrivalOutcome {
    /// The message goes to this place, if it has bytes.
    Taken(Option<MemorySegment>),
    NotReady,
    /// The message follows one that was rejected.
    Behind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendState {
    Going,
    Resting { until: u64 },
}

#[derive(Debug)]
pub(super) struct QueuePair {
    sends: VecDeque<PostedSend>,
    /// The number of the first send.
    first: u64,
    enabled: usize,
    flying: usize,
    sending: SendState,
    receives: VecDeque<Option<MemorySegment>>,
    /// Number of receives that are enabled.
    ready: usize,
    /// The number of the next message to arrive.
    expected: u64,
    /// Completions that no request has consumed: messages taken by the peer, and messages that arrived.
    pub(super) sent: u32,
    pub(super) received: u32,
}

impl QueuePair {
    pub(super) fn new() -> Self {
        QueuePair {
            sends: VecDeque::new(),
            first: 0,
            enabled: 0,
            flying: 0,
            sending: SendState::Going,
            receives: VecDeque::new(),
            ready: 0,
            expected: 0,
            sent: 0,
            received: 0,
        }
    }

    pub(super) fn post_send(&mut self, send: PostedSend) {
        self.sends.push_back(send);
    }

    pub(super) fn enable_sends(&mut self, count: u32) {
        self.enabled += count as usize;
        assert!(self.enabled <= self.sends.len(), "more sends are enabled than posted");
    }

    pub(super) fn post_receive(&mut self, into: Option<MemorySegment>) {
        self.receives.push_back(into);
    }

    pub(super) fn enable_receives(&mut self, count: u32) {
        self.ready += count as usize;
        assert!(self.ready <= self.receives.len(), "more receives are enabled than posted");
    }

    /// The next message that may leave, with its number.
    pub(super) fn next_message(&mut self) -> Option<(u64, &PostedSend)> {
        if self.sending != SendState::Going || self.flying == self.enabled {
            return None;
        }
        self.flying += 1;
        Some((self.first + self.flying as u64 - 1, &self.sends[self.flying - 1]))
    }

    /// Removes the oldest message in flight, which the peer has taken; returns its send.
    pub(super) fn acknowledge(&mut self, number: u64) -> PostedSend {
        assert!(self.flying > 0 && number == self.first, "message {number} is not the oldest on its way");
        (self.first, self.enabled, self.flying) = (self.first + 1, self.enabled - 1, self.flying - 1);
        self.sent += 1;
        self.sends.pop_front().expect("it is on its way")
    }

    /// Handles that the oldest message in flight has found no receive: sending rests until `until`.
    pub(super) fn handle_not_ready(&mut self, number: u64, until: u64) {
        assert!(self.flying > 0 && number == self.first, "message {number} is not the oldest on its way");
        self.flying = 0;
        self.sending = SendState::Resting { until };
    }

    /// Ends the rest if it is due at `now`; returns whether sending resumes.
    pub(super) fn wake(&mut self, now: u64) -> bool {
        let wakes = matches!(self.sending, SendState::Resting { until } if until <= now);
        if wakes {
            self.sending = SendState::Going;
        }
        wakes
    }

    /// Handles an arriving message of `bytes` bytes.
    pub(super) fn handle_arrival(&mut self, number: u64, bytes: u64) -> ArrivalOutcome {
        assert!(number >= self.expected, "message {number} came before");
        if number > self.expected {
            return ArrivalOutcome::Behind;
        }
        if self.ready == 0 {
            return ArrivalOutcome::NotReady;
        }
        let into = self.receives.pop_front().expect("enabled, so posted");
        assert!(bytes <= into.map_or(0, |place| place.len), "{bytes} B are longer than their place");
        (self.ready, self.expected, self.received) = (self.ready - 1, self.expected + 1, self.received + 1);
        ArrivalOutcome::Taken(into.filter(|_| bytes > 0).map(|place| MemorySegment { len: bytes, ..place }))
    }

    /// Whether only `preposted` receives are posted, and no completion is left.
    pub(super) fn is_idle(&self, preposted: u32) -> bool {
        self.sends.is_empty() && self.receives.len() == preposted as usize && (self.sent, self.received) == (0, 0)
    }

    /// The places in the NIC that the sends occupy.
    pub(super) fn inline(&self) -> impl Iterator<Item = u32> {
        self.sends.iter().filter_map(|send| send.inline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{AddressSpace, Port};

    fn place(address: u64) -> MemorySegment {
        MemorySegment { region: AddressSpace::Host(Port(0)), address, len: 8 }
    }

    fn send(address: u64) -> PostedSend {
        PostedSend { from: vec![place(address)], inline: None }
    }

    /// CD-1: sends are held until enabled; a message without a receive is sent again with all later ones, in order.
    #[test]
    fn cd_1_rejected_message_is_resent_with_all_later_ones() {
        let (mut from, mut to) = (QueuePair::new(), QueuePair::new());
        (0..3).for_each(|at| from.post_send(send(at)));
        assert!(from.next_message().is_none(), "held");
        from.enable_sends(3);
        let numbers: Vec<u64> = std::iter::from_fn(|| from.next_message().map(|(number, _)| number)).collect();
        assert_eq!(numbers, [0, 1, 2]);
        to.post_receive(Some(place(0)));
        assert_eq!(to.handle_arrival(0, 8), ArrivalOutcome::NotReady, "held");
        to.enable_receives(1);
        assert_eq!(
            (to.handle_arrival(1, 8), to.handle_arrival(2, 8)),
            (ArrivalOutcome::Behind, ArrivalOutcome::Behind)
        );
        from.handle_not_ready(0, 50);
        assert!(!from.wake(49) && from.next_message().is_none() && from.wake(50));
        assert_eq!(from.next_message().map(|(number, _)| number), Some(0));
        assert_eq!(to.handle_arrival(0, 4), ArrivalOutcome::Taken(Some(MemorySegment { len: 4, ..place(0) })));
        from.acknowledge(0);
        assert_eq!((from.sent, to.received), (1, 1));
    }
}
