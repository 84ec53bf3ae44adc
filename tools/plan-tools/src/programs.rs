//! The actual programs of a call, for simulation.

use outboard_plan::selection::{Case, Choice, Collective};
use outboard_plan::{Arguments, Program, ProgramBuilder, Rank, Span, Topology, program};

/// Indices of messages between two ranks of a call that pulls: the block, its announcement, the request for the block.
const BLOCK: u32 = 0;
const ANNOUNCED: u32 = 1;
const ASKED: u32 = 2;

/// The host of a rank if the hosts are filled one after another.
pub(crate) fn host_of(case: &Case, rank: Rank) -> u32 {
    rank.0 / case.ranks.div_ceil(case.hosts.clamp(1, case.ranks.max(1))).max(1)
}

/// The programs of all ranks, in rank order; a root is rank 0, and an element is a byte. `None` if the algorithm
/// rejects such a call.
pub fn programs(case: &Case, choice: Choice) -> Option<Vec<Program>> {
    let Case { ranks, bytes, .. } = *case;
    bytes.checked_mul(ranks.into())?;
    let topology = Topology::of_hosts((0..ranks).map(|rank| host_of(case, Rank(rank))))?;
    let one = |rank| match choice.collective() {
        _ if choice.pulls() => Some(pulled(case, &topology, rank)),
        // After the ready barrier all ranks have called, so a barrier needs no messages of its own.
        Collective::Barrier => Some(ProgramBuilder::new(rank, ranks).build()),
        _ => program(choice, &Arguments::of(&topology, bytes), rank).ok(),
    };
    (0..ranks).map(Rank).map(one).collect()
}

/// Bytes that `source` sends to `destination` in an exchange.
fn block(case: &Case, source: Rank, destination: Rank) -> u64 {
    match case.collective {
        Collective::Gather if destination != Rank(0) => 0,
        Collective::Scatter if source != Rank(0) => 0,
        _ => case.bytes,
    }
}

/// A program that pulls (SP-5), with its announcements. A rank announces its blocks to the first rank of each host,
/// which stands for the host's service process. This first rank requests all blocks once.
fn pulled(case: &Case, topology: &Topology, rank: Rank) -> Program {
    let all = || (0..case.ranks).map(Rank);
    let here = topology.host_of(rank);
    let signal = Span::signal();
    let mut builder = ProgramBuilder::new(rank, case.ranks);
    let total = u64::from(case.ranks) * case.bytes;
    builder.buffers(total, total, 0);
    for from in all().filter(|from| *from != rank && block(case, *from, rank) > 0) {
        builder.recv(from, BLOCK, Span::output(u64::from(from.0) * case.bytes, case.bytes), &[]);
    }
    for host in 0..topology.hosts() {
        let there = topology.ranks_of(host);
        let to = there.iter().filter(|to| **to != rank && block(case, rank, **to) > 0);
        let asked = (host != here && to.clone().next().is_some()).then(|| {
            builder.send(there[0], ANNOUNCED, signal, &[]);
            builder.recv(there[0], ASKED, signal, &[])
        });
        for to in to {
            builder.send(*to, BLOCK, Span::input(u64::from(to.0) * case.bytes, case.bytes), asked.as_slice());
        }
    }
    if block(case, rank, rank) > 0 {
        let at = u64::from(rank.0) * case.bytes;
        builder.copy(Span::input(at, case.bytes), Span::output(at, case.bytes), &[]);
    }
    let locals = topology.ranks_of(here);
    let far = |source: &Rank| locals[0] == rank && topology.host_of(*source) != here;
    let wanted = |source: &Rank| locals.iter().any(|local| block(case, *source, *local) > 0);
    for source in all().filter(far).filter(wanted) {
        let announced = builder.recv(source, ANNOUNCED, signal, &[]);
        builder.send(source, ASKED, signal, &[announced]);
    }
    builder.build()
}
