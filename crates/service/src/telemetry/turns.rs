//! Length of the conductor's turns, and the longest part of the longest turn.
//!
//! A turn lasts from the planned end of a sleep until the next sleep, so a conductor that wakes late has a long turn.
//! The clock is read after each part that had work: three times in a turn without work, about ten times at most, 25 ns
//! each. The thread's processor time takes a system call and is read about once per `SAMPLE`.

use std::fmt;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::poller::WakeToken;

/// Number of length classes; the last class begins at 4.2 s.
const CLASSES: usize = 24;
/// Greatest age of a sample of the thread's processor time. A turn of at least this length is compared with the
/// processor time.
const SAMPLE: Duration = Duration::from_millis(10);

/// The parts of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnPart {
    /// The conductor ran later than its wake-up was due: it was stopped, or other threads had the processor.
    Waking,
    Attaching,
    Requests,
    Statistics,
    Fabric,
    Reports,
    Submissions,
    RankCopies,
    Timers,
    Events,
    Transmissions,
    Memory,
    #[default]
    Rest,
}

const PARTS: [(TurnPart, &str); 13] = [
    (TurnPart::Waking, "waking late"),
    (TurnPart::Attaching, "new connections"),
    (TurnPart::Requests, "requests of ranks"),
    (TurnPart::Statistics, "statistics"),
    (TurnPart::Fabric, "frames of other service processes"),
    (TurnPart::Reports, "reports of the datapath"),
    (TurnPart::Submissions, "submissions"),
    (TurnPart::RankCopies, "copies of ranks"),
    (TurnPart::Timers, "timers"),
    (TurnPart::Events, "events"),
    (TurnPart::Transmissions, "transmissions"),
    (TurnPart::Memory, "ranks' memory"),
    (TurnPart::Rest, "all else"),
];

impl TurnPart {
    /// The part of the turn that handles a wake-up; `None` if the next turn handles it.
    pub(crate) fn of(token: WakeToken) -> Option<TurnPart> {
        match token {
            WakeToken::Attach => Some(TurnPart::Attaching),
            WakeToken::Statistics => Some(TurnPart::Statistics),
            WakeToken::Channel(_) | WakeToken::Process(_) => Some(TurnPart::Requests),
            WakeToken::Engine => Some(TurnPart::Reports),
            WakeToken::Stop | WakeToken::Fabric | WakeToken::Mailbox | WakeToken::Datapath | WakeToken::Doorbell(_) => {
                None
            }
        }
    }
}

impl fmt::Display for TurnPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PARTS[*self as usize].1)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TurnLength {
    /// Length of the turn, nanoseconds.
    pub ns: u64,
    /// Least time of the turn without a processor, in nanoseconds: the thread was stopped, preempted or blocked in the
    /// kernel.
    pub off_processor_ns: u64,
    /// The longest part of the turn.
    pub part: TurnPart,
    /// Length of the longest part, nanoseconds.
    pub part_ns: u64,
}

impl TurnLength {
    fn busy_ns(&self) -> u64 {
        self.ns.saturating_sub(self.off_processor_ns)
    }

    #[must_use]
    pub fn longer(self, other: TurnLength) -> TurnLength {
        if other.ns > self.ns { other } else { self }
    }

    /// The turn that used more processor time.
    #[must_use]
    pub fn busier(self, other: TurnLength) -> TurnLength {
        if other.busy_ns() > self.busy_ns() { other } else { self }
    }
}

