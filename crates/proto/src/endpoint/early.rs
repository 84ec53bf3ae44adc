//! What peers say about groups that no local rank has asked for yet.
//!
//! It is kept within a bound for each peer and one for all together, and for as long as a group may take to be asked
//! for: one that floods us harms no other's groups. What is not kept is counted as a violation; steps of the barrier
//! that makes a group are said again when we ask for them ([`GroupMessage::Ask`](crate::wire::GroupMessage)). Never
//! looks at what the messages say.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::ids::{GroupHandle, Instant, SpId};
use crate::wire::Message;

/// Bytes of one peer: some thousand steps of groups.
const MOST_OF_ONE: usize = 1 << 20;
/// Bytes of all peers.
const MOST_OF_ALL: usize = 16 << 20;

/// A message with when it came and how many bytes it takes.
type Kept = (Instant, usize, Message);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Early {
    by_sender: BTreeMap<SpId, (usize, VecDeque<Kept>)>,
    bytes: usize,
}

impl Early {
    /// Keeps a message behind those that its sender has said before; false if there is no room.
    pub(super) fn keep(&mut self, now: Instant, from: SpId, message: Message) -> bool {
        let mut encoded = Vec::new();
        message.encode(&mut encoded);
        let size = size_of::<Kept>() + encoded.len();
        let held = self.by_sender.get(&from).map_or(0, |(bytes, _)| *bytes);
        if held + size > MOST_OF_ONE || self.bytes + size > MOST_OF_ALL {
            return false;
        }
        let (bytes, kept) = self.by_sender.entry(from).or_default();
        kept.push_back((now, size, message));
        *bytes += size;
        self.bytes += size;
        true
    }

    /// What is about this group, in the order of each sender.
    pub(super) fn take(&mut self, handle: GroupHandle) -> Vec<(SpId, Message)> {
        let mut taken = Vec::new();
        self.retain(|from, (_, _, message)| {
            let about = matches!(message, Message::Group { group, .. } if *group == handle);
            if about {
                taken.push((from, std::mem::replace(message, Message::Void)));
            }
            !about
        });
        taken
    }

    /// A peer is lost, with all that it has said.
    pub(super) fn forget(&mut self, peer: SpId) {
        self.bytes -= self.by_sender.remove(&peer).map_or(0, |(bytes, _)| bytes);
    }

    /// Forgets what is older than `limit`.
    pub(super) fn age(&mut self, now: Instant, limit: Duration) {
        if self.by_sender.values().any(|(_, kept)| kept.front().is_some_and(|(at, ..)| now.since(*at) > limit)) {
            self.retain(|_, (at, ..)| now.since(*at) <= limit);
        }
    }

    fn retain(&mut self, mut stays: impl FnMut(SpId, &mut Kept) -> bool) {
        let before = self.bytes;
        let mut freed = 0;
        self.by_sender.retain(|from, (bytes, kept)| {
            kept.retain_mut(|one| {
                let stays = stays(*from, one);
                if !stays {
                    *bytes -= one.1;
                    freed += one.1;
                }
                stays
            });
            !kept.is_empty()
        });
        self.bytes = before - freed;
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
    fn what_is_kept_is_bounded_for_one_peer_and_for_all_and_ages() {
        let (mut early, second) = (Early::default(), Duration::from_secs(1));
        let flood =
            |early: &mut Early, from| (0..1_000_000).take_while(|_| early.keep(Instant(0), from, about(1))).count();
        let most = flood(&mut early, SpId(1));
        assert!(most > 1000 && most < 100_000, "{most}");
        assert!(early.keep(Instant(0) + second, SpId(2), about(2)), "another has room");
        let further = (3..1000).map(SpId).take_while(|from| flood(&mut early, *from) == most).count();
        assert!(further < 16, "{further} peers have filled all");
        assert_eq!(early.take(GroupHandle(2)), [(SpId(2), about(2))]);
        early.age(Instant(0) + second * 2, second);
        assert_eq!((early.bytes, early.by_sender.len()), (0, 0));
        assert!(early.keep(Instant(0), SpId(1), about(1)));
        early.forget(SpId(1));
        assert_eq!((early.bytes, early.take(GroupHandle(1))), (0, Vec::new()));
    }
}
