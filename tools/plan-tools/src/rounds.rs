//! The round in which each message of a plan travels.
//!
//! A message's round is the length of the longest chain of messages that must have arrived, one after another, before
//! the message can be sent. Messages of round 0 wait for none. Rounds are the part of time that order alone determines.
//! Drawings of plans show rounds. A task list that keeps the order of rounds on every rank cannot deadlock.
//!
//! Invariants: a message waits only for messages of earlier rounds; messages are sorted by round, then by sender, then
//! by step, then by receiver.

use crate::verify::{StepEvent, StepGraph, VerifyError, well_formed};
use outboard_plan::{Op, OpId, Program, Rank};

/// A message from one rank to another. Rounds count from 0. A multicast has no index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundMessage {
    pub round: u32,
    pub from: Rank,
    pub send: OpId,
    pub to: Rank,
    pub receive: OpId,
    pub index: Option<u32>,
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RankLoad {
    /// Bytes that the rank sends; a multicast counts once.
    pub sent: u64,
    pub received: u64,
}

/// The messages of a plan, round by round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rounds {
    ranks: u32,
    messages: Vec<RoundMessage>,
    /// The end of each round in `messages`.
    ends: Vec<usize>,
}

impl Rounds {
    /// The rounds of the programs of all ranks of a group, in the order of ranks.
    ///
    /// # Errors
    /// When programs are malformed, messages do not match or ranks wait for each other in a circle; the contents of
    /// buffers are not checked.
    pub fn of(programs: &[Program]) -> Result<Rounds, VerifyError> {
        well_formed(programs)?;
        let graph = StepGraph::new(programs)?;
        // By node: the number of rounds whose messages have arrived when the node's step starts, and when the step is
        // complete.
        let mut start = vec![0u32; graph.nodes()];
        let mut done = vec![0u32; graph.nodes()];
        for event in graph.order() {
            match *event {
                StepEvent::Start(node) => {
                    start[node] = graph.after(node).iter().map(|earlier| done[*earlier]).max().unwrap_or(0)
                }
                StepEvent::Complete(node) => {
                    let arrived = graph.source(node).map_or(0, |send| start[send] + 1);
                    done[node] = start[node].max(arrived);
                }
            }
        }
        let received = (0..graph.nodes()).filter_map(|receive| graph.source(receive).map(|send| (send, receive)));
        let message = |(send, receive)| {
            let (from, to) = (graph.at(send), graph.at(receive));
            let index = if let Op::Send { index, .. } = from.op { Some(index) } else { None };
            RoundMessage {
                round: start[send],
                from: from.rank,
                send: from.step,
                to: to.rank,
                receive: to.step,
                index,
                bytes: from.op.reads().map_or(0, |span| span.len),
            }
        };
        let mut messages: Vec<RoundMessage> = received.map(message).collect();
        messages.sort_by_key(|m| (m.round, m.from, m.send, m.to));
        let count = messages.last().map_or(0, |last| last.round + 1);
        let ends = (0..count).map(|round| messages.partition_point(|m| m.round <= round)).collect();
        Ok(Rounds { ranks: programs.len() as u32, messages, ends })
    }

    pub fn count(&self) -> usize {
        self.ends.len()
    }

    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    pub fn messages(&self) -> &[RoundMessage] {
        &self.messages
    }

    /// The messages of a round; empty after the last round.
    pub fn of_round(&self, round: usize) -> &[RoundMessage] {
        let end = |round: usize| self.ends.get(round).copied().unwrap_or(self.messages.len());
        let start = round.checked_sub(1).map_or(0, end);
        &self.messages[start..end(round)]
    }

    pub fn loads(&self, round: usize) -> Vec<RankLoad> {
        let mut loads = vec![RankLoad::default(); self.ranks as usize];
        let mut multicast = None;
        for message in self.of_round(round) {
            loads[message.to.0 as usize].received += message.bytes;
            let name = (message.from, message.send);
            let again = message.index.is_none() && multicast.replace(name) == Some(name);
            if !again {
                loads[message.from.0 as usize].sent += message.bytes;
            }
        }
        loads
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_plan::selection::Collective;
    use outboard_plan::{Arguments, Topology, program};

    fn programs(algorithm: &str, ranks: u32) -> Vec<Program> {
        let choice = Collective::Allgather.read(algorithm).unwrap();
        (0..ranks).map(|rank| program(choice, &Arguments::of(&Topology::flat(ranks), 8), Rank(rank)).unwrap()).collect()
    }

    /// CD-2: the rounds agree with the counts of the algorithms.
    #[test]
    fn messages_travel_in_the_rounds_of_the_algorithm() {
        let rounds = |algorithm: &str, ranks| Rounds::of(&programs(algorithm, ranks)).unwrap();
        for ports in 1..4u32 {
            let standard = format!("standard-exchange:ports={ports}");
            assert_eq!(rounds(&standard, (ports + 1).pow(3)).count(), 3);
        }
        assert_eq!(rounds("bruck", 100).count(), 7);
        assert_eq!(rounds("ring", 100).count(), 99);
        let ring = rounds("ring", 3);
        let second: Vec<(u32, u32, Option<u32>)> =
            ring.of_round(1).iter().map(|m| (m.from.0, m.to.0, m.index)).collect();
        assert_eq!(second, [(0, 1, Some(1)), (1, 2, Some(1)), (2, 0, Some(1))]);
        assert_eq!(ring.loads(1), [RankLoad { sent: 8, received: 8 }; 3]);
        assert!(ring.of_round(2).is_empty());
    }

    /// MC-8: a multicast is sent once and received by all others; the next waits for a signal.
    #[test]
    fn a_multicast_counts_once_where_it_is_sent() {
        let rounds = Rounds::of(&programs("multicast:chains=1", 3)).unwrap();
        assert_eq!(rounds.count(), 3);
        let load = |sent, received| RankLoad { sent, received };
        assert_eq!(rounds.loads(0), [load(8, 0), load(0, 8), load(0, 8)]);
        assert_eq!(rounds.of_round(0).len(), 3, "two receivers, and the signal");
        assert_eq!(rounds.of_round(0).iter().filter(|m| m.index.is_none()).count(), 2);
    }

    #[test]
    fn a_group_of_one_and_malformed_plans() {
        assert_eq!(Rounds::of(&programs("ring", 1)).unwrap().count(), 0);
        let mut damaged = programs("ring", 3);
        damaged[0].steps.pop();
        assert!(matches!(Rounds::of(&damaged), Err(VerifyError::Unmatched { .. })));
        assert!(matches!(Rounds::of(&damaged[1..]), Err(VerifyError::Group { .. })));
    }
}
