//! The steps of all ranks as one graph: the matching of messages, and the order of events.
//!
//! A node is a step of a rank, numbered rank by rank. Each node has two events, its start and its completion:
//!
//! | edge | holds because |
//! |---|---|
//! | start of a step -> its completion | |
//! | completion of `a` -> start of `b` | `b` names `a` in `after` |
//! | start of a send -> completion of its receive | data cannot arrive before it is sent |
//! | start of a receive -> completion of its send | only if the transport makes a send wait for its receive |
//!
//! The last edge counts for deadlock alone, because deadlock must not depend on the transport. This edge never
//! orders accesses.
//! Invariant: the graph is built from well-formed programs (see `check`), so every index here is in range.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{StepLocation, VerifyError};
use outboard_plan::{Op, OpId, Program, Rank};

pub(crate) type StepNode = usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepEvent {
    /// From here on the step may read and write.
    Start(StepNode),
    /// The step no longer touches memory.
    Complete(StepNode),
}

impl StepEvent {
    fn index(self) -> usize {
        match self {
            StepEvent::Start(node) => 2 * node,
            StepEvent::Complete(node) => 2 * node + 1,
        }
    }

    fn from_index(index: usize) -> Self {
        if index.is_multiple_of(2) { StepEvent::Start(index / 2) } else { StepEvent::Complete(index / 2) }
    }

    fn node(self) -> StepNode {
        match self {
            StepEvent::Start(node) | StepEvent::Complete(node) => node,
        }
    }
}

type NodeLists = Vec<Vec<StepNode>>;

/// A set of first nodes of a [`PairBatch`].
#[derive(Default, Clone, Copy)]
struct NodeSet([u64; NodeSet::WORDS]);

impl NodeSet {
    const WORDS: usize = 8;
    const BITS: usize = Self::WORDS * 64;

    fn insert(&mut self, bit: usize) {
        self.0[bit / 64] |= 1 << (bit % 64);
    }

    fn contains(&self, bit: usize) -> bool {
        self.0[bit / 64] >> (bit % 64) & 1 == 1
    }

    fn join(&mut self, other: &NodeSet) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a |= b);
    }
}

/// Pairs of nodes with at most as many different first nodes as a [`NodeSet`] has bits.
#[derive(Default)]
struct PairBatch {
    bits: HashMap<StepNode, usize>,
    /// Index of the pair, first node, second node.
    pairs: Vec<(usize, StepNode, StepNode)>,
}

impl PairBatch {
    /// Adds a pair, unless there are too many first nodes.
    fn add(&mut self, index: usize, first: StepNode, second: StepNode) -> bool {
        let free = self.bits.len();
        if free == NodeSet::BITS && !self.bits.contains_key(&first) {
            return false;
        }
        self.bits.entry(first).or_insert(free);
        self.pairs.push((index, first, second));
        true
    }
}

/// All steps of a group, with the edges between them.
pub(crate) struct StepGraph<'a> {
    programs: &'a [Program],
    /// The first node of each rank, followed by the number of nodes.
    base: Vec<StepNode>,
    /// By receive, the matching send or multicast.
    source: Vec<Option<StepNode>>,
    /// By send or multicast, the matching receives.
    receivers: NodeLists,
    after: NodeLists,
    followers: NodeLists,
    /// All events in an order that respects every edge.
    order: Vec<StepEvent>,
    /// The position of each event in `order`, by [`StepEvent::index`].
    position: Vec<usize>,
}

impl<'a> StepGraph<'a> {
    /// Matches messages by name and orders the events.
    pub(crate) fn new(programs: &'a [Program]) -> Result<Self, VerifyError> {
        let mut base = vec![0];
        for program in programs {
            base.push(base[base.len() - 1] + program.steps.len());
        }
        let nodes = base[programs.len()];
        let mut graph = StepGraph {
            programs,
            base,
            source: vec![None; nodes],
            receivers: vec![Vec::new(); nodes],
            after: vec![Vec::new(); nodes],
            followers: vec![Vec::new(); nodes],
            order: Vec::new(),
            position: Vec::new(),
        };
        graph.match_messages()?;
        for (rank, id, node) in graph.steps() {
            for earlier in &programs[rank].steps[id].after {
                let earlier = graph.base[rank] + earlier.0 as usize;
                graph.after[node].push(earlier);
                graph.followers[earlier].push(node);
            }
        }
        graph.sort()?;
        Ok(graph)
    }

    pub(crate) fn nodes(&self) -> usize {
        self.source.len()
    }

    pub(super) fn node(&self, rank: Rank, step: usize) -> StepNode {
        self.base[rank.0 as usize] + step
    }

