//! Submissions in the ranks' rings: a bounded number is taken per turn, and each is passed to the machine or refused.

use std::sync::Arc;
use std::time::Instant;

use outboard_call::{CallKind, Footprint};
use outboard_proto::{CallId, InstanceId, RankCall};
use outboard_shm::control::RING_CAPACITY;
use outboard_shm::entry::SubmissionEntry;

use super::submission::AdmittedCall;
use super::{AttachedRank, CallInFlight, Membership, MembershipStage, RankConnection, Ranks};
use crate::ConnectionId;
use crate::driver::EndpointDriver;
use crate::telemetry::trace::TimelineFile;

/// Submissions taken from one rank per turn, so that no rank starves other ranks.
const SUBMISSIONS: usize = 64;

impl Ranks {
    /// Takes submissions of all ranks; returns whether there were any.
    pub(crate) fn take_submissions(&mut self, driver: &mut EndpointDriver, trace: Option<&mut TimelineFile>) -> bool {
        let mut taken = Vec::new();
        for (&id, connection) in &mut self.connections {
            let RankConnection::AttachedRank(rank) = connection else { continue };
            self.refused += rank.take_entries(SUBMISSIONS, |entry| taken.push((id, entry)));
        }
        self.submit_all(&taken, driver, trace);
        !taken.is_empty()
    }

    /// Takes all submissions of one rank.
    pub(crate) fn take_submissions_of(
        &mut self,
        id: ConnectionId,
        driver: &mut EndpointDriver,
        trace: Option<&mut TimelineFile>,
    ) {
        let mut taken = Vec::new();
        let most = RING_CAPACITY as usize;
        self.refused += self.rank(id).map_or(0, |rank| rank.take_entries(most, |entry| taken.push((id, entry))));
        self.submit_all(&taken, driver, trace);
    }

    fn submit_all(
        &mut self,
        taken: &[(ConnectionId, SubmissionEntry)],
        driver: &mut EndpointDriver,
        mut trace: Option<&mut TimelineFile>,
    ) {
        self.submissions += taken.len() as u64;
        for (id, entry) in taken {
            self.submit(*id, entry, driver, trace.as_deref_mut());
        }
    }

    fn submit(
        &mut self,
        id: ConnectionId,
        entry: &SubmissionEntry,
        driver: &mut EndpointDriver,
        trace: Option<&mut TimelineFile>,
    ) {
        self.next_call += 1;
        let call_id = CallId(self.next_call);
        let Some(rank) = self.rank(id) else { return };
        let slot = entry.slot;
        if rank.busy.contains_key(&slot) {
            tracing::debug!(pid = rank.pid, slot, "a completion word is used twice at once");
            self.refused += 1;
            return;
        }
        match rank.admit(entry, driver) {
            Ok(AdmittedCall { group, rank: me, footprint, deadline, buffers }) => {
                let Footprint { signature, blocks, .. } = footprint;
                let (in_place, blocks) = (entry.call.in_place, blocks.map(Arc::new));
                rank.failures.remove(&slot);
                rank.busy.insert(slot, call_id);
                // A message is not numbered among the instances of its group.
                let tagged = matches!(signature.kind, CallKind::Tagged(_));
                let instance = InstanceId(if tagged { 0 } else { entry.instance });
                let in_flight = CallInFlight {
                    connection: id,
                    group: entry.group,
                    slot,
                    instance: entry.instance,
                    since: Instant::now(),
                    place: (group, me),
                    kind: signature.kind,
                    bytes: buffers.received_bytes(),
                };
                self.calls.insert(call_id, in_flight);
                if let Some(trace) = trace {
                    trace.called(call_id, (group, instance, me), signature);
                }
                let call = RankCall { id: call_id, group, rank: me, instance, signature, in_place, blocks, deadline };
                driver.call(call, buffers);
            }
            Err(refusal) => {
                tracing::debug!(pid = rank.pid, %refusal, "a submission is refused");
                let status = refusal.status();
                rank.failures.insert(slot, (status, refusal.to_string()));
                rank.completions.complete(slot, status);
                // The other ranks would wait for a call that never comes, so the machine is informed that this rank has
                // left. The rank counts the refused collective, so none of its later calls would have the next instance
                // number.
                let counted = !matches!(entry.call.kind, CallKind::Tagged(_));
                let is_out =
                    |membership: &&mut Membership| counted && matches!(membership.stage, MembershipStage::Made { .. });
                let out = rank.groups.get_mut(&entry.group).filter(is_out);
                out.into_iter().for_each(|membership| membership.end(driver));
                self.refused += 1;
            }
        }
    }
}

