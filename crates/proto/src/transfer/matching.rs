//! Matches messages with receives by name, whichever comes first.
//!
//! | a name has | event | next |
//! |---|---|---|
//! | nothing, messages | a message | messages, the new one last |
//! | nothing, receives | a receive | receives, the new one last |
//! | messages | a receive | the receive takes the first message |
//! | receives | a message | the first receive takes the message |
//!
//! Invariants: a name never has both messages and receives. Messages of a name are taken in the order of arrival
//! (non-overtaking), which is the order of sending. The names of a recorded group are used once. No wildcards: a
//! receive names its source and tag.

use std::ops::RangeInclusive;

use outboard_plan::Rank;

use super::queues::Queues;
use crate::error::CollectiveError;
use crate::wire::{Fragment, Scope};

/// Names a message. All single messages with the same pair and tag share a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MessageName {
    pub(crate) scope: Scope,
    pub(crate) destination: Rank,
    pub(crate) source: Rank,
    pub(crate) tag: u32,
    pub(crate) occurrence: u32,
}

impl MessageName {
    /// All names of a scope.
    pub(crate) fn all_of(scope: Scope) -> RangeInclusive<MessageName> {
        let name = |n| MessageName { scope, destination: Rank(n), source: Rank(n), tag: n, occurrence: n };
        name(0)..=name(u32::MAX)
    }

    /// The name of an expected message.
    pub(crate) fn of(fragment: &Fragment) -> MessageName {
        let &Fragment { instance, source, destination, index: tag, .. } = fragment;
        MessageName { scope: Scope::Instance(instance), destination, source, tag, occurrence: 0 }
    }

    /// The error when the two ends do not agree on the message's bytes.
    pub(crate) fn mismatch(&self, sent: u64, expected: u64) -> CollectiveError {
        let MessageName { scope, destination, source: source_rank, tag, .. } = *self;
        match scope {
            Scope::Instance(_) => CollectiveError::Block { source_rank, sent, destination, expected },
            Scope::Single | Scope::Recorded { .. } => {
                CollectiveError::Message { source_rank, destination, tag, sent, expected }
            }
        }
    }
}

/// Messages `M` without receive and receives `R` without message.
#[derive(Debug)]
pub(crate) struct Matching<M, R> {
    messages: Queues<MessageName, M>,
    receives: Queues<MessageName, R>,
    /// Number of messages of all names.
    waiting: usize,
}

impl<M, R> Default for Matching<M, R> {
    fn default() -> Self {
        Matching { messages: Queues::default(), receives: Queues::default(), waiting: 0 }
    }
}

impl<M, R> Matching<M, R> {
    /// Removes and returns the oldest receive that waits for a message of this name.
    pub(crate) fn receive_for(&mut self, name: &MessageName) -> Option<R> {
        self.receives.pop(name)
    }

    /// Keeps a message for which no receive waits.
    pub(crate) fn keep_message(&mut self, name: MessageName, message: M) {
        assert!(!self.receives.has(&name), "a receive that waits takes the message");
        self.messages.push(name, message);
        self.waiting += 1;
    }

    /// Removes and returns the oldest message of this name.
    pub(crate) fn message_for(&mut self, name: &MessageName) -> Option<M> {
        let message = self.messages.pop(name);
        self.waiting -= usize::from(message.is_some());
        message
    }

    /// Keeps a receive for which no message has come.
    pub(crate) fn keep_receive(&mut self, name: MessageName, receive: R) {
        assert!(!self.messages.has(&name), "a receive takes the message that is there");
        self.receives.push(name, receive);
    }

    /// Replaces the message of a name that is used once.
    pub(crate) fn replace_message(&mut self, name: &MessageName, message: M) {
        if let Some(last) = self.messages.first_mut(name) {
            *last = message;
        }
    }

    /// The oldest receive that waits for a message of this name.
    pub(crate) fn waiting_receive(&mut self, name: &MessageName) -> Option<&mut R> {
        self.receives.first_mut(name)
    }

    pub(crate) fn has_message(&self, name: &MessageName) -> bool {
        self.messages.has(name)
    }

    pub(crate) fn has_receive(&self, name: &MessageName) -> bool {
        self.receives.has(name)
    }

    pub(crate) fn messages_of(&self, scope: Scope) -> impl Iterator<Item = (&MessageName, &M)> {
        self.messages.range(MessageName::all_of(scope))
    }

    pub(crate) fn receives_of(&self, scope: Scope) -> impl Iterator<Item = (&MessageName, &R)> {
        self.receives.range(MessageName::all_of(scope))
    }

    pub(crate) fn messages(&self) -> usize {
        self.waiting
    }

    pub(crate) fn receives(&self) -> impl Iterator<Item = (&MessageName, &R)> {
        self.receives.iter()
    }

    /// Removes messages that will not be received any more.
    pub(crate) fn extract_messages(&mut self, gone: impl FnMut(&MessageName, &M) -> bool) -> Vec<(MessageName, M)> {
        let extracted = self.messages.extract(gone);
        self.waiting -= extracted.len();
        extracted
    }

    /// Removes receives that will have no message.
    pub(crate) fn extract_receives(&mut self, gone: impl FnMut(&MessageName, &R) -> bool) -> Vec<(MessageName, R)> {
        self.receives.extract(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(source: u32, tag: u32) -> MessageName {
        MessageName { scope: Scope::Single, destination: Rank(0), source: Rank(source), tag, occurrence: 0 }
    }

    /// GP-1: messages match by source and tag, in order.
    #[test]
    fn messages_of_one_name_stay_in_order() {
        let mut matching = Matching::default();
        for (message, tag) in [(1, 7), (2, 7), (3, 8)] {
            assert_eq!(matching.receive_for(&name(1, tag)), None::<char>);
            matching.keep_message(name(1, tag), message);
        }
        assert_eq!(matching.message_for(&name(2, 7)), None);
        assert_eq!(matching.message_for(&name(1, 8)), Some(3));
        assert_eq!(matching.message_for(&name(1, 7)), Some(1));
        assert_eq!(matching.extract_messages(|_, message| *message == 2), [(name(1, 7), 2)]);
        matching.keep_receive(name(1, 7), 'a');
        matching.keep_receive(name(1, 7), 'b');
        assert_eq!(matching.receive_for(&name(1, 7)), Some('a'));
        assert_eq!(matching.extract_receives(|name, _| name.source == Rank(1)), [(name(1, 7), 'b')]);
        assert!(
            matching.messages.is_empty() && matching.receives.is_empty(),
            "what has met its other end is forgotten"
        );
    }

    /// The bound on waiting messages counts messages, not names.
    #[test]
    fn messages_of_one_name_count_each() {
        let mut matching: Matching<u32, char> = Matching::default();
        (0..3).for_each(|message| matching.keep_message(name(1, 7), message));
        assert_eq!(matching.messages(), 3);
        matching.message_for(&name(1, 7));
        assert_eq!((matching.message_for(&name(1, 8)), matching.messages()), (None, 2));
        matching.extract_messages(|_, message| *message == 1);
        assert_eq!(matching.messages(), 1);
    }
}
