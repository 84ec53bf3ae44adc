//! Sequences of recordings, calls and tagged messages, scripted by bytes (GP-1, GP-2). A fuzzer plays them.
//!
//! Four ranks on one, two or three service processes share two groups. They follow the script, sensible or not, on a
//! network whose faults the script chooses. Then the faults end, and a reference judges. A call whose counterpart was
//! made ends well with the right bytes; a call without a counterpart does not end well. A recording that no rank can
//! make is rejected and leaves nothing. Errors are true. When all ranks have left, service processes keep nothing of
//! them.
//!
//! Invariant: every string of bytes is a script, and determines the whole play.

mod judgement;
mod recordings;
mod reference;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outboard_plan::{Element, Rank};
use outboard_proto::{
    CallId, CallKind, CollectiveError, Config, GroupSpec, InstanceId, RankCall, Recording, Signature, TaggedCall,
};

use crate::cluster::{Cluster, ClusterPlan, ScriptPlayer, group_spec, handle};
use crate::faults::Faults;
use crate::fuzz_input::FuzzInput;
use crate::host::{HostAction, Input};
use crate::network::NetworkPlan;
use crate::reductions::contribution;
use crate::store::{ContributionId, StoreKind};
use crate::violation::Violation;
pub use recordings::recording;
use recordings::{size, tag};
use reference::{AcceptedCall, single};

pub mod acts {
    pub const RECORD: u8 = 0;
    pub const CALL: u8 = 1;
    pub const SEND: u8 = 2;
    pub const RECEIVE: u8 = 3;
    /// One rank sends a message, and another receives it.
    pub const MESSAGE: u8 = 4;
    pub const FREE: u8 = 5;
    /// Some of the pending events happen.
    pub const GO_ON: u8 = 6;
    pub const WAIT: u8 = 7;
    pub const LEAVE: u8 = 8;
    /// A graph that all members of a group record.
    pub const GRAPH: u8 = 9;
    /// A recording that all members call.
    pub const CALL_ALL: u8 = 10;
    pub const ACTS: u8 = 11;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SequenceCounts {
    pub recorded: u64,
    pub refused: u64,
    pub completed: u64,
    /// Calls that ended with an error, rightly.
    pub failed: u64,
    pub recorded_completed: u64,
}

/// The service process of each rank.
const LAYOUTS: [[usize; 4]; 4] = [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 2, 0], [0, 0, 0, 0]];
/// The ranks of each group.
const GROUPS: [&[usize]; 2] = [&[0, 1, 2, 3], &[3, 1, 0]];
/// Virtual time within which every call ends that can end.
const PATIENCE: Duration = Duration::from_secs(120);
const WAITS: [Duration; 4] =
    [Duration::from_micros(20), Duration::from_millis(1), Duration::from_millis(20), Duration::from_secs(1)];
/// Largest memory of one call. A recording may have more memory if no step names that memory, but such a recording is
/// not called here.
const MOST_MEMORY: u64 = 1 << 20;
const MOST_ACTS: usize = 300;

#[derive(Debug, Default)]
struct MemberRecordings {
    left: bool,
    /// The number of the rank's last recording.
    last: u32,
    recordings: BTreeMap<u32, Arc<Recording>>,
}

#[derive(Debug)]
struct SequenceGroup {
    spec: Rc<GroupSpec>,
    members: Vec<MemberRecordings>,
}

#[derive(Debug)]
struct EndedCall {
    result: Result<(), CollectiveError>,
    bytes: Vec<u8>,
    /// Ranks that had left when the call ended.
    left: BTreeSet<Rank>,
}

#[derive(Debug)]
struct SequencePlay {
    cluster: Cluster<u64>,
    host_of: [usize; 4],
    groups: Vec<SequenceGroup>,
    /// Calls that had to be accepted.
    posted: Vec<AcceptedCall>,
    /// Calls that had to be rejected.
    unsound: BTreeSet<CallId>,
    calls: u64,
    /// The group and the buffer size of each open call.
    open: BTreeMap<CallId, (usize, u64)>,
    ended: BTreeMap<CallId, EndedCall>,
    ready: usize,
    tally: SequenceCounts,
}

