//! How fast a service process may multicast: so that the receive links of the group stay just full.
//!
//! With `M` active roots and every rank receiving, a root sends at `B / (M - k)` when all service processes are roots,
//! of which `k` share each host and its link (SP-8), else at `B / M` at least; blocks of different sizes share the
//! links so that all end together. The schedule is absolute: time lost is caught up, but never by more than the switch
//! ports can queue.

use std::time::Duration;

use crate::config::Config;
use crate::ids::Instant;

/// A stream begins with this part of the credit: what it queues at its start stays queued until its end.
const AFTER_REST: u32 = 8;

/// When the next datagrams may go out.
#[derive(Debug)]
pub(crate) struct Pacer {
    next: Instant,
    credit: Duration,
    /// There was nothing to send: no time was lost.
    rested: bool,
}

impl Pacer {
    /// `switch_queue` bytes at `link_rate` bit/s are the most that is caught up.
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

/// How one root multicasts among others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Its rate in bit/s on the wire.
    pub(crate) rate: u64,
    /// Datagrams of one batch: the more, the cheaper, as long as the batches of all roots, come together at one port,
    /// fill half of its queue at most.
    pub(crate) batch: u64,
    /// From one batch to the next.
    pub(crate) interval: Duration,
}

/// What part of a receive link one service process may fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    /// So much ...
    pub(crate) part: u64,
    /// ... of this much, at least `part`.
    pub(crate) of: u64,
}

impl Share {
    /// Where `active` multicast blocks of one size at the same time, and one link takes in what `incoming` send.
    pub(crate) fn even(incoming: u32, active: u32) -> Self {
        Share { part: 1, of: active.min(incoming).max(1).into() }
    }

    /// The same when no more than `left` blocks are still to be sent by anybody.
    pub(crate) fn among(self, left: u32) -> Self {
        match (self.part, left) {
            (1, left) => Share { of: self.of.min(left.into()).max(1), ..self },
            // Of blocks of different sizes only the last is known to be alone.
            (_, 0 | 1) => Share { part: 1, of: 1 },
            (_, _) => self,
        }
    }
}

impl Pace {
    /// For a service process with this share of the links.
    pub(crate) fn new(config: &Config, Share { part, of }: Share) -> Self {
        let datagram = u64::from(config.chunk_bytes + config.datagram_overhead);
        let share = |whole: u64| (u128::from(whole) * u128::from(part) / u128::from(of.max(1))) as u64;
        let rate = share(config.link_rate).max(1);
        let batch = (share(config.switch_queue / 2) / datagram).clamp(1, config.batch_chunks.into());
        Pace { rate, batch, interval: transfer_time(batch * datagram, rate) }
    }

    /// How much later than the first this one of `of` service processes begins. Where a queue of the switch does not
    /// hold a batch of each root, as all begin together and keep their pace, they begin one after another (MC-8).
    pub(crate) fn stagger(self, config: &Config, share: Share, (number, of): (u32, u32)) -> Duration {
        let datagram = u64::from(config.chunk_bytes + config.datagram_overhead);
        let at_once = (share.of / share.part).saturating_mul(self.batch * datagram);
        if at_once <= config.switch_queue { Duration::ZERO } else { self.interval * number / of }
    }

    /// The same beside other groups: batches that do not keep them waiting, and some of the link left over, so that
    /// queues which the others' messages add to become empty again (MC-13).
    pub(crate) fn contended(self, config: &Config) -> Self {
        let datagram = u64::from(config.chunk_bytes + config.datagram_overhead);
        let batch = self.batch.min((bytes_in(TURN, self.rate) / datagram).max(LEAST_BATCH));
        let rate = self.rate - self.rate / 8;
        Pace { rate, batch, interval: transfer_time(batch * datagram, rate) }
    }
}

/// Time that one group keeps a link from another with one piece, and with what it has queued beside.
const TURN: Duration = Duration::from_micros(64);
/// What is queued where no small call waits for it: enough for a service process that the machine lets wait, yet so
/// little that requests for blocks, which wait behind it, keep up. With 4 ms, hosts whose links sent at full rate asked
/// so late that theirs received at two thirds of it, and stayed so.
const UNHURRIED: Duration = Duration::from_millis(1);
/// A call is small when it may wait behind another group for more than so many times as long as its own bytes take.
const FEW: u64 = 4;
/// A round trip longer than this was measured behind a queue.
const LONGEST_TRIP: Duration = Duration::from_micros(250);
/// A piece smaller than this costs more by its bookkeeping than by its bytes.
const LEAST_PIECE: u64 = 8 << 10;
/// Datagrams likewise.
const LEAST_BATCH: u64 = 4;
/// A longer piece keeps the last caller waiting, behind several on each link. 64 KiB at 1 Gbit/s.
const LONGEST_PIECE: Duration = Duration::from_nanos(524_288);
/// Most bytes of a piece, which takes twice that time at most. Twice as many slow 10 Gbit/s by a tenth.
const LONG_PIECE: u64 = 128 << 10;
/// A long message has so many of them at least: what the first of them delays evens out later.
const LONG_PIECES: u64 = 8;
/// Pieces that each of few links may queue: one acknowledgement tells of several.
const ON_EACH: u64 = 4;
/// Pieces that one link alone may queue: in a ring an acknowledgement waits behind what its sender passes on.
const ON_ONE: u64 = 8;
/// Pieces that all links may queue together where there are many: all may lead to one receiver.
const ON_ALL: u64 = 32;
/// Pieces that each link may queue, however many there are.
const ON_MANY: u64 = 3;

