//! Task lists for NICs with deferred work (`FI_TRIGGER` of libfabric): a rank's program as messages that begin when
//! counters reach thresholds. Pure; the tasks name messages as the program does.
//!
//! As on CORE-Direct's NIC (CD-1), a list is posted whole and messages wait for completions. Counters take the place of
//! CORE-Direct's management queue. Each complete task adds 1 to one counter. A step that follows nothing begins at
//! once. A step that follows others begins when a counter reaches the number of these others. A step that is in several
//! sets of awaited steps has its own counter, and [`DeferredAction::Add`] tasks add to the counters of these sets. A
//! step that no step follows adds to the counter of the list's end.
//!
//! A message with bytes leaves when its receiver has cleared the message. The receiver's own list clears it by a
//! message without bytes. Without this, a rank that calls ahead of other ranks would fill their NICs.
//!
//! Messages use memory that mirrors the program's input and output, since a rank's memory may go away while the NIC
//! works. The engine copies the bytes to be sent into this memory ([`DeferredList::gathers`]) and the received bytes
//! out of this memory ([`DeferredList::delivers`]). The engine also does the copies of the program, before the list or
//! after it.
//!
//! Invariants: a counter only grows. The end is reached once, when every task is complete. All members of a group agree
//! whether a call is taken ([`choice`]). Never combines: deferred work has no reductions here.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::algorithm::{Algorithm, WHOLE};
use crate::program::{Buffer, Op, OpId, Program, Rank, Span};
use crate::selection::{Choice, Collective};

/// The most ranks of a call that deferred work accepts, so that a list has few counters.
pub const MOST_RANKS: u32 = 64;
/// The most bytes that all ranks of a call together contribute: engines read and write copies of these bytes.
pub const MOST_BYTES: u64 = 64 << 20;
/// The most counters of a list of [`MOST_RANKS`] ranks; a provider with fewer cannot be used.
pub const MOST_COUNTERS: u32 = 64;

/// Added to the index of a message to get the index of the message that clears it.
const CLEARS: u32 = 1 << 31;

/// Reasons for which deferred work rejects a call or a program.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeferredError {
    #[error("{collective}: what is combined needs a processor between messages")]
    Combined { collective: Collective },
    #[error("{ranks} ranks: lists are for {MOST_RANKS} at most")]
    Ranks { ranks: u32 },
    #[error("{bytes} bytes of all ranks: lists are for {MOST_BYTES} at most, since they are copied")]
    Bytes { bytes: u64 },
    #[error("step {}: {reason}", .step.0)]
    Step { step: OpId, reason: &'static str },
}

/// The algorithm by which deferred work carries out a collective of `ranks` ranks and `bytes` bytes as [`Collective`]
/// counts them.
pub fn choice(collective: Collective, ranks: u32, bytes: u64) -> Result<Choice, DeferredError> {
    let algorithm = match collective {
        Collective::Allgather => Algorithm::Ring { segment: WHOLE },
        Collective::Broadcast => Algorithm::Binomial,
        Collective::Alltoall => Algorithm::Pull,
        Collective::Gather | Collective::Scatter => Algorithm::Linear,
        Collective::Barrier => Algorithm::Dissemination { ports: 1 },
        Collective::Reduce | Collective::Allreduce | Collective::ReduceScatter | Collective::Scan => {
            return Err(DeferredError::Combined { collective });
        }
    };
    if ranks > MOST_RANKS {
        return Err(DeferredError::Ranks { ranks });
    }
    // A broadcast counts the bytes of the whole, all other collectives the bytes of a block. A rank of an alltoall has
    // `ranks` blocks.
    let bytes = bytes.saturating_mul(if collective == Collective::Broadcast { 1 } else { ranks.into() });
    if bytes > MOST_BYTES {
        return Err(DeferredError::Bytes { bytes });
    }
    Ok(Choice::among_all(collective, algorithm).expect("an algorithm of the collective"))
}

