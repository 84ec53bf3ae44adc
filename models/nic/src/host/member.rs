//! A process as a member of a job: the call that runs, and the messages that have come for it.

use std::collections::{BTreeMap, VecDeque};

use outboard_plan::{OpId, Span};
use outboard_proto::models::ProgramRun;

use super::{HostMessageName, ProgramPost};
use crate::engine::MemorySegment;
use crate::job::JobMembership;
use crate::registered::RegisteredPart;

/// An event of one message, which the process handles when it next progresses its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageEvent {
    /// The message lies in this part of staging.
    Staged(RegisteredPart),
    /// The sender offers the message.
    Offered,
    /// The message lies in the memory of another process of the host.
    Local(MemorySegment),
    /// The receiver has taken the message.
    Acknowledged,
    /// The receiver is ready for the message.
    Cleared,
    /// The message lies in its final place.
    Delivered,
}

#[derive(Debug)]
pub(super) struct HostCall {
    pub(super) post: ProgramPost,
    /// Number of calls of the job before this one.
    pub(super) call: u64,
    pub(super) run: ProgramRun,
    /// Receives that wait for a message, and sends that wait for their receiver.
    pub(super) receives: BTreeMap<HostMessageName, OpId>,
    pub(super) sends: BTreeMap<HostMessageName, OpId>,
    /// Receives whose message may go straight to its final place.
    pub(super) cleared: BTreeMap<HostMessageName, OpId>,
}

#[derive(Debug)]
pub(super) struct HostMember {
    pub(super) membership: JobMembership,
    pub(super) queue: VecDeque<ProgramPost>,
    pub(super) running: Option<HostCall>,
    /// Number of calls that have begun.
    begun: u64,
    /// Events since the process last progressed its call.
    pub(super) inbox: VecDeque<(HostMessageName, MessageEvent)>,
    /// Messages that have no receive yet.
    pub(super) unexpected: BTreeMap<HostMessageName, MessageEvent>,
}

impl HostMember {
    pub(super) fn new(membership: JobMembership) -> Self {
        HostMember {
            membership,
            queue: VecDeque::new(),
            running: None,
            begun: 0,
            inbox: VecDeque::new(),
            unexpected: BTreeMap::new(),
        }
    }

    /// Number of calls that are posted and have not ended.
    pub(super) fn calls(&self) -> usize {
        self.queue.len() + usize::from(self.running.is_some())
    }

    /// Begins the next call if one is queued and none runs.
    pub(super) fn begin(&mut self) {
        if self.running.is_none()
            && let Some(post) = self.queue.pop_front()
        {
            self.running = Some(HostCall {
                run: ProgramRun::new(post.program.clone()),
                post,
                call: self.begun,
                receives: BTreeMap::new(),
                sends: BTreeMap::new(),
                cleared: BTreeMap::new(),
            });
            self.begun += 1;
        }
    }

    pub(super) fn place(&self, span: Span) -> MemorySegment {
        let memory = self.running.as_ref().expect("a call runs").post.memory;
        self.membership.place(memory, span, 1)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.calls() == 0 && self.inbox.is_empty() && self.unexpected.is_empty()
    }
}