/// What other groups have in flight at a service process beside one (MC-13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contention {
    None,
    /// Calls, none of them small: each waits for large pieces of others not much longer than for its share of the link.
    Large,
    /// Some call is small, or was a moment ago: it is to wait for small pieces only.
    Small,
}

/// Which calls are small: those that may wait several times as long for the link as their own bytes take on it, when
/// another group has queued all that it may (MC-13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SmallCalls {
    /// What even small pieces keep a call waiting for: a smaller one does not wait for less.
    least: u64,
    /// What others may have queued before it without regard to small calls, here or at their own end.
    most: u64,
}

impl SmallCalls {
    pub(crate) fn new(config: &Config) -> Self {
        let [large, small] =
            [Contention::None, Contention::Small].map(|contention| Quantum::new(config, contention).queued);
        SmallCalls { least: small, most: large.max(config.pull_bytes) }
    }

    /// Whether a call that moves `bytes` is small beside all those of another group, which together move `other`.
    pub(crate) fn beside(self, bytes: u64, other: u64) -> bool {
        bytes.max(self.least).saturating_mul(FEW) < other.min(self.most)
    }
}

/// How much of a link one collective may take at once: large pieces are cheap, small ones let small calls in (MC-13).
///
/// The first small call still waits behind what was queued without it, once for each message that it sends on the way
/// of one: at each service process [`UNHURRIED`] and two round trips of bytes, all links together, or up to [`ON_EACH`]
/// pieces on each, [`ON_ONE`] on the only one, but of all together no more than the host's link is given ahead and a
/// piece on each (`Uplink`); at the switch what the exchanges of the receiving host have asked for
/// ([`under_way`](Quantum::under_way)). What is queued after it is small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quantum {
    /// Bytes of one fragment or repair.
    pub(crate) piece: u64,
    /// The same of the longest messages ([`LONG_PIECE`]).
    long_piece: u64,
    /// Bytes asked for of all sources together (SP-5) when they send to nobody else.
    pub(crate) pulled: u64,
    /// Bytes of a block asked for at once, of a long one a piece.
    pull: u64,
    /// More is asked for when there is room for so many times what is asked for at once.
    pulls_together: u64,
    /// Most bytes of a block asked for that have not come, where there may be others.
    of_one_block: u64,
    /// Bytes queued on all links together beyond what a round trip takes.
    queued: u64,
    /// Most pieces that may be queued on each link even where the bytes of all of them are more than [`Self::queued`].
    on_each: u64,
}

impl Quantum {
    /// For a group under this contention.
    pub(crate) fn new(config: &Config, contention: Contention) -> Self {
        let longest = bytes_in(LONGEST_PIECE, config.link_rate).max(LEAST_PIECE);
        let fragment = u64::from(config.fragment_bytes).min(longest);
        match contention {
            Contention::Small => {
                let piece = bytes_in(TURN, config.link_rate).max(LEAST_PIECE).min(fragment);
                let pulled = config.pull_bytes.min(piece * 4);
                Quantum {
                    piece,
                    long_piece: piece,
                    pulled,
                    // Of two sources at a time, so that next to nothing queues at the switch.
                    pull: (pulled / 2).max(1),
                    pulls_together: 0,
                    of_one_block: pulled,
                    queued: piece * 2,
                    on_each: 1,
                }
            }
            Contention::None | Contention::Large => {
                let queued = bytes_in(UNHURRIED, config.link_rate).max(fragment * 4);
                let pulled = config.pull_bytes;
                // Whole pieces; small ones together, or requests would queue by the hundred.
                let pull = fragment.max(LEAST_PIECE);
                Quantum {
                    piece: fragment,
                    long_piece: LONG_PIECE.min(longest * 2).max(fragment),
                    pulled,
                    pull,
                    pulls_together: 2,
                    of_one_block: pulled / 2,
                    queued,
                    on_each: ON_ONE,
                }
            }
        }
    }

    /// Bytes asked for, and not here: more in an all-to-all, where only a part of a source's link arrives at a time.
    pub(crate) fn under_way(&self, all_to_all: bool) -> u64 {
        if all_to_all { self.pulled * 7 / 4 } else { self.pulled }
    }

    /// Bytes of one fragment of a message of so many `bytes`, to one of so many links that there is bulk for.
    pub(crate) fn piece_on(&self, links: usize, bytes: u64) -> u64 {
        self.piece_of(self.share(self.under_way(true), links), bytes)
    }

