//! The watchdog (SP-9): writes one line to the log for a collective that takes too long.
//!
//! The protocol machine measures the time; nothing here waits. `outboard run` shows these lines and selects them by
//! their target, the name of this module.

use outboard_plan::Rank;
use outboard_proto::Overdue;

/// Most ranks listed in one line.
const LISTED: usize = 16;

/// Logs a collective that takes too long.
pub(crate) fn warn(overdue: &Overdue) {
    tracing::warn!("{}", sentence(overdue));
}

fn sentence(overdue: &Overdue) -> String {
    let flight = &overdue.flight;
    let (seconds, call) = (flight.age_ns as f64 / 1e9, flight.instance.0);
    let mut text = format!("{}, call {call} of {}, in flight for {seconds:.1} s: ", flight.signature, flight.group);
    match overdue.missing.is_empty() {
        false => text += &format!("not called by {}", overdue.missing),
        true => text += "all ranks have called that could be asked",
    }
    for (what, ranks) in [("no answer about the host of", &overdue.silent), ("waits here for", &flight.awaits)] {
        if !ranks.is_empty() {
            text += &format!("; {what} {}", list(ranks));
        }
    }
    text
}

fn list(ranks: &[Rank]) -> String {
    let named: Vec<String> = ranks.iter().take(LISTED).map(Rank::to_string).collect();
    let more = ranks.len() - named.len();
    if more > 0 { format!("{} and {more} more", named.join(", ")) } else { named.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_proto::{Absentee, Absentees, CallKind, GroupHandle, InFlightInstance, InstanceId, Signature};

    #[test]
    fn sp_9_the_sentence_names_the_missing_their_last_calls_and_whom_is_waited_for() {
        let signature = |bytes| Signature { kind: CallKind::Allgather, bytes };
        let flight = InFlightInstance {
            group: GroupHandle(10),
            instance: InstanceId(7),
            signature: signature(4096),
            age_ns: 30_000_000_000,
            absent: Vec::new(),
            awaits: vec![Rank(3)],
        };
        let named = vec![
            Absentee { rank: Rank(1), last: Some((InstanceId(6), signature(8))) },
            Absentee { rank: Rank(3), last: None },
        ];
        let missing = Absentees { named, more: 2 };
        let text = sentence(&Overdue { flight, missing, silent: vec![Rank(4)] });
        let expected = "allgather of 4096 bytes per rank, call 7 of group 0000000a, in flight for 30.0 s: not called by rank 1 \
                        (last call 6: allgather of 8 bytes per rank), rank 3 (no call yet) and 2 more; no answer about the \
                        host of rank 4; waits here for rank 3";
        assert_eq!(text, expected);
    }
}