    /// The rank and step of a node.
    pub(crate) fn at(&self, node: StepNode) -> StepLocation {
        // A rank without steps shares its base with the next rank; the last rank with that base owns the node.
        let rank = self.base.partition_point(|base| *base <= node) - 1;
        let step = node - self.base[rank];
        StepLocation::new(&self.programs[rank], OpId(u32::try_from(step).expect("a step id has 32 bits")))
    }

    pub(crate) fn op(&self, node: StepNode) -> Op {
        self.at(node).op
    }

    /// The send or multicast that matches a receive.
    pub(crate) fn source(&self, receive: StepNode) -> Option<StepNode> {
        self.source[receive]
    }

    /// The receives that match a send or multicast.
    pub(crate) fn receivers(&self, send: StepNode) -> &[StepNode] {
        &self.receivers[send]
    }

    /// All events in an order that respects every edge.
    pub(crate) fn order(&self) -> &[StepEvent] {
        &self.order
    }

    pub(crate) fn after(&self, node: StepNode) -> &[StepNode] {
        &self.after[node]
    }

    pub(crate) fn followers(&self, node: StepNode) -> &[StepNode] {
        &self.followers[node]
    }

    /// The index of the first unordered pair: on some transport, neither node is complete before the other touches
    /// memory.
    ///
    /// Most pairs are ordered by steps of their own rank. The other pairs are followed through the events in batches. A
    /// batch has at most as many first nodes as a [`NodeSet`] has bits.
    pub(super) fn unordered(&self, pairs: &[(StepNode, StepNode)]) -> Option<usize> {
        let mut touched = Vec::new();
        // By node, the index of the last pair for which the node was seen.
        let mut seen = vec![usize::MAX; self.nodes()];
        let mut batch = PairBatch::default();
        for (index, (a, b)) in pairs.iter().copied().enumerate() {
            // The order of events agrees with every order of nodes, so only one of the two directions is possible.
            let (first, second) = if self.position_of(a) <= self.position_of(b) { (a, b) } else { (b, a) };
            if self.follows_locally(first, second, |node| std::mem::replace(&mut seen[node], index) == index) {
                continue;
            }
            if !batch.add(index, first, second) {
                if let Some(found) = self.settle(&batch, &mut touched) {
                    return Some(found);
                }
                batch = PairBatch::default();
                batch.add(index, first, second);
            }
        }
        self.settle(&batch, &mut touched)
    }

    /// The position of the node's completion in the order of events.
    fn position_of(&self, node: StepNode) -> usize {
        self.position[StepEvent::Complete(node).index()]
    }

    /// Whether `second` follows `first` by steps of their rank alone. `seen` marks a node; true if it was marked
    /// before.
    fn follows_locally(&self, first: StepNode, second: StepNode, mut seen: impl FnMut(StepNode) -> bool) -> bool {
        let mut stack = vec![second];
        while let Some(node) = stack.pop() {
            if node == first {
                return node != second;
            }
            // Steps follow only earlier steps of their rank.
            stack.extend(self.after(node).iter().filter(|earlier| **earlier >= first && !seen(**earlier)));
        }
        false
    }

    /// The index of the first pair in a batch whose first node is not complete before the second touches memory.
    fn settle(&self, batch: &PairBatch, touched: &mut Vec<NodeSet>) -> Option<usize> {
        let start = batch.bits.keys().map(|node| self.position_of(*node)).min()?;
        let end = batch.pairs.iter().map(|(_, _, second)| self.position_of(*second)).max()?;
        touched.clear();
        touched.resize(self.nodes(), NodeSet::default());
        let ready = |touched: &[NodeSet], node| {
            let mut set = NodeSet::default();
            for earlier in self.after(node) {
                set.join(&touched[*earlier]);
                batch.bits.get(earlier).into_iter().for_each(|bit| set.insert(*bit));
            }
            set
        };
        for event in &self.order[start..=end] {
            // A receive touches memory when its message is sent; all steps that it follows must be complete by then.
            match (*event, self.source[event.node()]) {
                (StepEvent::Start(node), None) => touched[node] = ready(touched, node),
                (StepEvent::Complete(node), Some(sent)) => {
                    touched[node] = ready(touched, node);
                    let sent = touched[sent];
                    touched[node].join(&sent);
                }
                (StepEvent::Start(_), Some(_)) | (StepEvent::Complete(_), None) => {}
            }
        }
        let open = |(_, first, second): &&(usize, StepNode, StepNode)| !touched[*second].contains(batch.bits[first]);
        batch.pairs.iter().find(open).map(|(index, _, _)| *index)
    }

