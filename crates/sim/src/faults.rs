//! What goes wrong in a run, and the dice that decide each case.
//!
//! Invariants: every decision comes from the run's seed; dice are thrown in the order of events, so that equal seeds
//! give equal runs; chances are compared in integers. Faults hit the world around the machines, never the machines.

use std::time::Duration;

use outboard_proto::Instant;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::coverage::{Coverage, FaultKind};

/// What goes wrong. All times are virtual, since the start of the run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Faults {
    /// When random faults stop, so that everything must end soon; `None`: never.
    pub until: Option<Duration>,
    /// Chance that a datagram is lost on the way to one of its receivers, independently of the others.
    pub datagram_loss: f64,
    /// Chance that a datagram is lost before the switch, for all receivers alike.
    pub uplink_loss: f64,
    /// Chance that a frame is lost.
    pub frame_loss: f64,
    /// Chance that a datagram or a frame arrives twice.
    pub duplicate: f64,
    /// Chance that a datagram or a frame comes later than those behind it.
    pub reorder: f64,
    /// Chance that somebody who hears a train of datagrams sends an altered one of it to a receiver before it: damaged,
    /// cut short, with another payload, of another instance or group, or from another address.
    pub forgery: f64,
    /// Chance that a datagram comes once more within `REPLAY`. Of frames the fabric takes none twice: they come over
    /// a connection of a peer that has proven who it is.
    pub replay: f64,
    /// Most by which a sender of batches, or the fabric, is late to say that it is done, evenly drawn.
    pub slow: Duration,
    /// Most by which a delivery is delayed, evenly drawn. Frames of one pair stay in order.
    pub jitter: Duration,
    /// Numbers of deliveries (a datagram to one receiver, or a frame; counted from 0) that are lost whatever the time.
    pub drop: Vec<u64>,
    /// Times in which nothing reaches a host.
    pub blackouts: Vec<HostPause>,
    /// Times in which nothing that one host sends reaches another.
    pub cuts: Vec<Cut>,
    /// How long behind a cut a connection goes on: frames said in the cut, and until then, come together in order,
    /// since the kernel tries again less and less often. Those that would wait for 4 s are lost. Zero: all
    /// frames of the cut are lost, no others.
    pub backoff: Duration,
    /// Connections that the fabric gives up although both ends live.
    pub given_up: Vec<GivenUp>,
    /// Times in which a service process handles nothing; what comes in waits, datagrams in a bounded buffer.
    pub stalls: Vec<HostPause>,
    /// Ranks whose processes die. One dies only after it has asked for all its groups.
    pub dead_ranks: Vec<RankFault>,
    /// Ranks whose processes die when they have made their offers, whatever they have asked for by then.
    pub early_deaths: Vec<RankFault>,
    /// A member of a group (both by number) to whom its service process refuses it.
    pub refused: Option<(usize, usize)>,
    /// Ranks whose buffers cannot be accessed any more.
    pub bad_memory: Vec<RankFault>,
    /// Service processes that die.
    pub dead_hosts: Vec<HostDeath>,
    /// How many hosts, the last ones, stand for service processes that are started in the place of dead ones.
    pub restarted: usize,
    /// A host whose service process is configured differently.
    pub misconfigured: Option<usize>,
}

/// Longer than a service process that is silent lives for the others.
pub(crate) const REPLAY: Duration = Duration::from_secs(8);

/// How long a kernel tries before it gives up a connection.
pub(crate) const GIVEN_UP: Duration = Duration::from_secs(4);

/// A span of time of one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostPause {
    pub host: usize,
    pub at: Duration,
    pub lasting: Duration,
}

/// A span of time in which nothing gets from one host to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    pub from: usize,
    pub to: usize,
    pub at: Duration,
    pub lasting: Duration,
}

impl Cut {
    /// When it is over.
    pub(crate) fn end(&self) -> Duration {
        self.at + self.lasting
    }

    /// All between `host` and `others`, in both directions.
    pub fn off(host: usize, others: impl Iterator<Item = usize>, at: Duration, lasting: Duration) -> Vec<Cut> {
        let pair = |other| [(host, other), (other, host)].map(|(from, to)| Cut { from, to, at, lasting });
        others.filter(|other| *other != host).flat_map(pair).collect()
    }
}

/// The fabric of a host tells it that another is gone, which lives: it had tried to connect while they were cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenUp {
    pub host: usize,
    pub peer: usize,
    pub at: Duration,
}

/// Something that happens to one rank (counted over all hosts).
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
    /// How long after it the fabric of the others reports it; `None`: silence.
    pub reported_after: Option<Duration>,
}

