//! Recursive doubling among the service processes of a group (MC-4), for any number of them.
//!
//! With `p` the largest power of two not above `n`, each of the `n - p` extras folds into a partner before the
//! rounds and is released by it after them. `log2 p` rounds; at most `log2 p + 1` messages in and out per member.
//!
//! | state | enter | message | next |
//! |---|---|---|---|
//! | Outside | member: Folding; extra: sends FOLD, Waiting | noted | |
//! | Folding (member with an extra) | - | FOLD of the extra | Round(0) |
//! | Round(k) | sends ROUND(k) | ROUND(k) of `me ^ 2^k` | Round(k + 1), after the last: sends RELEASE, Done |
//! | Waiting (extra) | - | RELEASE | Done |
//! | Done | - | noted | |
//!
//! Never does IO; messages are (member index, step) pairs.

const FOLD: u8 = 0xfe;
const RELEASE: u8 = 0xff;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Outside,
    Folding,
    Round(u8),
    Waiting,
    Done,
}

/// One member's view of one barrier.
#[derive(Debug)]
pub(crate) struct Barrier {
    me: u32,
    pow2: u32,
    n: u32,
    state: State,
    rounds_heard: u32,
    fold_heard: bool,
    release_heard: bool,
}

impl Barrier {
    pub(crate) fn new(me: u32, n: u32) -> Self {
        assert!(me < n, "a member is one of the members");
        let pow2 = 1 << n.ilog2();
        Barrier { me, pow2, n, state: State::Outside, rounds_heard: 0, fold_heard: false, release_heard: false }
    }

    pub(crate) fn done(&self) -> bool {
        self.state == State::Done
    }

    /// This member is ready. Messages to send are appended to `out` as (member, step).
    pub(crate) fn enter(&mut self, out: &mut Vec<(u32, u8)>) {
        assert!(self.state == State::Outside, "a member enters once");
        if self.me >= self.pow2 {
            out.push((self.me - self.pow2, FOLD));
            self.state = State::Waiting;
        } else {
            self.state = State::Folding;
        }
        self.advance(out);
    }

    /// A message of member `from`. False when no such message can come from there.
    pub(crate) fn handle(&mut self, from: u32, step: u8, out: &mut Vec<(u32, u8)>) -> bool {
        let known = match step {
            FOLD => self.me + self.pow2 == from && self.me < self.pow2,
            RELEASE => from + self.pow2 == self.me,
            k => u32::from(k) < self.pow2.ilog2() && self.me < self.pow2 && from == self.me ^ (1 << k),
        };
        if !known {
            return false;
        }
        match step {
            FOLD => self.fold_heard = true,
            RELEASE => self.release_heard = true,
            k => self.rounds_heard |= 1 << k,
        }
        self.advance(out);
        true
    }

    fn has_extra(&self) -> bool {
        self.me + self.pow2 < self.n
    }

    fn advance(&mut self, out: &mut Vec<(u32, u8)>) {
        loop {
            self.state = match self.state {
                State::Folding if !self.has_extra() || self.fold_heard => self.start_round(0, out),
                State::Round(k) if self.rounds_heard >> k & 1 == 1 => self.start_round(k + 1, out),
                State::Waiting if self.release_heard => State::Done,
                State::Outside | State::Folding | State::Round(_) | State::Waiting | State::Done => return,
            };
        }
    }

    fn start_round(&mut self, k: u8, out: &mut Vec<(u32, u8)>) -> State {
        if u32::from(k) < self.pow2.ilog2() {
            out.push((self.me ^ (1 << k), k));
            return State::Round(k);
        }
        if self.has_extra() {
            out.push((self.me + self.pow2, RELEASE));
        }
        State::Done
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
    fn messages_that_cannot_be_are_refused() {
        let mut b = Barrier::new(0, 5);
        let mut out = Vec::new();
        assert!(!b.handle(3, 0, &mut out));
        assert!(!b.handle(4, RELEASE, &mut out));
        assert!(!b.handle(1, 7, &mut out));
        assert!(b.handle(4, FOLD, &mut out));
    }
}
