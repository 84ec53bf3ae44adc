//! Hostile packets against engines that also serve honest jobs: what a fuzzer plays.
//!
//! Jobs 0 and 2 have honest members alone. Of job 1 one rank is on node 2, which sends what the script says beside what
//! its engine does; node 3 is not in that job, and sends, too, but nothing about its own. What is demanded: nobody
//! panics, no order leaves the memory that it may touch, and the calls of the honest jobs end with the bits of their
//! plans. Job 1 may end as it likes: members of a job trust each other, and a network tells its engines truly where a
//! packet comes from.
//!
//! Invariant: every string of bytes is a script, and decides everything.

use outboard_nic::datapath::{self, Stream};
use outboard_nic::triggered::list::{Connection, Purpose, Serves};
use outboard_nic::{Failure, Node, Port, host, ordered, triggered};
use outboard_plan::selection::{Choice, Collective};
use outboard_plan::{Element, Operator, Rank, Reduction};

use super::{Call, JobPlan, Kind, NicBreach, NicPlan, Played, Prepared, Run};
use crate::tape::Tape;

const POSSESSED: usize = 1;
/// A member of an honest job, whose other members trust it.
const STRANGER: Node = Node(3);
const JOB_OF_STRANGER: u8 = 2;
/// Events behind the script until everything honest has ended; who waits for the hostile may test its call for ever.
const MOST_EVENTS: u32 = 20_000;
/// Payload of a packet is something that was sent.
const MOST_BYTES: u64 = 5_000;

/// Packets as the hostile make them.
trait Forge: Kind {
    fn forge(tape: &mut Tape<'_>) -> <Self::Engine as outboard_nic::Engine>::Packet;
    /// The job that a packet is about.
    fn job(packet: &<Self::Engine as outboard_nic::Engine>::Packet) -> u8;
    /// Bytes that a packet says it has.
    fn payload(packet: &<Self::Engine as outboard_nic::Engine>::Packet) -> u64;
}

fn bytes(tape: &mut Tape<'_>) -> u64 {
    // What honest packets carry is what gets deep.
    match tape.below(4) {
        0 => tape.number().min(MOST_BYTES),
        1 => 1_000,
        2 => 4_000,
        _ => 8 * u64::from(tape.byte()),
    }
}

fn rank(tape: &mut Tape<'_>) -> Rank {
    Rank(tape.number32())
}

fn port(tape: &mut Tape<'_>) -> Port {
    Port(tape.number() as u16)
}

impl Forge for ordered::Settings {
    fn forge(tape: &mut Tape<'_>) -> ordered::Packet {
        let (job, source_port, Port(port)) = (tape.below(4), tape.number() as u16, port(tape));
        let content = match tape.below(10) {
            0 => ordered::Content::Ask { pulse: tape.number() },
            1 => ordered::Content::Grant { before: tape.number() },
            2 => ordered::Content::Places { before: tape.number() },
            3 => ordered::Content::Direct {
                number: tape.below(3).into(),
                chunk: tape.number() as u16,
                bytes: bytes(tape) as u32,
            },
            4 if tape.flip() => ordered::Content::Abort(Failure::Dead { node: Node(tape.number32()) }),
            _ => ordered::Content::Data {
                seq: tape.number() as u8,
                pulse: tape.number() as u16,
                chunk: tape.number() as u16,
                bytes: bytes(tape) as u32,
            },
        };
        ordered::Packet { job, source_port, port, content }
    }

    fn job(packet: &ordered::Packet) -> u8 {
        packet.job
    }