impl Faults {
    /// Nothing goes wrong.
    #[must_use]
    pub fn none() -> Self {
        Faults::default()
    }

    /// When frames arrive as they should from then on, but for what a cut still holds up; `None`: never.
    pub(crate) fn healed(&self) -> Option<Duration> {
        let chances = [self.frame_loss, self.duplicate, self.reorder];
        let by_chance = !self.jitter.is_zero() || chances.iter().any(|chance| *chance > 0.0);
        let until = if by_chance { self.until? } else { Duration::ZERO };
        Some(self.scripted(Duration::ZERO).max(until))
    }

    /// When the last fault with a time of its own is over.
    pub(crate) fn last_scripted(&self) -> Duration {
        self.scripted(self.backoff)
    }

    /// The same, if what a cut holds up goes on so long after it.
    fn scripted(&self, backoff: Duration) -> Duration {
        let pauses = self.blackouts.iter().chain(&self.stalls).map(|p| p.at + p.lasting);
        let ranks = self.dead_ranks.iter().chain(&self.early_deaths).chain(&self.bad_memory).map(|r| r.at);
        let hosts = self.dead_hosts.iter().map(|h| h.at + h.reported_after.unwrap_or_default());
        let cuts = self.cuts.iter().map(|cut| cut.end() + backoff).chain(self.given_up.iter().map(|one| one.at));
        let scripted = pauses.chain(ranks).chain(hosts).chain(cuts).max().unwrap_or_default();
        let replays = if self.replay > 0.0 { self.until.unwrap_or_default() + REPLAY } else { Duration::ZERO };
        scripted.max(replays)
    }
}

/// A chance in 65,536ths.
#[derive(Debug, Clone, Copy)]
struct Chance(u32);

impl Chance {
    const ONE: u32 = 1 << 16;

    fn new(p: f64) -> Self {
        assert!((0.0..=1.0).contains(&p), "a chance lies between 0 and 1");
        Chance((p * f64::from(Self::ONE)).round() as u32)
    }
}

/// What the dice decide about one delivery of up to 64 datagrams, as sets of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fate {
    /// Arrive in time.
    pub(crate) pass: u64,
    /// Arrive later, after `late_by`.
    pub(crate) late: u64,
    /// Arrive once more, after `late_by`.
    pub(crate) again: u64,
    /// Delay of what arrives in time.
    pub(crate) jitter: Duration,
    /// Further delay of what arrives later.
    pub(crate) late_by: Duration,
    /// Arrive once more, after this.
    pub(crate) replayed: (u64, Duration),
}

/// Decides what goes wrong, by seed.
#[derive(Debug)]
pub(crate) struct Dice {
    rng: ChaCha8Rng,
    /// A stream of its own, so that whoever forges changes nothing else.
    forger: ChaCha8Rng,
    forgery: Chance,
    until: Option<Instant>,
    datagram_loss: Chance,
    uplink_loss: Chance,
    frame_loss: Chance,
    duplicate: Chance,
    reorder: Chance,
    replay: Chance,
    slow: Duration,
    jitter: u64,
    drop: Vec<u64>,
    deliveries: u64,
    dropped: u64,
    /// What has gone wrong.
    pub(crate) coverage: Coverage,
}

impl Dice {
    pub(crate) fn new(faults: &Faults, seed: u64) -> Self {
        let mut drop = faults.drop.clone();
        drop.sort_unstable();
        Dice {
            rng: ChaCha8Rng::seed_from_u64(seed),
            forger: ChaCha8Rng::seed_from_u64(seed ^ 0x666f_7267_6572),
            forgery: Chance::new(faults.forgery),
            until: faults.until.map(|d| Instant(0) + d),
            datagram_loss: Chance::new(faults.datagram_loss),
            uplink_loss: Chance::new(faults.uplink_loss),
            frame_loss: Chance::new(faults.frame_loss),
            duplicate: Chance::new(faults.duplicate),
            reorder: Chance::new(faults.reorder),
            replay: Chance::new(faults.replay),
            slow: faults.slow,
            jitter: faults.jitter.as_nanos() as u64,
            drop,
            deliveries: 0,
            dropped: 0,
            coverage: Coverage::default(),
        }
    }

    /// Deliveries tried so far, and how many of them were lost to chance or script.
    pub(crate) fn counted(&self) -> (u64, u64) {
        (self.deliveries, self.dropped)
    }

    /// Nothing goes wrong by chance from `now` on.
    pub(crate) fn end(&mut self, now: Instant) {
        self.until = Some(now);
    }

