//! The sending rate of multicast: the receive links of the group stay just full.
//!
//! Let `M` roots be active, every rank receive, and `k` service processes share each host and its link (SP-8). If all
//! service processes are roots, a root sends at `B / (M - k)`, else at `B / M` or more. Blocks of different sizes share
//! the links so that all end together. The schedule is absolute: lost time is caught up, but never by more than the
//! switch ports can queue.

use std::time::Duration;

use crate::config::Config;
use crate::ids::Instant;

/// After a rest the credit is divided by this: bytes that a stream queues at its start stay queued until its end.
const AFTER_REST: u32 = 8;

/// When the next datagrams may go out.
#[derive(Debug)]
pub(crate) struct Pacer {
    next: Instant,
    credit: Duration,
    /// The sender had nothing to send, so it lost no time.
    rested: bool,
}

impl Pacer {
    /// The sender catches up at most `switch_queue` bytes at `link_rate` bit/s.
    pub(crate) fn new(link_rate: u64, switch_queue: u64) -> Self {
        Pacer { next: Instant(0), credit: transfer_time(switch_queue, link_rate), rested: true }
    }

    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Accounts for `wire_bytes` that go out at `now` at `rate` bit/s.
    pub(crate) fn sent(&mut self, now: Instant, wire_bytes: u64, rate: u64) {
        let credit = if std::mem::take(&mut self.rested) { self.credit / AFTER_REST } else { self.credit };
        self.next = self.next.max(now - credit) + transfer_time(wire_bytes, rate);
    }

    pub(crate) fn rest(&mut self) {
        self.rested = true;
    }
}

/// Time that `bytes` take at `rate` bit/s.
pub(crate) fn transfer_time(bytes: u64, rate: u64) -> Duration {
    let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// The pace of one root among others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    /// The root's rate in bit/s on the wire.
    pub(crate) rate: u64,
    /// Datagrams of one batch. Larger batches are cheaper; the batches of all roots together may fill at most half of a
    /// port's queue.
    pub(crate) batch: u64,
    /// Time from one batch to the next.
    pub(crate) interval: Duration,
}

/// The part of a receive link that one service process may fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkShare {
    /// Numerator.
    pub(crate) part: u64,
    /// Denominator, at least `part`.
    pub(crate) of: u64,
}

impl LinkShare {
    /// The share when `active` blocks of one size are multicast at once, and one link receives from `incoming` senders.
    pub(crate) fn even(incoming: u32, active: u32) -> Self {
        LinkShare { part: 1, of: active.min(incoming).max(1).into() }
    }

    /// The share when at most `left` blocks remain to be sent in the group.
    pub(crate) fn among(self, left: u32) -> Self {
        match (self.part, left) {
            (1, left) => LinkShare { of: self.of.min(left.into()).max(1), ..self },
            // With blocks of different sizes, only the last block is certain to be alone.
            (_, 0 | 1) => LinkShare { part: 1, of: 1 },
            (_, _) => self,
        }
    }
}

impl Pace {
    /// The pace of a service process with this share of the links.
    pub(crate) fn new(config: &Config, LinkShare { part, of }: LinkShare) -> Self {
        let datagram = u64::from(config.chunk_bytes + config.datagram_overhead);
        let share = |whole: u64| (u128::from(whole) * u128::from(part) / u128::from(of.max(1))) as u64;
        let rate = share(config.link_rate).max(1);
        let batch = (share(config.switch_queue / 2) / datagram).clamp(1, config.batch_chunks.into());
        Pace { rate, batch, interval: transfer_time(batch * datagram, rate) }
    }

    /// The delay of service process `number`, one of `of`, behind the first. Roots that begin together keep their pace.
    /// If a switch queue cannot hold a batch of each root, the roots begin one after another (MC-8).
    pub(crate) fn stagger(self, config: &Config, share: LinkShare, number: u32, of: u32) -> Duration {
        let datagram = u64::from(config.chunk_bytes + config.datagram_overhead);
        let at_once = (share.of / share.part).saturating_mul(self.batch * datagram);
        if at_once <= config.switch_queue { Duration::ZERO } else { self.interval * number / of }
    }