impl AttachedRank {
    /// Takes up to `most` submissions; returns the number of refused submissions.
    fn take_entries(&mut self, most: usize, mut submitted: impl FnMut(SubmissionEntry)) -> u64 {
        let mut refused = 0;
        for _ in 0..most {
            match self.side.pop() {
                None => break,
                Some(Ok(entry)) => submitted(entry),
                Some(Err(error)) => {
                    tracing::debug!(pid = self.pid, %error, "a submission is refused");
                    refused += 1;
                }
            }
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use outboard_call::{Call, Rank, Signature};
    use outboard_proto::{CollectiveError, Config, Event, GroupHandle, GroupMember, GroupSpec, HostId, OfferId, SpId};
    use outboard_shm::attach::AttachChannel;
    use outboard_shm::control::{RankSide, ServiceSide};
    use outboard_shm::memory::TieredMemory;
    use outboard_shm::status::Status;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

    use super::*;
    use crate::memory::PostedBuffers;
    use crate::ranks::attach::PinnedProcess;

    /// Attaches a rank without a group, so all its submissions are refused.
    fn attach(ranks: &mut Ranks, id: ConnectionId) -> RankSide {
        let path = std::env::temp_dir().join(format!("outboard-rings-{}-{id}", std::process::id()));
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.expect("a descriptor");
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).expect("short")).expect("a free name");
        rustix::net::listen(&socket, 1).expect("bound");
        let channel = AttachChannel::connect(&path).expect("it listens");
        std::fs::remove_file(&path).expect("ours");
        let side = ServiceSide::create().expect("memory");
        let [region, doorbell] = side.descriptors().map(|fd| fd.try_clone_to_owned().expect("a descriptor"));
        let memory = TieredMemory::default();
        let process = PinnedProcess { visible_pid: None, pid: 1, pidfd: None, memory, seat: None };
        let rank = AttachedRank::new(channel, process, side, None);
        ranks.connections.insert(id, RankConnection::AttachedRank(Box::new(rank)));
        RankSide::attach(region, doorbell).expect("a control region")
    }

    /// When a rank sends a request, only the calls of that rank are taken.
    #[test]
    fn a_request_of_a_rank_takes_only_its_own_submissions() {
        let (mut ranks, mut driver) = (Ranks::default(), EndpointDriver::new(SpId(1), Config::default(), 1, 0));
        let sides = [1, 2].map(|id| attach(&mut ranks, id));
        let call = Call::new(CallKind::Barrier);
        let post = |side: &RankSide| {
            (0..100).for_each(|slot| side.post(&SubmissionEntry { group: 1, instance: 1, slot, call }).expect("room"));
        };
        sides.iter().for_each(post);
        ranks.take_submissions_of(2, &mut driver, None);
        let left: Vec<usize> = [1, 2].map(|id| ranks.rank(id).map_or(0, |rank| rank.failures.len())).into();
        assert_eq!((left, ranks.submissions), (vec![0, 100], 100));
    }

    /// A rank posts a collective with an unreadable table. The rank that waits for it gets an error: the posting rank
    /// has left.
    #[test]
    fn a_refused_collective_ends_its_ranks_membership() {
        let (mut ranks, mut driver) = (Ranks::default(), EndpointDriver::new(SpId(1), Config::default(), 1, 0));
        let side = attach(&mut ranks, 3);
        let member = |offer| GroupMember {
            sp: SpId(1),
            host: HostId(1),
            address: [1].into(),
            sends_from: None,
            link_rate: 1_000_000_000,
            engine: [].into(),
            offer: OfferId(offer),
        };
        let handle = GroupHandle(7);
        let spec = GroupSpec { handle, key: [3, 4], members: [1, 2].map(member).into() };
        [0, 1].into_iter().for_each(|rank| driver.create_group(&spec, Rank(rank)));
        let stage = MembershipStage::Made { recordings: [].into(), in_flight: 0 };
        ranks.join(3, Membership { handle, rank: Rank(0), ranks: 2, deadline: None, stage }, Vec::new());
        let waits = RankCall {
            id: CallId(100),
            group: handle,
            rank: Rank(1),
            instance: InstanceId(1),
            signature: Signature { kind: CallKind::Barrier, bytes: 0 },
            in_place: false,
            blocks: None,
            deadline: None,
        };
        driver.call(waits, PostedBuffers::new(Arc::new(TieredMemory::default()), (0, 0), (0, 0)));
        let call = Call { table: 0x1000, ..Call::new(CallKind::Alltoallv) };
        side.post(&SubmissionEntry { group: 1, instance: 1, slot: 5, call }).expect("room");
        ranks.take_submissions_of(3, &mut driver, None);
        assert_eq!(side.result(5), Some(Status::Memory));
        let ended = std::iter::from_fn(|| driver.poll_event()).find_map(|event| match event {
            Event::Completed { call, result } => Some((call, result)),
            _ => None,
        });
        assert_eq!(ended, Some((CallId(100), Err(CollectiveError::RankLost(Rank(0))))));
    }
}