    /// Visits steps that are complete before `node` touches memory, nearest first. The walk continues beyond the steps
    /// for which `beyond` returns true.
    pub(super) fn walk_back(&self, node: StepNode, mut beyond: impl FnMut(StepNode) -> bool) {
        // Steps that start, at the latest, when `node` touches memory. A receive touches memory when its message is
        // sent.
        let mut started = vec![node];
        let mut seen_started = HashSet::from([node]);
        let mut seen_complete = HashSet::new();
        while let Some(later) = started.pop() {
            let sent = self.source[later].filter(|sent| seen_started.insert(*sent));
            started.extend(sent);
            for earlier in self.after(later).iter().copied() {
                if seen_complete.insert(earlier) && beyond(earlier) && seen_started.insert(earlier) {
                    started.push(earlier);
                }
            }
        }
    }

    /// Matches each send with its receive, and each multicast, which has no index, with its receives.
    fn match_messages(&mut self) -> Result<(), VerifyError> {
        let (mut sends, mut receives) = (BTreeMap::new(), BTreeMap::new());
        for (rank, id, node) in self.steps() {
            let program = &self.programs[rank];
            let me = program.rank;
            let earlier = match program.steps[id].op {
                Op::Send { to, index, .. } => sends.insert((me, to, Some(index)), node),
                Op::Recv { from, index, .. } => receives.insert((from, me, Some(index)), node),
                Op::Multicast { .. } => {
                    let others = (0..program.ranks).map(Rank).filter(|to| *to != me);
                    others.filter_map(|to| sends.insert((me, to, None), node)).last()
                }
                Op::MulticastRecv { root, .. } => receives.insert((root, me, None), node),
                Op::Copy { .. } | Op::Reduce { .. } => None,
            };
            if let Some(earlier) = earlier {
                return Err(VerifyError::SameName { at: self.at(node).boxed(), other: self.at(earlier).boxed() });
            }
        }
        for (name, receive) in receives {
            let Some(send) = sends.remove(&name) else {
                return Err(VerifyError::Unmatched { at: self.at(receive).boxed() });
            };
            self.join(send, receive)?;
        }
        match sends.into_iter().min_by_key(|(name, send)| (*send, *name)) {
            Some(((_, by, None), send)) => Err(VerifyError::MulticastMissed { at: self.at(send).boxed(), by }),
            Some((_, send)) => Err(VerifyError::Unmatched { at: self.at(send).boxed() }),
            None => Ok(()),
        }
    }

    fn join(&mut self, send: StepNode, receive: StepNode) -> Result<(), VerifyError> {
        let sent = self.op(send).reads().map(|span| span.len);
        let received = self.op(receive).writes().map(|span| span.len);
        if sent != received {
            return Err(VerifyError::Lengths { at: self.at(send).boxed(), other: self.at(receive).boxed() });
        }
        self.source[receive] = Some(send);
        self.receivers[send].push(receive);
        Ok(())
    }

    fn steps(&self) -> impl Iterator<Item = (usize, usize, StepNode)> + use<'a> {
        let each = |(rank, program): (usize, &'a Program)| (0..program.steps.len()).map(move |id| (rank, id));
        self.programs.iter().enumerate().flat_map(each).enumerate().map(|(node, (rank, id))| (rank, id, node))
    }

    /// Orders the events, or finds events that wait for each other.
    fn sort(&mut self) -> Result<(), VerifyError> {
        let mut waits: Vec<usize> =
            (0..2 * self.nodes()).map(|i| self.before(StepEvent::from_index(i)).len()).collect();
        let ready = (0..waits.len()).filter(|i| waits[*i] == 0);
        let mut order: Vec<StepEvent> = ready.map(StepEvent::from_index).collect();
        let mut next = 0;
        while let Some(event) = order.get(next).copied() {
            next += 1;
            for later in self.behind(event) {
                waits[later.index()] -= 1;
                if waits[later.index()] == 0 {
                    order.push(later);
                }
            }
        }
        if let Some(stuck) = waits.iter().position(|waits| *waits > 0) {
            return Err(self.deadlock(&waits, StepEvent::from_index(stuck)));
        }
        self.position = vec![0; waits.len()];
        for (position, event) in order.iter().enumerate() {
            self.position[event.index()] = position;
        }
        self.order = order;
        Ok(())
    }

    /// The events with an edge to `event`.
    fn before(&self, event: StepEvent) -> Vec<StepEvent> {
        match event {
            StepEvent::Start(node) => self.after(node).iter().copied().map(StepEvent::Complete).collect(),
            StepEvent::Complete(node) => self.ends(node).map(StepEvent::Start).collect(),
        }
    }

    /// The node itself, and the other ends of its messages.
    fn ends(&self, node: StepNode) -> impl Iterator<Item = StepNode> {
        std::iter::once(node).chain(self.source[node]).chain(self.receivers(node).iter().copied())
    }

