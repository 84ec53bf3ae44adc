//! One peer, and its part in what is kept of all.
//!
//! Invariant: [`Peer::stands`] tells that part from the peer alone; it changes nothing.

use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::ids::{GroupHandle, Instant};
use crate::link::{Acked, Link, Received};
use crate::wire::FrameHeader;

/// A peer that was heard for so long without a new acknowledgement may not hear us.
const DEAF_FROM: Duration = Duration::from_millis(100);
/// How much longer such a peer may be silent. The end of a one-way cut that hears nothing reports the other end first,
/// so that all ranks that can hear of both name that one.
const DEAF_SILENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(in crate::endpoint) struct Peer {
    pub(in crate::endpoint) link: Link,
    /// Known once a group with it is asked for here; nothing can be sent before.
    pub(in crate::endpoint) address: Option<Arc<[u8]>>,
    /// Groups in whose ring it is a neighbour.
    pub(super) watched_by: u32,
    pub(super) groups: u32,
    /// The driver has no room for frames to it, and asks for none.
    pub(super) full: bool,
    pub(super) dead_after: Duration,
    /// For how long it was heard and acknowledged nothing new that it owed.
    pub(super) deaf_for: Duration,
    /// It knew of us over a link before this one.
    pub(super) knows_us: bool,
    /// It has been asked for a group by its ranks' offers, with our address.
    pub(super) asked: bool,
    /// It waits for a rank here to ask for a group.
    pub(super) asks: bool,
    /// The group whose bulk was queued last.
    pub(super) served: Option<GroupHandle>,
    pub(super) standing: Standing,
}

/// One peer's part in what is kept of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Standing {
    /// Its link has a message to send.
    pub(super) message: bool,
    /// When its link has an acknowledgement to send by itself.
    pub(super) ack: Option<Instant>,
    /// When a sign of life is to be asked for.
    pub(super) beat: Option<Instant>,
    /// When [`Peers::handle_timeout`] is due.
    pub(super) timer: Option<Instant>,
    /// Messages that wait to be sent or acknowledged.
    pub(super) backlog: usize,
    /// Bytes of payload in them.
    pub(super) payload: u64,
    /// Its address is known, and it may be sent something yet.
    pub(super) met: bool,
    /// It has no group with us, and nothing is on its way.
    pub(super) past: bool,
    pub(super) retransmissions: u64,
}

impl Peer {
    /// A peer that was heard before a group with it was asked for here.
    pub(super) fn unknown(number: u32, now: Instant, config: &Config) -> Self {
        Peer {
            link: Link::new(number, now, config.retransmit_floor),
            address: None,
            watched_by: 0,
            groups: 0,
            full: false,
            dead_after: config.dead_after,
            deaf_for: Duration::ZERO,
            knows_us: false,
            asked: false,
            asks: false,
            served: None,
            standing: Standing::default(),
        }
    }

    /// Whether silence means that it is dead. A member of a group that was never heard may not have been asked for the
    /// group yet; without a group nothing waits for it.
    fn has_to_answer(&self) -> bool {
        self.link.heard() || self.watched_by > 0 || self.knows_us || self.asked || self.groups == 0
    }

    /// When it has owed an acknowledgement for too long.
    pub(super) fn dies_at(&self) -> Option<Instant> {
        let grace = if self.deaf_for < DEAF_FROM { Duration::ZERO } else { DEAF_SILENCE };
        (self.link.backlog() > 0 && self.address.is_some() && self.has_to_answer())
            .then(|| self.link.last_owed() + self.dead_after + grace)
    }

    /// Takes a frame of it. The silence before counts to its deafness as far as it may last: we may have been stopped.
    pub(super) fn hear<'a>(
        &mut self,
        (now, config): (Instant, &Config),
        (frame, body): (&FrameHeader, &'a [u8]),
        acked: &mut Vec<Acked>,
    ) -> Received<'a> {
        self.dead_after = config.dead_after;
        let (silence, before) = (now.since(self.link.last_owed()).min(config.dead_after), acked.len());
        let owed = self.link.backlog() > 0;
        let received = self.link.handle(now, frame, body, acked);
        self.deaf_for = if owed && acked.len() == before { self.deaf_for + silence } else { Duration::ZERO };
        received
    }

    pub(super) fn stands(&self) -> Standing {
        let reachable = self.address.is_some();
        let link = &self.link;
        let has_room = reachable && !self.full;
        let ack = link.ack_due().filter(|_| reachable);
        let needed = self.groups > 0 || self.asks || link.backlog() > 0 || ack.is_some();
        let met = needed && reachable;
        let timers = [link.poll_timeout().filter(|_| reachable), self.dies_at()];
        Standing {
            message: has_room && link.has_message(),
            ack: ack.filter(|_| has_room),
            beat: link.beat_at().filter(|_| has_room),
            timer: timers.into_iter().flatten().min(),
            backlog: link.backlog(),
            payload: link.payload_bytes(),
            met,
            past: !needed,
            retransmissions: link.retransmissions(),
        }
    }
}
