//! A process as a member of a job: the call that runs, and what it has heard of messages.

use std::collections::{BTreeMap, VecDeque};

use outboard_plan::{OpId, Span};

use super::{Name, Post};
use crate::engine::Place;
use crate::job::Membership;
use crate::registered::Part;

/// What a process hears of a message when it goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// It lies there.
    Staged(Part),
    /// Its sender has it.
    Offered,
    /// It lies in the memory of another process of the host.
    Here(Place),
    /// Its receiver has taken it.
    Taken,
    /// Its receiver wants it.
    Cleared,
    /// It lies in its place.
    Delivered,
}

/// The call that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) post: Post,
    /// Calls of the job before.
    pub(super) call: u64,
    /// By step, how many it waits for, and who waits for it.
    waits: Vec<usize>,
    followers: Vec<Vec<OpId>>,
    /// Steps that wait for nothing, and have not started.
    pub(super) ready: VecDeque<OpId>,
    /// Steps that are not complete.
    pub(super) left: usize,
    /// Receives that wait for a message, and sends that wait for their receiver.
    pub(super) receives: BTreeMap<Name, OpId>,
    pub(super) sends: BTreeMap<Name, OpId>,
    /// Receives whose message may come straight to its place.
    pub(super) cleared: BTreeMap<Name, OpId>,
}

impl Running {
    fn new(post: Post, call: u64) -> Self {
        let steps = &post.program.steps;
        let mut followers = vec![Vec::new(); steps.len()];
        for (id, step) in (0..).map(OpId).zip(steps) {
            step.after.iter().for_each(|on| followers[on.0 as usize].push(id));
        }
        let waits: Vec<usize> = steps.iter().map(|step| step.after.len()).collect();
        let ready = (0..).map(OpId).zip(&waits).filter(|(_, waits)| **waits == 0).map(|(id, _)| id).collect();
        Running {
            left: steps.len(),
            post,
            call,
            waits,
            followers,
            ready,
            receives: BTreeMap::new(),
            sends: BTreeMap::new(),
            cleared: BTreeMap::new(),
        }
    }

    /// A step is complete.
    pub(super) fn complete(&mut self, id: OpId) {
        self.left -= 1;
        for follower in &self.followers[id.0 as usize] {
            let waits = &mut self.waits[follower.0 as usize];
            *waits -= 1;
            if *waits == 0 {
                self.ready.push_back(*follower);
            }
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) membership: Membership,
    pub(super) queue: VecDeque<Post>,
    pub(super) running: Option<Running>,
    /// Calls that have begun.
    begun: u64,
    /// What has come since the process went on.
    pub(super) inbox: VecDeque<(Name, News)>,
    /// Messages that have no receive yet.
    pub(super) unexpected: BTreeMap<Name, News>,
}

impl Member {
    pub(super) fn new(membership: Membership) -> Self {
        Member {
            membership,
            queue: VecDeque::new(),
            running: None,
            begun: 0,
            inbox: VecDeque::new(),
            unexpected: BTreeMap::new(),
        }
    }

    /// Calls that are posted and have not ended.
    pub(super) fn calls(&self) -> usize {
        self.queue.len() + usize::from(self.running.is_some())
    }

    /// Begins the next call, if none runs and there is one.
    pub(super) fn begin(&mut self) {
        if self.running.is_none()
            && let Some(post) = self.queue.pop_front()
        {
            self.running = Some(Running::new(post, self.begun));
            self.begun += 1;
        }
    }

    /// Where a span of the call that runs is.
    pub(super) fn place(&self, span: Span) -> Place {
        let memory = self.running.as_ref().expect("a call runs").post.memory;
        self.membership.place(memory, span, 1)
    }

    /// Whether a message of a call that is over, or has been heard of, is heard of again.
    pub(super) fn is_late(&self, name: &Name) -> bool {
        let current = self.running.as_ref().map_or(self.begun, |running| running.call);
        name.call < current || self.unexpected.contains_key(name)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.calls() == 0 && self.inbox.is_empty() && self.unexpected.is_empty()
    }
}