    /// The events to which `event` has an edge.
    fn behind(&self, event: StepEvent) -> Vec<StepEvent> {
        match event {
            StepEvent::Start(node) => self.ends(node).map(StepEvent::Complete).collect(),
            StepEvent::Complete(node) => self.followers(node).iter().copied().map(StepEvent::Start).collect(),
        }
    }

    /// Walks back from a stuck event over stuck events until one repeats; that event is on a circle.
    fn deadlock(&self, waits: &[usize], stuck: StepEvent) -> VerifyError {
        let cause = |event| {
            let stuck = |earlier: &StepEvent| waits[earlier.index()] > 0;
            self.before(event).into_iter().find(stuck).expect("a stuck event waits for a stuck one")
        };
        let mut seen = vec![false; waits.len()];
        let mut event = stuck;
        while !std::mem::replace(&mut seen[event.index()], true) {
            event = cause(event);
        }
        let mut other = cause(event);
        while other.node() == event.node() {
            other = cause(other);
        }
        VerifyError::Deadlock { at: self.at(event.node()).boxed(), other: self.at(other.node()).boxed() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use outboard_plan::ProgramBuilder;
    use outboard_plan::Span;

    const RANKS: u32 = 3;

    /// Elements of a random plan: a signal from one rank to another, each end after some of the steps before it.
    type Signal = (u32, u32, u16, u16);

    /// Programs of signals; bit `i` of a mask makes a step follow the `i`-th last step of its rank.
    fn programs(signals: &[Signal]) -> Vec<Program> {
        let mut builders: Vec<_> = (0..RANKS).map(|rank| ProgramBuilder::new(Rank(rank), RANKS)).collect();
        let mut steps = [0u32; RANKS as usize];
        for (index, (from, distance, after_send, after_recv)) in signals.iter().enumerate() {
            let (index, to) = (index as u32, (from + distance) % RANKS);
            let send = Op::Send { to: Rank(to), index, span: Span::signal() };
            let recv = Op::Recv { from: Rank(*from), index, span: Span::signal() };
            for (rank, op, mask) in [(*from, send, after_send), (to, recv, after_recv)] {
                let count = &mut steps[rank as usize];
                let near = (0..16.min(*count)).filter(|back| mask >> back & 1 == 1);
                let after: Vec<_> = near.map(|back| OpId(*count - 1 - back)).collect();
                builders[rank as usize].push(op, &after);
                *count += 1;
            }
        }
        builders.into_iter().map(ProgramBuilder::build).collect()
    }

    /// For every pair of nodes, whether the first is complete before the second touches memory. Applies the table of
    /// this module repeatedly until nothing changes.
    fn closure(graph: &StepGraph<'_>) -> Vec<Vec<bool>> {
        let nodes = graph.nodes();
        // reached[event][node]: the node is complete at the event; a step's first access has event index 2 * node.
        let mut reached = vec![vec![false; nodes]; 2 * nodes];
        loop {
            let before = reached.clone();
            for node in 0..nodes {
                for earlier in graph.after(node).iter().copied() {
                    for other in 0..nodes {
                        reached[2 * node][other] |= before[2 * earlier + 1][other];
                    }
                }
                for other in 0..nodes {
                    let sent = graph.source(node).is_some_and(|send| before[2 * send][other]);
                    reached[2 * node][other] |= sent;
                    reached[2 * node + 1][other] |= before[2 * node][other] || other == node;
                }
            }
            if reached == before {
                return (0..nodes).map(|node| reached[2 * node].clone()).collect();
            }
        }
    }

    proptest! {
        #[test]
        fn ordered_is_in_the_transitive_closure(
            signals in prop::collection::vec((0..RANKS, 1..RANKS, any::<u16>(), any::<u16>()), 1..14),
            sparse: u16,
        ) {
            let thin = |(from, distance, a, b): Signal| (from, distance, a & sparse, b & sparse);
            let programs = programs(&signals.into_iter().map(thin).collect::<Vec<_>>());
            let graph = StepGraph::new(&programs).expect("signals in the order of their index cannot deadlock");
            let closure = closure(&graph);
            let nodes = 0..graph.nodes();
            let pairs: Vec<_> = nodes.clone().flat_map(|a| nodes.clone().map(move |b| (a, b))).collect();
            let ordered = |(a, b): (StepNode, StepNode)| closure[a][b] || closure[b][a];
            for pair in &pairs {
                prop_assert_eq!(graph.unordered(&[*pair]).is_none(), ordered(*pair), "{:?}", pair);
            }
            prop_assert_eq!(graph.unordered(&pairs), pairs.iter().position(|pair| !ordered(*pair)));
            let rest: Vec<_> = pairs.into_iter().filter(|pair| ordered(*pair)).collect();
            prop_assert_eq!(graph.unordered(&rest), None);
        }
    }
}
