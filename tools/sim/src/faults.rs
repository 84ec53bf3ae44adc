//! The faults of a run, and the dice that decide each case.
//!
//! Invariants: every decision comes from the run's seed. Dice are thrown in the order of events, so equal seeds give
//! equal runs. Chances are compared in integers. Faults hit the world around the machines, never the machines.

use std::time::Duration;

use outboard_proto::Instant;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::coverage::{Coverage, FaultKind};

/// The faults of a scenario. All times are virtual, since the start of the run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Faults {
    /// When random faults stop, so that everything must end soon after; `None`: never.
    pub until: Option<Duration>,
    /// Chance that a datagram is lost on the way to one of its receivers, independently of the others.
    pub datagram_loss: f64,
    /// Chance that a datagram is lost before the switch, for all receivers alike.
    pub uplink_loss: f64,
    pub frame_loss: f64,
    /// Chance that a datagram or a frame arrives twice.
    pub duplicate: f64,
    /// Chance that a datagram or a frame arrives later than those behind it.
    pub reorder: f64,
    /// Chance that an attacker sends a receiver an altered datagram before the original train: damaged, cut short, with
    /// another payload, of another instance or group, or from another address.
    pub forgery: f64,
    /// Chance that a datagram arrives again within `REPLAY`. The fabric accepts no frame twice: frames arrive over a
    /// connection whose peer has proven its identity.
    pub replay: f64,
    /// Longest delay, evenly drawn, until a sender of batches or the fabric reports that it has finished.
    pub slow: Duration,
    /// Longest delay of a delivery, evenly drawn. Frames of one pair stay in order.
    pub jitter: Duration,
    /// Deliveries that are lost at any time, by number from 0. A delivery is a datagram to one receiver, or a frame.
    pub drop: Vec<u64>,
    /// Times in which nothing reaches a host.
    pub blackouts: Vec<HostPause>,
    /// Times in which nothing that one host sends reaches another host.
    pub cuts: Vec<LinkCut>,
    /// Delay from the end of a cut until a connection resumes: the kernel retries less and less often. Frames sent
    /// until then arrive together, in order. A frame that would wait for 4 s is lost. Zero: all frames of the cut are
    /// lost, and no other frames.
    pub backoff: Duration,
    /// Connections that the fabric gives up although both ends live.
    pub abandoned: Vec<AbandonedConnection>,
    /// Times in which a service process handles nothing. Inputs wait, datagrams in a bounded buffer.
    pub stalls: Vec<HostPause>,
    /// Ranks whose processes die, each after it has requested all its groups.
    pub dead_ranks: Vec<RankFault>,
    /// Ranks whose processes die after their offers, no matter which groups they have requested by then.
    pub early_deaths: Vec<RankFault>,
    /// A group and a member, both by number: the member's service process refuses it the group.
    pub refused: Option<(usize, usize)>,
    /// Ranks whose buffers cannot be accessed any more.
    pub bad_memory: Vec<RankFault>,
    pub dead_hosts: Vec<HostDeath>,
    /// How many hosts, the last ones, stand for service processes started in the place of dead ones.
    pub restarted: usize,
    /// A host whose service process is configured differently.
    pub misconfigured: Option<usize>,
}

/// Longest delay of a replayed datagram: longer than other hosts consider a silent service process alive.
pub(crate) const REPLAY: Duration = Duration::from_secs(8);

/// How long a kernel retries before it gives up a connection.
pub(crate) const RETRY_LIMIT: Duration = Duration::from_secs(4);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostPause {
    pub host: usize,
    pub at: Duration,
    pub lasting: Duration,
}

/// A span of time in which nothing from one host reaches another host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkCut {
    pub from: usize,
    pub to: usize,
    pub at: Duration,
    pub lasting: Duration,
}

impl LinkCut {
    pub(crate) fn end(&self) -> Duration {
        self.at + self.lasting
    }

    /// Cuts between `host` and each of `others`, in both directions.
    pub fn off(host: usize, others: impl Iterator<Item = usize>, at: Duration, lasting: Duration) -> Vec<LinkCut> {
        let pair = |other| [(host, other), (other, host)].map(|(from, to)| LinkCut { from, to, at, lasting });
        others.filter(|other| *other != host).flat_map(pair).collect()
    }
}

/// The fabric of a host reports the loss of a living peer, after a failed attempt to connect while they were cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbandonedConnection {
    pub host: usize,
    pub peer: usize,
    pub at: Duration,
}

/// A fault of one rank, counted over all hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankFault {
    pub rank: usize,
    pub at: Duration,
}

/// The end of one service process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostDeath {
    pub host: usize,
    pub at: Duration,
    /// How much later the fabric of the other hosts reports the death; `None`: never.
    pub reported_after: Option<Duration>,
}

impl Faults {
    pub fn none() -> Self {
        Faults::default()
    }