pub fn play(script: &[u8]) -> Result<SequenceCounts, Violation> {
    let mut input = FuzzInput::new(script);
    let mut play = SequencePlay::new(&mut input);
    play.make_groups()?;
    for _ in 0..MOST_ACTS {
        if input.ended() {
            break;
        }
        play.act(&mut input)?;
    }
    play.finish_owed_calls()?;
    play.judge()?;
    play.leave_all()?;
    Ok(play.tally)
}

impl SequencePlay {
    fn new(input: &mut FuzzInput<'_>) -> SequencePlay {
        let host_of = LAYOUTS[usize::from(input.below(LAYOUTS.len() as u8))];
        let config = Config {
            staging_quota: [0, 1000, 10_000, 1 << 20][usize::from(input.below(4))],
            fragment_bytes: [512, 5000, 63 << 10][usize::from(input.below(3))],
            pull_bytes: [1, 10_000, 512 << 10][usize::from(input.below(3))],
            eager_bytes: [0, 16 << 10][usize::from(input.below(2))],
            // A silent service process never counts as dead here: no script makes others wait for so long.
            dead_after: Duration::from_secs(86_400),
            ..Config::default()
        };
        let link_rate = config.link_rate;
        let frames = [1, 4, 64][usize::from(input.below(3))];
        let network = NetworkPlan { outstanding_frames: frames, ..NetworkPlan::default() };
        let (rate, jitter) = [(0.0, 0), (0.0, 300), (0.05, 300), (0.2, 3000)][usize::from(input.below(4))];
        let jitter = Duration::from_micros(jitter);
        let faults = Faults { frame_loss: rate, duplicate: rate, reorder: rate, jitter, ..Faults::none() };
        let last = *host_of.iter().max().expect("four ranks");
        let plan = ClusterPlan {
            configs: vec![config; last + 1],
            missing: 0,
            network: &network,
            faults: &faults,
            store: StoreKind::Bytes,
            sabotage: None,
            trace: false,
        };
        let mut cluster = Cluster::new(plan, input.byte().into());
        let group = |(number, ranks): (usize, &&[usize])| {
            let hosts = ranks.iter().map(|rank| host_of[*rank]);
            let spec = group_spec(number, [number as u64, 5], hosts, (1, link_rate));
            SequenceGroup { spec, members: ranks.iter().map(|_| MemberRecordings::default()).collect() }
        };
        let groups: Vec<SequenceGroup> = GROUPS.iter().enumerate().map(group).collect();
        groups.iter().for_each(|group| cluster.offer(&group.spec));
        SequencePlay {
            cluster,
            host_of,
            groups,
            posted: Vec::new(),
            unsound: BTreeSet::new(),
            calls: 0,
            open: BTreeMap::new(),
            ended: BTreeMap::new(),
            ready: 0,
            tally: SequenceCounts::default(),
        }
    }

    fn host(&self, group: usize, rank: usize) -> usize {
        self.host_of[GROUPS[group][rank]]
    }

    fn make_groups(&mut self) -> Result<(), Violation> {
        let mut requested = 0;
        for (group, ranks) in GROUPS.iter().enumerate() {
            for rank in 0..ranks.len() {
                let host = self.host(group, rank);
                let spec = Rc::clone(&self.groups[group].spec);
                self.handle(host, Input::CreateGroup { spec, rank: Rank(rank as u32) })?;
                requested += 1;
            }
        }
        if !self.run_until(PATIENCE, |play| play.ready == requested)? {
            return Err(Violation::NotLive { open: requested - self.ready, after: PATIENCE });
        }
        Ok(())
    }