/// A value of a counter for which a task waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Threshold {
    pub counter: u32,
    pub value: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeferredAction {
    /// Sends the message `(me, to, index)`; adds 1 to `counts` when the message has left.
    Send { to: Rank, index: u32, span: Span, counts: u32 },
    /// Receives the message `(from, me, index)`; adds 1 to `counts` when the message has arrived.
    Receive { from: Rank, index: u32, span: Span, counts: u32 },
    /// Adds 1 to a counter.
    Add { to: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeferredTask {
    /// The task begins at this threshold, or at once if there is none.
    pub after: Option<Threshold>,
    pub action: DeferredAction,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeferredList {
    /// The number of counters, all 0 at first.
    pub counters: u32,
    /// Receives come first, so that few messages arrive before their receive is posted.
    pub tasks: Vec<DeferredTask>,
    /// Reached when all tasks are complete.
    pub end: Threshold,
    /// The spans of the rank's memory that the list sends, each once.
    pub gathers: Vec<Span>,
    /// The spans of the rank's memory that the list receives.
    pub delivers: Vec<Span>,
}

/// The counter of the list's end.
const END: u32 = 0;

impl DeferredList {
    pub fn lower(program: &Program) -> Result<DeferredList, DeferredError> {
        let parts = StepsByKind::of(program)?;
        let mut counters = TaskCounters::of(program, &parts);
        let (mut tasks, mut clears, mut sends) = (Vec::new(), Vec::new(), Vec::new());
        for id in parts.receives.iter().chain(&parts.sends) {
            let after = counters.threshold_for(&parts.awaited(program, *id));
            let counts = counters.counter_for(*id);
            match program.steps[id.0 as usize].op {
                Op::Send { to, index, span } => {
                    if span.len > 0 {
                        let (index, counts) = (index | CLEARS, counters.counter_for(clearing(program, *id)));
                        let action = DeferredAction::Receive { from: to, index, span: Span::signal(), counts };
                        tasks.push(DeferredTask { after: None, action });
                    }
                    sends.push(DeferredTask { after, action: DeferredAction::Send { to, index, span, counts } });
                }
                Op::Recv { from, index, span } => {
                    tasks.push(DeferredTask { after, action: DeferredAction::Receive { from, index, span, counts } });
                    if span.len > 0 {
                        let (index, counts) = (index | CLEARS, counters.count_at_end());
                        let action = DeferredAction::Send { to: from, index, span: Span::signal(), counts };
                        clears.push(DeferredTask { after, action });
                    }
                }
                Op::Multicast { .. } | Op::MulticastRecv { .. } | Op::Copy { .. } | Op::Reduce { .. } => {
                    unreachable!("no message")
                }
            }
        }
        tasks.extend(clears.into_iter().chain(sends));
        let end = Threshold { counter: END, value: counters.ending };
        tasks.append(&mut counters.join_tasks());
        let StepsByKind { gathers, delivers, .. } = parts;
        Ok(DeferredList { counters: counters.next, tasks, end, gathers, delivers })
    }
}

/// The steps of a program by kind.
#[derive(Default)]
struct StepsByKind {
    receives: Vec<OpId>,
    sends: Vec<OpId>,
    gathers: Vec<Span>,
    delivers: Vec<Span>,
}

/// The time at which a copy is done, relative to the list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CopyPhase {
    Before,
    InList,
    Behind,
}

impl StepsByKind {
    fn of(program: &Program) -> Result<StepsByKind, DeferredError> {
        let mut parts = StepsByKind::default();
        let mut phases: Vec<CopyPhase> = Vec::new();
        for (id, step) in (0..).map(OpId).zip(&program.steps) {
            let follows = |phase| step.after.iter().any(|id| phases[id.0 as usize] == phase);
            let refused = |reason| DeferredError::Step { step: id, reason };
            let phase = match step.op {
                Op::Copy { .. } if follows(CopyPhase::InList) || follows(CopyPhase::Behind) => CopyPhase::Behind,
                Op::Copy { .. } => CopyPhase::Before,
                _ if follows(CopyPhase::Behind) => return Err(refused("a message behind a copy of what has come")),
                Op::Send { span, .. } | Op::Recv { span, .. } if span.buffer == Buffer::Scratch && span.len > 0 => {
                    return Err(refused("a message of scratch"));
                }
                Op::Send { .. } => {
                    parts.sends.push(id);
                    CopyPhase::InList
                }
                Op::Recv { span, .. } => {
                    parts.receives.push(id);
                    parts.delivers.extend((span.len > 0).then_some(span));
                    CopyPhase::InList
                }
                Op::Reduce { .. } => return Err(refused("a reduction")),
                Op::Multicast { .. } | Op::MulticastRecv { .. } => return Err(refused("a multicast")),
            };
            phases.push(phase);
        }
        parts.gather(program)?;
        Ok(parts)
    }

    /// Records the spans that are sent and not received from other ranks: these spans come from the rank's memory.
    fn gather(&mut self, program: &Program) -> Result<(), DeferredError> {
        for id in &self.sends {
            let Op::Send { span, .. } = program.steps[id.0 as usize].op else { continue };
            if span.len == 0 || self.delivers.contains(&span) || self.gathers.contains(&span) {
                continue;
            }
            let overlaps = |other: &Span| {
                let end = |span: &Span| span.offset.saturating_add(span.len);
                other.buffer == span.buffer && other.offset < end(&span) && span.offset < end(other)
            };
            if self.delivers.iter().any(overlaps) {
                return Err(DeferredError::Step { step: *id, reason: "a message of part of what has come" });
            }
            self.gathers.push(span);
        }
        Ok(())
    }

    /// The steps for which a message waits: the messages that it follows, and its clearing message.
    fn awaited(&self, program: &Program, id: OpId) -> Vec<OpId> {
        let is_message = |id: &OpId| !matches!(program.steps[id.0 as usize].op, Op::Copy { .. });
        let mut followed: Vec<OpId> = program.steps[id.0 as usize].after.iter().copied().filter(is_message).collect();
        if let Op::Send { span: Span { len: 1.., .. }, .. } = program.steps[id.0 as usize].op {
            followed.push(clearing(program, id));
        }
        followed.sort_unstable();
        followed.dedup();
        followed
    }
}

/// The id of the message that clears a send, beyond the ids of the program's steps.
fn clearing(program: &Program, send: OpId) -> OpId {
    OpId(program.steps.len() as u32 + send.0)
}

/// The counter of each set of awaited steps.
struct TaskCounters {
    by_set: BTreeMap<Vec<OpId>, u32>,
    /// The counters of the sets that contain a step.
    sets_of: BTreeMap<OpId, Vec<u32>>,
    next: u32,
    /// Steps for which the end waits.
    ending: u64,
}

impl TaskCounters {
    fn of(program: &Program, parts: &StepsByKind) -> TaskCounters {
        let mut counters = TaskCounters { by_set: BTreeMap::new(), sets_of: BTreeMap::new(), next: END + 1, ending: 0 };
        for id in parts.receives.iter().chain(&parts.sends) {
            let set = parts.awaited(program, *id);
            if set.is_empty() || counters.by_set.contains_key(&set) {
                continue;
            }
            for member in &set {
                counters.sets_of.entry(*member).or_default().push(counters.next);
            }
            counters.by_set.insert(set, counters.next);
            counters.next += 1;
        }
        counters
    }

    fn threshold_for(&self, set: &Vec<OpId>) -> Option<Threshold> {
        self.by_set.get(set).map(|counter| Threshold { counter: *counter, value: set.len() as u64 })
    }

    /// The counter to which a step adds.
    fn counter_for(&mut self, id: OpId) -> u32 {
        match self.sets_of.get(&id).map_or(&[][..], Vec::as_slice) {
            [] => self.count_at_end(),
            [one] => *one,
            [..] => self.own(id),
        }
    }

    /// The counter of a step that no step follows.
    fn count_at_end(&mut self) -> u32 {
        self.ending += 1;
        END
    }

    /// The counter that counts this step alone.
    fn own(&mut self, id: OpId) -> u32 {
        *self.by_set.entry(vec![id]).or_insert_with(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// For each step with its own counter: tasks that add to the counters of all sets that contain the step.
    fn join_tasks(&mut self) -> Vec<DeferredTask> {
        let mut tasks = Vec::new();
        for (id, sets) in std::mem::take(&mut self.sets_of).into_iter().filter(|(_, sets)| sets.len() > 1) {
            let own = self.own(id);
            let after = Some(Threshold { counter: own, value: 1 });
            let joined = sets.into_iter().filter(|set| *set != own);
            tasks.extend(joined.map(|to| DeferredTask { after, action: DeferredAction::Add { to } }));
        }
        tasks
    }
}

#[cfg(test)]
mod tests;