impl fmt::Display for TurnLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = |ns: u64| ns as f64 / 1e6;
        write!(f, "{:.3} ms, of which {:.3} ms in {}", milliseconds(self.ns), milliseconds(self.part_ns), self.part)?;
        match self.off_processor_ns {
            0 => Ok(()),
            off => write!(f, " and {:.3} ms without the processor", milliseconds(off)),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TurnLengths {
    /// Number of turns by length: entry `i` counts the turns below 2^i microseconds that no earlier entry counts. The
    /// last entry also counts all longer turns.
    pub counts: [u64; CLASSES],
    pub longest: TurnLength,
    /// The turn that used the most processor time.
    pub busiest: TurnLength,
}

impl TurnLengths {
    fn add(&mut self, ns: u64) {
        let class = u64::BITS - (ns / 1000).leading_zeros();
        self.counts[(class as usize).min(CLASSES - 1)] += 1;
    }

    /// The least power of two in microseconds such that at least `per_mille` in 1,000 turns are shorter.
    #[must_use]
    pub fn bound_us(&self, per_mille: u64) -> u64 {
        let wanted = (self.counts.iter().sum::<u64>() * per_mille).div_ceil(1000);
        let mut seen = 0;
        let class = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        1 << class.expect("the last entry reaches the sum")
    }
}

/// Measures the conductor's turns, and the processor time of the conductor's thread.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    pub(crate) lengths: TurnLengths,
    at: Instant,
    /// Nanoseconds of each part of this turn; `total` is their sum.
    parts: [u64; PARTS.len()],
    total: u64,
    /// Whether this turn has been reported as a stall.
    stalled: bool,
    /// The time of the last sample, and the thread's processor time at that time.
    sample: (Instant, Duration),
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

impl Stopwatch {
    pub(crate) fn start(now: Instant) -> Self {
        let lengths = TurnLengths::default();
        Stopwatch {
            lengths,
            at: now,
            parts: [0; PARTS.len()],
            total: 0,
            stalled: false,
            sample: (now, processor_time()),
        }
    }

    /// Begins a turn after a sleep that was due to end `late` before now.
    pub(crate) fn begin(&mut self, now: Instant, late: Duration) {
        self.at = now;
        self.parts = [0; PARTS.len()];
        self.total = nanoseconds(late);
        self.parts[TurnPart::Waking as usize] = self.total;
        self.stalled = false;
    }

    pub(crate) fn lap(&mut self, part: TurnPart) {
        self.lap_at(part, Instant::now());
    }

    /// Ends a part of the turn at `now`.
    pub(crate) fn lap_at(&mut self, part: TurnPart, now: Instant) {
        let took = nanoseconds(now.saturating_duration_since(self.at));
        self.parts[part as usize] += took;
        self.total += took;
        self.at = now;
    }

    /// The turn up to the end of its last part.
    fn so_far(&self) -> TurnLength {
        let (&part_ns, (part, _)) = self.parts.iter().zip(PARTS).max_by_key(|(ns, _)| **ns).expect("there are parts");
        let off_processor_ns = match self.is_long() {
            true => self.total.saturating_sub(nanoseconds(processor_time().saturating_sub(self.sample.1))),
            false => 0,
        };
        TurnLength { ns: self.total, off_processor_ns, part, part_ns }
    }

    /// Returns this turn if it is longer than `limit` at the end of its last part, but only once per turn.
    pub(crate) fn stall(&mut self, limit: Duration) -> Option<TurnLength> {
        if self.stalled || self.total < nanoseconds(limit) {
            return None;
        }
        self.stalled = true;
        Some(self.so_far())
    }

    /// Whether this turn is long enough to be compared with the thread's processor time.
    fn is_long(&self) -> bool {
        self.total >= nanoseconds(SAMPLE)
    }

    /// Ends the turn with its last part.
    pub(crate) fn end(&mut self) {
        self.lengths.add(self.total);
        let TurnLengths { longest, busiest, .. } = self.lengths;
        if self.total > longest.ns.min(busiest.busy_ns()) {
            let turn = self.so_far();
            (self.lengths.longest, self.lengths.busiest) = (longest.longer(turn), busiest.busier(turn));
        }
        if self.is_long() || self.at.saturating_duration_since(self.sample.0) >= SAMPLE {
            self.sample = (self.at, processor_time());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn parts_have_their_names() {
        assert!(PARTS.iter().enumerate().all(|(at, (part, _))| *part as usize == at));
    }

    #[test]
    fn turns_are_counted_by_length_and_the_longest_is_kept_with_its_cause() {
        let now = Instant::now();
        let mut watch = Stopwatch::start(now);
        for (late, events, rest) in [(0, 0, 0), (0, 1, 0), (2, 1, 0), (300, 700, 100), (4, 0, 1)] {
            watch.begin(now, US * late);
            watch.lap_at(TurnPart::Events, now + US * events);
            watch.lap_at(TurnPart::Rest, now + US * (events + rest));
            watch.end();
        }
        let counts = &watch.lengths.counts;
        assert_eq!((counts[..4].to_vec(), counts[11], counts.iter().sum::<u64>()), (vec![1, 1, 1, 1], 1, 5));
        let longest = TurnLength { ns: 1_100_000, off_processor_ns: 0, part: TurnPart::Events, part_ns: 700_000 };
        assert_eq!((watch.lengths.longest, watch.lengths.busiest), (longest, longest));
        assert_eq!(
            [0, 200, 201, 600, 800, 801, 1000].map(|share| watch.lengths.bound_us(share)),
            [1, 1, 2, 4, 8, 2048, 2048]
        );
        assert_eq!(longest.to_string(), "1.100 ms, of which 0.700 ms in events");
    }

    #[test]
    fn a_turn_without_the_processor_is_the_longest_and_not_the_busiest() {
        let now = Instant::now();
        let mut watch = Stopwatch::start(now);
        watch.lap_at(TurnPart::Fabric, now + US * 100);
        watch.end();
        watch.begin(now, Duration::from_secs(7));
        watch.end();
        let TurnLengths { longest, busiest, .. } = watch.lengths;
        assert_eq!((longest.part, busiest.part), (TurnPart::Waking, TurnPart::Fabric));
        assert!(longest.off_processor_ns > 6_000_000_000, "{longest}");
        assert_eq!(watch.lengths.counts[CLASSES - 1], 1);
    }

    #[test]
    fn a_stall_is_reported_once_with_its_cause() {
        let (now, limit) = (Instant::now(), Duration::from_secs(3));
        let mut watch = Stopwatch::start(now);
        watch.lap_at(TurnPart::Fabric, now + US);
        assert_eq!(watch.stall(limit), None);
        watch.lap_at(TurnPart::Submissions, now + limit);
        let stall = watch.stall(limit).expect("as long as the limit");
        assert_eq!((stall.ns, stall.part), (3_000_000_000, TurnPart::Submissions));
        assert_eq!(watch.stall(limit), None, "once");
        watch.begin(now, limit);
        assert_eq!(watch.stall(limit).map(|stall| stall.part), Some(TurnPart::Waking));
    }
}
