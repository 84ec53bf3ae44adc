//! Detects collectives that take too long, and the ranks that have not called them (SP-9).
//!
//! Lateness is no error. A collective that a local rank waits for is examined when the watchdog's time has passed since
//! the first news of the collective ([`crate::Config::watchdog`]), then at doubling times. A collective is also
//! examined once when the deadline of a rank's call has passed ([`crate::RankCall::deadline`]); only a deadline makes
//! lateness an error. The examination queries all other service processes of the group for their ranks that have not
//! called.
//!
//! | state | event | next |
//! |---|---|---|
//! | resting | watchdog or deadline due, and there are others to query | asking |
//! | resting | watchdog or deadline due, and there are no others | resting, with the findings |
//! | asking | all have answered, or [`ANSWER_TIMEOUT`] has passed | resting, with the findings |
//!
//! Invariant: at most [`MAX_ABSENT`](crate::MAX_ABSENT) ranks are named; the others are counted.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::error::Absentees;
use crate::ids::{Instant, SpId};

/// Timeout for the answers of others. Dead peers are detected elsewhere.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct LatenessFindings {
    pub(crate) missing: Absentees,
    pub(crate) silent: BTreeSet<SpId>,
    /// The deadline, if it has passed.
    pub(crate) deadline: Option<Duration>,
}

/// The action that is due.
#[derive(Debug)]
pub(crate) enum WatchAction {
    Query,
    Report(LatenessFindings),
}

#[derive(Debug)]
struct Inquiry {
    until: Instant,
    unanswered: BTreeSet<SpId>,
    missing: Absentees,
}

/// The clocks of one collective. See the module.
#[derive(Debug)]
pub(crate) struct LatenessWatch {
    since: Instant,
    report_at: Option<Instant>,
    deadline: Option<(Instant, Duration)>,
    inquiry: Option<Inquiry>,
}

impl LatenessWatch {
    pub(crate) fn new(now: Instant, watchdog: Option<Duration>) -> Self {
        LatenessWatch { since: now, report_at: watchdog.map(|after| now + after), deadline: None, inquiry: None }
    }

    /// A rank sets a deadline of `after` from now. The nearest deadline counts.
    pub(crate) fn set_deadline(&mut self, now: Instant, after: Duration) {
        let at = now + after;
        if self.deadline.is_none_or(|(sooner, _)| at < sooner) {
            self.deadline = Some((at, after));
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match &self.inquiry {
            Some(inquiry) => Some(inquiry.until),
            None => [self.report_at, self.deadline.map(|(at, _)| at)].into_iter().flatten().min(),
        }
    }

    /// The action that is due. `wanted`: a local rank waits for the collective.
    pub(crate) fn handle_timeout(&mut self, now: Instant, wanted: bool) -> Option<WatchAction> {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let deadline = self.deadline.filter(|(at, _)| *at <= now).map(|(_, after)| after);
        if self.inquiry.as_ref().is_some_and(|inquiry| inquiry.until <= now) {
            let Inquiry { unanswered, missing, .. } = self.inquiry.take()?;
            self.rearm(now);
            return wanted.then_some(WatchAction::Report(LatenessFindings { missing, silent: unanswered, deadline }));
        }
        if self.inquiry.is_some() || !(due(self.report_at) || deadline.is_some()) {
            return None;
        }
        if !wanted {
            self.rearm(now);
            return None;
        }
        Some(WatchAction::Query)
    }

    /// The next report is due at twice the age of the collective; a deadline counts once.
    fn rearm(&mut self, now: Instant) {
        self.deadline = self.deadline.filter(|(at, _)| *at > now);
        if let Some(at) = self.report_at.filter(|at| *at <= now) {
            self.report_at = Some(at.max(now) + now.since(self.since));
        }
    }

    /// Starts a query of `others`; the `local` ranks have not called.
    pub(crate) fn start_query(&mut self, now: Instant, others: BTreeSet<SpId>, local: Absentees) {
        let until = if others.is_empty() { now } else { now + ANSWER_TIMEOUT };
        self.inquiry = Some(Inquiry { until, unanswered: others, missing: local });
    }

    /// A service process reports which of its ranks have not called. An answer without a pending query is ignored.
    pub(crate) fn handle_answer(&mut self, now: Instant, from: SpId, absent: &Absentees) {
        let Some(inquiry) = &mut self.inquiry else { return };
        if inquiry.unanswered.remove(&from) {
            inquiry.missing.merge(absent);
            if inquiry.unanswered.is_empty() {
                inquiry.until = now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use outboard_plan::Rank;

    use super::*;
    use crate::error::{Absentee, MAX_ABSENT};

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Instant {
        Instant(0) + SECOND * seconds
    }

    fn absent(ranks: std::ops::Range<u32>) -> Absentees {
        let mut absentees = Absentees::default();
        ranks.for_each(|rank| absentees.add(Absentee { rank: Rank(rank), last: None }));
        absentees
    }

    #[test]
    fn sp_9_reports_come_at_doubling_times_while_a_local_rank_waits() {
        let mut watch = LatenessWatch::new(at(0), Some(SECOND));
        let mut told = Vec::new();
        for second in 0..=20 {
            let now = at(second);
            if matches!(watch.handle_timeout(now, second != 2), Some(WatchAction::Query)) {
                watch.start_query(now, BTreeSet::new(), absent(0..1));
                assert!(
                    matches!(watch.handle_timeout(now, true), Some(WatchAction::Report(f)) if f.deadline.is_none())
                );
                told.push(second);
            }
            assert!(watch.poll_timeout().is_some_and(|next| next > now));
        }
        assert_eq!(told, [1, 4, 8, 16], "at 2 nobody waited");
    }

    #[test]
    fn sp_9_query_ends_with_all_answers_or_by_timeout() {
        let mut watch = LatenessWatch::new(at(0), None);
        assert_eq!(watch.poll_timeout(), None);
        watch.set_deadline(at(0), SECOND * 5);
        watch.set_deadline(at(1), SECOND);
        assert_eq!(watch.poll_timeout(), Some(at(2)));
        assert!(watch.handle_timeout(at(1), true).is_none());
        assert!(matches!(watch.handle_timeout(at(2), true), Some(WatchAction::Query)));
        watch.start_query(at(2), BTreeSet::from([SpId(7), SpId(8)]), absent(0..10));
        watch.handle_answer(at(2), SpId(9), &absent(0..1));
        watch.handle_answer(at(2), SpId(7), &absent(10..20));
        watch.handle_answer(at(2), SpId(7), &absent(10..20));
        assert!(watch.handle_timeout(at(2), true).is_none(), "one has not answered");
        let Some(WatchAction::Report(found)) = watch.handle_timeout(at(2) + ANSWER_TIMEOUT, true) else {
            panic!("{watch:?}")
        };
        assert_eq!((found.missing.named.len(), found.missing.more), (MAX_ABSENT, 20 - MAX_ABSENT as u32));
        assert_eq!((found.silent, found.deadline), (BTreeSet::from([SpId(8)]), Some(SECOND)));
        assert_eq!(watch.poll_timeout(), None, "a deadline counts once");
    }
}