    fn act(&mut self, input: &mut FuzzInput<'_>) -> Result<(), Violation> {
        match input.byte() % acts::ACTS {
            acts::RECORD => self.record(input),
            acts::CALL => {
                let (group, rank) = self.draw_member(input);
                self.call_recording(input, group, rank)
            }
            acts::SEND => {
                let (group, rank) = self.draw_member(input);
                let (to, tag) = (self.peer(input, group), tag(input));
                self.call(group, rank, TaggedCall::Send { to, tag }, size(input))
            }
            acts::RECEIVE => {
                let (group, rank) = self.draw_member(input);
                let (from, tag) = (self.peer(input, group), tag(input));
                self.call(group, rank, TaggedCall::Receive { from, tag }, size(input))
            }
            acts::MESSAGE => self.message(input),
            acts::FREE => self.free(input),
            acts::GO_ON => {
                for _ in 0..=input.below(64) {
                    self.step(0)?;
                }
                Ok(())
            }
            acts::WAIT => self.run_for(WAITS[usize::from(input.below(4))]),
            acts::LEAVE => {
                let (group, rank) = self.draw_member(input);
                // Ranks leave seldom, because little is left of the group afterwards.
                if input.below(16) == 0 { self.leave(group, rank) } else { Ok(()) }
            }
            acts::GRAPH => self.graph(input),
            _ => {
                let group = usize::from(input.below(2));
                let (first, ranks) = (usize::from(input.byte()), GROUPS[group].len());
                let number = 1 + u32::from(input.below(4));
                (0..ranks).try_for_each(|at| {
                    let rank = (first + at) % ranks;
                    let known = self.groups[group].members[rank].recordings.get(&number);
                    let bytes = known.map_or(0, |recording| recording.program.output_bytes);
                    self.call(group, rank, TaggedCall::Recorded { recording: number }, bytes)
                })
            }
        }
    }

    fn draw_member(&self, input: &mut FuzzInput<'_>) -> (usize, usize) {
        let group = usize::from(input.below(2));
        (group, usize::from(input.below(GROUPS[group].len() as u8)))
    }

    /// Draws a rank, usually a member of the group.
    fn peer(&self, input: &mut FuzzInput<'_>, group: usize) -> Rank {
        match input.byte() {
            member @ 0..=0xf7 => Rank(u32::from(member) % GROUPS[group].len() as u32),
            _ => Rank(input.number32()),
        }
    }

    fn call_recording(&mut self, input: &mut FuzzInput<'_>, group: usize, rank: usize) -> Result<(), Violation> {
        let recordings = &self.groups[group].members[rank].recordings;
        let at = usize::from(input.byte());
        let known = recordings.iter().nth(at % (recordings.len() + 1));
        let (number, bytes) = known.map_or((at as u32, 0), |(number, known)| (*number, known.program.output_bytes));
        let bytes = if input.byte() < 0xf0 { bytes } else { size(input) };
        self.call(group, rank, TaggedCall::Recorded { recording: number }, bytes)
    }

    fn message(&mut self, input: &mut FuzzInput<'_>) -> Result<(), Violation> {
        let (group, from) = self.draw_member(input);
        let (to, tag, bytes) = (usize::from(input.below(GROUPS[group].len() as u8)), tag(input), size(input));
        let more = if input.below(4) == 0 { 3 } else { 0 };
        let send = TaggedCall::Send { to: Rank(to as u32), tag };
        let receive = TaggedCall::Receive { from: Rank(from as u32), tag };
        if input.flip() {
            self.call(group, from, send, bytes)?;
            return self.call(group, to, receive, bytes + more);
        }
        self.call(group, to, receive, bytes + more)?;
        self.call(group, from, send, bytes)
    }

