//! One peer, and its part in the totals over all peers.
//!
//! Invariant: [`Peer::summary`] derives that part from the peer alone and changes nothing.

use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::ids::{GroupHandle, Instant};
use crate::link::{Acked, Link, ReceivedFrame};
use crate::wire::FrameHeader;

/// A peer that sends for this many silence limits without a new acknowledgement is lost. One limit is too short: frames
/// for the peer may wait behind other frames, and may be sent several times.
const DEAFNESS: u32 = 4;
/// A peer that sends for this long without a new acknowledgement may not receive our frames.
const DEAF_FROM: Duration = Duration::from_millis(100);
/// Extra silence for a peer that sends without a new acknowledgement. On a one-way cut the end that receives nothing
/// then reports the other end first. So all ranks connected to both ends name that other end.
const DEAF_SILENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(in crate::endpoint) struct Peer {
    pub(in crate::endpoint) link: Link,
    /// Known once a local rank requests a group with the peer; nothing can be sent before.
    pub(in crate::endpoint) address: Option<Arc<[u8]>>,
    /// Groups in whose ring the peer is a neighbour.
    pub(super) watched_by: u32,
    pub(super) groups: u32,
    /// The driver has no room for frames to the peer, and polls none.
    pub(super) full: bool,
    pub(super) dead_after: Duration,
    /// For how long the peer has sent frames but acknowledged nothing new that it owed.
    pub(super) deaf_for: Duration,
    /// The peer knew of us over a former link. This stays true until this link ends, also without any group.
    pub(super) knows_us: bool,
    /// The peer has our address from a `RequestStep`, or from a group that is made. This ends with the last group,
    /// because a peer without groups with us may forget the address.
    pub(super) has_address: bool,
    /// The peer waits for a local rank to request a group.
    pub(super) awaits_rank: bool,
    /// The group whose bulk was queued last for the peer.
    pub(super) served: Option<GroupHandle>,
    pub(super) summary: PeerSummary,
}

/// One peer's part in the totals over all peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PeerSummary {
    /// The link has a message to send.
    pub(super) message: bool,
    /// When the link has a separate acknowledgement to send.
    pub(super) ack: Option<Instant>,
    /// When the peer must be polled for a sign of life.
    pub(super) beat: Option<Instant>,
    /// When [`Peers::handle_timeout`] is due.
    pub(super) timer: Option<Instant>,
    /// Messages that wait for sending or acknowledgement.
    pub(super) backlog: usize,
    /// Bytes of payload in messages that wait for sending or acknowledgement.
    pub(super) payload: u64,
    /// The peer's address is known, and frames to it may still be needed.
    pub(super) connected: bool,
    /// The peer has no group with us, waits for no local rank, and is owed neither a message nor an acknowledgement.
    pub(super) idle: bool,
    pub(super) retransmissions: u64,
}

impl Peer {
    /// A peer whose first frame came before a local rank requested a group with it.
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
            has_address: false,
            awaits_rank: false,
            served: None,
            summary: PeerSummary::default(),
        }
    }

    /// Whether silence means that the peer is dead. Until a group is made, a member that has never sent may not know of
    /// the group. Without a group nothing waits for the peer.
    fn has_to_answer(&self) -> bool {
        self.link.has_received() || self.watched_by > 0 || self.knows_us || self.has_address || self.groups == 0
    }

    /// When the peer has owed an acknowledgement for too long.
    fn overdue_at(&self) -> Option<Instant> {
        let grace = if self.deaf_for < DEAF_FROM { Duration::ZERO } else { DEAF_SILENCE };
        (self.link.backlog() > 0 && self.address.is_some()).then(|| self.link.silent_since() + self.dead_after + grace)
    }

    /// Whether the peer sends but has acknowledged nothing new for too long. A partition may also cause this.
    pub(super) fn is_deaf(&self) -> bool {
        self.deaf_for >= self.dead_after.saturating_mul(DEAFNESS)
    }

    pub(super) fn dies_at(&self) -> Option<Instant> {
        let overdue_at = self.overdue_at().filter(|_| self.has_to_answer());
        if self.is_deaf() { overdue_at.map(|_| self.link.silent_since()) } else { overdue_at }
    }

    /// Handles a frame of the peer. The silence before the frame counts as deafness up to `dead_after`: we may have
    /// been stopped.
    pub(super) fn handle_frame<'a>(
        &mut self,
        now: Instant,
        config: &Config,
        frame: &FrameHeader,
        body: &'a [u8],
        acked: &mut Vec<Acked>,
    ) -> ReceivedFrame<'a> {
        self.dead_after = config.dead_after;
        let (silence, before) = (now.since(self.link.silent_since()).min(config.dead_after), acked.len());
        let owed = self.link.backlog() > 0;
        let received = self.link.handle(now, frame, body, acked);
        self.deaf_for = if owed && acked.len() == before { self.deaf_for + silence } else { Duration::ZERO };
        received
    }

    pub(super) fn summary(&self) -> PeerSummary {
        let reachable = self.address.is_some();
        let link = &self.link;
        let has_room = reachable && !self.full;
        let ack = link.ack_due().filter(|_| reachable);
        let needed = self.groups > 0 || self.awaits_rank || link.backlog() > 0 || ack.is_some();
        let connected = needed && reachable;
        let timers = [link.poll_timeout().filter(|_| reachable), self.dies_at()];
        PeerSummary {
            message: has_room && link.has_message(),
            ack: ack.filter(|_| has_room),
            beat: link.beat_at().filter(|_| has_room),
            timer: timers.into_iter().flatten().min(),
            backlog: link.backlog(),
            payload: link.payload_bytes(),
            connected,
            idle: !needed,
            retransmissions: link.retransmissions(),
        }
    }
}