    /// The time from which frames arrive as they should, unless a cut still holds them up; `None`: never.
    pub(crate) fn healed(&self) -> Option<Duration> {
        let chances = [self.frame_loss, self.duplicate, self.reorder];
        let by_chance = !self.jitter.is_zero() || chances.iter().any(|chance| *chance > 0.0);
        let until = if by_chance { self.until? } else { Duration::ZERO };
        Some(self.scripted(Duration::ZERO).max(until))
    }

    /// When the last scripted fault is over.
    pub(crate) fn last_scripted(&self) -> Duration {
        self.scripted(self.backoff)
    }

    /// When the last scripted fault is over, if each cut holds frames up for `backoff` after its end.
    fn scripted(&self, backoff: Duration) -> Duration {
        let pauses = self.blackouts.iter().chain(&self.stalls).map(|p| p.at + p.lasting);
        let ranks = self.dead_ranks.iter().chain(&self.early_deaths).chain(&self.bad_memory).map(|r| r.at);
        let hosts = self.dead_hosts.iter().map(|h| h.at + h.reported_after.unwrap_or_default());
        let cuts = self.cuts.iter().map(|cut| cut.end() + backoff).chain(self.abandoned.iter().map(|one| one.at));
        let scripted = pauses.chain(ranks).chain(hosts).chain(cuts).max().unwrap_or_default();
        let replays = if self.replay > 0.0 { self.until.unwrap_or_default() + REPLAY } else { Duration::ZERO };
        scripted.max(replays)
    }
}

/// The denominator of chances.
const ONE: u32 = 1 << 16;

/// A chance in 65,536ths.
fn in_parts(chance: f64) -> u32 {
    assert!((0.0..=1.0).contains(&chance), "a chance lies between 0 and 1");
    (chance * f64::from(ONE)).round() as u32
}

/// The decision about one delivery of up to 64 datagrams. Sets of datagrams are bit masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fate {
    /// Datagrams that arrive in time.
    pub(crate) pass: u64,
    /// Datagrams that arrive `late_by` later.
    pub(crate) late: u64,
    /// Datagrams that arrive once more, after `late_by`.
    pub(crate) again: u64,
    /// Delay of datagrams that arrive in time.
    pub(crate) jitter: Duration,
    /// Further delay of `late` and `again`.
    pub(crate) late_by: Duration,
    /// Datagrams that arrive once more, with the delay of the repeated arrival.
    pub(crate) replayed: (u64, Duration),
}

/// Decides what goes wrong, by seed.
#[derive(Debug)]
pub(crate) struct Dice {
    rng: ChaCha8Rng,
    /// A random stream of its own, so that forgeries change no other decision.
    forger: ChaCha8Rng,
    /// The faults, with the numbers of lost deliveries in order.
    faults: Faults,
    deliveries: u64,
    dropped: u64,
    /// Faults that have taken effect.
    pub(crate) coverage: Coverage,
}

impl Dice {
    pub(crate) fn new(faults: &Faults, seed: u64) -> Self {
        let mut faults = faults.clone();
        faults.drop.sort_unstable();
        Dice {
            rng: ChaCha8Rng::seed_from_u64(seed),
            forger: ChaCha8Rng::seed_from_u64(seed ^ 0x666f_7267_6572),
            faults,
            deliveries: 0,
            dropped: 0,
            coverage: Coverage::default(),
        }
    }

    /// Deliveries tried so far, and how many of them were lost to chance or script.
    pub(crate) fn counted(&self) -> (u64, u64) {
        (self.deliveries, self.dropped)
    }

    /// Ends random faults at `now`.
    pub(crate) fn end(&mut self, now: Instant) {
        self.faults.until = Some(now.since(Instant(0)));
    }

    /// Whether deliveries may take different times.
    pub(crate) fn jitters(&self) -> bool {
        !self.faults.jitter.is_zero()
    }

