//! Messages about groups that no local rank has requested yet.
//!
//! The messages are kept within a bound, and for the time limit of requesting a group. A message that is not kept
//! counts as a violation; steps of the barrier that makes a group are sent again on request
//! ([`GroupMessage::RequestStep`](crate::wire::GroupMessage)). Never reads the contents of the messages.

use std::collections::VecDeque;
use std::time::Duration;

use crate::ids::{GroupHandle, Instant, SpId};
use crate::wire::Message;

/// Most messages that are kept.
const MAX_MESSAGES: usize = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct PendingGroupMessages(VecDeque<(Instant, SpId, Message)>);

impl PendingGroupMessages {
    /// Keeps a message behind the messages that came before; false if there is no room.
    pub(super) fn keep(&mut self, at: Instant, from: SpId, message: Message) -> bool {
        let fits = self.0.len() < MAX_MESSAGES;
        self.0.extend(fits.then_some((at, from, message)));
        fits
    }

    /// The messages about this group, in the order in which they came.
    pub(super) fn take(&mut self, handle: GroupHandle) -> Vec<(SpId, Message)> {
        let about = |message: &Message| matches!(message, Message::Group { group, .. } if *group == handle);
        let all = std::mem::take(&mut self.0).into_iter();
        let (taken, kept): (VecDeque<_>, _) = all.partition(|(.., message)| about(message));
        self.0 = kept;
        taken.into_iter().map(|(_, from, message)| (from, message)).collect()
    }

    pub(super) fn forget(&mut self, peer: SpId) {
        self.0.retain(|(_, from, _)| *from != peer);
    }

    pub(super) fn expire(&mut self, now: Instant, limit: Duration) {
        let old = self.0.iter().take_while(|(at, ..)| now.since(*at) > limit).count();
        self.0.drain(..old);
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
    fn pending_messages_are_bounded_and_expire() {
        let (mut pending, second) = (PendingGroupMessages::default(), Duration::from_secs(1));
        assert!(pending.keep(Instant(0), SpId(2), about(2)));
        let more = (0..2 * MAX_MESSAGES).take_while(|_| pending.keep(Instant(0) + second, SpId(1), about(1))).count();
        assert_eq!(more, MAX_MESSAGES - 1);
        assert_eq!(pending.take(GroupHandle(2)), [(SpId(2), about(2))]);
        assert!(pending.keep(Instant(0) + second * 2, SpId(3), about(3)), "a message that is taken leaves room");
        pending.expire(Instant(0) + second * 3, second);
        assert_eq!(pending.0.len(), 1, "the last is young");
        pending.forget(SpId(3));
        assert_eq!(pending.take(GroupHandle(3)), []);
    }
}