    /// Whether one thing may take longer on its way than another.
    pub(crate) fn jitters(&self) -> bool {
        self.jitter > 0
    }

    /// A number for purposes that are no faults.
    pub(crate) fn draw(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// Evenly up to `most`.
    pub(crate) fn up_to(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(match most.as_nanos() as u64 {
            0 => 0,
            most => self.rng.random_range(0..=most),
        })
    }

    /// What somebody forges after a train, if anything: by this generator.
    pub(crate) fn forges(&mut self, now: Instant) -> Option<&mut ChaCha8Rng> {
        let chance = self.forgery.0;
        if chance == 0 || !self.raging(now) || self.forger.random_range(0..Chance::ONE) >= chance {
            return None;
        }
        self.coverage.fault(FaultKind::DatagramAltered, 1);
        Some(&mut self.forger)
    }

    /// How late somebody is to say that something is done.
    pub(crate) fn slowness(&mut self, now: Instant) -> Duration {
        if self.slow.is_zero() || !self.raging(now) {
            return Duration::ZERO;
        }
        self.coverage.fault(FaultKind::SlowDriver, 1);
        self.up_to(self.slow)
    }

    /// Which of `among` get past the sender's uplink.
    pub(crate) fn past_uplink(&mut self, now: Instant, among: u64) -> u64 {
        if self.raging(now) { among & !self.mask(self.uplink_loss) } else { among }
    }

    /// What becomes of the datagrams `among` on the way to one receiver.
    pub(crate) fn datagrams(&mut self, now: Instant, among: u64) -> Fate {
        let mut fate = self.decide(now, among, self.datagram_loss);
        self.coverage.fault(FaultKind::DatagramLost, missing(among, &fate));
        if self.raging(now) {
            let again = fate.pass & self.mask(self.replay);
            if again != 0 {
                fate.replayed = (again, self.up_to(REPLAY));
                self.coverage.fault(FaultKind::DatagramReplayed, again.count_ones().into());
            }
        }
        fate
    }

    /// What becomes of a frame: as of one datagram, bit 0.
    pub(crate) fn frame(&mut self, now: Instant) -> Fate {
        let fate = self.decide(now, 1, self.frame_loss);
        self.coverage.fault(FaultKind::FrameLost, missing(1, &fate));
        fate
    }

    fn raging(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    fn decide(&mut self, now: Instant, among: u64, loss: Chance) -> Fate {
        let mut pass = among & !self.scripted(among);
        let none = Duration::ZERO;
        let mut fate = Fate { pass, late: 0, again: 0, jitter: none, late_by: none, replayed: (0, none) };
        if self.raging(now) {
            pass &= !self.mask(loss);
            fate.late = pass & self.mask(self.reorder);
            fate.again = pass & self.mask(self.duplicate);
            fate.pass = pass & !fate.late;
            fate.jitter = self.up_to(Duration::from_nanos(self.jitter));
            if fate.late | fate.again != 0 {
                fate.late_by = self.up_to(Duration::from_nanos(2 * self.jitter + 300_000));
            }
        }
        self.dropped += u64::from((among & !pass).count_ones());
        self.coverage.fault(FaultKind::Doubled, fate.again.count_ones().into());
        self.coverage.fault(FaultKind::Overtaken, fate.late.count_ones().into());
        fate
    }

    /// Numbers the deliveries of `among` and returns those that the script drops.
    fn scripted(&mut self, among: u64) -> u64 {
        let first = self.deliveries;
        self.deliveries += u64::from(among.count_ones());
        let from = self.drop.partition_point(|n| *n < first);
        let mut hit = 0;
        for n in self.drop[from..].iter().take_while(|n| **n < self.deliveries) {
            let mut rest = among;
            for _ in 0..n - first {
                rest &= rest - 1;
            }
            hit |= rest & rest.wrapping_neg();
        }
        hit
    }

    /// 64 throws at once: each bit is set with the chance, in integers only. From the lowest digit of the chance
    /// upwards, a digit 1 makes a half plus half of what was, a digit 0 half of what was.
    fn mask(&mut self, Chance(chance): Chance) -> u64 {
        match chance {
            0 => return 0,
            Chance::ONE.. => return u64::MAX,
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
    fn faults_stop_when_told() {
        let faults = Faults { datagram_loss: 1.0, until: Some(Duration::from_nanos(10)), ..Faults::none() };
        let mut dice = Dice::new(&faults, 1);
        assert_eq!(dice.datagrams(Instant(9), 1).pass, 0);
        assert_eq!(dice.datagrams(Instant(10), 1).pass, 1);
    }
}