    /// Bytes of one fragment where `share` bytes may be under way: two fit, so that one is asked for while one comes.
    fn piece_of(&self, share: u64, bytes: u64) -> u64 {
        let most = self.long_piece.min(share / 2).min(bytes / LONG_PIECES);
        let mut piece = self.piece;
        while piece * 2 <= most {
            piece *= 2;
        }
        piece
    }

    /// What one of so many links has of what may be under way, or one of so many blocks.
    fn share(&self, under_way: u64, among: usize) -> u64 {
        (under_way / among.max(1) as u64).min(self.of_one_block)
    }

    /// What is asked for of each of so many blocks that share room for `most` bytes, of one that has `bytes`; all of
    /// the room if it is `the_only` one that can come.
    pub(crate) fn pull_of(&self, most: u64, blocks: usize, the_only: bool, bytes: u64) -> Pull {
        let (share, of_one_block) = if the_only { (most, most) } else { (self.share(most, blocks), self.of_one_block) };
        let under_way = share.max(self.piece * 2).min(of_one_block);
        let (at_once, again) = match self.piece_of(share, bytes) {
            long if long > self.piece => (long, under_way - long),
            _ => (self.pull, under_way / 2),
        };
        Pull { under_way, again, at_once, room: at_once * self.pulls_together }
    }

    /// Bytes that each of so many ranks asks for ahead of all news, in all and of each of so many blocks.
    pub(crate) fn ahead(&self, ranks: usize, blocks: usize) -> (u64, u64) {
        let all = self.pulled / 4 / ranks.max(1) as u64;
        (all, (all / blocks.max(1) as u64).max(LEAST_PIECE))
    }

    /// Bytes of bulk that may be queued and in flight to one of `links` peers that there is bulk for, with this round
    /// trip, when the next piece is of a message of so many `bytes`.
    pub(crate) fn queued(&self, config: &Config, links: usize, round_trip: Option<Duration>, bytes: u64) -> u64 {
        let under_way = bytes_in(round_trip.unwrap_or_default().min(LONGEST_TRIP) * 2, config.link_rate);
        let (piece, links) = (self.piece_on(links, bytes), links.max(1) as u64);
        let on_each = if links == 1 { ON_ONE } else { ON_EACH.min((ON_ALL / links).max(ON_MANY)) };
        ((self.queued + under_way) / links).max(piece * on_each.min(self.on_each))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pull {
    /// Bytes asked for, and not here, at most: two pieces at least, so that the next is asked for while one comes.
    pub(crate) under_way: u64,
    /// More is asked for when no more than this is under way: half of it, or of a long message all but one piece, so
    /// that its source always has something to send.
    pub(crate) again: u64,
    pub(crate) at_once: u64,
    /// Bytes for which there must be room, all blocks together, before more is asked for.
    pub(crate) room: u64,
}

impl Pull {
    /// A message is asked for whole.
    pub(crate) const WHOLE: Pull = Pull { under_way: u64::MAX, again: u64::MAX, at_once: u64::MAX, room: 0 };
}

/// Bytes that `rate` bit/s carry in a time.
fn bytes_in(time: Duration, rate: u64) -> u64 {
    u64::try_from(time.as_nanos() * u128::from(rate) / 8_000_000_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mc_8_all_roots_share_the_receive_links() {
        let config = Config { link_rate: 1000, ..Config::default() };
        let rate = |incoming, active| Pace::new(&config, Share::even(incoming, active)).rate;
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
            let pace = Pace::new(&config, Share::even(incoming, incoming + 1));
            let others = u64::from(incoming);
            assert!(pace.batch == 1 || pace.batch * others * datagram <= 150_000, "{incoming}: {pace:?}");
            assert!(pace.batch == 32 || (pace.batch + 1) * others * datagram > 150_000, "{incoming}: {pace:?}");
        }
    }

    #[test]
    fn mc_8_roots_whose_batches_no_queue_holds_begin_one_after_another() {
        let config = Config { switch_queue: 300_000, ..Config::default() };
        let stagger = |roots: u32, number| {
            let share = Share::even(roots - 1, roots);
            Pace::new(&config, share).stagger(&config, share, (number, roots))
        };
        assert_eq!(stagger(100, 99), Duration::ZERO, "a queue holds them all");
        let interval = Pace::new(&config, Share::even(999, 1000)).interval;
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
            assert_eq!(among.queued(&config, 1, long, 0), among.queued(&config, 1, Some(LONGEST_TRIP), 0), "{rate}");
            let pace = Pace::new(&config, Share::even(1, 1));
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
                assert!(!calls.beside(large, large) && !calls.beside(large / FEW, large), "{rate}: as large {large}");
            }
            assert!(!calls.beside(0, 0) && !calls.beside(0, 64 << 10), "{rate}: small pieces would not come sooner");
            let queued = Quantum::new(&config, Contention::Large).queued;
            assert!(!calls.beside(queued.max(config.pull_bytes), u64::MAX), "{rate}: takes as long as it waits");
        }
    }
}