    /// The pace beside other groups. Small batches do not block the other groups. A part of the link stays free, so
    /// that queues filled by other groups' messages can drain (MC-13).
    pub(crate) fn contended(self, config: &Config) -> Self {
        let datagram = u64::from(config.chunk_bytes + config.datagram_overhead);
        let batch = self.batch.min((bytes_in(TURN_TIME, self.rate) / datagram).max(MIN_BATCH));
        let rate = self.rate - self.rate / 8;
        Pace { rate, batch, interval: transfer_time(batch * datagram, rate) }
    }
}

/// Time for which one piece of a group blocks the link of another group. Bytes queued beside the piece take as long
/// again.
const TURN_TIME: Duration = Duration::from_micros(64);
/// Queued bytes, as time, when no small call waits. The time covers a suspension of the service process by the machine.
/// But requests for blocks wait behind the queue, and must not come too late. With 4 ms, hosts whose links sent at full
/// rate received at two thirds of that rate, permanently, because their requests were late.
const UNCONTENDED_QUEUE: Duration = Duration::from_millis(1);
/// A call is small if its wait behind another group may exceed its own transfer time by more than this factor.
const SMALL_CALL_FACTOR: u64 = 4;
/// Longest round trip of an empty path. Longer round trips were measured behind a queue.
const MAX_ROUND_TRIP: Duration = Duration::from_micros(250);
/// Smaller pieces cost more in bookkeeping than in bytes.
const MIN_PIECE: u64 = 8 << 10;
/// Smaller batches of datagrams cost more in bookkeeping than in bytes.
const MIN_BATCH: u64 = 4;
/// A longer piece blocks the last caller, which waits behind several pieces on each link. At 1 Gbit/s this is 64 KiB.
const MAX_PIECE_TIME: Duration = Duration::from_nanos(524_288);
/// Most bytes of a long message's piece; it takes at most twice `MAX_PIECE_TIME`. 256 KiB slow 10 Gbit/s by a tenth.
const LONG_PIECE: u64 = 128 << 10;
/// A long message has at least this many long pieces, so that the delay by the first pieces evens out.
const LONG_PIECES: u64 = 8;
/// Most pieces queued on each link if there are few links; one acknowledgement covers several pieces.
const PIECES_PER_LINK: u64 = 4;
/// Most pieces queued on a single link: in a ring an acknowledgement waits behind the bytes that its sender forwards.
const PIECES_ON_SINGLE_LINK: u64 = 8;
/// Most pieces queued on many links together, since all links may lead to one receiver.
const PIECES_ON_ALL_LINKS: u64 = 32;
/// Every link may queue this many pieces, whatever the number of links.
const PIECES_PER_LINK_OF_MANY: u64 = 3;

/// Traffic of other groups in flight at a service process, beside one group (MC-13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contention {
    None,
    /// Other groups have calls, but no small ones: a wait for large pieces of others is not much longer than a call's
    /// own share.
    Large,
    /// Some call is small, or was small a moment ago. This call must wait for small pieces only.
    Small,
}

/// Decides which calls are small. A small call may have to wait for the link behind all bytes that another group
/// queues. This wait may be several times as long as the transfer of the call's own bytes (MC-13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SmallCalls {
    /// Bytes that delay a call even with small pieces. A call with fewer bytes is delayed no less.
    least: u64,
    /// Most bytes that others queue ahead of the call, at this end or the other end, while no small call counts.
    most: u64,
}

impl SmallCalls {
    pub(crate) fn new(config: &Config) -> Self {
        let [large, small] =
            [Contention::None, Contention::Small].map(|contention| Quantum::new(config, contention).queued);
        SmallCalls { least: small, most: large.max(config.pull_bytes) }
    }

