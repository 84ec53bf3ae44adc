//! Both ends of a link, frame by frame.

use outboard_plan::Rank;

use super::*;
use crate::wire::{Few, InstanceMessage, MulticastMessage, OfferOrigin, Rts, TransferMessage};

fn link() -> Link {
    Link::new(1, Instant(0), Duration::from_millis(2))
}

fn drain(a: &mut Link, now: Instant) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| a.poll(now).map(|(f, _)| f.to_vec())).collect()
}

fn feed(b: &mut Link, now: Instant, frame: &[u8], got: &mut Vec<Vec<u8>>) {
    let (header, body) = FrameHeader::decode(frame, 0).expect("own frames decode");
    let mut acked = Vec::new();
    if let ReceivedFrame::Message(m) = b.handle(now, &header, body, &mut acked) {
        got.push(m.to_vec());
    }
}

#[test]
fn every_pattern_of_loss_in_ten_frames_is_repaired_in_order() {
    for lost in 0u32..1024 {
        let (mut a, mut b) = (link(), link());
        let complete = || InstanceMessage::Multicast(MulticastMessage::Complete);
        let sent: Vec<Message> =
            (0..4).map(|i| Message::instance(GroupHandle(i), InstanceId(u64::from(i) + 1), complete())).collect();
        sent.iter().for_each(|m| a.push(Instant(0), m, FramePayload::default(), None, None));
        let (mut got, mut frames, mut now) = (Vec::new(), 0, Instant(0));
        for _ in 0..200 {
            a.handle_timeout(now);
            b.handle_timeout(now);
            for f in drain(&mut a, now) {
                frames += 1;
                if frames > 10 || lost >> (frames - 1) & 1 == 0 {
                    feed(&mut b, now, &f, &mut got);
                }
            }
            for f in drain(&mut b, now) {
                frames += 1;
                if frames > 10 || lost >> (frames - 1) & 1 == 0 {
                    feed(&mut a, now, &f, &mut Vec::new());
                }
            }
            now = now + Duration::from_millis(10);
        }
        let got: Vec<Message> = got.iter().map(|b| Message::decode(b).expect("decodes")).collect();
        assert_eq!(got, sent, "loss pattern {lost:b}");
        assert_eq!(a.backlog(), 0, "all acknowledged with loss pattern {lost:b}");
    }
}

/// MC-13.
#[test]
fn payload_is_bounded_by_bytes_until_it_is_acknowledged_or_void() {
    let (mut a, mut b) = (link(), link());
    let piece = |call| MemRef { region: MemRegion::Input(CallId(call)), offset: 0, len: 100 };
    for call in 1..=3 {
        a.set_window(300);
        assert!(a.has_room());
        a.push(Instant(0), &Message::Void, piece(call).into(), None, None);
    }
    assert!(!a.has_room());
    a.void_memory(MemRegion::Input(CallId(2)));
    assert!(a.has_room());
    a.set_window(200);
    assert!(!a.has_room());
    for (frame, payload) in std::iter::from_fn(|| a.poll(Instant(0))).collect::<Vec<_>>() {
        let (header, body) = FrameHeader::decode(&frame, payload_bytes(&payload) as u32).expect("own frames decode");
        b.handle(Instant(0), &header, body, &mut Vec::new());
    }
    drain(&mut b, Instant(0)).iter().for_each(|frame| feed(&mut a, Instant(0), frame, &mut Vec::new()));
    assert!(a.has_room(), "asked for without being told to wait for more");
}

