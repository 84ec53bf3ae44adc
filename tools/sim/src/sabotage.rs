//! Drivers that do one thing wrong on purpose, to show that the oracles can fail.
//!
//! Invariant: without a sabotage this module changes nothing.

use outboard_proto::{CollectiveError, Order};

/// The driver's mistake; `nth` counts from 0 on each host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    SkipDeliver {
        nth: u64,
    },
    /// Delivers to a place one byte too low, or too high at the start of a buffer.
    ShiftDeliver {
        nth: u64,
    },
    SkipCopy {
        nth: u64,
    },
    SkipReduce {
        nth: u64,
    },
    /// Keeps staging that should be given back.
    KeepStaging {
        nth: u64,
    },
    /// Does not notify a rank that its call has ended.
    LoseCompletion {
        nth: u64,
    },
    /// Reports the failure of a call that has not failed.
    InventError {
        nth: u64,
        rank: outboard_plan::Rank,
    },
}

#[derive(Debug)]
pub(crate) struct Saboteur {
    sabotage: Option<Sabotage>,
    seen: u64,
}

impl Saboteur {
    pub(crate) fn new(sabotage: Option<Sabotage>) -> Self {
        Saboteur { sabotage, seen: 0 }
    }

    /// Counts one more match, and returns whether the match is number `nth`.
    fn hit(&mut self, nth: u64) -> bool {
        self.seen += 1;
        self.seen == nth + 1
    }

    /// The order to obey, if any.
    pub(crate) fn order(&mut self, order: Order) -> Option<Order> {
        let Some(sabotage) = self.sabotage else { return Some(order) };
        match (sabotage, order) {
            (Sabotage::SkipDeliver { nth }, Order::Deliver { .. })
            | (Sabotage::SkipCopy { nth }, Order::Copy { .. })
            | (Sabotage::SkipReduce { nth }, Order::Reduce { .. })
            | (Sabotage::KeepStaging { nth }, Order::Unstage { .. }) => (!self.hit(nth)).then_some(order),
            (Sabotage::ShiftDeliver { nth }, Order::Deliver { payload, offset, mut to }) if self.hit(nth) => {
                to.offset = if to.offset == 0 { 1 } else { to.offset - 1 };
                Some(Order::Deliver { payload, offset, to })
            }
            _ => Some(order),
        }
    }

    /// The result of a call as reported to its rank, if it is reported.
    pub(crate) fn completed(&mut self, result: Result<(), CollectiveError>) -> Option<Result<(), CollectiveError>> {
        match self.sabotage {
            Some(Sabotage::LoseCompletion { nth }) => (!self.hit(nth)).then_some(result),
            Some(Sabotage::InventError { nth, rank }) => {
                Some(if self.hit(nth) { Err(CollectiveError::RankLost(rank)) } else { result })
            }
            _ => Some(result),
        }
    }
}
