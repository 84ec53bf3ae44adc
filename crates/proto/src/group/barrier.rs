//! The dissemination barrier among the service processes of a group (MC-4), for any number `n` of them.
//!
//! There are `ceil(log2 n)` rounds. In round `k` a member sends to the member `2^k` behind it, and waits for the member
//! `2^k` before it. Unlike recursive doubling, no member stays outside when `n` is no power of two. So every member
//! receives a message of a barrier that others have entered, and can stand in for its own late ranks.
//!
//! | state | enter | message | next |
//! |---|---|---|---|
//! | Outside | sends round 0 | noted | Round(0) |
//! | Round(k) | - | round k | sends round k + 1, Round(k + 1); after the last Done |
//! | Done | - | noted | |
//!
//! Never does IO; messages are (member index, round) pairs.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BarrierState {
    Outside,
    Round(u8),
    Done,
}

/// One member's view of one barrier.
#[derive(Debug)]
pub struct Barrier {
    me: u32,
    n: u32,
    state: BarrierState,
    received_rounds: u32,
}

impl Barrier {
    /// The barrier of the member `me` of `n`.
    ///
    /// # Panics
    /// When there is no such member.
    pub fn new(me: u32, n: u32) -> Self {
        assert!(me < n, "a member is one of the members");
        Barrier { me, n, state: BarrierState::Outside, received_rounds: 0 }
    }

    /// Whether all members have entered.
    pub fn done(&self) -> bool {
        self.state == BarrierState::Done
    }

    /// The member that this member waits for.
    pub(crate) fn awaited(&self) -> Option<u32> {
        match self.state {
            BarrierState::Round(k) => Some((self.me + self.n - (1 << k)) % self.n),
            BarrierState::Outside | BarrierState::Done => None,
        }
    }

    /// The round that waits for a message.
    pub(crate) fn round(&self) -> Option<u8> {
        match self.state {
            BarrierState::Round(k) => Some(k),
            BarrierState::Outside | BarrierState::Done => None,
        }
    }

    /// The round, if any, in which `from` sends a message to `to`; `n` is the number of members.
    pub fn round_between(n: u32, from: u32, to: u32) -> Option<u8> {
        let distance = (to + n - from) % n;
        distance.is_power_of_two().then(|| distance.ilog2() as u8)
    }

    /// The round in which a message was sent to `member`, if any.
    pub(crate) fn sent_to(&self, member: u32) -> Option<u8> {
        let begun = match self.state {
            BarrierState::Outside => 0,
            BarrierState::Round(k) => u32::from(k) + 1,
            BarrierState::Done => self.rounds(),
        };
        Barrier::round_between(self.n, self.me, member).filter(|round| u32::from(*round) < begun)
    }

    fn rounds(&self) -> u32 {
        self.n.next_power_of_two().ilog2()
    }

    /// This member is ready. Messages to send are appended to `out` as (member, round).
    ///
    /// # Panics
    /// When this member has entered before.
    pub fn enter(&mut self, out: &mut Vec<(u32, u8)>) {
        assert!(self.state == BarrierState::Outside, "a member enters once");
        self.start_round(0, out);
        self.advance(out);
    }

    /// A message of member `from`. False when `from` cannot send such a message.
    pub fn handle(&mut self, from: u32, round: u8, out: &mut Vec<(u32, u8)>) -> bool {
        if from >= self.n || Barrier::round_between(self.n, from, self.me) != Some(round) {
            return false;
        }
        self.received_rounds |= 1 << round;
        self.advance(out);
        true
    }

    fn advance(&mut self, out: &mut Vec<(u32, u8)>) {
        while let BarrierState::Round(k) = self.state
            && self.received_rounds >> k & 1 == 1
        {
            self.start_round(k + 1, out);
        }
    }

    fn start_round(&mut self, k: u8, out: &mut Vec<(u32, u8)>) {
        if u32::from(k) == self.rounds() {
            self.state = BarrierState::Done;
        } else {
            out.push(((self.me + (1 << k)) % self.n, k));
            self.state = BarrierState::Round(k);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn mc_4_nobody_leaves_before_everybody_entered() {
        for n in 1..=33u32 {
            for last in 0..n {
                let mut members: Vec<_> = (0..n).map(|i| Barrier::new(i, n)).collect();
                let mut wire = VecDeque::new();
                let order = (0..n).filter(|i| *i != last).chain([last]);
                for i in order {
                    if i == last {
                        assert!(members.iter().all(|m| !m.done()), "done before {last} of {n} entered");
                    }
                    let mut out = Vec::new();
                    members[i as usize].enter(&mut out);
                    wire.extend(out.into_iter().map(|(to, step)| (i, to, step)));
                    while let Some((from, to, step)) = wire.pop_front() {
                        let mut out = Vec::new();
                        assert!(members[to as usize].handle(from, step, &mut out));
                        wire.extend(out.into_iter().map(|(next, step)| (to, next, step)));
                    }
                }
                assert!(members.iter().all(Barrier::done), "all of {n} done");
            }
        }
    }

    #[test]
    fn invalid_messages_are_rejected() {
        let mut b = Barrier::new(0, 5);
        let mut out = Vec::new();
        assert!(!b.handle(3, 0, &mut out));
        assert!(!b.handle(1, 3, &mut out));
        assert!(!b.handle(1, 255, &mut out));
        assert!(!b.handle(5, 0, &mut out));
        assert!(b.handle(4, 0, &mut out) && b.handle(1, 2, &mut out));
        assert_eq!((out.len(), b.done(), b.awaited()), (0, false, None), "it has not entered");
        b.enter(&mut out);
        assert_eq!((b.awaited(), b.handle(3, 1, &mut out), b.done()), (Some(3), true, true));
    }

    /// SP-6: a member that has not entered receives messages of members that have entered.
    #[test]
    fn missing_member_still_receives_the_steps_of_others() {
        for n in 2..=33u32 {
            for missing in 0..n {
                let mut members: Vec<_> = (0..n).map(|i| Barrier::new(i, n)).collect();
                let mut wire = VecDeque::new();
                for i in (0..n).filter(|i| *i != missing) {
                    let mut out = Vec::new();
                    members[i as usize].enter(&mut out);
                    wire.extend(out.into_iter().map(|(to, step)| (i, to, step)));
                }
                assert!(wire.iter().any(|(_, to, _)| *to == missing), "{missing} of {n}");
            }
        }
    }
}