    fn call(&mut self, group: usize, rank: usize, what: TaggedCall, bytes: u64) -> Result<(), Violation> {
        if bytes > MOST_MEMORY {
            return Ok(());
        }
        let host = self.host(group, rank);
        self.calls += 1;
        let (id, me, ranks) = (CallId(self.calls), Rank(rank as u32), GROUPS[group].len() as u32);
        let member = &self.groups[group].members[rank];
        let recording = match what {
            TaggedCall::Recorded { recording } => {
                member.recordings.get(&recording).filter(|known| known.program.output_bytes == bytes).cloned()
            }
            TaggedCall::Send { to: peer, .. } | TaggedCall::Receive { from: peer, .. } => {
                (peer.0 < ranks).then(|| Arc::new(single(me, ranks, what, bytes)))
            }
        };
        let origin = ContributionId { group: group as u32, instance: id.0 as u32, rank: me.0 };
        match recording.filter(|_| !member.left) {
            Some(recording) => {
                let before = contribution(origin, Element::U8, 0..bytes);
                self.posted.push(AcceptedCall { id, group, rank: me, call: what, recording, before });
            }
            None => drop(self.unsound.insert(id)),
        }
        self.cluster.hosts[host].memory.add_call(id, (origin, Element::U8), bytes, bytes, Some(0));
        self.open.insert(id, (group, bytes));
        let signature = Signature { kind: CallKind::Tagged(what), bytes };
        let (group, instance) = (handle(group), InstanceId(0));
        let call = RankCall { id, group, rank: me, instance, signature, in_place: false, blocks: None, deadline: None };
        self.handle(host, Input::Call(Box::new(call)))?;
        if self.unsound.contains(&id) && self.open.contains_key(&id) {
            return Err(Violation::NotLive { open: 1, after: Duration::ZERO });
        }
        Ok(())
    }

    fn free(&mut self, input: &mut FuzzInput<'_>) -> Result<(), Violation> {
        let (group, rank) = self.draw_member(input);
        let host = self.host(group, rank);
        let member = &mut self.groups[group].members[rank];
        let at = usize::from(input.byte());
        let number = member.recordings.keys().copied().nth(at % (member.recordings.len() + 1)).unwrap_or(at as u32);
        let me = Rank(rank as u32);
        let called = |posted: &AcceptedCall| {
            let name = (posted.group, posted.rank, posted.call);
            name == (group, me, TaggedCall::Recorded { recording: number }) && self.open.contains_key(&posted.id)
        };
        let busy = self.posted.iter().any(called);
        let freed = self.cluster.hosts[host].sp.handle_free(handle(group), me, number);
        if freed == busy {
            let what = format!("{number} is freed: {freed}, while a call is open: {busy}");
            return Err(Violation::Recorded { group: handle(group), rank: me, what });
        }
        if freed {
            member.recordings.remove(&number);
        }
        Ok(())
    }

    fn leave(&mut self, group: usize, rank: usize) -> Result<(), Violation> {
        let host = self.host(group, rank);
        if std::mem::replace(&mut self.groups[group].members[rank].left, true) {
            return Ok(());
        }
        self.handle(host, Input::Leave { group: handle(group), rank: Rank(rank as u32) })?;
        let of_rank = |posted: &&AcceptedCall| (posted.group, posted.rank.0 as usize) == (group, rank);
        let open = self.posted.iter().filter(of_rank).filter(|posted| self.open.contains_key(&posted.id)).count();
        if open > 0 {
            return Err(Violation::NotLive { open, after: Duration::ZERO });
        }
        Ok(())
    }

    /// All ranks leave. Afterwards service processes may keep nothing of them.
    fn leave_all(&mut self) -> Result<(), Violation> {
        for (group, ranks) in GROUPS.iter().enumerate() {
            (0..ranks.len()).try_for_each(|rank| self.leave(group, rank))?;
        }
        if !self.run_until(PATIENCE, |play| play.left_over().is_none())?
            && let Some((sp, what)) = self.left_over()
        {
            return Err(Violation::LeftOver { sp, what });
        }
        self.judge_ends()
    }

    fn left_over(&self) -> Option<(outboard_proto::SpId, String)> {
        self.cluster.hosts.iter().find_map(|host| Some((host.sp.id(), host.left_over(true)?)))
    }
}

impl ScriptPlayer for SequencePlay {
    fn cluster(&mut self) -> &mut Cluster<u64> {
        &mut self.cluster
    }

