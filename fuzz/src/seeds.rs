//! Where fuzzing begins: scripts in which everybody behaves, so that the fuzzer starts deep in the protocol.

use crate::datagrams::acts;

/// Scripts for `hostile_datagrams`: both groups made, some collectives carried out, with a hostile act in between.
#[must_use]
pub fn datagrams() -> Vec<Vec<u8>> {
    let ask = (0..2).flat_map(|group| (0..4).flat_map(move |rank| [acts::ASK, group, rank]));
    let made: Vec<u8> = ask.chain([acts::WAIT, 4]).collect();
    let mut seeds = Vec::new();
    for ring in 0..2 {
        for size in [2, 4, 5, 6] {
            for kind in 0..5 {
                let mut seed = vec![ring];
                seed.extend(&made);
                for group in 0..2 {
                    // The first to call says what; then come the others, and the time that it takes.
                    seed.extend([acts::CALL, group, 0, size, 1, kind]);
                    seed.extend([acts::CALL, group, 1, acts::WAIT, 2, acts::CALL, group, 2, acts::CALL, group, 3]);
                    seed.extend([acts::TAMPER, size % 4, 5, 9, acts::WAIT, 4]);
                }
                seed.extend([acts::LEAVE, 2, acts::WAIT, 3]);
                seeds.push(seed);
            }
        }
    }
    // A stranger floods before anybody has asked.
    seeds.push([&[0, acts::MESSAGE, 0, 0, 0xff, 1, 0, 0, 0, 0, 0, 0, 0][..], &made].concat());
    seeds
}

/// Scripts for `hostile_rank`: a group with the honest, calls that are owed and paid, and requests of every kind.
#[must_use]
pub fn rank() -> Vec<Vec<u8>> {
    use crate::rank::acts::{BYTES, CONNECT, ENTRY, HONEST, OWED, PAID, READ, REQUEST, RING, SCRIBBLE, SHARED_GROUP};
    let good = [SHARED_GROUP, OWED, PAID, HONEST, PAID, OWED, READ];
    let bad: [&[u8]; 7] = [
        &[ENTRY, 1, 3, 1, 2, 1, 0, 0, 1, 2, 1, 3],
        &[SCRIBBLE, 2, 0, 3, 1, 1, 1, 1],
        &[RING, 0, 1],
        &[BYTES, 4, 0, 1, 2, 3, 4],
        &[CONNECT, 1, SHARED_GROUP],
        &[CONNECT, 0, BYTES, 3, 0, 1, 2, 3],
        &[OWED, CONNECT, 0],
    ];
    let mut seeds: Vec<Vec<u8>> = bad.iter().map(|bad| [&good, *bad, &[HONEST]].concat()).collect();
    seeds.extend((0..10).map(|kind| [&good[..], &[REQUEST, kind, 0, 0, 0, 0, 1, 1, READ, HONEST]].concat()));
    seeds
}