    /// A random number for purposes that are no faults.
    pub(crate) fn draw(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// A duration of up to `most`, evenly drawn.
    pub(crate) fn up_to(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(match most.as_nanos() as u64 {
            0 => 0,
            most => self.rng.random_range(0..=most),
        })
    }

    /// The generator for a forged datagram, if the dice decide to forge one.
    pub(crate) fn forges(&mut self, now: Instant) -> Option<&mut ChaCha8Rng> {
        let chance = in_parts(self.faults.forgery);
        if chance == 0 || !self.raging(now) || self.forger.random_range(0..ONE) >= chance {
            return None;
        }
        self.coverage.fault(FaultKind::DatagramAltered, 1);
        Some(&mut self.forger)
    }

    /// The delay until the driver reports that something is done.
    pub(crate) fn slowness(&mut self, now: Instant) -> Duration {
        if self.faults.slow.is_zero() || !self.raging(now) {
            return Duration::ZERO;
        }
        self.coverage.fault(FaultKind::SlowDriver, 1);
        self.up_to(self.faults.slow)
    }

    /// The datagrams of `among` that pass the sender's uplink.
    pub(crate) fn past_uplink(&mut self, now: Instant, among: u64) -> u64 {
        if self.raging(now) { among & !self.mask(self.faults.uplink_loss) } else { among }
    }

    /// Decides about the datagrams `among` on the way to one receiver.
    pub(crate) fn datagrams(&mut self, now: Instant, among: u64) -> Fate {
        let mut fate = self.decide(now, among, self.faults.datagram_loss);
        self.coverage.fault(FaultKind::DatagramLost, missing(among, &fate));
        if self.raging(now) {
            let again = fate.pass & self.mask(self.faults.replay);
            if again != 0 {
                fate.replayed = (again, self.up_to(REPLAY));
                self.coverage.fault(FaultKind::DatagramReplayed, again.count_ones().into());
            }
        }
        fate
    }

    /// Decides about a frame as about one datagram, bit 0.
    pub(crate) fn frame(&mut self, now: Instant) -> Fate {
        let fate = self.decide(now, 1, self.faults.frame_loss);
        self.coverage.fault(FaultKind::FrameLost, missing(1, &fate));
        fate
    }

    fn raging(&self, now: Instant) -> bool {
        self.faults.until.is_none_or(|until| now.since(Instant(0)) < until)
    }

    fn decide(&mut self, now: Instant, among: u64, loss: f64) -> Fate {
        let mut pass = among & !self.scripted(among);
        let none = Duration::ZERO;
        let mut fate = Fate { pass, late: 0, again: 0, jitter: none, late_by: none, replayed: (0, none) };
        if self.raging(now) {
            pass &= !self.mask(loss);
            fate.late = pass & self.mask(self.faults.reorder);
            fate.again = pass & self.mask(self.faults.duplicate);
            fate.pass = pass & !fate.late;
            fate.jitter = self.up_to(self.faults.jitter);
            if fate.late | fate.again != 0 {
                fate.late_by = self.up_to(2 * self.faults.jitter + Duration::from_micros(300));
            }
        }
        self.dropped += u64::from((among & !pass).count_ones());
        self.coverage.fault(FaultKind::Doubled, fate.again.count_ones().into());
        self.coverage.fault(FaultKind::Overtaken, fate.late.count_ones().into());
        fate
    }

    /// Numbers the deliveries of `among` and returns the ones that the script drops.
    fn scripted(&mut self, among: u64) -> u64 {
        let first = self.deliveries;
        self.deliveries += u64::from(among.count_ones());
        let from = self.faults.drop.partition_point(|n| *n < first);
        let mut hit = 0;
        for n in self.faults.drop[from..].iter().take_while(|n| **n < self.deliveries) {
            let mut rest = among;
            for _ in 0..n - first {
                rest &= rest - 1;
            }
            hit |= rest & rest.wrapping_neg();
        }
        hit
    }

    /// Makes 64 throws at once, in integers only: each bit is set with the given chance. The loop starts at the lowest
    /// binary digit. If the lower digits give the chance p, a digit 1 makes it (1 + p) / 2, and a digit 0 makes it p /
    /// 2.
    fn mask(&mut self, chance: f64) -> u64 {
        let chance = in_parts(chance);
        match chance {
            0 => return 0,
            ONE.. => return u64::MAX,
            _ => {}
        }
        let mut mask = 0;
        for digit in chance.trailing_zeros()..16 {
            let random = self.rng.next_u64();
            mask = if chance >> digit & 1 == 1 { mask | random } else { mask & random };
        }
        mask
    }
}

/// How many of `among` do not arrive.
fn missing(among: u64, fate: &Fate) -> u64 {
    (among & !(fate.pass | fate.late)).count_ones().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_come_out_right() {
        for p in [0.0, 0.01, 0.05, 0.3, 0.5, 1.0] {
            let mut dice = Dice::new(&Faults { datagram_loss: p, ..Faults::none() }, 3);
            let lost: u32 = (0..10_000).map(|_| 64 - dice.datagrams(Instant(0), u64::MAX).pass.count_ones()).sum();
            let seen = f64::from(lost) / 640_000.0;
            assert!((seen - p).abs() < 0.005, "{p} came out as {seen}");
            assert_eq!(dice.counted(), (640_000, u64::from(lost)));
        }
    }

    #[test]
    fn scripted_drops_hit_the_numbered_delivery() {
        let mut dice = Dice::new(&Faults { drop: vec![4, 0, 2], ..Faults::none() }, 1);
        assert_eq!(dice.datagrams(Instant(0), 0b1011_0000).pass, 0b0010_0000);
        assert_eq!(dice.frame(Instant(0)).pass, 1);
        assert_eq!(dice.frame(Instant(0)).pass, 0);
    }

    #[test]
    fn faults_stop_at_their_end_time() {
        let faults = Faults { datagram_loss: 1.0, until: Some(Duration::from_nanos(10)), ..Faults::none() };
        let mut dice = Dice::new(&faults, 1);
        assert_eq!(dice.datagrams(Instant(9), 1).pass, 0);
        assert_eq!(dice.datagrams(Instant(10), 1).pass, 1);
    }
}
