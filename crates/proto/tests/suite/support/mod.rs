//! Shared helpers of these tests: members of groups, and frames as another service process sends them.

use std::sync::Arc;

use outboard_plan::Rank;
use outboard_proto::wire::{FrameHeader, FrameKind, Message};
use outboard_proto::{
    CallId, GroupHandle, GroupMember, GroupSpec, HostId, InstanceId, OfferId, RankCall, Signature, SpId,
};

/// Handle of the single group that these tests make.
pub(crate) const GROUP: GroupHandle = GroupHandle(7);
/// Secret of the group, for the keys of its datagrams.
pub(crate) const KEY: [u64; 2] = [3, 4];

/// The group, with a rank at each of these service processes, each on a host of its own.
pub(crate) fn spec(at: &[u64]) -> GroupSpec {
    let member = |sp: &u64| GroupMember {
        sp: SpId(*sp),
        host: HostId(*sp),
        address: Arc::from([*sp as u8]),
        sends_from: None,
        link_rate: 1_000_000_000,
        engine: [].into(),
        offer: OfferId(*sp),
    };
    GroupSpec { handle: GROUP, key: KEY, members: at.iter().map(member).collect() }
}

/// A call in the group, without blocks of its own and without a deadline.
pub(crate) fn call(id: u64, rank: u32, instance: u64, signature: Signature) -> RankCall {
    RankCall {
        id: CallId(id),
        group: GROUP,
        rank: Rank(rank),
        instance: InstanceId(instance),
        signature,
        in_place: false,
        blocks: None,
        deadline: None,
    }
}

/// A frame with a message over another service process's first link; it acknowledges `seq` messages.
pub(crate) fn frame(seq: u32, message: &Message, payload_len: u32) -> Vec<u8> {
    let (kind, link, to, ack) = (FrameKind::Message, 1, 0, seq);
    let (clock, echo, echo_age) = (1, 2, 3);
    let header = FrameHeader { kind, ack_now: false, link, to, seq, ack, payload_len, clock, echo, echo_age };
    let mut bytes = Vec::new();
    header.encode(&mut bytes);
    message.encode(&mut bytes);
    bytes
}