/// MC-13: an acknowledgement is requested once the window shrinks below the bytes sent since the last request.
#[test]
fn shrinking_window_requests_an_acknowledgement() {
    let (mut a, mut b) = (link(), link());
    a.set_window(1000);
    a.push(Instant(0), &Message::Void, FramePayload::default(), None, None);
    let exchange = |a: &mut Link, b: &mut Link| {
        let sent: Vec<_> = std::iter::from_fn(|| a.poll(Instant(0))).collect();
        for (frame, payload) in &sent {
            let (header, body) = FrameHeader::decode(frame, payload_bytes(payload) as u32).expect("own frames decode");
            b.handle(Instant(0), &header, body, &mut Vec::new());
        }
        drain(b, Instant(0)).iter().for_each(|frame| feed(a, Instant(0), frame, &mut Vec::new()));
        sent.len()
    };
    exchange(&mut a, &mut b);
    let piece = MemRef { region: MemRegion::Input(CallId(1)), offset: 0, len: 300 };
    a.push(Instant(0), &Message::Void, piece.into(), None, None);
    assert_eq!(exchange(&mut a, &mut b), 1);
    assert!(a.has_room() && a.backlog() == 1, "less than half of the window needs no answer");
    a.set_window(100);
    assert!(!a.has_room());
    assert_eq!(exchange(&mut a, &mut b), 1);
    assert!(a.has_room() && a.backlog() == 0);
    assert_eq!(exchange(&mut a, &mut b), 0, "nothing is asked for twice");
}

/// GP-1: the message of an earlier call keeps its place before later messages.
#[test]
fn void_tagged_message_keeps_its_place_without_payload() {
    let rts = |bytes, eager| Rts { destination: Rank(1), tag: 0, occurrence: 0, bytes, eager };
    let offer = |ready| {
        let (origin, rank, early) = (OfferOrigin::Single, Rank(0), Vec::new());
        let offer =
            TransferMessage::Offer { origin, rank, first_ready: 5, ready: Few::from_vec(ready), first_early: 0, early };
        Message::transfer(GroupHandle(1), offer)
    };
    let mut a = link();
    let piece = MemRef { region: MemRegion::Output(CallId(1)), offset: 0, len: 100 };
    a.push(Instant(0), &offer(vec![rts(100, true), rts(0, true)]), piece.into(), None, None);
    let lost = a.poll(Instant(0)).expect("it is sent");
    a.void_memory(MemRegion::Output(CallId(1)));
    a.handle_timeout(a.poll_timeout().expect("it is not acknowledged"));
    let (frame, payload) = a.poll(Instant(0)).expect("it is sent again");
    let (header, body) = FrameHeader::decode(&frame, 0).expect("own frames decode");
    assert_eq!((lost.1.len(), payload.len(), header.seq), (1, 0, 0));
    assert_eq!(Message::decode(body), Ok(offer(vec![rts(100, false), rts(0, true)])));
}

#[test]
fn round_trip_is_measured_without_the_holding_time() {
    let (mut a, mut b) = (link(), link());
    a.push(Instant(0), &Message::Void, FramePayload::default(), None, None);
    let ms = |n: u64| Instant(n * 1_000_000);
    let f = drain(&mut a, ms(0));
    feed(&mut b, ms(3), &f[0], &mut Vec::new());
    let f = drain(&mut b, ms(40));
    feed(&mut a, ms(44), &f[0], &mut Vec::new());
    assert_eq!(a.least_round_trip(), Some(Duration::from_millis(7)));
}

#[test]
fn silent_watched_end_owes_an_acknowledgement() {
    let (mut a, mut b) = (link(), link());
    a.set_heartbeat(Some(Duration::from_secs(1)));
    let ms = |n: u64| Instant(n * 1_000_000);
    assert_eq!(a.beat_at(), Some(ms(1000)));
    assert_eq!(drain(&mut a, ms(999)).len(), 0);
    let beat = drain(&mut a, ms(1000));
    assert_eq!((beat.len(), a.backlog(), a.silent_since()), (1, 1, ms(1000)), "an acknowledgement is owed now");
    assert_eq!(drain(&mut b, ms(1001)).len(), 0, "nothing is to be answered yet");
    feed(&mut b, ms(1001), &beat[0], &mut Vec::new());
    let due = b.ack_due().expect("the acknowledgement is due");
    let answer = drain(&mut b, due);
    feed(&mut a, ms(1030), &answer[0], &mut Vec::new());
    assert_eq!((a.backlog(), a.beat_at()), (0, Some(ms(2030))));
}
