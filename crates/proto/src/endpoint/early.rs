//! Messages about groups that no local rank has asked for yet.
//!
//! They are kept within a bound, and for as long as a group may take to be asked for. A message that is not kept is
//! counted as a violation; steps of the barrier that makes a group are sent again on request
//! ([`GroupMessage::Ask`](crate::wire::GroupMessage)). Never looks at what the messages say.

use std::collections::VecDeque;
use std::time::Duration;

use crate::ids::{GroupHandle, Instant, SpId};
use crate::wire::Message;

/// Bytes of all messages that are kept.
const MOST: usize = 16 << 20;

#[derive(Debug)]
struct Kept {
    at: Instant,
    from: SpId,
    bytes: usize,
    message: Message,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Early {
    kept: VecDeque<Kept>,
    bytes: usize,
}

impl Early {
    /// Keeps a message behind those that came before; false if there is no room.
    pub(super) fn keep(&mut self, at: Instant, from: SpId, message: Message) -> bool {
        let mut encoded = Vec::new();
        message.encode(&mut encoded);
        let bytes = size_of::<Kept>() + encoded.len();
        let fits = self.bytes + bytes <= MOST;
        if fits {
            self.bytes += bytes;
            self.kept.push_back(Kept { at, from, bytes, message });
        }
        fits
    }

    /// The messages about this group, in the order in which they came.
    pub(super) fn take(&mut self, handle: GroupHandle) -> Vec<(SpId, Message)> {
        let about = |one: &Kept| matches!(one.message, Message::Group { group, .. } if group == handle);
        self.remove(about).into_iter().map(|one| (one.from, one.message)).collect()
    }

    /// A peer is lost, with its messages.
    pub(super) fn forget(&mut self, peer: SpId) {
        self.remove(|one| one.from == peer);
    }

    /// Forgets what is older than `limit`.
    pub(super) fn age(&mut self, now: Instant, limit: Duration) {
        while self.kept.front().is_some_and(|one| now.since(one.at) > limit)
            && let Some(old) = self.kept.pop_front()
        {
            self.bytes -= old.bytes;
        }
    }

    fn remove(&mut self, gone: impl Fn(&Kept) -> bool) -> VecDeque<Kept> {
        if !self.kept.iter().any(&gone) {
            return VecDeque::new();
        }
        let (removed, kept) = std::mem::take(&mut self.kept).into_iter().partition(gone);
        self.kept = kept;
        self.bytes = self.kept.iter().map(|one| one.bytes).sum();
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::InstanceId;
    use crate::wire::InstanceMessage;

    fn about(group: u32) -> Message {
        Message::instance(GroupHandle(group), InstanceId(1), InstanceMessage::Inquire)
    }

    #[test]
    fn kept_messages_are_bounded_and_age() {
        let (mut early, second) = (Early::default(), Duration::from_secs(1));
        assert!(early.keep(Instant(0), SpId(2), about(2)));
        let most = (0..10_000_000).take_while(|_| early.keep(Instant(0) + second, SpId(1), about(1))).count();
        assert!(most > 10_000 && most < 1_000_000, "{most}");
        assert_eq!(early.take(GroupHandle(2)), [(SpId(2), about(2))]);
        assert!(early.keep(Instant(0) + second * 2, SpId(3), about(3)), "a message that is taken leaves room");
        early.age(Instant(0) + second * 3, second);
        assert_eq!(early.kept.len(), 1, "the last is young");
        early.forget(SpId(3));
        assert_eq!((early.bytes, early.take(GroupHandle(3))), (0, Vec::new()));
    }
}
