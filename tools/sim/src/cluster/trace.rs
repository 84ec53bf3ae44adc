//! Describes events for people, with frames decoded.

use outboard_proto::wire::{DatagramHeader, FrameHeader, FrameKind, Message};

use super::*;

/// Describes an event, unless the lines around it show the event already.
pub(super) fn event<P: std::fmt::Debug>(event: &ClusterEvent<P>) -> Option<String> {
    match event {
        ClusterEvent::Input { host, input } => Some(match input {
            Input::Frame(f) => format!("host {host} <- host {}: {}", f.from, frame(&f.header, f.payload_len)),
            Input::Datagrams(t, mask) => format!("host {host} <- host {}: {}", t.from, train(t, *mask)),
            input => format!("host {host} <- {input:?}"),
        }),
        ClusterEvent::FrameHeld { frame: f, .. } => {
            Some(format!("host {} <- host {}, held: {}", f.to, f.from, frame(&f.header, f.payload_len)))
        }
        ClusterEvent::TrainStarts { .. } | ClusterEvent::TrainAtSwitch(_) | ClusterEvent::FrameAtSwitch(_) => None,
        ClusterEvent::FrameLeft { .. } | ClusterEvent::Timer { .. } => None,
        ClusterEvent::PlayerEvent(own) => Some(format!("{own:?}")),
        other => Some(format!("{other:?}")),
    }
}

pub(super) fn action(host: usize, action: &HostAction) -> Option<String> {
    Some(match action {
        HostAction::Frame(f) => format!("host {host} -> host {}: {}", f.to, frame(&f.header, f.payload_len)),
        HostAction::Batch(b) => {
            let (source, epoch, chunk) = (b.header.source, b.header.epoch, b.header.chunk);
            let from = format!("{:?}+{}", b.memory.region, b.memory.offset);
            format!("host {host} multicasts source {source} epoch {epoch} chunks {chunk}+{} from {from}", b.chunks)
        }
        HostAction::Completed { call, result, .. } => format!("host {host}: {call:?} completed, {result:?}"),
        other => format!("host {host}: {other:?}"),
    })
}

pub(super) fn train(train: &Train, among: u64) -> String {
    let header = DatagramHeader::parse(&train.headers[0]);
    let Ok(DatagramHeader { group, epoch, source, chunk }) = header else { return "foreign datagrams".into() };
    let chunks: Vec<u32> = (0..64).filter(|i| among >> i & 1 == 1).map(|i| chunk + i).collect();
    let which = match chunks[..] {
        [first, .., last] if last - first + 1 == chunks.len() as u32 => format!("{first}..={last}"),
        _ => format!("{chunks:?}"),
    };
    format!("{group} source {source} epoch {epoch} chunks {which}")
}

pub(super) fn frame(header: &[u8], payload_len: u32) -> String {
    let Ok((h, body)) = FrameHeader::decode(header, payload_len) else { return format!("bytes {header:02x?}") };
    let message = match h.kind {
        FrameKind::Bare => "bare".into(),
        FrameKind::Message => Message::decode(body).map_or_else(|e| format!("message: {e}"), |m| format!("{m:?}")),
    };
    let urgent = if h.ack_now { " now" } else { "" };
    format!("link {} to {} seq {} ack {}{urgent} {message} payload {payload_len}", h.link, h.to, h.seq, h.ack)
}