    fn payload(packet: &ordered::Packet) -> u64 {
        match packet.content {
            ordered::Content::Data { bytes, .. } | ordered::Content::Direct { bytes, .. } => bytes.into(),
            ordered::Content::Places { .. }
            | ordered::Content::Ask { .. }
            | ordered::Content::Grant { .. }
            | ordered::Content::Abort(_) => 0,
        }
    }
}

impl Forge for triggered::Settings {
    fn forge(tape: &mut Tape<'_>) -> triggered::Packet {
        let (job, port, operation) = (tape.below(4), port(tape), tape.number() as u16);
        let serves = [Serves::Both, Serves::Outgoing, Serves::Incoming][usize::from(tape.below(3))];
        let connection = Connection { peer: rank(tape), serves };
        let purpose = Purpose::ALL[usize::from(tape.below(3))];
        let number = tape.number();
        let content = match tape.below(8) {
            0 => triggered::Content::Connect,
            1 => triggered::Content::Accept,
            2 => triggered::Content::Taken { purpose, number },
            3 => triggered::Content::NotReady { purpose, number },
            _ => triggered::Content::Message { purpose, number, bytes: bytes(tape) },
        };
        triggered::Packet { job, port, operation, connection, link: tape.number32(), content }
    }

    fn job(packet: &triggered::Packet) -> u8 {
        packet.job
    }

    fn payload(packet: &triggered::Packet) -> u64 {
        if let triggered::Content::Message { bytes, .. } = packet.content { bytes } else { 0 }
    }
}

impl Forge for host::Settings {
    fn forge(tape: &mut Tape<'_>) -> host::Packet {
        let (job, port) = (tape.below(4), port(tape));
        let name = host::Name { call: tape.number(), from: rank(tape), to: rank(tape), index: tape.number32() };
        let content = match tape.below(5) {
            0 => host::Content::Message(bytes(tape)),
            1 => host::Content::Offer,
            2 => host::Content::Taken,
            3 => host::Content::Clear,
            _ => host::Content::Data(bytes(tape)),
        };
        host::Packet { job, port, name, content }
    }

    fn job(packet: &host::Packet) -> u8 {
        packet.job
    }

    fn payload(packet: &host::Packet) -> u64 {
        match packet.content {
            host::Content::Message(bytes) | host::Content::Data(bytes) => bytes,
            host::Content::Offer | host::Content::Taken | host::Content::Clear => 0,
        }
    }
}

impl Forge for datapath::Settings {
    fn forge(tape: &mut Tape<'_>) -> datapath::Packet {
        use datapath::{Content, Message};
        let (job, call, from) = (tape.below(4), tape.number(), rank(tape));
        let stream = Stream { source: rank(tape), subgroup: tape.number() as u16 };
        let mut run = || (tape.number32(), tape.number32());
        let ranges = [run(), run(), run()];
        let ranges = ranges[..usize::from(tape.below(4))].to_vec();
        let message = match tape.below(12) {
            0 => Message::Ready(tape.number() as u8),
            1 => Message::Offer(tape.number32()),
            2 => Message::Read(tape.number32()),
            3 => Message::Data(tape.number32(), bytes(tape)),
            4 => Message::Nak(stream, ranges),
            5 => Message::Missing(stream, ranges),
            6 => Message::Repair(stream, (tape.number32(), tape.number32()), bytes(tape)),
            7 => Message::Whole(stream),
            8 => Message::Complete,
            _ => {
                let (psn, bytes) = (tape.number32(), bytes(tape) as u32);
                let content = Content::Chunk { subgroup: stream.subgroup, psn, bytes };
                return datapath::Packet { job, call, from, content };
            }
        };
        datapath::Packet { job, call, from, content: Content::Reliable { to: rank(tape), message } }
    }

    fn job(packet: &datapath::Packet) -> u8 {
        packet.job
    }