    fn handle_action(&mut self, _: usize, action: HostAction) -> Result<(), Violation> {
        match action {
            HostAction::GroupReady { result: Ok(()), .. } => self.ready += 1,
            HostAction::GroupReady { result: Err(error), group, rank } => {
                return Err(Violation::FalseGroupError { group, rank, reason: error.to_string() });
            }
            HostAction::Completed { call, result, output } => {
                let (group, bytes) = self.open.remove(&call).ok_or(Violation::CompletedTwice(call))?;
                let members = self.groups[group].members.iter().zip(0..);
                let left = members.filter(|(member, _)| member.left).map(|(_, rank)| Rank(rank)).collect();
                let bytes = output.bytes(bytes).expect("real bytes").to_vec();
                self.ended.insert(call, EndedCall { result, bytes, left });
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use outboard_plan::{ProgramBuilder, Span};

    use super::*;

    /// Receives and then sends, or sends and then receives.
    fn one_behind_the_other(me: usize, peer: usize, receives_first: bool, ranks: usize) -> Recording {
        let (bytes, mut builder) = (20_000, ProgramBuilder::new(Rank(me as u32), ranks as u32));
        builder.buffers(0, 2 * bytes, 0);
        for receives in [receives_first, !receives_first] {
            if receives {
                builder.recv(Rank(peer as u32), 1, Span::output(bytes, bytes), &[]);
            } else {
                builder.send(Rank(peer as u32), 1, Span::output(0, bytes), &[]);
            }
            builder.barrier();
        }
        Recording { program: builder.build().into(), reductions: Vec::new() }
    }

    /// Ranks 0 and 3 of the job call two recordings. Each rank first calls the recording that waits for the other
    /// rank's second recording.
    fn crossed(layout: u8, [first, second]: [(usize, u32); 2]) -> Result<SequenceCounts, Violation> {
        // This script leaves no room for messages that nobody receives yet.
        let mut play = SequencePlay::new(&mut FuzzInput::new(&[layout]));
        play.make_groups()?;
        let place = |group: usize, rank| GROUPS[group].iter().position(|member| *member == rank).expect("a member");
        for job_rank in [0, 3] {
            for (group, number) in [first, second] {
                let (me, peer) = (place(group, job_rank), place(group, 3 - job_rank));
                let receives_first = ((group, number) == first) == (job_rank == 0);
                let recording = one_behind_the_other(me, peer, receives_first, GROUPS[group].len());
                play.record_and_check(group, me, number, recording, true)?;
            }
        }
        for (job_rank, order) in [(0, [first, second]), (3, [second, first])] {
            for (group, number) in order {
                play.call(group, place(group, job_rank), TaggedCall::Recorded { recording: number }, 40_000)?;
            }
        }
        assert_eq!(play.owed().len(), 4, "all have their other ends");
        play.finish_owed_calls()?;
        play.judge()?;
        play.leave_all()?;
        Ok(play.tally)
    }

    /// GP-6, on one service process and on several, with one group and with two.
    #[test]
    fn recordings_that_need_each_others_progress_have_it() {
        for layout in 0..LAYOUTS.len() as u8 {
            for calls in [[(0, 1), (0, 2)], [(0, 1), (1, 1)]] {
                assert_eq!(crossed(layout, calls).map(|tally| tally.recorded_completed), Ok(4), "{layout} {calls:?}");
            }
        }
    }

    /// GP-1: a message of a rank that has left is received if the message lies at its receiver. The message is not
    /// received in the place of a lost message.
    #[test]
    fn messages_of_a_lost_rank_overtake_nothing() {
        for layout in 0..LAYOUTS.len() as u8 {
            // This script leaves room for the small messages.
            let mut play = SequencePlay::new(&mut FuzzInput::new(&[layout, 3]));
            play.make_groups().expect("nothing is wrong");
            let (send, receive) =
                (TaggedCall::Send { to: Rank(3), tag: 1 }, TaggedCall::Receive { from: Rank(0), tag: 1 });
            for bytes in [100, 20_000, 200] {
                play.call(0, 0, send, bytes).expect("nothing is wrong");
            }
            play.run_for(WAITS[3]).expect("nothing is wrong");
            play.leave(0, 0).expect("nothing is wrong");
            play.run_for(WAITS[3]).expect("nothing is wrong");
            for _ in 0..3 {
                play.call(0, 3, receive, 20_000).expect("nothing is wrong");
            }
            play.leave_all().unwrap_or_else(|violation| panic!("layout {layout}: {violation}"));
            assert_eq!(play.tally.completed, 3, "two small sends, one receive");
        }
    }
}