    /// Whether a call of `bytes` is small beside the calls of another group, which together move `other` bytes.
    pub(crate) fn beside(self, bytes: u64, other: u64) -> bool {
        bytes.max(self.least).saturating_mul(SMALL_CALL_FACTOR) < other.min(self.most)
    }
}

/// How much of a link one collective may use at once. Large pieces are cheap; small pieces let small calls in (MC-13).
///
/// The first small call still waits behind the bytes queued before it, once for each of its sequential messages. At
/// each service process these bytes are [`UNCONTENDED_QUEUE`] and two round trips of bytes, all links together, or up
/// to [`PIECES_PER_LINK`] pieces on each link, [`PIECES_ON_SINGLE_LINK`] on a single link. These bytes never exceed the
/// host link's own queue and a piece per link (`Uplink`). At the switch, the bytes before the call are those that
/// exchanges of the receiving host have requested ([`under_way`](Quantum::under_way)). Bytes queued after the first
/// small call come in small pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quantum {
    /// Bytes of one fragment or repair.
    pub(crate) piece: u64,
    /// Bytes of one fragment of the longest messages ([`LONG_PIECE`]).
    long_piece: u64,
    /// Bytes requested from all sources together (SP-5) when the sources send to no other receiver.
    pub(crate) pulled: u64,
    /// Bytes of one request for a block; a long block is requested piece by piece.
    pull: u64,
    /// The receiver requests more when the room suffices for this many requests.
    pulls_together: u64,
    /// Most outstanding requested bytes of one block, when there may be other blocks.
    of_one_block: u64,
    /// Bytes queued on all links together, beyond the bytes of a round trip.
    queued: u64,
    /// Most pieces that may be queued on each link, even if the pieces of all links exceed [`Self::queued`].
    on_each: u64,
}

impl Quantum {
    /// The quantum for a group under this contention.
    pub(crate) fn new(config: &Config, contention: Contention) -> Self {
        let longest = bytes_in(MAX_PIECE_TIME, config.link_rate).max(MIN_PIECE);
        let fragment = u64::from(config.fragment_bytes).min(longest);
        match contention {
            Contention::Small => {
                let piece = bytes_in(TURN_TIME, config.link_rate).max(MIN_PIECE).min(fragment);
                let pulled = config.pull_bytes.min(piece * 4);
                Quantum {
                    piece,
                    long_piece: piece,
                    pulled,
                    // At most two sources send at a time, so that next to nothing queues at the switch.
                    pull: (pulled / 2).max(1),
                    pulls_together: 0,
                    of_one_block: pulled,
                    queued: piece * 2,
                    on_each: 1,
                }
            }
            Contention::None | Contention::Large => {
                let queued = bytes_in(UNCONTENDED_QUEUE, config.link_rate).max(fragment * 4);
                let pulled = config.pull_bytes;
                // A request names a whole large piece, or several small pieces: otherwise hundreds of requests queue.
                let pull = fragment.max(MIN_PIECE);
                Quantum {
                    piece: fragment,
                    long_piece: LONG_PIECE.min(longest * 2).max(fragment),
                    pulled,
                    pull,
                    pulls_together: 2,
                    of_one_block: pulled / 2,
                    queued,
                    on_each: PIECES_ON_SINGLE_LINK,
                }
            }
        }
    }

    /// Most outstanding bytes. An all-to-all requests more, since each source divides its link among several receivers.
    pub(crate) fn under_way(&self, all_to_all: bool) -> u64 {
        if all_to_all { self.pulled * 7 / 4 } else { self.pulled }
    }

    /// Bytes of one fragment of a message of `bytes`, when `links` peers have bulk.
    pub(crate) fn piece_on(&self, links: usize, bytes: u64) -> u64 {
        self.piece_of(self.share(self.under_way(true), links), bytes)
    }

    /// Bytes of a fragment if `share` bytes may be outstanding: two fit, so that one is requested while one comes.
    fn piece_of(&self, share: u64, bytes: u64) -> u64 {
        let most = self.long_piece.min(share / 2).min(bytes / LONG_PIECES);
        let mut piece = self.piece;
        while piece * 2 <= most {
            piece *= 2;
        }
        piece
    }

