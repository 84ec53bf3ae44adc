//! Peers that take nothing of what is sent to them.

use super::*;

/// A peer goes on speaking. It is lost, by its name, if it acknowledges nothing, and not if it does so slowly.
#[test]
fn a_peer_that_speaks_and_takes_nothing_is_lost() {
    let (config, spec, other) = (Config::default(), support::spec(&[HERE, 11]), SpId(11));
    let inquire = of(&spec, GroupMessage::Instance { instance: InstanceId(1), body: InstanceMessage::Inquire });
    let speak = |beats_for_each: u32| {
        let (mut here, mut now) = (Endpoint::new(SpId(HERE), config.clone(), 1), Instant(1));
        here.handle_create_group(now, &spec, Rank(0));
        here.handle_frame(now, other, &frame(0, &step(&spec, 0, &config), 0), 0);
        let mut told = drive(&mut here, now).1;
        for beat in 1..100 {
            now = now + config.heartbeat;
            let mut said = frame(beat, &inquire, 0);
            said[ACK].copy_from_slice(&(beat / beats_for_each).to_le_bytes());
            here.handle_frame(now, other, &said, 0);
            told.extend(drive(&mut here, now).1);
        }
        here.handle_call(now, support::call(1, 0, 1, Signature { kind: CallKind::Barrier, bytes: 0 }));
        told.extend(drive(&mut here, now).1);
        let named = |event: &Event| matches!(event, Event::Violation { peer: Some(peer), .. } if *peer == other);
        let error = CollectiveError::PeerLost { sp: other, rank: Rank(1) };
        let fails = Event::Completed { call: CallId(1), result: Err(error) };
        [told.iter().any(named), told.contains(&Event::Disconnect { peer: other }), told.contains(&fails)]
    };
    assert_eq!((speak(u32::MAX), speak(10)), ([true; 3], [false; 3]));
}

/// The driver has no room for one peer: it is given nothing for that one, and not woken for it, and all for the others.
#[test]
fn nothing_is_given_for_a_peer_that_the_driver_is_full_of() {
    let (mut here, spec, mut seq) = three_have_met();
    let (full_of, now) = (SpId(11), Instant(1) + here.config().heartbeat);
    here.handle_full(full_of, true);
    here.handle_frame(Instant(1), full_of, &frame(seq.next().expect("many"), &Message::Void, 0), 0);
    here.handle_leave(Instant(1), spec.handle, Rank(0));
    let left = of(&spec, GroupMessage::Lost { rank: Rank(0), after: InstanceId(0), cause: Rank(0) });
    let said = drive(&mut here, now).0;
    assert!(said.contains(&(SpId(12), left.clone())) && said.iter().all(|(to, _)| *to != full_of), "{said:?}");
    assert!(here.next_transmit().is_none_or(|at| at > now));
    here.handle_full(full_of, false);
    assert_eq!(drive(&mut here, now).0, [(full_of, left)]);
}