    fn payload(packet: &datapath::Packet) -> u64 {
        packet.payload()
    }
}

/// Plays a script.
///
/// # Errors
/// The harm that the honest took.
pub fn play(script: &[u8]) -> Result<Played, NicBreach> {
    let mut tape = Tape::new(script);
    let tape = &mut tape;
    let sum = Reduction::new(Operator::Sum, Element::F64).ok();
    match tape.below(5) {
        0 => {
            // So small that the second call goes from point to point.
            let settings = ordered::Settings { buffer_bytes: 64 << 10, ..ordered::Settings::default() };
            on(tape, settings, [(Collective::Allreduce, "rabenseifner"), (Collective::Alltoall, "pull")], sum)
        }
        1 => on(
            tape,
            triggered::Settings::default(),
            [(Collective::Allgather, "bruck"), (Collective::Broadcast, "binomial")],
            None,
        ),
        2 => {
            let settings = host::Settings { eager_bytes: 2_000, staging_bytes: 20_000, ..host::Settings::default() };
            on(tape, settings, [(Collective::Alltoall, "pull"), (Collective::Allgather, "ring")], None)
        }
        datagrams => {
            let transport = if datagrams == 3 {
                datapath::Transport::Datagrams
            } else {
                datapath::Transport::Writes { packets: 2 }
            };
            let settings =
                datapath::Settings { transport, packet_bytes: 1_000, receives: 4, ..datapath::Settings::default() };
            on(
                tape,
                settings,
                [(Collective::Allgather, "multicast:chains=1,subgroups=2"), (Collective::Broadcast, "multicast")],
                None,
            )
        }
    }
}

fn on<S: Forge>(
    tape: &mut Tape<'_>,
    settings: S,
    algorithms: [(Collective, &str); 2],
    sum: Option<Reduction>,
) -> Result<Played, NicBreach> {
    let calls = algorithms.map(|(collective, algorithm)| {
        let choice = Choice::read(collective, algorithm).expect("an algorithm");
        Call::new(choice, 4_000, sum.filter(|_| collective == Collective::Allreduce))
    });
    let job = |nodes: &[u32]| JobPlan { nodes: nodes.to_vec(), calls: calls.to_vec() };
    let jobs = vec![job(&[0, 1, 0]), job(&[0, 1, 2]), job(&[3, 3, 1])];
    let plan = NicPlan { jobs, settings, death: None };
    let prepared = Prepared::new(&plan).expect("it fits");
    let late = plan.jobs.iter().map(|job| vec![false; job.nodes.len()]).collect();
    let mut run = Run::new(&prepared, late)?.possessed(POSSESSED);
    let mut left = MOST_EVENTS;
    while left > 0 {
        let forges = !tape.ended() && tape.below(3) > 0;
        if forges {
            let from = if tape.below(4) == 0 { STRANGER } else { Node(2) };
            let (to, packet) = (Node(tape.below(2).into()), S::forge(tape));
            let payload = vec![0x5a; S::payload(&packet) as usize];
            if (from, S::job(&packet)) != (STRANGER, JOB_OF_STRANGER) {
                run.forge(from, to, packet, payload);
            }
        }
        let ended = tape.ended();
        let mut turn = left as usize;
        let goes_on = run.step(&mut |events| {
            turn = turn.wrapping_mul(0x9e37_79b1) ^ usize::from(tape.byte());
            (turn >> 7) % events
        })?;
        if ended {
            left -= 1;
            if !goes_on {
                break;
            }
        }
    }
    run.judge()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngCore, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// What a fuzzer has found: a member forged a packet about its own job, which is not promised to bear that.
    #[test]
    fn scripts_that_found_something_pass() {
        let of_its_own_job = [
            3, 0, 1, 1, 0, 1, 2, 0, 0, 0, 0, 0, 1, 2, 1, 0, 7, 0, 11, 1, 1, 0, 0, 2, 0, 1, 0, 7, 0, 11, 1, 1, 0, 1, 0,
            10, 0, 0, 11,
        ];
        play(&of_its_own_job).unwrap_or_else(|breach| panic!("{breach}"));
    }

    /// A fuzzer plays more, from these on.
    #[test]
    fn the_honest_are_not_harmed() {
        for seed in 0..400 {
            let mut script = vec![0; 400];
            ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut script);
            script[0] = seed as u8;
            play(&script).unwrap_or_else(|breach| panic!("seed {seed}: {breach}"));
        }
    }
}
