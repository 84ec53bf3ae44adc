//! Handles the end of a peer's connection. The peer's own connection may replace the ended one. Otherwise the peer is
//! dialled at once, dialled after a pause if the peer had no room, or lost. Also chooses peers that make way for
//! others. Never reads a connection.

use std::time::{Duration, Instant};

use crate::tcp::connection::ConnectionError;
use crate::tcp::{DIALING, PeerPath, SETTLED, Tcp, TcpPeer, listen};
use crate::{PeerId, PeerLoss};

impl Tcp {
    /// Ends connections that did not open in time.
    pub(super) fn expire(&mut self) -> usize {
        // The read fails only when the timer has not fired, and then there is nothing to read.
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        if std::mem::take(&mut self.accept_paused) {
            self.accept_paused = listen(&self.epoll, &self.listeners).is_err();
        }
        let now = Instant::now();
        let unfinished: Vec<_> =
            self.connections.iter().filter_map(|(&token, connection)| Some((token, connection.until()?))).collect();
        let late: Vec<_> = unfinished.iter().filter(|(_, until)| *until <= now).map(|(token, _)| *token).collect();
        self.ticking = self.accept_paused || late.len() < unfinished.len();
        if !self.ticking {
            self.tick(Duration::ZERO);
        }
        for token in &late {
            self.end(*token, ConnectionError::Slow);
        }
        for peer in std::mem::take(&mut self.pausing) {
            let Some(TcpPeer { path: PeerPath::Pausing { until }, broke, .. }) = self.peers.get_mut(&peer) else {
                continue;
            };
            let (until, why) = (*until, broke.take().unwrap_or(PeerLoss::Reset));
            self.dial_again(peer, until, why);
        }
        late.len()
    }

    /// Ends a connection. The peer's own connection replaces it, the peer is dialled once more, or the peer is lost.
    pub(super) fn end(&mut self, token: u64, why: ConnectionError) {
        let Some(connection) = self.connections.remove(&token) else { return };
        let hostile = match (&why, connection.peer) {
            (ConnectionError::Handshake(_) | ConnectionError::Malformed(_), _) => true,
            // A peer that proved this end's key and gave way to this end's dial is no stranger.
            (ConnectionError::Closed | ConnectionError::Kernel(_), None) => !connection.was_greeted(),
            (ConnectionError::Slow, peer) => peer.is_none(),
            (ConnectionError::Closed | ConnectionError::Kernel(_), Some(_)) => false,
        };
        if hostile {
            self.refusals.note(&connection.from(), connection.peer, &why);
        }
        let Some(peer) = connection.peer else {
            self.pending.discard(token);
            if let ConnectionError::Slow = why {
                connection.close_with_reset();
            }
            return;
        };
        let Some(known) = self.peers.get_mut(&peer).filter(|known| known.path.token() == Some(token)) else { return };
        let again = match known.path {
            PeerPath::Open { since, .. } => connection.has_carried_frames() || since.elapsed() >= SETTLED,
            PeerPath::Dialing(_) | PeerPath::Pausing { .. } => false,
        };
        let pause = connection.retry_until(&why);
        tracing::debug!(%peer, %why, again, ?pause, claimed = known.claimed, "a connection ended");
        let (claimed, why) = (known.claimed, known.broke.take().unwrap_or_else(|| why.into()));
        if self.promote_standby(peer) {
            return;
        }
        match (pause, self.peers.get_mut(&peer)) {
            (Some(until), Some(known)) if claimed => {
                (known.path, known.broke) = (PeerPath::Pausing { until }, Some(why));
                self.pausing.push(peer);
                self.start_ticking();
            }
            _ if claimed && again => self.dial_again(peer, Instant::now() + DIALING, why),
            _ => self.lose(peer, why),
        }
    }

    /// Dials a peer once more after the last connection ended because of `why`.
    fn dial_again(&mut self, peer: PeerId, until: Instant, why: PeerLoss) {
        let address = self.peers.get(&peer).and_then(|known| known.address);
        let dialled = address.and_then(|address| self.dial(peer, &address, until).ok());
        match (dialled, self.peers.get_mut(&peer)) {
            (Some(token), Some(known)) => (known.path, known.broke) = (PeerPath::Dialing(token), Some(why)),
            _ => self.lose(peer, why),
        }
    }

    fn lose(&mut self, peer: PeerId, why: PeerLoss) {
        let Some(known) = self.forget(peer) else { return };
        self.room |= std::mem::take(&mut self.starved);
        self.lost.extend(known.claimed.then_some((peer, why)));
    }

    /// This end's connection to `peer` failed. The peer's own connection replaces the failed one, if the peer's
    /// connection gave way and still exists.
    fn promote_standby(&mut self, peer: PeerId) -> bool {
        let Some(token) = self.peers.get_mut(&peer).and_then(|known| known.standby.take()) else { return false };
        let Some(connection) = self.connections.get_mut(&token) else { return false };
        match connection.welcome() {
            Some(keys) => self.open_path(token, peer, false, keys),
            None => drop(self.connections.remove(&token)),
        }
        self.connections.contains_key(&token)
    }

    /// Forgets the oldest peer that this process has not connected, if there are too many such peers.
    pub(super) fn make_way(&mut self) {
        let unclaimed = || self.peers.iter().filter(|(_, known)| !known.claimed);
        if unclaimed().count() < self.settings.limits.peers {
            return;
        }
        if let Some((&oldest, _)) = unclaimed().min_by_key(|(_, known)| known.path.token()) {
            self.forget(oldest);
        }
    }

    pub(super) fn hang_up(&mut self, peer: PeerId) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        for token in [known.path.token(), known.standby.take()].into_iter().flatten() {
            self.connections.remove(&token);
        }
    }

    pub(super) fn forget(&mut self, peer: PeerId) -> Option<TcpPeer> {
        self.hang_up(peer);
        self.peers.remove(&peer)
    }
}