    /// The share of outstanding bytes for each of `among` links or blocks.
    fn share(&self, under_way: u64, among: usize) -> u64 {
        (under_way / among.max(1) as u64).min(self.of_one_block)
    }

    /// The requests for a block of `bytes` when `blocks` blocks share room for `most` bytes. If the block is `the_only`
    /// block that can come, it gets all of the room.
    pub(crate) fn pull_of(&self, most: u64, blocks: usize, the_only: bool, bytes: u64) -> Pull {
        let (share, of_one_block) = if the_only { (most, most) } else { (self.share(most, blocks), self.of_one_block) };
        let under_way = share.max(self.piece * 2).min(of_one_block);
        let (at_once, again) = match self.piece_of(share, bytes) {
            long if long > self.piece => (long, under_way - long),
            _ => (self.pull, under_way / 2),
        };
        Pull { under_way, again, at_once, room: at_once * self.pulls_together }
    }

    /// Bytes that each of `ranks` ranks requests before any news of the blocks: in total, and per block.
    pub(crate) fn ahead(&self, ranks: usize, blocks: usize) -> (u64, u64) {
        let all = self.pulled / 4 / ranks.max(1) as u64;
        (all, (all / blocks.max(1) as u64).max(MIN_PIECE))
    }

    /// Most bytes of bulk that may be queued and in flight to one peer, when `links` peers have bulk. `round_trip` is
    /// the round trip to the peer. The next piece belongs to a message of `bytes`.
    pub(crate) fn queued(&self, config: &Config, links: usize, round_trip: Option<Duration>, bytes: u64) -> u64 {
        let under_way = bytes_in(round_trip.unwrap_or_default().min(MAX_ROUND_TRIP) * 2, config.link_rate);
        let (piece, links) = (self.piece_on(links, bytes), links.max(1) as u64);
        let on_each = if links == 1 {
            PIECES_ON_SINGLE_LINK
        } else {
            PIECES_PER_LINK.min((PIECES_ON_ALL_LINKS / links).max(PIECES_PER_LINK_OF_MANY))
        };
        ((self.queued + under_way) / links).max(piece * on_each.min(self.on_each))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pull {
    /// Most outstanding bytes: two pieces at least, so that the next piece is requested while one piece comes.
    pub(crate) under_way: u64,
    /// More is requested when at most this much is outstanding: half of `under_way`, or for a long message all but one
    /// piece. So the source always has something to send.
    pub(crate) again: u64,
    pub(crate) at_once: u64,
    /// Free bytes needed, for all blocks together, before more is requested.
    pub(crate) room: u64,
}

impl Pull {
    /// Requests a whole message at once.
    pub(crate) const WHOLE: Pull = Pull { under_way: u64::MAX, again: u64::MAX, at_once: u64::MAX, room: 0 };
}

/// Bytes that `rate` bit/s carry in `time`.
fn bytes_in(time: Duration, rate: u64) -> u64 {
    u64::try_from(time.as_nanos() * u128::from(rate) / 8_000_000_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mc_8_all_roots_share_the_receive_links() {
        let config = Config { link_rate: 1000, ..Config::default() };
        let rate = |incoming, active| Pace::new(&config, LinkShare::even(incoming, active)).rate;
        assert_eq!(rate(4, 5), 250, "all active: a receiver hears all but itself");
        assert_eq!(rate(4, 2), 500, "some receiver hears both");
        assert_eq!(rate(6, 8), 166, "two on each of four hosts: a link takes in those of the three others");
        assert_eq!(rate(0, 1), 1000);
    }

    #[test]
    fn batches_of_all_roots_fill_half_of_a_queue_at_most() {
        let config = Config { switch_queue: 300_000, batch_chunks: 32, ..Config::default() };
        let datagram = u64::from(config.chunk_bytes + config.datagram_overhead);
        for incoming in 1..200 {
            let pace = Pace::new(&config, LinkShare::even(incoming, incoming + 1));
            let others = u64::from(incoming);
            assert!(pace.batch == 1 || pace.batch * others * datagram <= 150_000, "{incoming}: {pace:?}");
            assert!(pace.batch == 32 || (pace.batch + 1) * others * datagram > 150_000, "{incoming}: {pace:?}");
        }
    }

    #[test]
    fn mc_8_roots_are_staggered_when_no_queue_holds_a_batch_of_each() {
        let config = Config { switch_queue: 300_000, ..Config::default() };
        let stagger = |roots: u32, number| {
            let share = LinkShare::even(roots - 1, roots);
            Pace::new(&config, share).stagger(&config, share, number, roots)
        };
        assert_eq!(stagger(100, 99), Duration::ZERO, "a queue holds them all");
        let interval = Pace::new(&config, LinkShare::even(999, 1000)).interval;
        assert_eq!([stagger(1000, 0), stagger(1000, 500)], [Duration::ZERO, interval / 2]);
    }

    #[test]
    fn lost_time_is_caught_up_within_the_credit() {
        let mut p = Pacer::new(8_000_000_000, 1_000_000);
        p.rested = false;
        p.sent(Instant(10_000_000), 1000, 8_000_000);
        assert_eq!(p.next(), Instant(10_000_000 - 1_000_000 + 1_000_000));
        p.sent(Instant(10_000_000), 1000, 8_000_000);
        assert_eq!(p.next(), Instant(11_000_000));
        p.rest();
        p.sent(Instant(20_000_000), 1000, 8_000_000);
        assert_eq!(p.next(), Instant(20_000_000 - 1_000_000 / 8 + 1_000_000), "no time was lost");
    }

    #[test]
    fn mc_13_beside_a_small_call_pieces_are_small_at_any_rate() {
        for rate in [10_000_000, 1_000_000_000, 100_000_000_000] {
            let config = Config { link_rate: rate, ..Config::default() };
            let [alone, large, among] = [Contention::None, Contention::Large, Contention::Small]
                .map(|contention| Quantum::new(&config, contention));
            assert_eq!(large, alone, "{rate}: nobody has a small call");
            let trip = Some(Duration::from_micros(10));
            assert!(among.piece <= alone.piece && among.pulled <= alone.pulled, "{rate}");
            assert!(among.queued(&config, 1, trip, 0) < alone.queued(&config, 1, trip, 0), "{rate}");
            assert_eq!(among.queued(&config, 1000, trip, 0), among.piece, "each link may always have a piece");
            let long = Some(Duration::from_secs(1));
            assert_eq!(among.queued(&config, 1, long, 0), among.queued(&config, 1, Some(MAX_ROUND_TRIP), 0), "{rate}");
            let pace = Pace::new(&config, LinkShare::even(1, 1));
            let contended = pace.contended(&config);
            assert!(contended.batch <= pace.batch && contended.rate < pace.rate, "{rate}");
        }
    }

    #[test]
    fn mc_13_a_call_is_small_when_it_could_wait_a_few_times_as_long_as_it_takes() {
        for rate in [10_000_000, 1_000_000_000, 100_000_000_000] {
            let config = Config { link_rate: rate, ..Config::default() };
            let calls = SmallCalls::new(&config);
            for large in [4 << 20, 64 << 20] {
                assert!(calls.beside(4 << 10, large), "{rate}: 4 KiB beside a stream of {large}");
                assert!(calls.beside(0, large), "{rate}: a barrier beside a stream of {large}");
                assert!(
                    !calls.beside(large, large) && !calls.beside(large / SMALL_CALL_FACTOR, large),
                    "{rate}: as large {large}"
                );
            }
            assert!(!calls.beside(0, 0) && !calls.beside(0, 64 << 10), "{rate}: small pieces would not come sooner");
            let queued = Quantum::new(&config, Contention::Large).queued;
            assert!(!calls.beside(queued.max(config.pull_bytes), u64::MAX), "{rate}: takes as long as it waits");
        }
    }
}
